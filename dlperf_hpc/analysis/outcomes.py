"""When is a ratio of two sets of runs a difference, and where does a series of levels change?

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

**In pairs**: where one job measured both cases in turn, each repeat of A has its neighbour of B, on
the same nodes and in the same minutes. The interval is then that of the median of the pairs'
ratios, from their order statistics (sign test), and runs without a partner are left out.

**An outcome's error** is that same probability: were B's runs those of A scaled by an end of the
band, this is how often they would look as if they lay beyond it. 5 + 5 runs: 4.8 %. Each outcome
is a one-sided claim (``same`` is two, as in a test of equivalence), so that a ``risk`` of 5 % goes
with an interval that covers 90 % or more. Fewer than 3 + 3 runs cannot reach it. Intervals of each
median would not do: with more runs they would find fewer differences.

**A level** is one measurement's median, a positive number: the runs of one evening share that
evening, so they are no independent witnesses of what the weeks between two evenings did.

**A step** is sought by binary segmentation: of all places that leave two levels or more on either
side, the one at which the rank sums of the sides differ most. How often levels in an arbitrary
order would differ as much at their best place is counted over the orders themselves (all of them
up to 8 levels, a fixed sample beyond), so the search for the place is paid for. A step is taken if
that error is at most ``risk``, and if the comparison of the sides leaves the band. The sides are
then looked at in the same way. **Suspected** is a step at a place where no error as small as
``risk`` could come out, since a side has too few levels: if the sides do not overlap, their nearest
levels lie outside the band, and the gap is twice the range of either side.

**A spike** is one level that lies beyond all others of its segment, outside the band and at least
as far from the nearest as these are apart, with levels on either side of it. **A drift**: where a
straight line fits the logarithms much better than a step does, no single moment is named.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache

from dlperf_hpc.model.statistics import Interval, median_interval, ratio_interval

MOST_PAIRS = 10_000
"""Ratios (n * m) up to which ranks are counted; beyond, each median's interval is good enough."""


class RatioOutcome(str, Enum):
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


def outcome_of(
    ratio: float, interval: Interval | None, tolerance: float, risk: float
) -> RatioOutcome:
    """The decision rule of the module's text; ``interval`` is None where a side has one run.

    ``ratio`` is that of the medians: where it does not lie where the interval does (two samples of
    very different shape), nothing is decided.
    """
    low, high = band(tolerance)
    # an exact 1 / 20 must not fail at 5 % for its last bit
    if interval is None or error_of(interval) > risk * (1 + 1e-9):
        return RatioOutcome.TOO_FEW
    if max(ratio, interval.high) < low:
        return RatioOutcome.SLOWER
    if min(ratio, interval.low) > high:
        return RatioOutcome.FASTER
    if low <= min(ratio, interval.low) and max(ratio, interval.high) <= high:
        return RatioOutcome.SAME
    return RatioOutcome.UNDECIDED


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


def pair_interval(ratios: Sequence[float], risk: float) -> tuple[float, Interval | None]:
    """The median of the pairs' ratios (positive numbers), and its interval: those of their
    logarithms, so that a drift of a pair that is A, B and one that is B, A cancel. A sign test: 5
    pairs cover 93.75 %. The interval is None for one pair. ValueError for none."""
    middle = math.exp(statistics.median(map(math.log, ratios)))
    return middle, median_interval(ratios, 1 - 2 * risk)


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


FEWEST = 4
"""Levels that a step needs: two on either side."""

_EXACT = 8
_ORDERS = 4999
_NO_NOISE = 1e-12  # of squared logarithms: what no measurement stays below
_NEAR = 3.84
_CLEAR_GAP = 2.0
_SPIKE_GAP = 1.0
_SPIKE_AMONG = 4  # others: of three, one is often as far off


@dataclass(frozen=True)
class LevelStep:
    """``at`` is the first level behind the step. ``ratio`` is that of the medians of the sides,
    after over before; ``interval`` as in a comparison, None where a side has one level. ``error``
    is how often an arbitrary order has such a step; ``suspected``: it cannot be small enough.
    ``near`` are other places at which the step may be: they fit the levels nearly as well."""

    at: int
    ratio: float
    interval: Interval | None
    error: float
    suspected: bool = False
    near: tuple[int, ...] = ()


@dataclass(frozen=True)
class Drift:
    """From level ``first`` to ``last``; ``ratio`` is the line's last value over its first."""

    first: int
    last: int
    ratio: float
    error: float


@dataclass(frozen=True)
class Changes:
    """What was found, each in the order of time; ``spikes`` are places of levels."""

    steps: tuple[LevelStep, ...] = ()
    drifts: tuple[Drift, ...] = ()
    spikes: tuple[int, ...] = ()


def error_of_best(levels: Sequence[float]) -> float:
    """How often an arbitrary order of as many levels has a step like the best one here; 1 where
    there are too few of them."""
    best = _best(levels)
    return 1.0 if best is None else best[1]


def thresholds(errors: Sequence[float], risk: float) -> list[float]:
    """What each error is held against so that the errors of all cases together stay below ``risk``
    (Holm, "A simple sequentially rejective multiple test procedure", 1979)."""
    found = [0.0] * len(errors)
    for passed, place in enumerate(sorted(range(len(errors)), key=errors.__getitem__)):
        found[place] = risk / (len(errors) - passed)
        if errors[place] > found[place]:
            return [each or found[place] for each in found]
    return found


def changes(levels: Sequence[float], tolerance: float, risk: float) -> Changes:
    """Steps, drifts and spikes of levels. ValueError for a tolerance that :func:`band` refuses."""
    band(tolerance)
    steps: list[LevelStep] = []
    drifts: list[Drift] = []
    spikes: list[int] = []
    waiting = [(0, len(levels))]
    while waiting:
        begin, end = waiting.pop()
        part = levels[begin:end]
        found = _step_or_drift(part, tolerance, risk)
        if isinstance(found, LevelStep):
            near = tuple(begin + place for place in _places(part)[1:])
            steps.append(replace(found, at=found.at + begin, near=near))
            waiting += [(begin, begin + found.at), (begin + found.at, end)]
            continue
        if isinstance(found, Drift):
            drifts.append(Drift(begin, end - 1, found.ratio, found.error))
            continue
        odd = [begin + place for place in _odd(part, tolerance)]
        spikes += [place for place in odd if 0 < place < len(levels) - 1]
        if suspected := _suspected(part, tolerance, risk):
            steps.append(replace(suspected, at=suspected.at + begin))
    return Changes(
        tuple(sorted(steps, key=lambda step: step.at)),
        tuple(sorted(drifts, key=lambda drift: drift.first)),
        tuple(sorted(spikes)),
    )


def _step_or_drift(
    levels: Sequence[float], tolerance: float, risk: float
) -> LevelStep | Drift | None:
    best = _best(levels)
    if best is None or best[1] > risk:
        return None
    at, error = best
    ratio, interval = _across(levels, at, risk)
    line = _line(levels)
    low, high = band(tolerance)
    if line is not None and not low <= line <= high:
        return Drift(0, len(levels) - 1, line, error)
    if outcome_of(ratio, interval, tolerance, risk) in (RatioOutcome.SLOWER, RatioOutcome.FASTER):
        return LevelStep(at, ratio, interval, error)
    return None


def _across(levels: Sequence[float], at: int, risk: float) -> tuple[float, Interval | None]:
    before, after = levels[:at], levels[at:]
    ratio = statistics.median(after) / statistics.median(before)
    return ratio, rank_interval(before, after, risk)


def _best(levels: Sequence[float]) -> tuple[int, float] | None:
    """The place at which the rank sums differ most, and its error; None for too few levels."""
    if len(levels) < FEWEST:
        return None
    most = max(map(abs, _standardised(_ranks(levels))))
    return _places(levels)[0], _tail(len(levels), most)


def _places(levels: Sequence[float]) -> list[int]:
    """Where two constants fit the logarithms best, then where they fit as well by the ratio of
    likelihoods (within 95 % of chi squared with one degree of freedom). Rank sums alone would draw
    a step towards the middle: they only say that the sides do not overlap, and not by how much."""
    n = len(levels)
    off = _residuals(list(map(math.log, levels)))
    left = {t: max((off(0, t) + off(t, n)) / n, _NO_NOISE) for t in range(2, n - 1)}
    least = min(left.values())
    return [t for t in sorted(left, key=left.__getitem__) if n * math.log(left[t] / least) <= _NEAR]


def _ranks(levels: Sequence[float]) -> list[float]:
    """From 1 on; equal levels share the mean of their ranks."""
    ordered = sorted(levels)
    first = {level: place for place, level in reversed(list(enumerate(ordered, 1)))}
    last = {level: place for place, level in enumerate(ordered, 1)}
    return [(first[level] + last[level]) / 2 for level in levels]


def _standardised(ranks: Sequence[float]) -> list[float]:
    """Of each place with two levels or more on either side: by how many standard deviations the
    rank sum before it lies above what it is on average (Mann and Whitney's U, standardised)."""
    n = len(ranks)
    found = []
    for t, total in enumerate(itertools.accumulate(ranks), 1):
        if 2 <= t <= n - 2:
            deviation = math.sqrt(t * (n - t) * (n + 1) / 12)
            found.append((total - t * (n + 1) / 2) / deviation)
    return found


def _tail(n: int, value: float) -> float:
    """How often the best place of an arbitrary order of ``n`` levels is as good, in one
    direction: a step down and a step up are two claims, as in a comparison."""
    known = _best_of_orders(n)
    as_good = len(known) - bisect_left(known, value - 1e-9)
    if n <= _EXACT:
        return as_good / len(known)
    return (1 + as_good) / (1 + len(known))


@lru_cache(maxsize=32)
def _best_of_orders(n: int) -> tuple[float, ...]:
    numbers: list[float] = list(range(1, n + 1))
    orders: Iterable[Sequence[float]] = itertools.permutations(numbers)
    if n > _EXACT:
        orders = _shuffled(numbers)
    return tuple(sorted(max(_standardised(order)) for order in orders))


def _shuffled(numbers: list[float]) -> Iterator[list[float]]:
    chance = random.Random(len(numbers))  # the same logs give the same answer each time
    for _ in range(_ORDERS):
        chance.shuffle(numbers)
        yield numbers


def _line(levels: Sequence[float]) -> float | None:
    """The ratio of a straight line's ends, where it describes the logarithms better than one step
    or two do by Schwarz' criterion ("Estimating the dimension of a model", 1978), which counts
    what each has to choose: a line 2 numbers, a step 3, two steps 5."""
    values = list(map(math.log, levels))
    n = len(values)
    middle, mean = (n - 1) / 2, math.fsum(values) / n
    square = sum((x - middle) ** 2 for x in range(n))
    slope = math.fsum((x - middle) * (value - mean) for x, value in enumerate(values)) / square
    of_line = math.fsum(
        (value - mean - slope * (x - middle)) ** 2 for x, value in enumerate(values)
    )
    off = _residuals(values)
    one = min(off(0, t) + off(t, n) for t in range(1, n))
    two = min(off(0, s) + off(s, t) + off(t, n) for s in range(1, n - 1) for t in range(s + 1, n))
    best = min(_schwarz(one, 3, n), _schwarz(two, 5, n))
    return math.exp(slope * (n - 1)) if _schwarz(of_line, 2, n) < best else None


def _schwarz(residuals: float, chosen: int, n: int) -> float:
    return n * math.log(max(residuals / n, _NO_NOISE)) + chosen * math.log(n)


def _residuals(values: Sequence[float]) -> Callable[[int, int], float]:
    """The squared residuals of the values from one place up to another around their mean."""
    middle = values[0]  # so that little is lost where squares are subtracted
    off = [value - middle for value in values]
    sums = [0.0, *itertools.accumulate(off)]
    squares = [0.0, *itertools.accumulate(value * value for value in off)]

    def between(begin: int, end: int) -> float:
        total = sums[end] - sums[begin]
        return max(0.0, squares[end] - squares[begin] - total * total / (end - begin))

    return between


def _odd(levels: Sequence[float], tolerance: float) -> list[int]:
    """Places of single levels far from all others of their segment."""
    found = []
    for place, level in enumerate(levels):
        rest = [*levels[:place], *levels[place + 1 :]]
        if len(rest) >= _SPIKE_AMONG and _gap([level], rest, tolerance, _SPIKE_GAP) is not None:
            found.append(place)
    return found


def _suspected(levels: Sequence[float], tolerance: float, risk: float) -> LevelStep | None:
    """The clearest step at a place where too few levels stand on a side for it to be taken."""
    n = len(levels)
    if n < 3:
        return None
    few = [at for at in range(1, n) if _reachable(n, at) > risk]
    gaps = ((_gap(levels[:at], levels[at:], tolerance, _CLEAR_GAP), at) for at in few)
    found = [(gap, at) for gap, at in gaps if gap is not None]
    if not found:
        return None
    _, at = max(found)
    ratio, interval = _across(levels, at, risk)
    return LevelStep(at, ratio, interval, _reachable(n, at), suspected=True)


def _reachable(n: int, at: int) -> float:
    """The error of a step at that place if its sides do not overlap at all."""
    if min(at, n - at) < 2:
        return 1.0
    ranks = [*range(n - at + 1, n + 1), *range(1, n - at + 1)]
    return _tail(n, _standardised(ranks)[at - 2])


def _gap(
    before: Sequence[float], after: Sequence[float], tolerance: float, least: float
) -> float | None:
    """The distance of two sides that do not overlap, in units of the wider one's range (as
    logarithms); None if it is within the band, or less than ``least`` such ranges."""
    nearest = math.log(max(min(before) / max(after), min(after) / max(before)))
    if nearest <= -math.log(1 - tolerance):
        return None
    width = max(math.log(max(side) / min(side)) for side in (before, after))
    if nearest < least * width:
        return None
    return nearest / max(width, 1e-9)
