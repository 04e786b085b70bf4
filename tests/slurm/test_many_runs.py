"""How much a sweep asks of Slurm: bounded by arrays, whatever the number of runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from places import BUSY, ROOT

BENCHMARK = ROOT / "benchmarks" / "ten_thousand.py"


def test_commands_are_bounded_by_arrays() -> None:
    """60 runs in arrays of at most 21, which the controller says."""
    options = ["--runs", "60", "--max-array", "21", "--topologies", "1n1g,2n2g", "--json"]
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), *options],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200 * BUSY,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["runs"], found["arrays"]) == (60, [21, 9, 21, 9])
    assert {step["name"]: step["commands"] for step in found["steps"]} == {
        "sweep --dry-run": {"scontrol": 1},
        "sweep": {"scontrol": 2, "sbatch": 4},  # how large may an array be, is the partition there?
        "sweep again": {"squeue": 1},  # nothing to submit: how do the runs stand?
        "status": {"squeue": 1},
        "cancel": {"squeue": 2, "scancel": 1},  # what it ended is asked before it is forgotten
        "status, cancelled": {"squeue": 1},
        "rerun of all": {"squeue": 2, "scontrol": 1, "sbatch": 4},  # may an old job still start?
        "status, rerun": {"squeue": 1},
    }
    for step in found["steps"]:
        assert (0 < step["in_slurm_s"] < step["seconds"]) == bool(step["commands"])
