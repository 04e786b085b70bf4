"""What is to be tried: of each environment the widest job that the sweep asks it for, cut short."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dlperf_hpc.launch.site import Site
from dlperf_hpc.records.manifest import Array
from dlperf_hpc.spec.case import Case, Run, Topology
from dlperf_hpc.train.registry import registry

LIMIT_S = 900  # of a job; it takes seconds, and its ranks bound what they do themselves


@dataclass(frozen=True)
class Target:
    """A job to try: ``array`` has its one task; ``devices`` are those that the cases name."""

    environment: str
    array: Array
    modules: tuple[str, ...]
    devices: frozenset[str]

    @property
    def topology(self) -> Topology:
        """Nodes and GPUs per node of the job."""
        return self.array.topology

    @property
    def ranks(self) -> int:
        """Processes that should find each other."""
        return self.array.tasks[0].case.ranks

    @property
    def wants_gpus(self) -> bool:
        """Whether there is a case that takes GPUs where there are any."""
        return self.devices != {"cpu"}


def targets_of(arrays: Sequence[Array], nodes: int) -> list[Target]:
    """One of each environment in the sweep, on at most ``nodes`` nodes."""
    names = dict.fromkeys(array.environment for array in arrays)
    return [_of([array for array in arrays if array.environment == name], nodes) for name in names]


def _of(arrays: Sequence[Array], nodes: int) -> Target:
    cases = [run.case for array in arrays for run in array.tasks]
    backends = {registry().backends[case.framework] for case in cases}
    libraries = {backend.library for backend in backends}
    more = {name for backend in backends for name in backend.modules}
    case = max(cases, key=lambda case: (min(nodes, case.topology.nodes), case.ranks_per_node))
    topology = replace(case.topology, nodes=min(nodes, case.topology.nodes))
    return Target(
        environment=case.environment,
        array=_array(replace(case, topology=topology), max(a.time_limit_s for a in arrays)),
        modules=("dlperf_hpc", "mpi4py", *sorted(libraries), *sorted(more)),
        devices=frozenset(case.device for case in cases),
    )


def targets_of_site(site: Site, topology: Topology, limit_s: int = LIMIT_S) -> list[Target]:
    """Without a sweep: each environment of the profile, and what every back end needs.

    ``limit_s`` is what the partition allows.
    """
    modules = ("dlperf_hpc", "mpi4py")
    return [
        Target(name, _array(_anything(name, topology), limit_s), modules, frozenset())
        for name in site.environment or ["default"]
    ]


def _anything(environment: str, topology: Topology) -> Case:
    """A case as the executors want one; it is never run."""
    return Case(
        framework="ddp",
        model="bert-tiny",
        topology=topology,
        precision="fp32",
        batch_size=1,
        seq_len=1,
        environment=environment,
    )


def _array(case: Case, limit_s: int) -> Array:
    token = f"dlperf-doctor-{secrets.token_hex(6)}"
    name = f"doctor-{case.topology}-{case.environment}"
    tasks = (Run(case, 1),)
    return Array(name, token, case.topology, case.environment, min(limit_s, LIMIT_S), tasks)
