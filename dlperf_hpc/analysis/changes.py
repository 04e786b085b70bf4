"""Where a series of levels changes: steps, spikes and drifts among few measurements.

A level is one measurement's median: the runs of one evening share that evening, so they are no
independent witnesses of what the weeks between two evenings did. Levels are positive numbers in
the order of time.

**A step** is sought by binary segmentation: of all places that leave two levels or more on either
side, the one at which the rank sums of the sides differ most. How often levels in an arbitrary
order would differ as much at their best place is counted over the orders themselves (all of them
up to 8 levels, a fixed sample beyond), so the search for the place is paid for. A step is taken if
that error is at most ``risk``, and if the comparison of the sides leaves the band that
:mod:`.comparison` holds every ratio against. The sides are then looked at in the same way.

**Suspected**: a step at a place where no error as small as ``risk`` could come out however far the
sides lie apart, since one of them has too few levels. It is told if the sides do not overlap, their
nearest levels lie outside the band, and the gap is twice the range of either side.

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from dlperf_hpc.analysis.outcomes import Outcome, band, outcome_of, rank_interval
from dlperf_hpc.model.statistics import Interval

FEWEST = 4
"""Levels that a step needs: two on either side."""

_EXACT = 8
_ORDERS = 4999
_NO_NOISE = 1e-12  # of squared logarithms: what no measurement stays below
_CLEAR_GAP = 2.0
_SPIKE_GAP = 1.0
_SPIKE_AMONG = 4  # others: of three, one is often as far off


@dataclass(frozen=True)
class Step:
    """``at`` is the first level behind the step. ``ratio`` is that of the medians of the sides,
    after over before; ``interval`` as in a comparison, None where a side has one level. ``error``
    is how often an arbitrary order has such a step; ``suspected``: it cannot be small enough."""

    at: int
    ratio: float
    interval: Interval | None
    error: float
    suspected: bool = False


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

    steps: tuple[Step, ...] = ()
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
            for other in range(len(errors)):
                found[other] = found[other] or found[place]
            break
    return found


def changes(levels: Sequence[float], tolerance: float, risk: float) -> Changes:
    """Steps, drifts and spikes of a series of positive numbers.

    ValueError for a tolerance that :func:`~dlperf_hpc.analysis.outcomes.band` refuses.
    """
    band(tolerance)
    steps: list[Step] = []
    drifts: list[Drift] = []
    spikes: list[int] = []
    waiting = [(0, len(levels))]
    while waiting:
        begin, end = waiting.pop()
        part = levels[begin:end]
        found = _step_or_drift(part, tolerance, risk)
        if isinstance(found, Step):
            steps.append(_moved(found, begin))
            waiting += [(begin, begin + found.at), (begin + found.at, end)]
            continue
        if isinstance(found, Drift):
            drifts.append(Drift(begin, end - 1, found.ratio, found.error))
            continue
        odd = [begin + place for place in _odd(part, tolerance)]
        spikes += [place for place in odd if 0 < place < len(levels) - 1]
        if suspected := _suspected(part, tolerance, risk):
            steps.append(_moved(suspected, begin))
    return Changes(
        tuple(sorted(steps, key=lambda step: step.at)),
        tuple(sorted(drifts, key=lambda drift: drift.first)),
        tuple(sorted(spikes)),
    )


def _moved(step: Step, by: int) -> Step:
    return Step(step.at + by, step.ratio, step.interval, step.error, step.suspected)


def _step_or_drift(levels: Sequence[float], tolerance: float, risk: float) -> Step | Drift | None:
    best = _best(levels)
    if best is None or best[1] > risk:
        return None
    at, error = best
    ratio, interval = _across(levels, at, risk)
    line = _line(levels)
    low, high = band(tolerance)
    if line is not None and not low <= line <= high:
        return Drift(0, len(levels) - 1, line, error)
    if outcome_of(ratio, interval, tolerance, risk) in (Outcome.SLOWER, Outcome.FASTER):
        return Step(at, ratio, interval, error)
    return None


def _across(levels: Sequence[float], at: int, risk: float) -> tuple[float, Interval | None]:
    before, after = levels[:at], levels[at:]
    ratio = statistics.median(after) / statistics.median(before)
    return ratio, rank_interval(before, after, risk)


# --- the place, and how often chance finds one as good


def _best(levels: Sequence[float]) -> tuple[int, float] | None:
    """The place at which the rank sums differ most, and its error; None for too few levels."""
    if len(levels) < FEWEST:
        return None
    most = max(map(abs, _standardised(_ranks(levels))))
    return _place(levels), _tail(len(levels), most)


def _place(levels: Sequence[float]) -> int:
    """Where two constants fit the logarithms best. Rank sums alone would draw a step towards the
    middle: they only say that the sides do not overlap, and not by how much."""
    n = len(levels)
    off = _residuals([math.log(level) for level in levels])
    return min(range(2, n - 1), key=lambda t: off(0, t) + off(t, n))


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
    if n <= _EXACT:
        every = itertools.permutations(numbers)
        return tuple(sorted(max(_standardised(order)) for order in every))
    chance = random.Random(n)  # the same orders each time: the same logs give the same answer
    found = []
    for _ in range(_ORDERS):
        chance.shuffle(numbers)
        found.append(max(_standardised(numbers)))
    return tuple(sorted(found))


# --- what is no step


def _line(levels: Sequence[float]) -> float | None:
    """The ratio of a straight line's ends, where it describes the logarithms better than one step
    or two do by Schwarz' criterion ("Estimating the dimension of a model", 1978), which counts
    what each has to choose: a line 2 numbers, a step 3, two steps 5."""
    values = [math.log(level) for level in levels]
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
        others = [*levels[:place], *levels[place + 1 :]]
        if len(others) >= _SPIKE_AMONG and _gap([level], others, tolerance, _SPIKE_GAP) is not None:
            found.append(place)
    return found


def _suspected(levels: Sequence[float], tolerance: float, risk: float) -> Step | None:
    """The clearest step at a place where too few levels stand on a side for it to be taken."""
    n = len(levels)
    found: list[tuple[float, int]] = []
    for at in range(1, n) if n >= 3 else ():
        if _reachable(n, at) <= risk:
            continue
        gap = _gap(levels[:at], levels[at:], tolerance, _CLEAR_GAP)
        if gap is not None:
            found.append((gap, at))
    if not found:
        return None
    _, at = max(found)
    ratio, interval = _across(levels, at, risk)
    return Step(at, ratio, interval, _reachable(n, at), suspected=True)


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
    nearest = max(
        math.log(min(before) / max(after)),
        math.log(min(after) / max(before)),
    )
    if nearest <= -math.log(1 - tolerance):
        return None
    width = max(math.log(max(side) / min(side)) for side in (before, after))
    if nearest < least * width:
        return None
    return nearest / max(width, 1e-9)
