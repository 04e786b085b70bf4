"""A sweep's directory as a list of results: the log first, then record, verdict, manifest.

Two depths: :func:`quick_results` reads only how each run ended (for ``status``),
:func:`full_results` reads every log whole (for ``report``). Neither asks a scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from dlperf_hpc.errors import LedgerError, LogError
from dlperf_hpc.records import layout
from dlperf_hpc.records.layout import RunPaths
from dlperf_hpc.records.logfile import read_end, result_of_log
from dlperf_hpc.records.manifest import Manifest, Verdict, read_manifest, read_verdicts
from dlperf_hpc.records.results import RunResult
from dlperf_hpc.records.status import Status
from dlperf_hpc.records.store import read_record
from dlperf_hpc.spec.case import Run

_SAME = 1e-9  # log and record hold the same figures; anything more is a disagreement


@dataclass(frozen=True)
class Collection:
    """What a directory holds: its manifest if any, results, and files that could not be read."""

    root: Path
    manifest: Manifest | None
    results: tuple[RunResult, ...]
    unreadable: tuple[str, ...] = ()


def _without_log(run: Run, paths: RunPaths, verdict: Verdict | None) -> RunResult:
    record = read_record(paths.record)
    if record is not None:
        status, reason = Status(record["status"]), str(record.get("reason", ""))
        if status is Status.OK:
            status, reason = Status.PARTIAL, f"record says ok but {paths.log} is gone"
        return RunResult(run, status, reason, attempt=int(record["attempt"]), source="record")
    if verdict is not None:
        return RunResult(run, verdict.status, verdict.reason, source="scheduler")
    return RunResult(run, Status.PENDING, "has left nothing on disk yet")


def _with_verdict(result: RunResult, verdict: Verdict | None) -> RunResult:
    """A log that was cut says only that it was cut; the scheduler may know why."""
    if result.status is Status.UNKNOWN and verdict is not None:
        return replace(result, status=verdict.status, reason=verdict.reason, source="scheduler")
    return result


def _cross_checked(result: RunResult, paths: RunPaths) -> RunResult:
    record = read_record(paths.record)
    if record is None or result.window is None or "window" not in record:
        return result
    told, kept = result.window.elapsed_s, record["window"].get("elapsed_s")
    if isinstance(kept, float) and abs(told - kept) <= _SAME * told:
        return result
    warning = f"log says {told} s for the window, the record {kept} s: one of them was changed"
    return replace(result, warnings=(*result.warnings, warning))


def _full(run: Run, root: Path, verdict: Verdict | None, bad: list[str]) -> RunResult:
    paths = RunPaths(root, run.id)
    if not paths.log.exists():
        return _without_log(run, paths, verdict)
    try:
        result = result_of_log(paths.log)
    except LogError as error:
        bad.append(str(error))
        return replace(_without_log(run, paths, verdict), warnings=(str(error),))
    return _cross_checked(_with_verdict(result, verdict), paths)


def _quick(run: Run, root: Path, verdict: Verdict | None) -> RunResult:
    paths = RunPaths(root, run.id)
    end = read_end(paths.log)
    if end is not None:
        status = Status(end.values["status"])
        return RunResult(run, status, str(end.values.get("reason", "")), source="log")
    result = _without_log(run, paths, verdict)
    if result.source == "manifest" and paths.log.exists():
        return replace(result, status=Status.RUNNING, reason="its log has no end yet", source="log")
    return result


def _loose_logs(root: Path) -> tuple[dict[str, RunResult], list[str]]:
    """Logs below a directory without a manifest: they name their own run and case."""
    results: dict[str, RunResult] = {}
    bad: list[str] = []
    for path in sorted(root.rglob("*.log")):
        if path.parent.name == "attempts" or layout.JOBS in path.relative_to(root).parts:
            continue
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
        raise LedgerError(f"{root}: no such directory")
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
    results = [_quick(run, root, verdicts.get(run.id)) for run in manifest.runs]
    return Collection(root, manifest, tuple(results))
