"""Follows a program from its start to its end: lines, progress, signals, time, and the others'
wish that it ends."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path

from dlperf_hpc.model.result import Status
from dlperf_hpc.records import supervision
from dlperf_hpc.records.failures import (
    ENDED_BY,
    EXIT_CODES,
    KILLED,
    NETWORK,
    SIGNS,
    found_in,
    is_of_lost_peer,
)
from dlperf_hpc.records.lines import utc
from dlperf_hpc.records.manifest import Manifest
from dlperf_hpc.records.supervision import FAILED, HANG, WINDOW, Port, Stop
from dlperf_hpc.sweepfile.programs import UserProgram
from dlperf_hpc.train.program import launcher
from dlperf_hpc.train.program.child import Child
from dlperf_hpc.train.program.output import Output, Progress
from dlperf_hpc.train.watchdog import NOTICE_S

_TICK_S = 0.2
_LOOK_S = 1.0  # between two looks for what another supervisor asks
_LINES_BEHIND, _SECONDS_BEHIND = 2, 5.0  # of the window, before its program is ended
_GRACE_S = 20.0  # between SIGTERM and SIGKILL, behind the window
_GRACE_OUTSIDE_S = 7.0  # where somebody else waits for our end: the local queue 10 s, Slurm 30
_STACKS_S = 3.0  # for faulthandler to print where a process hangs
_SKEW_S = 0.05  # between the clocks of two nodes
_DRAIN_S = 2.0  # for lines that are still in the pipe
_PIECE = 1 << 16
_PORT_TAKEN = ("Address already in use", "EADDRINUSE", "address already in use")
PORT, TIMEOUT, SIGNAL = "port", "timeout", "signal"
"""Why a child was ended: a port was taken, and another one is tried; its time was over; by a signal
from outside."""


@dataclass(frozen=True)
class End:
    """How the child ended: ``status`` is None where nothing failed."""

    code: int
    why: str = ""
    status: Status | None = None
    reason: str = ""
    consequence: bool = False
    stopped: str = ""
    decided_by: str = ENDED_BY
    cause: str = ""


@dataclass
class Watch:
    """Follows a child until it has ended, or is ended. ``signals`` are those that have come and
    were not heeded yet, ``started`` when the task began (:func:`time.monotonic`); ``alone``: no
    other supervisor is of this attempt. ``port`` is that of this try of a ``launch``; ``last``: no
    other port is tried after it."""

    child: Child
    rank: int
    alone: bool
    signals: list[int]
    started: float
    manifest: Manifest
    program: UserProgram
    folder: Path
    progress: Progress
    output: Output
    limit_s: float
    launch: str
    port: int
    last: bool
    _beat: float = field(default_factory=time.monotonic)
    _seen: int | None = None
    _looked: float = 0.0
    _why: str = ""
    _reason: str = ""
    _hangs_itself: bool = False
    _notice: Status | None = None
    _notice_words: str = ""
    _stopped: str = ""
    _kill_at: float = float("inf")
    _behind: tuple[int, float] | None = None

    def until_end(self) -> End:
        """Read what it prints until it has ended."""
        child = self.child
        with selectors.DefaultSelector() as selector:
            selector.register(child.output, selectors.EVENT_READ)
            while (code := child.poll()) is None:
                if selector.select(_TICK_S) and not self._read():
                    selector.unregister(child.output)  # it closed its output, and goes on
                    time.sleep(_TICK_S)
                self._look()
        died = utc(time.time() + _SKEW_S)
        self._drain()
        return self._ended(code, died)

    def _read(self) -> bool:
        """Take what there is to read; False at the end of it."""
        try:
            data = os.read(self.child.output, _PIECE)
        except BlockingIOError:
            return True
        if data:
            self.output.take(data)
            self._note_progress()
        return bool(data)

    def _note_progress(self) -> None:
        done = self.progress.iteration
        if done is not None and done != self._seen:
            if self._seen is None:
                supervision.note_iteration(self.folder)
            self._seen, self._beat = done, time.monotonic()
        elif done is None and self.program.read.tells_format:
            # A pattern may be wrong: until a line fits it, whoever prints does not hang.
            self._beat = time.monotonic()

    def _look(self) -> None:
        """What has to be done now, whatever the program prints."""
        now = time.monotonic()
        if now > self._kill_at:
            self.child.tell_all(signal.SIGKILL)
        if self.signals:
            self._heed(self.signals.pop(0))
        if self._why:
            return
        if now - self.started > self.limit_s:
            self._end(TIMEOUT, f"{self._after()}: over its {self.limit_s:g} s", _GRACE_OUTSIDE_S)
        elif self._window_is_over(now):
            self._ask(WINDOW)
        elif self._hangs(now):
            self._ask(HANG)
        elif now - self._looked > _LOOK_S:
            self._looked = now
            self._obey()

    def _heed(self, number: int) -> None:
        """A signal from outside: SIGUSR2, the scheduler's notice, goes on to the program, which may
        save something; SIGTERM ends it."""
        if number == signal.SIGUSR2:
            far = self.started + self.limit_s - time.monotonic() > NOTICE_S
            self._notice = Status.PREEMPTED if far else Status.TIMEOUT
            self._notice_words = f"{self._after()}: the scheduler's notice (SIGUSR2)"
            self.child.tell(signal.SIGUSR2)
        elif self._why not in (SIGNAL, WINDOW):
            self._end(SIGNAL, f"{self._after()}: ended from outside (SIGTERM)", _GRACE_OUTSIDE_S)

    def _end(self, why: str, reason: str, grace_s: float) -> None:
        """End the program, kindly at first. One that hangs prints where it stands, if its Python's
        faulthandler is on: SIGABRT goes to all of its processes."""
        self._why, self._reason, self._stopped = why, reason, utc()
        self._kill_at = time.monotonic() + grace_s
        if why == HANG:
            self.child.tell_all(signal.SIGABRT)
        else:
            self.child.tell(signal.SIGTERM)

    def _ask(self, why: str) -> None:
        """Ask all supervisors, this one among them, to end the program."""
        supervision.ask_to_stop(self.folder, Stop(why, self.rank, utc()))
        self._obey()

    def _obey(self) -> None:
        """Do what one of the supervisors asks for."""
        stop = supervision.read_stop(self.folder)
        if stop is None:
            if self._another_port_is_named():
                self._end(PORT, "", _GRACE_OUTSIDE_S)
            return
        if stop.why == WINDOW:
            self._end(WINDOW, "", _GRACE_S)
        elif stop.why == HANG:
            self._hangs_itself = stop.rank == self.rank
            self._end(HANG, self._hang_words(stop.rank), _STACKS_S)
        else:
            self._end(FAILED, f"rank {stop.rank} failed", _GRACE_OUTSIDE_S)

    def _hang_words(self, rank: int) -> str:
        if rank != self.rank:
            return f"rank {rank} made no progress"
        limits = self.manifest.limits
        if self._seen is None:
            return f"no iteration within {limits.startup_s:g} s"
        words = self.output.last[-1][:200] if self.output.last else ""
        return (
            f"no progress for {limits.iteration_s:g} s after iteration {self._seen}; its last line:"
            f" {words}"
        )

    def _window_is_over(self, now: float) -> bool:
        """Whether the window's last iteration was told, by lines or else by a Timer, and a little
        more was printed or passed."""
        measure = self.manifest.measure
        over = self.progress.timed  # where no line tells an iteration
        if self._seen is not None:
            over = self._seen >= measure.warmup + measure.iterations
        if not over or self.program.stop == "never":
            return False
        if self._behind is None:
            self._behind = self.output.count, now
        lines, since = self._behind
        return self.output.count >= lines + _LINES_BEHIND or now > since + _SECONDS_BEHIND

    def _hangs(self, now: float) -> bool:
        """Whether the program has told no new iteration for too long. Of one that has told none it
        is only known where its format is, and where no other rank has told one."""
        measure, limits = self.manifest.measure, self.manifest.limits
        if self._seen is None:
            waited = self.program.read.has_iterations and not self.progress.timed
            late = waited and now - self._beat > limits.startup_s
            return late and not supervision.has_iteration(self.folder)
        over = self._seen >= measure.warmup + measure.iterations
        return not over and now - self._beat > limits.iteration_s

    def _after(self) -> str:
        at = f" after iteration {self._seen}" if self._seen is not None else ""
        return f"after {time.monotonic() - self.started:.0f} s{at}"

    def _drain(self) -> None:
        """Read what is still in the pipe; what the program left behind may hold it open."""
        deadline = time.monotonic() + _DRAIN_S
        while time.monotonic() < deadline:
            before = self.output.count
            if not self._read():
                break
            if self.output.count == before:
                time.sleep(0.01)
                self.child.clear()
        self.output.end()

    def _ended(self, code: int, died: str) -> End:
        if self._why in (WINDOW, PORT):
            return End(code, self._why, stopped=self._stopped)
        ends = {
            TIMEOUT: (Status.TIMEOUT, False),
            SIGNAL: (Status.CANCELLED, True),
            FAILED: (Status.FAILED, True),
            HANG: (Status.FAILED, not self._hangs_itself),
        }
        if self._notice is not None and (code != 0 or self._why == SIGNAL):
            return End(code, "notice", self._notice, self._notice_words)
        if self._why in ends:
            status, consequence = ends[self._why]
            return End(code, self._why, status, self._reason, consequence)
        if code == 0:
            return End(0)
        if self._port_is_taken():
            return End(code, PORT)
        if self._asked_before(died):
            return End(code, WINDOW, stopped=utc())
        if self._another_port_is_named():
            return End(code, PORT)
        return ended_badly(code, self.output, self.port if self.last else None)

    def _port_is_taken(self) -> bool:
        """Whether this one ended because a port was taken, and another one has been named."""
        text = self.output.text()
        if self.last or not any(sign in text for sign in _PORT_TAKEN):
            return False
        if supervision.has_iteration(self.folder):
            return False  # it was another port than that at which the ranks have met
        other = launcher.another_port(self.launch)
        if other is not None:
            named = Port(other, self.rank, socket.gethostname(), self.port)
            supervision.name_port(self.folder, named)
        return self._another_port_is_named()

    def _another_port_is_named(self) -> bool:
        return not self.last and supervision.read_port(self.folder) is not None

    def _asked_before(self, died: str) -> bool:
        """Whether all were to be ended behind the window when this one died, perhaps of that."""
        deadline = time.monotonic() + (0 if self.alone else 2 * _LOOK_S)
        while True:
            stop = supervision.read_stop(self.folder)
            known = stop is not None or self._another_port_is_named()
            if known or time.monotonic() >= deadline:
                return stop is not None and stop.why == WINDOW and stop.time <= died
            time.sleep(_TICK_S)


def ended_badly(code: int, output: Output, port: int | None = None) -> End:
    """The end of a program with a failing exit code, by its last lines; ``port`` is that of a
    second try."""
    text, words = output.text(), output.words()
    told = f"exit code {code}" if code > 0 else f"killed by {_name_of(-code)}"
    port_is_taken = any(sign in text for sign in _PORT_TAKEN)
    if port_is_taken:
        again = "" if port is None else f", and at a second try, with {port}, too"
        told = f"a port that it was to listen at is taken{again} ({told})"
    row = found_in(text)
    status, cause = (Status.FAILED, "") if row is None else (row.status, row.cause)
    if not cause and code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        cause = KILLED
    return End(
        code,
        status=status,
        reason=f"the program ended with {told}" + (f": {words}" if words else ""),
        consequence=cause in ("", NETWORK) and is_of_lost_peer(text),
        decided_by=EXIT_CODES if row is None and not port_is_taken else SIGNS,
        cause=cause,
    )


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
