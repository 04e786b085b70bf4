"""One rank dies, all die, and say why: signals, a watchdog, and the way out.

A thread watches a pipe and a clock, so that it also works while the main thread sits in a
collective that will never return. The way out is ``os._exit`` with no collective: a rank that
merely raised would hold the others, and their GPUs, for ever.
"""

from __future__ import annotations

import faulthandler
import io
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from types import FrameType

from dlperf_hpc.records.lines import utc
from dlperf_hpc.records.status import Status
from dlperf_hpc.records.store import (
    Attempt,
    Failure,
    describe,
    finish,
    format_trace,
    leave_failure,
)

_POLL_S = 0.5
_OUT_OF_MEMORY = ("out of memory", "OutOfMemoryError", "MemoryError", "Cannot allocate memory")


def classify(error: BaseException) -> Status:
    """Out of memory is told apart from every other failure: it is an answer, not a mishap."""
    if isinstance(error, MemoryError) or any(word in describe(error) for word in _OUT_OF_MEMORY):
        return Status.OUT_OF_MEMORY
    return Status.FAILED


@dataclass
class Guard:
    """Ends this process, and through its launcher the run, when it should not go on.

    ``attempt`` is None until it is known which run this is; up to there a failure can only be
    printed.
    """

    rank: int
    time_limit_s: float
    attempt: Attempt | None = None
    _started: float = field(default_factory=time.monotonic)
    _phase: str = "startup"
    _limit_s: float = float("inf")
    _beat: float = field(default_factory=time.monotonic)

    def watch(self) -> None:
        """Start watching: SIGTERM, SIGUSR2 (Slurm's notice before the time limit), the clock."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, _leave_it_to_the_pipe)
        threading.Thread(target=self._watch, args=(reader,), daemon=True).start()

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
                self._end(Status.TIMEOUT, f"{self._ran()}: the scheduler's notice (SIGUSR2)")
            if signal.SIGTERM in numbers:
                reason = f"{self._ran()}: ended from outside (SIGTERM)"
                self._end(Status.CANCELLED, reason, consequence=True)
            if time.monotonic() - self._started > self.time_limit_s:
                self._end(
                    Status.TIMEOUT, f"{self._ran()}: over its limit of {self.time_limit_s:g} s"
                )
            if time.monotonic() - self._beat > self._limit_s:
                self._end(
                    Status.FAILED,
                    f"no progress for {self._limit_s:g} s in phase {self._phase}",
                    trace=all_stacks(),
                )

    def _ran(self) -> str:
        return f"after {time.monotonic() - self._started:.0f} s in phase {self._phase}"

    def fail(self, error: BaseException) -> None:
        """End this process for an exception; does not return."""
        trace = format_trace(error)
        sys.stderr.write(trace)
        self._end(classify(error), describe(error), trace)

    def _end(self, status: Status, reason: str, trace: str = "", consequence: bool = False) -> None:
        reason = f"rank {self.rank} on {socket.gethostname()}: {reason}"
        sys.stderr.write(f"dlperf_hpc: {status.value}: {reason}\n")
        sys.stderr.flush()
        try:
            if self.attempt is not None:
                failure = Failure(
                    self.rank, socket.gethostname(), status, reason, utc(), trace, consequence
                )
                leave_failure(self.attempt, failure)
                # A rank that was ended from outside does not know why; who ended it does.
                if not consequence:
                    finish(self.attempt, status, reason, trace)
        except OSError as error:
            sys.stderr.write(f"dlperf_hpc: could not write the record: {error}\n")
        finally:
            sys.stderr.flush()
            os._exit(1)


def _leave_it_to_the_pipe(_number: int, _frame: FrameType | None) -> None:
    """Python's handler does nothing: the C handler has already written to the wake-up pipe."""


def all_stacks() -> str:
    """Where every thread of this process stands."""
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return io.TextIOWrapper(file).read()
