"""What Slurm says of a sweep's jobs, and which job an array became if its answer was lost.

States come from one squeue, and one sacct for what squeue has forgotten. A lost answer: sbatch was
killed, or timed out after the controller had accepted. Every array has a token, unique to it, which
its job bears as comment; jobs are looked for by it before anything is sent again. A job that squeue
has forgotten has left its output file.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import NamedTuple

from dlperf_hpc.engines.command import run
from dlperf_hpc.errors import SiteError
from dlperf_hpc.files import open_regular
from dlperf_hpc.records import layout
from dlperf_hpc.records.manifest import Array
from dlperf_hpc.records.task import ARRAY_MARK

_INVALID = re.compile(r"invalid job id", re.IGNORECASE)
_PATIENCE_S = 20.0
_TOKEN = re.compile(r"dlperf-[0-9a-f]+")
_LOOKS = 4
_BETWEEN_S = 2.0  # slurmctld may still be working on a request whose sender is gone

# Index of a row that says it of all tasks: an array cancelled before its first task was split off
# is shown under its bare job id.
_WHOLE = -1


class JobState(NamedTuple):
    """One array task as squeue or sacct prints it; ``job`` is the job's name."""

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


def _ask(argv: list[str], job_ids: Iterable[str]) -> Tasks:
    """The tasks that a command prints of these jobs; SiteError if it has no answer."""
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
    return _ask(argv, job_ids)


def accounted(job_ids: Iterable[str]) -> Tasks:
    """Tasks that accounting knows; empty where there is none: sites without it are normal."""
    if shutil.which("sacct") is None:
        return {}
    # Waiting tasks come as 12_[3,5-9]: --array, which would part them, is newer than 22.05.
    argv = ["sacct", "--noheader", "--allocations", "--parsable2"]
    try:
        return _ask([*argv, "--format=JobID,State,Reason,NodeList,JobName,Comment"], job_ids)
    except SiteError:
        return {}


def max_array_size() -> int | None:
    """Slurm's bound of an array's index, plus 1; None where scontrol may not be asked."""
    try:
        done = run(["scontrol", "show", "config"], timeout_s=_PATIENCE_S)
    except SiteError:
        return None
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", done.stdout, re.MULTILINE)
    return int(found[1]) if found and int(found[1]) > 0 else None


class Rows(NamedTuple):
    """What Slurm printed. ``rest`` is some task of each job that squeue knows; ``silence`` is why
    squeue could not be asked, '' if it could."""

    tasks: Tasks
    rest: Mapping[str, JobState] = {}
    silence: str = ""


def ask(
    wanted: Set[tuple[str, int]], also: Set[tuple[str, int]] = frozenset(), insist: bool = False
) -> Rows:
    """State of these (job id, index) tasks, as far as Slurm still knows; of ``also`` only what
    squeue happens to know. One squeue, at most one sacct. With ``insist`` SiteError if squeue
    cannot be asked."""
    everything = wanted | also
    if not everything:
        return Rows({})
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
        known.update(_of(forgotten, accounted(sorted({job for job, _ in forgotten}))))
    return Rows(known, {job: task for (job, _), task in rows.items()}, silence)


def _of(wanted: Set[tuple[str, int]], tasks: Tasks) -> Tasks:
    """Of each task its own row, else the one of its whole array."""
    keys = {key: key if key in tasks else (key[0], _WHOLE) for key in wanted}
    return {key: tasks[found] for key, found in keys.items() if found in tasks}


def find_jobs(tokens: Iterable[str], root: Path, accounting: bool = True) -> dict[str, str]:
    """Job id of each of these arrays that the scheduler, or the directory, knows; by token.

    ``accounting`` is asked last, for what nobody else knows. SiteError if the scheduler cannot be
    asked: what is not known must not be submitted again.
    """
    wanted = set(tokens)
    found = {token: job for token, job in _tokens_in_queue().items() if token in wanted}
    if wanted - found.keys():
        found.update(_tokens_in_outputs(root, wanted - found.keys()))
    if accounting and wanted - found.keys():
        found.update(_tokens_in_accounting(wanted - found.keys()))
    return found


def find_jobs_patiently(tokens: Collection[str], root: Path) -> dict[str, str]:
    """As :func:`find_jobs`, looking again for a while: an absent job may be a late one."""
    for look in range(_LOOKS):
        if look:
            time.sleep(_BETWEEN_S)
        found = find_jobs(tokens, root, accounting=look == _LOOKS - 1)
        if len(found) == len(tokens):
            break
    return found


def _tokens_in_queue() -> dict[str, str]:
    done = run(["squeue", "--noheader", "--me", "--states=all", "--format=%F|%k"])
    if done.code != 0:
        raise SiteError(
            f"squeue: {(done.stderr.strip() or 'no answer').splitlines()[-1]}; nothing was"
            " submitted, because the jobs that the scheduler already has are not known"
        )
    found = {}
    for line in done.stdout.splitlines():
        job, _, comment = line.partition("|")
        # A site's plug-in may have added words of its own.
        found.update({token: job.strip() for token in _TOKEN.findall(comment)})
    return found


def _tokens_in_outputs(root: Path, tokens: Set[str]) -> dict[str, str]:
    """Where a task of the array has begun: the first lines of its output name its token."""
    found = {}
    for path in sorted((root / layout.JOBS).glob("*_*.out")):
        try:
            with open_regular(path) as file:
                head = file.read(4096).decode("utf-8", errors="replace")
            marked = re.search(rf"^{ARRAY_MARK} (\S+)$", head, re.MULTILINE)
        except OSError:
            continue
        if marked and marked[1] in tokens:
            found[marked[1]] = path.name.partition("_")[0]
    return found


def _tokens_in_accounting(tokens: Set[str]) -> dict[str, str]:
    """What accounting knows, where it keeps comments (AccountingStoreFlags=job_comment)."""
    if shutil.which("sacct") is None:
        return {}
    argv = ["sacct", "--noheader", "--allocations", "--parsable2"]
    done = run([*argv, "--starttime=now-30days", "--format=JobID,Comment"])
    found = {}
    for line in done.stdout.splitlines() if done.code == 0 else []:
        job, _, comment = line.partition("|")
        for token in tokens & set(_TOKEN.findall(comment)):
            found[token] = job.partition("_")[0]
    return found
