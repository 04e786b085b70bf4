"""Tasks under ``mpiexec`` on this machine, one after another.

They wait in this process: timed runs must not share cores, and who watches the sweep is the one who
may stop it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from dlperf_hpc.engines.lock import held_descriptors
from dlperf_hpc.files import open_append

_GRACE_S = 10.0  # between SIGTERM and SIGKILL; also how long a task may outlive its time limit
_POLL_S = 0.05
_WAITS_OR_RUNS = ("PENDING", "RUNNING")


@dataclass
class QueuedTask:
    """One mpiexec to be: what to run, where its output goes, how long it may take.

    ``state`` is PENDING, RUNNING, then FINISHED, FAILED or CANCELLED. ``epilogue`` is run after
    mpiexec, with its exit code as last argument; ``gate`` before it, if the file ``marker`` is
    there, and where that ends with 0 nothing else is run.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    output: Path
    timeout_s: float
    epilogue: Sequence[str]
    gate: Sequence[str] = ()
    marker: Path | None = None
    state: str = "PENDING"
    cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def alive(self) -> bool:
        """Whether it waits or runs."""
        return self.state in _WAITS_OR_RUNS


class TaskQueue:
    """Runs tasks in the order they came, one at a time, in a thread of this process."""

    def __init__(self) -> None:
        self._tasks: queue.Queue[QueuedTask] = queue.Queue()
        self._thread: threading.Thread | None = None
        self.known: dict[str, QueuedTask] = {}

    def new_job(self) -> str:
        """A job id that no other process on this machine has had."""
        return f"{time.strftime('%m%d%H%M%S')}{os.getpid()}{len(self.known)}"

    def put(self, task: QueuedTask) -> None:
        """Queue a task; starts the thread with the first."""
        self.known[task.name] = task
        self._tasks.put(task)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="mpiexec-queue", daemon=True)
            self._thread.start()

    def tasks_of(self, jobs: Collection[str]) -> list[QueuedTask]:
        """The tasks of these jobs that this process has queued."""
        return [task for name, task in self.known.items() if name.partition("_")[0] in jobs]

    def idle(self) -> bool:
        """Nothing runs and nothing waits."""
        return not any(task.alive for task in self.known.values())

    def cancel(self, tasks: Collection[QueuedTask]) -> None:
        """Start none of these tasks, and end the one that runs; returns when it is gone."""
        for task in tasks:
            task.cancelled.set()
        while any(task.state == "RUNNING" for task in tasks):
            time.sleep(_POLL_S)

    def _work(self) -> None:
        while True:
            task = self._tasks.get()
            if task.cancelled.is_set():
                task.state = "CANCELLED"
                continue
            task.state = "RUNNING"
            if _is_held_back(task):
                task.state = "FINISHED"
                continue
            code = _run(task)
            _run_epilogue(task, code)
            task.state = "FINISHED" if code == 0 else "FAILED"


def _run(task: QueuedTask) -> int:
    """Run to the end, over the limit, or cancelled; the exit code as a shell would give it."""
    with _output(task) as output:
        if output.name == os.devnull:
            return 126  # what it would print has no place: the epilogue says why
        try:
            process = subprocess.Popen(
                list(task.argv),
                env=dict(task.env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=held_descriptors(),  # the lock must outlive this process
                start_new_session=True,  # Ctrl-C is ours to pass on, after we have noted it
            )
        except OSError as error:
            note(output, f"{task.argv[0]}: {error}")
            return 127
        code = _wait(task, process, output)
    return 128 - code if code < 0 else code


def _output(task: QueuedTask) -> BinaryIO:
    """The task's output file; the null device if it cannot be written, or is a link or no file."""
    try:
        return open_append(task.output)
    except OSError:
        return open(os.devnull, "ab", buffering=0)


def note(output: BinaryIO, text: str) -> None:
    """Add a line of ours to a task's output, if that takes one: a full disk must stop no queue."""
    with contextlib.suppress(OSError):
        output.write(f"{text}\n".encode())


def _wait(task: QueuedTask, process: subprocess.Popen[bytes], output: BinaryIO) -> int:
    deadline = time.monotonic() + task.timeout_s + _GRACE_S
    while process.poll() is None:
        if task.cancelled.is_set():
            note(output, "dlperf_hpc: CANCELLED by the user")
            return _end(process)
        if time.monotonic() > deadline:
            note(output, f"dlperf_hpc: CANCELLED DUE TO TIME LIMIT of {task.timeout_s:g} s")
            return _end(process)
        time.sleep(_POLL_S)
    return process.returncode


def _end(process: subprocess.Popen[bytes]) -> int:
    """SIGTERM, then SIGKILL, to mpiexec and everything it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            return process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            continue
    return process.wait()


def _is_held_back(task: QueuedTask) -> bool:
    if task.marker is None or not task.marker.is_file():
        return False
    argv, env = list(task.gate), dict(task.env)
    with _output(task) as output:
        try:
            return subprocess.run(argv, env=env, stdout=output, stderr=output).returncode == 0
        except OSError as error:  # then the run begins, and says itself what is wrong
            note(output, f"{argv[0]}: {error}")
            return False


def _run_epilogue(task: QueuedTask, code: int) -> None:
    argv = [*task.epilogue, str(code)]
    with _output(task) as output:
        try:
            subprocess.run(argv, env=dict(task.env), stdout=output, stderr=output, check=False)
        except OSError as error:
            note(output, f"{argv[0]}: {error}")
