"""What is asked of a column of numbers as a whole."""

from __future__ import annotations

import math
import operator
from array import array
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Numbers = array[Any]
else:
    Numbers = array  # which takes no type at run time before Python 3.12


def bounds(column: Numbers) -> tuple[Any, Any]:
    """The least and the greatest number of a column that is not empty and has no NaN."""
    return min(column), max(column)


def is_rising(column: Numbers) -> bool:
    """Whether each number is above the one before it."""
    return all(map(operator.lt, column, islice(column, 1, None)))


def never_falls(column: Numbers) -> bool:
    """Whether no number is below the one before it."""
    return all(map(operator.le, column, islice(column, 1, None)))


def are_finite(column: Numbers) -> bool:
    """Whether no number is infinite or NaN."""
    return math.isfinite(sum(column)) or all(map(math.isfinite, column))  # a sum may be too large


def differences(column: Numbers) -> Numbers:
    """Each number less the one before it: one fewer than the column has."""
    return array(column.typecode, map(operator.sub, islice(column, 1, None), column))


def sums(column: Numbers) -> Numbers:
    """0, and what each number makes with all before it: added one after the other."""
    return array("d", accumulate(column, initial=0.0))
