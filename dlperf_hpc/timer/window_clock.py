"""One process's own clock: stamps of its iterations on its device, and the losses it was given.

The device is torch's current CUDA device if the program has initialised one; else the host is the
device, and ``sync`` what waits for whatever else computes.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dlperf_hpc.train.measurement import IterationClock, RankTimes


def cuda() -> Any:
    """``torch.cuda`` if the program has loaded torch and initialised CUDA, else None."""
    torch = sys.modules.get("torch")
    found = getattr(torch, "cuda", None)
    return found if found is not None and found.is_initialized() else None


def device_facts() -> dict[str, Any]:
    """The device and its library's versions and settings; empty where they are not known."""
    torch, gpu = sys.modules.get("torch"), cuda()
    if torch is None or (gpu is None and sys.modules.keys() & {"jax", "tensorflow"}):
        return {}
    from dlperf_hpc.train.torch import device

    place = torch.device("cuda", gpu.current_device()) if gpu else torch.device("cpu")
    facts = {"framework_name": "PyTorch", "framework_version": torch.__version__}
    try:
        return {**facts, **device.device_facts(place)}
    except RuntimeError:  # settings of TF32 in two ways at once: torch then does not tell them
        return {**facts, "device": str(place)}


@dataclass(frozen=True)
class RankWindow(RankTimes):
    """One process's window. ``losses`` has None where no loss was given; ``samples`` of each
    iteration, None where its number is not known; ``data_wait_s`` is None for a loop that has its
    data from elsewhere than the Timer."""

    losses: list[float | None]
    samples: list[int | None]
    optimizer_steps: tuple[int, ...]
    remarks: tuple[str, ...] = ()


class WindowClock:
    """Stamps of a window that is open; room is made before the clock starts."""

    def __init__(self, iterations: int, sync: Callable[[], object] | None) -> None:
        self._sync = sync
        self._cuda = cuda()
        self._clock = IterationClock(iterations, self._cuda if sync is None else None)
        self.samples: list[int | None] = []

    def synchronize(self) -> None:
        """Wait until the device has done everything asked of it so far."""
        synchronize(self._sync)

    def start(self) -> None:
        """Start the clock; after a sync, and after the others were met."""
        self.opened = time.time()
        self._started = time.perf_counter_ns()
        self._clock.mark(None)

    def iteration(self, loss: Any, samples: int | None, last: bool) -> None:
        """An iteration has ended. Waits for the device after the last one alone."""
        self.samples.append(samples)
        if last:
            self.synchronize()
        self._clock.mark(loss)
        if last:
            self.elapsed_s = (time.perf_counter_ns() - self._started) / 1e9

    def step_times(self) -> list[float]:
        """Seconds of each iteration. Waits for the device."""
        if self._cuda is not None:
            self._cuda.synchronize()
        return self._clock.step_times()

    def losses(self) -> tuple[list[float | None], tuple[str, ...]]:
        """The losses as numbers, and a remark on one that is none. Waits for the device."""
        found: list[float | None] = []
        losses = self._clock.losses[1:]
        for number, loss in enumerate(losses, 1):
            try:
                found.append(None if loss is None else float(loss))
            except Exception as error:  # noqa: BLE001 - what a foreign object raises is not known
                why = f"the loss of iteration {number} of the window is no number: {error}"
                return [None] * len(losses), (why,)
        return found, ()

    def memory_mb(self) -> float | None:
        """Peak of the CUDA allocator, or of the process's resident set; MiB. None for another
        device."""
        if self._cuda is not None:
            return float(self._cuda.max_memory_allocated()) / 2**20
        if self._sync is not None:
            return None
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def synchronize(sync: Callable[[], object] | None) -> None:
    """Wait for the CUDA device if torch has one, and by ``sync``."""
    gpu = cuda()
    if gpu is not None:
        gpu.synchronize()
    if sync is not None:
        sync()


def unwaited(sync: Callable[[], object] | None) -> list[str]:
    """A remark on a library that may compute on a device for which nobody waits."""
    if sync is not None or cuda() is not None:
        return []
    found = sorted(sys.modules.keys() & {"jax", "tensorflow"})
    xpu = getattr(sys.modules.get("torch"), "xpu", None)
    if xpu is not None and xpu.is_initialized():
        found.append("torch.xpu")
    return [
        f"{name} is loaded, and nothing waits for its device as the window begins and ends: tell"
        " sync="
        for name in found
    ]


def kept(loss: Any) -> Any:
    """A loss to be read later: a tensor without its graph, and a copy, since a program may add to
    it in place or, in a CUDA graph, write every iteration's into the same memory."""
    if isinstance(loss, (int, float)) or not hasattr(loss, "detach"):
        return loss
    return loss.detach().clone()
