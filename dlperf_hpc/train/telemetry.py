"""A GPU's own account of itself, by NVML: its state before and after the window, and during it.

A thread looks twice a second, and NVML's calls hold no Python lock: the timed loop adds nothing
for it. Not having NVML is normal (CPUs, other vendors) and is said by leaving it out.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_EVERY_S = 0.5


@dataclass(frozen=True)
class Sample:
    """What NVML says of a device at one moment: % of time with a kernel on it, MiB in use by
    whomever, SM clock in MHz, W, degrees C, and the bits of its throttle reasons."""

    util: float
    memory_mb: float
    sm_mhz: float
    watts: float
    celsius: float
    throttle: int


@dataclass(frozen=True)
class Device:
    """A GPU as NVML knows it: the module and its handle."""

    nvml: Any
    handle: Any


def find_device(uuid: str | None) -> Device | None:
    """The GPU of that UUID, as PyTorch prints it; None without NVML, or without such a GPU."""
    if uuid is None:
        return None
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}")
    except ImportError:
        return None
    except nvml.NVMLError:
        return None
    return Device(nvml, handle)


def gpu_state(device: Device | None) -> dict[str, Any]:
    """Clocks in MHz, temperature in degrees C, power in W, and NVML's throttle-reason bits.

    Empty without a device; ``unreadable`` with NVML's words where it refuses.
    """
    if device is None:
        return {}
    nvml, handle = device.nvml, device.handle
    try:
        return {
            "driver": str(nvml.nvmlSystemGetDriverVersion()),
            "sm_mhz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "sm_mhz_max": nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
            "mem_mhz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            "celsius": nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            "watts": nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            "watts_limit": nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3,
            "throttle": nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
        }
    except nvml.NVMLError as error:
        return {"unreadable": str(error)}


def _sample(device: Device) -> Sample:
    nvml, handle = device.nvml, device.handle
    return Sample(
        util=nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        memory_mb=nvml.nvmlDeviceGetMemoryInfo(handle).used / 2**20,
        sm_mhz=nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        watts=nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
        celsius=nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        throttle=nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
    )


def _joules(device: Device) -> float | None:
    """Since the driver was loaded; None where the accelerator does not count (before Volta)."""
    with contextlib.suppress(device.nvml.NVMLError):
        return float(device.nvml.nvmlDeviceGetTotalEnergyConsumption(device.handle)) / 1e3
    return None


class Watch:
    """Looks at a device from its making to :meth:`summary`; does nothing without a device."""

    def __init__(self, device: Device | None) -> None:
        self._device = device
        self._samples: list[Sample] = []
        self._times: list[float] = []
        self._began = time.monotonic()
        self._over = threading.Event()
        self._joules = _joules(device) if device else None
        self._thread = threading.Thread(target=self._look, name="gpu-watch", daemon=True)
        if device:
            self._thread.start()

    def _look(self) -> None:
        assert self._device is not None
        with contextlib.suppress(self._device.nvml.NVMLError):  # what there is until then counts
            while not self._over.wait(_EVERY_S):
                self._samples.append(_sample(self._device))
                self._times.append(time.monotonic())

    def summary(self) -> dict[str, Any]:
        """What was seen, as :func:`summarise` has it, and the energy in between."""
        if self._device is None:
            return {}
        self._over.set()
        self._thread.join()
        after, end = _joules(self._device), time.monotonic()
        known = self._joules is not None and after is not None
        counted = (after or 0.0) - (self._joules or 0.0) if known else None
        energy = energy_of(self._samples, self._times, self._began, end, counted)
        return {**summarise(self._samples), **energy}


def energy_of(
    samples: Sequence[Sample],
    times: Sequence[float],
    began: float,
    ended: float,
    counted: float | None,
) -> dict[str, Any]:
    """The energy from ``began`` to ``ended`` (s, as ``times`` of the samples), J, and what it rests
    on: the device's counter (``counted``), else the samples' power, each held from halfway to the
    sample before it until halfway to the next. ``covered`` is the share of that time no farther
    from a sample than the interval between two looks; ``gap_s`` the longest time without one.
    """
    pairs = list(zip(samples, times))  # a sample may have come without its time
    marks = [began, *(at for _, at in pairs), ended]
    gaps = [after - before for before, after in zip(marks, marks[1:])]
    watched = max(ended - began, 1e-9)
    reach = [
        min(gap, _EVERY_S * (1 if i in (0, len(gaps) - 1) else 2)) for i, gap in enumerate(gaps)
    ]
    covered = sum(reach) / watched if pairs else 0.0
    told = {"watched_s": watched, "covered": min(covered, 1.0), "gap_s": max(gaps)}
    if counted is not None:
        told["joules"] = counted
    elif pairs:
        edges = [began, *((a + b) / 2 for (_, a), (_, b) in zip(pairs, pairs[1:])), ended]
        spans = [after - before for before, after in zip(edges, edges[1:])]
        told["joules"] = sum(s.watts * span for (s, _), span in zip(pairs, spans))
    by = {} if "joules" not in told else {"joules_by": "power" if counted is None else "counter"}
    return {**{name: round(value, 3) for name, value in told.items()}, **by}


def summarise(samples: Sequence[Sample]) -> dict[str, Any]:
    """Means of utilisation (%), clock (MHz) and power (W); the most memory (MiB) and heat (degrees
    C); every throttle reason that was seen. Empty without a sample."""
    if not samples:
        return {}
    n = len(samples)
    throttle = 0
    for sample in samples:
        throttle |= sample.throttle
    return {
        "samples": n,
        "util": round(sum(s.util for s in samples) / n, 2),
        "memory_mb": round(max(s.memory_mb for s in samples), 1),
        "sm_mhz": round(sum(s.sm_mhz for s in samples) / n, 1),
        "watts": round(sum(s.watts for s in samples) / n, 2),
        "celsius": max(s.celsius for s in samples),
        "throttle": throttle,
    }
