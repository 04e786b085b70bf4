"""Pairs of nodes: who meets whom, and which node or link is slow."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
from places import ROOT

from dlperf_hpc.doctor.job import on_so_many_nodes, targets_of_site
from dlperf_hpc.doctor.measurements import Pairing, judge, rounds_of
from dlperf_hpc.engines import get_engine
from dlperf_hpc.engines.site import Site
from dlperf_hpc.model.case import Topology
from dlperf_hpc.sweepfile.programs import UserProgram

sys.path.insert(0, str(ROOT / "benchmarks"))
from nodes import shares_of_pairs

NODES = [f"n{number}" for number in range(1, 9)]


@pytest.mark.parametrize("nodes", [2, 3, 5, 8])
@pytest.mark.parametrize("count", [1, 3, 20])
def test_each_node_is_in_one_pair_of_a_round_and_never_twice_with_another(
    nodes: int, count: int
) -> None:
    rounds = rounds_of(NODES[:nodes], count)
    assert len(rounds) == min(count, nodes - 1 + nodes % 2)
    for couples in rounds:
        assert len(set(chain(*couples))) == 2 * len(couples) == nodes - nodes % 2
    met = Counter(frozenset(couple) for couple in chain(*rounds))
    assert max(met.values()) == 1


def pairings(rates: dict[str, float] | None = None, **slow: float) -> list[Pairing]:
    """Three rounds of eight nodes; a pair is as fast as its slower node, or as ``rates`` says."""
    known = rates or {}
    return [
        Pairing((a, b), known.get(f"{a} {b}", 10 * min(slow.get(a, 1), slow.get(b, 1))),
                {a: 20.0, b: 20.0})
        for couples in rounds_of(NODES, 3)
        for a, b in couples
    ]  # fmt: skip


def test_a_slow_node_is_named_and_its_partners_are_not() -> None:
    (only,) = judge(pairings(n3=0.9))
    assert (only.kind, only.nodes, only.figure, only.seen) == ("node", ("n3",), "all-reduce", 3)
    assert only.below == pytest.approx(0.1)
    assert judge(pairings()) == [] and judge(pairings(n3=0.98)) == []


def test_a_node_is_named_by_its_own_steps() -> None:
    found = [
        Pairing(p.nodes, 10.0, {n: 22.0 if n == "n5" else 20.0 for n in p.nodes})
        for p in pairings()
    ]
    (only,) = judge(found)
    assert (only.nodes, only.figure) == (("n5",), "steps")


def test_a_pair_that_is_slow_alone_is_a_link() -> None:
    a, b = rounds_of(NODES, 3)[1][2]
    (only,) = judge(pairings({f"{a} {b}": 6.0}))
    assert (only.kind, only.nodes) == ("link", (a, b)) and only.below == pytest.approx(0.4)


def test_too_few_nodes_or_figures_name_nobody() -> None:
    assert judge([Pairing(("n1", "n2"), 1.0, {"n1": 10.0, "n2": 90.0})]) == []
    assert judge([Pairing(("n1", "n2")), Pairing(("n3", "n4"))]) == []
    once = [Pairing(("n1", "n2"), 1.0), Pairing(("n3", "n4"), 10.0), Pairing(("n5", "n6"), 10.0)]
    assert judge(once) == []  # of one pair each nobody knows which of its nodes it is


def test_the_simulations_in_short() -> None:
    for steps in (False, True):
        found = shares_of_pairs(16, steps, 100)
        assert found["named"] > 0.84 and found["others"] < 0.02 and found["false"] == 0.0
        assert found["links"] < 0.05


@pytest.mark.parametrize("launch", ["once", "node", "torchrun", "rank"])
def test_nodes_are_measured_by_ranks_of_our_own_also_for_a_program_that_starts_its_own(
    tmp_path: Path, launch: str
) -> None:
    """Its launcher starts one process, of ``once`` on one of the nodes alone."""
    (target,) = targets_of_site(Site(ntasks=True), Topology(4, 2))
    (run,) = target.array.tasks
    program = UserProgram("mine", launch, ("train.py",))
    per_node = program.per_node(run.case.topology)
    started = replace(run, case=replace(run.case, launch=launch, processes_per_node=per_node))
    array = on_so_many_nodes(replace(target.array, tasks=(started,)), 2)
    script = get_engine("slurm").script(tmp_path, array, Site(ntasks=True))
    assert script is not None
    (srun,) = (line for line in script.splitlines() if line.startswith("srun "))
    assert "--ntasks=4 --ntasks-per-node=2" in srun and "--overlap" not in srun
    assert array.tasks[0].case.ranks == 4
