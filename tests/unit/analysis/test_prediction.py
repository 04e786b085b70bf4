"""More nodes, predicted: made steps whose law is known, every refusal, and the published ladders.

The laws of these tests are written down here anew, in their own form.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import replace

import forecast
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_samples import case, external, oks, tokens

from dlperf_hpc.analysis import prediction
from dlperf_hpc.analysis.flags import FLAGS
from dlperf_hpc.analysis.prediction import MEASURED, NodeCount, Prediction, predictions
from dlperf_hpc.model.result import SAMPLES_PER_S, TOKENS_PER_S, RunResult
from dlperf_hpc.reporting.contents import Report


def ring(nodes: int) -> float:
    """2 (N - 1) messages of 1 / N of the gradients: 100 ms, and 20 ms more on two nodes."""
    return 0.1 + 0.04 * (nodes - 1) / nodes


def tree(nodes: int) -> float:
    """A step of the tree for each doubling: 100 ms, and 10 ms more each."""
    return 0.1 + 0.01 * math.log2(nodes)


def at(law: Callable[[int], float], nodes: int, batch: int = 32, **changes: object) -> RunResult:
    """A run on full nodes of 8 devices, whose optimizer steps take what the law says."""
    of = case(f"{nodes}n8g", batch_size=batch, **changes)
    (run,) = oks(of, of.global_batch / law(nodes))
    return run


def said(results: list[RunResult], *targets: int) -> Prediction:
    """What the first of the series says."""
    report = Report("", results)
    return predictions(report.series, report.runs, targets)[0]


def one(results: list[RunResult], nodes: int) -> NodeCount:
    """The prediction for a count of nodes."""
    (found,) = [row for row in said(results, nodes).counts if row.basis != MEASURED]
    assert found.topology.nodes == nodes
    return found


# --- steps whose law is known


def test_a_ring_is_predicted_exactly_up_to_twice_as_far() -> None:
    found = one([at(ring, 1), at(ring, 2)], 4)
    assert found.basis == "ring"
    assert found.throughput == pytest.approx(4 * 8 * 32 / ring(4))
    assert found.efficiency == pytest.approx(0.1 / 0.13)
    assert (found.tree, found.ring) == (None, None)


def test_beyond_that_a_bracket_from_a_tree_to_a_ring_is_shown() -> None:
    of_ring, of_tree = (one([at(law, 1), at(law, 2)], 8) for law in (ring, tree))
    assert of_ring.basis == of_tree.basis == "gamma 0.5"
    assert of_ring.ring == pytest.approx(8 * 8 * 32 / ring(8))
    assert of_tree.tree == pytest.approx(8 * 8 * 32 / tree(8))
    for found in (of_ring, of_tree):
        assert found.tree is not None and found.ring is not None
        assert found.tree < found.throughput < found.ring


@pytest.mark.parametrize("law", [ring, tree])
def test_three_counts_tell_a_ring_from_a_tree(law: Callable[[int], float]) -> None:
    """With a prior: eight times as far within 3 %, and nearer than the middle would be."""
    found = one([at(law, nodes) for nodes in (1, 2, 4)], 32)
    truth = 32 * 8 * 32 / law(32)
    assert found.throughput == pytest.approx(truth, rel=0.03)
    steps = {nodes: law(nodes) for nodes in (1, 2, 4)}
    middle = 32 * 8 * 32 / prediction.step_at(steps, 32, prediction.BETWEEN)
    assert abs(found.throughput - truth) < abs(middle - truth)
    assert found.tree is None


def test_linear_scaling_stays_linear_though_noise_makes_two_nodes_faster() -> None:
    found = one([at(lambda n: 0.1, 1), at(lambda n: 0.099, 2)], 4)
    assert found.efficiency == pytest.approx(0.1 / 0.099)  # as on two nodes, and no better


def test_the_milliseconds_of_another_batch_go_first() -> None:
    """A network whose congestion only the other batch saw: neither ring nor tree."""
    added = {1: 0.0, 2: 0.02, 4: 0.05}
    other = [at(lambda n: 0.19 + added[n], nodes, batch=64) for nodes in added]
    near = [at(lambda n: 0.1 + added[n], nodes) for nodes in (1, 2)]
    found = one([*near, *other], 4)
    assert found.basis == "another batch"
    assert found.throughput == pytest.approx(4 * 8 * 32 / 0.15)
    alone = one(near, 4)
    assert alone.basis == "ring"
    assert alone.throughput == pytest.approx(4 * 8 * 32 / 0.13)


@pytest.mark.parametrize("changes", [
    {"accumulation": 4}, {"precision": "bf16"}, {"model": "gpt2"}, {"seq_len": 64},
    {"tags": ("xla",)},
])  # fmt: skip
def test_what_differs_in_more_than_the_batch_is_no_sibling(changes: dict[str, object]) -> None:
    other = [at(tree, nodes, batch=64, **changes) for nodes in (1, 2, 4)]
    assert one([at(ring, 1), at(ring, 2), *other], 4).basis == "ring"


def test_the_nearest_batch_is_taken() -> None:
    far = [at(lambda n: 0.1 + 0.01 * n, nodes, batch=128) for nodes in (1, 2, 4)]
    near = [at(lambda n: 0.1 + 0.02 * n, nodes, batch=64) for nodes in (1, 2, 4)]
    found = one([at(ring, 1), at(ring, 2), *far, *near], 4)
    assert found.throughput == pytest.approx(4 * 8 * 32 / (ring(2) + 0.04))


def test_logs_of_tokens_alone_will_do() -> None:
    results = tokens("1n8g", 1000.0) + tokens("2n8g", 1800.0)
    found = one(results, 4)
    # steps of 1 and 1 / 0.9; a ring adds half as much again
    assert (found.unit, found.basis) == (TOKENS_PER_S, "ring")
    assert found.throughput == pytest.approx(4000 / (1 + 1.5 * (1 / 0.9 - 1)))


def test_only_full_nodes_count() -> None:
    part = oks(case("1n1g"), 39.0) + oks(case("1n4g"), 150.0)
    assert one([*part, at(ring, 1), at(ring, 2)], 4) == one([at(ring, 1), at(ring, 2)], 4)


def test_the_interval_is_the_formula_and_that_of_the_measured_is_of_their_runs() -> None:
    results = oks(case("1n8g"), *(2560.0 + i for i in range(6))) + [at(ring, 2)]
    first, second, found = said(results, 4).counts
    assert (first.low, first.high) == (2560.0, 2565.0) and (second.low, second.high) == (None, None)
    loss = 1 - (256 / 2562.5) / ring(2)
    assert found.half_width == pytest.approx(0.65 * (0.02 + loss))
    assert found.low == pytest.approx(found.throughput * (1 - 0.65 * (0.02 + loss)))
    assert found.high == pytest.approx(found.throughput * (1 + 0.65 * (0.02 + loss)))


# --- refusals


def why(results: list[RunResult]) -> str:
    """Why nothing is predicted; that the measured counts are there all the same."""
    found = said(results, 4)
    assert not found.something and not found.refused
    assert all(row.basis == MEASURED and row.efficiency is None for row in found.counts)
    return found.why_not


def test_one_node_count_is_refused() -> None:
    assert why([at(ring, 1)]) == (
        "full nodes were measured in one count only (1 node): measure 2 nodes as well"
    )
    assert why([at(ring, 1), *oks(case("2n4g"), 1.0)]).endswith("measure 2 nodes as well")
    assert why([at(ring, 4)]).endswith("(4 nodes): measure 8 nodes as well")
    nothing = said([replace(at(ring, 1), window=None)], 4)
    assert nothing.why_not == "no run on full nodes counts: measure two counts of nodes"
    assert predictions({}, []) == ()


def test_falling_throughput_is_refused() -> None:
    text = why([at(lambda n: 0.1 * n**1.1, nodes) for nodes in (1, 2)])
    assert text.startswith("the throughput falls from 1 to 2 nodes, from which no law follows")
    assert text.endswith("and measure again")
    later = [at(ring, 1), at(ring, 2), at(lambda n: 0.3, 4)]
    assert "falls from 2 to 4 nodes" in said(later, 8).why_not


def test_a_device_that_gets_faster_on_more_nodes_is_refused() -> None:
    text = why([at(lambda n: 0.1, 1), at(lambda n: 0.09, 2)])
    assert text == (
        "a device gets 11.1 % faster from 1 to 2 nodes, which no exchange can do: measure 1 node"
        " again"
    )


def test_accumulation_and_batches_that_change_with_the_nodes_are_refused() -> None:
    text = why([at(ring, 1, accumulation=2), at(ring, 2, accumulation=1)])
    assert text == (
        "the accumulation changes with the nodes (2 on 1n8g, 1 on 2n8g): measure all with one"
    )
    one_node = external("1n8g", {SAMPLES_PER_S: 100.0}, global_batch=64)
    two_nodes = external("2n8g", {SAMPLES_PER_S: 190.0}, global_batch=64)
    assert "an optimizer step changes with the nodes (8.0 on 1n8g, 4.0" in why(one_node + two_nodes)


def test_other_devices_on_more_nodes_are_refused() -> None:
    def on(run: RunResult, device: str) -> RunResult:
        ranks = [{"rank": 0, "host": "n1", "device": device, "device_uuid": "GPU-1"}]
        return replace(run, facts={"world": {"device_name": device}, "ranks": ranks})

    text = why([
        on(at(ring, 1, model="own"), "NVIDIA A100-SXM4-80GB"),
        on(at(ring, 2, model="own"), "NVIDIA H100 80GB HBM3"),
    ])  # fmt: skip
    assert text == (
        "the kind of device changes with the nodes (a100 on 1n8g, h100 on 2n8g): measure all with"
        " one"
    )


def test_bimodal_runs_are_refused() -> None:
    apart = oks(case("1n8g"), 100.0, 100.1, 120.0, 120.1)
    text = why([*apart, at(ring, 2)])
    assert text.startswith("1n8g has the flag bimodal (") and text.endswith("measure 1n8g again")


def test_mixed_settings_are_refused_and_so_is_a_window_without_a_step() -> None:
    mixed = oks(case("2n8g"), 400.0) + oks(case("2n8g", seed=2), 401.0)
    assert "2n8g has the flag mixed-settings" in why([at(ring, 1), *mixed])
    empty = oks(case("2n8g"), 400.0, optimizer_steps=0)
    assert "2n8g has the flag no-optimizer-step" in why([at(ring, 1), *empty])


def test_every_flag_that_voids_is_a_flag() -> None:
    assert FLAGS.keys() >= prediction.VOID


def test_ranks_that_share_cores_are_refused() -> None:
    def with_cores(cpus: str) -> RunResult:
        rows = [{"rank": rank, "host": "n1", "cpus": cpus} for rank in range(8)]
        return replace(at(ring, 1), facts={"ranks": rows})

    assert why([with_cores("0-3"), at(ring, 2)]) == (
        "ranks of 1n8g share cores: measure with a core or more for each rank"
    )
    assert said([with_cores("0-7"), at(ring, 2)], 4).something


@pytest.mark.parametrize(("counts", "nodes", "sentence"), [
    ((2, 4), 3, "4 nodes were measured, and only more are predicted: measure 3 itself"),
    ((1, 2), 9, "two node counts reach 4 times as far, and 8 nodes at most: measure a third one,"
                " 4 nodes"),
    ((1, 4), 16, "two node counts reach 4 times as far, and 8 nodes at most: measure a third one,"
                 " 8 nodes"),
    ((1, 2, 4), 65, "more than 16 times what was measured: measure 5 nodes as well"),
])  # fmt: skip
def test_a_count_too_far_or_too_near_is_refused(
    counts: tuple[int, ...], nodes: int, sentence: str
) -> None:
    found = said([at(ring, each) for each in counts], nodes)
    assert found.refused == {nodes: sentence} and not found.something


def test_the_furthest_counts_are_predicted() -> None:
    assert one([at(ring, 1), at(ring, 2)], 8)
    assert one([at(ring, each) for each in (1, 2, 4)], 64)


def test_a_count_that_was_measured_needs_no_prediction() -> None:
    found = said([at(ring, 1), at(ring, 2)], 2)
    assert not found.refused and not found.something


def test_a_steep_loss_reaches_twice_as_far_only() -> None:
    results = [at(lambda n: 0.1 * n**0.5, nodes) for nodes in (1, 2)]
    found = said(results, 4, 8)
    assert [row.topology.nodes for row in found.counts if row.basis == "ring"] == [4]
    assert found.refused == {
        8: "29.3 % of a device's throughput is lost at once, so that twice as far is the limit:"
        " measure 4 nodes as well"
    }


# --- properties


@st.composite
def ladders(draw: st.DrawFn) -> dict[int, float]:
    """Step times on two to five counts of nodes, that grow by less than the nodes."""
    counts = sorted(draw(st.sets(st.integers(1, 64), min_size=2, max_size=5)))
    steps = {counts[0]: draw(st.floats(1e-4, 1e3))}
    for few, many in zip(counts, counts[1:]):
        growth = draw(st.floats(0.99, min(1.3, 0.999 * many / few)))
        steps[many] = steps[few] * growth
    return steps


@given(ladders(), st.sets(st.integers(1, 2000), min_size=2, max_size=6))
def test_further_is_slower_per_device_and_less_sure(
    steps: dict[int, float], targets: set[int]
) -> None:
    results = [at(lambda n: steps[n], nodes) for nodes in steps]
    found = said(results, *targets)
    assert found.why_not == ""
    rows = [row for row in found.counts if row.basis != MEASURED]
    assert len(rows) + len(found.refused) + len(targets & steps.keys()) == len(targets)
    for near, far in zip(rows, rows[1:]):
        assert near.half_width is not None and far.half_width is not None
        assert near.half_width < far.half_width
        assert near.efficiency is not None and far.efficiency is not None
        assert far.efficiency <= near.efficiency * (1 + 1e-9)
    for row in rows:
        assert row.low is not None and row.high is not None and math.isfinite(row.high)
        assert 0 <= row.low < row.throughput < row.high


@given(st.dictionaries(st.integers(1, 99999), st.floats(1e-6, 1e6), max_size=4),
       st.sets(st.integers(1, 10**9), max_size=3))  # fmt: skip
def test_whatever_was_measured_there_is_a_prediction_or_a_reason(
    steps: dict[int, float], targets: set[int]
) -> None:
    results = [at(lambda n: steps[n], nodes) for nodes in steps]
    report = Report("", results)
    for found in predictions(report.series, report.runs, targets):
        assert found.something or found.why_not or found.refused or targets <= steps.keys()


@given(st.lists(st.floats(min_value=5e-324, max_value=1.7e308), min_size=2, max_size=4))
def test_speeds_that_no_computer_has_do_not_overflow(speeds: list[float]) -> None:
    results = [run for n, speed in enumerate(speeds) for run in external(
        f"{2**n}n8g", {TOKENS_PER_S: speed})]  # fmt: skip
    for row in said(results, 2 * 2 ** len(speeds)).counts:
        assert math.isfinite(row.throughput)
        assert row.high is None or math.isfinite(row.high)


# --- the published ladders, whose figures stand in docs/predict.md


@pytest.fixture(scope="module")
def sound() -> list[forecast.Ladder]:
    """The published ladders from which the model predicts."""
    every = forecast.ladders()
    return [each for each in every if not prediction.why_not_from(each.steps)]


def test_the_model_passes_its_bars_and_beats_the_others(sound: list[forecast.Ladder]) -> None:
    errors = {
        name: forecast.Errors.of([model(each) / each.truth - 1 for each in sound])
        for name, model in forecast.MODELS.items()
    }
    best = errors.pop("dlperf predict")
    assert best.n == len(sound) == 105
    assert best.median <= 0.03 and best.p90 <= 0.11
    for other in errors.values():
        assert best.median < other.median and best.p90 < other.p90


def test_the_interval_holds_as_often_as_it_says(sound: list[forecast.Ladder]) -> None:
    found = forecast.coverage(sound)
    assert 0.85 <= statistics.fmean(each.left_out for each in found.values()) <= 0.95
    widths = [prediction.half_width(each.steps, forecast.TO) for each in sound]
    assert statistics.fmean(widths) <= 0.1
    held = statistics.fmean(forecast.score(each) <= prediction.CONFORMAL for each in sound)
    worst = min(each.shipped for each in found.values())
    assert f"{len(sound)} published ladders" in prediction.CALIBRATED_ON
    assert f"{100 * held:.0f} % of them" in prediction.CALIBRATED_ON
    assert f"of the worst framework {100 * worst:.0f} %" in prediction.CALIBRATED_ON
