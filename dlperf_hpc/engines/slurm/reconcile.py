"""Finding a job whose answer was lost: sbatch was killed, or timed out after it was accepted.

Every array has a token, unique to it, which its job bears as comment; submissions are looked for
by it before anything is sent again. A job that squeue has forgotten has left its output file.

Which of a sweep's jobs are alive, and their end.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from pathlib import Path

from dlperf_hpc.engines.command import run
from dlperf_hpc.engines.slurm.query import queued
from dlperf_hpc.engines.slurm.states import status_of
from dlperf_hpc.errors import LedgerError, SiteError
from dlperf_hpc.records import layout
from dlperf_hpc.records.ledger import Ledger
from dlperf_hpc.records.manifest import Array
from dlperf_hpc.records.status import Status
from dlperf_hpc.records.task import ARRAY_MARK

_TOKEN = re.compile(r"dlperf-[0-9a-f]+")
_LOOKS = 4
_BETWEEN_S = 2.0  # slurmctld may still be working on a request whose sender is gone


def jobs_by_token(tokens: Iterable[str], root: Path, accounting: bool = True) -> dict[str, str]:
    """Job id of each of these arrays that the scheduler, or the directory, knows; by token.

    ``accounting`` is asked last, for what nobody else knows. SiteError if the scheduler cannot be
    asked: what is not known must not be submitted again.
    """
    wanted = set(tokens)
    found = {token: job for token, job in _queue().items() if token in wanted}
    if wanted - found.keys():
        found.update(_by_output(root, wanted - found.keys()))
    if accounting and wanted - found.keys():
        found.update(_accounted(wanted - found.keys()))
    return found


def find_jobs_patiently(tokens: Collection[str], root: Path) -> dict[str, str]:
    """The same, looking again for a while: an absent job may be a late one."""
    for look in range(_LOOKS):
        if look:
            time.sleep(_BETWEEN_S)
        found = jobs_by_token(tokens, root, accounting=look == _LOOKS - 1)
        if len(found) == len(tokens):
            break
    return found


def _queue() -> dict[str, str]:
    done = run(["squeue", "--noheader", "--me", "--states=all", "--format=%F|%k"])
    if done.code != 0:
        raise SiteError(
            f"squeue: {(done.stderr.strip() or 'no answer').splitlines()[-1]}; nothing was"
            " submitted: what the scheduler has already must be known first"
        )
    found = {}
    for line in done.stdout.splitlines():
        job, _, comment = line.partition("|")
        # A site's plug-in may have added words of its own.
        found.update({token: job.strip() for token in _TOKEN.findall(comment)})
    return found


def _by_output(root: Path, tokens: Set[str]) -> dict[str, str]:
    """Where a task of the array has begun: the first lines of its output name its token."""
    found = {}
    for path in sorted((root / layout.JOBS).glob("*_*.out")):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                marked = re.search(rf"^{ARRAY_MARK} (\S+)$", file.read(4096), re.MULTILINE)
        except OSError:
            continue
        if marked and marked[1] in tokens:
            found[marked[1]] = path.name.partition("_")[0]
    return found


def _accounted(tokens: Set[str]) -> dict[str, str]:
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


_WAITS_OR_RUNS = (Status.PENDING, Status.RUNNING, Status.REJECTED)


def live_tasks(ledger: Ledger) -> list[str]:
    """Job ids to cancel: a whole array's, or single tasks' where others share its number.

    Jobs whose submission was never answered are looked for by their tokens, and no job is
    taken by its number alone. LedgerError for a sweep of the local engine: that one ends with
    Ctrl-C. SiteError if squeue cannot be asked.
    """
    if ledger.manifest.engine != "slurm":
        raise LedgerError(
            f"{ledger.root}: its runs are not Slurm's; the sweep that runs them ends with Ctrl-C"
        )
    arrays = {array.token: array for array in ledger.arrays}
    jobs = {row.job_id: arrays[row.token] for row in ledger.submissions if row.job_id}
    unsure = [array.token for array in ledger.unanswered()]
    if unsure:
        found = jobs_by_token(unsure, ledger.root)
        jobs.update({job: arrays[token] for token, job in found.items()})
    return sorted(_alive(jobs), key=int) if jobs else []


def _alive(jobs: Mapping[str, Array]) -> set[str]:
    return {
        job
        for (job, _), task in queued(sorted(jobs)).items()
        if task.is_of(jobs[job]) and status_of(task.state, task.reason) in _WAITS_OR_RUNS
    }


def cancel(jobs: Sequence[str]) -> None:
    """One scancel; SiteError with its words if it fails."""
    done = run(["scancel", *jobs])
    if done.code != 0:
        raise SiteError(f"scancel: {done.stderr.strip() or f'exit code {done.code}'}")
