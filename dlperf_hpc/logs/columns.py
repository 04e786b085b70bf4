"""What is asked of a column of numbers as a whole: by numpy where it is loaded, which takes a
hundredth of the time, else by the standard library, since its import takes as long as many
steps do. Both give the same numbers to the last bit.
"""

from __future__ import annotations

import math
import operator
import sys
from array import array
from itertools import accumulate, islice
from typing import Any

STEPS_FOR_NUMPY = 300_000
"""Steps that take as long without numpy as its import does."""


def _vector(column: array[Any]) -> Any:
    """The column as numpy has it, for a moment: it cannot grow meanwhile. None without numpy."""
    numpy = sys.modules.get("numpy")
    return numpy.frombuffer(column, column.typecode) if numpy is not None and column else None


def _taken(column: array[Any], vector: Any) -> array[Any]:
    """What numpy has made, as a column."""
    return array(column.typecode, vector.tobytes())


def is_rising(column: array[Any]) -> bool:
    """Whether each number is above the one before it."""
    vector = _vector(column)
    if vector is not None:
        return bool((vector[1:] > vector[:-1]).all())
    return all(map(operator.lt, column, islice(column, 1, None)))


def are_finite(column: array[float]) -> bool:
    """Whether no number is infinite or NaN; perhaps not, where their sum is beyond all floats."""
    vector = _vector(column)
    if vector is not None:
        return bool((abs(vector) < math.inf).all())
    return math.isfinite(sum(column))


def extent(column: array[Any]) -> tuple[Any, Any]:
    """The least and the greatest number of a column that is not empty and has no NaN."""
    vector = _vector(column)
    if vector is not None:
        return vector.min().item(), vector.max().item()
    return min(column), max(column)


def differences(column: array[Any]) -> array[Any]:
    """Of each number and the one before it."""
    vector = _vector(column)
    if vector is not None:
        with sys.modules["numpy"].errstate(all="ignore"):
            return _taken(column, vector[1:] - vector[:-1])
    return array(column.typecode, map(operator.sub, islice(column, 1, None), column))


def sums(column: array[float]) -> array[float]:
    """0, and what each number makes with all before it: added one after the other."""
    vector = _vector(column)
    if vector is not None:
        with sys.modules["numpy"].errstate(all="ignore"):
            return array("d", [0.0]) + _taken(column, vector.cumsum())
    return array("d", accumulate(column, initial=0.0))
