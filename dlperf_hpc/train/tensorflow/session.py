"""What every TensorFlow back end's session does alike: devices, the precision they really compute
in, counters, facts. Imports tensorflow: never loaded on the login node, nor before MPI is there."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from dlperf_hpc.errors import DeviceError
from dlperf_hpc.model.case import Case
from dlperf_hpc.sweepfile.declarations import WorkloadDeclaration
from dlperf_hpc.train.checkpoints import Resumable, rank_file
from dlperf_hpc.train.feeds import open_feed
from dlperf_hpc.train.measurement import IterationClock
from dlperf_hpc.train.probe.node import nvml_gpus
from dlperf_hpc.train.ranks import World, gpu_indices, refuse_cpus
from dlperf_hpc.train.schedules import learning_rate
from dlperf_hpc.train.telemetry import take_place
from dlperf_hpc.train.tensorflow.replica import Replica


@dataclass(frozen=True)
class Devices:
    """What a rank computes on: TensorFlow's names (``GPU:0``, ``CPU:0``); the first GPU's UUID."""

    names: tuple[str, ...]
    uuid: str | None = None

    @property
    def gpu(self) -> bool:
        """Whether they are GPUs."""
        return self.names[0].startswith("GPU")


def choose_devices(case: Case, world: World) -> Devices:
    """This rank's devices, one or a share of its node's; TensorFlow sees no others after it, and
    none is initialised yet. DeviceError if the case asks for GPUs that are not there."""
    count = case.topology.gpus_per_node // case.ranks_per_node
    # NVML's order, so that a number means the same GPU to both.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    gpus = [] if case.device == "cpu" else tf.config.list_physical_devices("GPU")
    anywhere = any(world.gather(bool(gpus)))
    if case.device == "auto" and not anywhere:
        refuse_cpus(world, "TensorFlow")
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
    """UUIDs of the ``count`` GPUs this process sees, in TensorFlow's order, which tells none."""
    if not count:
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices, why = nvml_gpus(visible)
    if devices is None or len(devices) < count:
        raise DeviceError(
            f"the GPUs of CUDA_VISIBLE_DEVICES={visible} cannot be told apart by NVML"
            f" ({why or 'it does not know them all'}): install nvidia-ml-py in this environment"
        )
    return [gpu["uuid"] for gpu in devices[:count]]


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
    """``fp32`` or ``tf32``, which rounds 1 + 2^-12 to 1: how a product is really computed."""
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
    facts.update(device_name=_details().get("device_name"), device_uuid=devices.uuid)
    facts.update(cuda=build.get("cuda_version"), cudnn=build.get("cudnn_version"))
    return facts


class TensorflowSession(Resumable):
    """The half of a :class:`dlperf_hpc.train.session.Session` that no TensorFlow back end does its
    own way. One that derives from it writes :meth:`join`, :meth:`make_replicas`,
    :meth:`step_functions` and :meth:`close`. ``model`` is built within what :meth:`join` returns;
    ``variables`` are what is trained of it."""

    def __init__(self, case: Case, world: World, workload: WorkloadDeclaration) -> None:
        self.case = case
        self.world = world
        self.devices = choose_devices(case, world)
        self.place = take_place(case, self.devices.uuid)
        scope = self.join()
        set_precision(case, self.devices)
        count = len(self.devices.names)
        with scope, tf.device(self.devices.names[0]):
            self.model = workload.build("tensorflow", case)
        self.variables = list(self.model.trainable_variables)
        self.parameters = sum(v.shape.num_elements() for v in self.variables)
        self._feed = open_feed(case, world, workload, self._parted, count)
        mine = range(count * world.rank, count * (world.rank + 1))
        batches = (workload.batch(case, number) for number in mine)
        placed = self._feed.next_batch() if self._feed else self._placed(batches)
        self._micro_steps = 0
        self._rate: tuple[float, Any] = (float("nan"), None)
        self._loss = tf.zeros(())
        self.replicas = self.make_replicas()
        self._steps = {on: self.step_functions() for on in (True, False)}
        self.set_all_reduce(True)
        self._inputs = self.distribute(placed)
        self._rehearse()
        self.open_window(0)

    def join(self) -> contextlib.AbstractContextManager[Any]:
        """Meet the other ranks; the context in which the model is made."""
        raise NotImplementedError

    def make_replicas(self) -> Sequence[Replica]:
        """One for each of ``devices``."""
        raise NotImplementedError

    def step_functions(self) -> tuple[Any, Any]:
        """Two new functions. One of a micro-batch that does not end an accumulation, and of its
        place: 0 for the one that begins it, else 1. The other of one that does, and of the learning
        rate for the optimizer's step. Both give the loss."""
        raise NotImplementedError

    def distribute(self, batches: list[dict[str, Any]]) -> Any:
        """What the steps are given of one batch per device."""
        return batches[0]

    def _placed(self, batches: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        placed = []
        for arrays, device in zip(batches, self.devices.names):
            with tf.device(device):
                placed.append({name: tf.constant(array) for name, array in arrays.items()})
        return placed

    def _parted(self, arrays: Mapping[str, Any]) -> list[dict[str, Any]]:
        """One batch of the feed, which is all devices', as one on each."""
        size = self.case.batch_size
        starts = range(0, size * len(self.devices.names), size)
        return self._placed(
            {name: array[start : start + size] for name, array in arrays.items()}
            for start in starts
        )

    def iterate(self) -> None:
        """One micro-batch; on every k-th the gradients are averaged over ranks and applied."""
        inputs = self.distribute(self._feed.next_batch()) if self._feed else self._inputs
        place = self._micro_steps % self.case.accumulation
        self._micro_steps += 1
        if place + 1 < self.case.accumulation:
            self._loss = self._micro_step(inputs, min(place, 1))
            return
        self._loss = self._last_step(inputs, self._learning_rate())
        self._optimizer_steps += 1

    def _rehearse(self) -> None:
        """Run each step function once, so that none is traced or compiled in the window, where the
        first optimizer step may be; with a rate of 0, and what it leaves behind is wiped out."""
        for place in range(min(self.case.accumulation - 1, 2)):
            self._micro_step(self._inputs, place)
        self._last_step(self._inputs, self._rate_tensor(0.0))
        for replica in self.replicas:
            replica.reset()

    def _learning_rate(self) -> Any:
        update = self._micro_steps // self.case.accumulation - 1
        return self._rate_tensor(learning_rate(self.case.optimizer.lr, self.case.schedule, update))

    def _rate_tensor(self, value: float) -> Any:
        """A tensor, since of numbers each would be traced anew; the last one, if it will do."""
        if value != self._rate[0]:
            with tf.device("CPU:0"):
                self._rate = (value, tf.constant(value, tf.float32))
        return self._rate[1]

    def set_all_reduce(self, on: bool) -> bool:
        """Choose the step functions that were traced with all-reduce, or those without."""
        for replica in self.replicas:
            replica.reducing = on
        self._micro_step, self._last_step = self._steps[on]
        return True

    def synchronize(self) -> None:
        """Wait for the GPUs; a CPU's work is done when its call returns."""
        if self.devices.gpu:
            tf.test.experimental.sync_devices()

    def open_window(self, iterations: int) -> None:
        """Make room for one mark and one loss per iteration, and for those at the beginning."""
        if self._feed:
            self._feed.open_window()
        self._clock = IterationClock(iterations, loss=self._loss)
        self._optimizer_steps = 0
        self._skipped_before = self._skipped()

    def _skipped(self) -> int:
        return int(self.replicas[0].skipped.numpy())

    def step_times(self) -> list[float]:
        """Seconds of each iteration of the window, on the host's clock."""
        return self._clock.step_times()

    def losses(self) -> list[float]:
        """This rank's loss of each iteration of the window; the mean of its devices'."""
        return [float(loss.numpy()) for loss in self._clock.losses[1:]]

    def counts(self) -> tuple[int, int]:
        """(optimizer steps, skipped ones) in the window."""
        return self._optimizer_steps, self._skipped() - self._skipped_before

    def fingerprint(self) -> float:
        """Sum of magnitudes over all parameters, in double precision."""
        sums = [tf.reduce_sum(tf.cast(tf.abs(v), tf.float64)) for v in self.variables]
        return float(sum(float(s.numpy()) for s in sums))

    def memory_mb(self) -> float:
        """Peak of the GPU's allocator, or of the process's resident set; MiB."""
        if self.devices.gpu:
            info = tf.config.experimental.get_memory_info(self.devices.names[0])
            return float(info["peak"]) / 2**20
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    def write_state(self, directory: Path) -> None:
        """This rank's part of a checkpoint."""
        path = rank_file(directory, self.world.rank, "npz")
        np.savez(path, *(variable.numpy() for variable in self._state()))

    def read_state(self, directory: Path) -> None:
        """Take this rank's part of a checkpoint."""
        path = rank_file(directory, self.world.rank, "npz")
        with np.load(path, allow_pickle=False) as arrays:
            for number, variable in enumerate(self._state()):
                variable.assign(arrays[f"arr_{number}"])  # savez's name for it

    def _state(self) -> list[Any]:
        return [variable for replica in self.replicas for variable in replica.variables]

    def facts(self) -> dict[str, Any]:
        """Device, versions, flags, and the size of what is trained."""
        return {**device_facts(self.devices), **self.place, **self.training_facts()}

    def close(self) -> None:
        """Leave the other ranks."""
        raise NotImplementedError
