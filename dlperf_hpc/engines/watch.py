"""How a sweep stands: disk first, the scheduler for the rest, its final words kept."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from dlperf_hpc.engines.slurm.query import Answer, JobState, ask
from dlperf_hpc.engines.slurm.states import status_of
from dlperf_hpc.errors import LedgerError, SiteError
from dlperf_hpc.records import layout
from dlperf_hpc.records.collect import Collection, Files, quick_result, quick_results
from dlperf_hpc.records.ledger import Ledger, Task, read_ledger
from dlperf_hpc.records.manifest import FinalState, add_final_states
from dlperf_hpc.records.results import RunResult
from dlperf_hpc.records.status import Status


def _resolved(result: RunResult, said: JobState | None, silence: str) -> RunResult:
    if said is None:
        words = f"cannot be asked ({silence})" if silence else "says nothing of it"
        reason = f"{result.reason}; the scheduler {words}"
        return replace(result, status=Status.UNKNOWN, reason=reason)
    status = status_of(said.state, said.reason)
    where = f" on {said.nodes}" if said.nodes not in ("", "None assigned") else ""
    why = f" ({said.reason})" if said.reason not in ("", "None") else ""
    reason = f"Slurm: {said.state}{why}{where}"
    if status is Status.UNKNOWN:
        reason += "; no record on disk yet"
    return replace(result, status=status, reason=reason, source="scheduler")


def current(root: Path, ask_scheduler: bool = True) -> Collection:
    """Every run's state. What the scheduler says finally of a run is kept in the directory."""
    return state_of(read_ledger(root), ask_scheduler)


def state_of(ledger: Ledger, ask_scheduler: bool = True, insist: bool = False) -> Collection:
    """The same of a ledger that was read. One squeue, and one sacct for what it has forgotten.

    With ``insist`` SiteError if squeue cannot be asked: for who submits again what does not live.
    """
    collection = quick_results(ledger)
    if ledger.manifest.engine != "slurm" or not ask_scheduler:
        return collection
    tasks = {run: task for run, task in ledger.tasks().items() if task.job_id}
    names = [result.run.id for result in collection.results]
    asked = {
        name: result
        for name, result in zip(names, collection.results)
        if name in tasks and result.status is not Status.OK
    }
    keys = {name: (tasks[name].job_id, tasks[name].index) for name in asked}
    ended = {keys[name] for name, result in asked.items() if result.status.finished}
    try:
        answer = ask(set(keys.values()) - ended, ended, insist)
    except SiteError as error:
        raise SiteError(f"{error}; what the scheduler has already must be known first") from error
    resolve = _StateResolver(ledger.root, answer)
    found = {name: resolve.resolved(result, tasks[name]) for name, result in asked.items()}
    with contextlib.suppress(LedgerError):  # another's sweep may be looked at, but not written to
        add_final_states(ledger.root, resolve.final_states)
    results = (found.get(name, result) for name, result in zip(names, collection.results))
    return replace(collection, results=tuple(results))


class _StateResolver:
    """Puts together what the disk said before the scheduler was asked, and what that said."""

    def __init__(self, root: Path, answer: Answer) -> None:
        self.root = root
        self.answer = answer
        self.files = Files(root)  # as they are after it was asked
        self.final_states: list[FinalState] = []

    def resolved(self, result: RunResult, task: Task) -> RunResult:
        """How a run stands."""
        said = self._said(task)
        if result.status.finished:
            return self._begun_again(result, task, said)
        return self._settled(result, task, said)

    def _said(self, task: Task) -> JobState | None:
        """What Slurm says of this very task. A single task that is cancelled while it waits leaves
        no trace, not even in accounting: it is missing among those of its array, never begun."""
        said = self.answer.tasks.get((task.job_id, task.index))
        if said is not None:
            return said if said.is_of(task.array) else None
        rest = self.answer.rest.get(task.job_id)
        if rest is None or not rest.is_of(task.array):
            return None
        if (self.root / layout.JOBS / f"{task.name}.out").exists():
            return None
        return JobState("CANCELLED", "gone from its array before it began", "")

    def _begun_again(self, result: RunResult, task: Task, said: JobState | None) -> RunResult:
        """A run that ended badly, while its job lives: requeued, by hand or by preemption, or about
        to end. Where the scheduler alone told of the end, it may have told of an earlier one."""
        if said is None:
            return result
        status = status_of(said.state, said.reason)
        if status in (Status.PENDING, Status.RUNNING):
            words = "requeued" if status is Status.PENDING else "its job runs"
            reason = f"{words} after: {result.reason}"
            return replace(result, status=status, reason=reason, source="scheduler")
        told_by_it = result.source == "scheduler" and status.finished
        if told_by_it and _resolved(result, said, "").reason != result.reason:
            return self._settled(result, task, said)
        return result

    def _settled(self, result: RunResult, task: Task, said: JobState | None) -> RunResult:
        """What the scheduler says, unless the run ended by itself while it was being asked."""
        resolved = _resolved(result, said, self.answer.silence)
        if resolved.status in (Status.PENDING, Status.RUNNING):
            return resolved
        if self.files.may_have(result.run):
            again = quick_result(result.run, self.root, None, limit_s=float("inf"), task=task)
            if again.status.finished:
                return again
        if resolved.status.finished:
            words = FinalState(result.run.id, resolved.status, resolved.reason, job=task.name)
            self.final_states.append(words)
        return resolved
