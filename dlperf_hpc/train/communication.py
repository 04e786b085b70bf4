"""Exposed communication: the share of a step that gradient synchronisation adds to it.

After the window some optimizer steps are timed in blocks, alternately with the all-reduce of
gradients and without it; each block from a barrier until the device has ended it. Several steps to
a block, since the first kernels of one are launched while the device waits, which inside a window
nobody sees: it would stand in both times, and make the share look smaller. The parameters are of
no use afterwards: without all-reduce each rank steps on gradients of its own. In such a block no
rank waits for another, so that its time is the rank's own: a slow device shows there, and nowhere
else.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from dlperf_hpc.model.case import Measure
from dlperf_hpc.train.ranks import World
from dlperf_hpc.train.session import Session
from dlperf_hpc.train.window import Timed, no_garbage_collection

_FEWEST = 2  # of each kind that there must be room for
_MOST_OF_WINDOW = 0.1
_MARGIN, _MARGIN_S = 3.0, 10.0  # times what it will take, and seconds to end in


@dataclass(frozen=True)
class Communication:
    """``steps`` optimizer steps of each kind were timed, in blocks: median over the blocks of the
    slowest rank's time for one step, ms; or the ``reason`` why there are none.

    ``rank_ms`` are each rank's own medians without all-reduce, in the order of the ranks; empty,
    with the ``rank_reason``, where ranks wait for each other in such a step all the same.
    """

    reason: str = ""
    steps: int = 0
    with_ms: float = 0.0
    without_ms: float = 0.0
    rank_ms: tuple[float, ...] = ()
    rank_reason: str = ""

    @property
    def exposed(self) -> float | None:
        """1 - (time without all-reduce) / (time with it); noise can make it negative."""
        return 1 - self.without_ms / self.with_ms if self.steps else None


def steps_of_each(asked: int, window_steps: int) -> int:
    """Optimizer steps with and without all-reduce that fit into a tenth of the window's, besides
    one to warm up; 0 if too few do."""
    room = int(window_steps * _MOST_OF_WINDOW - 1) // 2
    return min(asked, room) if room >= _FEWEST else 0


def steps_to_a_block(count: int) -> int:
    """Of ``count`` steps of a kind: long blocks hide what a barrier costs, and many have a median
    that one disturbed block does not move. As many blocks as steps in each is between."""
    return max(1, math.isqrt(count))


def measure_communication(
    session: Session,
    world: World,
    measure: Measure,
    accumulation: int,
    timed: Timed,
    beat: Callable[[], None],
    left_s: float = math.inf,
) -> Communication:
    """Time steps with and without all-reduce, after the window ``timed``; all ranks take part.

    Not if the time limit is ``left_s`` away and that is near: a window that is measured would be
    lost.
    """
    count = steps_of_each(measure.communication_steps, timed.optimizer_steps)
    if measure.communication_steps == 0:
        return Communication("measure.communication_steps is 0")
    if world.size == 1:
        return Communication("one process: there is nothing to reduce gradients with")
    if count == 0:
        return Communication(
            f"{timed.optimizer_steps} optimizer steps in the window: {_FEWEST} each with and"
            f" without all-reduce, and one before, are more than {_MOST_OF_WINDOW:.0%} of them"
        )
    needed_s = (2 * count + 1) * timed.elapsed_s / timed.optimizer_steps
    if world.broadcast(left_s < _MARGIN * needed_s + _MARGIN_S):
        return Communication("the time limit is near")
    if not session.set_all_reduce(True):
        return Communication("this back end cannot leave all-reduce out")
    for _ in range(-(measure.warmup + timed.iterations) % accumulation):
        session.iterate()

    each = steps_to_a_block(count)
    blocks = count // each

    def block(reduce: bool, steps: int = each) -> float:
        """Milliseconds of one step."""
        session.set_all_reduce(reduce)
        session.synchronize()
        world.barrier()
        start = time.perf_counter_ns()
        for _ in range(steps * accumulation):
            session.iterate()
            beat()
        session.synchronize()
        return (time.perf_counter_ns() - start) / 1e6 / steps

    failures = [text for text in world.gather(_failure(block)) if text]
    if failures:
        return Communication(f"without all-reduce: {failures[0]}")
    times: dict[bool, list[float]] = {True: [], False: []}
    with no_garbage_collection():
        for pair in range(blocks):
            for reduce in (True, False) if pair % 2 == 0 else (False, True):
                times[reduce].append(block(reduce))
    ranks = world.gather(times)
    slowest = [
        statistics.median(map(max, zip(*(rank[reduce] for rank in ranks))))
        for reduce in (True, False)
    ]
    still = getattr(session, "meets_without_all_reduce", "")
    own = () if still else tuple(round(statistics.median(rank[False]), 3) for rank in ranks)
    with_ms, without_ms = slowest
    return Communication("", blocks * each, with_ms, without_ms, own, still)


def _failure(block: Callable[[bool, int], float]) -> str:
    """What the first step without all-reduce failed of. It may need more memory, and no rank
    waits for another in it (but in DDP's very second iteration, where it arranges its buckets
    anew): so it is no reason to lose a window that is measured."""
    try:
        block(False, 1)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    return ""
