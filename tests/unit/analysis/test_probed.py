"""Steps on more nodes by the all-reduce timed alone: from its log line to the prediction.

The step of these tests is compute and 0.8 of an all-reduce whose times follow no law.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from report_samples import case, oks

from dlperf_hpc.analysis.prediction import MEASURED, Prediction, predictions
from dlperf_hpc.model.result import AllReduces, RunResult, Status
from dlperf_hpc.reporting.contents import Report

ALONE = {1: 0.010, 2: 0.030, 4: 0.035, 8: 0.080, 16: 0.300}
"""Seconds of the all-reduce by nodes of 8 devices."""


def step(nodes: int) -> float:
    return 0.1 + 0.8 * ALONE[nodes]


def probe(nodes: int, size: int = 1_000_000) -> AllReduces:
    return AllReduces("gloo", 8 * nodes, 1, (size,), (1e3 * ALONE[nodes],), (3,))


def measured(nodes: int, probed: bool = True) -> RunResult:
    of = case(f"{nodes}n8g")
    (run,) = oks(of, of.global_batch / step(nodes))
    return replace(run, allreduces=probe(nodes)) if probed else run


def cut(nodes: int) -> RunResult:
    """A run that was probed, and whose window does not count."""
    return replace(measured(nodes), status=Status.PARTIAL)


def said(*results: RunResult, at: int, probes: tuple[RunResult, ...] = ()) -> Prediction:
    report = Report("", list(results))
    return predictions(report.series, report.runs, (at,), probes)[0]


def throughput(found: Prediction) -> tuple[float, str]:
    (row,) = [row for row in found.counts if row.basis != MEASURED]
    return row.throughput, row.basis


@pytest.mark.parametrize("nodes", [4, 8])
def test_a_probed_count_is_predicted_by_its_all_reduce(nodes: int) -> None:
    speed, basis = throughput(said(measured(1), measured(2), cut(nodes), at=nodes))
    assert speed == pytest.approx(nodes * 8 * 32 / step(nodes))
    assert basis == "probe, rho 0.80"


def test_probes_of_another_sweep_give_all_reduces_and_no_speed() -> None:
    others = (replace(measured(8), sweep="probes"), replace(measured(4), sweep="probes"))
    found = said(measured(1), measured(2), at=8, probes=others)
    assert throughput(found)[0] == pytest.approx(8 * 8 * 32 / step(8))
    assert [row.topology.nodes for row in found.counts] == [1, 2, 8]


def test_an_all_reduce_of_another_sweep_in_the_report_is_not_this_ones() -> None:
    """The other sweep ran where an exchange takes ten times as long."""
    here = [replace(each, sweep="here") for each in (measured(1), measured(2), cut(4))]
    slow = replace(probe(4), ms=(1e4 * ALONE[4],))
    there = [replace(each, sweep="there") for each in (measured(1), measured(2), cut(4))]
    there[-1] = replace(there[-1], allreduces=slow)
    report = Report("", [*here, *there])
    both = predictions(report.series, report.runs, (4,))
    assert throughput(both[0])[0] == pytest.approx(4 * 8 * 32 / step(4))


def test_without_probes_on_the_count_or_where_steps_are_measured_nothing_changes() -> None:
    plain = said(measured(1, False), measured(2, False), at=4)
    assert said(measured(1), measured(2), at=4) == plain
    assert said(measured(1, False), measured(2), cut(4), at=4).counts[-1] == plain.counts[-1]
    assert said(measured(1), measured(2, False), cut(4), at=4).counts[-1] == plain.counts[-1]


def test_where_the_exchange_was_probed_two_counts_reach_further() -> None:
    wide = {**ALONE, 16: 0.1}
    run = replace(cut(16), allreduces=replace(probe(16), ms=(1e3 * wide[16],)))
    speed, _ = throughput(said(measured(1), measured(2), run, at=16))
    assert speed == pytest.approx(16 * 8 * 32 / (0.1 + 0.8 * 0.1))


def test_bandwidths_are_those_of_nccl_tests() -> None:
    """PERFORMANCE.md: busbw = algbw x 2 (n - 1) / n."""
    found = AllReduces("nccl", 8, 2, (2_000_000_000, 500), (100.0, 0.5), (3, 3))
    assert found.algorithm_gb_s == pytest.approx((20.0, 1e-3))
    assert found.bus_gb_s == pytest.approx((35.0, 1.75e-3))


GOOD = {
    "by": "x",
    "ranks": 2,
    "buckets": 1,
    "bytes": [8, 4],
    "ms": [1.0, 0.5],
    "iterations": [3, 3],
}


def test_a_line_is_read_and_rates_are_computed_anew() -> None:
    found = AllReduces.from_dict({**GOOD, "bus_gb_s": [99.0, 99.0]})
    assert found.ms == (1.0, 0.5)
    assert found.bus_gb_s[0] == pytest.approx(8e-6)


@pytest.mark.parametrize(
    "wrong",
    [
        {"ms": [1.0]},
        {"ms": [1.0, 0]},
        {"ms": [1.0, -1.0]},
        {"ms": [1.0, 1e300]},
        {"ms": "1.0"},
        {"bytes": []},
        {"bytes": [8, "4"]},
        {"ranks": 0},
        {"ranks": True},
        {"buckets": None},
        {"iterations": [3, float("nan")]},
    ],
)
def test_a_damaged_line_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(TypeError, match=r"is|are not"):
        AllReduces.from_dict({**GOOD, **wrong})
