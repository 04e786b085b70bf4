"""What Slurm says of a sweep's jobs, and which job an array became if its answer was lost.

States come from one squeue, and one sacct for what squeue has forgotten. A lost answer: sbatch was
killed, or timed out after the controller had accepted. Every array has a token, unique to it, which
its job bears as comment; jobs are looked for by it before anything is sent again. A job that squeue
has forgotten has left its output file.

Every row that we ask squeue for stands between two marks, the header too: what a site's wrapper
prints around them is no row, and an answer without header, or with half a row, is no answer. What
is not known must not be taken for gone.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import NamedTuple

from dlperf_hpc.engines.command import run
from dlperf_hpc.engines.slurm.hints import out_of_reach
from dlperf_hpc.engines.slurm.states import status_of
from dlperf_hpc.errors import SiteError, printable
from dlperf_hpc.files import open_regular
from dlperf_hpc.model.result import Status
from dlperf_hpc.records import layout
from dlperf_hpc.records.layout import ARRAY_MARK

_INVALID = re.compile(r"invalid job id", re.IGNORECASE)
BEGIN, END = "dlperf_row|", "|dlperf_row_ends"
_ROW = re.compile(rf"^{re.escape(BEGIN)}(.*?){re.escape(END)}$", re.MULTILINE | re.DOTALL)
_JOB = re.compile(r"([0-9]+)(?:_([][0-9,%-]+))?")
_HETEROGENEOUS = re.compile(r"[0-9]+\+[0-9]+")  # several jobs in one, which we never submit
_TOKEN = re.compile(r"dlperf-[0-9a-f]+")
_LOOKS = 4
_BETWEEN_S = 2.0  # slurmctld may still be working on a request whose sender is gone

# Index of a row that says it of all tasks: an array cancelled before its first task was split off
# is shown under its bare job id.
_WHOLE = -1


class JobState(NamedTuple):
    """One array task as squeue or sacct prints it; ``job`` is the job's name. The last three are
    squeue's alone."""

    state: str
    reason: str
    nodes: str
    job: str = ""
    comment: str = ""
    elapsed: str = ""
    limit: str = ""
    starts: str = ""

    def is_of(self, name: str, token: str) -> bool:
        """Whether this is a task of the array with that name and token, and not of a stranger that
        has its number now: in a cluster that the sweep was moved to, or after the controller began
        to count anew. Where the site keeps no comments, its name must do."""
        bare = self.comment.strip() in ("", "(null)")
        return token in self.comment or (bare and self.job == name)


Tasks = dict[tuple[str, int], JobState]

_TIME = re.compile(r"(?:([0-9]+)-)?(?:([0-9]+):)?([0-9]+):([0-9]+)", re.ASCII)


def seconds(text: str) -> int | None:
    """``1-02:03:04``, ``02:03:04`` or ``03:04`` in seconds; None for what is no length of time, as
    ``UNLIMITED``."""
    match = _TIME.fullmatch(text.strip())
    if match is None:
        return None
    days, hours, minutes, rest = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest


def task_indices(text: str) -> Iterator[int]:
    """Indices of a task id as Slurm prints it: ``3``, ``[1-9%4]``, ``[0,2-4]``."""
    for part in text.strip("[]").split("%")[0].split(","):
        low, _, high = part.partition("-")
        if low.isdigit() and (not high or high.isdigit()):
            yield from range(int(low), int(high or low) + 1)


def _squeue(fields: str, *options: str) -> list[list[str]]:
    """The fields of each row; SiteError if squeue cannot be asked, or cannot be understood."""
    done = run(["squeue", *options, f"--format={BEGIN}{fields}{END}"])
    if done.code != 0 and _INVALID.search(done.stderr):
        return []
    if done.code != 0:
        words = (done.stderr.strip() or f"exit code {done.code}").splitlines()[-1]
        to_do = out_of_reach(done.stderr)
        raise SiteError(f"squeue: {words}" + (f" ({to_do})" if to_do else ""))
    return marked_rows(done.stdout, fields.count("|") + 1)


def marked_rows(text: str, count: int) -> list[list[str]]:
    """What stands between our marks, less the header; the last of ``count`` fields may hold
    anything. SiteError for text that squeue does not print."""
    rows = [row.split("|", count - 1) for row in _ROW.findall(text)]
    header = bool(rows) and not rows[0][0][:1].isdigit()
    if not header or len(rows) != text.count(BEGIN) or any(len(row) != count for row in rows):
        begin = printable(text[:500])[:80] or "nothing"
        raise SiteError(f"squeue: its answer cannot be understood ({begin})")
    return rows[1:]


def queued(job_ids: Iterable[str]) -> Tasks:
    """Tasks of these jobs that squeue still knows; SiteError if it cannot be asked, or if an id is
    none of Slurm's: squeue then says nothing of the others either."""
    asked = list(job_ids)
    strange = [job for job in asked if not (job.isascii() and job.isdigit())]
    if strange:
        raise SiteError(
            f"squeue: {printable(strange[0])} is no job id of Slurm's; correct or remove the line"
            f" of {layout.SUBMISSIONS} that has it"
        )
    options = ("--array", "--states=all", "--jobs", ",".join(asked))
    tasks: Tasks = {}
    for row in _squeue("%i|%T|%r|%N|%M|%l|%S|%j|%k", *options):
        job, state, reason, nodes, *times, name, comment = row
        found = _JOB.fullmatch(job)
        indices = list(task_indices(found[2] or "")) if found else []
        if found and (indices or not found[2]):
            task = JobState(state, reason, nodes, name, comment, *times)
            tasks.update({(found[1], index): task for index in indices or [_WHOLE]})
        elif not _HETEROGENEOUS.fullmatch(job):
            raise SiteError(f"squeue: {printable(job)[:80]} is no job id")
    return tasks


def accounted(job_ids: Iterable[str]) -> Tasks:
    """Tasks that accounting knows; empty where there is none: sites without it are normal."""
    if shutil.which("sacct") is None:
        return {}
    # Waiting tasks come as 12_[3,5-9]: --array, which would part them, is newer than 22.05.
    argv = ["sacct", "--noheader", "--allocations", "--parsable2", "--jobs", ",".join(job_ids)]
    tasks: Tasks = {}
    try:
        done = run([*argv, "--format=JobID,State,Reason,NodeList,JobName,Comment"])
    except SiteError:
        return {}
    if done.code == 0:
        _rows(done.stdout, tasks)
    return tasks


def _rows(text: str, tasks: Tasks) -> None:
    """sacct's rows: what cannot be read is passed over, for only what squeue does not know is
    looked for among them."""
    for line in text.splitlines():
        job, _, rest = line.partition("|")
        fields = rest.split("|", 4)
        parent, _, index = job.partition("_")
        if len(fields) < 3 or not parent.isdigit() or "." in job:
            continue
        for number in task_indices(index) if index else [_WHOLE]:
            tasks[parent, number] = JobState(*fields)


def count_mine() -> int | None:
    """How many tasks of this user wait or run; None if squeue cannot be asked."""
    try:
        return len(_squeue("%i", "--me", "--array"))
    except SiteError:
        return None


def states_of_job(job: str) -> list[str]:
    """The states of all tasks of a job, or of the one task that ``4711_3`` names; none if neither
    squeue nor accounting knows it. SiteError if squeue cannot be asked."""
    rows = _squeue("%i|%T", "--array", "--states=all", "--jobs", job)
    return [state for _, state in rows] or [row.state for row in accounted([job]).values()]


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
    rows = sorted(in_queue(wanted), key=lambda row: row[2])  # of two jobs, the one that lives
    found = {token: job for job, token, _ in rows}
    if wanted - found.keys():
        found.update(in_outputs(root, wanted - found.keys()))
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


def in_queue(tokens: Set[str]) -> list[tuple[str, str, bool]]:
    """Job id, token, and whether it waits or runs, of this user's jobs that bear one of these
    tokens; a site's plug-in may have added words of its own to the comment."""
    return [
        (job.strip(), token, status_of(state) in (Status.PENDING, Status.RUNNING))
        for job, state, comment in _squeue("%F|%T|%k", "--me", "--states=all")
        for token in tokens & set(_TOKEN.findall(comment))
    ]


def in_outputs(root: Path, tokens: Set[str]) -> dict[str, str]:
    """Job id of each array of which a task has begun, by token, which its output's first lines
    name."""
    found = {}
    for path in sorted((root / layout.JOBS).glob("*_*.out")):
        try:
            with open_regular(path) as file:
                head = file.read(4096).decode("utf-8", errors="replace")
            marked = re.search(rf"^{ARRAY_MARK} (\S+)$", head, re.MULTILINE)
        except OSError:
            continue
        job = path.name.partition("_")[0]
        if marked and marked[1] in tokens and job.isdigit():
            found[marked[1]] = job
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
