"""Small sweeps of the ready programs, around the programs of ``tests/support/programs``."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from places import SUPPORT

PROGRAMS = SUPPORT / "programs"
SMALLEST = """
topologies = ["{topology}"]
base = "{topology}"
repeats = 2
time_limit = "00:15:00"
[measure]
warmup = 3
iterations = 10
[case]
framework = "{name}"
model = "toy"
batch_size = 4
device = "cpu"
{more}
"""


def smallest(name: str, topology: str, more: str = "") -> str:
    """The text of a sweep of a ready program: two runs, since a first one may leave something
    in their directory that is in the way of the second one."""
    return SMALLEST.format(name=name, topology=topology, more=more)


def compiled(place: Path) -> Path:
    """``mpi_steps``, compiled from C in a directory by the ``mpich`` wheel's mpicc; skips the test
    where there is no C compiler."""
    if shutil.which("gcc") is None:
        pytest.skip("no C compiler on this machine")
    mpicc = Path(sys.executable).with_name("mpicc")
    program = place / "mpi_steps"
    argv = [str(mpicc), "-O2", "-o", str(program), str(PROGRAMS / "mpi_steps.c")]
    subprocess.run(argv, check=True, capture_output=True, timeout=60)
    return program
