"""A task that finds another living attempt at its run touches nothing; a dead one blocks nobody."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from record_samples import SWEEP, a_run, a_sweep, ended, opened, paths

from dlperf_hpc.engines import epilogue
from dlperf_hpc.errors import AttemptError
from dlperf_hpc.model.result import Status
from dlperf_hpc.records.record import read_record
from dlperf_hpc.records.store import begin_log, finish, open_attempt, take_log

RUN = a_run()
# Rank 0 of an attempt, with a data loader's process that outlives it.
RANK = """
import os, sys, time
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from record_samples import a_run, opened
from dlperf_hpc.records.store import take_log
assert take_log(opened(Path(sys.argv[1]), a_run(), "100_0.0"), 60.0) == ""
if os.fork() == 0:  # which has let go of the lock by now: only then may the test go on
    print("begun", flush=True)
    sys.stdout.close()
    time.sleep(float(sys.argv[3]))
    os._exit(0)
time.sleep(60)
"""


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that measures the run."""
    support = str(Path(__file__).parents[2] / "support")
    argv = [sys.executable, "-c", RANK, str(tmp_path), support, "3"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "begun\n"
        yield process
        process.kill()


def contents(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_living_attempt_is_left_alone(tmp_path: Path, rank: subprocess.Popen[str]) -> None:
    before = contents(tmp_path)
    with pytest.raises(AttemptError, match=r"attempt at this run lives: launch 100_0\.0 has"):
        open_attempt(SWEEP, RUN, tmp_path, "200_0.0")
    assert contents(tmp_path) == before
    os.kill(rank.pid, signal.SIGKILL)
    rank.wait(10)
    with open(paths(tmp_path, RUN).log) as log:
        fcntl.flock(log, fcntl.LOCK_EX)  # as everybody can who reads the log
        # At once, although its data loader lives on.
        attempt = opened(tmp_path, RUN, "200_0.0")
    assert attempt.number == 2
    assert sorted(contents(tmp_path).values()) == sorted(before.values())


@pytest.mark.parametrize(
    "launch",
    ["100_0.1", "100_0.0.1"],
    ids=["put back in the queue", "the next repeat of the job"],
)
def test_a_task_is_never_kept_from_running_by_itself(
    tmp_path: Path, rank: subprocess.Popen[str], launch: str
) -> None:
    """As where a file server has not heard yet that the node died, and Slurm starts it anew."""
    assert opened(tmp_path, RUN, launch).number == 2


def test_a_lock_that_outlives_the_attempts_limit_does_not_count(
    tmp_path: Path, rank: subprocess.Popen[str]
) -> None:
    """A node died with the lock, and its file server keeps it."""
    log = paths(tmp_path, RUN).log
    past = time.time() - 60 - 3600
    os.utime(log, (past, past))
    assert opened(tmp_path, RUN, "200_0.0").number == 2


def test_an_attempt_of_an_earlier_version_shows_no_sign_of_life(tmp_path: Path) -> None:
    begin_log(opened(tmp_path, RUN))  # it has no limit_s and no lock
    assert opened(tmp_path, RUN, "200_0.0").number == 2


def test_where_there_are_no_locks_nobody_is_kept_from_measuring(
    tmp_path: Path, rank: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_file: int, _kind: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    attempt = opened(tmp_path, RUN, "200_0.0")
    assert attempt.number == 2 and take_log(attempt, 60) == ""


def test_of_two_that_start_together_one_goes_on(tmp_path: Path) -> None:
    """Both found nothing; who writes the log first has the run."""
    first, second = opened(tmp_path, RUN, "100_0.0"), opened(tmp_path, RUN, "200_0.0")
    assert take_log(first, 60) == ""
    before = contents(tmp_path)
    assert "launch 100_0.0 has begun" in take_log(second, 60)
    assert contents(tmp_path) == before


def test_the_epilogue_of_who_came_second_writes_nothing(
    tmp_path: Path,
    rank: subprocess.Popen[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    a_sweep(tmp_path, [RUN], engine="slurm")
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "200")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "0")
    before = contents(tmp_path)
    assert epilogue.main([str(tmp_path), "1n2g.sample", "1"]) == 0
    assert contents(tmp_path) == before
    assert "another attempt at this run lives" in capsys.readouterr().out


def test_who_has_ended_lives_no_more(tmp_path: Path) -> None:
    attempt = opened(tmp_path, RUN)
    take_log(attempt, 60)  # held by this process, which does not end
    assert finish(attempt, Status.FAILED, "it broke")
    again = ended(tmp_path, RUN, Status.FAILED, "x", launch="200_0.0")
    assert again.number == 2 and read_record(again.paths.record)
