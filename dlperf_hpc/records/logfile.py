"""Reading a job log of ours: begin, case, world, iterations, summary, end.

The log alone gives every reported number of its run. A log without an ``end`` line was cut; what
it holds up to there is told, and no number is made of it. A line is whole with its newline.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dlperf_hpc.errors import LogError
from dlperf_hpc.records.lines import PREFIX, Line, read_line, unflatten
from dlperf_hpc.records.results import Checkpoint, GpuUse, RunResult, Window, misfits
from dlperf_hpc.records.status import Status
from dlperf_hpc.sweepfile.case import Case, Run

FORMAT = 1
_TAIL_BYTES = 8192
_EVENT = len(f"{PREFIX} 2026-11-21T14:53:20.696482Z ")  # where the event's name begins


@dataclass
class ParsedLog:
    """A log's events by kind; ``end`` is None if the log was cut or the run still runs."""

    path: Path
    begin: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    ranks: list[dict[str, Any]] = field(default_factory=list)
    iterations: list[dict[str, Any]] = field(default_factory=list)
    gpus: list[dict[str, Any]] = field(default_factory=list)
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
    elif line.event == "gpu":
        log.gpus.append(line.values)
    elif line.event == "iteration":
        log.iterations.append(line.values)
    elif line.event == "phase":
        log.phase = str(line.values.get("name", ""))
    elif line.event == "end":
        log.end = line
    else:
        log.tables[line.event] = unflatten(line.values)


def _lines(log: ParsedLog, data: bytes, iterations: bool) -> Iterator[tuple[int, Line]]:
    """Our lines with their numbers; those that cannot be read become warnings."""
    *whole, rest = data.decode("utf-8", errors="replace").split("\n")
    for number, raw in enumerate(whole, 1):
        if raw.startswith(f"{PREFIX} ") and (
            iterations or not raw.startswith("iteration ", _EVENT)
        ):
            line = read_line(raw.rstrip("\r"))
            if line is None:
                log.warnings.append(f"line {number}: cannot be read: {raw[:60]!r}")
            else:
                yield number, line
    if rest:
        log.warnings.append(f"line {len(whole) + 1}: cut off: {rest[:60]!r}")


def read_log(path: Path, iterations: bool = True, data: bytes | None = None) -> ParsedLog:
    """Read a whole log; LogError if it is not one of ours, not just one, or unreadable.

    Without ``iterations`` their lines, most of a log, are passed over: no figure rests on them.
    ``data`` is the log's content where ``path`` only names it (a member of an archive).
    """
    if data is None:
        try:
            data = _bytes(path)
        except OSError as error:
            raise LogError(f"{path}: cannot be read: {error.strerror}") from error
    log = ParsedLog(path)
    for number, line in _lines(log, data, iterations):
        if (line.event == "begin") is bool(log.begin):
            what = "begins again: two logs in one file" if log.begin else "comes before any 'begin'"
            raise LogError(f"{path}:{number}: {what}; nothing can be told of it")
        try:
            _take(log, line)
        except ValueError as error:
            log.warnings.append(f"line {number}: cannot be read: {error}")
    if not log.begin:
        raise LogError(f"{path}: no '{PREFIX} ... begin' line: not a log of this tool")
    if log.begin.get("format") != FORMAT:
        raise LogError(
            f"{path}: log format {log.begin.get('format')}, this version reads {FORMAT}:"
            " use a newer dlperf_hpc"
        )
    return log


def _bytes(path: Path, last: int | None = None) -> bytes:
    with open(path, "rb") as file:
        if last is not None:
            file.seek(max(0, os.fstat(file.fileno()).st_size - last))
        return file.read()


def read_end(path: Path) -> Line | None:
    """Only the end of a log, quickly: its last ``end`` line, or None while there is none.

    LogError if there is a log that cannot be read.
    """
    try:
        tail = _bytes(path, _TAIL_BYTES)
        end = _last_end(tail)
        # A rank that did not know of the end yet may have written more than a tail after it.
        return _last_end(_bytes(path)) if end is None and len(tail) == _TAIL_BYTES else end
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise LogError(f"{path}: cannot be read: {error.strerror}") from error


def _last_end(data: bytes) -> Line | None:
    for raw in reversed(data.decode("utf-8", errors="replace").split("\n")[:-1]):
        line = read_line(raw.rstrip("\r"))
        if line is not None and line.event == "end":
            return line
    return None


def told_by(end: Line) -> tuple[Status, str]:
    """Status and reason in an ``end`` line."""
    try:
        return Status(end.values.get("status")), str(end.values.get("reason", ""))
    except ValueError:
        return Status.UNKNOWN, f"unknown status {end.values.get('status')!r} in the end line"


def _window(log: ParsedLog) -> Window | None:
    summary = log.tables.get("summary")
    if summary is None:
        return None
    try:
        return Window.from_dict(summary)
    except TypeError as error:
        log.warnings.append(f"the summary line is not complete: {error}")
        return None


def _checkpoint(log: ParsedLog) -> Checkpoint | None:
    """Figures of the ``checkpoint`` line. What it lacks is a warning, with the line's reason."""
    told = log.tables.get("checkpoint")
    if told is None:
        return None
    if "reason" in told:
        log.warnings.append(f"checkpoint: {told['reason']}")
    if "save_s" not in told:
        return None
    try:
        return Checkpoint.from_dict(told)
    except TypeError as error:
        log.warnings.append(f"the checkpoint line is not complete: {error}")
        return None


def _ending(log: ParsedLog, window: Window | None) -> tuple[Status, str]:
    if log.end is None:
        place = f"phase {log.phase}" if log.phase else "before its first phase"
        return Status.UNKNOWN, f"the log ends at {log.last} in {place}, without an end line"
    status, reason = told_by(log.end)
    if status is Status.OK and window is None:
        return Status.PARTIAL, "the log says ok but holds no complete summary"
    return status, reason


def _run(log: ParsedLog) -> Run:
    try:
        run = Run(Case.from_dict(log.tables["case"]), log.begin["repeat"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise LogError(f"{log.path}: cut before its case was written ({error!r})") from error
    for name, value in (*misfits(run.case), *misfits(run)):
        raise LogError(f"{log.path}: its case is damaged: {name} is {value!r}")
    if log.begin.get("run") != run.id:
        raise LogError(f"{log.path}: begins as {log.begin.get('run')}, but its case is {run.id}")
    return run


def result_of_log(path: Path, data: bytes | None = None) -> RunResult:
    """The run that a log tells of; LogError if it does not even name its case.

    ``data`` is the log's content where ``path`` only names it (a member of an archive).
    """
    log = read_log(path, iterations=False, data=data)
    run, attempt = _run(log), log.begin.get("attempt")
    if not isinstance(attempt, int):
        raise LogError(f"{path}: its attempt is {attempt!r}, not a number")
    window, checkpoint = _window(log), _checkpoint(log)
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
        launch=str(log.begin.get("launch", "")),
        gpu=GpuUse.of_devices([gpu for gpu in log.gpus if gpu.get("when") == "window"]),
        checkpoint=checkpoint,
    )
