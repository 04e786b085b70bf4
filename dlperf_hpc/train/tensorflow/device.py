"""The devices of a rank under TensorFlow, and the precision they really compute in.

Imports tensorflow: never loaded on the login node, and not before MPI is initialised.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from dlperf_hpc.errors import DeviceError
from dlperf_hpc.model.case import Case
from dlperf_hpc.train.ranks import World, gpu_indices


@dataclass(frozen=True)
class Devices:
    """What a rank computes on: TensorFlow's names (``GPU:0``, ``CPU:0``), and the first one's UUID
    as NVML has it, None for a CPU."""

    names: tuple[str, ...]
    uuid: str | None = None

    @property
    def gpu(self) -> bool:
        """Whether they are GPUs."""
        return self.names[0].startswith("GPU")


def choose_devices(case: Case, world: World) -> Devices:
    """This rank's devices; TensorFlow sees no others after it, and none is initialised yet.

    One per rank, or a share of its node's where a node has fewer ranks than devices. DeviceError
    if the case asks for GPUs that are not there.
    """
    count = case.topology.gpus_per_node // case.ranks_per_node
    # NVML's order, so that a number means the same GPU to both.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    gpus = [] if case.device == "cpu" else tf.config.list_physical_devices("GPU")
    anywhere = any(world.gather(bool(gpus)))
    if case.device == "cpu" or (case.device == "auto" and not anywhere):
        return _cpus(case, count)
    uuids = _uuids(len(gpus))
    mine = gpu_indices(world, world.gather(uuids), count, "TensorFlow sees no GPU")
    tf.config.set_visible_devices([gpus[i] for i in mine], "GPU")
    for i in mine:
        # As much as is needed, not all there is: NCCL and the peak that is reported want the rest.
        tf.config.experimental.set_memory_growth(gpus[i], True)
    return Devices(tuple(f"GPU:{i}" for i in range(count)), uuids[mine[0]])


def _cpus(case: Case, count: int) -> Devices:
    tf.config.set_visible_devices([], "GPU")
    tf.config.threading.set_intra_op_parallelism_threads(case.threads)
    tf.config.threading.set_inter_op_parallelism_threads(count)
    if count > 1:
        whole = tf.config.list_physical_devices("CPU")[0]
        parts = [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
        tf.config.set_logical_device_configuration(whole, parts)
    return Devices(tuple(f"CPU:{i}" for i in range(count)))


def _uuids(count: int) -> list[str]:
    """The UUIDs of the ``count`` GPUs this process sees, in TensorFlow's order.

    TensorFlow does not tell them, and a rank's first GPU may or may not be its neighbour's first.
    """
    if not count:
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    words = visible.split(",") if visible else [str(i) for i in range(count)]
    try:
        import pynvml

        pynvml.nvmlInit()
        return [_uuid(pynvml, word.strip()) for word in words[:count]]
    except Exception as error:  # no module, no driver, no such GPU: NVML has an error for each
        raise DeviceError(
            f"the GPUs of CUDA_VISIBLE_DEVICES={visible} cannot be told apart by NVML"
            f" ({type(error).__name__}: {error}): install nvidia-ml-py in this environment"
        ) from error


def _uuid(nvml: Any, word: str) -> str:
    """What CUDA_VISIBLE_DEVICES calls a GPU, by a number or already by its UUID."""
    if not word.isdigit():
        return word
    return str(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(int(word))))


def set_precision(case: Case, devices: Devices) -> None:
    """Switch TF32 off, or on for ``tf32``; DeviceError for a precision the device lacks."""
    want_tf32 = case.precision == "tf32"
    tf.config.experimental.enable_tensor_float_32_execution(want_tf32)
    details = _details() if devices.gpu else {}
    ampere = details.get("compute_capability", (0, 0)) >= (8, 0)
    if not ampere and (want_tf32 or (case.precision == "bf16" and devices.gpu)):
        found = details.get("device_name", "an unknown GPU") if devices.gpu else "a CPU"
        raise DeviceError(
            f"precision {case.precision} needs an NVIDIA GPU of Ampere or later, not {found}"
        )
    if case.precision in ("fp32", "tf32"):
        observed = observed_fp32(devices.names[0])
        if observed != case.precision:
            raise DeviceError(
                f"precision {case.precision} was asked for, but matrix products on"
                f" {devices.names[0]} are computed in {observed}: unset NVIDIA_TF32_OVERRIDE"
            )


def observed_fp32(device: str) -> str:
    """``fp32`` or ``tf32``: how a product of fp32 matrices is really computed.

    1 + 2^-12 has more mantissa bits than TF32's 10, so a TF32 product rounds it to 1.
    """
    size = 512
    with tf.device(device):
        value = tf.fill([size, size], 1.0 + 2.0**-12)
        product = tf.matmul(value, tf.eye(size))
        return "fp32" if bool(tf.reduce_all(product == value)) else "tf32"


def _details() -> dict[str, Any]:
    gpu = tf.config.get_visible_devices("GPU")[0]
    details: dict[str, Any] = tf.config.experimental.get_device_details(gpu)
    return details


def device_facts(devices: Devices) -> dict[str, Any]:
    """Versions and flags as observed on this rank."""
    facts: dict[str, Any] = {
        "tensorflow": tf.__version__,
        "device": " ".join(devices.names),
        "threads": tf.config.threading.get_intra_op_parallelism_threads(),
        "tf32_matmul": tf.config.experimental.tensor_float_32_execution_enabled(),
        "fp32_products": observed_fp32(devices.names[0]),
        # TensorFlow lets no program read events on the device's own time line.
        "step_clock": "host",
    }
    if not devices.gpu:
        return {**facts, "device_name": "cpu"}
    build = tf.sysconfig.get_build_info()
    return {
        **facts,
        "device_name": _details().get("device_name"),
        "device_uuid": devices.uuid,
        "cuda": build.get("cuda_version"),
        "cudnn": build.get("cudnn_version"),
    }
