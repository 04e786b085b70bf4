"""What a test needs is what its folder says: markers by folder, no framework and no process in
tests/unit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from places import ROOT

TESTS = ROOT / "tests"
BAD = {
    "at_import.py": "import {name}\n\ndef test_a() -> None: pass\n",
    "within.py": "def test_a() -> None:\n    import {name}\n",
}
STARTS = """
import subprocess, sys

def test_a() -> None:
    subprocess.run([sys.executable, "-c", ""])
"""


def collected(*arguments: str) -> list[str]:
    argv = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:xdist", *arguments]
    done = subprocess.run(argv, cwd=ROOT, text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line]


def test_every_folder_of_tests_is_a_room_or_has_a_marker() -> None:
    folders = {path.name for path in TESTS.iterdir() if any(path.glob("**/test_*.py"))}
    rooms = {path.stem for path in (ROOT / "dlperf_hpc").iterdir()}
    needs = {"mpi", "slurm", "frameworks", "campaigns", "long", "containers", "browser"}
    assert folders == {"unit", "processes", *needs}
    for folder in ("unit", "processes"):
        tested = {path.name for path in (TESTS / folder).iterdir() if any(path.glob("test_*.py"))}
        assert tested <= rooms


def test_a_marker_selects_the_tests_of_its_folder() -> None:
    found = collected("-m", "mpi", "tests/unit/test_rooms.py", "tests/mpi")
    assert {Path(name).parent.as_posix() for name in found} == {"tests/mpi"}


def test_a_unit_test_that_loads_a_framework_or_starts_a_process_fails(tmp_path: Path) -> None:
    """Run beside a copy of conftest.py, with modules of ours that are called as frameworks are."""
    unit, support = tmp_path / "unit", TESTS / "support"
    unit.mkdir()
    (tmp_path / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    for (file, content), name in zip(BAD.items(), ("tensorflow", "horovod"), strict=True):
        (unit / f"{name}.py").touch()
        (unit / f"test_{file}").write_text(content.format(name=name))
    (unit / "test_starts.py").write_text(STARTS)
    argv = [sys.executable, "-m", "pytest", "-q", "--continue-on-collection-errors"]
    argv += ["-o", f"pythonpath={support}", str(unit)]
    done = subprocess.run(argv, cwd=tmp_path, text=True, capture_output=True, timeout=60)
    assert done.returncode != 0
    for name in ("tensorflow", "horovod"):
        assert f"{name}: move it to" in done.stdout
    assert "started a process (subprocess.Popen): mark it" in done.stdout
