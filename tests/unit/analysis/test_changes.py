"""Steps, spikes and drifts among few levels, and what chance makes of none."""

from __future__ import annotations

import math
import random
from itertools import permutations

import pytest

from dlperf_hpc.analysis.outcomes import Changes, LevelStep, changes, error_of_best, thresholds


def told(levels: list[float], tolerance: float = 0.02, risk: float = 0.05) -> Changes:
    return changes(levels, tolerance, risk)


def noisy(levels: list[float], seed: int, noise: float = 0.004) -> list[float]:
    chance = random.Random(seed)
    return [level * math.exp(chance.gauss(0, noise)) for level in levels]


def places(found: Changes) -> list[int]:
    return [step.at for step in found.steps if not step.suspected]


@pytest.mark.parametrize("at", [3, 5, 9])
def test_a_step_is_found_where_it_is_and_nothing_else(at: int) -> None:
    for seed in range(20):
        found = told(noisy([1000.0] * at + [960.0] * (12 - at), seed))
        assert places(found) == [at] and not found.spikes and not found.drifts, seed
        (step,) = found.steps
        assert step.interval is not None and step.error <= 0.05
        assert step.interval.low <= 0.96 * 1.01 and step.interval.high >= 0.96 * 0.99


def test_up_is_as_good_as_down_and_two_steps_are_two() -> None:
    up = told(noisy([960.0] * 5 + [1000.0] * 5, 1))
    assert places(up) == [5] and up.steps[0].ratio > 1
    twice = told(noisy([1000.0] * 6 + [950.0] * 6 + [900.0] * 6, 2))
    assert places(twice) == [6, 12]


def test_within_the_tolerance_nothing_is_told() -> None:
    assert told(noisy([1000.0] * 8 + [990.0] * 8, 3)) == Changes()
    assert places(told(noisy([1000.0] * 8 + [990.0] * 8, 3, 0.001), 0.005)) == [8]


def test_a_single_odd_level_is_a_spike_and_no_step() -> None:
    found = told(noisy([1000.0] * 4 + [900.0] + [1000.0] * 4, 4))
    assert found.spikes == (4,) and not found.steps and not found.drifts


def test_what_goes_bit_by_bit_is_a_drift() -> None:
    found = told([1000 * 0.99**n for n in range(12)])
    (drift,) = found.drifts
    assert (drift.first, drift.last) == (0, 11) and drift.ratio == pytest.approx(0.99**11)
    assert not found.steps and not found.spikes


def test_too_few_levels_behind_a_step_are_a_suspicion() -> None:
    for behind in (1, 2):
        found = told(noisy([1000.0] * 5 + [940.0] * behind, 5))
        (step,) = found.steps
        assert step.suspected and step.at == 5 and step.error > 0.05
        assert (step.interval is None) == (behind == 1)
    assert not told(noisy([1000.0] * 5 + [985.0], 5)).steps


@pytest.mark.parametrize("levels", [[], [1000.0], [1000.0, 500.0], [7.0] * 9])
def test_one_two_and_equal_levels_say_nothing(levels: list[float]) -> None:
    assert told(levels) == Changes()


def test_the_error_is_counted_over_all_orders() -> None:
    """Of 3 + 3 levels without an overlap: one order in 20 in one direction. Six in a row that
    rises: no place is better than that in the middle."""
    assert error_of_best([6, 5, 4, 3, 2, 1]) == pytest.approx(1 / 20)
    assert error_of_best([3.0, 2.0, 1.0]) == 1.0
    errors = sorted(error_of_best(list(order)) for order in permutations(range(1, 7)))
    assert sum(error <= 0.05 for error in errors) == 72  # a tenth of 720: down, or up


def test_noise_alone_has_a_step_as_seldom_as_promised() -> None:
    alarms = sum(bool(places(told(noisy([1000.0] * 10, seed, 0.03)))) for seed in range(400))
    # Down and up are two claims of 5 % each; the band takes most of them away.
    assert alarms <= 40


def test_many_cases_share_the_risk() -> None:
    assert thresholds([0.04], 0.05) == [0.05]
    assert thresholds([0.04, 0.9], 0.05) == [0.025, 0.025]
    assert thresholds([0.001, 0.04, 0.5], 0.06) == pytest.approx([0.02, 0.03, 0.03])
    assert thresholds([], 0.05) == []


def test_the_same_levels_give_the_same_answer() -> None:
    levels = noisy([1000.0] * 10 + [970.0] * 4, 6)
    assert told(levels) == told(list(levels))
    assert all(isinstance(step, LevelStep) for step in told(levels).steps)
