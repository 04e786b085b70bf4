"""Steady or not: known slopes, noise without a trend, changes of level, long windows."""

from __future__ import annotations

import random

import pytest

from dlperf_hpc.model.statistics import drift, is_steady, shift, trend_z

LENGTHS = [20, 100, 200, 333, 1000]


def ramp(n: int, change: float) -> list[float]:
    return [0.1 * (1 + change * (i / (n - 1) - 0.5)) for i in range(n)]


def noise(n: int, cv: float, seed: int = 0) -> list[float]:
    generator = random.Random(seed)
    return [0.1 * (1 + cv * generator.gauss(0, 1)) for _ in range(n)]


def step(n: int, at: float, change: float) -> list[float]:
    """Noise of 0.5 % on a level that changes at a share of the window."""
    return [t * (1 + change * (i >= at * n)) for i, t in enumerate(noise(n, 0.005))]


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("change", [-0.2, -0.01, 0.005, 0.1])
def test_drift_of_a_known_slope(n: int, change: float) -> None:
    # Blocks begin and end half a block inside the window.
    assert drift(ramp(n, change)) == pytest.approx(change, rel=0.02)


@pytest.mark.parametrize("n", LENGTHS)
def test_a_trend_is_not_steady_and_a_small_one_is(n: int) -> None:
    assert not is_steady(ramp(n, 0.05)) and not is_steady(ramp(n, -0.05))
    assert is_steady(ramp(n, 0.009))


def test_drift_does_not_mind_a_few_slow_iterations() -> None:
    times = ramp(100, 0.02)
    for i in (3, 50, 97, 98, 99):
        times[i] *= 5
    assert drift(times) == pytest.approx(0.02, rel=0.2)


@pytest.mark.parametrize("cv", [0.002, 0.02, 0.2])
def test_noise_without_a_trend_is_steady(cv: float) -> None:
    steady = [is_steady(noise(100, cv, seed)) for seed in range(40)]
    assert steady.count(False) <= 2  # p = 0.01 in each


@pytest.mark.parametrize("n", [100, 200, 1000])
@pytest.mark.parametrize("at", [0.15, 0.3, 0.5, 0.7, 0.85])
@pytest.mark.parametrize("change", [-0.05, 0.05])
def test_a_change_of_level_is_not_steady(n: int, at: float, change: float) -> None:
    times = step(n, at, change)
    assert shift(times) == pytest.approx(change, abs=0.01)
    assert not is_steady(times)


@pytest.mark.parametrize("n", [104, 1040])
@pytest.mark.parametrize("accumulation", [2, 4, 8, 13])
def test_the_rhythm_of_accumulation_is_steady(n: int, accumulation: int) -> None:
    slow = [1.5 if (i + 1) % accumulation == 0 else 1.0 for i in range(n)]
    assert is_steady([t * s for t, s in zip(noise(n, 0.003), slow)])


def test_mann_kendall_against_its_formula() -> None:
    assert trend_z([1, 2, 3, 4, 5]) == pytest.approx((10 - 1) / (5 * 4 * 15 / 18) ** 0.5)
    assert trend_z([5, 4, 3, 2, 1]) == pytest.approx(-(10 - 1) / (5 * 4 * 15 / 18) ** 0.5)
    assert trend_z([1, 1, 1, 1]) == 0.0


@pytest.mark.parametrize("times", [[0.1], [0.1, 0.2], [0.0] * 20])
def test_too_little_to_tell(times: list[float]) -> None:
    assert drift(times) == shift(times) == trend_z(times) == 0.0
    assert is_steady(times)


def test_long_windows_are_averaged_into_blocks() -> None:
    """2000 iterations make 200 blocks of 10: what alternates within a block is gone."""
    times = [0.1 + 0.05 * (-1) ** i for i in range(2000)]
    assert drift(times) == trend_z(times) == 0.0
    long = [t for t in ramp(200, 0.1) for _ in range(10)]
    assert drift(long) == pytest.approx(drift(ramp(200, 0.1)))
