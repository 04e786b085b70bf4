"""TensorFlow's strategies as a session. Imports tensorflow: never loaded on the login node."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from dlperf_hpc.errors import DeviceError, WorldError
from dlperf_hpc.train.ranks import World
from dlperf_hpc.train.tensorflow.replica import Replica, Tensors
from dlperf_hpc.train.tensorflow.session import TensorflowSession

# Below what Linux gives to outgoing connections: no stranger's connection takes one meanwhile.
_PORTS = range(15000, 32000)
_TRIES = 50


def reserve_port(among: Sequence[int] = _PORTS) -> socket.socket:
    """A socket that holds a free port for this process and its user; keep it. Bound alone at first,
    so that it is no other's; then made SO_REUSEADDR, so that gRPC's server can bind the port beside
    it, and another rank's holder cannot. WorldError if none of those tried is free."""
    for port in random.SystemRandom().sample(among, min(_TRIES, len(among))):
        holder = socket.socket()
        try:
            holder.bind(("", port))
        except OSError:
            holder.close()
            continue
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return holder
    raise WorldError(
        f"no free port found on {socket.gethostname()} between {among[0]} and {among[-1]}:"
        f" {_TRIES} were tried"
    )


def cluster(world: World, port: int) -> str:
    """TF_CONFIG of this rank: every rank is a worker, in order, at the port it told."""
    hosts = world.hosts
    if len(world.nodes) == 1:
        hosts = ("127.0.0.1",) * world.size
    workers = [f"{host}:{each}" for host, each in zip(hosts, world.gather(port))]
    task = {"type": "worker", "index": world.rank}
    return json.dumps({"cluster": {"worker": workers}, "task": task})


class StrategySession(TensorflowSession):
    """Model, data and optimizer of one rank; see :class:`dlperf_hpc.train.session.Session`."""

    _port: socket.socket | None = None

    def join(self) -> contextlib.AbstractContextManager[Any]:
        """Meet the other workers over gRPC; variables are mirrored within the strategy's scope."""
        make = {"mirrored": self._mirrored, "multi_worker": self._multi_worker}
        self.strategy = make[self.case.option("strategy")]()
        scope: contextlib.AbstractContextManager[Any] = self.strategy.scope()
        return scope

    def _mirrored(self) -> Any:
        if self.world.size > 1:
            raise WorldError(
                f'strategy "mirrored" is one process for all devices, not {self.world.size}: set'
                ' processes_per_node = 1 on one node, or strategy = "multi_worker"'
            )
        names = [f"/device:{name}" for name in self.devices.names]
        all_reduce = tf.distribute.ReductionToOneDevice
        if self.devices.gpu:
            all_reduce = tf.distribute.NcclAllReduce
        return tf.distribute.MirroredStrategy(names, cross_device_ops=all_reduce())

    def _multi_worker(self) -> Any:
        if not self.devices.gpu and len(self.devices.names) > 1:
            raise DeviceError(
                "MultiWorkerMirroredStrategy drives one CPU device per process, not"
                f" {len(self.devices.names)}: leave processes_per_node out on CPUs"
            )
        if self.world.size > 1:
            self._port = reserve_port()
            os.environ["TF_CONFIG"] = cluster(self.world, self._port.getsockname()[1])
        else:
            os.environ.pop("TF_CONFIG", None)  # somebody else's
        kinds = tf.distribute.experimental.CommunicationImplementation
        options = tf.distribute.experimental.CommunicationOptions(
            implementation=kinds.NCCL if self.devices.gpu else kinds.RING
        )
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)

    def make_replicas(self) -> Sequence[Replica]:
        """One per device, each on the components of the model's variables that lie there: nothing
        but gradients travels between devices."""
        local = list(map(self.strategy.experimental_local_results, self.variables))
        self._replicas = []
        first, xla = self.world.rank * len(local[0]), self.case.option("xla")
        for place, device in enumerate(self.devices.names):
            variables = [components[place] for components in local]
            with tf.device(device):
                self._replicas.append(
                    Replica(self.case, first + place, self.model, variables, _average, xla=xla)
                )
        return self._replicas

    def step_functions(self) -> tuple[Any, Any]:
        """Each runs all of this process's replicas."""
        return tf.function(self._micro), tf.function(self._last)

    def distribute(self, batches: list[dict[str, Any]]) -> Any:
        """One batch, or what ``strategy.run`` hands out to its replicas."""
        if len(batches) == 1:
            return batches[0]

        def own(context: Any) -> Any:
            return batches[context.replica_id_in_sync_group % len(batches)]

        return self.strategy.experimental_distribute_values_from_function(own)

    def _own(self) -> Replica:
        context = tf.distribute.get_replica_context()
        number = int(tf.get_static_value(context.replica_id_in_sync_group))
        return self._replicas[number % len(self._replicas)]

    def _micro(self, batch: Any, place: int) -> Any:
        def step(batch: Any) -> Any:
            return self._own().micro_step(batch, place)

        return self._mean(self.strategy.run(step, args=(batch,)))

    def _last(self, batch: Any, rate: Any) -> Any:
        def step(batch: Any, rate: Any) -> Any:
            return self._own().last_step(batch, rate)

        return self._mean(self.strategy.run(step, args=(batch, rate)))

    def _mean(self, losses: Any) -> Any:
        """Over this process's devices: other processes' are not asked for in the window."""
        local = self.strategy.experimental_local_results(losses)
        return tf.add_n(local) / len(local) if len(local) > 1 else local[0]

    def facts(self) -> dict[str, Any]:
        """What all TensorFlow sessions tell, and the strategy."""
        return {**super().facts(), "strategy": type(self.strategy).__name__}

    def close(self) -> None:
        """Nothing to leave: the process's end closes its server."""
        if self._port is not None:
            self._port.close()


def _average(gradients: Tensors) -> Tensors:
    context = tf.distribute.get_replica_context()
    reduced: Tensors = context.all_reduce(tf.distribute.ReduceOp.MEAN, gradients)
    return reduced
