"""How a process of a run ends: real processes that fail, hang, or are told to stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dlperf_hpc.model.case import Case, Run, Topology
from dlperf_hpc.model.result import Status
from dlperf_hpc.records.failures import of_error
from dlperf_hpc.records.layout import RunPaths
from dlperf_hpc.records.lines import LogLine
from dlperf_hpc.records.logfile import read_end
from dlperf_hpc.records.record import read_record
from dlperf_hpc.records.store import Attempt, Failure, open_attempt, read_failures

RUN = Run(Case("ddp", "bert-tiny", Topology(1, 2), "fp32", 2, 16), 1)

# A rank up to the point where its run is known; what it then does is the test's.
BEGIN = """
import ctypes, os, signal, sys, threading, time
from pathlib import Path
from dlperf_hpc.records.store import begin_log, open_attempt
from dlperf_hpc.model.case import Case, Run, Topology
from dlperf_hpc.train.watchdog import Watchdog

def block():
    "Wait in C for ever, as in a collective: a mutex locked twice does not mind signals."
    mutex = ctypes.create_string_buffer(128)
    lock = ctypes.CDLL(None).pthread_mutex_lock
    lock(mutex), lock(mutex)

def outer_function():
    block()

watchdog = Watchdog(int(sys.argv[2]), time_limit_s=float("inf"))
watchdog.watch()
run = Run(Case("ddp", "bert-tiny", Topology(1, 2), "fp32", 2, 16), 1)
watchdog.attempt = open_attempt("guarded", run, Path(sys.argv[1]), "job_0.0")
begin_log(watchdog.attempt)
watchdog.phase("measure", 60)
print("ready", flush=True)
sys.stdin.readline()
"""


class Rank:
    """A guarded process, held before the body of its script until :meth:`go`."""

    def __init__(self, root: Path, body: str, rank: int = 0) -> None:
        argv = [sys.executable, "-c", BEGIN + body, str(root), str(rank)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        assert self.process.stdout and self.process.stdout.readline() == "ready\n"

    def go(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> str:
        """Its stderr, once it has ended as a failed rank does."""
        _, errors = self.process.communicate(timeout=20)
        assert self.process.returncode == 1, errors
        return errors


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Rank]]:
    ranks: list[Rank] = []

    def begin(body: str, rank: int = 0) -> Rank:
        ranks.append(Rank(tmp_path, body, rank))
        return ranks[-1]

    yield begin
    for rank in ranks:
        rank.process.kill()
        rank.process.communicate()


def left(root: Path) -> tuple[dict[str, Any] | None, LogLine | None, list[Failure]]:
    """Record, end line of the log, and the ranks' own accounts."""
    attempt = open_attempt("guarded", RUN, root, "job_0.0")
    assert isinstance(attempt, Attempt) and attempt.number == 1
    paths = attempt.paths
    return read_record(paths.record), read_end(paths.log), read_failures(attempt)


def log_text(root: Path) -> str:
    return next(root.rglob("*.log")).read_text(encoding="utf-8")


RAISE = """
try:
    {statement}
except BaseException as error:
    watchdog.fail(error)
"""


@pytest.mark.parametrize(
    ("statement", "status", "reason"),
    [
        ("raise ValueError('no such thing')", Status.FAILED, "ValueError: no such thing"),
        ("raise MemoryError('too much')", Status.OUT_OF_MEMORY, "MemoryError: too much"),
        ("bytearray(1 << 62)", Status.OUT_OF_MEMORY, "MemoryError"),
        ("sys.exit('giving up')", Status.FAILED, "SystemExit: giving up"),
    ],
)
def test_an_exception_is_recorded(
    tmp_path: Path, start: Callable[..., Rank], statement: str, status: Status, reason: str
) -> None:
    rank = start(RAISE.format(statement=statement), rank=1)
    rank.go()
    errors = rank.end()
    assert "Traceback" in errors and reason in errors
    record, end, failures = left(tmp_path)
    assert record and record["status"] == status.value
    assert record["reason"].startswith("rank 1 on ") and record["reason"].endswith(reason)
    assert end and end.values == {"status": status.value, "reason": record["reason"]}
    assert [(f.rank, f.status, f.consequence) for f in failures] == [(1, status, False)]
    assert "| Traceback (most recent call last):" in log_text(tmp_path)


SETTLED = """
from dlperf_hpc.model.result import Status
from dlperf_hpc.records.store import finish
watchdog.settle = lambda reason: finish(watchdog.attempt, Status.OK, detail={{"kept": reason}})
watchdog.phase("checkpoint", {limit})
{body}
"""


@pytest.mark.parametrize(
    ("limit", "body", "kept"),
    [
        (60, RAISE.format(statement="raise OSError('disk full')"), "OSError: disk full"),
        (0.5, "outer_function()", "no progress for 0.5 s in phase checkpoint"),
        (60, "watchdog.time_limit_s = 0.1\nouter_function()", "over its 0.1 s"),
    ],
)
def test_what_is_measured_already_is_not_lost(
    tmp_path: Path, start: Callable[..., Rank], limit: float, body: str, kept: str
) -> None:
    """Raised, hung or over the time limit: the record says ok, and the launcher ends the others."""
    rank = start(SETTLED.format(limit=limit, body=body))
    rank.go()
    assert kept in rank.end()
    paths = RunPaths(tmp_path, RUN.id)
    record, end = read_record(paths.record), read_end(paths.log)
    assert record and record["status"] == "ok" and kept in record["kept"]
    assert end and end.values == {"status": "ok"} and not paths.failures(1)


def test_a_lost_peer_leaves_the_record_to_who_knows_why(
    tmp_path: Path, start: Callable[..., Rank]
) -> None:
    rank = start(RAISE.format(statement="raise RuntimeError('Connection closed by peer')"))
    rank.go()
    rank.end()
    record, end, failures = left(tmp_path)
    assert record is None and end is None
    assert failures[0].consequence and "Connection closed" in failures[0].reason


def test_the_scheduler_s_notice_reaches_a_rank_in_a_blocking_call(
    tmp_path: Path, start: Callable[..., Rank]
) -> None:
    """Far from the time limit, Slurm's SIGUSR2 says that the job is being preempted."""
    rank = start("watchdog.time_limit_s = 3600\nouter_function()")
    rank.go()
    rank.process.send_signal(signal.SIGUSR2)
    rank.end()
    record, end, failures = left(tmp_path)
    assert record and record["status"] == "preempted" and "SIGUSR2" in record["reason"]
    assert "in phase measure" in record["reason"]
    assert end and end.values["status"] == "preempted"
    assert [(f.status, f.consequence) for f in failures] == [(Status.PREEMPTED, False)]


def test_near_the_time_limit_the_limit_decides(tmp_path: Path, start: Callable[..., Rank]) -> None:
    """Slurm may send its notice a minute early: that much of the run is not given away."""
    rank = start("watchdog.time_limit_s = 1.5\nouter_function()")
    begun = time.monotonic()
    rank.go()
    rank.process.send_signal(signal.SIGUSR2)
    rank.end()
    assert time.monotonic() - begun > 0.9
    record, _, _ = left(tmp_path)
    assert record and record["status"] == "timeout" and "over its 1.5 s" in record["reason"]


def test_a_rank_ended_from_outside_does_not_claim_to_know_why(
    tmp_path: Path, start: Callable[..., Rank]
) -> None:
    rank = start("outer_function()")
    rank.go()
    rank.process.send_signal(signal.SIGTERM)
    assert "SIGTERM" in rank.end()
    record, end, failures = left(tmp_path)
    assert record is None and end is None
    assert [(f.status, f.consequence) for f in failures] == [(Status.CANCELLED, True)]


def test_the_time_limit_passes_in_a_blocking_call(
    tmp_path: Path, start: Callable[..., Rank]
) -> None:
    rank = start("watchdog.time_limit_s = 0.6\nouter_function()")
    rank.go()
    rank.end()
    record, end, _ = left(tmp_path)
    assert record and record["status"] == "timeout"
    assert "over its 0.6 s" in record["reason"]
    assert end and end.values["status"] == "timeout"


def test_no_progress_ends_with_the_stacks_of_all_threads(
    tmp_path: Path, start: Callable[..., Rank]
) -> None:
    rank = start("watchdog.phase('warmup', 0.4)\nouter_function()")
    rank.go()
    rank.end()
    record, end, _ = left(tmp_path)
    assert record and record["status"] == "failed"
    assert "no progress for 0.4 s in phase warmup" in record["reason"]
    assert end and end.values["status"] == "failed"
    text = log_text(tmp_path)
    assert "outer_function" in text and "in block" in text and "in _watch" in text
    assert all(raw.startswith(("dlperf ", "| ")) for raw in text.splitlines())


def test_a_rank_that_beats_lives(tmp_path: Path, start: Callable[..., Rank]) -> None:
    body = """
watchdog.phase("measure", 0.7)
for _ in range(15):
    time.sleep(0.1)
    watchdog.beat()
os._exit(3)
"""
    rank = start(body)
    rank.go()
    assert rank.process.wait(20) == 3
    assert left(tmp_path) == (None, None, [])


def test_two_ranks_that_fail_together_make_one_record(
    tmp_path: Path, start: Callable[..., Rank]
) -> None:
    ranks = [start(RAISE.format(statement=f"raise ValueError({r})"), r) for r in (0, 1)]
    for rank in ranks:
        rank.go()
    for rank in ranks:
        rank.end()
    record, end, failures = left(tmp_path)
    assert record and end and end.values["reason"] == record["reason"]
    assert sorted(f.rank for f in failures) == [0, 1]
    assert log_text(tmp_path).count(" end ") == 1


def test_who_comes_second_leaves_after_the_end_line(
    tmp_path: Path, start: Callable[..., Rank]
) -> None:
    """A launcher kills the others once one rank has left: the writer must have finished by then."""
    slow = """
from dlperf_hpc import files
def late(path, text, written=files.append_line):
    time.sleep(0.8)
    written(path, text)
files.append_line = late
"""
    first = start(slow + RAISE.format(statement="raise ValueError('first')"), 0)
    second = start(RAISE.format(statement="raise ValueError('second')"), 1)
    first.go()
    while left(tmp_path)[0] is None:
        time.sleep(0.02)
    second.go()
    second.end()
    record, end, failures = left(tmp_path)
    assert record and end and end.values["reason"] == record["reason"]
    assert record["reason"].endswith("first") and len(failures) == 2
    first.end()


def test_a_second_trouble_waits_for_the_first(tmp_path: Path, start: Callable[..., Rank]) -> None:
    """The launcher's SIGTERM must not cut off a rank that is writing down why it failed."""
    body = """
from dlperf_hpc.train import watchdog as module
def slow(attempt, failure, written=module._write_down):
    if not failure.consequence:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1.2)
    written(attempt, failure)
module._write_down = slow
"""
    rank = start(body + RAISE.format(statement="raise ValueError('the cause')"))
    rank.go()
    rank.end()
    record, end, failures = left(tmp_path)
    assert record and record["reason"].endswith("ValueError: the cause")
    assert end and [f.consequence for f in failures] == [False]


def test_a_file_system_that_hangs_does_not_hold_the_run(start: Callable[..., Rank]) -> None:
    body = """
from dlperf_hpc.train import watchdog as module
module._LAST_WORDS_S = 0.5
module._write_down = lambda attempt, failure: block()
"""
    rank = start(body + RAISE.format(statement="raise ValueError('the cause')"))
    rank.go()
    assert "the cause" in rank.end()


def test_nobody_reads_what_a_rank_prints(tmp_path: Path, start: Callable[..., Rank]) -> None:
    rank = start("watchdog.time_limit_s = 0.1\nouter_function()")
    assert rank.process.stderr
    rank.process.stderr.close()
    rank.process.stderr = None
    rank.go()
    rank.process.communicate(timeout=20)
    assert rank.process.returncode == 1
    record, end, _ = left(tmp_path)
    assert record and record["status"] == "timeout" and end


def test_a_forked_child_ends_alone(tmp_path: Path, start: Callable[..., Rank]) -> None:
    """Data loaders end their workers by SIGTERM, and a forked one shares our wake-up pipe."""
    body = """
child = os.fork()
if child == 0:
    time.sleep(5)
    os._exit(4)
time.sleep(0.2)
os.kill(child, signal.SIGTERM)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
time.sleep(1.2)
os._exit(3)
"""
    rank = start(body)
    rank.go()
    assert rank.process.wait(20) == 3
    assert left(tmp_path) == (None, None, [])


def test_before_its_run_is_known_a_rank_can_only_print(start: Callable[..., Rank]) -> None:
    rank = start("watchdog.attempt = None" + RAISE.format(statement="raise ValueError('early')"))
    rank.go()
    assert "failed: rank 0 on" in rank.end()


def test_a_directory_that_cannot_be_written_is_said(
    tmp_path: Path, start: Callable[..., Rank]
) -> None:
    rank = start(RAISE.format(statement="raise ValueError('the cause')"))
    for path in sorted(tmp_path.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (tmp_path / "ddp").write_text("a file where the run's directory was")
    rank.go()
    errors = rank.end()
    assert "the cause" in errors and "could not write the record" in errors


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate: error 12 (Cannot allocate memory)"),
        RuntimeError("NCCL error: unhandled cuda error\nLast error:\nCuda failure 'out of memory'"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"),
        type("OutOfMemoryError", (RuntimeError,), {})("no more"),
    ],
)
def test_out_of_memory_is_told_apart(error: BaseException) -> None:
    assert of_error(error).status is Status.OUT_OF_MEMORY


def test_other_failures_are_failures() -> None:
    assert of_error(RuntimeError("CUDA error: an illegal memory access")).status is Status.FAILED


def test_a_failing_rank_is_quick(start: Callable[..., Rank]) -> None:
    rank = start(RAISE.format(statement="raise ValueError('now')"))
    begun = time.monotonic()
    rank.go()
    rank.end()
    assert time.monotonic() - begun < 10
    assert not os.path.exists(f"/proc/{rank.process.pid}/status")


HOLDS_THE_INTERPRETER = """
import ctypes
from dlperf_hpc.train import watchdog as module
module._LAST_WORDS_S = 0.5
watchdog = module.Watchdog(0, time_limit_s=0.5)
watchdog.watch()
def initialise():
    with watchdog.in_native_code(0.5):
        ctypes.PyDLL(None).sleep(60)
initialise()
"""


def test_a_call_that_never_gives_the_interpreter_back_ends_with_its_stack() -> None:
    """As MPI_Init may hang: no thread of Python's runs, the watchdog's clock not either."""
    argv = [sys.executable, "-c", HOLDS_THE_INTERPRETER]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert "in initialise" in done.stderr


WAITS_FOR_SLURM = """
import ctypes, sys
from pathlib import Path
from dlperf_hpc.train.watchdog import Watchdog
def initialise():
    with Watchdog(0, time_limit_s=60).in_native_code(60, Path(sys.argv[1])):
        print("waits", flush=True)
        ctypes.PyDLL(None).sleep(int(sys.argv[2]))
initialise()
"""
FAULT = "slurmstepd-n1: error: mpi/pmi2: value not properly terminated in client request\n"


@pytest.mark.parametrize("fault", [True, False])
def test_a_request_that_slurm_misread_ends_the_run_at_once(tmp_path: Path, fault: bool) -> None:
    """The ranks would wait for an answer that never comes; that of an earlier launch is over."""
    output = tmp_path / "7_0.out"
    output.write_text(f"dlperf_hpc: launch 7_0.0\n{FAULT}dlperf_hpc: launch 7_0.1\n")
    slurm = {"SLURM_PROCID": "0", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "0"}
    env = {**os.environ, **slurm, "SLURM_RESTART_COUNT": "1"}
    argv = [sys.executable, "-c", WAITS_FOR_SLURM, str(output), "50" if fault else "3"]
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "waits\n"
        if fault:
            with open(output, "a") as file:
                file.write(FAULT)
        assert process.wait(30) == (-9 if fault else 0)
