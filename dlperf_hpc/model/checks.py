"""What programs wrote is checked by the standard library alone: the forms that a value of JSON may
have, a row of such values, the fields of a dataclass that was made of one.

Whoever reads a sweep may read another's, and a file may be damaged. :mod:`dlperf_hpc.records.forms`
has the rows of our own files. What people write is checked elsewhere
(:mod:`dlperf_hpc.sweepfile.validation`).
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from sys import float_info
from typing import Any, Callable

from dlperf_hpc.model.case import LINE, NAME, Topology

MOST = 2**53
"""Any count or time of ours is below."""

Form = Callable[[Any], bool]


class Misfit(ValueError):
    """JSON that holds what our writer never writes; the message names the key and the value."""


def text(pattern: str) -> Form:
    """Text that matches all of a pattern."""
    matches = re.compile(pattern, re.ASCII).fullmatch
    return lambda value: isinstance(value, str) and matches(value) is not None


def whole(low: int, most: int = MOST) -> Form:
    """A whole number from ``low`` to ``most``."""
    return lambda value: type(value) is int and low <= value <= most


def is_a(kind: type[Any]) -> Form:
    """A value of this type."""
    return lambda value: isinstance(value, kind)


def one_of(known: Collection[str]) -> Form:
    """One of these texts."""
    return lambda value: isinstance(value, str) and value in known


def or_none(form: Form) -> Form:
    """A value of this form, or None."""
    return lambda value: value is None or form(value)


def each(form: Form, least: int = 0) -> Form:
    """A list of at least so many values, each of this form."""
    return lambda value: isinstance(value, list) and len(value) >= least and all(map(form, value))


def each_key(name: Form, form: Form) -> Form:
    """A table whose keys and values have these forms."""
    return lambda value: (
        isinstance(value, dict) and all(map(name, value)) and all(map(form, value.values()))
    )


def is_printable(value: Any) -> bool:
    """Text that can be printed: no half of a character that has two (a lone surrogate)."""
    try:
        return isinstance(value, str) and bool(value.encode() or True)
    except UnicodeEncodeError:
        return False


def is_line(value: Any) -> bool:
    """Text in one line that can be printed."""
    return _LINE(value) and is_printable(value)


def is_topology(value: Any) -> bool:
    """Text of the form 4n8g."""
    try:
        return bool(Topology.parse(value))
    except (TypeError, ValueError):
        return False


def is_number(value: Any) -> bool:
    """Whether something out of a file is a finite number, also as a float."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and abs(value) <= float_info.max


_LINE = text(LINE)
is_name = text(NAME)


def printable(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row whose texts can be printed, halves of characters as ``\\udc80``: words of others."""
    return {
        name: value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value
        for name, value in row.items()
    }


def parse(data: bytes) -> Any:
    """JSON, as UTF-8; ValueError if it is none, Misfit for NaN, or nested too deeply to read."""
    try:
        return DECODER.decode(data.decode())
    except RecursionError:
        raise Misfit("it is nested too deeply") from None


def _no_number(name: str) -> float:
    raise Misfit(f"{name} is no number")


DECODER = json.JSONDecoder(parse_constant=_no_number)
"""Of JSON without NaN and Infinity."""


def unfit(row: Mapping[str, Any], forms: Mapping[str, Form]) -> Iterator[tuple[str, Any]]:
    """The names and values of a row that have not the form that their names ask for."""
    return (
        (name, row[name]) for name, fits in forms.items() if name in row and not fits(row[name])
    )


def check(
    row: Any,
    needed: Mapping[str, Form],
    later: Mapping[str, Form] | None = None,
    only: bool = False,
) -> None:
    """Misfit for a key of ``needed`` that is missing, and for any value of another form; with
    ``only`` also for a key that is in neither table."""
    if not isinstance(row, dict):
        raise Misfit(f"{reprlib.repr(row)} is no table")
    for name in needed:
        if name not in row:
            raise Misfit(f"{name} is missing")
    forms = {**needed, **(later or {})}
    for name in row if only else ():
        if name not in forms:
            raise Misfit(f"{reprlib.repr(name)} is no key")
    for name, value in unfit(row, forms):
        raise Misfit(f"{name} is {reprlib.repr(value)}")


def misfits(values: Any) -> list[tuple[str, Any]]:
    """Plain fields of a dataclass or a named tuple (numbers, text) that hold something else: a log
    may say anything. The first name of a type counts: ``float | None`` is a float, or nothing."""
    found: list[tuple[str, Any]] = []
    for name, plain, (kind, rest) in _kinds(values.__class__):
        value: Any = getattr(values, name)
        if value.__class__ is plain and -_PLAIN < value < _PLAIN:
            continue  # most of them
        if not _fits(value, kind, rest):
            found.append((name, value))
    return found


_PLAIN = 2**62
_NUMBERS = {"int": int, "float": float}


@cache
def _kinds(kind: Any) -> list[tuple[str, Any, tuple[str, str]]]:
    """The fields of a dataclass: the type of one that is a number, and for each the first name of
    its type and the others."""
    hints = [(f.name, f.type) for f in fields(kind)] if is_dataclass(kind) else _hints(kind)
    types = [(name, str(hint).partition(" | ")) for name, hint in hints]
    return [(name, _NUMBERS.get(plain), (plain, rest)) for name, (plain, _, rest) in types]


def _hints(kind: Any) -> list[tuple[str, str]]:
    """The fields of a named tuple, which wraps the texts of its types."""
    return [(n, getattr(t, "__forward_arg__", t)) for n, t in kind.__annotations__.items()]


def _fits(value: Any, plain: str, rest: str) -> bool:
    if plain == "Any":
        return True
    if value is None:
        return rest == "None"
    if plain == "bool" or isinstance(value, bool):
        return plain == "bool" and isinstance(value, bool)
    if plain == "int":
        return isinstance(value, int) and abs(value) < 2**63
    if plain == "float":
        return is_number(value)
    return plain != "str" or isinstance(value, str)
