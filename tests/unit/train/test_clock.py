"""The clock of a window's iterations, on the host and by a GPU's events."""

from __future__ import annotations

import time
from typing import Any

import pytest

from dlperf_hpc.train.measurement import IterationClock


class Gpu:
    """A device whose own clock (ms) stands still but where it is told otherwise."""

    def __init__(self) -> None:
        self.now = 0.0
        self.recorded = 0

    def Event(self, enable_timing: bool) -> Any:
        assert enable_timing
        return Event(self)


class Event:
    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.at = gpu, -1.0

    def record(self) -> None:
        self.gpu.recorded += 1
        self.at = self.gpu.now

    def elapsed_time(self, later: Event) -> float:
        return later.at - self.at


def test_the_hosts_clock_is_stamped_at_each_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    stamps = iter([10, 1_000_000_010, 3_000_000_010])
    monkeypatch.setattr(time, "perf_counter_ns", lambda: next(stamps))
    clock = IterationClock(2, loss=7.0)
    assert clock.losses == [7.0, 7.0, 7.0]
    for loss in (None, 3.0, 2.5):
        clock.mark(loss)
    assert clock.step_times() == [1.0, 2.0] and clock.losses == [None, 3.0, 2.5]


def test_a_gpus_events_are_made_before_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA makes an event at its first record. The host's clock is not asked then."""
    monkeypatch.setattr(time, "perf_counter_ns", lambda: pytest.fail("the host's clock was asked"))
    gpu = Gpu()
    clock = IterationClock(2, gpu)
    assert gpu.recorded == 3
    for gpu.now in (1000.0, 1250.0, 1750.0):
        clock.mark(None)
    assert gpu.recorded == 6 and clock.step_times() == [0.25, 0.5]


def test_a_mark_more_than_there_is_room_for_is_an_error() -> None:
    clock = IterationClock(0)
    clock.mark(None)
    assert clock.step_times() == []
    with pytest.raises(IndexError):
        clock.mark(None)
