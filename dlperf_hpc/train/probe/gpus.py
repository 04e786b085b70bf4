"""GPUs of this node as NVML, else nvidia-smi, else only the environment tells them."""

from __future__ import annotations

import os
import subprocess
from typing import Any


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


def _by_nvml() -> list[dict[str, Any]]:
    import pynvml

    pynvml.nvmlInit()
    devices = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)

        def ask(name: str, *arguments: Any, handle: Any = handle) -> Any:
            # Cards and drivers differ in what they answer; what is not told is left out.
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
