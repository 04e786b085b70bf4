"""Before a run is submitted again: what becomes of the jobs that it has.

A job that waits, perhaps for ever, is cancelled by its id, so that it cannot start beside the new
one when somebody raises a limit. A run that is being measured is not submitted again.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field

from dlperf_hpc.engines.base import Engine, TaskState
from dlperf_hpc.errors import SiteError
from dlperf_hpc.records.ledger import Ledger, Task
from dlperf_hpc.records.status import Status

_PATIENCE_S = 30.0
_POLL_S = 0.5


@dataclass(frozen=True)
class LivingJobs:
    """Tasks of some runs that have not ended. ``running`` names the task that measures a run, by
    run id; ``waiting`` are ``tasks`` of the other runs, and how each stands."""

    waiting: dict[str, TaskState] = field(default_factory=dict)
    running: dict[str, str] = field(default_factory=dict)
    tasks: tuple[Task, ...] = ()


def living_jobs(ledger: Ledger, engine: Engine, runs: Collection[str]) -> LivingJobs:
    """Every task of these runs that may still start or runs, also of earlier submissions; SiteError
    if the scheduler cannot be asked."""
    tasks = _all_tasks(ledger, runs)
    if not tasks or not engine.detached:
        return LivingJobs()
    each = {task.name: task for _, task in tasks}
    states = engine.states(ledger.root, [], list(each.values()), insist=True).states
    living = [(run, task, states[task.name]) for run, task in tasks if task.name in states]
    running = {run: t.name for run, t, state in living if state.status is Status.RUNNING}
    measuring = set(running.values())
    waiting = {
        task.name: state
        for run, task, state in living
        if state.alive and run not in running and task.name not in measuring
    }
    return LivingJobs(waiting, running, tuple(each[name] for name in waiting))


def _all_tasks(ledger: Ledger, runs: Collection[str]) -> list[tuple[str, Task]]:
    """Each task that was ever submitted for these runs, with the run."""
    wanted, arrays = set(runs), {array.token: array for array in ledger.arrays}
    return [
        (run.id, Task(array, place // array.repeats_per_job, submission.job_id))
        for submission in ledger.submissions
        if submission.job_id and (array := arrays.get(submission.token)) is not None
        for place, run in enumerate(array.tasks)
        if run.id in wanted
    ]


def cancel_waiting(ledger: Ledger, engine: Engine, jobs: LivingJobs) -> None:
    """End the tasks that wait; returns when the scheduler says that they are gone. SiteError if it
    does not."""
    if not jobs.waiting:
        return
    engine.cancel(sorted(jobs.waiting))
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        states = engine.states(ledger.root, [], jobs.tasks, insist=True).states
        left = sorted(name for name, state in states.items() if state.alive)
        if not left:
            return
        if time.monotonic() > deadline:
            raise SiteError(
                f"{', '.join(left[:3])}: cancelled, but not ended within {_PATIENCE_S:g} s; nothing"
                " was submitted: type the same command again when it has left the queue"
            )
        time.sleep(_POLL_S)
