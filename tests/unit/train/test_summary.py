"""From the ranks' windows to the one that is stated, or a refusal to state it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlperf_hpc.errors import MeasurementError
from dlperf_hpc.model.case import Case, Measure, Topology
from dlperf_hpc.train import measurement
from dlperf_hpc.train.measurement import MeasuredWindow

MEASURE = Measure(warmup=2, iterations=4)
seconds = st.floats(1e-4, 10.0)
shares = st.floats(0.0, 1.0)


def timed(step_times: list[float], **more: Any) -> MeasuredWindow:
    window = MeasuredWindow(
        iterations=len(step_times),
        opened=1e9,
        elapsed_s=sum(step_times),
        step_times=step_times,
        losses=[10.0 - i for i in range(len(step_times))],
        optimizer_steps=len(step_times),
        skipped_steps=0,
        moved=True,
        data_wait_s=0.0,
        memory_mb=100.0,
    )
    return replace(window, **more)


def case(topology: str = "1n2g", accumulation: int = 1) -> Case:
    return Case("ddp", "bert-tiny", Topology.parse(topology), "fp32", 3, 16, accumulation)


@given(st.lists(seconds, min_size=1, max_size=50), shares)
def test_percentiles_are_numpys(values: list[float], share: float) -> None:
    expected = float(np.percentile(np.array(values), 100 * share))
    assert measurement.percentile(values, share) == pytest.approx(expected, rel=1e-9)


@given(
    st.integers(1, 5).flatmap(
        lambda n: st.lists(st.lists(seconds, min_size=n, max_size=n), min_size=1, max_size=4)
    )
)
def test_iteration_times_add_up_to_the_slowest_rank(ranks: list[list[float]]) -> None:
    times = measurement.iteration_times([timed(steps) for steps in ranks])
    assert len(times) == len(ranks[0])
    assert sum(times) == pytest.approx(max(sum(steps) for steps in ranks))


def test_an_iteration_ends_with_its_slowest_rank() -> None:
    """One rank waits for the other in turn: no wait is counted twice."""
    windows = [timed([3.0, 1.0, 1.0]), timed([1.0, 3.0, 2.0])]
    assert measurement.iteration_times(windows) == pytest.approx([3.0, 1.0, 2.0])


def test_losses_are_the_mean_over_ranks() -> None:
    windows = [timed([1.0, 1.0], losses=[4.0, 2.0]), timed([1.0, 1.0], losses=[6.0, 1.0])]
    assert measurement.mean_losses(windows) == [5.0, 1.5]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_loss_that_is_no_number_is_refused(value: float) -> None:
    bad = timed([1.0] * 4, losses=[3.0, 2.0, value, 1.0])
    with pytest.raises(MeasurementError, match=rf"loss is {value} from iteration 3 of the window"):
        measurement.check([timed([1.0] * 4), bad])


def test_parameters_that_did_not_move_are_refused() -> None:
    with pytest.raises(MeasurementError, match="4 optimizer steps left the parameters"):
        measurement.check([timed([1.0] * 4), timed([1.0] * 4, moved=False)])


def test_a_window_without_an_optimizer_step_moves_nothing() -> None:
    measurement.check([timed([1.0] * 4, moved=False, optimizer_steps=0)])


def test_only_skipped_steps_are_no_training() -> None:
    with pytest.raises(MeasurementError, match="all 4 optimizer steps were skipped"):
        measurement.check([timed([1.0] * 4, moved=False, skipped_steps=4)])
    measurement.check([timed([1.0] * 4, skipped_steps=3)])


def test_the_stated_window() -> None:
    fast = timed([0.5] * 4, elapsed_s=2.1, memory_mb=90.0, data_wait_s=0.2)
    slow = timed([1.0] * 4, elapsed_s=4.2, losses=[8.0, 7.0, 6.0, 5.0])
    window = measurement.summarise([fast, slow], case(), MEASURE)
    assert (window.elapsed_s, window.elapsed_min_s) == (4.2, 2.1)
    assert window.samples == 24 and window.samples_per_s == pytest.approx(24 / 4.2)
    assert (window.warmup, window.iterations, window.ranks) == (2, 4, 2)
    assert window.step_ms_p5 == window.step_ms_p99 == pytest.approx(1000)
    assert (window.loss_first, window.loss_last) == (9.0, 6.0)
    assert (window.memory_mb, window.data_wait_s) == (100.0, 0.2)
    assert window.steady is True and window.drift == 0.0


def test_how_the_model_was_run_over_all_ranks() -> None:
    """A back end that tells nothing of it leaves nothing behind."""
    one = {"attention": "flash", "graphs": 3, "graph_breaks": 0, "recompiles": 0}
    other = {"attention": "math+flash", "graphs": 4, "graph_breaks": 1, "recompiles": 1}
    ranks = [timed([1.0], execution=told) for told in (one, other)]
    window = measurement.summarise(ranks, case(), MEASURE)
    assert window.attention == "flash+math"
    assert (window.graphs, window.graph_breaks, window.recompiles) == (4, 1, 1)
    silent = measurement.summarise([timed([1.0])], case(), MEASURE)
    assert {silent.attention, silent.graphs, silent.graph_breaks, silent.recompiles} == {None}


def test_accumulation_counts_every_sample_once() -> None:
    """8 iterations of 4 ranks x 3 samples in two optimizer steps, of which one was skipped."""
    ranks = [timed([1.0] * 8, optimizer_steps=2, skipped_steps=1) for _ in range(4)]
    window = measurement.summarise(ranks, case("2n2g", accumulation=4), MEASURE)
    assert (window.optimizer_steps, window.skipped_steps, window.accumulation) == (2, 1, 4)
    assert window.global_batch == 4 * 3 * 4
    assert window.samples == 8 * 4 * 3 == window.optimizer_steps * window.global_batch
    assert window.samples_per_s == pytest.approx(12.0)


def test_detail_has_a_column_for_every_rank() -> None:
    windows = [timed([0.5, 0.1234567]), timed([1.0, 1.0])]
    detail = measurement.detail(windows, measurement.mean_losses(windows))
    assert detail["rank_step_ms"] == [[500.0, 123.457], [1000.0, 1000.0]]
    assert detail["rank_elapsed_s"] == [pytest.approx(0.6234567), 2.0]
    assert detail["loss"] == [10.0, 9.0] and detail["rank_memory_mb"] == [100.0, 100.0]
