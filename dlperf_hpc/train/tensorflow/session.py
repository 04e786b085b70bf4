"""What every TensorFlow back end's session does alike: devices, marks, counters, facts.

Imports tensorflow: never loaded on the login node, and not before MPI is initialised.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from dlperf_hpc.model.case import Case
from dlperf_hpc.sweepfile.declarations import WorkloadDeclaration
from dlperf_hpc.train.checkpoints import Resumable, rank_file
from dlperf_hpc.train.feeds import open_feed
from dlperf_hpc.train.measurement import IterationClock
from dlperf_hpc.train.ranks import World
from dlperf_hpc.train.schedules import learning_rate
from dlperf_hpc.train.telemetry import take_place
from dlperf_hpc.train.tensorflow.device import choose_devices, device_facts, set_precision
from dlperf_hpc.train.tensorflow.replica import Replica


class TensorflowSession(Resumable):
    """The half of a :class:`dlperf_hpc.train.session.Session` that no TensorFlow back end does its
    own way. One that derives from it writes :meth:`join`, :meth:`make_replicas`,
    :meth:`step_functions` and :meth:`close`.

    ``model`` is built within what :meth:`join` returns; ``variables`` are what is trained of it.
    """

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
        parts = range(len(self.devices.names))
        return self._placed(
            {name: array[i * size : (i + 1) * size] for name, array in arrays.items()}
            for i in parts
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
        first optimizer step may be; with a rate of 0, and what it leaves behind is wiped out.
        """
        for place in range(min(self.case.accumulation - 1, 2)):
            self._micro_step(self._inputs, place)
        self._last_step(self._inputs, self._rate_tensor(0.0))
        for replica in self.replicas:
            replica.reset()

    def _learning_rate(self) -> Any:
        """The rate of this update."""
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

    def mark(self) -> None:
        """A host stamp: TensorFlow has no events on the device's time line for a program."""
        self._clock.mark(self._loss)

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

    def data_wait_s(self) -> float:
        """Synthetic data lies on the device before the window opens: 0 then."""
        return self._feed.waited_s if self._feed else 0.0

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
        data = self._feed.facts if self._feed else {}
        size = {"parameters": self.parameters}
        return {**device_facts(self.devices), **self.place, **size, **data}

    def close(self) -> None:
        """Leave the other ranks."""
        raise NotImplementedError
