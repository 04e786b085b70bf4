"""The clock of a window's iterations, the same for every session and for a Timer."""

from __future__ import annotations

import time
from typing import Any


class IterationClock:
    """A mark as the window begins, and one after each of its iterations, with the loss of each:
    events on a GPU's own time line if ``cuda`` is ``torch.cuda``, else stamps of the host's clock.
    Room for all of them, and CUDA's events, are made before the window. ``losses`` begins with that
    of the first mark; ``loss`` stands where none was noted yet."""

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
