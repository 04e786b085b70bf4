"""Which of a sweep's jobs are alive, and their end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dlperf_hpc.errors import LedgerError, SiteError
from dlperf_hpc.launch.adopt import jobs_by_token
from dlperf_hpc.launch.command import run
from dlperf_hpc.launch.query import queued
from dlperf_hpc.launch.states import status_of
from dlperf_hpc.records.ledger import Ledger
from dlperf_hpc.records.manifest import Array
from dlperf_hpc.records.status import Status

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
