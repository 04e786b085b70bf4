"""The other processes of a timed loop: how many the launcher started, and how to meet them.

Met are those of a torch.distributed group, else of an initialised mpi4py: whichever the program has
made. Nothing is initialised here.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dlperf_hpc.model.case import Topology
from dlperf_hpc.train.probe import launchers
from dlperf_hpc.train.ranks import Alone, World


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
class ProcessGroup:
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


def launched(env: Mapping[str, str] = os.environ) -> ProcessGroup:
    """All processes as the launcher tells them, a device for each; alone where none tells any."""
    told = launchers.launched(env, (launchers.TORCHRUN, *launchers.LAUNCHERS))
    if not told.whole or told.rank is None or told.size is None:
        return ProcessGroup(0, 1, Topology(1, 1), None)
    topology = _topology(told.size, told.local_size or 0)
    return ProcessGroup(told.rank, told.size, topology, None)


def _topology(size: int, local: int) -> Topology | None:
    """The topology of ``size`` processes, ``local`` of them on each node; 0 is not known."""
    if size == 1:
        return Topology(1, 1)
    if not 0 < local <= 999 or size % local or size // local > 99999:
        return None
    return Topology(size // local, local)


def find(env: Mapping[str, str] = os.environ, meet: bool = True) -> ProcessGroup:
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
        return ProcessGroup(told.rank, told.size, told.topology, None, remark, uneven)
    comm = groups[0] if groups else Alone()
    world = World(comm.Get_rank(), tuple(comm.allgather(socket.gethostname())), comm)
    per_node = {host: world.hosts.count(host) for host in world.nodes}
    if len(set(per_node.values())) == 1:
        topology = Topology(len(per_node), world.local_size)
        return ProcessGroup(world.rank, world.size, topology, world)
    uneven = f"they lie unevenly on nodes, {per_node}"
    return ProcessGroup(world.rank, world.size, None, world, uneven=uneven)
