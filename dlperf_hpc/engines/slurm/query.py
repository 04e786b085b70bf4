"""What Slurm says of a sweep's jobs: one squeue, and one sacct for what squeue has forgotten."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import NamedTuple

from dlperf_hpc.engines.command import run
from dlperf_hpc.errors import SiteError
from dlperf_hpc.records.manifest import Array

_INVALID = re.compile(r"invalid job id", re.IGNORECASE)


class JobState(NamedTuple):
    """One array task as the scheduler sees it. ``job`` is its name, ``comment`` what it bears."""

    state: str
    reason: str
    nodes: str
    job: str = ""
    comment: str = ""

    def is_of(self, array: Array) -> bool:
        """Whether this is a task of that array, and not of a stranger that has its number now:
        in a cluster that the sweep was moved to, or after the controller began to count anew."""
        bare = self.comment.strip() in ("", "(null)")
        return array.token in self.comment or (bare and self.job == array.name)


Tasks = dict[tuple[str, int], JobState]

# Index of a row that says it of all tasks: an array cancelled before its first task was split off
# is shown under its bare job id.
_WHOLE = -1


def task_indices(text: str) -> Iterator[int]:
    """Indices of a task id as Slurm prints it: ``3``, ``[1-9%4]``, ``[0,2-4]``."""
    for part in text.strip("[]").split("%")[0].split(","):
        low, _, high = part.partition("-")
        if low.isdigit() and (not high or high.isdigit()):
            yield from range(int(low), int(high or low) + 1)


def _rows(text: str, tasks: Tasks) -> None:
    for line in text.splitlines():
        job, _, rest = line.partition("|")
        fields = rest.split("|", len(JobState._fields) - 1)
        parent, _, index = job.partition("_")
        if len(fields) < 3 or not parent.isdigit() or "." in job:
            continue
        for number in task_indices(index) if index else [_WHOLE]:
            tasks[parent, number] = JobState(*fields)


def _said(argv: list[str], job_ids: Iterable[str]) -> Tasks:
    """What a command says of jobs; SiteError if it has no answer."""
    done = run([*argv, "--jobs", ",".join(job_ids)])
    if done.code != 0 and not _INVALID.search(done.stderr):
        words = (done.stderr.strip() or f"exit code {done.code}").splitlines()[-1]
        raise SiteError(f"{argv[0]}: {words}")
    tasks: Tasks = {}
    _rows(done.stdout, tasks)
    return tasks


def queued(job_ids: Iterable[str]) -> Tasks:
    """Tasks of these jobs that squeue still knows; SiteError if it cannot be asked."""
    argv = ["squeue", "--noheader", "--array", "--states=all", "--format=%i|%T|%r|%N|%j|%k"]
    return _said(argv, job_ids)


def squeue(job_ids: Iterable[str]) -> Tasks:
    """The same; empty if it cannot be asked: a scheduler that is down will be back."""
    try:
        return queued(job_ids)
    except SiteError:
        return {}


def sacct(job_ids: Iterable[str]) -> Tasks:
    """Tasks that accounting knows; empty where there is none: sites without it are normal."""
    if shutil.which("sacct") is None:
        return {}
    # Waiting tasks come as 12_[3,5-9]: --array, which would part them, is newer than 22.05.
    argv = ["sacct", "--noheader", "--allocations", "--parsable2"]
    try:
        return _said([*argv, "--format=JobID,State,Reason,NodeList,JobName,Comment"], job_ids)
    except SiteError:
        return {}


def max_array_size() -> int | None:
    """Slurm's bound of an array's index, plus 1; None where scontrol may not be asked."""
    try:
        done = run(["scontrol", "show", "config"])
    except SiteError:
        return None
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", done.stdout, re.MULTILINE)
    return int(found[1]) if found and int(found[1]) > 0 else None


class Answer(NamedTuple):
    """What Slurm said. ``rest``: some task of each job that squeue knows.
    ``silence`` is why squeue could not be asked, '' if it could: what it knows nothing of has
    ended, what it could not be asked of may still run."""

    tasks: Tasks
    rest: Mapping[str, JobState] = {}
    silence: str = ""


def ask(
    wanted: Set[tuple[str, int]], also: Set[tuple[str, int]] = frozenset(), insist: bool = False
) -> Answer:
    """State of these (job id, index) tasks, as far as Slurm still knows; of ``also`` only what
    squeue happens to know. One squeue, at most one sacct. With ``insist`` SiteError if squeue
    cannot be asked."""
    everything = wanted | also
    if not everything:
        return Answer({})
    rows: Tasks = {}
    silence = ""
    try:
        rows = queued(sorted({job for job, _ in everything}))
    except SiteError as error:
        silence = str(error)
        if insist:
            raise
    known = _of(everything, rows)
    forgotten = wanted - known.keys()
    if forgotten:
        known.update(_of(forgotten, sacct(sorted({job for job, _ in forgotten}))))
    return Answer(known, {job: task for (job, _), task in rows.items()}, silence)


def _of(wanted: Set[tuple[str, int]], tasks: Tasks) -> Tasks:
    """Of each task its own row, else the one of its whole array."""
    keys = {key: key if key in tasks else (key[0], _WHOLE) for key in wanted}
    return {key: tasks[found] for key, found in keys.items() if found in tasks}
