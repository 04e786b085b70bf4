"""docs/adding-an-engine.md: its example keeps the contract, in a copy of the repository."""

from __future__ import annotations

import re
from pathlib import Path

from pasting import blocks, copied, python

CONTRACT = "tests/slurm/test_engine_contract.py"


def patched(root: Path, diff: str) -> None:
    """Replace each line of ``diff`` that begins with '-' by the one that begins with '+'."""
    files = re.split(r"^--- a/.*\n\+\+\+ b/(.*)\n", diff, flags=re.MULTILINE)[1:]
    for name, change in zip(files[::2], files[1::2], strict=True):
        old, new = (re.search(rf"^{sign}(.*)$", change, re.MULTILINE) for sign in (r"-", r"\+"))
        text = (root / name).read_text(encoding="utf-8")
        assert old and new and text.count(old[1]) == 1, change
        (root / name).write_text(text.replace(old[1], new[1]), encoding="utf-8")


def test_the_example_keeps_the_contract(tmp_path: Path) -> None:
    (module,), (diff,) = (
        blocks("adding-an-engine.md", "python"),
        blocks("adding-an-engine.md", "diff"),
    )
    root = copied(tmp_path, CONTRACT)
    (root / "dlperf_hpc" / "engines" / "background.py").write_text(module, encoding="utf-8")
    patched(root, diff)
    assert "local,background}" in "".join(python(root, "-m", "dlperf_hpc", "sweep", "--help"))
    found = python(root, "-m", "pytest", "-p", "no:cacheprovider", CONTRACT, "-k", "background")
    assert re.match(r"[5-9] passed", found[-1])
