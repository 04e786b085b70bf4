"""A Timer on two ranks under real mpiexec: with mpi4py they meet, without it they say so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from places import BUSY, ROOT

from dlperf_hpc.engines.base import clean_environment
from dlperf_hpc.engines.local import find_mpiexec
from dlperf_hpc.records.logfile import result_of_log
from dlperf_hpc.records.record import read_record

PROGRAM = """
import sys, time
rank = 0
if sys.argv[1] == "meet":
    from mpi4py import MPI
    rank = MPI.COMM_WORLD.Get_rank()
from dlperf_hpc import Timer
timer = Timer(batch_size=2, warmup=2, iterations=5, min_seconds=0.02)
while not timer.step(loss=float(rank)):
    time.sleep(0.001 * (1 + rank))
print("seen", timer.samples_per_s)
assert sys.argv[1] == "meet" or "mpi4py" not in sys.modules
"""


@pytest.mark.parametrize("way", ["meet", "alone"])
def test_two_ranks_of_one_program(tmp_path: Path, way: str) -> None:
    mpiexec = find_mpiexec()
    assert mpiexec, "no mpiexec: install the mpich wheel"
    done = subprocess.run(
        [mpiexec, "-n", "2", sys.executable, "-c", PROGRAM, way],
        cwd=tmp_path,
        env={**clean_environment(), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60 * BUSY,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (log,) = tmp_path.rglob("*.log")
    told = result_of_log(log)
    window, record = told.window, read_record(log.with_suffix(".json"))
    assert window is not None and record is not None and told.contradictions == ()
    assert (str(told.run.case.topology), window.ranks) == ("1n2g", 2)
    assert window.samples == 4 * window.iterations
    rows = record["detail"]["rank_step_ms"]
    if way == "meet":
        assert {line.split()[1] for line in done.stdout.splitlines()} == {str(told.samples_per_s)}
        assert window.loss_first == 0.5 and window.iterations >= 5 and len(rows) == 2
        assert window.elapsed_min_s is not None and window.elapsed_s >= window.elapsed_min_s
        assert [len(row) for row in rows] == [window.iterations] * 2 and told.warnings == ()
    else:
        assert window.iterations == 5 and len(rows) == 1 and window.elapsed_min_s is None
        assert "2 processes, which did not meet" in told.warnings[0]
        assert done.stderr.count("samples/s") == 1
