"""A sweep's directory as a list of results: the log first, then record, final state, manifest.

Two depths: :func:`quick_results` reads only how each run ended (for ``status``),
:func:`full_results` reads every log whole (for ``report``). Neither asks a scheduler.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from dlperf_hpc.errors import ABSENT, LogError, raising
from dlperf_hpc.model.case import RunFacts
from dlperf_hpc.model.result import RunResult, Status
from dlperf_hpc.records.layout import RunPaths
from dlperf_hpc.records.ledger import Ledger, Task, read_ledger
from dlperf_hpc.records.lines import LogLine
from dlperf_hpc.records.logfile import end_status, glance, read_bytes, read_end, result_of_log
from dlperf_hpc.records.manifest import FinalState, Manifest
from dlperf_hpc.records.record import Record, of_record, read_record, reconcile, with_record
from dlperf_hpc.records.store import launch_of, with_life


@dataclass(frozen=True)
class RunJob:
    """The job of a run, ``4711_3``: its ``nodes``, how long it has run and may still run (s), and
    when its scheduler expects it to start; '' and None where that is not known."""

    job: str
    nodes: str = ""
    elapsed_s: float | None = None
    left_s: float | None = None
    starts: str = ""


@dataclass(frozen=True)
class Collection:
    """What a sweep's directory holds: manifest, results, and files that could not be read.
    ``unsubmitted`` are the ids of pending runs without a job. ``report_job`` says how the job
    stands that reports at the end, '' if there is none. ``jobs`` has the latest job of each run
    that was submitted, by the run's id."""

    root: Path
    manifest: Manifest
    results: tuple[RunResult, ...]
    unreadable: tuple[str, ...] = ()
    unsubmitted: frozenset[str] = frozenset()
    report_job: str = ""
    jobs: Mapping[str, RunJob] = field(default_factory=dict)

    def as_named(self, archive: Path) -> Collection:
        """With the names that files have in the archive, not where that was unpacked."""
        place, path = f"{self.root}/", f"{archive}/"
        return replace(
            self,
            root=archive,
            results=tuple(result.as_named(place, path) for result in self.results),
            unreadable=tuple(line.replace(place, path) for line in self.unreadable),
        )


def _without_log(run: RunFacts, record: Record | None, final_state: FinalState | None) -> RunResult:
    if record is not None:
        return of_record(run, record)
    if final_state is not None:
        return RunResult(run, final_state.status, final_state.reason, source="scheduler")
    return RunResult(run, Status.PENDING, "has left nothing on disk yet")


def _with_end(
    result: RunResult, record: Record | None, final_state: FinalState | None
) -> RunResult:
    """A log that was cut says only that it was cut; its record or the scheduler may know why."""
    result = with_record(result, record)
    if result.status is not Status.UNKNOWN or final_state is None:
        return result
    return replace(result, status=final_state.status, reason=final_state.reason, source="scheduler")


def _full(
    run: RunFacts, root: Path, task: Task | None, final_state: FinalState | None, bad: list[str]
) -> RunResult:
    """How a run ended, by all that lies on disk; what cannot be read is added to ``bad``."""
    paths = RunPaths(root, run.id)
    record: Record | None = None
    problem = ""
    try:
        record = read_record(paths.record, detail=False)
        ended = _by_log(run, paths, record, final_state)
    except LogError as error:
        problem, ended = str(error), _without_log(run, record, final_state)
    if ended.status is not Status.OK and _is_of_earlier_task(paths, task, record):
        return _without_log(run, None, final_state)
    if not problem:
        return with_life(ended, paths.log)
    bad.append(problem)
    if ended.status is Status.PENDING:
        ended = replace(ended, status=Status.UNKNOWN, reason=problem)
    return replace(ended, warnings=(problem,))


def _by_log(
    run: RunFacts, paths: RunPaths, record: Record | None, final_state: FinalState | None
) -> RunResult:
    """By its log, where there is one; LogError for a log of another run."""
    data = read_bytes(paths.log)
    if data is None:
        return _without_log(run, record, final_state)
    result = result_of_log(paths.log, data)
    if result.run.id != run.id:
        raise LogError(f"{paths.log}: is the log of {result.run.id}")
    return reconcile(_with_end(result, record, final_state), record, paths.record, data)


def _is_of_earlier_task(paths: RunPaths, task: Task | None, record: Record | None) -> bool:
    """Whether what lies there, of a run that is not ok, is of an attempt before the task."""
    if task is None or not task.job_id:
        return False
    try:
        launch = str((record or {}).get("launch") or launch_of(paths) or "")
    except LogError:  # who reads the run says so
        return False
    return bool(launch) and not launch.startswith(f"{task.name}.")


def quick_result(
    run: RunFacts,
    root: Path,
    final_state: FinalState | None,
    limit_s: float,
    task: Task | None = None,
) -> RunResult:
    """How one run stands on disk; ``limit_s`` is the longest that it may take. Of a run that was
    started more than once it is the last attempt's state, but not its number; ``task`` is the one
    submitted last: what an earlier one left is not the run's state any more."""
    paths = RunPaths(root, run.id)
    record: Record | None = None
    try:
        end, whole, doubts = glance(paths.log, run.id)
        if whole:
            return RunResult(run, Status.OK, source="log", warnings=doubts)
        if end is None or task is not None:
            record = read_record(paths.record, detail=False)
        if _says_ok(end, record):
            # Not seen at a glance: what says ok counts as the report counts it.
            return replace(_full(run, root, task, final_state, []), window=None)
        if _is_of_earlier_task(paths, task, record):
            return _without_log(run, None, final_state)
        if end is not None:
            return RunResult(run, *end_status(end), source="log")
        silent_s = _silent_s(paths.log)
    except LogError as error:
        return RunResult(run, Status.UNKNOWN, str(error), source="log", warnings=(str(error),))
    if silent_s is None or (record is None and final_state is not None):
        return _without_log(run, record, final_state)
    if record is not None:
        return RunResult(run, *_recorded(record), source="record")
    if silent_s > limit_s:
        silent = f"silent for {silent_s / 60:.0f} min: longer than it may run"
        return RunResult(run, Status.UNKNOWN, f"its log has no end, {silent}", source="log")
    return RunResult(run, Status.RUNNING, "its log has no end yet", source="log")


def _says_ok(end: LogLine | None, record: Record | None) -> bool:
    by_log = end is not None and end_status(end)[0] is Status.OK
    return by_log or (record is not None and _recorded(record)[0] is Status.OK)


def _recorded(record: Record) -> tuple[Status, str]:
    return Status(record["status"]), str(record.get("reason", ""))


def _silent_s(log: Path) -> float | None:
    """Seconds since something was added to a log; None if there is none."""
    with raising(LogError, f"{log}: cannot be read"), suppress(*ABSENT):
        return time.time() - log.stat().st_mtime
    return None


def result_of(ledger: Ledger, run: RunFacts) -> RunResult:
    """How one run of a sweep ended, by all that lies on disk, its log read whole."""
    tasks, words = ledger.tasks(), ledger.last_words()
    return _full(run, ledger.root, tasks.get(run.id), words.get(run.id), [])


@dataclass(frozen=True)
class EarlierAttempt:
    """An attempt at a run that another one has followed; ``log`` is where its log lies."""

    number: int
    status: Status
    reason: str
    log: Path


def earlier_attempts(paths: RunPaths) -> list[EarlierAttempt]:
    """Those that left a log, in their order. What cannot be read is unknown, and says why."""
    found = []
    for path in paths.attempts.glob(f"{paths.log.stem}.attempt*{paths.log.suffix}"):
        number = path.name[len(f"{paths.log.stem}.attempt") : -len(paths.log.suffix)]
        if number.isdecimal():
            found.append(EarlierAttempt(int(number), *_end_of(path), path))
    return sorted(found, key=lambda each: each.number)


def _end_of(log: Path) -> tuple[Status, str]:
    try:
        end, record = read_end(log), read_record(log.with_suffix(".json"), detail=False)
    except LogError as error:
        return Status.UNKNOWN, str(error)
    if end is not None:
        return end_status(end)
    if record is None:
        return Status.UNKNOWN, "its log has no end"
    return _recorded(record)


def full_results(root: Path) -> Collection:
    """Read a sweep's directory, its logs whole. LedgerError if there is no sweep."""
    bad: list[str] = []
    ledger = read_ledger(root, bad)
    tasks, words = ledger.tasks(), ledger.last_words()
    results = [
        _full(run, root, tasks.get(run.id), words.get(run.id), bad) for run in ledger.manifest.runs
    ]
    return Collection(root, ledger.manifest, tuple(results), tuple(bad))


class Files:
    """Which files lie below a directory, each folder read once: not one by one for each run."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._names: dict[str, set[str] | None] = {}

    def may_have(self, run: RunFacts) -> bool:
        """False if there is neither log nor record of the run."""
        folder, _, stem = run.id.rpartition("/")
        if folder not in self._names:
            self._names[folder] = _names_in(os.path.join(self._root, folder))
        names = self._names[folder]
        return names is None or f"{stem}.log" in names or f"{stem}.json" in names


def _names_in(folder: str) -> set[str] | None:
    """What lies in a folder; None if that cannot be known."""
    try:
        return set(os.listdir(folder))
    except ABSENT:
        return set()
    except OSError:
        return None


def quick_results(ledger: Ledger) -> Collection:
    """How every run of a sweep stands, from disk alone."""
    tasks, words = ledger.tasks(), ledger.last_words()
    unanswered = {run.id for array in ledger.unanswered() for run in array.tasks}
    files = Files(ledger.root)
    results = []
    unsubmitted = set()
    for array in ledger.manifest.arrays:
        for run in array.tasks:
            task, final_state = tasks.get(run.id), words.get(run.id)
            if not files.may_have(run):
                result = _without_log(run, None, final_state)
            else:
                limit_s = (task.array if task else array).time_limit_s
                result = quick_result(run, ledger.root, final_state, limit_s, task)
            if task is None and result.status is Status.PENDING:
                reason, to_do = _UNSURE
                if run.id not in unanswered:
                    unsubmitted.add(run.id)
                    reason, to_do = _UNSUBMITTED
                result = replace(result, reason=reason, to_do=to_do)
            results.append(result)
    return Collection(
        ledger.root,
        ledger.manifest,
        tuple(results),
        unsubmitted=frozenset(unsubmitted),
        jobs={name: RunJob(task.name) for name, task in tasks.items() if task.job_id},
    )


_UNSUBMITTED = (
    "is not submitted",
    "the `dlperf sweep` or `dlperf rerun` command typed again submits it",
)
_UNSURE = (
    "the scheduler gave no answer when it was submitted",
    "the `dlperf sweep` or `dlperf rerun` command typed again finds out, or submits it",
)
