"""Slow nodes in made sweeps of 18 runs on 16 nodes: ``benchmarks/nodes.py`` has the whole table."""

from __future__ import annotations

import sys

import pytest
from places import ROOT

from dlperf_hpc.analysis.slow_nodes import NodeEffect, NodeFindings, Observation, node_effects
from dlperf_hpc.reporting.node_tables import sentences

sys.path.insert(0, str(ROOT / "benchmarks"))
from nodes import Setting, named, shares


@pytest.mark.parametrize("shape", ["normal", "t3"])
@pytest.mark.parametrize("slow", [0.03, 0.10])
def test_a_slow_node_with_two_runs_is_named(slow: float, shape: str) -> None:
    found = shares(Setting(16, 18, slow, 0.005, shape), 60)
    assert found["in 2+"] >= 0.95 and found["others"] <= 0.02 and found["false"] <= 0.02


@pytest.mark.parametrize("shape", ["normal", "t3"])
def test_noise_accuses_nobody(shape: str) -> None:
    assert sum(shares(Setting(16, 18, 0.0, s, shape), 60)["false"] for s in (0.01, 0.03)) < 0.05


def runs(*text: str) -> list[Observation]:
    """``-0.1 n1 n2`` is a run 10 % below, on these nodes; cases by the number of nodes."""
    parts = [each.split() for each in text]
    return [Observation(f"{len(p)}", frozenset(p[1:]), float(p[0])) for p in parts]


QUIET = ("0.001 n2", "-0.002 n3", "0.003 n4", "0 n5", "-0.001 n3 n4", "0.002 n4 n5", "0 n5 n6")


def of(found: list[NodeEffect], node: str) -> NodeEffect:
    return next(effect for effect in found if node in effect.nodes)


def test_a_partner_that_only_had_runs_with_the_slow_node_is_not_accused() -> None:
    found = runs(*QUIET, "-0.1 n1 n7", "-0.101 n1 n7", "-0.1 n1")
    assert named(found) == ["n1"]
    assert not of(node_effects(found), "n7").needed
    assert named(runs(*QUIET, "-0.1 n1 n7", "-0.101 n1 n7")) == ["n1 or n7"]


def test_a_node_that_was_slow_once_and_well_once_is_not_slow() -> None:
    found = node_effects(runs(*QUIET, "-0.1 n1 n2", "0 n1"))
    assert not any(effect.slow for effect in found)


def test_one_slow_run_is_a_suspicion_with_what_would_settle_it() -> None:
    found = node_effects(runs(*QUIET, "-0.1 n9"))
    effect = of(found, "n9")
    assert not effect.slow and effect.needed == 2 and effect.missing
    lines = sentences(NodeFindings(8, 8, tuple(found), (), {}))
    (line,) = [each for each in lines if "n9" in each]
    assert line.startswith("suspected: n9, -9.5 % in 1 run: 2 runs as slow on it would settle it")
    assert line.endswith("or: dlperf doctor --pairs 3 --nodelist n9,n4,n5,n3")
    assert named(runs(*QUIET, "-0.1 n9", "-0.1 n9")) == ["n9"]
