"""When is the ratio of two sets of runs a difference?

The interval of the ratio B / A is held against a band around 1, from 1 - tolerance to its mirror
image 1 / (1 - tolerance), so that swapping A and B mirrors every outcome:

- ``slower``: the whole interval lies below the band; ``faster``: above it
- ``same``: the whole interval lies within the band
- ``undecided``: it reaches over an end of the band: too much noise for that tolerance
- ``too few runs``: no outcome of so few runs could be trusted, however far apart they lie
- ``missing in A``, ``missing in B``: that side has no run of the case that counts
- ``other unit``: no unit of throughput is common to both (samples/s here, GFLOP/s there)

**The interval** comes from ranks: the k-th smallest to the k-th largest of all n * m ratios of a
run of B to a run of A. If one distribution is the other times a factor, the factor lies beyond an
end with the probability that Mann and Whitney's U (1947) is below k, which is computed exactly; k
is the largest for which it is at most ``risk`` (Bauer, "Constructing Confidence Sets Using Rank
Statistics", JASA 1972). Nothing is assumed of the distributions but that runs are independent.

**An outcome's error** is that same probability: were B's runs those of A scaled by an end of the
band, this is how often they would look as if they lay beyond it. 5 + 5 runs: 4.8 %. Each outcome
is a one-sided claim (``same`` is two, as in a test of equivalence), so that a ``risk`` of 5 % goes
with an interval that covers 90 % or more. Fewer than 3 + 3 runs cannot reach it.

The extremes of each side, as in an interval of each median for itself, would not do: with more runs
they lie further apart, so that more measurements would find fewer differences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from functools import lru_cache

from dlperf_hpc.model.statistics import Interval, median_interval, ratio_interval

TOLERANCE = 0.02
"""Half width of the band, as a fraction; what is closer than that is nobody's regression."""

RISK = 0.05
"""Largest error that an outcome may have: 3 + 3 runs have it, or 5 against a single figure."""

MOST_PAIRS = 10_000
"""Ratios (n * m) up to which ranks are counted; beyond, each median's interval is good enough."""


class Outcome(str, Enum):
    """What is said of one case; see the module's text."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    UNDECIDED = "undecided"
    TOO_FEW = "too few runs"
    MISSING_IN_A = "missing in A"
    MISSING_IN_B = "missing in B"
    OTHER_UNIT = "other unit"


def band(tolerance: float) -> tuple[float, float]:
    """The ratios that count as the same. ValueError unless 0 <= tolerance < 1."""
    if not 0 <= tolerance < 1:
        raise ValueError(f"the tolerance {tolerance!r} is not from 0 to below 1")
    return 1 - tolerance, 1 / (1 - tolerance)


def error_of(interval: Interval) -> float:
    """How often the true ratio lies beyond one end of the interval: the error of an outcome."""
    return (1 - interval.coverage) / 2


def outcome_of(ratio: float, interval: Interval | None, tolerance: float, risk: float) -> Outcome:
    """The decision rule of the module's text; ``interval`` is None where a side has one run.

    ``ratio`` is that of the medians: where it does not lie where the interval does (two samples of
    very different shape), nothing is decided.
    """
    low, high = band(tolerance)
    # an exact 1 / 20 must not fail at 5 % for its last bit
    if interval is None or error_of(interval) > risk * (1 + 1e-9):
        return Outcome.TOO_FEW
    if max(ratio, interval.high) < low:
        return Outcome.SLOWER
    if min(ratio, interval.low) > high:
        return Outcome.FASTER
    if low <= min(ratio, interval.low) and max(ratio, interval.high) <= high:
        return Outcome.SAME
    return Outcome.UNDECIDED


def rank_interval(a: Sequence[float], b: Sequence[float], risk: float) -> Interval | None:
    """Of the factor from ``a`` to ``b`` (positive numbers): at most ``risk`` beyond either end.

    Where so few values cannot have that, all ratios, and the coverage says so. None if a side has
    fewer than 2 values.
    """
    n, m = len(a), len(b)
    if min(n, m) < 2:
        return None
    if n * m > MOST_PAIRS:
        target = math.sqrt(1 - 2 * risk)
        return ratio_interval(median_interval(b, target), median_interval(a, target))
    below = _u_cumulated(min(n, m), max(n, m))
    ways = math.comb(n + m, n)
    k = 1
    while below[k] <= risk * ways:  # ends before half of the pairs, where it is half of the ways
        k += 1
    ratios = sorted(y / x for x in a for y in b)
    return Interval(ratios[k - 1], ratios[n * m - k], 1 - 2 * below[k - 1] / ways)


def point_interval(values: Sequence[float], point: float, risk: float) -> Interval | None:
    """Of ``point`` / median of ``values``: the point is taken as exact, since it has no runs."""
    around = median_interval(values, 1 - 2 * risk)
    return ratio_interval(Interval(point, point, 1.0), around)


@lru_cache(maxsize=64)
def _u_cumulated(n: int, m: int) -> tuple[int, ...]:
    """Orders of n + m values for which Mann and Whitney's U is at most 0, 1, ... n * m.

    How many have U = u is the coefficient of q^u in the Gaussian binomial coefficient
    prod_{i=1..n} (1 - q^(m+i)) / (1 - q^i).
    """
    counts = [1] + [0] * (n * m)
    for i in range(1, n + 1):
        for u in range(n * m, m + i - 1, -1):
            counts[u] -= counts[u - m - i]
        for u in range(i, n * m + 1):
            counts[u] += counts[u - i]
    total = 0
    cumulated = []
    for count in counts:
        total += count
        cumulated.append(total)
    return tuple(cumulated)
