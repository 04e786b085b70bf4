"""Components on far more nodes, held against draws: the longest of many, and nodes that fail."""

from __future__ import annotations

import math
import random
from statistics import fmean

import pytest

from dlperf_hpc.analysis.beyond import Component, Failures, components, kept, stragglers
from dlperf_hpc.analysis.prediction import Prediction

STEPS = {1: 0.1, 2: 0.12}  # s on 1 and 2 nodes: a ring adds 40 ms (N - 1) / N


def of(nodes: int, times: list[float], failures: Failures | str = "unknown") -> list[Component]:
    """The components of a series with two counts."""
    return [*components(Prediction("s", STEPS, ()), [nodes], times, failures)]


@pytest.mark.parametrize("more", [1.0, 4.0, 13.0])
def test_an_iteration_is_the_longest_of_so_many_that_were_measured(more: float) -> None:
    draw = random.Random(1)
    times = [draw.lognormvariate(0, 0.1) for _ in range(100)]
    longest = fmean(max(draw.choices(times, k=int(more))) for _ in range(40_000))
    assert stragglers(times, more) == pytest.approx(fmean(times) / longest, rel=0.002)


def test_iterations_carry_a_seventh_of_their_number() -> None:
    """100 carry 13 times as many nodes, and 1000 carry 138."""
    for count, reach in ((100, 13), (1000, 138)):
        (known,) = [row for row in of(2 * reach, [1.0] * count) if row.name == "stragglers"]
        assert (known.low, known.high, known.why_not) == (1.0, 1.0, "")
        (far,) = [row for row in of(2 * reach + 2, [1.0] * count) if row.name == "stragglers"]
        assert far.low is None
        assert far.why_not.endswith(f"measure {math.ceil((reach + 1) / 0.138)} iterations on 2")


def lived_through(failures: Failures, nodes: int, tau: float, draw: random.Random) -> float:
    """The share of time that is work, as nodes fail one after the other at random."""
    mean = 86400 / (failures.per_day * nodes)
    work, now, due = 0.0, 0.0, draw.expovariate(1 / mean)
    while work < 3000 * tau:
        while due < now + failures.restart_s:  # it fails while it starts again
            now, due = due, due + draw.expovariate(1 / mean)
        now += failures.restart_s
        while now + tau + failures.checkpoint_s <= due:
            now, work = now + tau + failures.checkpoint_s, work + tau
        now, due = due, due + draw.expovariate(1 / mean)
    return work / now


@pytest.mark.parametrize("nodes", [512, 8192])
def test_of_failures_the_best_interval_leaves_what_random_ones_do(nodes: int) -> None:
    failures = Failures(0.0038, 120.0, 300.0)
    mean = 86400 / (failures.per_day * nodes)
    nearly_best = math.sqrt(2 * failures.checkpoint_s * mean)  # Young's first order
    shares = [
        fmean(lived_through(failures, nodes, nearly_best * f, random.Random(n)) for n in range(4))
        for f in (0.5, 0.8, 1.0, 1.25, 2.0)
    ]
    assert max(shares) == pytest.approx(kept(failures, nodes), rel=0.01)


def test_where_a_checkpoint_takes_longer_than_nodes_live_nothing_is_left() -> None:
    assert kept(Failures(24.0, 3600.0, 3600.0), 100_000) == 0.0
    assert kept(Failures(24.0, 3600.0, 10.0), 10) < 0.01


def test_each_component_is_a_line_of_its_own() -> None:
    network, slow, failures = of(16, [0.1] * 60, Failures(0.0038, 60.0, 60.0))
    assert network.low == pytest.approx(0.1 / (0.12 + 0.02 * 3))  # three more doublings
    assert network.high == pytest.approx(0.1 / (0.1 + 0.04 * 15 / 16))
    assert slow.low == slow.high == pytest.approx(1.0)
    assert failures.low and failures.high and failures.low < failures.high < 1
    (below,) = of(2, [0.1])
    assert below.why_not == "up to 2 nodes it is measured"
    (*_, unknown) = of(16, [0.1] * 60)
    assert unknown.why_not == "unknown" and unknown.low is None
