"""Which cores and which memory lie next to a rank's GPU, and whether the rank runs on them.

The machine tells it in sysfs: the PCI address of a GPU, from NVML or the framework, leads to its
NUMA node and to the CPUs next to it. Containers and virtual machines may hide that. A
rank's threads launch what its GPU computes and copy what it reads: from another node's cores all of
that crosses the link between the processors.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from dlperf_hpc.errors import DeviceError
from dlperf_hpc.files import read_regular
from dlperf_hpc.model.case import Case
from dlperf_hpc.train.telemetry import find_device

_SYS = Path("/sys")
_PROC = Path("/proc/self")
_MOST_BYTES = 2**16
_ADDRESS = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")
_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")


def pci_address(text: str) -> str | None:
    """``0000:65:00.0`` as sysfs writes it, of ``00000000:65:00.0`` as NVML does; None if it is no
    PCI address."""
    match = _ADDRESS.fullmatch(text.strip())
    if match is None:
        return None
    domain, bus, device, function = (int(part, 16) for part in match.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function}"


def address_of(uuid: str | None) -> str | None:
    """The PCI address of the GPU of that UUID, by NVML; None where nobody tells it."""
    device = find_device(uuid)
    told = device.ask("nvmlDeviceGetPciInfo") if device else None
    name = getattr(told, "busId", None)
    if isinstance(name, bytes):
        name = name.decode(errors="replace")
    return pci_address(name) if isinstance(name, str) else None


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
            parts[-1][-1:] = [number] if len(parts[-1]) > 1 else [parts[-1][0], number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def _read(path: Path) -> str:
    try:
        return read_regular(path, _MOST_BYTES).decode(errors="replace").strip()
    except OSError:
        return ""


def gpu_place(address: str | None, sys: Path = _SYS) -> dict[str, Any]:
    """``gpu_pci``, ``gpu_cpus`` (the CPUs next to that GPU) and ``gpu_numa`` (its NUMA node), each
    only where it is told: a machine of one node may say -1 for it."""
    if address is None:
        return {}
    folder = sys / "bus" / "pci" / "devices" / address
    told: dict[str, Any] = {"gpu_pci": address}
    cpus = numbers(_read(folder / "local_cpulist"))
    if cpus:
        told["gpu_cpus"] = ranges(cpus)
    node = _read(folder / "numa_node")
    if node.isdigit():
        told["gpu_numa"] = int(node)
    return told


def nodes_of(cpus: Collection[int], sys: Path = _SYS) -> list[int]:
    """The NUMA nodes that these CPUs belong to; empty where the machine does not tell."""
    folder = sys / "devices" / "system" / "node"
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    found = [int(name[4:]) for name in names if re.fullmatch(r"node\d{1,6}", name)]
    return [n for n in found if set(numbers(_read(folder / f"node{n}" / "cpulist"))) & set(cpus)]


def memory_nodes(proc: Path = _PROC) -> list[int]:
    """The NUMA nodes whose memory this process may use; empty where the kernel does not tell."""
    match = re.search(r"^Mems_allowed_list:\s*(\S+)", _read(proc / "status"), re.MULTILINE)
    return numbers(match[1]) if match else []


def place_facts(address: str | None, sys: Path = _SYS, proc: Path = _PROC) -> dict[str, Any]:
    """For a rank's line of the log: where it runs, and where its GPU is."""
    nodes, memory = nodes_of(os.sched_getaffinity(0), sys), memory_nodes(proc)
    return {
        **({"cpus_numa": ranges(nodes)} if nodes else {}),
        **({"memory_numa": ranges(memory)} if memory else {}),
        **gpu_place(address, sys),
    }


def take_place(case: Case, uuid: str | None, sys: Path = _SYS) -> dict[str, Any]:
    """Where this rank and its GPU are; with ``bind = "gpu"`` the rank is narrowed down to the CPUs
    next to its GPU first, of those that it may use.

    Called before anything of the run's is allocated: memory lies where the thread ran that first
    wrote to it. DeviceError where that is asked for and the machine does not tell what is next to
    what, or the rank may use none of these CPUs.
    """
    address = address_of(uuid)
    facts = place_facts(address, sys)
    # A sweep of an earlier version has no such option.
    if dict(case.options).get("bind", "none") != "gpu":
        return facts
    near = numbers(str(facts.get("gpu_cpus", "")))
    mine = os.sched_getaffinity(0)
    if uuid is None:
        raise DeviceError('bind = "gpu" needs a GPU to be near to, and this rank computes on CPUs')
    if not near:
        known = f"its PCI address is {address}, and {sys}/bus/pci says nothing of its CPUs"
        hidden = known if address else "NVML does not tell its PCI address (nvidia-ml-py missing?)"
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
    return {**place_facts(address, sys), "bound": ranges(both)}


def narrow(cpus: Collection[int]) -> None:
    """Let this process run on these CPUs only, with all the threads that it has and will have."""
    for name in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # a thread that has ended since
            os.sched_setaffinity(int(name), cpus)
