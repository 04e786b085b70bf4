"""Attempts of a run on disk: begun, failed, finished; nothing is ever overwritten.

Every process of one launch (one start of srun or mpiexec) carries the same launch id, so ranks
that fail together, even ranks that each believe they are alone, agree on which attempt they are.
"""

from __future__ import annotations

import json
import os
import re
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlperf_hpc.records.files import append_line, dump_json, write_atomically, write_once
from dlperf_hpc.records.layout import RunPaths
from dlperf_hpc.records.lines import read_line, utc, write_line
from dlperf_hpc.records.logfile import FORMAT, read_end
from dlperf_hpc.records.status import Status
from dlperf_hpc.spec.case import Run

SCHEMA = "dlperf-record/1"
_ATTEMPT = re.compile(r"\.attempt(\d+)\.(?:log|json)$")


@dataclass(frozen=True)
class Attempt:
    """One try at a run. ``launch`` is shared by all its processes and by no other attempt's."""

    sweep: str
    run: Run
    paths: RunPaths
    number: int
    launch: str


@dataclass(frozen=True)
class Failure:
    """What one rank left when it failed. ``consequence``: it was ended from outside (a signal)."""

    rank: int
    host: str
    status: Status
    reason: str
    time: str
    traceback: str = ""
    consequence: bool = False


def read_record(path: Path) -> dict[str, Any] | None:
    """A run record, or None if there is none (or none of ours)."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return data if isinstance(data, dict) and data.get("schema") == SCHEMA else None


def _first_line(path: Path) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            line = read_line(file.readline().rstrip("\n"))
    except FileNotFoundError:
        return {}
    return line.values if line and line.event == "begin" else {"attempt": 0, "launch": ""}


def _archive(paths: RunPaths, number: int) -> None:
    paths.attempts.mkdir(parents=True, exist_ok=True)
    for path in (paths.log, paths.record):
        _move_aside(path, paths, number)


def _move_aside(path: Path, paths: RunPaths, number: int) -> None:
    """Move without ever overwriting; several ranks may be doing this to the same file at once."""
    target = paths.earlier(path, number)
    try:
        os.link(path, target)
    except FileNotFoundError:
        return  # another rank was quicker
    except FileExistsError:
        if not (path.exists() and path.samefile(target)):
            _move_aside(path, paths, number + 1)
            return
    path.unlink(missing_ok=True)


def _archived(paths: RunPaths) -> list[int]:
    found = paths.attempts.glob(f"{paths.log.stem}.attempt*")
    return [int(match[1]) for path in found if (match := _ATTEMPT.search(path.name))]


def open_attempt(sweep: str, run: Run, root: Path, launch: str) -> Attempt | None:
    """Make room for an attempt of ``run``; None if the run already ended ok.

    What an earlier launch left moves to ``attempts/``; what this launch left stays.
    """
    paths = RunPaths(root, run.id)
    paths.log.parent.mkdir(parents=True, exist_ok=True)
    record = read_record(paths.record)
    if record is not None and record.get("status") == Status.OK.value:
        return None
    earlier = record or _first_line(paths.log)
    if earlier and earlier.get("launch") == launch:
        return Attempt(sweep, run, paths, int(earlier["attempt"]), launch)
    if earlier:
        _archive(paths, int(earlier["attempt"]))
    return Attempt(sweep, run, paths, 1 + max(_archived(paths), default=0), launch)


def begin_log(attempt: Attempt) -> None:
    """Write the first lines of the log, once: which run this is, and its case."""
    run = attempt.run
    begin = {
        "format": FORMAT,
        "sweep": attempt.sweep,
        "run": run.id,
        "repeat": run.repeat,
        "attempt": attempt.number,
        "launch": attempt.launch,
    }
    lines = [write_line("begin", begin), write_line("case", run.case.to_dict()), ""]
    write_once(attempt.paths.log, "\n".join(lines))


def log_event(attempt: Attempt, event: str, values: Mapping[str, Any]) -> None:
    """Append one line to the run's log."""
    append_line(attempt.paths.log, write_line(event, values))


def leave_failure(attempt: Attempt, failure: Failure) -> None:
    """One rank's own account of its end, whoever writes the record."""
    attempt.paths.attempts.mkdir(parents=True, exist_ok=True)
    path = attempt.paths.failure(attempt.number, failure.rank)
    write_atomically(path, dump_json({**vars(failure), "status": failure.status.value}))


def read_failures(attempt: Attempt) -> list[Failure]:
    """All accounts of an attempt, causes before consequences, then by time."""
    rows = [json.loads(path.read_text("utf-8")) for path in attempt.paths.failures(attempt.number)]
    failures = [Failure(**{**row, "status": Status(row["status"])}) for row in rows]
    return sorted(failures, key=lambda failure: (failure.consequence, failure.time))


def finish(
    attempt: Attempt,
    status: Status,
    reason: str = "",
    trace: str = "",
    detail: Mapping[str, Any] | None = None,
) -> bool:
    """End an attempt: the record, once, then the log's ``end`` line; True for the one that did.

    ``detail`` is what the record holds beyond the log (per-step, per-rank columns).
    """
    begin_log(attempt)
    record = {
        "schema": SCHEMA,
        "sweep": attempt.sweep,
        "run": attempt.run.id,
        "repeat": attempt.run.repeat,
        "attempt": attempt.number,
        "launch": attempt.launch,
        "status": status.value,
        "reason": reason,
        "ended": utc(),
        "case": attempt.run.case.to_dict(),
        **(detail or {}),
    }
    if not write_once(attempt.paths.record, dump_json(record)):
        return False
    if read_end(attempt.paths.log) is None:
        text = "".join(f"| {line}\n" for line in trace.splitlines())
        end = write_line("end", {"status": status.value, "reason": reason or None})
        append_line(attempt.paths.log, text + end)
    return True


def describe(error: BaseException) -> str:
    """An exception in one line, as a reason: its type and the first line of its message."""
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def format_trace(error: BaseException) -> str:
    """The full traceback as text."""
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))
