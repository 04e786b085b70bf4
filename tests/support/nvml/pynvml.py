"""A pynvml without a driver, for processes: it stands first on their PYTHONPATH.

``FAKE_NVML`` has the devices' UUIDs, with commas between; ``{node}`` in one is Slurm's node. Device
i draws 100 x (i + 1) W at all times, which its energy counter tells too, and runs at 1000 + i MHz.
``FAKE_NVML_FAULT``: ``missing`` (no library), ``hang`` or ``crash`` (in the second sample),
``no-counter``. ``FAKE_NVML_USED`` has the number of the device on which the process whose pid is in
the file ``FAKE_NVML_PID`` computes.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
_FAULT = os.environ.get("FAKE_NVML_FAULT", "")
_NODE = os.environ.get("SLURMD_NODENAME", "")
_UUIDS = os.environ.get("FAKE_NVML", "").replace("{node}", _NODE).split(",")


class NVMLError(Exception):
    """As NVML's own error."""


def nvmlInit() -> None:
    if _FAULT == "missing":
        raise NVMLError("NVML Shared Library Not Found")


def nvmlSystemGetDriverVersion() -> str:
    return "580.1"


def nvmlDeviceGetCount() -> int:
    return len(_UUIDS)


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    return index


def nvmlDeviceGetHandleByUUID(uuid: str) -> int:
    if uuid not in _UUIDS:
        raise NVMLError("Not Found")
    return _UUIDS.index(uuid)


def nvmlDeviceGetUUID(handle: int) -> str:
    return _UUIDS[handle]


def nvmlDeviceGetName(handle: int) -> str:
    return "NVIDIA H100 80GB HBM3"


def nvmlDeviceGetUtilizationRates(handle: int) -> SimpleNamespace:
    return SimpleNamespace(gpu=90 + handle)


def nvmlDeviceGetMemoryInfo(handle: int) -> SimpleNamespace:
    return SimpleNamespace(used=2**30)


def nvmlDeviceGetClockInfo(handle: int, kind: int) -> int:
    return 1000 + handle


def nvmlDeviceGetPowerUsage(handle: int) -> int:
    return 100_000 * (handle + 1)


def nvmlDeviceGetTemperature(handle: int, kind: int) -> int:
    return 60 + handle


def nvmlDeviceGetCurrentClocksThrottleReasons(handle: int) -> int:
    return 0x4


_SAMPLES: list[int] = []


def nvmlDeviceGetTotalEnergyConsumption(handle: int) -> float:
    _SAMPLES.append(handle)
    if _FAULT == "crash" and len(_SAMPLES) > 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    while _FAULT == "hang" and len(_SAMPLES) > 1:
        time.sleep(60)
    if _FAULT == "no-counter":
        raise NVMLError("Not Supported")
    return 1e3 * 100 * (handle + 1) * time.time()


def nvmlDeviceGetComputeRunningProcesses(handle: int) -> list[SimpleNamespace]:
    path = Path(os.environ.get("FAKE_NVML_PID", "/nonexistent"))
    if str(handle) != os.environ.get("FAKE_NVML_USED") or not path.exists():
        return []
    return [SimpleNamespace(pid=int(path.read_text()))]
