"""One node as a rank finds it: its Python, the modules in it, its CPUs and its GPUs.

GPUs are asked of NVML, else of nvidia-smi; where neither answers, only the environment tells them.
"""

from __future__ import annotations

import contextlib
import glob
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from typing import Any

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
