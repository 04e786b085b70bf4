"""One line of a job log: ``dlperf <UTC time> <event> key=value ...`` (docs/log-format.md).

A value is a bare word or JSON; text with blanks or anything unusual is a JSON string, so that a
line stays one line and shows no control character whatever a host or a library is called. The lines
of iterations are read as a whole: when the window opened, and what each iteration took.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any, NamedTuple

from dlperf_hpc.model.checks import DECODER, is_number
from dlperf_hpc.model.result import Status, Window

PREFIX = "dlperf"
PROGRAM_END = "program_end"
"""The event that says how all of its processes ended; without it no run of a program is ok."""
NCCL = "nccl"
"""The event, and the fact of a run, that holds :meth:`.nccl.Connections.facts`."""
PROBE = "allreduce_probe"
"""The event that has all-reduces of the gradient's sizes, timed after the window."""
_BARE = re.compile(r"[A-Za-z_/@%:~][A-Za-z0-9_/.@%+:,~=-]*")
_WORDS_OF_JSON = {"true", "false", "null", "NaN", "Infinity"}
_BEGINS_NUMBER = frozenset("-0123456789")
_JSON_BEGINS = frozenset('"[{-0123456789tfn')
_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"
_EVENT = re.compile("[a-z_]+")
_KEY = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_LINE = re.compile(
    rf"{PREFIX} (?P<time>{_TIME}) (?P<event>{_EVENT.pattern})(?P<rest>(?: .*)?)", re.ASCII
)
_PAIR = re.compile(
    rf' (?P<key>{_KEY.pattern})=(?P<value>"(?:[^"\\]|\\.)*"(?= |$)|(?!")\S+)', re.ASCII
)


class LogLine(NamedTuple):
    """A log line that was understood; ``values`` has dotted keys."""

    time: str
    event: str
    values: dict[str, Any]


def utc(seconds: float | None = None) -> str:
    """Now, or ``seconds`` since the epoch, as ``2026-11-21T14:20:01.123456Z``."""
    moment = datetime.fromtimestamp(time.time() if seconds is None else seconds, timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def encode(value: Any) -> str:
    """One value as text; ValueError for NaN and Infinity, which are not JSON."""
    if not isinstance(value, str):
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
        return text.replace(" ", r"\u0020")
    bare = _BARE.fullmatch(value) and value not in _WORDS_OF_JSON
    return value if bare else json.dumps(value)


def decode(text: str) -> Any:
    """Inverse of :func:`encode`; what is not JSON, as ``NaN`` is not, is a bare word."""
    if text[:1] not in _JSON_BEGINS:
        return text
    try:
        value, end = DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return text
    return value if end == len(text) else text


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables with dotted keys: ``{"a": {"b": 1}}`` -> ``{"a.b": 1}``."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def unflatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """Inverse of :func:`flatten`, but for empty tables. ValueError: a key is value and table."""
    nested: dict[str, Any] = {}
    for key, value in values.items():
        *tables, name = key.split(".")
        table = nested
        for part in tables:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise ValueError(f"{key}: {part} is a value already")
        table[name] = value
    return nested


def write_line(
    event: str, values: Mapping[str, Any], when: str | None = None, nulls: bool = False
) -> str:
    """The line without its newline. None means "no data" and is left out; with ``nulls`` it is
    written as ``null``, for a key that a reader would miss. ValueError for a name that could not be
    read back, or a number that is not JSON."""
    fields = {key: value for key, value in flatten(values).items() if nulls or value is not None}
    if not (_EVENT.fullmatch(event) and all(map(_KEY.fullmatch, fields))):
        raise ValueError(f"not names for a log line: {event!r} with {list(fields)}")
    pairs = "".join(f" {key}={encode(value)}" for key, value in fields.items())
    return f"{PREFIX} {when or utc()} {event}{pairs}"


def read_line(text: str) -> LogLine | None:
    """The line if it is one of ours and whole, else None."""
    head = split_line(text)
    if head is None:
        return None
    when, event, rest = head
    values = read_values(rest)
    return None if values is None else LogLine(when, event, values)


def split_line(text: str) -> tuple[str, str, str] | None:
    """Time, event and what :func:`read_values` reads, of a line of ours; None for another."""
    match = _LINE.fullmatch(text)
    return match and (match["time"], match["event"], match["rest"])


def read_values(text: str) -> dict[str, Any] | None:
    """What stands behind a line's event, `` key=value key=value``; None if it is damaged."""
    pairs = _PAIR.findall(text)
    # Each is " key=value": together they are the whole text, unless something lies between them.
    if sum(map(len, map("".join, pairs))) + 2 * len(pairs) != len(text):
        return None
    numbers = [value for _, value in pairs if value[0] in _BEGINS_NUMBER]
    if "," in text or len(numbers) < 2:
        return {key: decode(value) for key, value in pairs}
    try:  # most values are numbers: all at once takes a fraction of the time
        decoded = iter(DECODER.decode(f"[{','.join(numbers)}]"))
    except ValueError:
        return {key: decode(value) for key, value in pairs}
    return {
        key: next(decoded) if value[0] in _BEGINS_NUMBER else decode(value) for key, value in pairs
    }


_ITERATION = re.compile(
    rb"^dlperf (\S{27}) iteration n=([0-9]+)(?: loss=\S+)? ms=([0-9.eE+-]+)\r?$", re.MULTILINE
)
_OPENED = re.compile(rb"^dlperf (\S{27}) window_open iteration=([0-9]+)\r?$", re.MULTILINE)


_STAMPED = len("dlperf 2026-11-21T14:53:20.696482Z")


@dataclass(frozen=True)
class Timeline:
    """The iteration lines of a log: numbers of the line and of the iteration before the window,
    stamps (the first is the window's opening), and milliseconds."""

    before: int
    numbers: tuple[int, ...]
    stamps: Sequence[bytes]
    ms: Sequence[float]

    def seconds(self, first: int, last: int) -> float:
        """Time between two stamps. ValueError if one of them is none."""
        opened, ended = (
            datetime.fromisoformat(self.stamps[place][:-1].decode("ascii"))
            for place in (first, last)
        )
        return (ended - opened).total_seconds()


def read_timeline(data: bytes) -> tuple[Timeline | None, slice]:
    """The iteration lines in a log, None if there are none that can be read; and where they stand
    with nothing else between, so that nobody need look there again."""
    opened = _OPENED.search(data)
    if opened is None:
        return None, slice(0, 0)
    block = slice(opened.start(), data.find(b" communication ", opened.end()) - _STAMPED)
    found = _ITERATION.findall(data, block.start, max(0, block.stop))
    if not found or 1 + len(found) != data.count(b"\n", block.start, block.stop):
        found, block = _ITERATION.findall(data), slice(0, 0)
    try:
        stamps, numbers, ms = zip(*found)
        timeline = Timeline(
            before=int(opened[2]),
            numbers=tuple(map(int, numbers)),
            stamps=[opened[1], *stamps],
            ms=list(map(float, ms)),
        )
    except ValueError:
        return None, slice(0, 0)
    return timeline, block


# --- the line of a Timer


SUPERVISED = "DLPERF_SUPERVISED"
"""The variable that asks a Timer for the line: a supervisor of ours reads what it prints."""

_TIMED = "timed"
_BEGINS = f"{PREFIX} 2"
_LITERAL = f" {_TIMED} status="
_MOST_NOTES, _LONGEST_NOTE = 10, 300  # so that one write to a pipe is one line: 4096 bytes


@dataclass(frozen=True)
class TimerReport:
    """What a Timer has told: its window, or why there is none; ``notes`` are its remarks,
    ``opened`` is when the window began (s since 1970)."""

    status: Status
    window: Window | None = None
    reason: str = ""
    notes: tuple[str, ...] = ()
    opened: float | None = None


def timed_line(timed: TimerReport) -> str:
    """The line, without its newline."""
    values = {
        "status": timed.status.value,
        "reason": timed.reason[:_LONGEST_NOTE],
        **(asdict(timed.window) if timed.window else {}),
        "notes": [note[:_LONGEST_NOTE] for note in timed.notes[:_MOST_NOTES]],
        "opened": timed.opened,
    }
    return write_line(_TIMED, values, nulls=True)


def read_timed(text: str) -> TimerReport | None:
    """What a line of a program tells of its Timer, behind whatever label of a launcher; None for
    any other line, and for one that is damaged."""
    if _LITERAL not in text:
        return None
    line = read_line(text[max(text.find(_BEGINS), 0) :].rstrip())
    if line is None or line.event != _TIMED:
        return None
    values = line.values
    try:
        status = Status(values.get("status"))
        window = Window.from_dict(values) if status is Status.OK else None
    except (TypeError, ValueError):
        return None
    notes = values.get("notes")
    if not isinstance(notes, list):
        notes = []
    reason, opened = str(values.get("reason", "")), values.get("opened")
    moment = opened if is_number(opened) else None  # earlier versions do not tell it
    return TimerReport(status, window, reason, tuple(map(str, notes)), moment)


def timed_in(lines: Iterable[str]) -> Iterator[TimerReport]:
    """What the Timers of a program have told, in the order of its lines."""
    return (report for line in lines if (report := read_timed(line)) is not None)
