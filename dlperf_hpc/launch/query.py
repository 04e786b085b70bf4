"""What Slurm says of a sweep's jobs: one squeue, and one sacct for what squeue has forgotten."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Set
from typing import NamedTuple

from dlperf_hpc.errors import SiteError
from dlperf_hpc.launch.command import run

_INVALID = re.compile(r"invalid job id", re.IGNORECASE)


class JobState(NamedTuple):
    """One array task as the scheduler sees it."""

    state: str
    reason: str
    nodes: str


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
        fields = rest.split("|")
        parent, _, index = job.partition("_")
        if len(fields) < 3 or not parent.isdigit() or "." in job:
            continue
        for number in task_indices(index) if index else [_WHOLE]:
            tasks[parent, number] = JobState(fields[0], fields[1], fields[2])


def _said(argv: list[str], job_ids: Iterable[str]) -> Tasks:
    """What a command says of jobs; nothing if it fails: a scheduler that is down will be back."""
    tasks: Tasks = {}
    try:
        done = run([*argv, "--jobs", ",".join(job_ids)])
    except SiteError:
        return tasks
    if done.code == 0 or _INVALID.search(done.stderr):
        _rows(done.stdout, tasks)
    return tasks


def squeue(job_ids: Iterable[str]) -> Tasks:
    """Tasks of these jobs that squeue still knows; empty if it knows none or cannot be asked."""
    argv = ["squeue", "--noheader", "--array", "--states=all", "--format=%i|%T|%r|%N"]
    return _said(argv, job_ids)


def sacct(job_ids: Iterable[str]) -> Tasks:
    """Tasks that accounting knows; empty where there is none: sites without it are normal."""
    if shutil.which("sacct") is None:
        return {}
    argv = ["sacct", "--noheader", "--allocations", "--parsable2", "--array"]
    return _said([*argv, "--format=JobID,State,Reason,NodeList"], job_ids)


def max_array_size() -> int | None:
    """Slurm's bound of an array's index, plus 1; None where scontrol may not be asked."""
    try:
        done = run(["scontrol", "show", "config"])
    except SiteError:
        return None
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", done.stdout, re.MULTILINE)
    return int(found[1]) if found and int(found[1]) > 0 else None


def ask(wanted: Set[tuple[str, int]], also: Set[tuple[str, int]] = frozenset()) -> Tasks:
    """State of these (job id, index) tasks, as far as Slurm still knows; of ``also`` only what
    squeue happens to know. One squeue, at most one sacct."""
    everything = wanted | also
    if not everything or shutil.which("squeue") is None:
        return {}
    known = _of(everything, squeue(sorted({job for job, _ in everything})))
    forgotten = wanted - known.keys()
    if forgotten:
        known.update(_of(forgotten, sacct(sorted({job for job, _ in forgotten}))))
    return known


def _of(wanted: Set[tuple[str, int]], tasks: Tasks) -> Tasks:
    """Of each task its own row, else the one of its whole array."""
    keys = {key: key if key in tasks else (key[0], _WHOLE) for key in wanted}
    return {key: tasks[found] for key, found in keys.items() if found in tasks}
