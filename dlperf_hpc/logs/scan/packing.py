"""What was found in a file as few bytes that are quickly made and read.

JSON holds all but the iterations; these follow as columns of machine numbers, in parts of ROWS
steps of which each is unpacked when it is asked for: a figure is made of a hundred lines of a file,
and what is asked of all lines the JSON says of each column (:class:`.columns.Facts`). A part has
first the first byte of all its numbers, then the second of all, and so on: the upper bytes are
nearly all alike, and are compressed twice as well as whole numbers. A checksum stands at the end,
so that no part is damaged when it is asked for.
"""

from __future__ import annotations

import functools
import itertools
import json
import sys
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from dlperf_hpc.logs.columns import ROWS, Facts, Packed, facts
from dlperf_hpc.logs.scanned import FACTS, GAPS, Column, ScannedFile, Step, Steps

_WIDTH = 8  # bytes of a number
_LEVEL = 1
_PLAIN = {"int": int, "float": float, "str": str, "bool": bool, "None": type(None)}
_ALWAYS = ("line", "iteration")  # no step is without these


def packed(file: ScannedFile) -> bytes:
    """The file's content; :func:`unpacked` reads it back."""
    compress = _compressor()
    parts: list[bytes] = []
    told = []
    for reading in file.readings:
        columns = []
        for column in reading.steps.columns():
            made = [] if column is None else _parts(column[:], compress)
            parts += made
            stated = facts(column[:]) if column else None
            columns.append(None if column is None else [stated, [len(part) for part in made]])
        told.append([len(reading.steps), columns])
    bare = {**vars(file), "readings": [{**vars(each), "steps": ()} for each in file.readings]}
    # ``vars`` gives what to_dict() gives, which takes six times as long.
    text = compress(json.dumps([sys.byteorder, told, bare], default=vars).encode())
    content = b"".join([len(text).to_bytes(_WIDTH, "little"), text, *parts])
    return content + zlib.crc32(content).to_bytes(_WIDTH, "little")


def unpacked(content: bytes, most: int = 0) -> ScannedFile:
    """Inverse of :func:`packed`; KeyError, TypeError, ValueError or RecursionError if it is not
    one, or has more than ``most`` bytes (0: any number)."""
    if zlib.crc32(content[:-_WIDTH]) != int.from_bytes(content[-_WIDTH:], "little"):
        raise ValueError("has another checksum")
    done = _WIDTH + int.from_bytes(content[:_WIDTH], "little")
    byteorder, told, bare = json.loads(_decompressed(content[_WIDTH:done], most))
    if byteorder != sys.byteorder:
        raise ValueError("packed on a machine of another kind")
    file = ScannedFile.from_dict(bare)
    if len(told) != len(file.readings):
        raise ValueError("has other steps than readings")
    columns = [each for _, every in told for each in every if each is not None]
    if most and sum(_WIDTH * count * len(every) for count, every in told) > most:
        raise ValueError("has too many bytes")
    ends = [*itertools.accumulate((n for _, sizes in columns for n in sizes), initial=done)]
    if ends[-1] != len(content) - _WIDTH:
        raise ValueError("has numbers that are no step's")
    parts = iter([content[begin:end] for begin, end in zip(ends, ends[1:])])
    readings = [
        replace(reading, steps=_steps(count, every, parts))
        for reading, (count, every) in zip(file.readings, told)
    ]
    return replace(file, readings=tuple(readings))


def _parts(column: array[Any], compress: Callable[[bytes], bytes]) -> list[bytes]:
    """A column's parts, each with the first bytes of its numbers first."""
    pieces = [column[at : at + ROWS].tobytes() for at in range(0, len(column), ROWS)]
    return [compress(b"".join([p[at::_WIDTH] for at in range(_WIDTH)])) for p in pieces]


# Where no log is scanned there may be no zstandard: it is imported by who needs it.


def _compressor() -> Callable[[bytes], bytes]:
    import zstandard

    return zstandard.ZstdCompressor(_LEVEL).compress


@functools.cache
def _decompressor() -> Callable[[bytes], bytes]:
    import zstandard

    return zstandard.ZstdDecompressor().decompress


def _decompressed(content: bytes, most: int) -> bytes:
    import zstandard

    try:
        if most and not 0 <= zstandard.frame_content_size(content) <= most:
            raise ValueError("has an unknown number of bytes, or too many")
        return _decompressor()(content)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error


def _part(kind: str, content: bytes) -> array[Any]:
    """The numbers of a part."""
    bytewise = _decompressor()(content)
    count = len(bytewise) // _WIDTH
    numbers = bytearray(len(bytewise))
    for at in range(_WIDTH):
        numbers[at::_WIDTH] = bytewise[at * count : (at + 1) * count]
    return array(kind, bytes(numbers))


def _steps(count: int, every: Sequence[Any], parts: Iterator[bytes]) -> Steps:
    """Steps whose columns lie in these parts, one behind the other; ValueError or TypeError if they
    do not, or lack a column that every step has."""
    if len(every) != len(GAPS):
        raise ValueError("has other columns than steps have")
    columns: list[Column] = []
    for name, (kind, _), each in zip(Step._fields, GAPS, every):
        stated = None if each is None else each[0]
        if name in _ALWAYS and count and not (stated and stated[0] >= 0):
            raise ValueError(f"a step has no {name}")
        columns.append(None if each is None else _column(kind, count, each, parts))
    return Steps.of(columns)


def _column(kind: str, count: int, told: Sequence[Any], parts: Iterator[bytes]) -> Column:
    """A column that lies in the next of these parts."""
    stated, sizes = told
    own = [*itertools.islice(parts, len(sizes))]
    begins = range(0, count, ROWS)
    if len(own) != len(begins) or any(
        _size(part) != _WIDTH * min(ROWS, count - begin) for part, begin in zip(own, begins)
    ):
        raise ValueError("has other steps than numbers")
    if not own:
        return array(kind)
    return Packed(
        kind, range(count), Facts(*stated), functools.cache(lambda n: _part(kind, own[n]))
    )


def _size(content: bytes) -> int:
    """The bytes that a part has when it is unpacked."""
    import zstandard

    try:
        return int(zstandard.frame_content_size(content))
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error


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
