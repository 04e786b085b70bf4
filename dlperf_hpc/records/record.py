"""The run record, and how a run ended by its log and its record together.

One judgement for whoever asks: a task that is about to measure the run again, ``status``,
``rerun`` and ``report``. A record alone proves no number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dlperf_hpc.errors import LogError
from dlperf_hpc.files import read_regular
from dlperf_hpc.records.checks import parse
from dlperf_hpc.records.layout import RunPaths
from dlperf_hpc.records.logfile import result_of_log
from dlperf_hpc.records.observed import RunFacts
from dlperf_hpc.records.results import RunResult
from dlperf_hpc.records.status import Status

SCHEMA = "dlperf-record/1"
Record = dict[str, Any]
_DETAIL = b',\n "detail": {'  # as dump_json writes a key of the record itself
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
    if status is Status.OK and result.window is None:
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
