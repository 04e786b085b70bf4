"""The device of a rank under PyTorch, and the precision it really computes in."""

from __future__ import annotations

import os
from typing import Any

import torch

from dlperf_hpc.errors import DeviceError
from dlperf_hpc.spec.case import Case
from dlperf_hpc.train.ranks import World

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def choose_device(case: Case, world: World) -> torch.device:
    """This rank's device. DeviceError if the case asks for GPUs that are not there."""
    visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if case.device == "cpu" or (case.device == "auto" and visible == 0):
        torch.set_num_threads(case.threads)
        return torch.device("cpu")
    if visible == 0:
        raise DeviceError(f'device = "cuda", but PyTorch sees no GPU on {world.host}')
    # srun may show a rank its own GPU only (--gpus-per-task) or all of the node's.
    local = 0 if visible == 1 and _bound_by_launcher(world) else world.local_rank
    if local >= visible:
        raise DeviceError(
            f"{world.local_size} ranks on {world.host}, but {visible} GPUs are visible there"
            f" (CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'unset')})"
        )
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def _bound_by_launcher(world: World) -> bool:
    """One GPU visible to each of several ranks: each has another one, as the GPUs' UUIDs tell."""
    uuid = str(torch.cuda.get_device_properties(0).uuid)
    placed = list(zip(world.hosts, world.gather(uuid)))
    return len(set(placed)) == len(placed)


def set_precision(case: Case, device: torch.device) -> None:
    """Switch TF32 off, or on for ``tf32``; DeviceError for a precision the device lacks."""
    want_tf32 = case.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = want_tf32
    torch.backends.cudnn.allow_tf32 = want_tf32
    if want_tf32 and (device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0)):
        raise DeviceError(f"precision tf32 needs an NVIDIA GPU of Ampere or later, not {device}")
    if (
        case.precision == "bf16"
        and device.type == "cuda"
        and not torch.cuda.is_bf16_supported(including_emulation=False)
    ):
        raise DeviceError(f"{torch.cuda.get_device_name(device)} has no bf16 arithmetic")
    if case.precision in ("fp32", "tf32"):
        observed = observed_fp32(device)
        if observed != case.precision:
            raise DeviceError(
                f"precision {case.precision} was asked for, but matrix products on {device} are"
                f" computed in {observed}: unset NVIDIA_TF32_OVERRIDE and TORCH_ALLOW_TF32_*"
            )


def observed_fp32(device: torch.device) -> str:
    """``fp32`` or ``tf32``: how a product of fp32 matrices is really computed.

    1 + 2^-12 has more mantissa bits than TF32's 10, so a TF32 product rounds it to 1.
    """
    size = 256
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
