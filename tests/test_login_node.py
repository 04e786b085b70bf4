"""The login node loads nothing heavy, whatever verb is asked; and --help costs next to nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
HEAVY = {"torch", "tensorflow", "deepspeed", "horovod", "mpi4py", "transformers"}
PLOTTING = {"pandas", "matplotlib", "numpy"}

PROGRAM = """
import runpy, sys
sys.argv = ["dlperf_hpc"] + sys.argv[1:]
try:
    runpy.run_module("dlperf_hpc." + sys.argv.pop(1), run_name="__main__", alter_sys=False)
except SystemExit:
    pass
print("\\nMODULES " + " ".join(sorted(sys.modules)))
"""


def _modules(*arguments: str) -> set[str]:
    argv = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(
        argv, cwd=REPOSITORY, text=True, capture_output=True, timeout=60, check=True
    )
    return set(done.stdout.rpartition("MODULES ")[2].split())


@pytest.mark.parametrize("verb", ["sweep", "status", "report", "compare", "extract", "prepare"])
def test_help_loads_the_standard_library_only(verb: str) -> None:
    found = _modules(verb, "--help")
    assert not found & (HEAVY | PLOTTING | {"pydantic", "submitit", "rich"})


def test_a_dry_run_loads_no_framework() -> None:
    found = _modules("sweep", "sweeps/bert_fp32.toml", "--dry-run", "--cluster", "slurm")
    assert "submitit" in found and "dlperf_hpc.train.backends.ddp" in found
    assert not found & (HEAVY | PLOTTING)


def test_status_and_report_load_no_framework(tmp_path: Path) -> None:
    found = _modules("status", str(tmp_path)) | _modules("report", str(tmp_path))
    assert not found & HEAVY
