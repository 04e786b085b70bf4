"""What others put into the current directory is not imported, whatever name it has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from sweeping import Workplace, local_environment

PLANTED = (
    *("pandas", "matplotlib", "submitit", "torch", "numpy", "pydantic", "rich", "mpi4py"),
    *("argparse", "json", "sitecustomize", "ahocorasick_rs", "psutil", "yaml"),
)


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    """A directory with modules that write a file when they are imported."""
    for name in PLANTED:
        told = f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r} + chr(10))\n"
        (tmp_path / f"{name}.py").write_text(f"{told}raise ImportError('planted')\n")
    return Workplace(tmp_path, local_environment())


def test_sweep_check_and_report_import_nothing_from_the_current_directory(place: Workplace) -> None:
    """Worker, epilogue and doctor's probe too: on this machine they start in that directory."""
    spec = place.tiny("tiny", ["1n2g"])
    argv = [sys.executable, "-m", "dlperf_hpc.sweep", str(spec), "--cluster", "local"]
    env = {**place.env, "OMP_NUM_THREADS": "1"}
    swept = subprocess.run(argv, cwd=place.root, env=env, text=True, capture_output=True)
    assert swept.returncode == 0, swept.stdout + swept.stderr
    assert place.results("tiny")["1n2g"].status.value == "ok"
    for arguments in (["report", "logs/tiny"], ["sweep", spec, "--cluster", "local", "--check"]):
        done = place.verb(*map(str, arguments))
        assert done.returncode == 0, done.stdout + done.stderr
    assert (place.root / "logs/tiny/report/speedup.png").exists()
    assert not (place.root / "ran").exists(), (place.root / "ran").read_text()
