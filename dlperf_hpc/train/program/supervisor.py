"""From a task's start to its end: the child is started, followed and ended, and its end noted."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dlperf_hpc.errors import AttemptError, DlperfError, RunError, redacted
from dlperf_hpc.files import append_line, write_once
from dlperf_hpc.model.case import Case
from dlperf_hpc.model.result import Status
from dlperf_hpc.records import supervision
from dlperf_hpc.records.failures import Signs
from dlperf_hpc.records.layout import job_seconds, launch_id, repeat_in_job, task_index
from dlperf_hpc.records.ledger import bound_array
from dlperf_hpc.records.lines import utc, write_line
from dlperf_hpc.records.manifest import Manifest
from dlperf_hpc.records.store import (
    Attempt,
    Failure,
    begin_log,
    describe,
    launch_of,
    leave_failure,
    log_event,
    open_attempt,
    take_log,
)
from dlperf_hpc.records.supervision import FAILED, HANG, WINDOW, Ending, Port, Stop
from dlperf_hpc.sweepfile.expressions import ExpressionError
from dlperf_hpc.sweepfile.patterns import PatternError
from dlperf_hpc.sweepfile.programs import Command, UserProgram
from dlperf_hpc.train import joblog
from dlperf_hpc.train.program import launching
from dlperf_hpc.train.program.child import (
    PORT,
    SIGNAL,
    TIMEOUT,
    Child,
    ProgramWatch,
    die_with_parent,
)
from dlperf_hpc.train.program.launching import packages_of, program_facts
from dlperf_hpc.train.program.stdout import End, ProgramOutput, Progress
from dlperf_hpc.train.ranks import launcher_rank

_TICK_S = 0.2
_TOGETHER_S = 20.0  # for the other supervisors: one that leaves first ends them at some sites
_NO_FIGURES = "no-gpu-figures"  # the first supervisor that knows why there are none says so
_ANSWER_S = 5.0  # for the figures of all GPUs of a node
# A path of our own, which may hold more than Python's, and no working directory.
_WATCH_NODE = """\
import sys
sys.path = sys.argv[4:]
from dlperf_hpc.train.telemetry import watch_node
watch_node(*sys.argv[1:4])
"""


def main(root: Path, array_name: str, words: Sequence[str]) -> int:
    """Supervise this task's program; the exit code of the task."""
    supervisor = Supervisor(words)
    try:
        return supervisor.run(root, array_name)
    except (DlperfError, ExpressionError, PatternError, OSError) as error:
        return supervisor.fail(Status.FAILED, describe(error))
    finally:
        if supervisor.child is not None:
            supervisor.child.clear()
        if supervisor.gpus is not None:
            supervisor.gpus.close()


class GpuSampler:
    """The process beside a program that samples its GPUs: :func:`.telemetry.watch_node`. There is
    none where the program sees no GPU, or computes on CPUs."""

    def __init__(self, folder: Path, case: Case, env: Mapping[str, str]) -> None:
        """Start it; ``env`` is the program's environment."""
        self._process: subprocess.Popen[str] | None = None
        if case.device == "cpu" or not launching.has_nvidia(env):
            return
        # A launcher's processes of one node have one parent; in a container it may be all's.
        root = os.getppid() if os.getppid() > 1 else os.getpid()
        words = [str(folder), str(case.topology.gpus_per_node), str(root)]
        visible = {name: env[name] for name in ("CUDA_VISIBLE_DEVICES",) if name in env}
        with contextlib.suppress(OSError):  # a program needs none of it
            self._process = subprocess.Popen(
                [sys.executable, "-c", _WATCH_NODE, *words, *sys.path],
                env={**os.environ, **visible},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=die_with_parent,
                text=True,
            )

    @property
    def pid(self) -> int | None:
        """Its process, if there is one."""
        return self._process.pid if self._process else None

    def lines(self, window: tuple[float, float]) -> tuple[list[dict[str, Any]], str]:
        """What the log's lines ``gpu`` tell of a window (s since 1970), and why there are none, ''
        for no reason. It ends by that."""
        if self._process is None:
            return [], ""
        try:
            answer, _ = self._process.communicate(f"{json.dumps(window)}\n", _ANSWER_S)
            found = json.loads(answer)
            return found["lines"], found["why"]
        except subprocess.TimeoutExpired:
            return [], f"NVML did not answer within {_ANSWER_S:g} s"
        except (OSError, ValueError):
            return [], "the process that asked NVML died"

    def close(self) -> None:
        """Leave nothing of it."""
        if self._process is not None:
            self._process.kill()


@dataclass
class Supervisor:
    """One task. ``words`` are the command of the environment's Python."""

    words: Sequence[str]
    rank: int = field(default_factory=launcher_rank)
    attempt: Attempt | None = None
    signals: list[int] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    child: Child | None = None
    gpus: GpuSampler | None = None

    def run(self, root: Path, array_name: str) -> int:
        """From the manifest to the ending; the exit code."""
        for number in (signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, lambda number, _frame: self.signals.append(number))
        manifest, array = bound_array(root, array_name)
        run = array.run_of(task_index(), repeat_in_job())
        limit_s = min(array.time_limit_s, array.job_limit_s - job_seconds())
        attempt = open_attempt(manifest.sweep, run, root, launch_id())
        if attempt is None:
            print(f"{run.id}: already ok, nothing to do")
            return 0
        where = launching.discover(run.case)
        self._take(attempt, limit_s)
        program = manifest.programs[run.case.framework]
        if program.local_rank == "visible":
            where = launching.with_visible_rank(where, os.environ)
        launching.make_directories_of(attempt, program, where)
        if self.rank == 0:
            log_event(attempt, "measure", asdict(manifest.measure))
            log_event(attempt, "provenance", joblog.provenance())
            size = {"ranks": where.size, "nodes": len(where.hosts), "hosts": list(where.hosts)}
            log_event(attempt, "world", size)
            if launching.meets(program, where):
                _look_at_port(attempt)
        return self._supervise(manifest, attempt, program, where, limit_s)

    def _take(self, attempt: Attempt, limit_s: float) -> None:
        if self.rank == 0:
            if busy := take_log(attempt, limit_s):
                raise AttemptError(busy)
            supervision.gather_earlier(attempt)
        else:
            begin_log(attempt, limit_s)
            if launch_of(attempt.paths) != attempt.launch:
                raise AttemptError(f"another attempt has begun {attempt.paths.log}")
        self.attempt = attempt

    def _supervise(
        self,
        manifest: Manifest,
        attempt: Attempt,
        program: UserProgram,
        where: launching.RankInfo,
        limit_s: float,
    ) -> int:
        """The program from its start to its end, and again if a port was taken; the exit code."""
        folder = attempt.paths.supervised(attempt.number)
        path = attempt.paths.log if self.rank == 0 else supervision.lines_of(folder, self.rank)
        progress, ranks = Progress(program.read, program.name), attempt.run.case.ranks
        signs = Signs(program.read.fail, program.read.must)
        output = ProgramOutput(path, self.rank, progress, ranks, signs)
        while True:
            port, last = self._port(attempt)
            values = launching.task_values(attempt, manifest.measure, where, self.words[-1], port)
            command = launching.child_command(program, attempt.run.case, where, values, self.words)
            if self.rank == 0:
                log_event(attempt, "program", program_facts(program, command, self.words))
            if self.gpus is None:
                self.gpus = GpuSampler(folder, attempt.run.case, command.env)
            watch = ProgramWatch(
                child=self._started(command, self.gpus.pid),
                alone=ranks == 1,
                signals=self.signals,
                started=self.started,
                manifest=manifest,
                program=program,
                folder=folder,
                output=output,
                limit_s=limit_s,
                launch=attempt.launch,
                port=port,
                last=last,
            )
            end = watch.until_end()
            if end.why != PORT:
                return self._finish(attempt, command, watch, end)
            watch.child.clear()
            output.forget(Signs(program.read.fail, program.read.must))

    def _port(self, attempt: Attempt) -> tuple[int, bool]:
        """The port of the next try, and whether that is the last one."""
        named = supervision.read(attempt.paths.supervised(attempt.number), Port)
        if named is None:
            return launching.port_of(attempt.launch), False
        if self.rank == 0:
            text = f"port {named.taken} was taken on {named.host}: begun again with {named.port}"
            log_event(attempt, "note", {"text": text})
        return named.port, True

    def _started(self, command: Command, beside: int | None) -> Child:
        try:
            self.child = Child(command.argv, command.env, command.workdir, beside)
        except OSError as error:
            raise RunError(
                f"{error.filename or command.argv[0]}: cannot be started: {error.strerror}"
            ) from error
        return self.child

    def _finish(self, attempt: Attempt, command: Command, watch: ProgramWatch, end: End) -> int:
        """Leave nothing of the program, and say how it ended; the exit code."""
        folder, progress = watch.folder, watch.output.progress
        left = watch.child.clear()
        if left:
            print(f"dlperf_hpc: rank {self.rank}: ended {left} processes that the program left")
        if end.status is not None:
            self.fail(end.status, end.reason, watch.output.text(), end)
        if self.rank == 0 and end.why not in (TIMEOUT, SIGNAL):  # then there is no time for it
            with contextlib.suppress(OSError):  # the run is what it is without
                supervision.leave_packages(folder, packages_of(self.words, command.env))
        if end.status is not None:
            if end.why in ("", FAILED, HANG):
                self._together(attempt, folder)
            return 1
        best, signs = progress.best, watch.output.signs
        timed_from, timed_until = progress.timer_window or (None, None)
        ending = Ending(
            rank=self.rank,
            host=socket.gethostname(),
            code=end.code,
            by=WINDOW if end.why == WINDOW else "itself",
            iteration=progress.iteration,
            format=progress.format,
            bad_loss=getattr(best, "bad_loss", None),
            stopped=end.stopped,
            left_out=watch.output.left_out,
            first=getattr(best, "first", None),
            anew=getattr(best, "anew", False),
            failed=signs.failed,
            failed_at=signs.failed_at,
            broken=signs.broken,
            broken_at=signs.broken_at,
            met=" ".join(map(str, sorted(signs.met))),
            timed=progress.timed,
            interrupted_s=watch.interrupted_s or None,
            signs=signs.count,
            stride=getattr(best, "stride", 0),
            opened=watch.opened,
            reached=watch.reached,
            alive=max(watch.alive, end.died * (end.why != WINDOW)),
            timed_from=timed_from,
            timed_until=timed_until,
        )
        supervision.leave(folder, ending)
        self._together(attempt, folder)
        self._log_gpus(attempt, folder)
        return 0

    def _log_gpus(self, attempt: Attempt, folder: Path) -> None:
        """What was seen of the node's GPUs in the window, which another rank's lines may tell."""
        window = supervision.window_of(supervision.read_endings(folder))
        if window is None or self.gpus is None:
            return
        lines, why = self.gpus.lines(window)
        path = attempt.paths.log if self.rank == 0 else supervision.lines_of(folder, self.rank)
        with contextlib.suppress(OSError, ValueError):  # the run is what it is without
            for line in lines:
                append_line(path, write_line("gpu", {"rank": self.rank, **line}))
            if why and write_once(folder / _NO_FIGURES, ""):
                text = f"no figures of the GPUs: {why}"
                append_line(path, write_line("note", {"text": text}))

    def _together(self, attempt: Attempt, folder: Path) -> None:
        """Wait a little until all supervisors have said how theirs ended: what the first one to
        leave takes with it can say nothing more."""
        deadline = time.monotonic() + _TOGETHER_S
        while time.monotonic() < deadline and not self.signals:
            ended = len(list(folder.glob("rank*.end.json")))
            if ended + len(attempt.paths.failures(attempt.number)) >= attempt.run.case.ranks:
                return
            time.sleep(_TICK_S)

    def fail(self, status: Status, reason: str, trace: str = "", end: End | None = None) -> int:
        """Say and write down why this rank failed; its exit code."""
        host = socket.gethostname()
        reason = f"rank {self.rank} on {host}: {reason}"
        print(redacted(f"dlperf_hpc: {status.value}: {reason}"), file=sys.stderr, flush=True)
        if self.attempt is not None:
            died = end.died if end is not None and not end.why else None
            failure = Failure(self.rank, host, status, reason, utc(died), trace)
            if end is not None:
                names = ("consequence", "code", "why", "decided_by", "cause")
                failure = replace(failure, **{name: getattr(end, name) for name in names})
            folder = self.attempt.paths.supervised(self.attempt.number)
            with contextlib.suppress(OSError):  # it is printed at least
                leave_failure(self.attempt, failure)
                # Not every launcher ends the others when one has failed.
                supervision.leave(folder, Stop(FAILED, self.rank, utc()))
        return 1


def _look_at_port(attempt: Attempt) -> None:
    """Before anything is started: name another port if that where the ranks meet is taken here."""
    taken = launching.port_of(attempt.launch)
    if launching.is_free(taken):
        return
    other = launching.another_port(attempt.launch)
    if other is None:
        raise RunError(f"port {taken}, at which the ranks were to meet, is taken on this node")
    named = Port(other, 0, socket.gethostname(), taken)
    supervision.leave(attempt.paths.supervised(attempt.number), named)
