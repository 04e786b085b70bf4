"""Repeats until it is known: the coverage of all looks together, counted without the formula."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Callable
from fractions import Fraction

import pytest

from dlperf_hpc.model.case import FEWEST_REPEATS, Until
from dlperf_hpc.model.stopping import decide, describe, looks


@pytest.mark.parametrize(("fewest", "most"), [(6, 6), (6, 12), (7, 13), (9, 14), (6, 16)])
def test_what_is_missed_is_the_share_of_all_orders_of_signs(fewest: int, most: int) -> None:
    """Each value lies above the median or below it: every sequence of these is equally likely."""
    plan = looks(fewest, most)
    missed = [0] * len(plan)
    for signs in itertools.product((0, 1), repeat=most):
        sums = [sum(signs[: look.runs]) for look in plan]
        out = [not look.rank <= s <= look.runs - look.rank for look, s in zip(plan, sums)]
        for place in range(len(plan)):
            missed[place] += any(out[: place + 1])
    for look, count in zip(plan, missed):
        assert look.missed == pytest.approx(float(Fraction(count, 2**most)), abs=1e-12)


def test_the_looks_of_all_pairs_together_miss_at_most_one_in_twenty() -> None:
    for fewest, most in itertools.product((6, 7, 9, 20, 60), (6, 7, 12, 25, 60, 200)):
        if fewest <= most:
            plan = looks(fewest, most)
            assert plan[0].runs == fewest and plan[-1].runs <= most
            assert plan[-1].missed <= 0.05 + 1e-9 and all(look.rank >= 1 for look in plan)
            for before, after in itertools.pairwise(plan):
                assert after.runs >= 1.4 * before.runs or after.runs == most
                assert after.rank > before.rank


@pytest.mark.parametrize(("fewest", "most"), [(5, 25), (0, 6), (8, 7)])
def test_fewer_than_six_repeats_have_no_looks(fewest: int, most: int) -> None:
    assert 1 - 2 * 0.5 ** (FEWEST_REPEATS - 1) < 0.95 <= 1 - 2 * 0.5**FEWEST_REPEATS
    with pytest.raises(ValueError, match="no looks"):
        looks(fewest, most)


def test_a_case_stops_at_the_first_look_that_is_narrow_enough() -> None:
    until = Until(6, 12, 0.01)
    assert [look.runs for look in looks(6, 12)] == [6, 12]
    narrow = [100, 101, 100.5, 100.2, 100.7, 100.4]
    found = decide(narrow, until)
    assert found.met and found.repeats == 6 and found.interval is not None
    assert (found.interval.low, found.interval.high) == (100, 101)
    assert found.half_width == pytest.approx(0.5 / 100.45)
    # What comes later does not undo it, and what is between two looks does not count yet.
    assert decide([*narrow, 50, 150, 90], until) == found
    wide = [*narrow[:5], 110]
    for more in range(6):
        seen = decide([*wide, *[100.3] * more], until)
        assert not seen.met and seen.repeats == 12
        assert seen.interval is not None and seen.interval.high == 110
    last = decide([*wide, *[100.3] * 6], until)
    assert last.met and last.interval is not None and last.interval.high < 110


def test_below_the_first_look_no_interval_is_stated() -> None:
    until = Until(6, 12, 0.5)
    for runs in range(6):
        found = decide([100.0] * runs, until)
        assert (found.repeats, found.interval, found.met) == (6, None, False)
    sample = describe([100.0, 101.0, 102.0], until)
    assert sample is not None and sample.interval is None and sample.median == 101
    assert describe([], until) is None


def test_at_most_as_many_runs_as_there_may_be() -> None:
    found = decide([100.0 + 10 * (i % 2) for i in range(12)], Until(6, 12, 0.001))
    assert not found.met and found.repeats == 12


NOISES: dict[str, Callable[[random.Random], float]] = {
    "lognormal": lambda chance: math.exp(chance.gauss(0, 0.01)),
    "heavy-tailed": lambda chance: max(1 + 0.005 * math.tan(chance.uniform(-1.57, 1.57)), 0.01),
    "bimodal": lambda chance: (0.96 if chance.random() < 0.4 else 1) + chance.gauss(0, 0.003),
}


@pytest.mark.parametrize("kind", NOISES)
def test_the_interval_at_the_stop_holds_the_median(kind: str) -> None:
    """The short form of ``benchmarks/stopping.py``, with a median that is counted."""
    chance = random.Random(kind)
    truth = statistics.median(NOISES[kind](chance) for _ in range(100_001))
    until, cases, held = Until(6, 25, 0.01), 2000, 0
    for _ in range(cases):
        values = [NOISES[kind](chance) for _ in range(25)]
        runs = 6
        while (found := decide(values[:runs], until)).repeats > runs:
            runs = found.repeats
        assert found.interval is not None
        held += found.interval.low <= truth <= found.interval.high
    # 95 %, less three standard deviations of so many cases.
    assert held / cases >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / cases)
