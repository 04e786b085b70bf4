"""What was found in a file as few bytes that are quickly made and read.

JSON holds all but the iterations; these follow as columns of machine numbers, first the first byte
of all numbers, then the second of all, and so on: the upper bytes are nearly all alike, and are
compressed five times as fast as whole numbers. Everything is compressed.
"""

from __future__ import annotations

import functools
import itertools
import json
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from dlperf_hpc.logs.scanned import FACTS, GAPS, Column, ScannedFile, Step, Steps

_WIDTH = 8  # bytes of a number
_LEVEL = 1
_PLAIN = {"int": int, "float": float, "str": str, "bool": bool, "None": type(None)}
_ALWAYS = ("line", "iteration")  # no step is without these


def packed(file: ScannedFile) -> bytes:
    """The file's content; :func:`unpacked` reads it back."""
    columns = [reading.steps.columns() for reading in file.readings]
    counts = [
        (len(reading.steps), [column is not None for column in each])
        for reading, each in zip(file.readings, columns)
    ]
    bare = {**vars(file), "readings": [{**vars(each), "steps": ()} for each in file.readings]}
    # ``vars`` gives what to_dict() gives, which takes six times as long.
    text = json.dumps([sys.byteorder, counts, bare], default=vars).encode()
    numbers = b"".join([c.tobytes() for each in columns for c in each if c is not None])
    bytewise = [numbers[at::_WIDTH] for at in range(_WIDTH)]
    data = b"".join([len(text).to_bytes(_WIDTH, "little"), text, *bytewise])
    return _compressed(data)


def unpacked(content: bytes, most: int = 0) -> ScannedFile:
    """Inverse of :func:`packed`; KeyError, TypeError, ValueError or RecursionError if it is not
    one, or has more than ``most`` bytes (0: any number)."""
    data = _decompressed(content, most)
    at = _WIDTH + int.from_bytes(data[:_WIDTH], "little")
    byteorder, counts, bare = json.loads(data[_WIDTH:at])
    if byteorder != sys.byteorder:
        raise ValueError("packed on a machine of another kind")
    file = ScannedFile.from_dict(bare)
    if len(counts) != len(file.readings):
        raise ValueError("has other steps than readings")
    numbers, done, readings = _whole_numbers(data[at:]), 0, []
    for reading, (count, there) in zip(file.readings, counts):
        parts = numbers[done : done + _WIDTH * count * sum(there)]
        done += len(parts)
        readings.append(replace(reading, steps=_steps(parts, count, there)))
    if done != len(numbers):
        raise ValueError("has numbers that are no step's")
    return replace(file, readings=tuple(readings))


# Where no log is scanned there may be no zstandard: it is imported by who needs it.


def _compressed(data: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(_LEVEL).compress(data)


def _decompressed(content: bytes, most: int) -> bytes:
    import zstandard

    try:
        if most and not 0 <= zstandard.frame_content_size(content) <= most:
            raise ValueError("has an unknown number of bytes, or too many")
        return zstandard.ZstdDecompressor().decompress(content)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error


def _whole_numbers(bytewise: bytes) -> bytes:
    """Numbers whose bytes stood apart."""
    count = len(bytewise) // _WIDTH
    numbers = bytearray(len(bytewise))
    for at in range(_WIDTH):
        numbers[at::_WIDTH] = bytewise[at * count : (at + 1) * count]
    return bytes(numbers)


def _steps(data: bytes, count: int, there: Sequence[bool]) -> Steps:
    """Steps whose columns lie one behind the other; ValueError if they do not, or lack a column
    that every step has."""
    if len(there) != len(GAPS) or len(data) != _WIDTH * count * sum(there):
        raise ValueError("has other columns than steps have")
    columns: list[Column] = []
    at = 0
    for name, (kind, gap), has in zip(Step._fields, GAPS, there):
        part = data[at : at + _WIDTH * count] if has else b""
        at += len(part)
        # Sought as bytes, which is quicker: numbers that are not below 0 have none like these.
        if name in _ALWAYS and count and (not has or array(kind, [gap]).tobytes() in part):
            raise ValueError(f"a step has no {name}")
        columns.append(array(kind, part) if has else None)
    return Steps.of(columns)


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
