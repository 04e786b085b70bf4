"""A submitit executor that runs tasks under ``mpiexec`` on this machine, one after another.

Registered through submitit's entry points, so ``AutoExecutor(cluster="mpiexec")`` finds it as well.
Tasks wait in this process: timed runs must not share cores, and who watches the sweep is the one
who may stop it. submitit's own local executor starts everything at once and knows no MPI.
"""

from __future__ import annotations

import os
import queue
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from submitit.core import core, job_environment, utils

from dlperf_hpc.engines.command import clean_environment

_GRACE_S = 10.0  # between SIGTERM and SIGKILL; also how long a task may outlive its time limit
_POLL_S = 0.05


def find_mpiexec() -> str | None:
    """The mpiexec beside this Python (an MPI wheel's), else the one on the PATH."""
    beside = Path(sys.executable).with_name("mpiexec")
    return str(beside) if beside.exists() else shutil.which("mpiexec")


@dataclass
class Task:
    """One mpiexec to be: what to run, where its output goes, how long it may take."""

    job_id: str
    argv: Sequence[str]
    env: Mapping[str, str]
    output: Path
    timeout_s: float
    epilogue: Sequence[str] = ()
    state: str = "PENDING"
    process: subprocess.Popen[bytes] | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)


class TaskQueue:
    """Runs tasks in the order they came, one at a time, in a thread of this process."""

    def __init__(self) -> None:
        self._tasks: queue.Queue[Task] = queue.Queue()
        self.known: dict[str, Task] = {}
        self._thread: threading.Thread | None = None
        self.held: tuple[int, ...] = ()
        """Descriptors that every mpiexec inherits: a lock that must outlive this process."""

    def put(self, task: Task) -> None:
        """Queue a task; starts the thread with the first."""
        self.known[task.job_id] = task
        self._tasks.put(task)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="mpiexec-queue", daemon=True)
            self._thread.start()

    def idle(self) -> bool:
        """Nothing runs and nothing waits."""
        return all(task.state not in ("PENDING", "RUNNING") for task in self.known.values())

    def cancel(self) -> None:
        """End the running task and let no other start; returns when the running one is gone."""
        for task in self.known.values():
            task.cancelled.set()
        while any(task.state == "RUNNING" for task in self.known.values()):
            time.sleep(_POLL_S)

    def _work(self) -> None:
        while True:
            task = self._tasks.get()
            if task.cancelled.is_set():
                task.state = "CANCELLED"
                continue
            task.state = "RUNNING"
            code = _run(task)
            _run_epilogue(task, code)
            task.state = "FINISHED" if code == 0 else "FAILED"


QUEUE = TaskQueue()


def _run(task: Task) -> int:
    """Run to the end, over the limit, or cancelled; the exit code as a shell would give it."""
    with open(task.output, "ab") as output:
        try:
            task.process = subprocess.Popen(
                list(task.argv),
                env=dict(task.env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=QUEUE.held,
                start_new_session=True,  # Ctrl-C is ours to pass on, after we have noted it
            )
        except OSError as error:
            output.write(f"{task.argv[0]}: {error}\n".encode())
            return 127
        code = _wait(task, task.process, lambda text: _note(output.fileno(), text))
    return 128 - code if code < 0 else code


def _note(descriptor: int, text: str) -> None:
    os.write(descriptor, f"{text}\n".encode())


def _wait(task: Task, process: subprocess.Popen[bytes], note: Callable[[str], None]) -> int:
    deadline = time.monotonic() + task.timeout_s + _GRACE_S
    while process.poll() is None:
        if task.cancelled.is_set():
            note("dlperf_hpc: CANCELLED by the user")
            return _end(process)
        if time.monotonic() > deadline:
            note(f"dlperf_hpc: CANCELLED DUE TO TIME LIMIT of {task.timeout_s:g} s")
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


def _run_epilogue(task: Task, code: int) -> None:
    if not task.epilogue:
        return
    argv = [*task.epilogue, str(code)]
    with open(task.output, "ab") as output:
        subprocess.run(argv, env=dict(task.env), stdout=output, stderr=output, check=False)


class MpiexecJob(core.Job[core.R]):
    """A task of :data:`QUEUE`; its state is known without asking anybody."""

    @property
    def state(self) -> str:
        """PENDING, RUNNING, FINISHED, FAILED or CANCELLED; UNKNOWN in another process."""
        task = QUEUE.known.get(self.job_id)
        return task.state if task else "UNKNOWN"

    def done(self, force_check: bool = False) -> bool:
        """Whether the task has ended, whatever its end."""
        return self.state in ("FINISHED", "FAILED", "CANCELLED")

    def get_info(self, mode: str = "force") -> dict[str, str]:
        """submitit's form of :attr:`state`."""
        return {"jobState": self.state}

    def cancel(self, check: bool = True) -> None:
        """End the task if it runs, or never start it."""
        task = QUEUE.known.get(self.job_id)
        if task:
            task.cancelled.set()


class MpiexecJobEnvironment(job_environment.JobEnvironment):
    """How a rank under mpiexec learns what submitit asks: MPICH's and Intel MPI's PMI variables."""

    _env: ClassVar[dict[str, str]] = {
        "job_id": "SUBMITIT_MPIEXEC_JOB_ID",
        "num_tasks": "PMI_SIZE",
        "num_nodes": "SUBMITIT_MPIEXEC_NODES",
        "node": "SUBMITIT_MPIEXEC_NODE",
        "global_rank": "PMI_RANK",
        "local_rank": "MPI_LOCALRANKID",
    }


class MpiexecExecutor(core.PicklingExecutor):
    """Runs each submission as ``mpiexec -n tasks_per_node python ...``, strictly in order."""

    job_class = MpiexecJob

    def __init__(self, folder: str | Path, max_num_timeout: int = 3) -> None:
        super().__init__(folder, max_num_timeout=max_num_timeout)
        self._throttling = 0.0  # nobody to spare: the queue is ours

    @classmethod
    def _valid_parameters(cls) -> set[str]:
        return {"env", "epilogue"}

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        if kwargs.get("nodes", 1) != 1:
            raise ValueError("the mpiexec executor has one node: this machine")
        super()._internal_update_parameters(**kwargs)

    @classmethod
    def affinity(cls) -> int:
        """Only when asked for: submitit's own choice of an executor stays as it was."""
        return 0 if find_mpiexec() else -1

    def _num_tasks(self) -> int:
        return int(self.parameters.get("tasks_per_node", 1))

    @property
    def _submitit_command_str(self) -> str:
        return shlex.join([sys.executable, "-u", "-m", "submitit.core._submit", str(self.folder)])

    def _internal_process_submissions(
        self, delayed_submissions: list[utils.DelayedSubmission]
    ) -> list[core.Job[Any]]:
        folder = utils.JobPaths.get_first_id_independent_folder(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        array = f"{time.strftime('%m%d%H%M%S')}{os.getpid()}{len(QUEUE.known)}"
        jobs: list[core.Job[Any]] = []
        for index, delayed in enumerate(delayed_submissions):
            ranks = list(range(self._num_tasks()))
            job: MpiexecJob[Any] = MpiexecJob(self.folder, f"{array}_{index}", ranks)
            delayed.set_timeout(self.parameters.get("timeout_min", 5), self.max_num_timeout)
            delayed.dump(job.paths.submitted_pickle)
            QUEUE.put(self._task(job.job_id, index, folder))
            jobs.append(job)
        return jobs

    def _task(self, job_id: str, index: int, folder: Path) -> Task:
        command = shlex.split(self._submitit_command_str)
        mpiexec = find_mpiexec() or "mpiexec"
        env = {
            **clean_environment(),
            "SUBMITIT_EXECUTOR": "mpiexec",
            "SUBMITIT_MPIEXEC_JOB_ID": job_id,
            "SUBMITIT_MPIEXEC_TASK": str(index),
            **self.parameters.get("env", {}),
        }
        return Task(
            job_id=job_id,
            argv=[mpiexec, "-n", str(self._num_tasks()), *command],
            env=env,
            output=folder / f"{job_id}.out",
            timeout_s=60.0 * self.parameters.get("timeout_min", 5),
            epilogue=self.parameters.get("epilogue", ()),
        )

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        return ""

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        return []

    @staticmethod
    def _get_job_id_from_submission_command(string: bytes | str) -> str:
        return ""
