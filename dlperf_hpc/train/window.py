"""The timed window: the same code for every back end.

Warm-up; device sync; MPI barrier; clock; N iterations with nothing added between them; device
sync; clock; MPI barrier. Throughput is N x samples per iteration over the slowest rank's time.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from dlperf_hpc.model.case import Measure
from dlperf_hpc.train.ranks import World
from dlperf_hpc.train.session import Session


@dataclass(frozen=True)
class RankTimes:
    """One rank's window, as far as runs of ours and loops under a Timer have it alike. ``opened``
    is seconds since the epoch, other times are durations in s, memory is in MiB; None where it is
    not known."""

    opened: float
    elapsed_s: float
    step_times: list[float]
    data_wait_s: float | None
    memory_mb: float | None


@dataclass(frozen=True)
class Timed(RankTimes):
    """The window of a rank of ours. ``execution`` is what the back end tells of how the model was
    run, by the names of :class:`dlperf_hpc.model.result.Window`."""

    iterations: int
    losses: list[float]
    optimizer_steps: int
    skipped_steps: int
    moved: bool
    execution: Mapping[str, Any] = field(default_factory=dict)


def warm_up(session: Session, iterations: int, beat: Callable[[], None]) -> float:
    """Run the untimed iterations; seconds per iteration over their second half.

    Before that, where everything is compiled, a back end that can looks at one of them; of fewer
    than four iterations it looks at none.
    """
    half = iterations // 2
    observed = getattr(session, "iterate_observed", session.iterate)
    for number in range(half):
        (observed if 0 < number == half - 1 else session.iterate)()
        beat()
    session.synchronize()
    start = time.perf_counter_ns()
    for _ in range(iterations - half):
        session.iterate()
        beat()
    session.synchronize()
    return (time.perf_counter_ns() - start) / 1e9 / (iterations - half)


def window_length(measure: Measure, accumulation: int, seconds_per_iteration: float) -> int:
    """Iterations the window needs to hold everything asked of it."""
    by_time = math.ceil(measure.min_seconds / max(seconds_per_iteration, 1e-9))
    by_steps = measure.min_optimizer_steps * accumulation
    return max(measure.iterations, by_time, by_steps)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """No garbage collection inside: each rank would collect at another moment, and all would wait
    for it. Python collects once before."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def timed_loop(session: Session, iterations: int, beat: Callable[[], None]) -> int:
    """The iterations of the window, device sync included; nanoseconds on this rank's clock."""
    iterate, mark = session.iterate, session.mark
    start = time.perf_counter_ns()
    mark()
    for _ in range(iterations):
        iterate()
        mark()
        beat()
    session.synchronize()
    return time.perf_counter_ns() - start


def measure_window(
    session: Session, world: World, iterations: int, beat: Callable[[], None]
) -> Timed:
    """Time the window on this rank, after the warm-up; all ranks take part."""
    before = session.fingerprint()
    with no_garbage_collection():
        session.open_window(iterations)
        session.synchronize()
        world.barrier()
        opened = time.time()
        elapsed = timed_loop(session, iterations, beat)
        world.barrier()
    execution: Mapping[str, Any] = getattr(session, "execution", dict)()
    steps, skipped = session.counts()
    return Timed(
        iterations=iterations,
        opened=opened,
        elapsed_s=elapsed / 1e9,
        step_times=session.step_times(),
        losses=session.losses(),
        optimizer_steps=steps,
        skipped_steps=skipped,
        moved=session.fingerprint() != before,
        data_wait_s=session.data_wait_s(),
        memory_mb=session.memory_mb(),
        execution=execution,
    )
