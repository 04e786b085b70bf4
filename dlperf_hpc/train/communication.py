"""How much of a step is exchange of gradients that nothing hides: a few steps after the window.

Each is one optimizer step from a barrier to the device's end of it, in turn with the exchange and
without. What the model learns in them is of no use: the ranks' parameters part.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from dlperf_hpc.sweepfile.case import Measure
from dlperf_hpc.train.ranks import World
from dlperf_hpc.train.session import Session
from dlperf_hpc.train.window import Timed, no_garbage_collection

_FEWEST = 2  # of each kind that there must be room for
_MOST_OF_WINDOW = 0.1
_MARGIN, _MARGIN_S = 3.0, 10.0  # times what it will take, and seconds to end in


@dataclass(frozen=True)
class Communication:
    """Medians over ``steps`` optimizer steps of each kind, the slowest rank's time of each, ms; or
    the ``reason`` why there are none."""

    reason: str = ""
    steps: int = 0
    with_ms: float = 0.0
    without_ms: float = 0.0

    @property
    def exposed(self) -> float | None:
        """Share of a step that goes when the exchange does; below 0 where that is lost in noise."""
        return 1 - self.without_ms / self.with_ms if self.steps else None


def steps_of_each(asked: int, window_steps: int) -> int:
    """Optimizer steps with and without the exchange that fit into a tenth of the window's, beside
    one to get used to it; 0 if too few do."""
    room = int(window_steps * _MOST_OF_WINDOW - 1) // 2
    return min(asked, room) if room >= _FEWEST else 0


def measure_communication(
    session: Session,
    world: World,
    measure: Measure,
    accumulation: int,
    timed: Timed,
    beat: Callable[[], None],
    left_s: float = math.inf,
) -> Communication:
    """Time steps with and without the exchange, after the window ``timed``; all ranks take part.

    Not if the time limit is ``left_s`` away and that is near: a window that is measured would be
    lost.
    """
    count = steps_of_each(measure.communication_steps, timed.optimizer_steps)
    if measure.communication_steps == 0:
        return Communication("measure.communication_steps is 0")
    if world.size == 1:
        return Communication("one process, and none to exchange gradients with")
    if count == 0:
        return Communication(
            f"{timed.optimizer_steps} optimizer steps in the window: {_FEWEST} each with and"
            f" without the exchange, and one before, are more than {_MOST_OF_WINDOW:.0%} of them"
        )
    needed_s = (2 * count + 1) * timed.elapsed_s / timed.optimizer_steps
    if world.broadcast(left_s < _MARGIN * needed_s + _MARGIN_S):
        return Communication("the time limit is near")
    if not session.exchange(True):
        return Communication("this back end cannot leave the exchange out")
    for _ in range(-(measure.warmup + timed.iterations) % accumulation):
        session.iterate()

    def step(exchange: bool) -> float:
        session.exchange(exchange)
        session.synchronize()
        world.barrier()
        start = time.perf_counter_ns()
        for _ in range(accumulation):
            session.iterate()
            beat()
        session.synchronize()
        return (time.perf_counter_ns() - start) / 1e6

    failures = [text for text in world.gather(_failure(step)) if text]
    if failures:
        return Communication(f"without the exchange: {failures[0]}")
    times: dict[bool, list[float]] = {True: [], False: []}
    with no_garbage_collection():
        for pair in range(count):
            for exchange in (True, False) if pair % 2 == 0 else (False, True):
                times[exchange].append(step(exchange))
    ranks = world.gather(times)
    slowest = [
        statistics.median(map(max, zip(*(rank[exchange] for rank in ranks))))
        for exchange in (True, False)
    ]
    return Communication("", count, *slowest)


def _failure(step: Callable[[bool], float]) -> str:
    """What the first step without the exchange failed of. It may need more memory, and no rank
    waits for another in it (but in DDP's very second iteration, where it arranges its buckets
    anew): so it is no reason to lose a window that is measured."""
    try:
        step(False)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    return ""
