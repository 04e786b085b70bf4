"""How many repeats a case needs, decided from its repeats without losing coverage.

Who looks at an interval after each run, and stops when it is narrow, stops too often by luck. Here
the looks are fixed beforehand, and the ranks at each are such that *all* intervals together hold
the median with at least 95 %. How many of n values lie below the median is binomial (n, 1/2)
whatever the distribution, so that this is exact for independent repeats of one distribution
(group-sequential boundaries by a spending function, Lan & DeMets, Biometrika 1983; sign test).
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dlperf_hpc.model.case import FEWEST_REPEATS, Until
from dlperf_hpc.model.statistics import TARGET_COVERAGE, Interval, Sample
from dlperf_hpc.model.statistics import describe as describe_fixed

_GROWTH = 1.4  # from one look to the next, at least


@dataclass(frozen=True)
class Look:
    """After ``runs`` repeats the interval is from the ``rank``-th smallest to the ``rank``-th
    largest; ``missed`` is the probability that it, or that of an earlier look, misses the
    median."""

    runs: int
    rank: int
    missed: float


@functools.lru_cache(maxsize=8)
def looks(fewest: int, most: int) -> tuple[Look, ...]:
    """The looks at ``fewest`` to ``most`` repeats. Each one has at least 1.4 times the repeats of
    the one before it, and leaves out one more value at either end. Of the 5 % that may be missed,
    the share that may be spent grows linearly with the repeats. ValueError for fewer than
    ``FEWEST_REPEATS``."""
    if not FEWEST_REPEATS <= fewest <= most:
        raise ValueError(f"there are no looks from {fewest} to {most} repeats")
    below, found, after = [1.0], list[Look](), fewest  # below[s]: s values below the median
    for runs in range(1, most + 1):
        below = [(a + b) / 2 for a, b in zip([0.0, *below], [*below, 0.0])]
        if runs < most and (runs < after or (found and most < _GROWTH * runs)):
            continue
        before = found[-1] if found else Look(0, 0, 0.0)
        rank = _rank(below, before, _spent(runs, fewest, most))
        if rank == before.rank:
            continue  # this interval could be no narrower
        missed = before.missed + _outside(below, rank)
        below = [*[0.0] * rank, *below[rank : runs - rank + 1], *[0.0] * rank]
        found.append(Look(runs, rank, missed))
        after = math.ceil(_GROWTH * runs)
    return tuple(found)


def _spent(runs: int, fewest: int, most: int) -> float:
    """How much may be missed by the look after ``runs`` repeats, and those before it."""
    whole = 1.0 - TARGET_COVERAGE
    first = max(2 * 0.5**fewest, whole * fewest / most)
    return whole - (whole - first) * (most - runs) / max(1, most - fewest)


def _rank(below: Sequence[float], before: Look, most_missed: float) -> int:
    """The largest rank, at least that of the look before, with which no more is missed."""
    rank = before.rank
    while rank + 1 <= (len(below) - 1) // 2:
        if before.missed + _outside(below, rank + 1) > most_missed + 1e-12:
            break
        rank += 1
    return rank


def _outside(below: Sequence[float], rank: int) -> float:
    """How likely fewer than ``rank`` values lie on one side of the median, and no look before it
    has missed it."""
    return math.fsum([*below[:rank], *below[len(below) - rank :]])


@dataclass(frozen=True)
class Decision:
    """What the ok repeats of a case say: how many it needs in all by now (``repeats``), the
    ``interval`` of the median at the latest look, None before the first one, its ``half_width`` as
    a fraction of the median, and whether that is narrow enough (``met``)."""

    repeats: int
    interval: Interval | None = None
    half_width: float | None = None
    met: bool = False


def decide(values: Sequence[float], until: Until) -> Decision:
    """Whether a case needs further repeats; ``values`` are positive, in the order of the repeats.
    Those behind the latest look count at the next one, and a look that was met decides for good."""
    found = Decision(until.min)
    plan = looks(until.min, until.max)
    coverage = 1.0 - plan[-1].missed
    for look, following in zip(plan, (*plan[1:], plan[-1])):
        if len(values) < look.runs:
            break
        ordered = sorted(values[: look.runs])
        low, high = ordered[look.rank - 1], ordered[-look.rank]
        half = (high - low) / 2 / statistics.median(ordered)
        found = Decision(following.runs, Interval(low, high, coverage), half)
        if half <= until.half_width:
            return Decision(look.runs, found.interval, half, met=True)
    return found


def describe(values: Sequence[float], until: Until) -> Sample | None:
    """What is said of one case's repeats, in their order (see :func:`.statistics.describe`), with
    the interval of the latest look, where ``until`` decided how many there are."""
    sample = describe_fixed(values)
    return sample and replace(sample, interval=decide(values, until).interval)


def label(until: Until) -> str:
    """What a reader of the intervals must know."""
    return (
        f"{until.min} to {until.max} of each case, until the interval of its median is within"
        f" +-{100 * until.half_width:g} %, with {1 - looks(until.min, until.max)[-1].missed:.1%}"
        " coverage if runs are independent (made runs reached 92 % with drift, 84 % where each"
        " depended on the run before: docs/measuring.md)"
    )
