"""A GPU's own account of itself before and after the window: clocks, heat, power, throttling.

Through NVML, never inside the window. Not having it is normal (CPUs, other vendors) and is said by
leaving it out.
"""

from __future__ import annotations

from typing import Any


def gpu_state(uuid: str | None) -> dict[str, Any]:
    """Clocks in MHz, temperature in degrees C, power in W, and NVML's throttle-reason bits.

    Empty for None and without NVML's library; ``uuid`` as PyTorch prints it.
    """
    if uuid is None:
        return {}
    try:
        import pynvml
    except ImportError:
        return {}
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}")
        return {
            "driver": str(pynvml.nvmlSystemGetDriverVersion()),
            "sm_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
            "sm_mhz_max": pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM),
            "mem_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
            "celsius": pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
            "watts": pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            "watts_limit": pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3,
            "throttle": pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
        }
    except pynvml.NVMLError as error:
        return {"unreadable": str(error)}
