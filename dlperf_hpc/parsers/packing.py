"""What was found in a file as few bytes, quickly made and quickly read: for the cache, and for the
way from the process that read the file.

JSON holds all but the steps; these follow as columns of machine numbers. All is compressed.
"""

from __future__ import annotations

import json
import math
import sys
import zlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any, Union

from dlperf_hpc.records.foreign import ScannedFile, Step

_WHOLE = ("line", "iteration", "rank")  # the other columns are floats
_NO_RANK = -1
_WIDTH = 8  # bytes of a number

_Kind = Union[str, list[Any], None]
"""Of a column: its typecode, as :mod:`array` has it; its values, where these are no such numbers;
None if they are all None."""


def packed(file: ScannedFile) -> bytes:
    """The file's content; :func:`unpacked` reads it back."""
    columns: list[bytes] = []
    steps = [_columns(reading.steps, columns) for reading in file.readings]
    bare = replace(file, readings=tuple([replace(each, steps=()) for each in file.readings]))
    # ``vars`` makes the same of it as to_dict(), which takes six times as long.
    told = json.dumps([sys.byteorder, steps, bare], default=vars).encode()
    return zlib.compress(b"".join([len(told).to_bytes(_WIDTH, "little"), told, *columns]), 1)


def unpacked(content: bytes) -> ScannedFile:
    """Inverse of :func:`packed`; zlib.error, KeyError, TypeError or ValueError if it is not one."""
    data = zlib.decompress(content)
    at = _WIDTH + int.from_bytes(data[:_WIDTH], "little")
    byteorder, steps, bare = json.loads(data[_WIDTH:at])
    if byteorder != sys.byteorder:
        raise ValueError("packed on a machine of another kind")
    file = ScannedFile.from_dict(bare)
    readings = []
    for reading, (count, kinds) in zip(file.readings, steps):
        columns: list[Iterable[Any]] = []
        for kind in kinds:
            end = at + (_WIDTH * count if isinstance(kind, str) else 0)
            columns.append(_values(kind, data[at:end], count))
            at = end
        readings.append(replace(reading, steps=tuple(map(Step._make, zip(*columns)))))
    return replace(file, readings=tuple(readings))


def _columns(steps: Sequence[Step], into: list[bytes]) -> tuple[int, list[_Kind]]:
    """How many steps, and what each column is; the numbers go ``into`` a list."""
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


def _values(kind: _Kind, data: bytes, count: int) -> Iterable[Any]:
    if not isinstance(kind, str):
        return repeat(None, count) if kind is None else kind
    numbers = array(kind, data)
    if len(numbers) != count:
        raise ValueError("fewer numbers than steps")
    values: list[Any] = numbers.tolist()
    if kind == "q":
        return [None if each == _NO_RANK else each for each in values]
    return [None if each != each else each for each in values]
