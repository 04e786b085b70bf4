"""The timed window, the same code for every back end, what it comes to over all ranks, and exposed
communication, which is timed after it.

Warm-up; device sync; MPI barrier; clock; N iterations with nothing added between them; device
sync; clock; MPI barrier. Throughput is N x samples per iteration over the slowest rank's time.

Exposed communication is the share of a step that gradient synchronisation adds to it. Optimizer
steps are timed in blocks, alternately with the all-reduce of gradients and without it; each block
from a barrier until the device has ended it. Several steps to a block, since the first kernels of
one are launched while the device waits, which inside a window nobody sees: it would stand in both
times, and make the share look smaller. Without all-reduce each rank steps on gradients of its own
(the parameters are of no use afterwards) and waits for no other, so that its time is the rank's
own: a slow device shows there, and nowhere else.
"""

from __future__ import annotations

import gc
import math
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from time import clock_gettime, process_time
from typing import Any

from dlperf_hpc.errors import MeasurementError
from dlperf_hpc.model.case import Case, Measure
from dlperf_hpc.model.result import AllReduces, Window, kernels
from dlperf_hpc.model.statistics import drift, is_steady
from dlperf_hpc.train.ranks import World
from dlperf_hpc.train.session import Session

STATE_BYTES = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
"""What a rank holds of what is trained: figures of a window's ``execution``."""
_FEWEST = 2  # steps with and without all-reduce, each, that there must be room for
_MOST_OF_WINDOW = 0.1
# Of the all-reduce probe: seconds, sizes of buckets, and calls for the whole gradient at least.
_PROBE_S, _PROBED_BUCKETS, _PROBE_CALLS = 5.0, 4, 5
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # goes on while a machine sleeps
_EVERY_S, _STILL_S = 0.1, 2.0  # between two looks; what more is no busy machine
_MARGIN, _MARGIN_S = 3.0, 10.0  # times what the steps will take, and seconds to end in


class IterationClock:
    """A mark as the window begins, and one after each of its iterations, with the loss of each:
    events of ``cuda`` (``torch.cuda``), else stamps of the host's clock. Room for all of them, and
    the events, are made before the window. ``loss`` stands where none was noted yet."""

    def __init__(self, iterations: int, cuda: Any = None, loss: Any = None) -> None:
        self.losses = [loss] * (1 + iterations)
        self._marked = 0
        self._stamps = [0] * (1 + iterations)
        self._events: list[Any] = []
        if cuda is not None:
            self._events = [cuda.Event(enable_timing=True) for _ in self._stamps]
            for event in self._events:
                event.record()  # CUDA's own event is made at the first record: not in the window

    def mark(self, loss: Any) -> None:
        """Note the time and a loss, without waiting for the device."""
        if self._events:
            self._events[self._marked].record()
        else:
            self._stamps[self._marked] = time.perf_counter_ns()
        self.losses[self._marked] = loss
        self._marked += 1

    def step_times(self) -> list[float]:
        """Seconds of each iteration, once the device has ended them all."""
        if self._events:
            pairs = zip(self._events, self._events[1:])
            return [a.elapsed_time(b) / 1e3 for a, b in pairs]
        return [(b - a) / 1e9 for a, b in zip(self._stamps, self._stamps[1:])]


class Stops:
    """For how long this process stood still since (``seconds``): stopped by a signal, or with its
    job or machine. A thread that looks ten times a second did not come to it, and the process used
    no CPU time: one that computes, without giving the interpreter back, does."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def end(self) -> float:
        """Look no longer; the seconds."""
        self._over.set()
        self._thread.join()
        return self.seconds

    def _look(self) -> None:
        over, usual, at, cpu = False, 0.0, clock_gettime(_CLOCK), process_time()
        while not over:
            over, before, used = self._over.wait(_EVERY_S), at, cpu
            at, cpu = clock_gettime(_CLOCK), process_time()
            still, used = at - before - _EVERY_S, cpu - used
            # Beside a stop lies what the process did until it, and after it.
            if still > _STILL_S and used < 0.1 * still + 2 * usual:
                self.seconds += still
            else:
                usual = used


@dataclass(frozen=True)
class RankTimes:
    """One rank's window, of a run of ours or a loop under a Timer. ``opened`` is seconds since the
    epoch, other times are durations in s, memory is in MiB; None where it is not known."""

    opened: float
    elapsed_s: float
    step_times: list[float]
    data_wait_s: float | None
    memory_mb: float | None
    interrupted_s = 0.0  # a field of those that can tell


@dataclass(frozen=True)
class MeasuredWindow(RankTimes):
    """The window of a rank of ours; ``execution`` is how the model was run, by Window's names."""

    iterations: int
    losses: list[float]
    optimizer_steps: int
    skipped_steps: int
    moved: bool
    execution: Mapping[str, Any] = field(default_factory=dict)
    interrupted_s: float = 0.0


def warm_up(session: Session, iterations: int, beat: Callable[[], None]) -> float:
    """Run the untimed iterations; seconds per iteration over their second half. A back end that can
    looks at the last of the first half, of at least four iterations, where all is compiled."""
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
    """Iterations the window needs to hold everything that ``measure`` requests."""
    by_time = math.ceil(measure.min_seconds / max(seconds_per_iteration, 1e-9))
    by_steps = measure.min_optimizer_steps * accumulation
    return max(measure.iterations, by_time, by_steps)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Inside no garbage is collected: each rank would at another moment, and all would wait."""
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
) -> MeasuredWindow:
    """Time the window on this rank, after the warm-up; all ranks take part."""
    before = session.fingerprint()
    with no_garbage_collection():
        session.open_window(iterations)
        session.synchronize()
        held_mb = session.memory_mb()
        world.barrier()
        opened = time.time()
        stops = Stops()
        elapsed = timed_loop(session, iterations, beat)
        interrupted_s = stops.end()
        world.barrier()
    grown = {"memory_growth_mb": round(session.memory_mb() - held_mb, 3)}
    execution: Mapping[str, Any] = {**getattr(session, "execution", dict)(), **grown}
    steps, skipped = session.counts()
    return MeasuredWindow(
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
        interrupted_s=interrupted_s,
    )


def percentile(values: Sequence[float], share: float) -> float:
    """Linear interpolation between order statistics (Hyndman & Fan 1996, type 7)."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def iteration_times(windows: Sequence[RankTimes]) -> list[float]:
    """Seconds of each iteration, which ends when the last rank ends it: so they add up to the
    slowest rank's window. The maximum of every single step would count a wait once on each side."""
    ends = list(map(max, zip(*(accumulate(w.step_times) for w in windows))))
    return [end - start for start, end in zip([0.0, *ends], ends)]


def mean_losses(windows: Sequence[MeasuredWindow]) -> list[float]:
    """Per iteration the mean of the ranks' losses."""
    return [sum(values) / len(values) for values in zip(*(window.losses for window in windows))]


def check(windows: Sequence[MeasuredWindow]) -> None:
    """MeasurementError for a window whose number would mean nothing."""
    losses = mean_losses(windows)
    bad = [i for i, loss in enumerate(losses) if not math.isfinite(loss)]
    if bad:
        raise MeasurementError(
            f"the loss is {losses[bad[0]]} from iteration {bad[0] + 1} of the window on: a run that"
            " does not train has no throughput; lower optimizer.lr or use another precision"
        )
    steps, skipped = windows[0].optimizer_steps, windows[0].skipped_steps
    if 0 < steps == skipped:
        raise MeasurementError(
            f"all {steps} optimizer steps were skipped, as their gradients overflowed: nothing was"
            " trained; lengthen measure.warmup, lower optimizer.lr or use another precision"
        )
    if steps > 0 and not all(window.moved for window in windows):
        raise MeasurementError(f"{steps} optimizer steps left the parameters as they were")


def summarise(windows: Sequence[MeasuredWindow], case: Case, measure: Measure) -> Window:
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
        **_executions([window.execution for window in windows]),
    )


def figures(windows: Sequence[RankTimes], losses: Sequence[float | None]) -> dict[str, Any]:
    """What a window has of its ranks' clocks and ``losses``, one for each iteration."""
    times = iteration_times(windows)
    milliseconds = [1e3 * seconds for seconds in times]
    waits = [each.data_wait_s for each in windows if each.data_wait_s is not None]
    memory = [each.memory_mb for each in windows if each.memory_mb is not None]
    return {
        "elapsed_s": max(each.elapsed_s for each in windows),
        **{f"step_ms_p{n}": percentile(milliseconds, n / 100) for n in (5, 50, 95, 99)},
        "loss_first": losses[0],
        "loss_last": losses[-1],
        "data_wait_s": max(waits, default=None),
        "memory_mb": max(memory, default=None),
        "drift": drift(times),
        "steady": is_steady(times),
        "interrupted_s": max(each.interrupted_s for each in windows) or None,
    }


def _executions(ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How all ranks ran the model: every kernel that was seen, and the most of each count."""
    counts = {
        name: max((each[name] for each in ranks if each.get(name) is not None), default=None)
        for name in ("graphs", "graph_breaks", "recompiles", "memory_growth_mb", *STATE_BYTES)
    }
    return {"attention": kernels(each.get("attention") for each in ranks), **counts}


def detail(windows: Sequence[RankTimes], losses: Sequence[float | None]) -> dict[str, Any]:
    """What the record holds beyond the log: every rank's columns, milliseconds rounded to 1 us."""
    return {
        "loss": losses,
        "rank_elapsed_s": [window.elapsed_s for window in windows],
        "rank_step_ms": [[round(1e3 * t, 3) for t in window.step_times] for window in windows],
        "rank_memory_mb": [window.memory_mb for window in windows],
    }


def state_bytes(windows: Sequence[MeasuredWindow]) -> dict[str, list[int | None]]:
    """What the record holds of each rank's :data:`STATE_BYTES`, where any is known."""
    found = {f"rank_{name}": [each.execution.get(name) for each in windows] for name in STATE_BYTES}
    return {name: values for name, values in found.items() if any(values)}


@dataclass(frozen=True)
class Communication:
    """Median over blocks of the slowest rank's time for one step, ms, with all-reduce and without,
    and how many ``steps`` of each were timed, or the ``reason`` why none; each rank's own medians
    without (``rank_ms``), or the ``rank_reason``: ranks wait for each other in such a step, too."""

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


def steps_of_each(requested: int, window_steps: int) -> int:
    """Steps of each kind that fit into a tenth of the window's, beside one to warm up; or 0."""
    room = int(window_steps * _MOST_OF_WINDOW - 1) // 2
    return min(requested, room) if room >= _FEWEST else 0


def measure_communication(
    session: Session,
    world: World,
    measure: Measure,
    accumulation: int,
    window: MeasuredWindow,
    beat: Callable[[], None],
    left_s: float = math.inf,
) -> Communication:
    """Time steps with and without all-reduce, after the ``window``; all ranks take part. Not if the
    time limit is ``left_s`` away and that is near: a window that is measured would be lost."""
    count = steps_of_each(measure.communication_steps, window.optimizer_steps)
    reason = _why_not(measure, world, window, count)
    if reason:
        return Communication(reason)
    needed_s = (2 * count + 1) * window.elapsed_s / window.optimizer_steps
    if world.broadcast(left_s < _MARGIN * needed_s + _MARGIN_S):
        return Communication("the time limit is near")
    if not session.set_all_reduce(True):
        return Communication("this back end cannot leave all-reduce out")
    for _ in range(-(measure.warmup + window.iterations) % accumulation):
        session.iterate()

    # Long blocks hide what a barrier costs, and many have a median that one disturbed block does
    # not move: as many blocks as steps in each is between.
    each = max(1, math.isqrt(count))
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

    failure = next(filter(None, world.gather(_failure(block))), "")
    if failure:
        return Communication(f"without all-reduce: {failure}")
    with_ms, without_ms, own = _medians(world, block, blocks)
    still = getattr(session, "meets_without_all_reduce", "")
    return Communication("", blocks * each, with_ms, without_ms, () if still else own, still)


def _why_not(measure: Measure, world: World, window: MeasuredWindow, count: int) -> str:
    """Why no steps are to be timed, known before any is tried; "" if they are."""
    if measure.communication_steps == 0:
        return "measure.communication_steps is 0"
    if world.size == 1:
        return "one process: there is nothing to reduce gradients with"
    if count == 0:
        return (
            f"{window.optimizer_steps} optimizer steps in the window: {_FEWEST} each with and"
            f" without all-reduce, and one before, are more than {_MOST_OF_WINDOW:.0%} of them"
        )
    return ""


def _medians(
    world: World, block: Callable[[bool], float], blocks: int
) -> tuple[float, float, tuple[float, ...]]:
    """Milliseconds of a step with all-reduce and without, slowest rank; of each rank without."""
    times: dict[bool, list[float]] = {True: [], False: []}
    with no_garbage_collection():
        for pair in range(blocks):
            for reduce in (True, False) if pair % 2 == 0 else (False, True):
                times[reduce].append(block(reduce))
    ranks = world.gather(times)
    with_ms, without_ms = (
        statistics.median(map(max, zip(*(rank[reduce] for rank in ranks))))
        for reduce in (True, False)
    )
    return with_ms, without_ms, tuple(round(statistics.median(rank[False]), 3) for rank in ranks)


def _failure(block: Callable[[bool, int], float]) -> str:
    """What the first step without all-reduce failed of. It may need more memory, and no rank
    waits for another in it (but in DDP's very second iteration, where it arranges its buckets
    anew): so it is no reason to lose a window that is measured."""
    try:
        block(False, 1)
    except Exception as error:  # noqa: BLE001 - whatever it is, the log has it
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    return ""


def probe_all_reduces(
    session: Session, world: World, window: MeasuredWindow, left_s: float = math.inf
) -> tuple[AllReduces | None, str]:
    """Time all-reduces of the whole gradient and of four sizes of its buckets, while ``_PROBE_S``
    last, by the back end's own library, after the ``window``; and why all or some are missing, or
    "". All ranks take part. Not if the time limit is ``left_s`` away and that is near."""
    buckets: list[int] = getattr(session, "gradient_buckets", list)()
    timed = getattr(session, "timed_all_reduces", None)
    if not buckets or timed is None:
        return None, "this back end does not exchange its gradients by torch.distributed"
    step_s = window.elapsed_s / max(1, window.optimizer_steps)  # holds an all-reduce
    if world.broadcast(left_s < _MARGIN * (_PROBE_CALLS * step_s + _PROBE_S) + _MARGIN_S):
        return None, "the time limit is near"
    sizes = sorted({*buckets} - {sum(buckets)}, reverse=True)
    chosen = sizes[:: -(-len(sizes) // _PROBED_BUCKETS) or 1]
    with no_garbage_collection():
        found = timed([sum(buckets), *chosen], _PROBE_S)
    rows, why = found["rows"], found.get("left_out", "")
    if not rows or not rows[-1]["right"]:
        return None, why
    made = AllReduces(
        by=found["by"],
        ranks=world.size,
        buckets=len(buckets),
        bytes=tuple(row["bytes"] for row in rows),
        ms=tuple(round(row["us"] / 1e3, 6) for row in rows),
        iterations=tuple(row["iterations"] for row in rows),
    )
    return made, why and f"none of {found['from']} bytes and less: {why}"
