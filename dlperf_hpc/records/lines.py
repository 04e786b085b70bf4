"""One line of a job log: ``dlperf <UTC time> <event> key=value ...`` (docs/log-format.md).

A value is a bare word or JSON; text with blanks or anything unusual is a JSON string, so that a
line stays one line and shows no control character whatever a host or a library is called.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, NamedTuple

PREFIX = "dlperf"
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


class Line(NamedTuple):
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
    if isinstance(value, str) and _BARE.fullmatch(value) and value not in _WORDS_OF_JSON:
        return value
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text if isinstance(value, str) else text.replace(" ", r"\u0020")


def decode(text: str) -> Any:
    """Inverse of :func:`encode`; what is not JSON, as ``NaN`` is not, is a bare word."""
    if text[:1] not in _JSON_BEGINS:
        return text
    try:
        value, end = _JSON.raw_decode(text)
    except (ValueError, RecursionError):
        return text
    return value if end == len(text) else text


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


_JSON = json.JSONDecoder(parse_constant=_no_number)


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
    """Inverse of :func:`flatten`, but for empty tables, which leave no trace.

    ValueError where a key is both a value and a table.
    """
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
    written as ``null``, for a key that a reader would miss.

    ValueError for a name that could not be read back, or a number that is not JSON.
    """
    told = {key: value for key, value in flatten(values).items() if nulls or value is not None}
    if not (_EVENT.fullmatch(event) and all(map(_KEY.fullmatch, told))):
        raise ValueError(f"not names for a log line: {event!r} with {list(told)}")
    pairs = "".join(f" {key}={encode(value)}" for key, value in told.items())
    return f"{PREFIX} {when or utc()} {event}{pairs}"


def read_line(text: str) -> Line | None:
    """The line if it is one of ours and whole, else None."""
    head = split_line(text)
    values = None if head is None else read_values(head[2])
    return None if head is None or values is None else Line(head[0], head[1], values)


def split_line(text: str) -> tuple[str, str, str] | None:
    """Time, event and what :func:`read_values` reads, of a line of ours; None for another."""
    match = _LINE.fullmatch(text)
    return None if match is None else (match["time"], match["event"], match["rest"])


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
        decoded = iter(_JSON.decode(f"[{','.join(numbers)}]"))
    except ValueError:
        return {key: decode(value) for key, value in pairs}
    return {
        key: next(decoded) if value[0] in _BEGINS_NUMBER else decode(value) for key, value in pairs
    }
