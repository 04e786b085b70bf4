"""The other processes of a timed loop: how many the launcher started, and how to meet them.

Met are those of a torch.distributed group, else of an initialised mpi4py: whichever the program has
made. Nothing is initialised here. What launchers tell is in their own documents: torchrun's
environment variables, Open MPI's ``OMPI_COMM_WORLD_*``, PMI's ``PMI_*`` with MPICH's
``MPI_LOCALNRANKS``, and srun's ``SLURM_*`` (srun(1), "output environment variables").
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dlperf_hpc.sweepfile.case import Topology
from dlperf_hpc.train.ranks import Alone, World

# Rank, size, and how many on this node. A launcher inside another's task comes before it: torchrun
# and mpiexec start their processes below srun's, whose variables these inherit.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
    ("PMIX_RANK", "SLURM_STEP_NUM_TASKS", ""),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ""),
)
_EVEN = re.compile(r"([0-9]{1,6})(?:\(x[0-9]{1,6}\))?", re.ASCII)  # SLURM_STEP_TASKS_PER_NODE


@dataclass(frozen=True)
class Launched:
    """What the launcher tells. ``topology`` counts a device for each process; None where it does
    not tell how they lie on nodes, or they lie unevenly."""

    rank: int
    size: int
    topology: Topology | None


def launched(env: Mapping[str, str] = os.environ) -> Launched:
    """This process's place by its environment variables; alone where no launcher tells one."""
    for rank, size, local in _LAUNCHERS:
        told = (env.get(rank, ""), env.get(size, ""))
        if all(text.isascii() and text.isdigit() and len(text) < 8 for text in told):
            number, count = map(int, told)
            if number < count:
                return Launched(number, count, _topology(count, _local_size(env, local, count)))
    return Launched(0, 1, Topology(1, 1))


def _local_size(env: Mapping[str, str], name: str, size: int) -> int:
    """Processes on this node and on each; 0 where it is not told."""
    text = env.get(name, "")
    if env.get("SLURM_STEP_NUM_TASKS") == str(size) and not text.isdigit():
        match = _EVEN.fullmatch(env.get("SLURM_STEP_TASKS_PER_NODE", ""))
        text = match[1] if match else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 0


def _topology(size: int, local: int) -> Topology | None:
    if size == 1:
        return Topology(1, 1)
    if not 0 < local <= 999 or size % local or size // local > 99999:
        return None
    return Topology(size // local, local)


class _Torch:
    """The default group of torch.distributed, with the calls of mpi4py's that a World has."""

    def __init__(self, distributed: Any) -> None:
        self._distributed = distributed

    def Get_rank(self) -> int:
        return int(self._distributed.get_rank())

    def Get_size(self) -> int:
        return int(self._distributed.get_world_size())

    def Barrier(self) -> None:
        self._distributed.barrier()

    def bcast(self, value: Any, root: int = 0) -> Any:
        values = [value]
        self._distributed.broadcast_object_list(values, src=root)
        return values[0]

    def allgather(self, value: Any) -> list[Any]:
        values = [None] * self.Get_size()
        self._distributed.all_gather_object(values, value)
        return values


def _groups() -> list[Any]:
    """Communicators that the program has made."""
    found: list[Any] = []
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        found.append(_Torch(distributed))
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        found.append(mpi.COMM_WORLD)
    return found


@dataclass(frozen=True)
class Others:
    """All processes of the loop, this one among them.

    ``world`` is None where the launcher started several and they cannot be met; ``remark`` then
    says so. ``topology`` is None where it is not known, or no topology (uneven); ``uneven`` says
    why.
    """

    rank: int
    size: int
    topology: Topology | None
    world: World | None
    remark: str = ""
    uneven: str = ""


def find(env: Mapping[str, str] = os.environ, meet: bool = True) -> Others:
    """The others, as far as they can be met now; every process of the loop calls it. Without
    ``meet`` only what the launcher tells: as a program ends nobody may be there any more."""
    told = launched(env)
    groups = [comm for comm in _groups() if comm.Get_size() > 1] if meet else []
    if not groups and told.size > 1:
        remark = (
            f"the launcher started {told.size} processes, which did not meet, as the program had"
            " initialised neither torch.distributed nor mpi4py by then. The times are those of rank"
            " 0, and every process is taken to have done as many samples"
        )
        uneven = "" if told.topology else "the launcher does not tell how they lie on nodes"
        return Others(told.rank, told.size, told.topology, None, remark, uneven)
    comm = groups[0] if groups else Alone()
    world = World(comm.Get_rank(), tuple(comm.allgather(socket.gethostname())), comm)
    per_node = {host: world.hosts.count(host) for host in world.nodes}
    if len(set(per_node.values())) == 1:
        topology = Topology(len(per_node), world.local_size)
        return Others(world.rank, world.size, topology, world)
    uneven = f"they lie unevenly on nodes, {per_node}"
    return Others(world.rank, world.size, None, world, uneven=uneven)
