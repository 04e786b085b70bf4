"""Reading a job log of ours: begin, case, world, iterations, summary, end.

The log alone gives every reported number of its run. A log without an ``end`` line was cut; what
it holds up to there is told, and no number is made of it. A line is whole with its newline.
"""

from __future__ import annotations

import errno
import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from dlperf_hpc.errors import ABSENT, LogError, raising
from dlperf_hpc.files import open_regular, read_regular
from dlperf_hpc.model import result
from dlperf_hpc.model.case import OBSERVED, Case, ObservedCase, ObservedRun, Run
from dlperf_hpc.model.checks import is_number, misfits
from dlperf_hpc.records import lines
from dlperf_hpc.records.record import in_log

FORMAT = 1
MOST_TIMES = 5_000_000
"""Times of iterations that are looked at of one run."""
MOST_MS = 1e12
"""Of one iteration, 30 years: no sum of such times is beyond a float."""
_TAIL_BYTES = 8192
_FACTS = ("world", "provenance", lines.NCCL, result.PROGRAM, lines.PROGRAM_END)
_STATED = ("flops_per_sample", "framework_name", "framework_version")
"""What a run states about its workload and framework, in whichever table of the log."""

_PREFIX = f"{lines.PREFIX} ".encode()
_EVENT = len(f"{lines.PREFIX} 2026-11-21T14:53:20.696482Z ")  # where the event's name begins
_Found = TypeVar("_Found")

_HEAD_BYTES = 1024
_BEGIN = re.compile(rb"dlperf \S+Z begin format=1 ")
# Only as it is written: a figure that is missing, or is no number, is for who reads the whole log.
_FIGURES = b"".join(
    rb" %s=-?[0-9][0-9.]*(?:e[+-]?[0-9]+)?" % each.name.encode()
    for each in fields(result.Window)
    if each.default is MISSING
)
_SUMMARY = re.compile(rb" summary%s(?: [a-z_0-9]+=[-+.\w]+)*\n" % _FIGURES)
_DOUBTFUL = {
    b" steady=false": "its window is not steady (drift, or a jump inside it)",
    b" optimizer_steps=0 ": "its window holds no optimizer step",
}
_OK = b" end status=ok\n"
_PROGRAM_OK = re.compile(rb"\ndlperf \S{27} program_end [^\n]*\ndlperf \S{27} end status=ok\n\Z")


@dataclass
class ParsedLog:
    """A log's events by kind; ``end`` is None if the log was cut or the run still runs. ``tables``
    are shared by logs that have the same, and ``case`` is its line's text. ``timeline`` has the
    iteration lines where they are not read one by one; ``repeated`` are events that stand in the
    log once more, with other values."""

    path: Path
    begin: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    case: str | None = None
    ranks: list[dict[str, Any]] = field(default_factory=list)
    iterations: list[dict[str, Any]] = field(default_factory=list)
    gpus: list[dict[str, Any]] = field(default_factory=list)
    phase: str = ""
    end: lines.LogLine | None = None
    started: str = ""
    last: str = ""
    warnings: list[str] = field(default_factory=list)
    timeline: lines.Timeline | None = None
    repeated: list[str] = field(default_factory=list)


_SHARED = ("case", "measure", "provenance", "world")
"""Tables that many runs of a sweep have in common: read once, and held once."""
_ONCE = ("case", "world", "summary")  # a checkpoint that fails may have a line more
_ALIKE = (*_SHARED, "phase", "window_open", "end")
_MISPLACED = ("comes before any 'begin'", "begins again: two logs in one file")
_LISTS = {"rank": "ranks", "gpu": "gpus", "iteration": "iterations"}
"""Events of which a log has many lines, and the lists that keep them."""


@functools.lru_cache(maxsize=1024)
def _shared_values(text: str) -> dict[str, Any] | None:
    return lines.read_values(text)


@functools.lru_cache(maxsize=1024)
def _shared_table(text: str) -> Mapping[str, Any]:
    return lines.unflatten(_shared_values(text) or {})


def _line(raw: str) -> tuple[lines.LogLine, str] | None:
    """A line of ours, and the text of its values; None if it cannot be read."""
    head = lines.split_line(raw.rstrip("\r"))
    if head is None:
        return None
    when, event, text = head
    values = _shared_values(text) if event in _ALIKE else lines.read_values(text)
    return None if values is None else (lines.LogLine(when, event, values), text)


def _take(log: ParsedLog, line: lines.LogLine, text: str) -> None:
    event, values = line.event, line.values
    log.last = line.time
    if event == "begin":
        log.begin, log.started = values, line.time
    elif event in _LISTS:
        getattr(log, _LISTS[event]).append(values)
    elif event == "phase":
        log.phase = str(values.get("name", ""))
    elif event == "note":
        log.warnings.append(str(values.get("text", "")))
    elif event == "end":
        if log.end is not None and log.end.values != values:
            log.repeated.append("end")
        log.end = line
    else:
        _take_table(log, line, text)


def _take_table(log: ParsedLog, line: lines.LogLine, text: str) -> None:
    event = line.event
    table = _shared_table(text) if event in _SHARED else lines.unflatten(line.values)
    if event in _ONCE and log.tables.get(event, table) != table:
        log.repeated.append(event)
    log.tables[event] = table
    if event == "case":
        log.case = text


def _lines(log: ParsedLog, data: bytes, iterations: bool) -> Iterator[tuple[int, str]]:
    """Our lines with their numbers, as text; one that is cut off becomes a warning."""
    skipped = slice(0, 0)
    if not iterations:  # most of a log: they are not even decoded
        log.timeline, skipped = lines.read_timeline(data)
    behind = 1 + data.count(b"\n", 0, skipped.stop)
    rest, number = b"", 0
    for first, part in ((1, data[: skipped.start]), (behind, data[skipped.stop :])):
        *whole, rest = part.split(b"\n")
        for number, raw in enumerate(whole, first):
            if raw.startswith(_PREFIX):
                text = raw.decode("utf-8", errors="replace")
                if iterations or not text.startswith("iteration ", _EVENT):
                    yield number, text
        number = first + len(whole)
    if rest:
        log.warnings.append(f"line {number}: cut off: {rest.decode('utf-8', 'replace')[:60]!r}")


def read_log(path: Path, iterations: bool = True, data: bytes | None = None) -> ParsedLog:
    """Read a whole log; LogError if it is not one of ours, not just one, or unreadable. Without
    ``iterations`` their lines, most of a log, are passed over: no figure rests on them. ``data`` is
    the log's content where ``path`` only names it (a member of an archive)."""
    data = read_bytes(path) if data is None else data
    if data is None:
        raise LogError(f"{path}: cannot be read: {os.strerror(errno.ENOENT)}")
    log = ParsedLog(path)
    for number, raw in _lines(log, data, iterations):
        found = _line(raw)
        if found is None:
            log.warnings.append(f"line {number}: cannot be read: {raw[:60]!r}")
            continue
        line, text = found
        if (line.event == "begin") is bool(log.begin):
            what = _MISPLACED[bool(log.begin)]
            raise LogError(f"{path}:{number}: {what}; nothing can be told of it")
        try:
            _take(log, line, text)
        except ValueError as error:
            log.warnings.append(f"line {number}: cannot be read: {error}")
    if not log.begin:
        raise LogError(f"{path}: no '{lines.PREFIX} ... begin' line: not a log of this tool")
    if log.begin.get("format") != FORMAT:
        raise LogError(
            f"{path}: log format {log.begin.get('format')}, this version reads {FORMAT}:"
            " use a newer dlperf_hpc"
        )
    return log


@dataclass(frozen=True)
class Timed:
    """What a log has over time: by the numbers of its iterations the slowest rank's time (``ms``)
    and the mean loss, where these are such; and its lines ``gpu`` of the window."""

    ms: Mapping[int, float] = field(default_factory=dict)
    losses: Mapping[int, float] = field(default_factory=dict)
    gpus: Sequence[Mapping[str, Any]] = ()


def read_timed(path: Path) -> Timed:
    """What a log has over time; nothing for a log that cannot be read."""
    try:
        log = read_log(path)
    except (LogError, ValueError):
        return Timed()
    numbered: Iterator[tuple[Any, Any, Any]] = (
        (line.get("n"), line.get("ms"), line.get("loss")) for line in log.iterations[:MOST_TIMES]
    )
    known = [row for row in numbered if type(row[0]) is int]
    return Timed(
        {n: ms for n, ms, _ in known if is_number(ms) and 0 <= ms <= MOST_MS},
        {n: float(loss) for n, _, loss in known if is_number(loss)},
        _gpus_of_window(log),
    )


def started(path: Path) -> float | None:
    """When a log of ours was begun, in seconds since the epoch; None where that cannot be read."""
    try:
        with open_regular(path) as file:
            head = file.read(_HEAD_BYTES)
        begin = _BEGIN.match(head)
        stamp = head.split(b" ", 2)[1].decode() if begin else ""
        return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
    except (OSError, ValueError):
        return None


def _reading(read: Callable[[Path], _Found | None], path: Path) -> _Found | None:
    """What is read of a log, None if there is none; LogError if it cannot be read."""
    with raising(LogError, f"{path}: cannot be read"), suppress(*ABSENT):
        return read(path)
    return None


def read_bytes(path: Path) -> bytes | None:
    """All of a log, or None if there is none; LogError if it cannot be read."""
    return _reading(read_regular, path)


def read_end(path: Path) -> lines.LogLine | None:
    """Only the end of a log, quickly: its last ``end`` line, or None while there is none. LogError
    if there is a log that cannot be read."""
    return _reading(_end_of, path)


def _end_of(path: Path) -> lines.LogLine | None:
    _, tail = _head_and_tail(path)
    end = _last_end(tail)
    if end is None and len(tail) == _TAIL_BYTES:
        # A rank that did not know of the end yet may have written more than a tail after it.
        return _last_end(read_regular(path))
    return end


def _head_and_tail(path: Path) -> tuple[bytes, bytes]:
    with open_regular(path) as file:
        head = file.read(_HEAD_BYTES)
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
        return head, file.read(_TAIL_BYTES)


def glance(path: Path, run_id: str) -> tuple[lines.LogLine | None, bool, tuple[str, ...]]:
    """Whether a log is seen at once to prove that this run ended ok (it begins as that run's, and
    ends with a whole summary, or the end of a user's program, and an end that says ok, as they are
    written), and what its summary gives to doubt. If not so, its ``end`` line as :func:`read_end`
    gives it: the run may be ok, but the whole log must be read."""
    found = _reading(_head_and_tail, path)
    if found is None:
        return None, False, ()
    head, tail = found
    begin = head.partition(b"\n")[0]
    begins = _BEGIN.match(begin) is not None and f" run={run_id} ".encode() in begin
    summed = _SUMMARY.match(tail, tail.rfind(b" summary ")) or _PROGRAM_OK.search(tail)
    if begins and tail.endswith(_OK) and summed:
        return None, True, tuple(text for sign, text in _DOUBTFUL.items() if sign in summed[0])
    return read_end(path), False, ()


def _last_end(data: bytes) -> lines.LogLine | None:
    for raw in reversed(data.decode("utf-8", errors="replace").split("\n")[:-1]):
        line = lines.read_line(raw.rstrip("\r"))
        if line is not None and line.event == "end":
            return line
    return None


def end_status(end: lines.LogLine) -> tuple[result.Status, str]:
    """Status and reason in an ``end`` line."""
    try:
        return result.Status(end.values.get("status")), str(end.values.get("reason", ""))
    except ValueError:
        return result.Status.UNKNOWN, f"unknown status {end.values.get('status')!r} in the end line"


def _complete(
    log: ParsedLog, event: str, make: Callable[[Mapping[str, Any]], _Found]
) -> _Found | None:
    """What is made of an event's figures; None without the event, and if it lacks some, which is a
    warning."""
    if event not in log.tables:
        return None
    try:
        return make(log.tables[event])
    except TypeError as error:
        log.warnings.append(f"the {event} line is not complete: {error}")
        return None


def _after_window(
    log: ParsedLog, event: str, key: str, make: Callable[[Mapping[str, Any]], _Found]
) -> _Found | None:
    """Figures of an event after the window, which has them if it has ``key``. What it lacks is a
    warning, with the line's reason."""
    figures = log.tables.get(event, {})
    if "reason" in figures:
        log.warnings.append(f"{event}: {figures['reason']}")
    return _complete(log, event, make) if key in figures else None


def _rank_times(log: ParsedLog) -> tuple[tuple[result.RankTime, ...], str]:
    """Each rank's own time, in the order of ranks, or why there are none."""
    steps = log.tables.get("communication")
    if steps is None:
        return (), "its log tells of no steps without the exchange of gradients"
    times = steps.get("rank_ms")
    if not isinstance(times, list):
        earlier = "its log, of an earlier version, has the slowest rank's time alone"
        return (), str(steps.get("reason") or steps.get("rank_reason") or earlier)
    ranks = {_int_or(row.get("rank"), None): row for row in log.ranks}
    whole = ranks.keys() == set(range(len(times)))
    if not whole or not all(is_number(each) and each > 0 for each in times):
        return (), "the times of its ranks are damaged"
    gpus = {_int_or(gpu.get("rank"), None): gpu for gpu in _gpus_of_window(log)}
    world = log.tables.get("world", {})
    made = [_rank_time(ms, {**world, **ranks[n]}, gpus.get(n, {})) for n, ms in enumerate(times)]
    waits: Any = steps.get("rank_wait_ms")
    known = isinstance(waits, list) and all(is_number(wait) and wait >= 0 for wait in waits)
    if known and len(waits) == len(made):
        made = [replace(time, wait_ms=float(wait)) for time, wait in zip(made, waits)]
    return tuple(made), ""


def _gpus_of_window(log: ParsedLog) -> list[dict[str, Any]]:
    return [gpu for gpu in log.gpus if gpu.get("when") == "window"]


def _rank_time(ms: float, facts: Mapping[str, Any], gpu: Mapping[str, Any]) -> result.RankTime:
    device = str(facts.get("device", "")).lower()
    mhz = gpu.get("sm_mhz")
    return result.RankTime(
        host=str(facts.get("host", "?")),
        local_rank=_int_or(facts.get("local_rank"), 0),
        ms=float(ms),
        gpu="cuda" in device or "gpu" in device,
        uuid=str(facts.get("device_uuid") or ""),
        sm_mhz=mhz if is_number(mhz) else None,
        throttle=_int_or(gpu.get("throttle"), None),
    )


def _int_or(value: Any, default: Any) -> Any:
    return value if type(value) is int else default


def _ending(log: ParsedLog, window: result.Window | None) -> tuple[result.Status, str]:
    if log.end is None:
        place = f"phase {log.phase}" if log.phase else "before its first phase"
        return result.Status.UNKNOWN, f"the log ends at {log.last} in {place}, without an end line"
    status, reason = end_status(log.end)
    if status is result.Status.OK and window is None and lines.PROGRAM_END not in log.tables:
        return result.Status.PARTIAL, "the log says ok but holds no complete summary"
    return status, reason


def _run(log: ParsedLog) -> Run | ObservedRun:
    run: Run | ObservedRun
    try:
        case, damaged = _case(log.case)
        repeat = log.begin["repeat"]
        if isinstance(case, ObservedCase):
            run = ObservedRun(case, repeat, str(log.path))
        else:
            run = Run(case, repeat)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise LogError(f"{log.path}: cut before its case was written ({error!r})") from error
    for name, value in (*damaged, *misfits(run)):
        raise LogError(f"{log.path}: its case is damaged: {name} is {value!r}")
    if log.begin.get("run") != run.id:
        raise LogError(f"{log.path}: begins as {log.begin.get('run')}, but its case is {run.id}")
    return run


@functools.lru_cache(maxsize=1024)
def _case(text: str | None) -> tuple[Case | ObservedCase, list[tuple[str, Any]]]:
    """The case of a log's line, one value for all repeats, and what in it does not fit."""
    if text is None:
        raise KeyError("case")
    table = _shared_table(text)
    kind: type[Case | ObservedCase] = Case
    if table.get(OBSERVED) is True:
        kind = ObservedCase
    case = kind.from_dict(table)
    return case, misfits(case)


def result_of_log(path: Path, data: bytes | None = None) -> result.RunResult:
    """The run that a log tells of by itself; LogError if it does not even name its case. Whether
    its number counts where the log contradicts itself, :func:`.record.reconcile` says. ``data`` is
    the log's content where ``path`` only names it (a member of an archive)."""
    log = read_log(path, iterations=False, data=data)
    run, attempt = _run(log), log.begin.get("attempt")
    if not isinstance(attempt, int):
        raise LogError(f"{path}: its attempt is {attempt!r}, not a number")
    window = _complete(log, "summary", result.Window.from_dict)
    allreduces = _after_window(log, lines.PROBE, "bytes", result.AllReduces.from_dict)
    checkpoint = _after_window(log, "checkpoint", "save_s", result.Checkpoint.from_dict)
    status, reason = _ending(log, window)
    rank_times, rank_times_missing = _rank_times(log)
    return result.RunResult(
        run=run,
        status=status,
        reason=reason,
        attempt=attempt,
        source="log",
        window=window,
        started=log.started,
        ended=log.end.time if log.end else "",
        log=str(path),
        facts=_facts(log),
        warnings=tuple(log.warnings),
        launch=str(log.begin.get("launch", "")),
        gpu=result.GpuUse.of_devices(_gpus_of_window(log)),
        checkpoint=checkpoint,
        allreduces=allreduces,
        contradictions=_contradictions(log, window),
        rank_times=rank_times,
        rank_times_missing=rank_times_missing,
    )


def _facts(log: ParsedLog) -> dict[str, Any]:
    facts: dict[str, Any] = {name: log.tables[name] for name in _FACTS if name in log.tables}
    for table in log.tables.values():
        facts.update((name, table[name]) for name in _STATED if name in table)
    drivers = {str(gpu["driver"]) for gpu in log.gpus if gpu.get("driver")}
    if drivers:
        facts["drivers"] = sorted(drivers)
    return {**facts, "ranks": log.ranks, "measure": log.tables.get("measure", {})}


def _contradictions(
    log: ParsedLog, window: result.Window | None
) -> tuple[result.Contradiction, ...]:
    if window is None:
        return ()
    twice = [
        result.Contradiction("log", f"the log has two lines {event} that differ", doubt=True)
        for event in dict.fromkeys(log.repeated)
    ]
    return (*twice, *in_log(log.tables, window, log.timeline))
