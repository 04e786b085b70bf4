"""The device of a rank under PyTorch, and the precision it really computes in."""

from __future__ import annotations

from typing import Any

import torch

from dlperf_hpc.errors import DeviceError
from dlperf_hpc.model.case import Case
from dlperf_hpc.train.ranks import World, gpu_indices, refuse_cpus

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def choose_device(case: Case, world: World) -> torch.device:
    """This rank's device. DeviceError if the case asks for GPUs that are not there."""
    seen = world.gather([] if case.device == "cpu" else _visible_gpus())
    if case.device == "auto" and not any(seen):
        refuse_cpus(world, "PyTorch", built_for())
    if case.device == "cpu" or (case.device == "auto" and not any(seen)):
        torch.set_num_threads(case.threads)
        return torch.device("cpu")
    (own,) = gpu_indices(world, seen, nobody=f"PyTorch (built for {built_for()}) sees no GPU")
    device = torch.device("cuda", own)
    torch.cuda.set_device(device)
    return device


def built_for() -> str:
    """What this PyTorch is built for: ``CUDA 12.8``, ``ROCm 7.0``, ``XPU 20250301`` or ``CPUs``."""
    builds = {"CUDA": torch.version.cuda, "ROCm": torch.version.hip}
    builds["XPU"] = getattr(torch.version, "xpu", None)
    return next((f"{name} {version}" for name, version in builds.items() if version), "CPUs")


def _visible_gpus() -> list[str]:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [str(torch.cuda.get_device_properties(i).uuid) for i in range(count)]


def uuid_of(device: torch.device) -> str | None:
    """The GPU's UUID; None of a CPU."""
    if device.type != "cuda":
        return None
    return str(torch.cuda.get_device_properties(device).uuid)


def set_precision(case: Case, device: torch.device) -> None:
    """Switch TF32 off, or on for ``tf32``; DeviceError for a precision the device lacks."""
    want_tf32 = case.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = want_tf32
    torch.backends.cudnn.allow_tf32 = want_tf32
    gpu = device.type == "cuda"
    ampere = gpu and torch.cuda.get_device_capability(device) >= (8, 0)
    if (want_tf32 and not ampere) or (case.precision == "bf16" and gpu and not ampere):
        found = torch.cuda.get_device_name(device) if gpu else "a CPU"
        raise DeviceError(
            f"precision {case.precision} needs an NVIDIA GPU of Ampere or later, not {found}"
        )
    if case.precision in ("fp32", "tf32"):
        observed = observed_fp32(device)
        if observed != case.precision:
            raise DeviceError(
                f"precision {case.precision} was asked for, but matrix products on {device} are"
                f" computed in {observed}: unset NVIDIA_TF32_OVERRIDE and TORCH_ALLOW_TF32_*"
            )


def observed_fp32(device: torch.device) -> str:
    """``fp32`` or ``tf32``, which rounds 1 + 2^-12 to 1: how a product is really computed."""
    size = 512
    value = torch.full((size, size), 1.0 + 2.0**-12, device=device)
    product = value @ torch.eye(size, device=device)
    return "fp32" if bool((product == value).all()) else "tf32"


def device_facts(device: torch.device) -> dict[str, Any]:
    """Versions and flags as observed on this rank."""
    facts: dict[str, Any] = {
        "torch": torch.__version__,
        "device": str(device),
        "threads": torch.get_num_threads(),
        "tf32_matmul": torch.backends.cuda.matmul.allow_tf32,
        "tf32_cudnn": torch.backends.cudnn.allow_tf32,
        "fp32_products": observed_fp32(device),
    }
    if device.type != "cuda":
        return {**facts, "device_name": "cpu"}
    properties = torch.cuda.get_device_properties(device)
    return {
        **facts,
        "device_name": properties.name,
        "device_uuid": str(properties.uuid),
        "device_memory_mb": properties.total_memory // 2**20,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
    }
