"""Published speedups computed once more from the published values, and which do not come out.

The rule of every table that ships with the package: speedup = value / value of the same table's
1n1g, rounded to 2 digits (to 1 in the pictures). DLPerf's own scripts divide medians that they
have rounded to 2 digits (:mod:`.dlperf_rule`), so that its printed figures are all it takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from dlperf_hpc.analysis.dlperf_rule import round2
from dlperf_hpc.published import Published
from dlperf_hpc.sweepfile.case import Topology

_BASE = Topology(1, 1)


class Match(str, Enum):
    """How a printed speedup relates to the one that the printed values give."""

    EQUAL = "equal"
    ROUNDING = "within rounding"  # of the two values as they are printed
    CUT = "cut"  # digits were dropped, not rounded
    COARSE = "of coarser values"  # the values were rounded to 1 digit before they were divided
    DIFFERS = "differs"  # none of these


@dataclass(frozen=True)
class Recomputed:
    """A printed speedup beside ``computed``, the unrounded ratio of the two printed values."""

    row: Published
    base: Published
    printed: float
    computed: float
    match: Match


def recomputed(rows: Iterable[Published]) -> list[Recomputed]:
    """Every row with a printed speedup, in the order given.

    ValueError if a table that prints speedups has no 1n1g, or more than one.
    """
    rows = tuple(rows)
    bases: dict[object, list[Published]] = {}
    for row in rows:
        if row.topology == _BASE:
            bases.setdefault(row.series, []).append(row)
    found = []
    for row in rows:
        if row.speedup is None:
            continue
        of_table = bases.get(row.series, [])
        if len(of_table) != 1:
            raise ValueError(f"{row.source}: {len(of_table)} rows of 1n1g in its table")
        (base,) = of_table
        ratio = row.value / base.value
        found.append(Recomputed(row, base, row.speedup, ratio, _match(row, base, row.speedup)))
    return found


def _match(row: Published, base: Published, printed: float) -> Match:
    ratio = row.value / base.value
    digits, half = (1, 0.5) if row.kind == "image" else (2, 0.005)
    # numpy's rounding and Python's: of DLPerf's half-way cells some follow one, some the other
    if any(_same(printed, shown) for shown in (round2(ratio), round(ratio, digits))):
        return Match.EQUAL
    slack = 0.5 * 10**-digits
    low = (row.value - half) / (base.value + half) - slack
    high = (row.value + half) / (base.value - half) + slack
    if low <= printed <= high:
        return Match.ROUNDING
    if any(_same(printed, math.floor(ratio * 10**kept) / 10**kept) for kept in (1, 2)):
        return Match.CUT
    if _same(printed, round2(round(row.value, 1) / round(base.value, 1))):
        return Match.COARSE
    return Match.DIFFERS


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=0, abs_tol=1e-9)
