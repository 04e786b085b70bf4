"""This machine: ranks under mpiexec, one task after another, in a queue of this process: timed runs
must not share cores, and who watches the sweep is the one who may stop it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from dlperf_hpc.engines import base
from dlperf_hpc.engines.base import Answer, Capacity, CheckResult, Engine, Response, TaskProgram
from dlperf_hpc.errors import Issue, LedgerError, SiteError, SpecError, number_of
from dlperf_hpc.files import open_append, read_regular
from dlperf_hpc.model.result import Status
from dlperf_hpc.records import layout
from dlperf_hpc.records.collect import quick_results
from dlperf_hpc.records.manifest import by_environment

if TYPE_CHECKING:
    from dlperf_hpc.engines.site import Environment, Site
    from dlperf_hpc.records.ledger import Ledger, Task
    from dlperf_hpc.records.manifest import Array, Manifest, Submission

_Launch = tuple[Sequence[str], Mapping[str, str]]
_LOOK_S = 0.5
_POLL_S = 0.05
_GRACE_S = 10.0  # between SIGTERM and SIGKILL; also how long a task may outlive its time limit


class LocalEngine(Engine):
    """A queue in this process, which ends with it: tasks run in the order they came, one at a time,
    in a thread."""

    name = "local"
    title = "the local queue"
    detached = False
    one_queue = True
    max_nodes = 1
    lock_patience_s = 5.0  # who holds the lock runs a sweep, which may take hours

    def __init__(self) -> None:
        self._waiting: queue.Queue[QueuedTask] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._known: dict[str, QueuedTask] = {}

    def present(self) -> bool:
        """Always: without mpiexec, :meth:`check` says what is missing."""
        return True

    def check(self, manifest: Manifest, site: Site, root: Path) -> None:
        """Environments, mpiexec, and that one node is enough."""
        _refuse_environments(manifest.arrays, site)
        several = sorted(
            {str(array.topology) for array in manifest.arrays if not base.alone([array])}
        )
        if find_mpiexec() is None and several:
            raise SiteError(
                "mpiexec: neither beside this Python nor on the PATH; pip install mpich brings one."
                " Without it only runs of one rank are made here, and these are not:"
                f" {', '.join(several)}"
            )
        if wide := _wide_topologies(manifest.arrays):
            one = "the local engine has one node, this machine"
            hint = "use --cluster slurm, or --only with topologies of 1 node"
            raise SpecError(manifest.source, [Issue(f"topologies {wide}", one, hint)])

    def examine(
        self, site: Site, arrays: Sequence[Array], root: Path
    ) -> Generator[CheckResult, None, Capacity | None]:
        """mpiexec, topologies and cores."""
        present = _check_mpiexec(bool(arrays) and base.alone(arrays))
        yield present
        yield from _check_topologies(arrays)
        return Capacity(nodes=1, gpus=count_gpus()) if present.grade != "FAIL" else None

    def submit(self, root: Path, array: Array, site: Site, program: TaskProgram) -> Response:
        """Queue the array's tasks, or refuse it if it wants more GPUs than this machine has.
        SpecError if mpiexec alone cannot start the environment."""
        _refuse_environments([array], site)
        if error := _too_few_gpus(array):
            return Response(error=error)
        (root / layout.JOBS).mkdir(parents=True, exist_ok=True)
        # No other process on this machine has had it.
        job = f"{time.strftime('%m%d%H%M%S')}{os.getpid()}{len(self._known)}"
        for index in range(array.size):
            self.put(queued_task(root, array, site, program, f"{job}_{index}"))
        return Response(job_id=job)

    def put(self, task: QueuedTask) -> None:
        """Queue a task; starts the thread with the first."""
        self._known[task.name] = task
        self._waiting.put(task)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="mpiexec-queue", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            task = self._waiting.get()
            if task.cancelled.is_set():
                task.state = "CANCELLED"
                continue
            task.state = "RUNNING"
            # One that fails ends no other; an interrupt ends all that follow.
            runs = task.runs()
            codes = [_start(run) for run in runs if not task.cancelled.is_set()]
            task.state = "FAILED" if any(codes) else "FINISHED"
            if len(codes) < len(runs):
                task.state = "CANCELLED"

    def commands(self, root: Path, array: Array, site: Site) -> tuple[str, ...]:
        """The mpiexec of each task; JOB stands for the number that the queue will give it."""
        program, names = base.run_program(root, array), [f"JOB_{n}" for n in range(array.size)]
        tasks = [queued_task(root, array, site, program, name) for name in names]
        return tuple(_typed(run) for task in tasks for run in task.runs())

    def states(
        self, root: Path, tasks: Sequence[Task], also: Sequence[Task] = (), insist: bool = False
    ) -> Answer:
        """How tasks stand that this process has queued; it knows of no others."""
        names = [task.name for task in (*tasks, *also) if task.name in self._known]
        return Answer({name: self._known[name].task_state for name in names})

    def live_jobs(self, root: Path, submissions: Sequence[Submission]) -> list[str]:
        """Jobs that this process has queued. LedgerError if another process may have."""
        jobs = {row.job_id for row in submissions if row.job_id}
        tasks = self._tasks_of(jobs)
        if not tasks:
            raise LedgerError(
                f"{root}: no job of this sweep is in Slurm: its runs were made on this machine by"
                " `dlperf sweep`; where that still runs, Ctrl-C there ends it"
            )
        return sorted({task.name.partition("_")[0] for task in tasks if task.task_state.alive})

    def cancel(self, jobs: Collection[str]) -> None:
        """End the running task if it is one of theirs, and let none of the others start; returns
        when it is gone."""
        tasks, thread = self._tasks_of(jobs), self._thread
        for task in tasks:
            task.cancelled.set()
        while any(task.state == "RUNNING" for task in tasks) and thread and thread.is_alive():
            time.sleep(_POLL_S)

    def _tasks_of(self, jobs: Collection[str]) -> list[QueuedTask]:
        return [task for name, task in self._known.items() if name.partition("_")[0] in jobs]

    def settle(self, ledger: Ledger) -> list[str]:
        """Kill what ranks are left, and make the record of each run that began and has no end."""
        left: list[str] = []
        if not self.idle():
            return left
        _end_leftovers(ledger.root)
        here, tasks = os.uname().nodename, ledger.tasks()
        hosts = {row.job_id: row.host for row in ledger.submissions}
        for result in quick_results(ledger).results:
            task = tasks.get(result.run.id)
            if task is None or result.status.finished or hosts.get(task.job_id) != here:
                continue
            output = ledger.root / layout.JOBS / f"{task.name}.out"
            epilogue = base.run_program(ledger.root, task.array).epilogue
            size, ids = task.array.repeats_per_job, [run.id for run in task.array.tasks]
            env = _variables(task.name)
            launches = [((), env)] * size if size > 1 else ()
            ended = QueuedTask(task.name, (), env, output, 0, epilogue, launches=launches)
            run = ended.runs()[ids.index(result.run.id) % size]
            if not run.began():
                left.append(result.run.id)
                continue
            _run_ours(run, [*epilogue, str(layout.INTERRUPTED)])
        return left

    def idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not any(task.task_state.alive for task in self._known.values())

    def pause_s(self, poll_s: float) -> float:
        """Looking costs nobody anything: often, whatever the profile says."""
        return _LOOK_S

    def without_mpi(self, environment: Environment, arrays: Sequence[Array]) -> bool:
        """Where runs of one rank are asked for without MPI, or no mpiexec is there for them."""
        disabled = base.mpi_disabled({**os.environ, **environment.env})
        return base.alone(arrays) and (disabled or find_mpiexec() is None)


def find_mpiexec() -> str | None:
    """The mpiexec beside this Python (an MPI wheel's), else the one on the PATH."""
    beside = Path(sys.executable).with_name("mpiexec")
    return str(beside) if beside.exists() else shutil.which("mpiexec")


def count_gpus() -> int:
    """NVIDIA GPUs this machine shows, without loading a framework; CUDA_VISIBLE_DEVICES counts."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    present = len(list(Path("/dev").glob("nvidia[0-9]*")))
    if visible is None:
        return present
    return min(present, sum(part.strip() not in ("", "-1") for part in visible.split(",")))


def queued_task(
    root: Path, array: Array, site: Site, program: TaskProgram, name: str
) -> QueuedTask:
    """The mpiexec of one task, which is called ``<job>_<index>``."""
    environments = map(site.environment_named, array.environments)
    launches = [_launch(root, array, program, name, each) for each in environments]
    argv, env = launches[0]
    return QueuedTask(
        name=name,
        argv=argv,
        env=env,
        output=root / layout.JOBS / f"{name}.out",
        timeout_s=float(array.time_limit_s),
        epilogue=program.epilogue,
        gate=program.gate,
        markers=program.markers,
        launches=launches if len(launches) > 1 else (),
    )


def _launch(
    root: Path, array: Array, program: TaskProgram, name: str, environment: Environment
) -> _Launch:
    argv = environment.task_command(root, program.arguments, program.supervised)
    env = {**_variables(name), **environment.local_variables()}
    if program.bound:
        env[layout.BOUND] = program.bound
    if ENGINE.without_mpi(environment, [array]):
        env[layout.MPI_VARIABLE] = layout.NO_MPI
    else:
        ranks = array.tasks[0].case.ranks_per_node
        argv = [find_mpiexec() or "mpiexec", "-n", str(ranks), *argv]
    return argv, env


def _variables(name: str) -> dict[str, str]:
    index = name.rpartition("_")[2]
    named = {"SUBMITIT_MPIEXEC_JOB_ID": name, "SUBMITIT_MPIEXEC_TASK": index}
    return {**base.clean_environment(), **named}


def _typed(task: QueuedTask) -> str:
    """A task's command as one would type it: with what it has in its environment and a shell does
    not have, and where its output goes."""
    plain = base.clean_environment()
    added = {name: value for name, value in task.env.items() if plain.get(name) != value}
    words = ["env", *(f"{name}={value}" for name, value in added.items()), *task.argv]
    return f"{shlex.join(words)} > {shlex.quote(str(task.output))} 2>&1"


def _refuse_environments(arrays: Iterable[Array], site: Site) -> None:
    """SpecError for environments of arrays that mpiexec alone cannot start."""
    reasons = {
        name: site.environment_named(name).local_refusal() for name in by_environment(arrays)
    }
    hint = "use --cluster slurm"
    issues = [Issue(f"environment.{name}", why, hint) for name, why in reasons.items() if why]
    if issues:
        raise SpecError("site profile", issues)


def _too_few_gpus(array: Array) -> str:
    """Why this machine cannot run an array: more GPUs than it has. A row, like a site's refusal."""
    gpus, wanted = count_gpus(), array.topology.gpus_per_node
    if 0 < gpus < wanted and any(run.case.device != "cpu" for run in array.tasks):
        return f"this machine has {number_of(gpus, 'GPU')}, {array.topology} needs {wanted}"
    return ""


def _wide_topologies(arrays: Sequence[Array]) -> str:
    return ", ".join(sorted({str(each.topology) for each in arrays if each.topology.nodes > 1}))


def _check_mpiexec(lone: bool) -> CheckResult:
    """Whether there is an mpiexec, and whose. Runs that are ``lone``, one rank each, do without."""
    path = find_mpiexec()
    if path is None and lone:
        seen = "none: these runs have one rank each, and are made without MPI"
        return CheckResult("ok", "mpiexec", seen)
    if path is None:
        seen = "neither beside this Python nor on the PATH"
        return CheckResult("FAIL", "mpiexec", seen, "pip install mpich brings one")
    lines = base.run([path, "--version"], timeout_s=20).stdout.splitlines()
    version = next((line.strip() for line in lines if "ersion" in line), "version not told")
    return CheckResult("ok", "mpiexec", f"{path}: {version}")


def _check_topologies(arrays: Sequence[Array]) -> Generator[CheckResult, None, None]:
    if wide := _wide_topologies(arrays):
        seen = f"{wide}: the local engine has one node, this machine"
        to_do = "use --cluster slurm, or leave them out with --only"
        yield CheckResult("FAIL", "topologies", seen, to_do)
    cores = len(os.sched_getaffinity(0))
    most = max((array.tasks[0].case.ranks_per_node for array in arrays), default=1)
    result = CheckResult("ok", "cores", f"{cores} for at most {most} ranks")
    if most > cores:
        result = replace(result, grade="warn", to_do="ranks share cores: times tell little")
    yield result


@dataclass
class QueuedTask:
    """One mpiexec to be: what to run, where its output goes, how long it may take. ``epilogue``,
    ``gate`` and ``markers`` are those of a :class:`TaskProgram`; ``state`` is PENDING, RUNNING,
    then FINISHED, FAILED or CANCELLED. A job of several runs has the ``argv`` and ``env`` of each
    of them in ``launches``, and starts them in turn."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    output: Path
    timeout_s: float
    epilogue: Sequence[str]
    gate: Sequence[str] = ()
    markers: Sequence[Path] = ()
    launches: Sequence[_Launch] = ()
    state: str = "PENDING"
    cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def task_state(self) -> base.TaskState:
        """How it stands. How a task that has finished ended, its record says."""
        state = self.state  # once: the queue's thread goes on
        status = Status.UNKNOWN if state == "FINISHED" else Status(state.lower())
        return base.TaskState(status, state)

    def runs(self) -> list[QueuedTask]:
        """The task as it is started for each of its runs, in turn."""
        if not self.launches:
            return [self]
        return [
            replace(self, argv=argv, env={**env, layout.REPEAT: str(turn)})
            for turn, (argv, env) in enumerate(self.launches)
        ]

    @property
    def mark(self) -> str:
        """The line with which a run begins in an output that several runs share."""
        return f"{layout.LAUNCH_MARK} {layout.launch_id(self.env)}"

    def began(self) -> bool:
        """Whether the run was started, by its output."""
        if not self.launches:
            return self.output.exists()
        try:
            return f"{self.mark}\n".encode() in read_regular(self.output)
        except OSError:
            return False


def _start(task: QueuedTask) -> int:
    """Run one of a task's runs, unless it is held back, and what follows it; the exit code."""
    # Where the gate cannot be run the run begins, and says itself what is wrong.
    if any(map(Path.is_file, task.markers)) and _run_ours(task, task.gate) == 0:
        return 0
    code = _run(task)
    _run_ours(task, [*task.epilogue, str(code)])
    return code


def _run(task: QueuedTask) -> int:
    """Run to the end, over the limit, or cancelled; the exit code as a shell would give it."""
    with _output(task) as output:
        if output.name == os.devnull:
            return 126  # what it would print has no place: the epilogue says why
        if task.launches:
            note(output, task.mark)
        try:
            process = subprocess.Popen(
                list(task.argv), env={**task.env, **_mark(task.output.parents[1])},
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is ours to pass on, after we have noted it
                preexec_fn=_ends_with_us(),  # we may be killed
            )  # fmt: skip
        except OSError as error:
            note(output, f"{task.argv[0]}: {error}")
            return 127
        code = _wait(task, process, output)
    return 128 - code if code < 0 else code


def _ends_with_us() -> Callable[[], None]:
    from dlperf_hpc.pools import end_with

    return partial(end_with, os.getpid())


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
            _end(task, process)
            return layout.INTERRUPTED
        if time.monotonic() > deadline:
            note(output, f"dlperf_hpc: CANCELLED DUE TO TIME LIMIT of {task.timeout_s:g} s")
            return _end(task, process)
        time.sleep(_POLL_S)
    return process.returncode


def _end(task: QueuedTask, process: subprocess.Popen[bytes]) -> int:
    """SIGTERM, then SIGKILL, to mpiexec and all that it started, in its process group or not."""
    with contextlib.suppress(ProcessLookupError):
        for number in (signal.SIGTERM, signal.SIGKILL):
            os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
                break
    code = process.wait()
    _end_leftovers(task.output.parents[1])
    return code


def _mark(root: Path) -> dict[str, str]:
    """By which a sweep's ranks are known: the file of its lock, of which a copy of the directory
    has another; nothing where there is none."""
    try:
        found = os.stat(root / layout.LOCK)
    except OSError:
        return {}
    return {layout.LOCK_MARK: f"{found.st_dev}:{found.st_ino}"}


def _end_leftovers(root: Path) -> None:
    """Kill all of this sweep's ranks on this machine, and wait until they are gone."""
    deadline = time.monotonic() + _GRACE_S
    for name, value in _mark(root).items():
        while _kill_marked(f"{name}={value}".encode()) and time.monotonic() < deadline:
            time.sleep(_POLL_S)


def _kill_marked(mark: bytes) -> int:
    """Kill the processes that have a variable; how many there were."""
    found = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # ended, or another user's
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                os.kill(int(pid), signal.SIGKILL)
                found += 1
    return found


def _run_ours(task: QueuedTask, argv: Sequence[str]) -> int:
    """Run a command of ours in place of a task's ranks, or after them; its exit code."""
    with _output(task) as output:
        try:
            # Not in the terminal's process group: Ctrl-C is not for it. Nor does it outlive us, or
            # hold our lock: who comes next makes the record.
            return subprocess.run(
                argv, env=dict(task.env), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True, preexec_fn=_ends_with_us(),
            ).returncode  # fmt: skip
        except OSError as error:
            note(output, f"{argv[0]}: {error}")
            return 127


ENGINE = LocalEngine()
