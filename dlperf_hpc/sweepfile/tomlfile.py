"""A TOML file into tables, within bounds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tomllib

from dlperf_hpc.errors import Issue, SpecError, nearest
from dlperf_hpc.files import read_regular

# docs/sweep-file.md tells these bounds. All that follows is bounded by them, in time and in memory.
MOST_BYTES = 1 << 20
MOST_VALUES = 20_000
MOST_LEVELS = 16
MOST_IN_A_KEY = 200

_PART = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')"""
# The time that tomllib takes for a key grows with the square of the number of its parts. As many
# as 100 parts with dots between them are in no text and in no comment either.
_LONG_KEY = re.compile(rf"(?<![\w.-]){_PART}(?:[ \t]*\.[ \t]*{_PART}){{99}}", re.ASCII)


class _TooMuch(ValueError):
    """TOML that is valid, but more than is read."""


def read_toml(path: Path) -> tuple[str, dict[str, Any]]:
    """The file's text and its tables; SpecError with the line for a syntax error.

    SpecError also for what is no regular file, and for one with more of anything than the bounds
    above allow.
    """
    try:
        text = read_regular(path, MOST_BYTES).decode("utf-8-sig")
    except FileNotFoundError:
        hint = _beside(path)
        raise SpecError(str(path), [Issue("file", "there is no such file", hint)]) from None
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
        raise SpecError(str(path), [Issue("file", why)]) from error
    except UnicodeDecodeError as error:
        utf_16 = error.object[:2] in (b"\xff\xfe", b"\xfe\xff")
        form = "in UTF-16" if utf_16 else f"not UTF-8 at byte {error.start + 1}"
        why = f"cannot be read: the text is {form}"
        raise SpecError(str(path), [Issue("file", why, "save it as UTF-8")]) from error
    try:
        return text, parse_toml(text)
    except _TooMuch as error:
        raise SpecError(str(path), [Issue("file", str(error))]) from error
    except ValueError as error:
        from dlperf_hpc.sweepfile.syntax import hint as meant
        from dlperf_hpc.sweepfile.syntax import told

        issue = Issue("TOML syntax", told(str(error)), meant(text, str(error)))
        raise SpecError(str(path), [issue]) from error


def _beside(path: Path) -> str | None:
    """The file beside a missing one whose name is most like it."""
    try:
        names = [each.name for each in path.parent.iterdir() if each.suffix == path.suffix]
    except OSError:
        return f"the directory {path.parent} cannot be read, or is not there"
    return nearest(path.name, names)


def parse_toml(text: str) -> dict[str, Any]:
    """TOML as tables; ValueError for what is none, or has more of anything than is allowed."""
    long_key = _LONG_KEY.search(text)
    if long_key is not None:
        line = text.count("\n", 0, long_key.start()) + 1
        raise _TooMuch(f"line {line}: a key has more than {MOST_LEVELS} parts")
    try:
        tables = tomllib.loads(text)  # ValueError also for numbers too long for Python
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    _check_size(tables)
    return tables


def _check_size(tables: Mapping[str, Any]) -> None:
    """_TooMuch for more values, levels or digits than are read."""
    count = 0
    left: list[tuple[str, int, Iterator[Any]]] = [("", 0, iter(tables.items()))]
    while left:
        where, level, items = left.pop()
        for key, value in items:
            count += 1
            if count > MOST_VALUES:
                place = _short(_place(where, key))
                raise _TooMuch(f"{place}: the file has more than {MOST_VALUES} values")
            if wrong := _too_large(key, value, level):
                raise _TooMuch(f"{_short(_place(where, key))}: {wrong}")
            if isinstance(value, dict):
                left.append((_place(where, key), level + 1, iter(value.items())))
            elif isinstance(value, list):
                left.append((_place(where, key), level + 1, iter(enumerate(value))))


def _place(where: str, key: str | int) -> str:
    return f"{where}.{key}" if isinstance(key, str) else f"{where}[{key}]"


def _too_large(key: str | int, value: Any, level: int) -> str:
    """Why a value at this depth is more than is read; '' if it is not."""
    if isinstance(key, str) and len(key) > MOST_IN_A_KEY:
        return f"a key has more than {MOST_IN_A_KEY} characters"
    if isinstance(value, (dict, list)) and level == MOST_LEVELS:
        return f"is nested more than {MOST_LEVELS} deep"
    if isinstance(value, int) and value.bit_length() > 63:
        return "has more than the 64 bits of a TOML number"
    return ""


def _short(place: str) -> str:
    place = place[1:]  # less the dot before its first key
    return place if len(place) <= 80 else f"{place[:60]}..."
