"""The timed window, driven with a session that only notes what is asked of it."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlperf_hpc.model.case import Measure
from dlperf_hpc.train import measurement
from dlperf_hpc.train.measurement import (
    measure_communication,
    measure_window,
    steps_of_each,
    timed_loop,
    warm_up,
    window_length,
)
from dlperf_hpc.train.ranks import World
from dlperf_hpc.train.session import Session


class Notes:
    """A session, an MPI communicator and a clock that write down the order of their calls."""

    def __init__(self, fail_at: int = 0) -> None:
        self.calls: list[str] = []
        self.gc_on: list[bool] = []
        self.fail_at = fail_at
        self.ticks = itertools.count(0, 1_000_000_000)

    def iterate(self) -> None:
        self.calls.append("iterate")
        self.gc_on.append(gc.isenabled())
        if len(self.gc_on) == self.fail_at:
            raise RuntimeError("on purpose")

    def set_all_reduce(self, on: bool) -> bool:
        return False

    def synchronize(self) -> None:
        self.calls.append("sync")

    def open_window(self, iterations: int) -> None:
        self.calls.append(f"open {iterations}")

    def mark(self) -> None:
        self.calls.append("mark")

    def step_times(self) -> list[float]:
        return [1.0] * self.calls.count("mark")

    def losses(self) -> list[float]:
        return [2.0]

    def counts(self) -> tuple[int, int]:
        return 3, 1

    def fingerprint(self) -> float:
        return float(len(self.gc_on))

    def data_wait_s(self) -> float:
        return 0.25

    def memory_mb(self) -> float:
        return 64.0

    def facts(self) -> dict[str, Any]:
        return {}

    def save(self, directory: Path) -> None:
        pass

    def load(self, directory: Path) -> None:
        pass

    def close(self) -> None:
        pass

    def Barrier(self) -> None:
        self.calls.append("barrier")

    def perf_counter_ns(self) -> int:
        self.calls.append("clock")
        return next(self.ticks)

    def time(self) -> float:
        return 1e9

    def beat(self) -> None:
        self.calls.append("beat")


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Notes]:
    def make(fail_at: int = 0) -> Notes:
        made = Notes(fail_at)
        monkeypatch.setattr(measurement, "time", made)
        return made

    return make


def test_warm_up_runs_its_iterations_and_times_the_second_half(
    notes: Callable[..., Notes],
) -> None:
    session = notes()
    assert warm_up(session, 5, session.beat) == pytest.approx(1 / 3)  # one tick, 3 iterations
    assert session.calls == (
        ["iterate", "beat"] * 2 + ["sync", "clock"] + ["iterate", "beat"] * 3 + ["sync", "clock"]
    )


def test_warm_up_of_one(notes: Callable[..., Notes]) -> None:
    session = notes()
    assert warm_up(session, 1, session.beat) == 1.0
    assert session.calls.count("iterate") == 1


@pytest.mark.parametrize(
    ("measure", "accumulation", "estimate", "length"),
    [
        (Measure(20, 100), 1, 0.1, 100),
        (Measure(20, 100, min_seconds=30.0), 1, 0.1, 300),
        (Measure(20, 100, min_seconds=30.0), 1, 0.11, 273),
        (Measure(20, 100, min_seconds=5.0), 1, 0.1, 100),
        (Measure(20, 100, min_optimizer_steps=40), 4, 0.1, 160),
        (Measure(20, 100, min_optimizer_steps=20), 4, 0.1, 100),
        (Measure(20, 10, min_seconds=2.0, min_optimizer_steps=3), 8, 0.1, 24),
        (Measure(20, 10, min_seconds=3.0, min_optimizer_steps=3), 8, 0.1, 30),
    ],
)
def test_the_window_holds_everything_asked_of_it(
    measure: Measure, accumulation: int, estimate: float, length: int
) -> None:
    assert window_length(measure, accumulation, estimate) == length


def test_nothing_comes_between_the_iterations(notes: Callable[..., Notes]) -> None:
    session = notes()
    assert timed_loop(session, 3, session.beat) == 1_000_000_000
    assert session.calls == (
        ["clock", "mark"] + ["iterate", "mark", "beat"] * 3 + ["sync", "clock"]
    )


def test_sync_then_barrier_then_clock_and_the_same_at_the_end(
    notes: Callable[..., Notes],
) -> None:
    session = notes()
    timed = measure_window(session, World(0, ("a",), session), 3, session.beat)
    loop = ["iterate", "mark", "beat"] * 3
    assert session.calls == (
        ["open 3", "sync", "barrier", "clock", "mark", *loop, "sync", "clock", "barrier"]
    )
    assert (timed.iterations, timed.opened, timed.elapsed_s) == (3, 1e9, 1.0)
    assert (timed.optimizer_steps, timed.skipped_steps, timed.moved) == (3, 1, True)
    assert (timed.data_wait_s, timed.memory_mb, timed.losses) == (0.25, 64.0, [2.0])


def test_no_garbage_collection_in_the_window(notes: Callable[..., Notes]) -> None:
    session = notes()
    assert gc.isenabled()
    measure_window(session, World(0, ("a",), session), 4, session.beat)
    assert session.gc_on == [False] * 4
    assert gc.isenabled()


def test_garbage_collection_is_on_again_after_a_failure(notes: Callable[..., Notes]) -> None:
    session = notes(fail_at=2)
    with pytest.raises(RuntimeError, match="on purpose"):
        measure_window(session, World(0, ("a",), session), 4, session.beat)
    assert session.gc_on == [False] * 2
    assert gc.isenabled()


def test_the_notes_are_a_session() -> None:
    session: Session = Notes()
    assert session.counts() == (3, 1)


@pytest.mark.parametrize(
    ("asked", "window", "steps"),
    [(6, 1000, 6), (6, 100, 4), (6, 50, 2), (6, 49, 0), (1, 1000, 1), (0, 1000, 0)],
)
def test_steps_without_all_reduce_take_no_more_than_a_tenth_of_the_window(
    asked: int, window: int, steps: int
) -> None:
    assert steps_of_each(asked, window) == steps
    assert 2 * steps + 1 <= max(window / 10, 1)


class Reducing(Notes):
    """One that can leave its all-reduce out, and its own communicator of two like ranks."""

    def set_all_reduce(self, on: bool) -> bool:
        return True

    def bcast(self, value: Any, root: int) -> Any:
        return value

    def allgather(self, value: Any) -> list[Any]:
        return [value, value]


@pytest.mark.parametrize(("steps", "each"), [(1, 1), (2, 1), (4, 2), (6, 2), (20, 4)])
def test_steps_are_timed_in_blocks(steps: int, each: int) -> None:
    """A wait for the device and a barrier for each block, not for each step."""
    session = Reducing()
    timed = measurement.MeasuredWindow(0.0, 1.0, [], 0.0, 0.0, 10_000, [], 10_000, 0, True)
    world, measure = World(0, ("a", "a"), session), Measure(communication_steps=steps)
    found = measure_communication(session, world, measure, 2, timed, session.beat)
    blocks = steps // each
    assert (found.reason, found.steps) == ("", blocks * each)
    assert found.with_ms > 0 and found.without_ms > 0
    met = [call for call in session.calls if call in ("sync", "barrier", "iterate")]

    def of(iterations: int) -> list[str]:
        return ["sync", "barrier", *["iterate"] * iterations, "sync"]

    assert met == of(2) + 2 * blocks * of(2 * each)  # two micro-batches to a step
