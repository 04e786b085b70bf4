"""From every rank's window to the one that is stated, or a refusal to state it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from dlperf_hpc.errors import MeasurementError
from dlperf_hpc.model import statistics
from dlperf_hpc.model.case import Case, Measure
from dlperf_hpc.model.result import Window, kernels
from dlperf_hpc.train.window import RankTimes, Timed


def percentile(values: Sequence[float], share: float) -> float:
    """Linear interpolation between order statistics (Hyndman & Fan 1996, type 7)."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def iteration_times(windows: Sequence[RankTimes]) -> list[float]:
    """Seconds of each iteration over all ranks: it has ended when the last rank has ended it.

    Taken from each rank's time since the window opened, so that they add up to the slowest rank's
    window; the maximum of every single step would count a wait once on each side.
    """
    ends = [max(at) for at in zip(*(accumulate(w.step_times) for w in windows))]
    return [end - start for start, end in zip([0.0, *ends], ends)]


def mean_losses(windows: Sequence[Timed]) -> list[float]:
    """Per iteration the mean of the ranks' losses."""
    return [sum(values) / len(values) for values in zip(*(window.losses for window in windows))]


def check(windows: Sequence[Timed]) -> None:
    """MeasurementError for a window whose number would mean nothing."""
    losses = mean_losses(windows)
    bad = [i for i, loss in enumerate(losses) if not math.isfinite(loss)]
    if bad:
        raise MeasurementError(
            f"the loss is {losses[bad[0]]} from iteration {bad[0] + 1} of the window on: a run that"
            " does not train has no throughput; lower optimizer.lr or use another precision"
        )
    asked, skipped = windows[0].optimizer_steps, windows[0].skipped_steps
    if 0 < asked == skipped:
        raise MeasurementError(
            f"all {asked} optimizer steps were skipped, as their gradients overflowed: nothing was"
            " trained; lengthen measure.warmup, lower optimizer.lr or use another precision"
        )
    if asked > 0 and not all(window.moved for window in windows):
        raise MeasurementError(f"{asked} optimizer steps left the parameters as they were")


def summarise(windows: Sequence[Timed], case: Case, measure: Measure) -> Window:
    """The window over all ranks."""
    first = windows[0]
    return Window(
        warmup=measure.warmup,
        iterations=first.iterations,
        optimizer_steps=first.optimizer_steps,
        skipped_steps=max(window.skipped_steps for window in windows),
        accumulation=case.accumulation,
        global_batch=case.global_batch,
        ranks=len(windows),
        samples=first.iterations * case.micro_batch,
        elapsed_min_s=min(window.elapsed_s for window in windows),
        **figures(windows, mean_losses(windows)),
        **execution([window.execution for window in windows]),
    )


def figures(windows: Sequence[RankTimes], losses: Sequence[float | None]) -> dict[str, Any]:
    """What a window has of its ranks' clocks and ``losses`` (one for each iteration), by the names
    of :class:`dlperf_hpc.model.result.Window`."""
    times = iteration_times(windows)
    milliseconds = [1e3 * seconds for seconds in times]
    waits = [each.data_wait_s for each in windows if each.data_wait_s is not None]
    memory = [each.memory_mb for each in windows if each.memory_mb is not None]
    return {
        "elapsed_s": max(each.elapsed_s for each in windows),
        "step_ms_p5": percentile(milliseconds, 0.05),
        "step_ms_p50": percentile(milliseconds, 0.50),
        "step_ms_p95": percentile(milliseconds, 0.95),
        "step_ms_p99": percentile(milliseconds, 0.99),
        "loss_first": losses[0],
        "loss_last": losses[-1],
        "data_wait_s": max(waits, default=None),
        "memory_mb": max(memory, default=None),
        "drift": statistics.drift(times),
        "steady": statistics.is_steady(times),
    }


def execution(told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How all ranks ran the model: every kernel that any of them saw, and the most of each
    count."""
    counts = {
        name: max((each[name] for each in told if name in each), default=None)
        for name in ("graphs", "graph_breaks", "recompiles")
    }
    return {"attention": kernels(each.get("attention") for each in told), **counts}


def detail(windows: Sequence[RankTimes], losses: Sequence[float | None]) -> dict[str, Any]:
    """What the record holds beyond the log: every rank's columns, milliseconds rounded to 1 us."""
    return {
        "loss": losses,
        "rank_elapsed_s": [window.elapsed_s for window in windows],
        "rank_step_ms": [[round(1e3 * t, 3) for t in window.step_times] for window in windows],
        "rank_memory_mb": [window.memory_mb for window in windows],
    }
