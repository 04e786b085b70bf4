"""Which of a sweep's jobs are alive, and their end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from dlperf_hpc.errors import LedgerError, SiteError
from dlperf_hpc.launch.adopt import jobs_by_token
from dlperf_hpc.launch.command import run
from dlperf_hpc.launch.query import squeue
from dlperf_hpc.launch.states import status_of
from dlperf_hpc.records.ledger import Ledger
from dlperf_hpc.records.status import Status


def live_tasks(ledger: Ledger) -> list[str]:
    """Job ids to cancel: a whole array's, or single tasks' where others share its number.

    Jobs whose submission was never answered are looked for by their tokens. LedgerError for a
    sweep of the local engine: that one ends with Ctrl-C.
    """
    if ledger.manifest.engine != "slurm":
        raise LedgerError(
            f"{ledger.root}: its runs are not Slurm's; the sweep that runs them ends with Ctrl-C"
        )
    known = {array.token: ledger.outcome(array) for array in ledger.arrays}
    jobs = {was.job_id for was in known.values() if was is not None and was.job_id}
    unsure = [a for a in ledger.arrays if (was := known[a.token]) and not (was.job_id or was.error)]
    if unsure:
        jobs.update(jobs_by_token(unsure, ledger.root).values())
    return sorted(_alive(jobs), key=int) if jobs else []


def _alive(jobs: Iterable[str]) -> set[str]:
    states = defaultdict(set)
    for (job, _), task in squeue(sorted(jobs)).items():
        states[job].add(status_of(task.state, task.reason))
    waiting = {Status.PENDING, Status.RUNNING, Status.REJECTED}
    return {job for job, seen in states.items() if seen & waiting}


def cancel(jobs: Sequence[str]) -> None:
    """One scancel; SiteError with its words if it fails."""
    done = run(["scancel", *jobs])
    if done.code != 0:
        raise SiteError(f"scancel: {done.stderr.strip() or f'exit code {done.code}'}")
