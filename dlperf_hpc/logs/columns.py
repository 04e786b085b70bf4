"""What is asked of a column of numbers as a whole: by numpy where it is loaded, which takes a
hundredth of the time, else by the standard library, since its import takes as long as many
steps do. Both give the same numbers to the last bit.
"""

from __future__ import annotations

import functools
import math
import operator
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain, islice
from typing import Any, NamedTuple, Union, overload

NUMBERS_FOR_NUMPY = 2_000_000
"""Numbers that take as long without numpy as its import does."""

ROWS = 1024
"""Numbers of a packed column that are unpacked at once."""


class Facts(NamedTuple):
    """What holds of a column's numbers and thus of any of them in a row: the least and the greatest
    (None if one is NaN), and whether each is above (``rising``), or not below (``forward``), the
    one before it."""

    least: float | None
    greatest: float | None
    rising: bool
    forward: bool


class Packed(Sequence[Any]):
    """A column of which only what is asked for is unpacked, :data:`ROWS` numbers at once.

    ``rows`` are the numbers of the whole column that this one has, ``part`` gives the n-th
    :data:`ROWS` of these, and ``facts`` hold of all.
    """

    __slots__ = ("_part", "_rows", "facts", "typecode")
    _unpacked = 0  # numbers, of all columns

    def __init__(
        self, typecode: str, rows: range, facts: Facts, part: Callable[[int], array[Any]]
    ) -> None:
        self.typecode, self.facts, self._rows, self._part = typecode, facts, rows, part

    def between(self, rows: slice) -> Packed:
        """The column of these rows, as packed as this one."""
        return Packed(self.typecode, self._rows[rows], self.facts, self._part)

    def chosen(self, rows: Sequence[int]) -> Packed:
        """The column of these rows, which rise: what holds of all numbers in a row holds of them
        too."""

        def part(number: int) -> array[Any]:
            own = rows[number * ROWS : (number + 1) * ROWS]
            first = own[0]
            near = self[first : own[-1] + 1]
            return array(self.typecode, [near[row - first] for row in own])

        return Packed(self.typecode, range(len(rows)), self.facts, functools.cache(part))

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, at: int) -> Any: ...
    @overload
    def __getitem__(self, at: slice) -> array[Any]: ...
    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, int):
            part, place = divmod(self._rows[at], ROWS)
            return self._part(part)[place]
        rows = self._rows[at]
        found = array(self.typecode)
        if rows:
            first, last = min(rows[0], rows[-1]) // ROWS, max(rows[0], rows[-1]) // ROWS
            for number in range(first, last + 1):
                found.extend(self._part(number))
            before, stop = first * ROWS, rows.stop - first * ROWS
            found = found[rows.start - before : stop if stop >= 0 else None : rows.step]
            Packed._unpacked += len(found)
            if Packed._unpacked > NUMBERS_FOR_NUMPY:
                import numpy  # noqa: F401 - loaded, it is used for columns
        return found

    def __iter__(self) -> Iterator[Any]:
        steps = range(0, len(self), ROWS)
        return chain.from_iterable(self[begin : begin + ROWS] for begin in steps)


Numbers = Union["array[Any]", Packed]


def facts(column: array[Any]) -> Facts:
    """What :class:`Packed` is to know of a column that is not empty."""
    rising, total = is_rising(column), sum(column) if column.typecode == "d" else 0
    least, greatest = (None, None) if total != total else extent(column)
    return Facts(least, greatest, rising, rising or never_falls(column))


def bounds(column: Numbers) -> tuple[Any, Any]:
    """Two numbers between which all of a column lie that is not empty; None if one may be NaN."""
    if isinstance(column, Packed):
        return column.facts[:2]
    return extent(column)


def _vector(column: array[Any]) -> Any:
    """The column as numpy has it, for a moment: it cannot grow meanwhile. None without numpy."""
    numpy = sys.modules.get("numpy")
    return numpy.frombuffer(column, column.typecode) if numpy is not None and column else None


def _taken(column: array[Any], vector: Any) -> array[Any]:
    """What numpy has made, as a column."""
    return array(column.typecode, vector.tobytes())


def is_rising(column: Numbers) -> bool:
    """Whether each number is above the one before it."""
    if isinstance(column, Packed):
        if column.facts.rising:
            return True
        column = column[:]
    vector = _vector(column)
    if vector is not None:
        return bool((vector[1:] > vector[:-1]).all())
    return all(map(operator.lt, column, islice(column, 1, None)))


def never_falls(column: Numbers) -> bool:
    """Whether no number is below the one before it."""
    if isinstance(column, Packed):
        if column.facts.forward:
            return True
        column = column[:]
    vector = _vector(column)
    if vector is not None:
        return bool((vector[1:] >= vector[:-1]).all())
    return all(map(operator.le, column, islice(column, 1, None)))


def are_finite(column: Numbers) -> bool:
    """Whether no number is infinite or NaN."""
    if isinstance(column, Packed):
        if all(end is not None and math.isfinite(end) for end in column.facts[:2]):
            return True
        column = column[:]
    vector = _vector(column)
    if vector is not None:
        return bool((abs(vector) < math.inf).all())
    return math.isfinite(sum(column)) or all(map(math.isfinite, column))  # a sum may be too large


def extent(column: Numbers) -> tuple[Any, Any]:
    """The least and the greatest number of a column that is not empty and has no NaN."""
    column = column[:] if isinstance(column, Packed) else column
    vector = _vector(column)
    if vector is not None:
        return vector.min().item(), vector.max().item()
    return min(column), max(column)


def differences(column: Numbers) -> array[Any]:
    """Of each number and the one before it."""
    column = column[:] if isinstance(column, Packed) else column
    vector = _vector(column)
    if vector is not None:
        with sys.modules["numpy"].errstate(all="ignore"):
            return _taken(column, vector[1:] - vector[:-1])
    return array(column.typecode, map(operator.sub, islice(column, 1, None), column))


def sums(column: array[float]) -> array[float]:
    """0, and what each number makes with all before it: added one after the other."""
    vector = _vector(array("d", [0.0]) + column)  # 0 + -0 is 0
    if vector is not None:
        with sys.modules["numpy"].errstate(all="ignore"):
            return _taken(column, vector.cumsum())
    return array("d", accumulate(column, initial=0.0))
