"""One child process with everything that it starts: started, followed (lines, progress, signals,
time, and the other supervisors' wish that it ends), ended, and none of it left behind.

A program's own launcher gives its workers process groups of their own (torchrun does), so a signal
to the child's group does not reach them. The kernel makes this process the parent of whatever loses
its parent below it (``PR_SET_CHILD_SUBREAPER``), so that all descendants can be found in /proc; and
it kills the child when this process dies (``PR_SET_PDEATHSIG``).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dlperf_hpc.model.result import Status
from dlperf_hpc.records import supervision
from dlperf_hpc.records.lines import utc
from dlperf_hpc.records.manifest import Manifest
from dlperf_hpc.records.supervision import FAILED, HANG, WINDOW, Port, Stop
from dlperf_hpc.sweepfile.programs import UserProgram
from dlperf_hpc.train.measurement import Stops
from dlperf_hpc.train.program.launching import another_port
from dlperf_hpc.train.program.stdout import End, ProgramOutput, ended_badly, names_taken_port
from dlperf_hpc.train.watchdog import NOTICE_S

_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_GONE_WITHIN_S = 5.0
_PMI = ("PMI_FD", "PMI_RANK_FD")  # descriptors through which a child of MPI joins its launcher
_TICK_S = 0.2
_LOOK_S = 1.0  # between two looks for what another supervisor asks
_SILENT_S = 2.0  # of a program that prints more often it costs nothing to know that it goes on
_LINES_BEHIND, _SECONDS_BEHIND = 2, 5.0  # of the window, before its program is ended
_GRACE_S = 20.0  # between SIGTERM and SIGKILL, behind the window
_GRACE_OUTSIDE_S = 7.0  # where somebody else waits for our end: the local queue 10 s, Slurm 30
_STACKS_S = 3.0  # for faulthandler to print where a process hangs
_SKEW_S = 0.05  # between the clocks of two nodes
_AHEAD_S = 0.5  # of the end of all: who died before the wish was written has been found until then
_DRAIN_S = 2.0  # for lines that are still in the pipe
_SAME_SIGNAL_S = 1.0  # between two processes of a step that are sent one signal
_TERMINATED = (-signal.SIGTERM, 128 + signal.SIGTERM)
_PIECE = 1 << 16
PORT, TIMEOUT, SIGNAL = "port", "timeout", "signal"
"""Why a child was ended: its port was taken; its time was over; by a signal from outside."""


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # another libc: then signals must do
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def die_with_parent() -> None:
    """Between fork and exec: let the kernel kill this process when its parent dies."""
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)


class Child:
    """The program. ``output`` is the descriptor from which its stdout and stderr are read."""

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], workdir: str, beside: int | None = None
    ) -> None:
        """Start it; OSError if it cannot be started. No thread may run here yet. ``beside``: the
        pid of a child of ours that is none of the program's processes."""
        _prctl(_SET_CHILD_SUBREAPER, 1)
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        try:
            self._process = subprocess.Popen(
                list(argv),
                env=dict(env),
                cwd=workdir or None,
                stdin=subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                pass_fds=_descriptors(env),
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        except OSError:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        self.output = reader
        self._beside = beside

    def poll(self) -> int | None:
        """The exit code, minus the number of a signal; None while it runs. Reaps orphans too."""
        while self._process.returncode is None:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if found is None:
                break
            if found.si_pid == self._process.pid:
                return self._process.wait()
            with contextlib.suppress(ChildProcessError):
                os.waitpid(found.si_pid, os.WNOHANG)
        return self._process.returncode

    def watch(self, selector: selectors.BaseSelector) -> None:
        """Wake a selector when the child ends, where the kernel can (Linux 5.3)."""
        with contextlib.suppress(OSError, AttributeError):
            selector.register(os.pidfd_open(self._process.pid), selectors.EVENT_READ)

    def tell(self, number: int) -> None:
        """Send a signal to the child's process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def tell_all(self, number: int) -> None:
        """Send a signal to every descendant."""
        for pid in self.below():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def below(self) -> dict[int, str]:
        """The program's processes that live, and their states, as :func:`descendants` tells."""
        found = descendants(os.getpid())
        return {pid: state for pid, state in found.items() if pid != self._beside}

    def clear(self) -> int:
        """Kill what is left of it, and wait until it is gone; how many processes there were."""
        seen: set[int] = set()
        deadline = time.monotonic() + _GONE_WITHIN_S
        while (left := self._left()) and time.monotonic() < deadline:
            seen.update(left)
            self.tell_all(signal.SIGKILL)
            time.sleep(0.02)
        return len(seen)

    def _left(self) -> Iterable[int]:
        """Descendants that live; those that ended are reaped."""
        self.poll()
        if self._process.returncode is not None:
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
        return self.below()


def _descriptors(env: Mapping[str, str]) -> list[int]:
    """Descriptors that the launcher gave this process for the program."""
    found = []
    for name in _PMI:
        if env.get(name, "").isdigit():
            with contextlib.suppress(OSError):
                os.fstat(int(env[name]))
                found.append(int(env[name]))
    return found


def descendants(root: int) -> dict[int, str]:
    """Processes below one and their states (a letter: proc(5)); those that have ended but were not
    waited for are left out."""
    children: dict[int, dict[int, str]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The name, in brackets, may hold anything: what follows the last bracket counts.
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2]
            state, parent = fields.split()[:2]
        except (OSError, ValueError):
            continue
        if state != "Z":
            children.setdefault(int(parent), {})[int(entry.name)] = state
    found: dict[int, str] = {}
    left = [root]
    while left:
        below = children.get(left.pop(), {})
        found.update(below)
        left += below
    return found


def _ticks(pid: int) -> int:
    """The processor time that a process and those that it has waited for have used."""
    with contextlib.suppress(OSError, ValueError):
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2]
        return sum(map(int, text.split()[11:15]))
    return 0


@dataclass
class ProgramWatch:
    """Follows a child until it has ended, or is ended. ``signals`` are those that have come and
    were not heeded yet; ``started`` is when the task began (:func:`time.monotonic`); ``alone``: the
    attempt has no other supervisor; ``port`` is that of this try, ``last``: no other is tried."""

    child: Child
    alone: bool
    signals: list[int]
    started: float
    manifest: Manifest
    program: UserProgram
    folder: Path
    output: ProgramOutput
    limit_s: float
    launch: str
    port: int
    last: bool
    _beat: float = field(default_factory=time.monotonic)
    _seen: int | None = None
    _moves: int = 0
    _looked: float = 0.0
    _why: str = ""
    _reason: str = ""
    _hangs_itself: bool = False
    _notice: Status | None = None
    _notice_words: str = ""
    _stopped: str = ""
    _kill_at: float = float("inf")
    _behind: tuple[int, float] | None = None
    _heard: float = field(default_factory=time.monotonic)
    _still_s: float = 0.0  # of its supervisor, as far as it is known here
    _noted: float = 0.0
    _known: float = 0.0  # until when a stop is among those that are added up
    _used: int = 0
    _wished: float = 0.0
    interrupted_s: float = 0.0
    alive: float = field(default_factory=time.time)
    opened: float | None = None
    reached: float | None = None

    def until_end(self) -> End:
        """Read what it prints until it has ended."""
        child, stops = self.child, Stops()
        with selectors.DefaultSelector() as selector:
            selector.register(child.output, selectors.EVENT_READ)
            child.watch(selector)
            while (code := child.poll()) is None:
                for key, _ in selector.select(_TICK_S):
                    if key.fileobj == child.output and not self._read():
                        selector.unregister(child.output)  # it closed its output, and goes on
                self._note_stops(stops.seconds)
                if child.poll() is None:  # one that has ended by itself is not ended by us
                    self._look()
        died = time.time()
        stops.end()
        self._drain()
        return replace(self._ended(code, utc(died + _SKEW_S)), died=died)

    def _read(self) -> bool:
        try:
            data = os.read(self.child.output, _PIECE)
        except BlockingIOError:
            return True
        if data:
            self._heard, self.alive = time.monotonic(), time.time()
            self.output.take(data)
            self._note_progress()
        return bool(data)

    def _note_stops(self, still_s: float) -> None:
        """Add up for how long the supervisor, or a process of a program that is silent, stood still
        in the window; without iterations in all of its life."""
        measure, seen, now = self.manifest.measure, self._seen, time.monotonic()
        seconds, self._still_s = still_s - self._still_s, still_s
        late, self._noted = now - self._noted > _LOOK_S, now
        silent = now - self._looked > _LOOK_S and now - self._heard > _SILENT_S
        if late:  # this process was stopped itself
            self._known = now
        elif silent and self._stands_still():
            seconds += now - max(self._heard, self._known)
            self._known = now
        if seen is None or measure.warmup <= seen < measure.warmup + measure.iterations:
            self.interrupted_s += seconds

    def _stands_still(self) -> bool:
        """Whether a process of a program that prints nothing is stopped. Processor time that they
        use is a sign of life."""
        states = self.child.below()
        used = sum(map(_ticks, states))
        if used != self._used:
            self._used, self.alive = used, time.time()
        return "T" in states.values()

    def _note_progress(self) -> None:
        done, moves = self.output.progress.iteration, self.output.progress.moves
        if done is not None and moves != self._moves:
            if self._seen is None:
                supervision.note_iteration(self.folder)
                self.interrupted_s = 0.0  # before its first iteration
            self._seen, self._moves, self._beat = done, moves, time.monotonic()
            self._note_window(done)
        elif done is None and self.program.read.tells_format:
            # A pattern may be wrong: until a line fits it, whoever prints does not hang.
            self._beat = time.monotonic()

    def _note_window(self, done: int) -> None:
        measure = self.manifest.measure
        if done >= measure.warmup:
            self.opened = self.opened or self.alive
        if done >= measure.warmup + measure.iterations:
            self.reached = self.reached or self.alive

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
        """SIGUSR2, the scheduler's notice, goes on to the program, which may save; SIGTERM ends."""
        if number == signal.SIGUSR2:
            far = self.started + self.limit_s - time.monotonic() > NOTICE_S
            self._notice = Status.PREEMPTED if far else Status.TIMEOUT
            self._notice_words = f"{self._after()}: the scheduler's notice (SIGUSR2)"
            self.child.tell(signal.SIGUSR2)
        elif self._why not in (SIGNAL, WINDOW):
            self._end(SIGNAL, self._from_outside(), _GRACE_OUTSIDE_S)

    def _end(self, why: str, reason: str, grace_s: float) -> None:
        """End the program, kindly at first, unless it has just ended by itself. One that
        hangs prints where it stands, if its Python's faulthandler is on: SIGABRT goes to all of its
        processes."""
        if self.child.poll() is not None:
            return
        self._why, self._reason, self._stopped = why, reason, utc()
        self.output.signs.over = True
        self._kill_at = time.monotonic() + grace_s
        if why == HANG:
            self.child.tell_all(signal.SIGABRT)
        else:
            self.child.tell(signal.SIGTERM)

    def _ask(self, why: str) -> None:
        """Ask all supervisors, this one among them, to end the program."""
        ahead_s = _AHEAD_S * (why == WINDOW and not self.alone)
        stop = Stop(why, self.output.rank, utc(time.time() + ahead_s))
        supervision.leave(self.folder, stop)
        self._obey()

    def _obey(self) -> None:
        stop = supervision.read(self.folder, Stop)
        if stop is None:
            if self._another_port_is_named():
                self._end(PORT, "", _GRACE_OUTSIDE_S)
            return
        if stop.why == WINDOW:
            self._wished = self._wished or time.monotonic()
            if stop.time <= utc() or time.monotonic() > self._wished + _AHEAD_S:
                self._end(WINDOW, "", _GRACE_S)
        elif stop.why == HANG:
            self._hangs_itself = stop.rank == self.output.rank
            self._end(HANG, self._hang_words(stop.rank), _STACKS_S)
        else:
            self._end(FAILED, f"rank {stop.rank} failed", _GRACE_OUTSIDE_S)

    def _hang_words(self, rank: int) -> str:
        if rank != self.output.rank:
            return f"rank {rank} made no progress"
        limits = self.manifest.limits
        if self._seen is None:
            return f"no iteration within {limits.startup_s:g} s"
        words = "".join(list(self.output.last)[-1:])[:200]
        return (
            f"no progress for {limits.iteration_s:g} s after iteration {self._seen}; its last line:"
            f" {words}"
        )

    def _window_is_over(self, now: float) -> bool:
        """Whether the window's last iteration was reported, and a little more was printed or
        passed."""
        measure = self.manifest.measure
        over = self.output.progress.timed  # where no line tells an iteration
        if self._seen is not None:
            over = self._seen >= measure.warmup + measure.iterations
        if not over or self.program.stop == "never":
            return False
        if self._behind is None:
            self._behind = self.output.count, now
        lines, since = self._behind
        return self.output.count >= lines + _LINES_BEHIND or now > since + _SECONDS_BEHIND

    def _hangs(self, now: float) -> bool:
        """Whether the program has reported no new iteration for too long. Of one that has reported
        none it is only known where its format is, and where no other rank has reported one."""
        measure, limits = self.manifest.measure, self.manifest.limits
        if self._seen is None:
            waited = self.program.read.has_iterations and not self.output.progress.timed
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
        if self._notice is not None and (code != 0 or self._why == SIGNAL):
            return End(code, "notice", self._notice, self._notice_words)
        if self._why:
            status, consequence = {
                TIMEOUT: (Status.TIMEOUT, False),
                SIGNAL: (Status.CANCELLED, True),
                FAILED: (Status.FAILED, True),
                HANG: (Status.FAILED, not self._hangs_itself),
            }[self._why]
            return End(code, self._why, status, self._reason, consequence)
        if code == 0:
            return End(0)
        return self._failed(code, died)

    def _failed(self, code: int, died: str) -> End:
        """The end of a program that nobody here ended, with an exit code that is not 0."""
        if code in _TERMINATED and self._is_signalled():
            return End(code, SIGNAL, Status.CANCELLED, self._from_outside(), consequence=True)
        if self._port_is_taken():
            return End(code, PORT)
        if self._was_ended_behind_window(died):
            return End(code, WINDOW, stopped=utc())
        if self._another_port_is_named():
            return End(code, PORT)
        return ended_badly(code, self.output, self.port if self.last else None)

    def _is_signalled(self) -> bool:
        """Whether SIGTERM comes to this process too: Slurm sends it to each process of a step, in
        any order."""
        deadline = time.monotonic() + _SAME_SIGNAL_S
        while signal.SIGTERM not in self.signals and time.monotonic() < deadline:
            time.sleep(0.01)
        return signal.SIGTERM in self.signals

    def _from_outside(self) -> str:
        return f"{self._after()}: ended from outside (SIGTERM)"

    def _port_is_taken(self) -> bool:
        """Whether this one ended because a port was taken, and another one has been named."""
        text = self.output.text()
        if self.last or not names_taken_port(text):
            return False
        if supervision.has_iteration(self.folder):
            return False  # it was another port than that at which the ranks have met
        other = another_port(self.launch)
        if other is not None:
            named = Port(other, self.output.rank, socket.gethostname(), self.port)
            supervision.leave(self.folder, named)
        return self._another_port_is_named()

    def _another_port_is_named(self) -> bool:
        return not self.last and supervision.read(self.folder, Port) is not None

    def _was_ended_behind_window(self, died: str) -> bool:
        """Whether all were to be ended behind the window when this one died, perhaps of that."""
        deadline = time.monotonic() + (0 if self.alone else 2 * _LOOK_S)
        while True:
            stop = supervision.read(self.folder, Stop)
            known = stop is not None or self._another_port_is_named()
            if known or time.monotonic() >= deadline:
                return stop is not None and stop.why == WINDOW and stop.time <= died
            time.sleep(_TICK_S)
