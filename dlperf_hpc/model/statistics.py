"""Order statistics for a handful of repeats: no normality assumed, nothing thrown away.

Every function takes plain numbers and is independent of their order. Runs on a shared cluster
are few, skewed and sometimes in two groups, so the centre is the median, its uncertainty comes
from ranks, and outliers are pointed at, never removed (Hoefler & Belli, "Scientific Benchmarking
of Parallel Computing Systems", SC'15, rules 5 and 6).
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from operator import gt, lt
from statistics import fmean, median

TARGET_COVERAGE = 0.95
"""Coverage an interval is asked to have; with fewer than 6 values it cannot, and says so."""

MAD_TO_SIGMA = 1.4826
"""Median absolute deviation -> standard deviation of a normal: 1 / Phi^-1(3/4)."""

TOLERANCE = 0.02
"""Half width of a band, as a fraction; what is closer than that is nobody's regression."""

RISK = 0.05
"""Largest error of an outcome: 3 + 3 runs have it, or 5 against a single figure."""

OUTLIER_SIGMAS = 3.0
MIN_FOR_OUTLIERS = 4
"""Of three values one is always far in units of the MAD, so three say nothing."""


@dataclass(frozen=True)
class Interval:
    """A closed interval and the probability with which it holds what it estimates."""

    low: float
    high: float
    coverage: float


@dataclass(frozen=True)
class Split:
    """Two groups of values: ``low_count`` up to ``low_end``, the rest from ``high_start`` on."""

    low_count: int
    low_end: float
    high_start: float


@dataclass(frozen=True)
class Sample:
    """What is said of one case's repeats, in the unit of the values. ``spread`` is (max - min) /
    median, a fraction. ``interval`` is that of the median, None for a single value. ``outliers``
    are values, ascending. ``split`` is None unless there are two groups."""

    n: int
    median: float
    mean: float
    minimum: float
    maximum: float
    interval: Interval | None
    spread: float
    outliers: tuple[float, ...]
    split: Split | None


def median_coverage(n: int, k: int) -> float:
    """Probability that [k-th smallest, k-th largest] of ``n`` values holds the true median. 1 - 2 *
    sum_{i<k} C(n, i) / 2^n: each value lies below the median with probability 1/2, and the interval
    misses only if fewer than k lie on one side. Holds for every continuous distribution (David &
    Nagaraja, "Order Statistics", section 7.1). ValueError unless 1 <= k <= n / 2."""
    if not 1 <= k <= n // 2:
        raise ValueError(f"k = {k} does not leave an interval of {n} values")
    outside = sum(math.comb(n, i) for i in range(k))
    # A quotient of integers: as floats they would overflow from n = 1025 on.
    missed: float = outside / (1 << (n - 1))
    return 1.0 - missed


def median_interval(values: Sequence[float], target: float = TARGET_COVERAGE) -> Interval | None:
    """The narrowest symmetric order-statistics interval of the median with at least ``target``.
    Falls back to [min, max] where even that covers less (n < 6 for 95 %: 50, 75, 87.5 and 93.75 %
    for n = 2..5), and states the coverage it truly has. None for fewer than 2 values."""
    n = len(values)
    if n < 2:
        return None
    ordered = sorted(values)
    # The coverage falls as k grows: the largest k that still covers enough, by bisection (whose
    # `key` in the standard library is not there on Python 3.9).
    best, beyond = 1, n // 2 + 1
    while beyond - best > 1:
        middle = (best + beyond) // 2
        if median_coverage(n, middle) >= target:
            best = middle
        else:
            beyond = middle
    return Interval(ordered[best - 1], ordered[n - best], median_coverage(n, best))


def ratio_interval(over: Interval | None, under: Interval | None) -> Interval | None:
    """Conservative interval of a ratio of two positive medians: [lo / hi', hi / lo']. It holds the
    ratio whenever both intervals hold their medians, so that for independent samples the coverage
    is at least the product of the two. None if either is missing or not positive."""
    if over is None or under is None or over.low <= 0 or under.low <= 0:
        return None
    coverage = over.coverage * under.coverage
    return Interval(over.low / under.high, over.high / under.low, coverage)


def spread(values: Sequence[float]) -> float:
    """(max - min) / median, a fraction; 0.0 for one value. ValueError if empty or median is 0."""
    if not values:
        raise ValueError("no values, so no spread")
    centre = statistics.median(values)
    if centre == 0:
        raise ValueError("the median is 0, so (max - min) / median has no value")
    return (max(values) - min(values)) / centre


def outliers(values: Sequence[float]) -> tuple[float, ...]:
    """The values with |x - median| > 3 * 1.4826 * MAD, ascending; () for fewer than 4 values. MAD
    is the median of |x - median| (Iglewicz & Hoaglin, "How to Detect and Handle Outliers", 1993).
    If more than half of the values are equal the MAD is 0 and every other value is named."""
    if len(values) < MIN_FOR_OUTLIERS:
        return ()
    centre = statistics.median(values)
    mad = statistics.median(abs(value - centre) for value in values)
    # values equal but for the last bit of a division are equal
    limit = max(OUTLIER_SIGMAS * MAD_TO_SIGMA * mad, 1e-9 * abs(centre))
    return tuple(sorted(value for value in values if abs(value - centre) > limit))


def two_groups(values: Sequence[float]) -> Split | None:
    """Where the values part in two: largest gap > 50 % of the range, >= 2 values on each side. A
    sign of two machines, two clocks or two code paths behind one name; then neither median nor mean
    describes anything that happened. None if they do not part, or for fewer than 4 values."""
    ordered = sorted(values)
    gaps = [(high - low, i + 1) for i, (low, high) in enumerate(zip(ordered, ordered[1:]))]
    if not gaps:
        return None
    gap, below = max(gaps)
    if gap <= 0.5 * (ordered[-1] - ordered[0]) or min(below, len(ordered) - below) < 2:
        return None
    return Split(below, ordered[below - 1], ordered[below])


def describe(values: Sequence[float]) -> Sample | None:
    """All of the above for one case's repeats; None for no values. ValueError for one that is not
    finite and positive: it is a missing value that the caller took for a number."""
    if not values:
        return None
    for value in values:
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{value!r} is not a throughput: leave runs without a number out")
    return Sample(
        n=len(values),
        median=statistics.median(values),
        # fsum: the same mean in whatever order the logs were found
        mean=math.fsum(values) / len(values),
        minimum=min(values),
        maximum=max(values),
        interval=median_interval(values),
        spread=spread(values),
        outliers=outliers(values),
        split=two_groups(values),
    )


# --- was a window steady?


_MAX_POINTS = 200  # the tests are quadratic: longer windows are averaged into blocks first
_CHANGE_LIMIT = 0.01
_Z_LIMIT = 2.58  # two-sided p = 0.01


def _blocks(times: Sequence[float]) -> tuple[float, ...]:
    size = math.ceil(len(times) / _MAX_POINTS)
    if size == 1:
        return tuple(map(float, times))
    starts = range(0, len(times) - size + 1, size)
    return tuple([fmean(times[start : start + size]) for start in starts])


def drift(times: Sequence[float]) -> float:
    """Change of the iteration time from the window's start to its end, relative to its median.
    Theil-Sen slope (Sen 1968), so a few slow iterations do not make a trend; 0 if fewer than 3."""
    return _drift(_blocks(times))


@functools.lru_cache(maxsize=1)  # who asks for the drift asks next whether the window is steady
def _drift(points: tuple[float, ...]) -> float:
    if len(points) < 3 or median(points) <= 0:
        return 0.0
    apart = range(1, len(points))
    slope = median([(b - a) / n for n in apart for a, b in zip(points, points[n:])])
    return slope * (len(points) - 1) / median(points)


def shift(times: Sequence[float]) -> float:
    """Median of the window's last quarter over that of its first, less 1. Sees a change of level (a
    clock that drops) wherever it stands but in the outer eighths; the median slope does not see one
    that stands far from the middle. 0 if fewer than 8."""
    points = _blocks(times)
    quarter = len(points) // 4
    if quarter < 2 or median(points[:quarter]) <= 0:
        return 0.0
    return median(points[-quarter:]) / median(points[:quarter]) - 1


def trend_z(times: Sequence[float]) -> float:
    """Mann-Kendall's z: how far the order of the times is from one without a trend (Mann 1945)."""
    points = _blocks(times)
    n = len(points)
    if n < 3:
        return 0.0
    later = [points[i:] for i in range(1, n)]
    score = sum(sum(map(gt, each, points)) - sum(map(lt, each, points)) for each in later)
    variance = n * (n - 1) * (2 * n + 5) / 18
    return (score - math.copysign(1, score)) / math.sqrt(variance) if score else 0.0


def is_steady(times: Sequence[float]) -> bool:
    """Neither drift nor shift over 1 % that noise would not explain (p < 0.01)."""
    change = max(abs(drift(times)), abs(shift(times)))
    return change <= _CHANGE_LIMIT or abs(trend_z(times)) <= _Z_LIMIT
