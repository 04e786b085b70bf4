"""TensorFlow's own data parallelism: MultiWorkerMirroredStrategy, or MirroredStrategy on one node.
NCCL on GPUs, RING over gRPC on CPUs."""

from __future__ import annotations

from collections.abc import Iterator

from dlperf_hpc.model.case import Case, Option
from dlperf_hpc.sweepfile.declarations import BackendDeclaration
from dlperf_hpc.train.backends import ALIKE, XLA
from dlperf_hpc.train.session import opener

_CURE = "make an environment with it: dlperf env make tensorflow"


def check(case: Case) -> Iterator[tuple[str, str]]:
    """What the strategy cannot do on the case's topology."""
    topology, processes, strategy = case.topology, case.ranks_per_node, case.option("strategy")
    if strategy == "mirrored" and (topology.nodes, processes) != (1, 1):
        yield (
            "strategy",
            f"'mirrored' is one process for the devices of one node, not {processes} on each of"
            f" {topology.nodes}: set processes_per_node = 1, and 'multi_worker' for several nodes",
        )
    several = processes < topology.gpus_per_node
    if strategy == "multi_worker" and several and case.device == "cpu":
        yield (
            "processes_per_node",
            "1 is invalid on CPUs: MultiWorkerMirroredStrategy drives one CPU device per process",
        )


BACKENDS = (
    BackendDeclaration(
        name="tensorflow",
        doc=__doc__,
        framework_name="TensorFlow",
        library="tensorflow",
        **ALIKE,
        open_session=opener("tensorflow.strategy", "StrategySession", "TensorFlow", _CURE),
        one_per_node=True,
        check=check,
        options=(
            Option(
                "strategy",
                "multi_worker",
                "multi_worker, or mirrored: one process for all devices of one node",
                ("multi_worker", "mirrored"),
            ),
            XLA,
        ),
    ),
)
