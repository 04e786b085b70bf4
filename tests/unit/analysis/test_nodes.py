"""Which node is slow: by runs on different nodes, and by the own times of each run's ranks."""

from __future__ import annotations

import random
import sys
from dataclasses import replace

import pytest
from places import ROOT
from report_samples import case, ok

from dlperf_hpc.analysis.slow_nodes import (
    NodeEffect,
    Observation,
    device_times,
    examine,
    node_effects,
    observations,
)
from dlperf_hpc.model.result import RankTime, RunResult

sys.path.insert(0, str(ROOT / "benchmarks"))
from nodes import Setting, made_runs, named, shares


def run(speed: float, hosts: str, repeat: int, topology: str = "2n1g") -> RunResult:
    """A run that counts, on the nodes named."""
    made = ok(case(topology), repeat, speed)
    return replace(made, facts={"world": {"hosts": hosts.split()}})


def of(effects: list[NodeEffect], node: str) -> NodeEffect:
    return next(effect for effect in effects if node in effect.nodes)


def test_the_simulations_in_short() -> None:
    """Eight nodes, 21 runs on nodes drawn at random; one is 5 % slow, the noise is 1 %."""
    found = shares(Setting(8, 21, 0.05, 0.01), 40)
    assert found["named"] > 0.7 and found["others"] < 0.1 and found["false"] < 0.1


def test_the_same_runs_give_the_same_answer_in_any_order() -> None:
    runs = made_runs(Setting(16, 42, 0.10, 0.03), True, random.Random(4))
    found = node_effects(runs)
    assert named(runs) == ["n1"] and of(found, "n1") is found[0]
    assert found[0].p is not None and found[0].p <= 0.05
    assert found[0].difference is not None and -0.14 < found[0].difference < -0.06
    again = node_effects(list(reversed(runs)))
    assert [each.nodes for each in again] == [each.nodes for each in found]


def test_coverage_is_told_for_each_node() -> None:
    pairs = ["n1 n2", "n3 n4", "n1 n5", "n2 n5", "n3 n4", "n1 n2", "n5 n2", "n1 n5", "n1 n9"]
    found = list(observations([[run(100 + i, each, i) for i, each in enumerate(pairs, 1)]]))
    effects = node_effects(found)
    assert of(effects, "n3").nodes == ("n3", "n4") and of(effects, "n3").runs == 2
    assert of(effects, "n9").missing == "1 run, nothing can be said"
    assert of(effects, "n9").errors is None and not of(effects, "n9").slow
    assert effects[-1] is of(effects, "n9")  # behind those of which something is said


def test_nodes_that_were_in_every_run_cannot_be_told_apart() -> None:
    alike = [run(100 + i, "n1 n2", i) for i in range(1, 8)]
    (both,) = {effect.missing for effect in node_effects(observations([alike]))}
    assert "on the same nodes" in both
    always = [run(100 + i, f"n1 n{2 + i % 3}", i) for i in range(1, 8)]
    assert "0 runs without it" in of(node_effects(observations([always])), "n1").missing


def test_runs_are_compared_within_their_sweep_and_case() -> None:
    """The second evening was 20 % slower on other nodes: that is no node's."""
    first = [run(100 + 0.1 * i, f"n{1 + i % 3}", i, "1n1g") for i in range(1, 10)]
    second = [run(80 + 0.1 * i, f"n{4 + i % 3}", i, "1n1g") for i in range(1, 10)]
    assert examine([first, second]).slow_nodes == ()
    slow = [run(80 if i % 3 == 0 else 100 + i, f"n{1 + i % 3}", i, "1n1g") for i in range(1, 13)]
    assert examine([slow]).slow_nodes == ("n1",)


def test_a_difference_that_does_not_matter_names_nobody() -> None:
    runs = [run(99 if i % 3 == 0 else 100, f"n{1 + i % 3}", i, "1n1g") for i in range(1, 13)]
    assert examine([runs]).slow_nodes == ()
    assert examine([runs], tolerance=0.005).slow_nodes == ("n1",)


def test_a_second_slow_node_is_named_by_the_runs_without_the_first() -> None:
    chance = random.Random(5)
    slow = {"n1": 0.10, "n2": 0.06}
    hosts = [chance.sample([f"n{n}" for n in range(1, 9)], 2) for _ in range(60)]
    runs = [
        Observation("c", frozenset(each), chance.gauss(-max(slow.get(h, 0) for h in each), 0.005))
        for each in hosts
    ]
    assert named(runs) == ["n1", "n2"]


def times(hosts: str, *ms: float, **more: float) -> RunResult:
    """A run whose ranks, two on each node, took so long for a step of their own."""
    names = hosts.split()
    each = tuple(
        RankTime(names[i // 2], i % 2, value, gpu=True, sm_mhz=more.get(f"mhz{i}", 1755.0),
                 throttle=int(more.get(f"throttle{i}", 0)))
        for i, value in enumerate(ms)
    )  # fmt: skip
    return replace(ok(case("2n2g"), 1, 100.0), rank_times=each)


def test_the_slowest_device_is_named_with_its_clock_and_the_reason() -> None:
    slow = {"mhz3": 1410.0, "throttle3": 0x20}
    runs = [times("n1 n7", 100, 101, 100.5, 106, **slow), times("n7 n1", 100, 107, 100, 101)]
    first, *others = device_times([runs[0], replace(runs[1], rank_times=runs[1].rank_times)])
    assert (first.name, first.runs, first.slowest) == ("n7 GPU 1", 2, 2)
    assert first.slow and not any(each.slow for each in others)
    assert first.excess == pytest.approx((0.06 / 1.005 + 0.07) / 2, abs=0.006)
    assert first.peers_mhz == 1755 and first.throttled == "heat"


def test_one_run_names_no_device_and_a_slow_half_is_against_the_fast_one() -> None:
    assert not any(each.slow for each in device_times([times("n1 n2", 100, 100, 110, 110)]))
    twice = [times("n1 n2", 100, 100, 110, 110), times("n1 n2", 100, 101, 111, 110)]
    assert {each.host for each in device_times(twice) if each.slow} == {"n2"}
    noisy = [times("n1 n2", 100, 100, 110, 100), times("n1 n2", 110, 100, 100, 100)]
    assert not any(each.slow for each in device_times(noisy))


def test_a_device_that_is_times_slower_is_named_however_different_its_runs_are() -> None:
    """As measured on a node that was stopped seven eighths of the time, on a busy machine."""
    pairs = [times("n2 n3", 56.6, 56.6, 255.4, 255.4), times("n2 n3", 103.8, 103.8, 811.5, 811.5)]
    assert {each.name for each in device_times(pairs) if each.slow} == {"n3 GPU 0", "n3 GPU 1"}


def test_times_that_no_device_takes_are_no_reason_to_stop() -> None:
    """Of a damaged log, or of anybody's."""
    for odd in ((1e-300, 1, 1, 1), (5, 5e200, 5e200, 5)):
        runs = [times("n1 n2", *odd), times("n1 n2", *odd[::-1])]
        assert len(device_times(runs)) == 4
