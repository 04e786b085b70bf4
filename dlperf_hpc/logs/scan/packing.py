"""What was found in a file as few bytes that are quickly made and read.

JSON holds all but the iterations; these follow as columns of machine numbers, and everything is
compressed.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import sys
import zlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any, Union

from dlperf_hpc.logs.scanned import FACTS, ScannedFile, Step

_WHOLE = ("line", "iteration", "rank")  # the other columns are floats
_NO_RANK = -1
_WIDTH = 8  # bytes of a number
_PLAIN = {"int": int, "float": float, "str": str, "bool": bool, "None": type(None)}

_Kind = Union[str, list[Any], None]
"""A column's typecode as :mod:`array` has it; its values, if they are no such numbers; or None, if
all of them are None."""


def packed(file: ScannedFile) -> bytes:
    """The file's content; :func:`unpacked` reads it back."""
    columns: list[bytes] = []
    steps = [_columns(reading.steps, columns) for reading in file.readings]
    bare = replace(file, readings=tuple([replace(each, steps=()) for each in file.readings]))
    # ``vars`` gives what to_dict() gives, which takes six times as long.
    text = json.dumps([sys.byteorder, steps, bare], default=vars).encode()
    return zlib.compress(b"".join([len(text).to_bytes(_WIDTH, "little"), text, *columns]), 1)


def unpacked(content: bytes, most: int = 0) -> ScannedFile:
    """Inverse of :func:`packed`; zlib.error, KeyError, TypeError, ValueError or RecursionError if
    it is not one, or has more than ``most`` bytes (0: any number)."""
    inflater = zlib.decompressobj()
    data = inflater.decompress(content, most)
    if not inflater.eof:
        raise ValueError("has no end, or too much before it")
    at = _WIDTH + int.from_bytes(data[:_WIDTH], "little")
    byteorder, steps, bare = json.loads(data[_WIDTH:at])
    if byteorder != sys.byteorder:
        raise ValueError("packed on a machine of another kind")
    file = ScannedFile.from_dict(bare)
    readings = []
    if len(steps) != len(file.readings):
        raise ValueError("has other steps than readings")
    for reading, (count, kinds) in zip(file.readings, steps):
        columns: list[Iterable[Any]] = []
        if len(kinds) != (len(Step._fields) if count else 0):
            raise ValueError("has other columns than steps have")
        for name, kind in zip(Step._fields, kinds):
            end = at + (_WIDTH * count if isinstance(kind, str) else 0)
            columns.append(_values(name, kind, data[at:end], count))
            at = end
        readings.append(replace(reading, steps=tuple(map(Step._make, zip(*columns)))))
    return replace(file, readings=tuple(readings))


def checked(file: ScannedFile) -> ScannedFile:
    """What came out of a cache, if every value in it has its type; KeyError or TypeError if not."""
    parts: list[Iterable[Any]] = [[file], file.readings, file.facts, file.troubles, file.notes]
    parts += [[each.printed, *each.totals, *each.counts] for each in file.readings]
    for value in itertools.chain(*parts):
        kind: Any = type(value)
        for name, kinds in _types(kind).items():
            if type(getattr(value, name)) not in kinds:
                raise TypeError(f"{name} is {getattr(value, name)!r}")
    for fact in file.facts:
        if type(fact.value) is not FACTS[fact.name]:
            raise TypeError(f"{fact.name} is {fact.value!r}")
    return file


@functools.cache
def _types(kind: Any) -> dict[str, frozenset[type]]:
    """The plain fields of a value (numbers, text), and the types that each may have."""
    found = {}
    # Read as text: Python 3.9 cannot make a type of "int | None". A named tuple wraps its hints.
    for name, hint in kind.__annotations__.items():
        text = getattr(hint, "__forward_arg__", hint)
        kinds = {_PLAIN[word] for word in text.split(" | ") if word in _PLAIN}
        if kinds - {type(None)}:
            found[name] = frozenset(kinds | ({int} if float in kinds else set()))
    return found


def _columns(steps: Sequence[Step], into: list[bytes]) -> tuple[int, list[_Kind]]:
    """The number of steps and the kind of each column, whose numbers are added to ``into``."""
    kinds: list[_Kind] = []
    for name, column in zip(Step._fields, zip(*steps)):
        if column.count(None) == len(column):
            kinds.append(None)
            continue
        kind, gap = ("q", _NO_RANK) if name in _WHOLE else ("d", math.nan)
        values = [gap if each is None else each for each in column] if None in column else column
        try:
            into.append(array(kind, values).tobytes())
            kinds.append(kind)
        except (OverflowError, TypeError):
            kinds.append(list(column))
    return len(steps), kinds


def _values(name: str, kind: _Kind, data: bytes, count: int) -> Iterable[Any]:
    """A column; ValueError if it is not one of these steps, or has other values than they have."""
    may_be = _types(Step)[name]
    if isinstance(kind, str):
        if kind != ("q" if name in _WHOLE else "d"):
            raise ValueError(f"{name} is no column of {kind}")
        numbers: list[Any] = array(kind, data).tolist()
        if kind == "q":
            values = [None if each == _NO_RANK else each for each in numbers]
        else:
            values = [None if each != each else each for each in numbers]
        gaps = type(None) not in may_be and None in values
        holds = {type(None)} if gaps else set()
    elif kind is None and type(None) in may_be:
        return repeat(None, count)
    else:
        values = kind or []
        holds = {*map(type, values)}
    if len(values) != count or holds - may_be:
        raise ValueError(f"{name} has not {count} values of its type")
    return values
