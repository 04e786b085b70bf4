"""Slurm: arrays through sbatch, states from squeue and sacct, ranks under srun."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dlperf_hpc.engines import base
from dlperf_hpc.engines.base import Answer, Capacity, CheckResult, Nodes, Response, TaskState
from dlperf_hpc.engines.slurm import query, remedies
from dlperf_hpc.engines.slurm.query import status_of
from dlperf_hpc.errors import Issue, SiteError, SpecError
from dlperf_hpc.files import user_name
from dlperf_hpc.model.result import Status
from dlperf_hpc.records import layout
from dlperf_hpc.records.manifest import by_environment

if TYPE_CHECKING:
    from dlperf_hpc.engines.site import Environment, Site
    from dlperf_hpc.records.ledger import Task
    from dlperf_hpc.records.manifest import Array, Manifest, Submission

# Its words when it did not hear whether the job was taken.
_NO_ANSWER = (
    *("timed out", "Unable to contact", "Zero Bytes", "Connection refused", "Connection reset"),
    *("Communication connection failure", "standby mode", "Resource temporarily unavailable"),
)
# What sbatch prints with --parsable, in a federation with the cluster's name, and without it.
_ANSWER = re.compile(
    r"([0-9]+)(?:;[\w.-]+)?|Submitted batch job ([0-9]+)(?: on cluster [\w.-]+)?", re.ASCII
)
_STARTS = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}", re.ASCII)
_QUEUE_FORMAT = "%14i %26j %2t %10M %10L %4D %R"  # for squeue, which cuts names to 8 characters
_NOT_LAUNCHED = "JobLaunchFailure"  # mostly, the output file cannot be opened on the node


class SlurmEngine(base.Engine):
    """Arrays of a cluster's scheduler. submitit is loaded only where a script is written."""

    name = "slurm"
    title = "Slurm"

    def present(self) -> bool:
        """Whether sbatch is on the PATH."""
        return shutil.which("sbatch") is not None

    def check(self, manifest: Manifest, site: Site, root: Path) -> None:
        """Environments, sbatch, and what cannot stand in a batch script."""
        for name in by_environment(manifest.arrays):
            site.environment_named(name)
        if not self.present():
            to_do = "log in to a cluster's login node, load its Slurm, or use --cluster local"
            raise SiteError(f"sbatch: not on the PATH of this machine; {to_do}")
        from dlperf_hpc.engines.slurm.script import check

        for array in manifest.arrays[:1]:
            check(root, array, site)

    def examine(
        self, site: Site, arrays: Sequence[Array], root: Path
    ) -> Generator[CheckResult, None, Capacity | None]:
        """Commands, controller, limits, the partition and its nodes, each array's script."""
        from dlperf_hpc.engines.slurm import login

        return (yield from login.examine(site, arrays, root))

    def preflight(self, site: Site, arrays: Sequence[Array]) -> Iterator[CheckResult]:
        """Whether there is such a partition, and whether srun has such MPI plug-ins."""
        plugins = [site.environment_named(name).mpi for name in by_environment(arrays)]
        yield from remedies.missing_partitions(site.partition)
        yield from remedies.missing_plugins(dict.fromkeys(plugins))

    def nodes(self, site: Site, among: str = "") -> Nodes:
        """What sinfo shows of the partition's nodes."""
        from dlperf_hpc.engines.slurm import login

        return login.nodes_of(site, among)

    def on_nodes(self, site: Site, nodes: Sequence[str]) -> Site:
        """sbatch's ``--nodelist``, in place of the profile's own."""
        options = {
            name: value
            for name, value in site.sbatch.items()
            if not ("nodelist".startswith(name) and name.startswith("nodel"))
        }
        return site.model_copy(update={"sbatch": {**options, "nodelist": ",".join(nodes)}})

    def array_bound(self, site: Site) -> int:
        """The profile's word, else the controller's, else Slurm's default. An array with more
        tasks than the site lets one submit would never be taken."""
        bound = site.max_array_size or remedies.number("MaxArraySize") or base.DEFAULT_BOUND
        return min(bound, site.max_submit or bound)

    def script(self, root: Path, array: Array, site: Site, bound: str = "") -> str:
        """The batch script as it would be submitted."""
        from dlperf_hpc.engines.slurm.script import batch_script

        return batch_script(root, array, site, base.run_program(root, array, bound))

    def submit(self, root: Path, array: Array, site: Site, program: base.TaskProgram) -> Response:
        """One sbatch. Without a certain answer the queue is searched for the array's token."""
        from dlperf_hpc.engines.slurm import script

        def job_in(answer: str) -> str:
            return job_id_in(answer) or self._found(array, root, among=possible_ids(answer))

        try:
            return Response(job_id=script.submit(root, array, site, program, job_in))
        except script.SubmissionError as error:
            response = response_to(str(error))
        if response.silence and (job := self._found(array, root)):
            return Response(job_id=job)
        return response

    def _found(self, array: Array, root: Path, among: Collection[str] = ()) -> str:
        """The array's job id by its token; where the site does not keep comments as they were
        given, the only one of these that bears its name. '' if that cannot be known."""
        try:
            if job := self.find([array.token], root).get(array.token):
                return job
            rows = query.queued(among) if among else {}
            jobs = {job for (job, _), row in rows.items() if row.job == array.name}
        except SiteError:
            return ""
        return jobs.pop() if len(jobs) == 1 else ""

    def starting_after(self, site: Site, jobs: Sequence[str]) -> Site:
        """sbatch's ``--dependency``, beside one that the profile's own ``sbatch`` table has.
        SpecError where that table's dependency is one of several."""
        if not jobs:
            return site
        # sbatch understands abbreviations.
        own = [name for name in site.sbatch if "dependency".startswith(name.replace("_", "-"))]
        earlier = [str(site.sbatch[name]) for name in own]
        if any("?" in words for words in earlier):
            message = f"{', '.join(earlier)} ('?': any of these), and a job is to wait for others"
            hint = "sbatch takes one or the other: leave out --after (or --report), or this key"
            raise SpecError("site profile", [Issue(f"sbatch.{own[0]}", message, hint)])
        options = {name: value for name, value in site.sbatch.items() if name not in own}
        options["dependency"] = ",".join([*earlier, ":".join(["afterany", *jobs])])
        return site.model_copy(update={"sbatch": options})

    def lives(self, job: str) -> bool | None:
        """What squeue says of it, else accounting."""
        states = query.states_of_job(job)
        return any(map(query.lives, states)) if states else None

    limit_behind = staticmethod(remedies.limit_behind)
    out_of_reach = staticmethod(query.out_of_reach)
    find = staticmethod(query.find_jobs)

    def states(
        self, root: Path, tasks: Sequence[Task], also: Sequence[Task] = (), insist: bool = False
    ) -> Answer:
        """One squeue, and at most one sacct for tasks that squeue has forgotten."""
        wanted, more = ({(task.job_id, task.index) for task in each} for each in (tasks, also))
        rows = query.ask(wanted, more, insist)
        found = {task.name: _row_of(task, rows, root) for task in (*tasks, *also)}
        states = {name: _task_state(row) for name, row in found.items() if row is not None}
        return Answer(states, rows.silence)

    def live_jobs(self, root: Path, submissions: Sequence[Submission]) -> list[str]:
        """Job ids of whole arrays. No job is taken by its number alone; where none is alive under
        the number that was noted, if any was, it is looked for by the array's token."""
        names = {row.token: row.array for row in submissions}
        noted = [row for row in submissions if row.job_id]
        jobs = _alive((row.job_id, row.array, row.token) for row in noted)
        mine = {job for job, uid in jobs.items() if uid in ("", str(os.getuid()))}
        if left := names.keys() - {row.token for row in noted if row.job_id in mine}:
            jobs |= {job: "" for job, _, alive in query.in_queue(left) if alive}
        if unsure := left - {row.token for row in noted}:  # begun where comments are not kept
            found = query.in_outputs(root, unsure)
            jobs |= _alive((job, names[token], token) for token, job in found.items())
        return sorted(jobs, key=int)

    def foreign(self, jobs: Collection[str]) -> dict[str, str]:
        """By the uid that squeue shows. root can cancel what is anybody's."""
        rows = query.queued(sorted(jobs)) if jobs and os.getuid() else {}
        uids = {job: int(row.uid) for (job, _), row in rows.items() if row.uid.isdigit()}
        return {job: user_name(uid) for job, uid in uids.items() if uid != os.getuid()}

    def cancel(self, jobs: Collection[str]) -> None:
        """One scancel; SiteError with its words if it fails."""
        done = base.run(self.cancel_command(list(jobs)))
        if done.returncode != 0:
            raise SiteError(f"scancel: {done.stderr.strip() or f'exit code {done.returncode}'}")

    def to_do(self, state: TaskState) -> str:
        """By the reason that squeue gives; of what has ended that is the one it had waited for."""
        waits = state.status in (Status.PENDING, Status.REJECTED)
        return query.to_do_of(state.reason) if waits else ""

    def launcher(self, environment: Environment) -> str:
        """srun's MPI plug-in."""
        return f"--mpi={environment.mpi}"

    def mpi_hint(self, environment: Environment) -> str:
        """The other plug-ins that srun has."""
        return remedies.other_mpi(environment.mpi)

    gpu_hint = staticmethod(remedies.other_gpus)

    def queue_command(self, jobs: Sequence[str]) -> list[str]:
        """squeue of these jobs, with as much of their names as tells them apart, the time that each
        has run and may still run, and its nodes or why it waits; else of all this user's."""
        if not jobs:
            return ["squeue", "--me", "-o", "'%A %j %k'"]
        return ["squeue", "-j", ",".join(jobs), f"--format='{_QUEUE_FORMAT}'"]

    def cancel_command(self, jobs: Sequence[str]) -> list[str]:
        """scancel of these jobs."""
        return ["scancel", *jobs]


def response_to(complaint: str) -> Response:
    """What sbatch's complaint means: refused; kept back by a limit, which passes as jobs end; or
    perhaps accepted all the same, for it may have died, or have given up waiting, after that."""
    line = one_line(complaint)
    kept_back = any(words in complaint for words in remedies.LIMITS)
    if kept_back or any(each.search(complaint) for each in (query.NO_CONFIGURATION, query.RATE)):
        return Response(limit=line)
    if "sbatch: " in complaint and not any(words in complaint for words in _NO_ANSWER):
        return Response(error=line)
    return Response(silence=line)


def job_id_in(answer: str) -> str:
    """The job id in what ``sbatch --parsable`` printed, if it printed nothing else. Among a site's
    own words, which may name other jobs, it is not certain: ''."""
    found = _ANSWER.fullmatch(answer.strip())
    return found[1] or found[2] if found else ""


def possible_ids(answer: str) -> list[str]:
    """Job ids in those lines of an answer that sbatch may have printed."""
    return list(dict.fromkeys(filter(None, map(job_id_in, answer.splitlines()))))


def one_line(complaint: str) -> str:
    """sbatch's complaint in one line: the limit's name stands in a line before the last."""
    parts = [line.partition("sbatch: error: ") for line in complaint.splitlines()]
    lines = [rest.strip() for _, mark, rest in parts if mark and rest.strip()]
    if not lines:
        lines = [line for line in complaint.splitlines() if line.strip()][-1:]
    return ": ".join(dict.fromkeys(lines[-2:])) or "sbatch failed without a word"


def _row_of(task: Task, rows: query.Rows, root: Path) -> query.JobState | None:
    """What Slurm says of this very task. A single task that is cancelled while it waits leaves no
    trace, not even in accounting: it is missing among those of its array, never begun."""
    own = rows.tasks.get((task.job_id, task.index))
    row = own or rows.rest.get(task.job_id)
    if row is None or not row.is_of(task.array.name, task.array.token):
        return None
    if own or (root / layout.JOBS / f"{task.name}.out").exists():
        return own
    return query.JobState("CANCELLED", "gone from its array before it began", "")


def _task_state(row: query.JobState) -> TaskState:
    return TaskState(
        status_of(row.state, row.reason),
        row.state,
        row.reason,
        row.nodes,
        launched=row.reason != _NOT_LAUNCHED,
        elapsed_s=query.seconds(row.elapsed),
        limit_s=query.seconds(row.limit),
        starts=row.starts if _STARTS.fullmatch(row.starts) else "",
    )


def _alive(jobs: Iterable[tuple[str, str, str]]) -> dict[str, str]:
    """Which of these jobs (job id, name, token) wait or run under these, and their uids."""
    jobs = list(jobs)
    rows = query.queued(sorted({job for job, _, _ in jobs})) if jobs else {}
    alive = [(job, row) for (job, _), row in rows.items() if _task_state(row).alive]
    return {
        job: row.uid
        for job, name, token in jobs
        for at, row in alive
        if at == job and row.is_of(name, token)
    }


ENGINE = SlurmEngine()
