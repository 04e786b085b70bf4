"""A sweep on a machine that has neither mpiexec nor mpi4py: from the file to the report."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from places import BUSY
from sweeping import Workplace, local_environment

from dlperf_hpc.records.collect import full_results


@pytest.fixture
def python(tmp_path: Path) -> str:
    """A Python like this one, but for mpi4py and the MPI library that a wheel has put beside it."""
    folder = tmp_path / "no-mpi"
    base = Path(sys.executable).resolve()
    subprocess.run([base, "-m", "venv", "--without-pip", folder], check=True, timeout=60 * BUSY)
    there = Path(sysconfig.get_path("purelib"))
    packages = folder / there.relative_to(sys.prefix)
    for path in there.iterdir():
        if not path.name.startswith(("mpi4py", "mpich")):
            (packages / path.name).symlink_to(path)
    return str(folder / "bin" / "python")


def without_mpiexec() -> dict[str, str]:
    """This environment, its PATH without the directories that hold an mpiexec."""
    env = dict(local_environment())
    kept = [p for p in env["PATH"].split(os.pathsep) if not Path(p, "mpiexec").exists()]
    return {**env, "PATH": os.pathsep.join(kept)}


def verb(place: Workplace, python: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-m", "dlperf_hpc", *map(str, arguments)],
        cwd=place.root,
        env={**place.env, "OMP_NUM_THREADS": "1"},
        text=True,
        capture_output=True,
        timeout=240 * BUSY,
        check=False,
    )


def test_a_sweep_without_any_mpi(tmp_path: Path, python: str) -> None:
    place = Workplace(tmp_path, without_mpiexec())
    spec = place.tiny("lone", ["1n1g"])
    blocked = subprocess.run([python, "-c", "import mpi4py"], capture_output=True, check=False)
    assert blocked.returncode == 1
    done = verb(place, python, "sweep", spec, "--cluster", "local")
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = place.table("lone")
    assert row["runs_ok"] == "1" and float(row["samples_per_s"]) > 0
    (result,) = full_results(place.directory("lone")).results
    assert result.facts["provenance"]["mpi"] == "none: one process, as DLPERF_MPI=none asks"
    assert result.facts["provenance"]["env"]["DLPERF_MPI"] == "none"
    seen = verb(place, python, "doctor", spec, "--cluster", "local")
    assert seen.returncode == 0, seen.stdout + seen.stderr
    assert "world size 1 under no launcher" in seen.stdout
    assert "no MPI, as DLPERF_MPI=none asks" in seen.stdout and "mpi4py" not in seen.stdout

    two = place.tiny("pair", ["1n1g", "1n2g"])
    refused = verb(place, python, "sweep", two, "--cluster", "local")
    assert refused.returncode != 0 and "Traceback" not in refused.stderr
    assert "only runs of one rank are made here, and these are not: 1n2g" in refused.stderr
