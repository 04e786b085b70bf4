"""A sweep's directory as a list of results: the log first, then record, verdict, manifest.

Two depths: :func:`quick_results` reads only how each run ended (for ``status``),
:func:`full_results` reads every log whole (for ``report``). Neither asks a scheduler.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dlperf_hpc.errors import LedgerError, LogError
from dlperf_hpc.records import layout
from dlperf_hpc.records.layout import RunPaths
from dlperf_hpc.records.logfile import read_end, result_of_log, told_by
from dlperf_hpc.records.manifest import Manifest, Verdict, read_manifest, read_verdicts
from dlperf_hpc.records.observed import ObservedRun
from dlperf_hpc.records.results import RunResult
from dlperf_hpc.records.status import Status
from dlperf_hpc.records.store import read_record
from dlperf_hpc.spec.case import Run

Record = dict[str, Any]


@dataclass(frozen=True)
class Collection:
    """What a directory holds: its manifest if any, results, and files that could not be read."""

    root: Path
    manifest: Manifest | None
    results: tuple[RunResult, ...]
    unreadable: tuple[str, ...] = ()


def _without_log(
    run: Run | ObservedRun, record: Record | None, verdict: Verdict | None
) -> RunResult:
    if record is not None:
        status, reason = Status(record["status"]), str(record.get("reason", ""))
        if status is Status.OK:
            status, reason = Status.PARTIAL, "its record says ok, but there is no log to prove it"
        return RunResult(run, status, reason, attempt=record["attempt"], source="record")
    if verdict is not None:
        return RunResult(run, verdict.status, verdict.reason, source="scheduler")
    return RunResult(run, Status.PENDING, "has left nothing on disk yet")


def _with_end(result: RunResult, record: Record | None, verdict: Verdict | None) -> RunResult:
    """A log that was cut says only that it was cut; its record or the scheduler may know why."""
    if result.status is not Status.UNKNOWN:
        return result
    if record is not None and record["attempt"] == result.attempt:
        status, reason = Status(record["status"]), str(record.get("reason", ""))
        if status is Status.OK and result.window is None:
            status, reason = Status.PARTIAL, "its record says ok, but the log has no whole summary"
        return replace(result, status=status, reason=reason, source="record")
    if verdict is not None:
        return replace(result, status=verdict.status, reason=verdict.reason, source="scheduler")
    return result


def _cross_checked(result: RunResult, record: Record | None) -> RunResult:
    """Log and record hold the same figures, digit by digit: a difference was made by hand."""
    if record is None or record["attempt"] != result.attempt:
        return result
    told: dict[str, Any] = {"status": result.status.value}
    kept: dict[str, Any] = {"status": record["status"]}
    if result.window is not None and isinstance(record.get("window"), dict):
        told.update(asdict(result.window))
        kept.update(record["window"])
    warnings = [
        f"the log says {key} {told[key]}, the record {kept[key]}: one of them was changed"
        for key in told.keys() & kept.keys()
        if told[key] != kept[key]
    ]
    return replace(result, warnings=(*result.warnings, *sorted(warnings)))


def _full(run: Run, root: Path, verdict: Verdict | None, bad: list[str]) -> RunResult:
    paths = RunPaths(root, run.id)
    record: Record | None = None
    try:
        record = read_record(paths.record)
        if not _there(paths.log):
            return _without_log(run, record, verdict)
        result = result_of_log(paths.log)
        if result.run.id != run.id:
            raise LogError(f"{paths.log}: is the log of {result.run.id}")
    except LogError as error:
        bad.append(str(error))
        result = _without_log(run, record, verdict)
        if result.status is Status.PENDING:
            result = replace(result, status=Status.UNKNOWN, reason=str(error))
        return replace(result, warnings=(str(error),))
    return _cross_checked(_with_end(result, record, verdict), record)


def _there(path: Path) -> bool:
    """Whether something has that name, also where it may not be looked at."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def quick_result(
    run: Run | ObservedRun, root: Path, verdict: Verdict | None, limit_s: float
) -> RunResult:
    """How one run stands on disk; ``limit_s`` is the longest that it may take.

    Of a run that was begun more than once, this tells of the last attempt, but not its number.
    """
    paths = RunPaths(root, run.id)
    try:
        end = read_end(paths.log)
        if end is not None:
            return RunResult(run, *told_by(end), source="log")
        record = read_record(paths.record)
        silent_s = _silent_s(paths.log)
    except LogError as error:
        return RunResult(run, Status.UNKNOWN, str(error), source="log", warnings=(str(error),))
    if silent_s is None or (record is None and verdict is not None):
        return _without_log(run, record, verdict)
    if record is not None:
        status = Status(record["status"])
        return RunResult(run, status, str(record.get("reason", "")), source="record")
    if silent_s > limit_s:
        silent = f"silent for {silent_s / 60:.0f} min: longer than it may run"
        return RunResult(run, Status.UNKNOWN, f"its log has no end, {silent}", source="log")
    return RunResult(run, Status.RUNNING, "its log has no end yet", source="log")


def _silent_s(log: Path) -> float | None:
    """Seconds since something was added to a log; None if there is none."""
    try:
        return time.time() - log.stat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise LogError(f"{log}: cannot be read: {error.strerror}") from error


def _logs_below(root: Path, bad: list[str]) -> Iterator[Path]:
    """Logs, but for those of earlier attempts and what is not ours in jobs/."""

    def unread(error: OSError) -> None:
        bad.append(f"{error.filename}: cannot be read: {error.strerror}")

    for folder, folders, names in os.walk(root, onerror=unread):
        folders[:] = sorted(set(folders) - {layout.ATTEMPTS, layout.JOBS})
        yield from (Path(folder, name) for name in sorted(names) if name.endswith(".log"))


def _loose_logs(root: Path) -> tuple[dict[str, RunResult], list[str]]:
    """Logs below a directory without a manifest: they name their own run and case."""
    results: dict[str, RunResult] = {}
    bad: list[str] = []
    for path in _logs_below(root, bad):
        try:
            result = result_of_log(path)
        except LogError as error:
            bad.append(str(error))
            continue
        if result.run.id in results:
            bad.append(f"{path}: the same run as {results[result.run.id].log}; the first counts")
        else:
            results[result.run.id] = result
    return results, bad


def _manifest_if_any(root: Path) -> Manifest | None:
    if not root.is_dir():
        raise LedgerError(f"{root}: no such directory; give one that a sweep made (logs/<sweep>)")
    return read_manifest(root) if (root / layout.MANIFEST).exists() else None


def full_results(root: Path) -> Collection:
    """Read a sweep's directory, or any directory of our logs, whole.

    Raises LedgerError if there is nothing to read there.
    """
    manifest = _manifest_if_any(root)
    if manifest is not None:
        verdicts = read_verdicts(root)
        bad: list[str] = []
        results = [_full(run, root, verdicts.get(run.id), bad) for run in manifest.runs]
        return Collection(root, manifest, tuple(results), tuple(bad))
    loose, unread = _loose_logs(root)
    if not loose:
        foreign = "".join(f"\n  {line}" for line in unread[:10])
        raise LedgerError(f"{root}: no {layout.MANIFEST} and no log of this tool below it{foreign}")
    return Collection(root, None, tuple(loose.values()), tuple(unread))


def quick_results(root: Path) -> Collection:
    """How every run of a sweep stands, from disk alone. Raises LedgerError without a manifest."""
    manifest = read_manifest(root)
    verdicts = read_verdicts(root)
    results = tuple(
        quick_result(run, root, verdicts.get(run.id), array.time_limit_s)
        for array in manifest.arrays
        for run in array.tasks
    )
    return Collection(root, manifest, results)
