"""The six pages on how to add something, followed by a stranger in one copy of this repository: the
examples go where the pages say, and what the pages say to run leaves everything green."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from pasting import blocks
from places import ROOT

_FILE = re.compile(r"`([\w/.-]+\.py)`:\n\n```python\n(.*?)```", re.DOTALL)
_README_ROW = "| `dlperf count DIR` | counts the runs of a sweep that have a log |\n"


def write(root: Path, path: str, text: str) -> None:
    """A file that is not there yet."""
    assert not (root / path).exists(), path
    (root / path).write_text(text, encoding="utf-8")


def replaced(root: Path, path: str, old: str, new: str) -> None:
    text = (root / path).read_text(encoding="utf-8")
    assert text.count(old) == 1, (path, old)
    (root / path).write_text(text.replace(old, new), encoding="utf-8")


def follow_the_pages(root: Path) -> None:
    for page in ("adding-a-back-end.md", "adding-a-workload.md"):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        for path, module in _FILE.findall(text):
            write(root, path, module)
    (engine,) = blocks("adding-an-engine.md", "python")
    write(root, "dlperf_hpc/engines/background.py", engine)
    (diff,) = blocks("adding-an-engine.md", "diff")
    files = re.split(r"^--- a/.*\n\+\+\+ b/(.*)\n", diff, flags=re.MULTILINE)[1:]
    for name, change in zip(files[::2], files[1::2], strict=True):
        old, new = (re.findall(rf"^{sign}(.*)$", change, re.MULTILINE) for sign in (r"-", r"\+"))
        replaced(root, name, old[0], new[0])
    (log,), (row,) = blocks("adding-a-format.md", "text"), blocks("adding-a-format.md", "json")
    module, tests = blocks("adding-a-format.md", "python")
    table = root / "dlperf_hpc/logs/formats.json"
    rows = {**json.loads(table.read_text(encoding="utf-8")), **json.loads(row)}
    table.write_text(json.dumps(rows), encoding="utf-8")
    write(root, "tests/unit/logs/formats/nimble.log", log.removesuffix("\n"))
    write(root, "dlperf_hpc/logs/formats/nimble.py", module)
    write(root, "tests/unit/logs/formats/test_nimble.py", tests)
    module, tests = blocks("adding-a-verb.md", "python")
    write(root, "dlperf_hpc/cli/count.py", module)
    write(root, "tests/unit/cli/test_count.py", tests)
    replaced(
        root, "README.md", "| `dlperf nodes DIR...` |", f"{_README_ROW}| `dlperf nodes DIR...` |"
    )
    (writer,) = blocks("adding-a-writer.md", "python")
    write(root, "dlperf_hpc/reporting/writers/latex.py", writer)


def raise_bounds(root: Path, output: str) -> None:
    """What CONTRIBUTING.md says of a change that needs more lines or files than the bounds."""
    path = root / "tests/support/metrics.toml"
    text = path.read_text(encoding="utf-8")
    for name, value in re.findall(r"(\w+) is ([\d.]+), its bound", output):
        text = re.sub(rf"^({name} = {{ bound = )[\d.]+", rf"\g<1>{value}", text, flags=re.MULTILINE)
    path.write_text(text, encoding="utf-8")


def python(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    found = [str(root), str(root / "docs")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(found), "OMP_NUM_THREADS": "1"}
    env = {name: value for name, value in env.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True)


def green(root: Path, *tests: str, chosen: Sequence[str] = ()) -> str:
    """'' if these tests pass in the copy, else what pytest prints."""
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist")
    done = python(root, "-m", "pytest", *options, *tests, *chosen)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.timeout(1800)
def test_what_the_six_pages_say_leaves_everything_green(tmp_path: Path) -> None:
    root = tmp_path / "copy"
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, names.decode().split("\0")):
        if (ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes((ROOT / name).read_bytes())
            (root / name).chmod((ROOT / name).stat().st_mode)
    follow_the_pages(root)
    assert python(root, "docs/doc_tables.py").returncode == 0
    done = python(root, "tests/support/mistakes.py")
    assert done.returncode == 0, done.stdout + done.stderr
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    subprocess.run(["git", "add", "-A"], cwd=root, check=True)
    beyond = python(root, "tests/support/metrics.py")
    raise_bounds(root, beyond.stdout + beyond.stderr)
    shown = green(root, "tests/unit", chosen=("-m", "not processes"))
    assert not shown, shown[-4000:]
    processes = "tests/processes/cli"
    shown = green(root, f"{processes}/test_mistakes.py", f"{processes}/test_login_node.py")
    assert not shown, shown[-4000:]
