"""Reading a job log of ours: begin, case, world, iterations, summary, end.

The log alone gives every reported number of its run. A log without an ``end`` line was cut; what
it holds up to there is told, and no number is made of it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dlperf_hpc.errors import LogError
from dlperf_hpc.records.lines import PREFIX, Line, read_line, unflatten
from dlperf_hpc.records.results import RunResult, Window
from dlperf_hpc.records.status import Status
from dlperf_hpc.spec.case import Case, Run

FORMAT = 1
_TAIL_BYTES = 8192


@dataclass
class ParsedLog:
    """A log's events by kind; ``end`` is None if the log was cut or the run still runs."""

    path: Path
    begin: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    ranks: list[dict[str, Any]] = field(default_factory=list)
    iterations: list[dict[str, Any]] = field(default_factory=list)
    phase: str = ""
    end: Line | None = None
    started: str = ""
    last: str = ""
    warnings: list[str] = field(default_factory=list)


def _take(log: ParsedLog, line: Line) -> None:
    log.last = line.time
    if line.event == "begin":
        log.begin, log.started = line.values, line.time
    elif line.event == "rank":
        log.ranks.append(line.values)
    elif line.event == "iteration":
        log.iterations.append(line.values)
    elif line.event == "phase":
        log.phase = str(line.values.get("name", ""))
    elif line.event == "end":
        log.end = line
    else:
        log.tables[line.event] = unflatten(line.values)


def read_log(path: Path) -> ParsedLog:
    """Read a whole log; LogError if it is not one of ours (or unreadable)."""
    try:
        text = path.read_bytes().decode("utf-8", errors="replace")
    except OSError as error:
        raise LogError(f"{path}: cannot be read: {error.strerror}") from error
    log = ParsedLog(path)
    lines = text.split("\n")
    for number, raw in enumerate(lines, 1):
        if not raw.startswith(f"{PREFIX} "):
            continue
        line = read_line(raw)
        if line is not None:
            _take(log, line)
        elif number == len(lines):
            log.warnings.append(f"line {number}: cut off")
        else:
            log.warnings.append(f"line {number}: cannot be read: {raw[:60]!r}")
    if not log.begin:
        raise LogError(f"{path}: no '{PREFIX} ... begin' line: not a log of this tool")
    if log.begin.get("format") != FORMAT:
        raise LogError(
            f"{path}: log format {log.begin.get('format')}, this version reads {FORMAT}:"
            " use a newer dlperf_hpc"
        )
    return log


def read_end(path: Path) -> Line | None:
    """Only the end of a log, quickly: its last ``end`` line, or None while there is none."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            tail = file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return None
    for raw in reversed(tail.split("\n")):
        line = read_line(raw)
        if line is not None and line.event == "end":
            return line
    return None


def _window(log: ParsedLog) -> Window | None:
    summary = log.tables.get("summary")
    if summary is None:
        return None
    try:
        return Window.from_dict(summary)
    except TypeError as error:
        log.warnings.append(f"summary line lacks a figure: {error}")
        return None


def _ending(log: ParsedLog, window: Window | None) -> tuple[Status, str]:
    if log.end is None:
        place = f"phase {log.phase}" if log.phase else "before its first phase"
        return Status.UNKNOWN, f"the log ends at {log.last} in {place}, without an end line"
    try:
        status = Status(log.end.values.get("status"))
    except ValueError:
        return Status.UNKNOWN, f"unknown status {log.end.values.get('status')!r} in the end line"
    if status is Status.OK and window is None:
        return Status.PARTIAL, "the log says ok but holds no complete summary"
    return status, str(log.end.values.get("reason", ""))


def result_of_log(path: Path) -> RunResult:
    """The run that a log tells of; LogError if it does not even name its case."""
    log = read_log(path)
    try:
        case = Case.from_dict(log.tables["case"])
        run = Run(case, int(log.begin["repeat"]))
        attempt = int(log.begin["attempt"])
    except (KeyError, TypeError, ValueError) as error:
        raise LogError(f"{path}: cut before its case was written ({error!r})") from error
    window = _window(log)
    status, reason = _ending(log, window)
    facts: dict[str, Any] = {
        name: log.tables[name] for name in ("world", "provenance") if name in log.tables
    }
    return RunResult(
        run=run,
        status=status,
        reason=reason,
        attempt=attempt,
        source="log",
        window=window,
        started=log.started,
        ended=log.end.time if log.end else "",
        log=str(path),
        facts={**facts, "ranks": log.ranks, "measure": log.tables.get("measure", {})},
        warnings=tuple(log.warnings),
    )
