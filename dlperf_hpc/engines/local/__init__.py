"""This machine: ranks under mpiexec, one task after another, in a queue of this process."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Collection, Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dlperf_hpc.engines.base import (
    Answer,
    Capacity,
    CheckResult,
    Engine,
    Program,
    Response,
    TaskState,
    alone,
    asked_without_mpi,
    run_program,
)
from dlperf_hpc.engines.command import clean_environment, run
from dlperf_hpc.engines.local.queue import QueuedTask, TaskQueue
from dlperf_hpc.errors import Issue, LedgerError, SiteError, SpecError
from dlperf_hpc.model.result import Status
from dlperf_hpc.records import layout
from dlperf_hpc.records.layout import MPI_VARIABLE, NO_MPI

if TYPE_CHECKING:
    from dlperf_hpc.engines.environments import Environment
    from dlperf_hpc.engines.site import Site
    from dlperf_hpc.records.ledger import Task
    from dlperf_hpc.records.manifest import Array, Manifest, Submission

_POLL_S = 0.5
# How a task that has finished ended, its record says.
_STATUS = {
    "PENDING": Status.PENDING,
    "RUNNING": Status.RUNNING,
    "FINISHED": Status.UNKNOWN,
    "FAILED": Status.FAILED,
    "CANCELLED": Status.CANCELLED,
}


class LocalEngine(Engine):
    """A queue in this process, which ends with it."""

    name = "local"
    title = "the local queue"
    detached = False
    one_queue = True
    max_nodes = 1
    lock_patience_s = 5.0  # who holds the lock runs a sweep, which may take hours

    def __init__(self) -> None:
        self._queue = TaskQueue()

    def present(self) -> bool:
        """Always: without mpiexec, :meth:`check` says what is missing."""
        return True

    def check(self, manifest: Manifest, site: Site, root: Path) -> None:
        """Environments, mpiexec, and that one node is enough."""
        issues = []
        for name in dict.fromkeys(array.environment for array in manifest.arrays):
            if refusal := _refusal_of(name, site):
                issues.append(refusal)
        if issues:
            raise SpecError("site profile", issues)
        several = [array for array in manifest.arrays if not alone([array])]
        if find_mpiexec() is None and several:
            names = ", ".join(sorted({str(array.topology) for array in several}))
            raise SiteError(
                "mpiexec: neither beside this Python nor on the PATH; pip install mpich brings one."
                f" Without it only runs of one rank are made here, and these are not: {names}"
            )
        wide = _topologies_of_several_nodes(manifest.arrays)
        if wide:
            one = "the local engine has one node, this machine"
            hint = "use --cluster slurm, or --only with topologies of 1 node"
            raise SpecError(manifest.source, [Issue(f"topologies {', '.join(wide)}", one, hint)])

    def examine(
        self, site: Site, arrays: Sequence[Array], root: Path
    ) -> Generator[CheckResult, None, Capacity | None]:
        """mpiexec, topologies and cores."""
        present = _check_mpiexec(bool(arrays) and alone(arrays))
        yield present
        yield from _check_topologies(arrays)
        return Capacity(nodes=1, gpus=count_gpus()) if present.grade != "FAIL" else None

    def submit(self, root: Path, array: Array, site: Site, program: Program) -> Response:
        """Queue the array's tasks, or refuse it if it wants more GPUs than this machine has.

        SpecError if mpiexec alone cannot start the environment.
        """
        if refusal := _refusal_of(array.environment, site):
            raise SpecError("site profile", [refusal])
        if error := _too_few_gpus(array):
            return Response(error=error)
        (root / layout.JOBS).mkdir(parents=True, exist_ok=True)
        job = self._queue.new_job()
        for index in range(array.size):
            self._queue.put(queued_task(root, array, site, program, f"{job}_{index}"))
        return Response(job_id=job)

    def commands(self, root: Path, array: Array, site: Site) -> tuple[str, ...]:
        """The mpiexec of each task; JOB stands for the number that the queue will give it."""
        program = run_program(root, array)
        tasks = (
            queued_task(root, array, site, program, f"JOB_{index}") for index in range(array.size)
        )
        return tuple(map(_typed, tasks))

    def find(self, tokens: Collection[str], root: Path) -> dict[str, str]:
        """Nothing: what was queued ended with the process that queued it."""
        return {}

    def states(
        self,
        root: Path,
        tasks: Sequence[Task],
        also: Sequence[Task] = (),
        insist: bool = False,
    ) -> Answer:
        """Of tasks that this process has queued; it knows of no others."""
        known = self._queue.known
        states = {
            name: known[name].state for task in (*tasks, *also) if (name := task.name) in known
        }
        return Answer({name: TaskState(_STATUS[state], state) for name, state in states.items()})

    def live_jobs(self, root: Path, submissions: Sequence[Submission]) -> list[str]:
        """Jobs that this process has queued. LedgerError if another process may have."""
        jobs = {row.job_id for row in submissions if row.job_id}
        tasks = self._queue.tasks_of(jobs)
        if not tasks:
            raise LedgerError(
                f"{root}: no job of this sweep is in Slurm: its runs were made on this machine by"
                " `dlperf sweep`; where that still runs, Ctrl-C there ends it"
            )
        return sorted({task.name.partition("_")[0] for task in tasks if task.alive})

    def cancel(self, jobs: Collection[str]) -> None:
        """End the running task if it is one of theirs, and let none of the others start."""
        self._queue.cancel(self._queue.tasks_of(jobs))

    def idle(self) -> bool:
        """Whether the queue is empty."""
        return self._queue.idle()

    def pause_s(self, poll_s: float) -> float:
        """Looking costs nobody anything: often, whatever the profile says."""
        return _POLL_S

    def without_mpi(self, environment: Environment, arrays: Sequence[Array]) -> bool:
        """Where runs of one rank are asked for without MPI, or no mpiexec is there for them."""
        asked = asked_without_mpi({**os.environ, **environment.env})
        return alone(arrays) and (asked or find_mpiexec() is None)

    def launcher(self, environment: Environment) -> str:
        """mpiexec, whatever the environment."""
        return "mpiexec"

    def mpi_hint(self, environment: Environment) -> str:
        """Another mpiexec than the MPI library's own is what mostly is wrong."""
        return "use the mpiexec of this environment's MPI"

    def queue_command(self, jobs: Sequence[str]) -> list[str]:
        """None: the queue is this process's own."""
        return []

    def cancel_command(self, jobs: Sequence[str]) -> list[str]:
        """None: the queue is this process's own."""
        return []


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
    shown = [part for part in visible.split(",") if part.strip() not in ("", "-1")]
    return min(present, len(shown))


def queued_task(root: Path, array: Array, site: Site, program: Program, name: str) -> QueuedTask:
    """The mpiexec of one task, which is called ``<job>_<index>``."""
    from dlperf_hpc.engines import environments

    environment = site.environment_named(array.environment)
    ranks = array.tasks[0].case.ranks_per_node
    command = environments.task_command(environment, root, program.arguments, program.supervised)
    lone = ENGINE.without_mpi(environment, [array])
    start = [] if lone else [find_mpiexec() or "mpiexec", "-n", str(ranks)]
    return QueuedTask(
        name=name,
        argv=[*start, *command],
        env={
            **clean_environment(),
            # Where a rank finds which task it is of: dlperf_hpc.records.layout.
            "SUBMITIT_MPIEXEC_JOB_ID": name,
            "SUBMITIT_MPIEXEC_TASK": name.rpartition("_")[2],
            **environments.local_variables(environment),
            **({MPI_VARIABLE: NO_MPI} if lone else {}),
        },
        output=root / layout.JOBS / f"{name}.out",
        timeout_s=float(array.time_limit_s),
        epilogue=program.epilogue,
        gate=program.gate,
        marker=program.marker,
    )


def _typed(task: QueuedTask) -> str:
    """A task's command as one would type it: with what it has in its environment and a shell does
    not have, and where its output goes."""
    plain = clean_environment()
    added = {name: value for name, value in task.env.items() if plain.get(name) != value}
    command = shlex.join([*(f"{name}={value}" for name, value in added.items()), *task.argv])
    return f"{'env ' if added else ''}{command} > {shlex.quote(str(task.output))} 2>&1"


def _refusal_of(name: str, site: Site) -> Issue | None:
    """Why mpiexec alone cannot start an environment."""
    from dlperf_hpc.engines.environments import local_refusal

    refusal = local_refusal(site.environment_named(name))
    return Issue(f"environment.{name}", refusal, "use --cluster slurm") if refusal else None


def _too_few_gpus(array: Array) -> str:
    """Why this machine cannot run an array: more GPUs than it has. A row, like a site's refusal."""
    gpus = count_gpus()
    wanted = array.topology.gpus_per_node
    if gpus and wanted > gpus and any(run.case.device != "cpu" for run in array.tasks):
        return f"this machine has {gpus} GPU{'s' * (gpus > 1)}, {array.topology} needs {wanted}"
    return ""


def _topologies_of_several_nodes(arrays: Sequence[Array]) -> list[str]:
    return sorted({str(array.topology) for array in arrays if array.topology.nodes > 1})


def _check_mpiexec(lone: bool) -> CheckResult:
    """Whether there is an mpiexec, and whose. Runs that are ``lone``, one rank each, do without."""
    path = find_mpiexec()
    if path is None and lone:
        seen = "none: these runs have one rank each, and are made without MPI"
        return CheckResult("ok", "mpiexec", seen)
    if path is None:
        seen = "neither beside this Python nor on the PATH"
        return CheckResult("FAIL", "mpiexec", seen, "pip install mpich brings one")
    lines = run([path, "--version"], timeout_s=20).stdout.splitlines()
    version = next((line.strip() for line in lines if "ersion" in line), "version not told")
    return CheckResult("ok", "mpiexec", f"{path}: {version}")


def _check_topologies(arrays: Sequence[Array]) -> Generator[CheckResult, None, None]:
    """Whether this machine can be what the sweep asks for."""
    wide = _topologies_of_several_nodes(arrays)
    if wide:
        seen = f"{', '.join(wide)}: the local engine has one node, this machine"
        to_do = "use --cluster slurm, or leave them out with --only"
        yield CheckResult("FAIL", "topologies", seen, to_do)
    cores = len(os.sched_getaffinity(0))
    most = max((array.tasks[0].case.ranks_per_node for array in arrays), default=1)
    seen = f"{cores} for at most {most} ranks"
    if most > cores:
        yield CheckResult("warn", "cores", seen, "ranks share cores: times tell little")
    else:
        yield CheckResult("ok", "cores", seen)


ENGINE = LocalEngine()
