"""One node as a rank finds it: its Python, the modules in it, its CPUs and its GPUs, which of them
are whose, and how fast a rank computes by itself.

GPUs are asked of NVML, else of nvidia-smi; where neither answers, only the environment tells them.
What a process sees of them depends on the site: all of its node's (CUDA_VISIBLE_DEVICES alike), its
own only (``--gpus-per-task``), those near its cores (``--gpu-bind=closest``), or all of them with
its own first (a rotated CUDA_VISIBLE_DEVICES). A number among those it sees means nothing to
another process; a UUID means the same to all.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, Callable

_IMPORT_LIMIT_S = 90.0
_NVLINKS = 18  # NVML_NVLINK_MAX_LINKS
_INFINIBAND = "/sys/class/infiniband/*/ports/*"
_FRAMEWORKS = ("torch", "tensorflow", "deepspeed", "horovod")

# In a process of its own: an import may end it, or never return. The working directory, "" in its
# path, stays there only for a checkout. MPI is loaded, which is what fails, but not started.
_IMPORT = """
import sys
if sys.argv[2] != "checkout":
    sys.path = [path for path in sys.path if path]
import importlib, importlib.metadata, json, time
name, begin, found = sys.argv[1], time.monotonic(), {}
if name == "mpi4py":
    import mpi4py
    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    from mpi4py import MPI
    found["library"] = " ".join(MPI.Get_library_version().strip(chr(0)).splitlines()[0].split())
module = importlib.import_module(name)
found["seconds"] = round(time.monotonic() - begin, 2)
found["version"] = getattr(module, "__version__", None)
if name == "torch":
    found["cuda"] = module.version.cuda or module.version.hip
    found["devices"] = module.cuda.device_count()
if name == "tensorflow":
    found["devices"] = len(module.config.list_physical_devices("GPU"))
found["version"] = str(found["version"] or importlib.metadata.version(name))
print(json.dumps(found))
"""


def cpus() -> list[int]:
    """CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def imported(name: str, checkout: bool = False) -> dict[str, Any]:
    """``version`` and more of a module, or the ``error`` of importing it.

    It is looked for in the working directory too if that is a ``checkout``.
    """
    argv = [sys.executable, "-c", _IMPORT, name, "checkout" if checkout else "elsewhere"]
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_IMPORT_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not imported within {_IMPORT_LIMIT_S:g} s"}
    if done.returncode == 0:
        with contextlib.suppress(ValueError, IndexError):
            found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
            return found
    words = done.stderr.decode(errors="replace").strip().splitlines()
    last = words[-1].strip() if words else "no word"
    return {"error": last[:500] if done.returncode > 0 else f"signal {-done.returncode}: {last}"}


def installed() -> dict[str, str]:
    """Frameworks that are installed, by the record of their installation."""
    found = {}
    for name in _FRAMEWORKS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def gpus() -> dict[str, Any]:
    """GPUs of this node as NVML, else nvidia-smi, else only the environment tells them.

    ``devices`` is None where nothing but the environment says there are any.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    facts: dict[str, Any] = {"visible": visible, "source": None, "devices": None}
    try:
        facts.update(source="NVML", devices=_shown(_by_nvml(), visible))
    except Exception as error:  # noqa: BLE001 - no module, no driver, a version that lacks a call
        facts["no_nvml"] = f"{type(error).__name__}: {error}"[:200]
        listed = _by_command()
        if listed is not None:
            facts.update(source="nvidia-smi", devices=_shown(listed, visible))
    return facts


def ports() -> list[dict[str, Any]]:
    """InfiniBand and RoCE ports of this node that are up: ``name``, and ``gb_per_s``, the rate that
    the kernel tells (``400 Gb/sec (4X NDR)``) in bytes."""
    found = []
    for folder in sorted(glob.glob(_INFINIBAND)):
        told = []
        for name in ("state", "rate"):
            with contextlib.suppress(OSError), open(os.path.join(folder, name)) as file:
                told.append(file.read(100).strip())
        rate = re.match(r"([0-9.]+) Gb/sec", told[-1]) if len(told) == 2 else None
        if rate and "ACTIVE" in told[0]:
            parts = folder.split(os.sep)
            found.append({"name": f"{parts[-3]}/{parts[-1]}", "gb_per_s": float(rate[1]) / 8})
    return found


def _by_nvml() -> list[dict[str, Any]]:
    import pynvml

    pynvml.nvmlInit()
    devices = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)

        def ask(name: str, *arguments: Any, handle: Any = handle) -> Any:
            # Accelerators and drivers differ in what they answer; what is missing is left out.
            try:
                return getattr(pynvml, name)(handle, *arguments)
            except (AttributeError, pynvml.NVMLError):
                return None

        memory = ask("nvmlDeviceGetMemoryInfo")
        rows = ask("nvmlDeviceGetRemappedRows")
        processes = ask("nvmlDeviceGetComputeRunningProcesses") or []
        devices.append(
            {
                "index": index,
                "uuid": _text(ask("nvmlDeviceGetUUID")),
                "name": _text(ask("nvmlDeviceGetName")),
                "used_mib": memory.used >> 20 if memory else None,
                "celsius": ask("nvmlDeviceGetTemperature", 0),
                "throttle": ask("nvmlDeviceGetCurrentClocksThrottleReasons"),
                # NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC: since the last restart.
                "ecc": ask("nvmlDeviceGetTotalEccErrors", 1, 0),
                "remap": {"pending": bool(rows[2]), "failed": bool(rows[3])} if rows else None,
                "others": [process.pid for process in processes][:20],
                "nvlinks": sum(ask("nvmlDeviceGetNvLinkState", i) == 1 for i in range(_NVLINKS)),
            }
        )
    return devices


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _by_command() -> list[dict[str, Any]] | None:
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=index,uuid,name", "--format=csv,noheader"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [line.split(", ") for line in done.stdout.decode(errors="replace").splitlines()]
    return [{"index": i, "uuid": row[1], "name": row[2]} for i, row in enumerate(rows) if row[2:]]


def _shown(devices: list[dict[str, Any]], visible: str | None) -> list[dict[str, Any]]:
    """Those that CUDA_VISIBLE_DEVICES lets through, by number or UUID; as CUDA, up to the first
    that is not there."""
    if visible is None:
        return devices
    shown = []
    for word in (part.strip() for part in visible.split(",")):
        match = [d for d in devices if word == str(d["index"]) or (word and word in d["uuid"])]
        if not match:
            break
        shown.append(match[0])
    return shown


def share_out(
    hosts: Sequence[str], seen: Sequence[Sequence[str]], count: int = 1
) -> list[list[int] | None]:
    """For each process which ``count`` of the GPUs it sees are its own, as indices into its list.

    ``seen[r]`` are the UUIDs that process r sees on ``hosts[r]``. No GPU is given twice. A process
    takes the first of its list that nobody has; where that leaves a later one without, earlier ones
    give way (augmenting paths of a bipartite matching). All processes that call this with the same
    lists get the same answer. None for a process that cannot have so many, whoever gives way.
    """
    slots = [rank for rank in range(len(hosts)) for _ in range(count)]
    takers: dict[tuple[str, str], int] = {}  # of each GPU the slot that has it

    def place(slot: int, tried: set[tuple[str, str]]) -> bool:
        rank = slots[slot]
        mine = [(hosts[rank], uuid) for uuid in seen[rank]]
        free = [gpu for gpu in mine if gpu not in takers]
        if free:
            takers[free[0]] = slot
            return True
        for gpu in mine:
            if gpu not in tried:
                tried.add(gpu)
                if place(takers[gpu], tried):
                    takers[gpu] = slot
                    return True
        return False

    placed = [place(slot, set()) for slot in range(len(slots))]
    own: list[list[int] | None] = []
    for rank, host in enumerate(hosts):
        held = [i for i, uuid in enumerate(seen[rank]) if _is_of(takers, (host, uuid), slots, rank)]
        whole = all(placed[slot] for slot, of in enumerate(slots) if of == rank)
        own.append(held[:count] if whole else None)
    return own


def _is_of(
    takers: dict[tuple[str, str], int], gpu: tuple[str, str], slots: Sequence[int], rank: int
) -> bool:
    return gpu in takers and slots[takers[gpu]] == rank


_ABOUT_S = 0.5  # of steps
_MOST_STEPS = 1000
_HOST_BYTES = 16 << 20
_PRODUCTS, _WIDTH = 10, 4096


def own_steps(comm: Any, gpu: int | None) -> dict[str, Any]:
    """``ms``, the mean time of steps of fixed work, after a barrier of all ranks: products of
    matrices on the device ``gpu``, else SHA-256 of a buffer on the CPU.

    The mean, not the median: a device that is throttled now and then is as slow as its mean.
    """
    what, step = ("SHA-256", _hashing()) if gpu is None else ("matrix products", _products(gpu))
    step()
    begin = time.perf_counter()
    step()
    estimate = time.perf_counter() - begin
    count = max(2, min(_MOST_STEPS, int(_ABOUT_S / max(estimate, 1e-6))))
    comm.Barrier()
    begin = time.perf_counter()
    for _ in range(count):
        step()
    took = time.perf_counter() - begin
    return {"what": what, "steps": count, "ms": 1e3 * took / count}


def _hashing() -> Callable[[], None]:
    buffer = bytes(_HOST_BYTES)

    def step() -> None:
        hashlib.sha256(buffer).digest()

    return step


def _products(gpu: int) -> Callable[[], None]:
    import torch

    device = torch.device("cuda", gpu)
    torch.cuda.set_device(device)
    matrix = torch.ones(_WIDTH, _WIDTH, device=device) / _WIDTH

    def step() -> None:
        for _ in range(_PRODUCTS):
            torch.matmul(matrix, matrix)
        torch.cuda.synchronize(device)

    return step
