"""Horovod under TensorFlow. Imports both: never loaded on the login node."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from dlperf_hpc.train.backends.horovod import check_world, horovod_facts
from dlperf_hpc.train.tensorflow.replica import Replica, Tensors
from dlperf_hpc.train.tensorflow.session import TensorflowSession


class HorovodTensorflowSession(TensorflowSession):
    """Model, data and optimizer of one rank; see :class:`dlperf_hpc.train.session.Session`."""

    def join(self) -> contextlib.AbstractContextManager[Any]:
        """Horovod takes the MPI world that is already there."""
        hvd.init()
        check_world(hvd, self.world)
        return contextlib.nullcontext()

    def make_replicas(self) -> Sequence[Replica]:
        """The only one; rank 0's parameters are everybody's first."""
        hvd.broadcast_variables(self.variables, root_rank=0)
        chosen = self.case.option("fp16_compression")
        self._compression = hvd.Compression.fp16 if chosen else hvd.Compression.none
        with tf.device(self.devices.names[0]):
            self._replica = Replica(
                self.case,
                self.world.rank,
                self.model,
                self.variables,
                self._average,
                xla=self.case.option("xla"),
                every=self.case.option("allreduce") == "every_micro_batch",
            )
        return [self._replica]

    def step_functions(self) -> tuple[Any, Any]:
        """The replica's own."""
        return tf.function(self._replica.micro_step), tf.function(self._replica.last_step)

    def _average(self, gradients: Tensors) -> Tensors:
        """Tensor by tensor: Horovod fuses them as they come, while others are still computed."""
        return [
            hvd.allreduce(gradient, op=hvd.Average, compression=self._compression, name=f"g{i}")
            for i, gradient in enumerate(gradients)
        ]

    def facts(self) -> dict[str, Any]:
        """What all TensorFlow sessions tell, and how Horovod was built."""
        return {**super().facts(), **horovod_facts(hvd)}

    def close(self) -> None:
        """End Horovod's thread; MPI stays."""
        hvd.shutdown()
