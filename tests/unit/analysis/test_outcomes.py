"""The decision rule of a comparison: exact for every order of few runs, mirrored, and sharper with
more of them."""

from __future__ import annotations

import itertools
import random

import pytest

from dlperf_hpc.analysis.outcomes import (
    MOST_PAIRS,
    RatioOutcome,
    band,
    error_of,
    outcome_of,
    point_interval,
    rank_interval,
)
from dlperf_hpc.model.statistics import RISK, TOLERANCE, Interval


def judged(a: list[float], b: list[float], tolerance: float = TOLERANCE) -> RatioOutcome:
    ratio = sorted(b)[len(b) // 2] / sorted(a)[len(a) // 2]
    return outcome_of(ratio, rank_interval(a, b, RISK), tolerance, RISK)


def noisy(random_: random.Random, n: int, centre: float, sigma: float) -> list[float]:
    return [random_.gauss(centre, sigma) for _ in range(n)]


@pytest.mark.parametrize(
    ("n", "m", "error"),
    [(3, 3, 1 / 20), (4, 4, 2 / 70), (5, 5, 12 / 252), (2, 5, 1 / 21), (7, 7, 167 / 3432)],
)
def test_error_is_that_of_mann_and_whitneys_tables(n: int, m: int, error: float) -> None:
    """One-sided, 5 %: critical values of U of 0, 1, 4, 0 and 11."""
    found = rank_interval([1.0 + 0.001 * i for i in range(n)], [1.0] * m, RISK)
    assert found is not None
    assert error_of(found) == pytest.approx(error)


@pytest.mark.parametrize(("n", "m"), [(3, 3), (4, 3), (5, 5), (2, 5), (6, 4)])
@pytest.mark.parametrize("end", [0, 1])
def test_of_all_orders_as_many_are_wrong_as_the_error_says(n: int, m: int, end: int) -> None:
    """B's runs are A's times an end of the band: what lies beyond or within it is chance."""
    factor = band(TOLERANCE)[end]
    values = [1.0 + 1e-6 * i for i in range(n + m)]
    lower = higher = orders = 0
    error = 0.0
    for chosen in itertools.combinations(range(n + m), n):
        a = [values[i] for i in chosen]
        b = [factor * values[i] for i in range(n + m) if i not in chosen]
        found = rank_interval(a, b, RISK)
        assert found is not None
        error = error_of(found)
        lower += found.high < factor  # slower, or at the upper end: the same
        higher += found.low > factor  # the same, or at the upper end: faster
        orders += 1
    assert lower / orders == higher / orders == pytest.approx(error)
    assert error <= RISK * (1 + 1e-9)


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [
        (0.90, 0.979, RatioOutcome.SLOWER),
        (0.90, 0.98, RatioOutcome.UNDECIDED),
        (0.98, 1.0, RatioOutcome.SAME),
        (0.979, 1.0, RatioOutcome.UNDECIDED),
        (1.0, 1.0204, RatioOutcome.SAME),
        (1.0, 1.0205, RatioOutcome.UNDECIDED),
        (1.0205, 1.2, RatioOutcome.FASTER),
        (0.9, 1.1, RatioOutcome.UNDECIDED),
    ],
)
def test_the_interval_against_the_band(low: float, high: float, outcome: RatioOutcome) -> None:
    assert outcome_of((low + high) / 2, Interval(low, high, 0.9), 0.02, 0.05) is outcome


def test_medians_that_lie_elsewhere_decide_nothing() -> None:
    assert outcome_of(1.0, Interval(0.8, 0.9, 0.9), 0.02, 0.05) is RatioOutcome.UNDECIDED
    assert outcome_of(1.1, Interval(0.99, 1.01, 0.9), 0.02, 0.05) is RatioOutcome.UNDECIDED


@pytest.mark.parametrize(("n", "m"), [(1, 5), (5, 1), (2, 2), (2, 3), (2, 4)])
def test_too_few_runs_however_far_apart(n: int, m: int) -> None:
    assert (
        judged([100.0 + i for i in range(n)], [10.0 + i for i in range(m)]) is RatioOutcome.TOO_FEW
    )


def test_3_and_3_are_enough_at_5_percent() -> None:
    assert judged([100.0, 101.0, 102.0], [90.0, 91.0, 92.0]) is RatioOutcome.SLOWER
    assert judged([90.0, 91.0, 92.0], [100.0, 101.0, 102.0]) is RatioOutcome.FASTER
    # max(B) / min(A) is all that counts
    assert judged([100.0, 101.0, 102.0], [90.0, 91.0, 99.0]) is RatioOutcome.UNDECIDED


def test_swapping_mirrors_every_verdict() -> None:
    mirror = {RatioOutcome.SLOWER: RatioOutcome.FASTER, RatioOutcome.FASTER: RatioOutcome.SLOWER}
    random_ = random.Random(5)
    seen = set()
    for _ in range(500):
        n, m = random_.choice([3, 5, 7]), random_.choice([3, 5, 7])
        factor = random_.choice([0.9, 0.96, 1.0, 1.03, 1.1])
        a = [random_.gauss(100, 1) for _ in range(n)]
        b = [factor * random_.gauss(100, 1) for _ in range(m)]
        one, other = judged(a, b), judged(b, a)
        assert mirror.get(one, one) is other
        seen.add(one)
    assert seen == {
        RatioOutcome.SLOWER,
        RatioOutcome.FASTER,
        RatioOutcome.SAME,
        RatioOutcome.UNDECIDED,
    }


def test_more_runs_find_more() -> None:
    """3 % slower, noise 0.5 %: with the extremes of each side it would be the other way round."""
    random_ = random.Random(2)
    found = []
    for n in (3, 5, 7):
        pairs = [
            (
                [random_.gauss(1, 0.005) for _ in range(n)],
                [random_.gauss(0.97, 0.005) for _ in range(n)],
            )
            for _ in range(300)
        ]
        found.append(sum(judged(a, b) is RatioOutcome.SLOWER for a, b in pairs) / 300)
    assert found[0] < 0.75 < 0.8 < found[1] < 0.94 < found[2]


def test_no_difference_is_never_a_regression_below_the_tolerance() -> None:
    random_ = random.Random(3)
    verdicts = [
        judged(
            [random_.gauss(1, 0.01) for _ in range(5)], [random_.gauss(1, 0.01) for _ in range(5)]
        )
        for _ in range(500)
    ]
    assert verdicts.count(RatioOutcome.SLOWER) + verdicts.count(RatioOutcome.FASTER) <= 1
    assert verdicts.count(RatioOutcome.SAME) > 300


def test_equal_values_decide_nothing_they_should_not() -> None:
    assert judged([5.0] * 3, [5.0] * 3) is RatioOutcome.SAME
    assert judged([100.0] * 5, [98.0] * 5, 0.02) is RatioOutcome.SAME  # on the end is not beyond it
    assert judged([5.0] * 3, [5.0] * 3, 0.0) is RatioOutcome.SAME


@pytest.mark.parametrize(("n", "error"), [(4, 1 / 16), (5, 1 / 32), (6, 1 / 64), (8, 9 / 256)])
def test_against_a_single_figure_signs_are_counted(n: int, error: float) -> None:
    found = point_interval([100.0 + i for i in range(n)], 90.0, RISK)
    assert found is not None
    assert error_of(found) == pytest.approx(error)
    expected = RatioOutcome.TOO_FEW if n == 4 else RatioOutcome.SLOWER
    assert outcome_of(0.9, found, TOLERANCE, RISK) is expected


def test_hundreds_of_runs_take_no_time_and_keep_their_coverage() -> None:
    values = [1.0 + 1e-4 * i for i in range(300)]
    assert len(values) ** 2 > MOST_PAIRS
    found = rank_interval(values, values, RISK)
    assert found is not None
    assert found.low < 1 < found.high
    assert 0.9 <= found.coverage < 0.93


@pytest.mark.parametrize("tolerance", [-0.01, 1.0, float("nan")])
def test_tolerances_that_cannot_be(tolerance: float) -> None:
    with pytest.raises(ValueError, match="tolerance"):
        band(tolerance)
