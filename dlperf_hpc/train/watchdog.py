"""One rank dies, all die, and say why: signals, a watchdog, and the way out.

A thread watches a pipe and a clock, so that it also works while the main thread sits in a
collective that will never return. The way out is ``os._exit`` with no collective: a rank that
merely raised would hold the others, and their GPUs, for ever.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

from dlperf_hpc.errors import LedgerError, numbered
from dlperf_hpc.model.result import Status
from dlperf_hpc.records.failures import (
    ENDED_BY,
    NETWORK,
    Verdict,
    is_of_lost_peer,
    of_error,
    with_fault,
)
from dlperf_hpc.records.layout import LAUNCH_MARK, PMI2_FAULT, launch_id
from dlperf_hpc.records.lines import utc
from dlperf_hpc.records.logfile import read_end
from dlperf_hpc.records.store import (
    Attempt,
    Failure,
    describe,
    finish,
    format_trace,
    leave_failure,
    read_failures,
)
from dlperf_hpc.train.session import fault_of

_POLL_S = 0.5
_BEFORE_TRAINING = ("startup", "search", "build")  # where an environment shows what it lacks
NOTICE_S = 90.0
_STRAGGLERS_S = 3.0  # for the others' accounts: their watchdogs are due within a second
_MOST_PLACES = 3  # that a reason names
# $1: the task's output; $2: the line with which this launch begins there; $3: Slurm's fault; $4:
# the rank. A process of its own, because no thread of the rank runs while it is in MPI_Init.
_LOOK = """\
while kill -0 "$4"; do
    sleep 1
    if sed -n "\\\\|$2\\$|,\\$p" "$1" | grep -q "$3"; then kill -9 "$4"; fi
done
"""
_LAST_WORDS_S = 15.0  # for writing a failure down, on however slow a file system


@dataclass
class Watchdog:
    """Ends this process, and through its launcher the run, when it should not go on. Until
    ``attempt`` is known a failure can only be printed. ``settle`` is set while the run can no
    longer fail, since all that counts is measured: with the reason of the end, it writes the record
    of a run that ended ok. ``modules`` are those that the case's back end cannot do without."""

    rank: int
    time_limit_s: float
    attempt: Attempt | None = None
    settle: Callable[[str], None] | None = None
    modules: Collection[str] = ()
    _started: float = field(default_factory=time.monotonic)
    _phase: str = "startup"
    _limit_s: float = float("inf")
    _beat: float = field(default_factory=time.monotonic)
    _ending: threading.Lock = field(default_factory=threading.Lock)

    def watch(self) -> None:
        """Start watching: SIGTERM, SIGUSR2 (the scheduler's notice of an end), the clock."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, _leave_it_to_the_pipe)
        os.register_at_fork(after_in_child=_forget_signals)
        threading.Thread(target=self._watch, args=(reader,), daemon=True).start()

    @contextmanager
    def in_native_code(self, limit_s: float, output: Path | None = None) -> Iterator[None]:
        """Around a call that may hang without giving the interpreter back (MPI_Init): no thread
        runs then. A timer of the C library ends the process and prints its stacks; the epilogue
        makes the record. Where Slurm prints into the task's ``output`` that it cut a request of
        a rank in MPI_Init, no rank gets an answer any more, and rank 0 ends the run at once."""
        looking = self._look_for_fault(output) if output and self.rank == 0 else None
        if math.isfinite(limit_s):
            faulthandler.dump_traceback_later(limit_s + _LAST_WORDS_S, exit=True)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            if looking is not None:
                looking.kill()
                looking.wait()

    def _look_for_fault(self, output: Path) -> subprocess.Popen[bytes] | None:
        """A process that ends this one when the output of its launch has Slurm's fault."""
        if "SLURM_PROCID" not in os.environ:
            return None
        words = [str(output), f"{LAUNCH_MARK} {launch_id()}", PMI2_FAULT, str(os.getpid())]
        argv, nothing = ["sh", "-c", _LOOK, "sh", *words], subprocess.DEVNULL
        with contextlib.suppress(OSError):
            return subprocess.Popen(argv, stdin=nothing, stdout=nothing, stderr=nothing)
        return None

    def phase(self, name: str, limit_s: float) -> None:
        """Enter a phase in which ``limit_s`` may pass without :meth:`beat`."""
        self._phase, self._limit_s = name, limit_s
        self.beat()

    def beat(self) -> None:
        """Progress was made."""
        self._beat = time.monotonic()

    def _watch(self, reader: int) -> None:
        os.set_blocking(reader, False)
        while True:
            time.sleep(_POLL_S)
            try:
                numbers = os.read(reader, 16)
            except BlockingIOError:
                numbers = b""
            if signal.SIGUSR2 in numbers:
                self._notice()
            if signal.SIGTERM in numbers:
                reason = f"{self._ran()}: ended from outside (SIGTERM)"
                self._end(Verdict(Status.CANCELLED, reason, ENDED_BY), consequence=True)
            if self.left_s() < 0:
                reason = f"{self._ran()}: over its {self.time_limit_s:g} s"
                self._end(Verdict(Status.TIMEOUT, reason, ENDED_BY))
            if time.monotonic() - self._beat > self._limit_s:
                reason = f"no progress for {self._limit_s:g} s in phase {self._phase}"
                verdict = Verdict(Status.FAILED, reason, ENDED_BY)
                self._end(verdict, trace=all_stacks(), place=standing())

    def left_s(self) -> float:
        """Seconds until the time limit."""
        return self.time_limit_s - (time.monotonic() - self._started)

    def _notice(self) -> None:
        """SIGUSR2: Slurm sends it up to a minute early, so near the limit the limit itself decides;
        far from it the job is being preempted."""
        if self.left_s() > NOTICE_S:
            reason = f"{self._ran()}: the scheduler's notice (SIGUSR2)"
            self._end(Verdict(Status.PREEMPTED, reason, ENDED_BY))

    def _ran(self) -> str:
        return f"after {time.monotonic() - self._started:.0f} s in phase {self._phase}"

    def fail(self, error: BaseException) -> None:
        """End this process for an exception; does not return."""
        try:
            # A damaged sweep needs one message: how it was read says nothing.
            trace = "" if isinstance(error, LedgerError) else format_trace(error)
            verdict = replace(of_error(error), reason=describe(error))
            lost_peer = verdict.cause in ("", NETWORK) and is_of_lost_peer(trace)
            before = self._phase in _BEFORE_TRAINING
            if before and verdict.status is Status.FAILED and not lost_peer:
                verdict = with_fault(verdict, fault_of(error, self.modules))
            self._end(verdict, trace, consequence=lost_peer)
        finally:
            os._exit(1)

    def _end(
        self, verdict: Verdict, trace: str = "", consequence: bool = False, place: str = ""
    ) -> None:
        """Say why, write it down, leave; the first of this process's threads to come here does."""
        self._ending.acquire()
        try:
            _exit_after(_LAST_WORDS_S)
            host = socket.gethostname()
            reason = f"rank {self.rank} on {host}: {verdict.reason}"
            _print(f"{trace}dlperf_hpc: {verdict.status.value}: {reason}")
            if not self._settled(reason) and self.attempt is not None:
                failure = Failure(self.rank, host, verdict.status, reason, utc(), trace)
                codes = {n: getattr(verdict, n) for n in ("fault", "decided_by", "cause")}
                failure = replace(failure, consequence=consequence, place=place, **codes)
                _write_down(self.attempt, failure)
        finally:
            os._exit(1)  # so that the launcher ends the others at once

    def _settled(self, reason: str) -> bool:
        """Whether the run has a record by which it ended ok, for all that happens now."""
        if self.settle is None:
            return False
        try:
            self.settle(reason)
        except Exception as error:  # noqa: BLE001 - the process's edge: then it is a failure
            _print(f"dlperf_hpc: could not write the record: {error!r}")
            return False
        return True


def _write_down(attempt: Attempt, failure: Failure) -> None:
    try:
        leave_failure(attempt, failure)
        # A rank that was ended by others does not know why; the epilogue finds out.
        if failure.consequence:
            return
        reason = failure.reason + (_stragglers(attempt) if failure.place else "")
        codes = failure.verdict.codes()
        if not finish(attempt, failure.status, reason, failure.traceback, codes):
            _wait_for_end(attempt)
    except Exception as error:  # noqa: BLE001 - the process's edge: what happened is still to be said
        _print(f"dlperf_hpc: could not write the record: {error!r}")


def _stragglers(attempt: Attempt) -> str:
    """Which ranks stand where, once all have said so or a little later; first those in fewest
    company, for whom the others wait."""
    ranks = range(attempt.run.case.ranks)
    deadline = time.monotonic() + _STRAGGLERS_S
    while len(failures := read_failures(attempt)) < len(ranks) and time.monotonic() < deadline:
        time.sleep(0.1)
    places = {each.rank: f"stands at {each.place or each.reason}" for each in failures}
    groups: dict[str, list[int]] = {}
    for rank in ranks:
        groups.setdefault(places.get(rank, "says nothing"), []).append(rank)
    fewest = sorted(groups.items(), key=lambda item: len(item[1]))[:_MOST_PLACES]
    return f"; {', '.join(f'{numbered(members)} {place}' for place, members in fewest)}"


def _wait_for_end(attempt: Attempt) -> None:
    """Another rank writes the record. Leave after it: the launcher kills it once we have left."""
    for _ in range(20):
        if read_end(attempt.paths.log) is not None:
            return
        time.sleep(0.1)


def _print(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody may be reading any more
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def _exit_after(seconds: float) -> None:
    """Neither a file system nor a pipe that hangs may hold the other ranks, and their GPUs."""
    timer = threading.Timer(seconds, os._exit, (1,))
    timer.daemon = True
    with contextlib.suppress(RuntimeError):  # no thread to be had: go on without
        timer.start()


def _forget_signals() -> None:
    """For a forked child (a data loader's): it shares our pipe, and its SIGTERM is not ours."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)


def _leave_it_to_the_pipe(_number: int, _frame: FrameType | None) -> None:
    """Python's handler does nothing: the C handler has already written to the wake-up pipe."""


def standing() -> str:
    """Where the main thread stands: ``file.py:12 function`` of its innermost Python frame."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is None:
        return "nowhere in Python"
    code = frame.f_code
    return f"{os.path.basename(code.co_filename)}:{frame.f_lineno} {code.co_name}"


def all_stacks() -> str:
    """Where every thread of this process stands."""
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return io.TextIOWrapper(file).read()
