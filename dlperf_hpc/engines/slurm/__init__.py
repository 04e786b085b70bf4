"""Slurm: arrays through sbatch, states from squeue and sacct, ranks under srun."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dlperf_hpc.engines.base import (
    DEFAULT_BOUND,
    Answer,
    Capacity,
    CheckResult,
    Engine,
    Program,
    Response,
    TaskState,
)
from dlperf_hpc.engines.command import find, run
from dlperf_hpc.engines.slurm import query
from dlperf_hpc.engines.slurm.states import status_of
from dlperf_hpc.errors import SiteError
from dlperf_hpc.records import layout

if TYPE_CHECKING:
    from dlperf_hpc.engines.environments import Environment
    from dlperf_hpc.engines.site import Site
    from dlperf_hpc.records.ledger import Ledger, Task
    from dlperf_hpc.records.manifest import Array, Manifest

# sbatch's words for what a user may have in the queue, and for a controller that is full.
_LIMITS = (
    *("QOSMaxSubmitJobPerUserLimit", "QOSMaxSubmitJobPerAccountLimit", "QOSGrpSubmitJobsLimit"),
    *("AssocMaxSubmitJobLimit", "AssocGrpSubmitJobsLimit", "MaxSubmitJobsPerUser"),
    "Slurm temporarily unable to accept job",
)
# Its words when it did not hear whether the job was taken.
_NO_ANSWER = (
    *("timed out", "Unable to contact", "Zero Bytes", "Connection refused", "Connection reset"),
    *("Communication connection failure", "standby mode", "Resource temporarily unavailable"),
)
_NOT_LAUNCHED = "JobLaunchFailure"  # mostly, the output file cannot be opened on the node


class SlurmEngine(Engine):
    """Arrays of a cluster's scheduler. submitit is loaded only where a script is written."""

    name = "slurm"
    title = "Slurm"

    def present(self) -> bool:
        """Whether sbatch is on the PATH."""
        return shutil.which("sbatch") is not None

    def check(self, manifest: Manifest, site: Site, root: Path) -> None:
        """Environments, sbatch, and what cannot stand in a batch script."""
        for array in manifest.arrays:
            site.environment_named(array.environment)
        find("sbatch", "log in to a cluster's login node, load its Slurm, or use --cluster local")
        for array in manifest.arrays[:1]:
            self.script(root, array, site)

    def examine(
        self, site: Site, arrays: Sequence[Array], root: Path
    ) -> Generator[CheckResult, None, Capacity | None]:
        """Commands, controller, limits, the partition and its nodes, each array's script."""
        from dlperf_hpc.engines.slurm import login

        return (yield from login.examine(site, arrays, root))

    def array_bound(self, site: Site) -> int:
        """The profile's word, else the controller's, else Slurm's default. An array with more
        tasks than the site lets one submit would never be taken."""
        bound = site.max_array_size or query.max_array_size() or DEFAULT_BOUND
        return min(bound, site.max_submit or bound)

    def script(self, root: Path, array: Array, site: Site) -> str:
        """The batch script as it would be submitted."""
        from dlperf_hpc.engines.slurm.script import batch_script

        return batch_script(root, array, site)

    def submit(self, root: Path, array: Array, site: Site, program: Program) -> Response:
        """One sbatch. Where that gave no answer, the queue is searched for the array's token."""
        from dlperf_hpc.engines.slurm import script

        try:
            return Response(job_id=script.submit(root, array, site, program))
        except script.SubmissionError as error:
            response = response_to(str(error))
        if response.silence:
            try:
                job = self.find([array.token], root).get(array.token, "")
            except SiteError:
                return response
            return Response(job_id=job) if job else response
        return response

    def find(self, tokens: Collection[str], root: Path) -> dict[str, str]:
        """By the comment that a job bears, by outputs in the directory, by accounting."""
        return query.find_jobs_patiently(tokens, root)

    def states(
        self,
        root: Path,
        tasks: Sequence[Task],
        also: Sequence[Task] = (),
        insist: bool = False,
    ) -> Answer:
        """One squeue, and at most one sacct for tasks that squeue has forgotten."""
        rows = query.ask(set(map(_key, tasks)), set(map(_key, also)), insist)
        found = {task.name: _row_of(task, rows, root) for task in (*tasks, *also)}
        states = {name: _task_state(row) for name, row in found.items() if row is not None}
        return Answer(states, rows.silence)

    def live_jobs(self, ledger: Ledger) -> list[str]:
        """A whole array's job id, or single tasks' where others share its number.

        Jobs whose submission was never answered are looked for by their tokens, and no job is taken
        by its number alone.
        """
        arrays = {array.token: array for array in ledger.arrays}
        jobs = {row.job_id: arrays[row.token] for row in ledger.submissions if row.job_id}
        unsure = [array.token for array in ledger.unanswered()]
        if unsure:
            found = query.find_jobs(unsure, ledger.root)
            jobs.update({job: arrays[token] for token, job in found.items()})
        return sorted(_alive(jobs), key=int) if jobs else []

    def cancel(self, jobs: Collection[str]) -> None:
        """One scancel; SiteError with its words if it fails."""
        done = run(self.cancel_command(list(jobs)))
        if done.code != 0:
            raise SiteError(f"scancel: {done.stderr.strip() or f'exit code {done.code}'}")

    def launcher(self, environment: Environment) -> str:
        """srun's MPI plug-in."""
        return f"--mpi={environment.mpi}"

    def mpi_hint(self, environment: Environment) -> str:
        """The other plug-ins that srun has."""
        from dlperf_hpc.engines.slurm.hints import other_mpi

        return other_mpi(environment.mpi)

    def gpu_hint(self, site: Site) -> str:
        """The keys of the site profile, with the types of GPU that sinfo shows."""
        from dlperf_hpc.engines.slurm.hints import other_gpus

        return other_gpus(site)

    def queue_command(self, jobs: Sequence[str]) -> list[str]:
        """squeue of these jobs."""
        return ["squeue", "-j", ",".join(jobs)]

    def cancel_command(self, jobs: Sequence[str]) -> list[str]:
        """scancel of these jobs."""
        return ["scancel", *jobs]


def response_to(complaint: str) -> Response:
    """What sbatch's complaint means: refused; kept back by a limit, which passes as jobs end; or
    perhaps accepted all the same, for it may have died, or have given up waiting, after that."""
    line = one_line(complaint)
    if any(words in complaint for words in _LIMITS):
        return Response(limit=line)
    if "sbatch: " in complaint and not any(words in complaint for words in _NO_ANSWER):
        return Response(error=line)
    return Response(silence=line)


def one_line(complaint: str) -> str:
    """sbatch's complaint in one line: the limit's name stands in a line before the last."""
    parts = [line.partition("sbatch: error: ") for line in complaint.splitlines()]
    lines = [rest.strip() for _, mark, rest in parts if mark and rest.strip()]
    if not lines:
        lines = [line for line in complaint.splitlines() if line.strip()][-1:]
    return ": ".join(dict.fromkeys(lines[-2:])) or "sbatch failed without a word"


def _key(task: Task) -> tuple[str, int]:
    return task.job_id, task.index


def _row_of(task: Task, rows: query.Rows, root: Path) -> query.JobState | None:
    """What Slurm says of this very task. A single task that is cancelled while it waits leaves no
    trace, not even in accounting: it is missing among those of its array, never begun."""
    row = rows.tasks.get(_key(task))
    if row is not None:
        return row if row.is_of(task.array) else None
    rest = rows.rest.get(task.job_id)
    if rest is None or not rest.is_of(task.array):
        return None
    if (root / layout.JOBS / f"{task.name}.out").exists():
        return None
    return query.JobState("CANCELLED", "gone from its array before it began", "")


def _task_state(row: query.JobState) -> TaskState:
    return TaskState(
        status_of(row.state, row.reason),
        row.state,
        row.reason,
        row.nodes,
        launched=row.reason != _NOT_LAUNCHED,
    )


def _alive(jobs: Mapping[str, Array]) -> set[str]:
    return {
        job
        for (job, _), row in query.queued(sorted(jobs)).items()
        if row.is_of(jobs[job]) and _task_state(row).alive
    }


ENGINE = SlurmEngine()
