"""Order statistics of few values: figures worked out by hand, invariants, and a simulation."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlperf_hpc.model.statistics import (
    Interval,
    Split,
    describe,
    median_coverage,
    median_interval,
    outliers,
    ratio_interval,
    two_groups,
    usual_distance,
)

SPEEDS = st.lists(st.floats(0.01, 1e6), min_size=1, max_size=30)


@pytest.mark.parametrize(
    ("n", "coverage"),
    [(2, 0.5), (3, 0.75), (4, 0.875), (5, 0.9375), (6, 0.96875), (7, 0.984375), (8, 0.9921875)],
)
def test_min_to_max_has_the_coverage_it_truly_has(n: int, coverage: float) -> None:
    assert median_interval(range(1, n + 1)) == Interval(1, n, coverage)


def test_one_value_has_no_interval() -> None:
    assert median_interval([5.0]) is None
    assert median_interval([]) is None


def test_from_nine_values_on_the_extremes_are_left_out() -> None:
    nine = median_interval([9, 1, 8, 2, 7, 3, 6, 4, 5])
    assert nine is not None
    assert (nine.low, nine.high) == (2, 8)
    assert nine.coverage == pytest.approx(1 - 20 / 512)
    assert nine.coverage >= 0.95
    assert median_interval(range(1, 9)) == Interval(1, 8, 1 - 2 / 256)


@pytest.mark.parametrize("n", [9, 12, 20, 101])
def test_the_interval_is_the_narrowest_that_covers_enough(n: int) -> None:
    interval = median_interval(range(1, n + 1))
    assert interval is not None
    k = int(interval.low)
    assert interval.coverage == median_coverage(n, k) >= 0.95
    assert median_coverage(n, k + 1) < 0.95


def test_coverage_of_no_interval_is_an_error() -> None:
    for n, k in [(5, 0), (5, 3), (1, 1)]:
        with pytest.raises(ValueError, match="does not leave an interval"):
            median_coverage(n, k)


@pytest.mark.parametrize("n", [3, 5, 7, 9, 12])
def test_stated_coverage_holds_for_a_skewed_distribution(n: int) -> None:
    """Exponential waiting times: the median is ln 2, nothing about them is normal."""
    random_ = random.Random(n)
    trials, hits, stated = 20_000, 0, 0.0
    for _ in range(trials):
        interval = median_interval([random_.expovariate(1) for _ in range(n)])
        assert interval is not None
        stated = interval.coverage
        hits += interval.low <= math.log(2) <= interval.high
    error = math.sqrt(stated * (1 - stated) / trials)
    assert hits / trials == pytest.approx(stated, abs=4 * error)


@given(SPEEDS, st.randoms())
def test_order_does_not_matter(values: list[float], random_: random.Random) -> None:
    shuffled = values[:]
    random_.shuffle(shuffled)
    assert describe(shuffled) == describe(values)


@given(SPEEDS)
def test_the_median_lies_in_its_interval_and_all_in_the_range(values: list[float]) -> None:
    sample = describe(values)
    assert sample is not None
    assert sample.n == len(values)
    assert sample.minimum <= sample.median <= sample.maximum
    assert sample.minimum <= sample.mean * (1 + 1e-12)
    assert sample.mean <= sample.maximum * (1 + 1e-12)
    assert sample.spread >= 0
    assert (sample.interval is None) == (len(values) == 1)
    if sample.interval is not None:
        assert sample.interval.low <= sample.median <= sample.interval.high
        assert 0.5 <= sample.interval.coverage < 1 or len(values) > 54
    assert sample.values == tuple(sorted(values))


@given(SPEEDS, st.sampled_from([0.5, 2.0, 1024.0]))
def test_the_unit_does_not_matter(values: list[float], factor: float) -> None:
    sample, scaled = describe(values), describe([factor * value for value in values])
    assert sample is not None
    assert scaled is not None
    assert scaled.spread == sample.spread
    found = outliers(values)
    assert outliers(scaled.values) == tuple((factor * value, off) for value, off in found)
    assert {value for value, _ in found} <= set(values)
    assert (two_groups(scaled.values) is None) == (two_groups(values) is None)


def test_no_values_no_sample() -> None:
    assert describe([]) is None


@pytest.mark.parametrize("value", [0.0, -3.5, math.nan, math.inf])
def test_what_is_no_throughput_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="not a throughput"):
        describe([100.0, value])


def test_spread_is_relative_to_the_median() -> None:
    several, single = describe([95, 100, 110]), describe([7])
    assert several is not None and several.spread == pytest.approx(0.15)
    assert single is not None and single.spread == 0


def test_a_run_is_held_against_the_furthest_of_the_others() -> None:
    # the median of the other five is 100, the furthest of these 1 off; 4.5 + 13 / 3 = 8.83
    ordinary = [99, 99.5, 100, 100.5, 101]
    assert outliers([*ordinary, 108.8]) == ()
    ((value, off),) = outliers([*ordinary, 108.9])
    assert value == 108.9 and off == pytest.approx(0.089)


def test_what_is_usual_in_the_other_cases_decides_what_is_far() -> None:
    # with 1 % usual: 3.3 %, and (2.2 + 2.7 / 3) times what the furthest of the others is off
    ordinary = [99.2, 99.5, 100, 100.5, 100.8]
    assert outliers([*ordinary, 103.2], 0.01) == ()
    assert [value for value, _ in outliers([*ordinary, 103.4], 0.01)] == [103.4]
    assert outliers([98.9, *ordinary[1:], 103.4], 0.01) == ()  # the next one is 1.1 % off
    assert outliers([*ordinary, 110.7], 0.2)  # a case quieter than others: 1.5 * 8.83 * 0.8


def test_a_run_less_than_1_percent_off_is_no_outlier() -> None:
    assert outliers([100, 100, 100, 100, 100.9]) == ()
    assert two_groups([100, 100, 100.9, 100.9]) is None


def test_usual_is_the_upper_quartile_of_the_other_cases() -> None:
    samples = [describe([100, 100, 100, 100 + far]) for far in (1, 2, 3, 4, 5, 6, 90)]
    # 7 cases with 4 values or more, 6 of them others: the fifth of these
    assert usual_distance([*samples, describe([1, 9]), None]) == pytest.approx(0.05)
    assert usual_distance(samples[:5]) is None


def test_three_values_have_no_outlier() -> None:
    assert outliers([100, 100.1, 300]) == ()


def test_equal_values_but_one() -> None:
    ((value, off),) = outliers([100, 100, 100, 100, 130])
    assert value == 130 and off == pytest.approx(0.3)
    assert outliers([100, 100, 100, 100 * (1 + 1e-13)]) == ()


def apart(low: float, high: float) -> Any:
    return pytest.approx(1 - low / high)


def test_two_groups() -> None:
    assert two_groups([1, 1.1, 9, 9.2, 9.3]) == Split(2, 1.1, 9, apart(1.05, 9.2))
    assert two_groups([1, 1.1, 9, 9.2]) == Split(2, 1.1, 9, apart(1.05, 9.1))
    assert two_groups([7, 7, 9, 9]) == Split(2, 7, 9, apart(7, 9))
    near = [99, 99.5, 100, 104, 104.5, 105]
    assert two_groups(near) is None
    assert two_groups(near, 0.01) == Split(3, 100, 104, apart(99.5, 104.5))


@pytest.mark.parametrize(
    "values",
    [
        [],
        [5],
        [5, 9],
        [1, 8, 9],  # one alone is an outlier, not a group
        [1, 8, 8.5, 9],
        [1, 1.5, 2, 9],
        [1, 2, 3, 4, 5],
        [1, 2, 4, 5],  # no clusters: as far apart as within
        [7, 7, 7, 7],
    ],
)
def test_not_two_groups(values: list[float]) -> None:
    assert two_groups(values) is None


def test_ratio_interval_is_conservative() -> None:
    ratio = ratio_interval(Interval(30, 36, 0.9375), Interval(2, 3, 0.75))
    assert ratio == Interval(10, 18, 0.703125)
    assert ratio_interval(None, Interval(2, 3, 0.75)) is None
    assert ratio_interval(Interval(30, 36, 0.9375), None) is None
    assert ratio_interval(Interval(30, 36, 0.9375), Interval(0, 3, 0.75)) is None


def test_ratio_interval_covers_at_least_what_it_says() -> None:
    random_ = random.Random(0)
    trials, hits, stated = 4000, 0, 0.0
    for _ in range(trials):
        over = median_interval([random_.gauss(200, 6) for _ in range(5)])
        under = median_interval([random_.gauss(100, 3) for _ in range(5)])
        ratio = ratio_interval(over, under)
        assert ratio is not None
        stated = ratio.coverage
        hits += ratio.low <= 2 <= ratio.high
    assert hits / trials >= stated


def test_many_values_have_an_interval_too() -> None:
    interval = median_interval([float(i) for i in range(3000)])
    assert interval is not None and 0.95 <= interval.coverage < 0.955
    assert 1440 < interval.low < 1499.5 < interval.high < 1560
