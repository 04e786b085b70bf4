"""How a sweep stands: disk first, the scheduler for the rest, its final words kept."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from dlperf_hpc.launch.query import JobState, ask
from dlperf_hpc.launch.states import status_of
from dlperf_hpc.records.collect import Collection, quick_result, quick_results
from dlperf_hpc.records.ledger import Ledger, Task, read_ledger
from dlperf_hpc.records.manifest import Verdict, add_verdict
from dlperf_hpc.records.results import RunResult
from dlperf_hpc.records.status import Status


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
    return state_of(read_ledger(root), ask_scheduler)


def state_of(ledger: Ledger, ask_scheduler: bool = True) -> Collection:
    """The same of a ledger that was read. One squeue, and one sacct for what it has forgotten."""
    collection = quick_results(ledger)
    if ledger.manifest.engine != "slurm" or not ask_scheduler:
        return collection
    tasks = {run: task for run, task in ledger.tasks().items() if task.job_id}
    asked = {
        result.run.id: result
        for result in collection.results
        if result.run.id in tasks and result.status is not Status.OK
    }
    open_runs = {name for name, result in asked.items() if not result.status.finished}
    keys = {name: (tasks[name].job_id, tasks[name].index) for name in asked}
    said = ask({keys[name] for name in open_runs}, {keys[name] for name in asked})
    results = [
        _settled(ledger.root, result, tasks[result.run.id], said.get(keys[result.run.id]))
        if result.run.id in open_runs
        else _requeued(result, said.get(keys[result.run.id]))
        if result.run.id in asked
        else result
        for result in collection.results
    ]
    return replace(collection, results=tuple(results))


def _requeued(result: RunResult, task: JobState | None) -> RunResult:
    """A run that ended badly may wait again under its old job: requeued, by hand or preemption."""
    if task is None or status_of(task.state, task.reason) is not Status.PENDING:
        return result
    reason = f"requeued after: {result.reason}"
    return replace(result, status=Status.PENDING, reason=reason, source="scheduler")


def _settled(root: Path, result: RunResult, task: Task, said: JobState | None) -> RunResult:
    """What the scheduler says, unless the run ended by itself while it was being asked."""
    judged = _judged(result, said)
    if judged.status in (Status.PENDING, Status.RUNNING):
        return judged
    again = quick_result(result.run, root, None, limit_s=float("inf"), task=task)
    if again.status.finished:
        return again
    if judged.status.finished:
        with contextlib.suppress(OSError):  # another's sweep may be looked at, but not written to
            words = Verdict(result.run.id, judged.status, judged.reason, job=task.name)
            add_verdict(root, words)
    return judged
