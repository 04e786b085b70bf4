"""What a sweep has used of its node-hours, and which runs the rest of a budget is enough for.

Hours of runs that ended are real ones, from the first line of each attempt's log to the last. A run
that waits or runs is taken to need the longest time of an ok run of its case, and where none has
ended its time limit: each command sees more real hours than the one before it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from dlperf_hpc.engines import get_engine
from dlperf_hpc.errors import Issue, LogError, SpecError, number_of
from dlperf_hpc.model.case import Run, RunFacts
from dlperf_hpc.model.result import RunResult, Status
from dlperf_hpc.records import layout
from dlperf_hpc.records.collect import Collection as RunCollection
from dlperf_hpc.records.layout import RunPaths
from dlperf_hpc.records.ledger import Ledger
from dlperf_hpc.records.logfile import read_end, started
from dlperf_hpc.records.manifest import Array

FEWEST = 3
"""Repeats that a budget leaves each case that it leaves at all."""
RULE = (
    f"the last repeats of all cases go first, {FEWEST} of each stay; if these are too many,"
    " the largest topology goes, and the others keep the repeats that fit"
)
_HOUR_S = 3600.0


@dataclass(frozen=True)
class Usage:
    """Node-hours of a sweep: ``used`` by attempts that ended, ``reserved`` by runs that wait or
    run. ``longest_s`` is the longest time of an ok run of each case that has one, by the case's id,
    and ``open`` has the ids of those runs of the sweep that no job stands for."""

    used: float = 0.0
    reserved: float = 0.0
    longest_s: Mapping[str, float] = field(default_factory=dict)
    open: frozenset[str] = frozenset()

    def hours(self, run: RunFacts, limit_s: float) -> float:
        """What a run of this time limit is taken to need."""
        seconds = self.longest_s.get(run.case.id, limit_s)
        return run.case.topology.nodes * seconds / _HOUR_S

    def text(self, budget: float) -> str:
        """``1.5 of 20 node-hours used, 3 reserved by runs that wait or run``."""
        reserved = f", {self.reserved:.3g} reserved by runs that wait or run" * (self.reserved > 0)
        return f"{self.used:.3g} of {budget:.6g} node-hours used{reserved}"


def usage(ledger: Ledger, collection: RunCollection) -> Usage:
    """What the runs of a sweep, which stand as in ``collection``, have used and reserved."""
    limits, longest, held = _limits(ledger), dict[str, float](), list[RunFacts]()
    open_ids = set(collection.unsubmitted)
    if not get_engine(ledger.manifest.engine).detached:  # its queue ends with its process
        open_ids |= {r.run.id for r in collection.results if r.status is Status.PENDING}
    used = 0.0
    for result in collection.results:
        run = result.run
        earlier, last = _ended_s(ledger, result, limits[run.id])
        used += run.case.topology.nodes * (earlier + last) / _HOUR_S
        if result.status is Status.OK:
            longest[run.case.id] = max(last, longest.get(run.case.id, 0.0))
        elif not result.status.finished and run.id not in open_ids:
            held.append(run)
    found = Usage(used, 0.0, longest, frozenset(open_ids))
    return replace(found, reserved=sum(found.hours(run, limits[run.id]) for run in held))


def _limits(ledger: Ledger) -> dict[str, int]:
    """The time limit (s) of each run's latest array, by the run's id."""
    limits = {run.id: array.time_limit_s for array in ledger.manifest.arrays for run in array.tasks}
    return {**limits, **{run: task.array.time_limit_s for run, task in ledger.tasks().items()}}


def _ended_s(ledger: Ledger, result: RunResult, limit_s: float) -> tuple[float, float]:
    """Seconds of a run's earlier attempts, and of its last one if that has ended."""
    paths = RunPaths(ledger.root, result.run.id)
    earlier = sum(map(_took_s, paths.attempts.glob(f"{paths.log.stem}.attempt*.log")))
    if result.status is Status.RUNNING:
        return earlier, 0.0
    return earlier, _took_s(paths.log) or _without_log(ledger, result, limit_s)


def _took_s(log: Path) -> float:
    """From the first line of a log to its end, s; by its last change where it has no end. 0.0 where
    there is no log of ours."""
    with contextlib.suppress(OSError, ValueError, LogError):
        began, end = started(log), read_end(log)
        if began is not None:
            return max(0.0, (_moment(end.time) if end else log.stat().st_mtime) - began)
    return 0.0


def _without_log(ledger: Ledger, result: RunResult, limit_s: float) -> float:
    """The most that an attempt without a log took, s: from its submission until its job printed
    last; 0.0 if that printed nothing."""
    task = ledger.tasks().get(result.run.id)
    if task is None or not result.status.finished:
        return 0.0
    times = [row.time for row in ledger.submissions if row.token == task.array.token and row.job_id]
    with contextlib.suppress(OSError, ValueError, IndexError):
        printed = (ledger.root / layout.JOBS / f"{task.name}.out").stat().st_mtime
        return min(max(0.0, printed - _moment(times[-1])), limit_s)
    return 0.0


def _moment(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


@dataclass(frozen=True)
class Fit:
    """What is left of a budget is enough for: the ids of ``runs`` that may be submitted now, which
    are taken to need ``hours``, and a line on each group of runs that are ``left_out``. Where
    nothing fits, ``hours`` are those of the smallest part of the plan."""

    runs: frozenset[str]
    hours: float
    left_out: tuple[str, ...]


def choose(arrays: Sequence[Array], ids: Collection[str], used: Usage, left: float) -> Fit:
    """Those runs of ``arrays`` with these ids that ``left`` node-hours are enough for, by
    :data:`RULE`; the repeats of one job stay together."""
    hours = {
        run: used.hours(run, array.time_limit_s)
        for array in arrays
        for run in array.tasks
        if run.id in ids
    }
    total = 0.0
    for kept in _steps(list(hours), max((array.repeats_in_job for array in arrays), default=1)):
        total = sum(map(hours.__getitem__, kept))
        if kept and total <= left * (1 + 1e-9):
            return Fit(frozenset(run.id for run in kept), total, _left_out(hours, kept))
    return Fit(frozenset(), total, _left_out(hours, ()))


def _steps(runs: Sequence[Run], per_job: int) -> Iterator[list[Run]]:
    fewest = -(-FEWEST // per_job) * per_job
    last = max((run.repeat for run in runs), default=0)
    levels = [number for number in range(last, fewest, -1) if number % per_job == 0]
    left = sorted({run.case.topology for run in runs}, key=lambda each: (each.devices, each.nodes))
    while left:
        for most in (*levels, fewest):
            yield [run for run in runs if run.repeat <= most and run.case.topology in left]
        left.pop()


def _left_out(hours: Mapping[Run, float], kept: Collection[Run]) -> tuple[str, ...]:
    groups, stay = dict[str, list[float]](), {run.case.topology for run in kept}
    kept = frozenset(kept)
    for run in (each for each in hours if each not in kept):
        name = f"repeat {run.repeat} of the topologies that stay"
        if run.case.topology not in stay:
            name = f"topology {run.case.topology}"
        groups.setdefault(name, []).append(hours[run])
    return tuple(
        f"{name}: {number_of(len(each), 'run')}, at most {sum(each):.3g} node-hours"
        for name, each in groups.items()
    )


def too_small(where: str, budget: float, choice: Fit, used: Usage) -> SpecError:
    """The error of a budget, or of the rest of one, that no part of a plan fits in."""
    message = (
        f"{budget:.6g} is too small, so that nothing is submitted: {used.text(budget)}, and the"
        f" smallest part of the plan may take {choice.hours:.3g}"
    )
    hint = "give more, select fewer runs with --only, or lower the time limit if runs are shorter"
    return SpecError(where, [Issue("budget_node_hours", message, hint)])
