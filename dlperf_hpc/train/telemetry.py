"""A rank's GPU: its own account of itself by NVML, and which cores and memory lie next to it.

A thread looks seven times a second, and NVML's calls hold no Python lock: the timed loop adds
nothing for it. Not having NVML is normal (CPUs, other vendors) and is said by leaving it out; what
one card, driver or virtual machine does not tell is left out by itself. The GPUs of a user's
program are sampled by a process beside it (:func:`watch_node`): whatever a driver's library does
to that process costs the program nothing.

The PCI address of a GPU, from NVML, leads in sysfs to its NUMA node and to the CPUs next to it.
Containers and virtual machines may hide that. A rank's threads launch what its GPU computes and
copy what it reads: from another node's cores all of that crosses the link between the processors.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import select
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import mul, or_
from pathlib import Path
from statistics import median
from typing import Any

from dlperf_hpc.errors import DeviceError
from dlperf_hpc.files import read_regular, write_once
from dlperf_hpc.model.case import Case
from dlperf_hpc.model.statistics import pieces
from dlperf_hpc.train.probe.node import Device, kernel_value, nvml_gpus, text_of

_EVERY_S = 0.15
_MOST_POINTS = 60  # of what a log has over time
_MOST_SAMPLES = 20_000  # of a GPU of a user's program: 50 minutes at seven a second
_LATE_S = 0.1  # that a look may come late, and a sample may take
_DEEPEST = 64  # processes below each other
_SYS = Path("/sys")
_PROC = Path("/proc/self")
_MOST_BYTES = 2**16
_ADDRESS = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")
_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")


@dataclass(frozen=True)
class GpuSample:
    """What NVML says of a device at one moment: % of time with a kernel on it, MiB in use by
    whomever, SM clock in MHz, W, degrees C, and the bits of its throttle reasons. None is what this
    device, or this version of NVML, does not tell."""

    util: float | None
    memory_mb: float | None
    sm_mhz: float | None
    watts: float | None
    celsius: float | None
    throttle: int | None


def find_device(uuid: str | None) -> Device | None:
    """The GPU, or the slice of one (MIG), of that UUID as PyTorch prints it, if NVML knows one."""
    if uuid is None:
        return None
    bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    with contextlib.suppress(nvml.NVMLError):
        nvml.nvmlInit()
        for kind in ("GPU-", "MIG-"):
            with contextlib.suppress(nvml.NVMLError):
                return Device(nvml, nvml.nvmlDeviceGetHandleByUUID(f"{kind}{bare}"))
    return None


def gpu_state(device: Device | None) -> dict[str, Any]:
    """Clocks in MHz, temperature in degrees C, power in W, and NVML's throttle-reason bits, as far
    as the device tells them; ``unreadable`` names the calls that were refused."""
    if device is None:
        return {}
    state = {
        "driver": _driver(device),
        "sm_mhz": device.ask("nvmlDeviceGetClockInfo", "NVML_CLOCK_SM"),
        "sm_mhz_max": device.ask("nvmlDeviceGetMaxClockInfo", "NVML_CLOCK_SM"),
        "mem_mhz": device.ask("nvmlDeviceGetClockInfo", "NVML_CLOCK_MEM"),
        "celsius": device.ask("nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU"),
        "watts": _thousandth(device.ask("nvmlDeviceGetPowerUsage")),
        "watts_limit": _thousandth(device.ask("nvmlDeviceGetEnforcedPowerLimit")),
        "throttle": device.ask("nvmlDeviceGetCurrentClocksThrottleReasons"),
    }
    refused = [f"{call}: {words}" for call, words in device.refused.items()]
    state["unreadable"] = "; ".join(refused) or None
    return {name: value for name, value in state.items() if value is not None}


def _driver(device: Device) -> str | None:
    with contextlib.suppress(AttributeError, device.nvml.NVMLError):
        return text_of(device.nvml.nvmlSystemGetDriverVersion())
    return None


def _thousandth(value: float | None) -> float | None:
    return None if value is None else value / 1e3


def _sample(device: Device) -> GpuSample:
    util = device.ask("nvmlDeviceGetUtilizationRates")
    memory = device.ask("nvmlDeviceGetMemoryInfo")
    return GpuSample(
        util=getattr(util, "gpu", None),
        memory_mb=None if memory is None else memory.used / 2**20,
        sm_mhz=device.ask("nvmlDeviceGetClockInfo", "NVML_CLOCK_SM"),
        watts=_thousandth(device.ask("nvmlDeviceGetPowerUsage")),
        celsius=device.ask("nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU"),
        throttle=device.ask("nvmlDeviceGetCurrentClocksThrottleReasons"),
    )


def _joules(device: Device) -> float | None:
    """Since the driver was loaded; None where the accelerator does not count (before Volta)."""
    return _thousandth(device.ask("nvmlDeviceGetTotalEnergyConsumption"))


class GpuWatch:
    """Looks at a device from its making to :meth:`summary`; does nothing without a device."""

    def __init__(self, device: Device | None) -> None:
        self._device = device
        self._samples: list[GpuSample] = []
        self._times: list[float] = []
        self._began = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="gpu-watch", daemon=True)
        if device:
            self._joules = _joules(device)
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
        counted = None
        if self._joules is not None and after is not None:
            counted = after - self._joules
        energy = energy_of(self._samples, self._times, self._began, end, counted)
        series = over_time(self._samples, self._times, self._began)
        return {**summarise(self._samples), **series, **energy}


def energy_of(
    samples: Sequence[GpuSample],
    times: Sequence[float],
    began: float,
    ended: float,
    counted: float | None,
    every_s: float = _EVERY_S,
) -> dict[str, Any]:
    """The energy from ``began`` to ``ended`` (s, as ``times`` of the samples), J, and what it rests
    on: the device's counter (``counted``), else the samples' power, each held from halfway to the
    sample before it until halfway to the next. ``covered`` is the share of that time no farther
    from a sample than ``every_s``, the interval of two looks; ``gap_s`` the longest time without
    one."""
    # A sample may have come without its time, or without power.
    powers = {at: s.watts for s, at in zip(samples, times) if s.watts is not None}
    if counted is None and not powers:
        return {}
    moments = [*powers]
    gaps = _differences([began, *moments, ended])
    watched, covered = max(ended - began, 1e-9), 0.0
    if powers:
        reach = [every_s, *[2 * every_s] * (len(gaps) - 2), every_s]
        covered = sum(map(min, gaps, reach)) / watched
    joules, by = counted, "counter"
    if joules is None:
        edges = [began, *((a + b) / 2 for a, b in zip(moments, moments[1:])), ended]
        joules = sum(map(mul, powers.values(), _differences(edges)))
        by = "power"
    figures = {"watched_s": watched, "covered": min(covered, 1.0), "gap_s": max(gaps)}
    figures["joules"] = joules
    return {**{name: round(value, 3) for name, value in figures.items()}, "joules_by": by}


def _differences(values: Sequence[float]) -> list[float]:
    return [after - before for before, after in zip(values, values[1:])]


def summarise(samples: Sequence[GpuSample]) -> dict[str, Any]:
    """Means of utilisation (%), clock (MHz) and power (W), the most memory (MiB) and heat (degrees
    C), every throttle reason; each over the samples that have it."""
    found: dict[str, Any] = {}
    for name, put_together in _OVER_TIME.items():
        values = [value for s in samples if (value := getattr(s, name)) is not None]
        if values:
            found[name] = put_together(values)
    return {"samples": len(samples), **found} if found else {}


def over_time(
    samples: Sequence[GpuSample], times: Sequence[float], began: float
) -> dict[str, list[float | None]]:
    """Utilisation (``util_at``, %) and SM clock (``sm_mhz_at``, MHz) in at most 60 pieces of as
    many samples each: the median of a piece, and the moment halfway from its first sample to its
    last (``at_s``, s since ``began``, as ``times``). None is a piece that the device does not tell;
    without any there is nothing."""
    found: dict[str, list[float | None]] = {}
    parts = pieces(list(zip(samples, times)), _MOST_POINTS)
    for name in ("util", "sm_mhz"):
        column = [_middle(getattr(sample, name) for sample, _ in part) for part in parts]
        if column.count(None) < len(column):
            found[f"{name}_at"] = column
    if found:
        ends = ((part[0][1], part[-1][1]) for part in parts)
        found["at_s"] = [round((first + last) / 2 - began, 2) for first, last in ends]
    return found


def _middle(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _mean(digits: int) -> Callable[[Sequence[float]], float]:
    return lambda values: round(sum(values) / len(values), digits)


_OVER_TIME: dict[str, Callable[[Sequence[Any]], float]] = {
    "util": _mean(2),
    "memory_mb": lambda values: round(max(values), 1),
    "sm_mhz": _mean(1),
    "watts": _mean(2),
    "celsius": max,
    "throttle": lambda values: reduce(or_, values),
}


class GpuSeries:
    """Samples of one GPU over all of a program's time: which of them are those of the window is
    known only at its end."""

    def __init__(self, uuid: str, device: Device, root: int | None = None) -> None:
        """``root``: the figures count only if a process below that one was seen on the GPU."""
        self.counts = root is None
        self._uuid, self._device, self._root = uuid, device, root
        self._before = gpu_state(device)
        self._rows: list[tuple[float, float | None, GpuSample]] = []

    def look(self) -> None:
        """Take a sample. Its moment is that of the energy counter, which has to fit it."""
        joules, moment = _joules(self._device), time.time()
        self._rows.append((moment, joules, _sample(self._device)))
        if self._root is not None and not self.counts:
            processes = self._device.ask("nvmlDeviceGetComputeRunningProcesses") or []
            self.counts = any(_is_below(each.pid, self._root) for each in processes)

    def thin(self) -> bool:
        """Whether there were too many samples, of which every second one is now dropped."""
        full = len(self._rows) >= _MOST_SAMPLES
        if full:
            del self._rows[1::2]
        return full

    def lines(self, opened: float, ended: float, every_s: float) -> list[dict[str, Any]]:
        """What a log's lines ``gpu`` tell of a window between two moments (s since 1970), of which
        samples were taken every ``every_s``; none without a sample, or of a GPU that does not
        count."""
        inside = [row for row in self._rows if opened <= row[0] <= ended]
        if not inside or not self.counts:
            return []
        times, _, samples = zip(*inside)
        before, after = self._counter_at(opened, every_s), self._counter_at(ended, every_s)
        counted = None
        if before is not None and after is not None:
            counted = after - before
        energy = energy_of(samples, times, opened, ended, counted, every_s)
        series = over_time(samples, times, opened)
        states = {
            "before": self._before,
            "window": {**summarise(samples), **series, **energy},
            "after": gpu_state(self._device),
        }
        return [{"uuid": self._uuid, "when": when, **state} for when, state in states.items()]

    def _counter_at(self, moment: float, every_s: float) -> float | None:
        """The energy counter (J) at a moment, by the line through the samples around it; None where
        these are too far apart, or have no counter."""
        place = bisect_left(self._rows, (moment,))
        if not 0 < place < len(self._rows):
            return None
        (begin, low, _), (end, high, _) = self._rows[place - 1 : place + 1]
        if low is None or high is None or end - begin > 2 * every_s + _LATE_S:
            return None
        return low + (high - low) * (moment - begin) / (end - begin)


def _is_below(pid: int, root: int) -> bool:
    """Whether a process is another one's descendant, or that one."""
    for _ in range(_DEEPEST):
        if pid in (0, root):
            return pid == root
        pid = int(kernel_value(f"/proc/{pid}/status", "PPid") or 0)
    return False


def watch_node(folder: str, most: str, root: str) -> None:
    """In a process beside a user's program, from before its start: sample the GPUs that it may see,
    until a line on standard input names its window (two moments, s since 1970, as JSON). Then print
    the ``lines`` of :meth:`GpuSeries.lines`, and ``why`` there are none, as JSON.

    A GPU of which a supervisor's process has left a note in ``folder`` is sampled by that one.
    Where more than ``most`` GPUs are visible, those count on which a process below ``root`` was
    seen."""
    devices, why = nvml_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"))
    visible = devices or []
    only_below = int(root) if len(visible) > int(most) else None
    series = []
    for gpu in visible:
        uuid = gpu["uuid"]
        device = find_device(uuid) if _is_first(Path(folder), uuid) else None
        if device is not None:
            series.append(GpuSeries(uuid, device, only_below))
    every_s, request = _sampled(series)
    if request:  # else the supervisor has gone, or needs nothing
        opened, ended = json.loads(request)
        if {each.counts for each in series} == {False}:
            why = f"{len(visible)} are visible, the case uses {most}, and NVML does not tell which"
        lines: list[dict[str, Any]] = []
        for each in series:
            lines += each.lines(opened, ended, every_s)
        print(json.dumps({"lines": lines, "why": why}))


def _is_first(folder: Path, uuid: str) -> bool:
    """Whether no process of the same attempt has taken this GPU to sample it."""
    with contextlib.suppress(OSError):
        return write_once(folder / f"{re.sub(r'[^A-Za-z0-9-]', '_', uuid)}.gpu", "")
    return False


def _sampled(series: Sequence[GpuSeries]) -> tuple[float, str]:
    """Sample until there is a line on standard input; the interval at last, and the line, '' at the
    input's end."""
    every_s = _EVERY_S
    while True:
        for each in series:
            each.look()
        if any([each.thin() for each in series]):
            every_s *= 2
        if select.select([sys.stdin], [], [], every_s if series else None)[0]:
            return every_s, sys.stdin.readline()


def pci_address(text: str) -> str | None:
    """``0000:65:00.0`` as sysfs writes it, of ``00000000:65:00.0`` as NVML does, or None."""
    match = _ADDRESS.fullmatch(text.strip())
    if match is None:
        return None
    domain, bus, device, function = (int(part, 16) for part in match.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function}"


def address_of(uuid: str | None) -> str | None:
    """The PCI address of the GPU of that UUID, by NVML; None where nobody tells it."""
    device = find_device(uuid)
    info = device and device.ask("nvmlDeviceGetPciInfo")
    return pci_address(text_of(getattr(info, "busId", "")))


def numbers(text: str) -> list[int]:
    """0, 1, 2, 8 of ``0-2,8``; empty for what is no such list."""
    found: list[int] = []
    for part in text.strip().split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            return []
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return found


def ranges(values: Iterable[int]) -> str:
    """``0-2,8`` of 0, 1, 2, 8."""
    parts: list[list[int]] = []
    for number in sorted(values):
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def _read(path: Path) -> str:
    try:
        return read_regular(path, _MOST_BYTES).decode(errors="replace").strip()
    except OSError:
        return ""


def gpu_place(address: str | None, sys: Path = _SYS) -> dict[str, Any]:
    """``gpu_pci``, ``gpu_cpus`` (the CPUs next to that GPU) and ``gpu_numa``, where it is known."""
    if address is None:
        return {}
    folder = sys / "bus" / "pci" / "devices" / address
    facts: dict[str, Any] = {"gpu_pci": address}
    cpus = numbers(_read(folder / "local_cpulist"))
    if cpus:
        facts["gpu_cpus"] = ranges(cpus)
    node = _read(folder / "numa_node")
    if node.isdigit():
        facts["gpu_numa"] = int(node)
    return facts


def nodes_of(cpus: Collection[int], sys: Path = _SYS) -> list[int]:
    """The NUMA nodes that these CPUs belong to; empty where the machine does not tell."""
    folders = sorted((sys / "devices" / "system" / "node").glob("node[0-9]*"))
    near = [each for each in folders if set(numbers(_read(each / "cpulist"))) & set(cpus)]
    return [int(each.name[4:]) for each in near if each.name[4:].isdigit()]


def memory_nodes(proc: Path = _PROC) -> list[int]:
    """The NUMA nodes whose memory this process may use; empty where the kernel does not tell."""
    return numbers(kernel_value(str(proc / "status"), "Mems_allowed_list"))


def _place_facts(address: str | None, sys: Path) -> dict[str, Any]:
    """For a rank's line of the log: where it runs, and where its GPU is."""
    nodes = {
        "cpus_numa": ranges(nodes_of(os.sched_getaffinity(0), sys)),
        "memory_numa": ranges(memory_nodes()),
    }
    known = {name: text for name, text in nodes.items() if text}
    return {**known, **gpu_place(address, sys)}


def take_place(case: Case, uuid: str | None, sys: Path = _SYS) -> dict[str, Any]:
    """Where this rank and its GPU are; with ``bind = "gpu"`` the rank is narrowed down first to
    those of its CPUs that are next to its GPU. Called before anything is allocated: memory lies
    where the thread ran that first wrote to it. DeviceError where that is requested and the machine
    does not tell what is next to what, or the rank may use none of these CPUs."""
    address = address_of(uuid)
    facts = _place_facts(address, sys)
    # A sweep of an earlier version has no such option.
    if dict(case.options).get("bind", "none") != "gpu":
        return facts
    near = numbers(str(facts.get("gpu_cpus", "")))
    mine = os.sched_getaffinity(0)
    if uuid is None:
        raise DeviceError('bind = "gpu" needs a GPU to be near to, and this rank computes on CPUs')
    if not near:
        hidden = "NVML does not tell its PCI address (nvidia-ml-py missing?)"
        if address:
            hidden = f"its PCI address is {address}, and {sys}/bus/pci says nothing of its CPUs"
        raise DeviceError(
            f'bind = "gpu": this machine does not tell which cores are next to the GPU: {hidden}.'
            " A container or a virtual machine may hide it: bind by the scheduler there"
            " (srun --cpu-bind, --gpu-bind)"
        )
    both = mine & set(near)
    if not both:
        raise DeviceError(
            f'bind = "gpu": the cores next to the GPU are {ranges(near)}, and this rank may use'
            f" only {ranges(mine)}: ask the scheduler for the GPU's own socket (--gpu-bind=closest)"
        )
    narrow(both)
    return {**_place_facts(address, sys), "bound": ranges(both)}


def narrow(cpus: Collection[int]) -> None:
    """Let this process run on these CPUs only, with all the threads that it has and will have."""
    for name in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # a thread that has ended since
            os.sched_setaffinity(int(name), cpus)
