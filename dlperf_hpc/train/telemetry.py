"""A GPU's own account of itself, by NVML: its state before and after the window, and during it.

A thread looks seven times a second, and NVML's calls hold no Python lock: the timed loop adds
nothing for it. Not having NVML is normal (CPUs, other vendors) and is said by leaving it out; what
one card, driver or virtual machine does not tell is left out by itself.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any

_EVERY_S = 0.15
_MOST_REFUSALS = 8  # told by name; NVML's words are short
_WORDS = 120


@dataclass(frozen=True)
class Sample:
    """What NVML says of a device at one moment: % of time with a kernel on it, MiB in use by
    whomever, SM clock in MHz, W, degrees C, and the bits of its throttle reasons. None is what this
    device, or this version of NVML, does not tell."""

    util: float | None
    memory_mb: float | None
    sm_mhz: float | None
    watts: float | None
    celsius: float | None
    throttle: int | None


@dataclass(frozen=True)
class Device:
    """A GPU as NVML knows it: the module, its handle, and what was refused when it was asked, by
    the name of the call, with NVML's words."""

    nvml: Any
    handle: Any
    refused: dict[str, str] = field(default_factory=dict)

    def ask(self, call: str, *arguments: Any) -> Any:
        """What NVML answers; None where the device, a virtual machine or the driver refuses, or
        this pynvml has no such call or constant: each figure is asked by itself. Constants are
        given by their names."""
        try:
            values = [getattr(self.nvml, a) if isinstance(a, str) else a for a in arguments]
            return getattr(self.nvml, call)(self.handle, *values)
        except (AttributeError, self.nvml.NVMLError) as error:
            if len(self.refused) < _MOST_REFUSALS:
                self.refused.setdefault(call, f"{error}"[:_WORDS])
            return None


def find_device(uuid: str | None) -> Device | None:
    """The GPU, or the slice of one (MIG), of that UUID as PyTorch prints it; None without NVML, or
    without such a GPU."""
    if uuid is None:
        return None
    bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except ImportError:
        return None
    except nvml.NVMLError:
        return None
    for kind in ("GPU-", "MIG-"):
        with contextlib.suppress(nvml.NVMLError):
            return Device(nvml, nvml.nvmlDeviceGetHandleByUUID(f"{kind}{bare}"))
    return None


def gpu_state(device: Device | None) -> dict[str, Any]:
    """Clocks in MHz, temperature in degrees C, power in W, and NVML's throttle-reason bits, as far
    as the device tells them; ``unreadable`` names the calls that were refused. Empty without a
    device."""
    if device is None:
        return {}
    told = {
        "driver": _driver(device),
        "sm_mhz": device.ask("nvmlDeviceGetClockInfo", "NVML_CLOCK_SM"),
        "sm_mhz_max": device.ask("nvmlDeviceGetMaxClockInfo", "NVML_CLOCK_SM"),
        "mem_mhz": device.ask("nvmlDeviceGetClockInfo", "NVML_CLOCK_MEM"),
        "celsius": device.ask("nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU"),
        "watts": _scaled(device.ask("nvmlDeviceGetPowerUsage")),
        "watts_limit": _scaled(device.ask("nvmlDeviceGetEnforcedPowerLimit")),
        "throttle": device.ask("nvmlDeviceGetCurrentClocksThrottleReasons"),
    }
    known = {name: value for name, value in told.items() if value is not None}
    refused = [f"{call}: {words}" for call, words in device.refused.items()]
    return {**known, **({"unreadable": "; ".join(refused)} if refused else {})}


def _driver(device: Device) -> str | None:
    try:
        version = device.nvml.nvmlSystemGetDriverVersion()
    except (AttributeError, device.nvml.NVMLError):
        return None
    return version.decode(errors="replace") if isinstance(version, bytes) else str(version)


def _scaled(value: float | None, by: float = 1e3) -> float | None:
    return None if value is None else value / by


def _sample(device: Device) -> Sample:
    util = device.ask("nvmlDeviceGetUtilizationRates")
    memory = device.ask("nvmlDeviceGetMemoryInfo")
    return Sample(
        util=None if util is None else util.gpu,
        memory_mb=None if memory is None else memory.used / 2**20,
        sm_mhz=device.ask("nvmlDeviceGetClockInfo", "NVML_CLOCK_SM"),
        watts=_scaled(device.ask("nvmlDeviceGetPowerUsage")),
        celsius=device.ask("nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU"),
        throttle=device.ask("nvmlDeviceGetCurrentClocksThrottleReasons"),
    )


def _joules(device: Device) -> float | None:
    """Since the driver was loaded; None where the accelerator does not count (before Volta)."""
    return _scaled(device.ask("nvmlDeviceGetTotalEnergyConsumption"))


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
        while True:  # at once: a window may be shorter than the pause
            self._samples.append(_sample(self._device))
            self._times.append(time.monotonic())
            if self._over.wait(_EVERY_S):
                return

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
    # A sample may have come without its time, or without power.
    pairs = [(s.watts, at) for s, at in zip(samples, times) if s.watts is not None]
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
        told["joules"] = sum(watts * span for (watts, _), span in zip(pairs, spans))
    if "joules" not in told:
        return {}
    by = "power" if counted is None else "counter"
    return {**{name: round(value, 3) for name, value in told.items()}, "joules_by": by}


def summarise(samples: Sequence[Sample]) -> dict[str, Any]:
    """Means of utilisation (%), clock (MHz) and power (W); the most memory (MiB) and heat (degrees
    C); every throttle reason that was seen. Of each figure over the samples that have it; empty
    without a sample, or where no sample has any."""
    found: dict[str, Any] = {}
    for name, put_together in _OVER_TIME.items():
        values = [value for s in samples if (value := getattr(s, name)) is not None]
        if values:
            found[name] = put_together(values)
    return {"samples": len(samples), **found} if found else {}


def _mean(digits: int) -> Callable[[Sequence[float]], float]:
    return lambda values: round(sum(values) / len(values), digits)


def _any_bit(values: Sequence[int]) -> int:
    return reduce(or_, values)


_OVER_TIME: dict[str, Callable[[Sequence[Any]], float]] = {
    "util": _mean(2),
    "memory_mb": lambda values: round(max(values), 1),
    "sm_mhz": _mean(1),
    "watts": _mean(2),
    "celsius": max,
    "throttle": _any_bit,
}
