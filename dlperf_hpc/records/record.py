"""The run record, and how a run ended by its log and its record together.

One judgement for whoever asks: a task that is about to measure the run again, ``status``,
``rerun`` and ``report``. A record alone proves no number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dlperf_hpc.errors import LogError
from dlperf_hpc.files import read_regular
from dlperf_hpc.model.checks import parse
from dlperf_hpc.model.observed import RunFacts
from dlperf_hpc.model.result import Contradiction, RunResult
from dlperf_hpc.model.status import Status
from dlperf_hpc.records.consistency import apart, by_how_much
from dlperf_hpc.records.layout import RunPaths
from dlperf_hpc.records.lines import read_timeline
from dlperf_hpc.records.logfile import PROGRAM_END, result_of_log

SCHEMA = "dlperf-record/1"
Record = dict[str, Any]
_DETAIL = b',\n "detail": {'  # as dump_json writes a key of the record itself
_THROUGHPUT = ("samples", "elapsed_s", "iterations", "accumulation", "global_batch", "ranks")
_MOST_SAID = 8
_STATUSES = {status.value for status in Status}


def read_record(path: Path, detail: bool = True) -> Record | None:
    """A run record, or None if there is none (or none of ours); LogError if it cannot be read.

    Without ``detail`` what is behind the window (per-step, per-rank columns, packages) is left out.
    """
    try:
        content = read_regular(path)
        data = parse(content if detail else _head(content))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    except OSError as error:
        raise LogError(f"{path}: cannot be read: {error.strerror}") from error
    ours = isinstance(data, dict) and data.get("schema") == SCHEMA
    return data if ours and _is_whole(data) else None


def _is_whole(record: Mapping[str, Any]) -> bool:
    status, reason = record.get("status"), record.get("reason", "")
    known = isinstance(status, str) and status in _STATUSES and isinstance(reason, str)
    return known and type(record.get("attempt")) is int


def _head(content: bytes) -> bytes:
    """A record as far as its window, most of which is what follows; as it is, if not written so."""
    at = content.find(_DETAIL)
    return content[:at] + b"\n}" if at > 0 and content.endswith(b"\n}\n") else content


def of_record(run: RunFacts, record: Record) -> RunResult:
    """A run of which only the record is left."""
    status, reason = Status(record["status"]), str(record.get("reason", ""))
    if status is Status.OK:
        status, reason = Status.PARTIAL, "its record says ok, but there is no log to prove it"
    return RunResult(run, status, reason, attempt=record["attempt"], source="record")


def with_record(result: RunResult, record: Record | None) -> RunResult:
    """What a log says, and where it was cut what the record of the same attempt says of the end."""
    if result.status is not Status.UNKNOWN or record is None:
        return result
    if record["attempt"] != result.attempt:
        return result
    status, reason = Status(record["status"]), str(record.get("reason", ""))
    if status is Status.OK and result.window is None and PROGRAM_END not in result.facts:
        status, reason = Status.PARTIAL, "its record says ok, but the log has no whole summary"
    return replace(result, status=status, reason=reason, source="record")


def ended_ok(paths: RunPaths) -> bool:
    """Whether a run ended ok, and has a log to prove it."""
    try:
        result = result_of_log(paths.log)
        if result.run.id != paths.run_id:
            return False
        record = read_record(paths.record, detail=False)
    except LogError:
        return False
    return with_record(result, record).status is Status.OK


# --- do they agree?


def settled(
    result: RunResult, record: Record | None = None, path: Path | None = None, log: bytes = b""
) -> RunResult:
    """A run of which log and record were held against each other.

    Without a number, so partial, where it cannot be known which figures are right. Nothing is ever
    reported from the record: a log that contradicts itself counts if its record confirms the
    window, and a record that contradicts the log is passed over if it contradicts itself. ``path``
    is the record's, and ``log`` the log's content: they are read whole where something disagrees.
    """
    if record is not None and record["attempt"] != result.attempt:
        record = None
    differing = () if record is None else tuple(_with_record(result, record))
    found = [*result.contradictions, *differing]
    if not found:
        return result
    doubt = any(each.doubt for each in found)
    columns = read_record(path) if record is not None and path is not None else None
    if columns is not None:
        found += _iterations_in_record(log, columns)
    if differing and any(each.doubt for each in differing):
        # Whose own figures do not fit is the one that was changed.
        log_holds = not any(each.doubt for each in result.contradictions)
        doubt = record is None or record["status"] != result.status.value or not (
            log_holds and columns is not None and _contradicts_itself(columns)
        )  # fmt: skip
    elif record is not None and isinstance(record.get("window"), dict):
        doubt = False  # the record confirms the window
    warnings = (*result.warnings, *(each.text for each in found))
    result = replace(result, contradictions=tuple(found), warnings=warnings)
    if result.status is not Status.OK or not doubt:
        return result
    return replace(result, status=Status.PARTIAL, reason=_reason(found))


def _reason(found: Sequence[Contradiction]) -> str:
    first, *more = sorted(found, key=lambda each: not each.doubt)
    others = f" (and {len(more)} more contradictions)" if more else ""
    return f"{first.text}{others}; nothing shows which is right, so that no number counts"


def _with_record(result: RunResult, record: Record) -> Iterator[Contradiction]:
    """Log and record hold the same figures, digit by digit: a difference was made by hand."""
    # partial is what an ok becomes whose summary was lost: the log does not say it
    if Status.PARTIAL is not result.status and record["status"] != result.status.value:
        told = f"the log says status {result.status.value}, the record {record['status']}"
        yield Contradiction("record", f"{told}: one of them was changed", True)
    kept = record.get("window")
    if result.window is None or not isinstance(kept, dict):
        return
    told_by_log = vars(result.window)
    for key in sorted(told_by_log.keys() & kept.keys()):
        mine, theirs = told_by_log[key], kept[key]
        if mine != theirs:
            how = by_how_much(mine, theirs)
            text = f"the log says {key} {mine}, the record {theirs}{how}: one of them was changed"
            yield Contradiction("record", text, key in _THROUGHPUT)


def _contradicts_itself(record: Record) -> bool:
    """Whether the window of a record cannot be that of its columns."""
    window, detail = record.get("window"), record.get("detail")
    if not isinstance(window, dict) or not isinstance(detail, dict):
        return False
    try:
        of_ranks, losses = detail["rank_elapsed_s"], detail["loss"]
        return bool(
            max(of_ranks) != window["elapsed_s"]
            or len(of_ranks) != window["ranks"]
            or len(losses) != window["iterations"]
            or window["samples"] * window["accumulation"]
            != window["iterations"] * window["global_batch"]
        )
    except (KeyError, TypeError, ValueError):
        return True


def _iterations_in_record(log: bytes, record: Record) -> list[Contradiction]:
    """Iterations whose time is another in the record's columns."""
    detail = record.get("detail")
    timeline, _ = read_timeline(log)
    if timeline is None or not isinstance(detail, dict):
        return []
    try:
        ends = [0.0] * len(detail["rank_step_ms"])
        before, ms = 0.0, []
        for steps in zip(*detail["rank_step_ms"]):
            ends = [end + step for end, step in zip(ends, steps)]
            ms.append(max(ends) - before)
            before = max(ends)
        pairs = [(n, told, ms[n - timeline.before - 1])
                 for n, told in zip(timeline.numbers, timeline.ms)]  # fmt: skip
    except (KeyError, TypeError, ValueError, IndexError):
        return []
    # The record's own times are rounded, and were added up.
    odd = [(n, told, seen) for n, told, seen in pairs if abs(told - seen) > 0.002 * (1 + len(ms))]
    return [
        Contradiction("record", apart(f"iteration {n} says ms", told, "the record", seen), False)
        for n, told, seen in odd[:_MOST_SAID]
    ]
