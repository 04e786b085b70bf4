"""How a sweep stands: disk first, the scheduler for the rest, its final words kept."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from dlperf_hpc.launch.query import JobState, ask
from dlperf_hpc.launch.states import status_of
from dlperf_hpc.records.collect import Collection, quick_result, quick_results
from dlperf_hpc.records.manifest import Manifest, Verdict, add_verdict, read_submissions
from dlperf_hpc.records.results import RunResult
from dlperf_hpc.records.status import Status


def _jobs(root: Path, manifest: Manifest) -> dict[str, tuple[str, int]]:
    """(job id, index) of every submitted run, by run id; the latest submission counts."""
    job_of = {s.array: s.job_id for s in read_submissions(root) if s.job_id}
    return {
        run.id: (job_of[array.name], index)
        for array in manifest.arrays
        if array.name in job_of
        for index, run in enumerate(array.tasks)
    }


def _judged(result: RunResult, task: JobState | None) -> RunResult:
    if task is None:
        reason = f"{result.reason}; the scheduler says nothing of it"
        return replace(result, status=Status.UNKNOWN, reason=reason)
    status = status_of(task.state, task.reason)
    where = f" on {task.nodes}" if task.nodes else ""
    why = f" ({task.reason})" if task.reason not in ("", "None") else ""
    reason = f"Slurm: {task.state}{why}{where}"
    if status is Status.UNKNOWN:
        reason += "; no record on disk yet"
    return replace(result, status=status, reason=reason, source="scheduler")


def current(root: Path, ask_scheduler: bool = True) -> Collection:
    """Every run's state. What the scheduler says finally of a run is kept in the directory."""
    collection = quick_results(root)
    manifest = collection.manifest
    if manifest is None or manifest.engine != "slurm" or not ask_scheduler:
        return collection
    jobs = _jobs(root, manifest)
    open_runs = {r.run.id for r in collection.results if not r.status.finished} & jobs.keys()
    tasks = ask({jobs[run] for run in open_runs})
    results = [
        _settled(root, result, tasks.get(jobs[result.run.id]))
        if result.run.id in open_runs
        else result
        for result in collection.results
    ]
    return replace(collection, results=tuple(results))


def _settled(root: Path, result: RunResult, task: JobState | None) -> RunResult:
    """What the scheduler says, unless the run ended by itself while it was being asked."""
    judged = _judged(result, task)
    if judged.status in (Status.PENDING, Status.RUNNING):
        return judged
    again = quick_result(result.run, root, None, limit_s=float("inf"))
    if again.status.finished:
        return again
    if judged.status.finished:
        with contextlib.suppress(OSError):  # another's sweep may be looked at, but not written to
            add_verdict(root, Verdict(result.run.id, judged.status, judged.reason))
    return judged
