"""What was found in a file as few bytes that are quickly made and read.

JSON holds all but the iterations; their columns follow as machine numbers. A checksum stands at the
end.
"""

from __future__ import annotations

import functools
import itertools
import json
import sys
import zlib
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
    import zstandard  # where no log is scanned there may be none

    columns = [each.steps.columns() for each in file.readings]
    stated = [
        [len(each.steps), [column is not None for column in own]]
        for each, own in zip(file.readings, columns)
    ]
    bare = {**vars(file), "readings": [{**vars(each), "steps": ()} for each in file.readings]}
    # ``vars`` gives what to_dict() gives, which takes six times as long.
    text = json.dumps([sys.byteorder, stated, bare], default=vars).encode()
    numbers = [column.tobytes() for own in columns for column in own if column is not None]
    content = b"".join([len(text).to_bytes(_WIDTH, "little"), text, *numbers])
    content = zstandard.ZstdCompressor(_LEVEL).compress(content)
    return content + zlib.crc32(content).to_bytes(_WIDTH, "little")


def unpacked(content: bytes, most: int = 0) -> ScannedFile:
    """Inverse of :func:`packed`; KeyError, TypeError, ValueError or RecursionError if it is not
    one, or has more than ``most`` bytes (0: any number)."""
    if zlib.crc32(content[:-_WIDTH]) != int.from_bytes(content[-_WIDTH:], "little"):
        raise ValueError("has another checksum")
    content = _decompressed(content[:-_WIDTH], most)
    done = _WIDTH + int.from_bytes(content[:_WIDTH], "little")
    byteorder, stated, bare = json.loads(content[_WIDTH:done])
    if byteorder != sys.byteorder:
        raise ValueError("packed on a machine of another kind")
    file = ScannedFile.from_dict(bare)
    if len(stated) != len(file.readings):
        raise ValueError("has other steps than readings")
    readings = []
    for reading, (count, present) in zip(file.readings, stated):
        end = done + _WIDTH * count * sum(present)
        readings.append(replace(reading, steps=_steps(count, present, content[done:end])))
        done = end
    if done != len(content):
        raise ValueError("has numbers that are no step's")
    return replace(file, readings=tuple(readings))


def _decompressed(content: bytes, most: int) -> bytes:
    import zstandard

    try:
        if most and not 0 <= zstandard.frame_content_size(content) <= most:
            raise ValueError("has an unknown number of bytes, or too many")
        return zstandard.ZstdDecompressor().decompress(content)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error


def _steps(count: int, present: Sequence[bool], content: bytes) -> Steps:
    """Steps whose columns lie in these bytes, one behind the other; ValueError or TypeError if they
    do not, or lack a column that every step has."""
    size = _WIDTH * count
    if len(present) != len(GAPS) or len(content) != size * sum(present):
        raise ValueError("has other columns than steps have")
    columns: list[Column] = []
    begin = 0
    for name, (kind, _), there in zip(Step._fields, GAPS, present):
        column = array(kind, content[begin : begin + size]) if there else None
        if name in _ALWAYS and count and (column is None or min(column) < 0):
            raise ValueError(f"a step has no {name}")
        columns.append(column)
        begin += size if there else 0
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
