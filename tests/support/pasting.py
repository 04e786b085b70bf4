"""The examples of docs/adding-*.md, saved into a copy of this repository as a stranger would, and
the commands of a page."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from places import ROOT

_COPIED = ("dlperf_hpc", "pyproject.toml", "tests/conftest.py", "tests/support")


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of docs/``page`` in that language."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def steps(page: str) -> list[tuple[str, str]]:
    """The commands of docs/``page`` in their order, each with the text that it is said to print."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    pattern = re.compile(r"^```sh\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", re.DOTALL | re.MULTILINE)
    return [(found[1].strip(), found[2] or "") for found in pattern.finditer(text)]


def copied(place: Path, *more: str) -> Path:
    """A copy of the package and of what its tests share, and of ``more`` files; its root."""
    # Compiled files come along, which saves half of the time; those being written do not.
    unfinished = shutil.ignore_patterns("*.pyc.*")
    skipped = shutil.ignore_patterns("*.pyc.*", "data", "sweeps_*")
    for name in (*_COPIED, *more):
        source, target = ROOT / name, place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            # "data" is a room of the package, and recorded sweeps among the tests' support.
            ignored = skipped if name.startswith("tests") else unfinished
            shutil.copytree(source, target, ignore=ignored)
        else:
            shutil.copy(source, target)
    return place


def python(root: Path, *arguments: str | Path, timeout: float = 120) -> Sequence[str]:
    """What ``python ARGUMENTS`` prints in the copy; AssertionError unless it succeeds."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        text=True,
        capture_output=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()
