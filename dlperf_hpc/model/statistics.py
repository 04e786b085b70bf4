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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import gt, lt
from statistics import fmean, median
from typing import TypeVar

TARGET_COVERAGE = 0.95
"""Coverage an interval is asked to have; with fewer than 6 values it cannot, and says so."""

TOLERANCE = 0.02
"""Half width of a band, as a fraction; what is closer than that is nobody's regression."""

RISK = 0.05
"""Largest error of an outcome: 3 + 3 runs have it, or 5 against a single figure."""

MIN_FOR_OUTLIERS = 4
"""Of three values one is always far off in units of the other two, so three say nothing."""

_LEAST_OFF = TOLERANCE / 2  # what is closer than that is of no consequence, however quiet the rest
_FEWEST_CASES = 6
_TIMES_USUAL = 3.3
_CLUSTERS_Z = 4.5

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Interval:
    """A closed interval and the probability with which it holds what it estimates."""

    low: float
    high: float
    coverage: float


@dataclass(frozen=True)
class Split:
    """Two groups of values: ``low_count`` up to ``low_end``, the rest from ``high_start`` on;
    ``apart`` is the distance of their medians as a fraction of the higher one."""

    low_count: int
    low_end: float
    high_start: float
    apart: float


@dataclass(frozen=True)
class Sample:
    """What is said of one case's repeats, in the unit of the values. ``spread`` is (max - min) /
    median, a fraction. ``interval`` is that of the median, None for a single value. ``values`` are
    ascending."""

    n: int
    median: float
    mean: float
    minimum: float
    maximum: float
    interval: Interval | None
    spread: float
    values: tuple[float, ...]


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


def _distances(ordered: Sequence[float]) -> Iterator[tuple[float, float]]:
    """Of each value of 3 or more: by which fraction it is off the median of the others, and how far
    the furthest of these is off that median."""
    n = len(ordered)
    for place, value in enumerate(ordered):
        rest = [ordered[i + (i >= place)] for i in (0, (n - 2) // 2, (n - 1) // 2, n - 2)]
        middle = (rest[1] + rest[2]) / 2
        yield value / middle - 1, max(middle - rest[0], rest[3] - middle) / middle


def usual_distance(samples: Iterable[Sample | None]) -> float | None:
    """How far the furthest value of a case usually is from the median of the case's others, as a
    fraction: the upper quartile over the cases of 4 values or more; None for fewer than 6 of them.

    A case that is far beyond it would not change it: it is that of all other cases."""
    enough = (s for s in samples if s is not None and s.n >= MIN_FOR_OUTLIERS)
    furthest = sorted(max(abs(off) for off, _ in _distances(s.values)) for s in enough)
    if len(furthest) < _FEWEST_CASES:
        return None
    return furthest[math.ceil(0.75 * (len(furthest) - 1)) - 1]


def outliers(
    values: Sequence[float], usual: float | None = None
) -> tuple[tuple[float, float], ...]:
    """Values far from the median of the others, ascending, each with the fraction by which it is
    off; () for fewer than 4 values. ``usual`` is the :func:`usual_distance` of the cases.

    The distance is held against that of the furthest of the others, r, in the manner of Dixon's
    ratios ("Analysis of Extreme Values", Annals of Mathematical Statistics 21, 1950): more than
    (4.5 + 13 / (n - 3)) r. Where ``usual`` is known: more than 1.5 times as much, or more than 3.3
    ``usual`` and (2.2 + 2.7 / (n - 3)) r. With these numbers fewer than 2 of 100 samples of 5 to 25
    values have an outlier, even if they are of Student's t with 3 degrees of freedom, whose tails
    are heavy (``benchmarks/flags.py``). What is less than 1 % off is never an outlier."""
    n, ordered = len(values), sorted(values)
    if n < MIN_FOR_OUTLIERS:
        return ()
    found = []
    for value, (off, rest) in zip(ordered, _distances(ordered)):
        limit = (4.5 + 13 / (n - 3)) * rest
        if usual is not None:
            limit = min(1.5 * limit, max(_TIMES_USUAL * usual, (2.2 + 2.7 / (n - 3)) * rest))
        if abs(off) > max(limit, _LEAST_OFF):
            found.append((value, off))
    return tuple(found)


def two_groups(values: Sequence[float], usual: float | None = None) -> Split | None:
    """Where the values part in two: largest gap > 30 % of the range, >= 2 values on each side, and
    the groups far apart. A sign of two machines, two clocks or two code paths behind one name; then
    neither median nor mean describes anything that happened. None if they do not part.

    Far apart: log(1 + B / W) > -log(1 - 2 / pi) + 2.4 / (n - 2) + z / sqrt(n - 2), where B and W
    are the sums of squares between and within the groups and z is 4.5 (Engelman & Hartigan,
    "Percentage Points of a Test for Clusters", JASA 64, 1969, for large n; what it gives for few
    values is simulated in ``benchmarks/flags.py``); or the medians are further apart than 3.3 times
    ``usual``, as in :func:`outliers`, and than 2.5 times what a value is off that of its group."""
    ordered = sorted(values)
    gaps = ((b - a, i) for i, (a, b) in enumerate(zip(ordered, ordered[1:]), 1))
    gap, below = max(gaps, default=(0.0, 0))
    low, high = ordered[:below], ordered[below:]
    if min(len(low), len(high)) < 2 or gap <= 0.3 * (high[-1] - low[0]):
        return None
    medians = median(low), median(high)
    apart = 1 - medians[0] / medians[1]
    rest = max(abs(v - middle) for part, middle in zip((low, high), medians) for v in part)
    known = usual is not None and apart > max(_TIMES_USUAL * usual, 2.5 * rest / medians[1])
    if apart <= _LEAST_OFF or not (known or _clusters(low, high)):
        return None
    return Split(below, low[-1], high[0], apart)


def _clusters(low: Sequence[float], high: Sequence[float]) -> bool:
    n = len(low) + len(high)
    within = math.fsum((v - fmean(part)) ** 2 for part in (low, high) for v in part)
    between = (fmean(high) - fmean(low)) ** 2 * len(low) * len(high) / n
    limit = -math.log(1 - 2 / math.pi) + 2.4 / (n - 2) + _CLUSTERS_Z / math.sqrt(n - 2)
    return between > within * math.expm1(limit)


def describe(values: Sequence[float]) -> Sample | None:
    """What is said of one case's repeats; None for no values. ValueError for one that is not
    finite and positive: it is a missing value that the caller took for a number."""
    if not values:
        return None
    for value in values:
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{value!r} is not a throughput: leave runs without a number out")
    low, centre, high = min(values), statistics.median(values), max(values)
    return Sample(
        n=len(values),
        median=centre,
        # fsum: the same mean in whatever order the logs were found
        mean=math.fsum(values) / len(values),
        minimum=low,
        maximum=high,
        interval=median_interval(values),
        spread=(high - low) / centre,
        values=tuple(sorted(values)),
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


def pieces(values: Sequence[_Value], most: int) -> list[Sequence[_Value]]:
    """The values in their order, in at most ``most`` pieces that are equally long, but for the last
    one, which may be shorter."""
    width = max(1, math.ceil(len(values) / most))
    return [values[at : at + width] for at in range(0, len(values), width)]
