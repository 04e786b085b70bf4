"""Ranks, hosts and local ranks through mpi4py, checked against the topology of the case; and which
of the GPUs that a rank sees are its own. The same for every framework."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from dlperf_hpc.errors import DeviceError, WorldError
from dlperf_hpc.model.case import Case
from dlperf_hpc.records.layout import MPI_VARIABLE, NO_MPI
from dlperf_hpc.train.probe.node import (
    counts,
    device_file,
    initialised_mpi,
    launched,
    share_out,
)


def communicator(rank: int, size: int, allgather: Callable[[Any], list[Any]]) -> Any:
    """The calls of mpi4py's that a World has, all by ``allgather``, which gives every process the
    values of all, in order of rank."""
    return SimpleNamespace(
        Get_rank=lambda: rank,
        Get_size=lambda: size,
        Barrier=lambda: allgather(None),
        bcast=lambda value, root=0: allgather(value)[root],
        allgather=allgather,
    )


def alone() -> Any:
    """A communicator of one process."""
    return communicator(0, 1, lambda value: [value])


@dataclass(frozen=True)
class World:
    """This process's place. ``hosts[r]`` is rank r's host; nodes are numbered by first rank.
    ``without_mpi`` says of a process that is alone, by request, why there is no MPI."""

    rank: int
    hosts: tuple[str, ...]
    comm: Any = field(repr=False, compare=False, default=None)
    without_mpi: str = ""

    @property
    def size(self) -> int:
        """Processes over all nodes."""
        return len(self.hosts)

    @property
    def host(self) -> str:
        """This process's host."""
        return self.hosts[self.rank]

    @property
    def nodes(self) -> list[str]:
        """Hosts in order of their first rank."""
        return list(dict.fromkeys(self.hosts))

    @property
    def local_rank(self) -> int:
        """Number of this process among those on its host: which GPU it takes."""
        return self.hosts[: self.rank].count(self.host)

    @property
    def local_size(self) -> int:
        """Processes on this host."""
        return self.hosts.count(self.host)

    @property
    def address(self) -> str:
        """Where rank 0 can be reached by all ranks."""
        return "127.0.0.1" if len(self.nodes) == 1 else self.hosts[0]

    def barrier(self) -> None:
        """Wait for every rank."""
        self.comm.Barrier()

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        return self.comm.bcast(value, root=0)

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in order of rank, on every rank."""
        return list(self.comm.allgather(value))


def launcher_rank(env: Mapping[str, str] = os.environ) -> int:
    """This process's rank as the launcher numbers it, also when MPI does not know; 0 if unsaid."""
    return launched(env).rank or 0


def is_without_mpi(env: Mapping[str, str] = os.environ) -> bool:
    """Whether one process without MPI is requested (``DLPERF_MPI=none``). WorldError if it is and a
    launcher says that there are more: ranks that cannot find each other must not become as many
    runs of one rank. WorldError for any other value, too."""
    choice = env.get(MPI_VARIABLE, "")
    if choice in ("", "mpi"):
        return False
    if choice != NO_MPI:
        raise WorldError(
            f"{MPI_VARIABLE}={choice!r}: there are only {NO_MPI} and mpi (the default)"
        )
    many = [f"{name}={size}" for name, size in counts(env).items() if size > 1]
    if many:
        raise WorldError(
            f"{MPI_VARIABLE}={NO_MPI} asks for one process without MPI, but the launcher says that"
            f" there are more ({', '.join(many)}): without MPI they would never find each other."
            f" Take {MPI_VARIABLE} out of the environment, or start one process",
            fault="mpi_alone",
        )
    return True


def discover(env: Mapping[str, str] = os.environ) -> World:
    """Initialise MPI and learn every rank's host; without MPI a world of one, on request (see
    :func:`is_without_mpi`). WorldError if there is no MPI to be had."""
    if is_without_mpi(env):
        reason = f"none: one process, as {MPI_VARIABLE}={NO_MPI} asks"
        return World(0, (socket.gethostname(),), alone(), reason)
    try:
        MPI = initialised_mpi()
    except (ImportError, RuntimeError) as error:
        raise WorldError(
            f"mpi4py cannot start MPI on {socket.gethostname()}: {error}\n"
            "install mpi4py and an MPI library (pip install mpi4py mpich) in this environment, or"
            " load the site's MPI module in the site profile's setup lines; a run of one rank"
            f" does without where {MPI_VARIABLE}={NO_MPI} is set",
            fault="mpi" if isinstance(error, ModuleNotFoundError) else "mpi_library",
        ) from error
    comm = MPI.COMM_WORLD
    return World(comm.Get_rank(), tuple(comm.allgather(socket.gethostname())), comm)


def check(world: World, case: Case, env: Mapping[str, str] = os.environ) -> None:
    """WorldError unless the world is the topology the case asks for."""
    started = launched(env).size
    if world.size == 1 and started is not None and started > 1:
        raise WorldError(
            f"the launcher started {started} ranks, but each believes it is alone (MPI world size"
            " 1): srun's --mpi does not fit the MPI library of this environment."
            f" `srun --mpi=list` shows what this site has; the library here is {mpi_library()}."
            ' Set mpi = "pmi2" or "pmix" under [environment.<name>] of the site profile'
            " (slurm/<site>.toml)",
            fault="mpi_alone",
        )
    if world.size != case.ranks:
        raise WorldError(
            f"{world.size} ranks started, topology {case.topology} needs {case.ranks}:"
            " the scheduler gave another allocation than asked; see the batch script in jobs/"
        )
    per_node = Counter(world.hosts)
    if list(per_node.values()) != [case.ranks_per_node] * case.topology.nodes:
        raise WorldError(
            f"ranks lie as {dict(per_node)}, topology {case.topology} means {case.ranks_per_node}"
            f" on each of {case.topology.nodes} nodes: check ntasks-per-node and --distribution"
        )


def mpi_library() -> str:
    """First line of what the MPI library says of itself."""
    from mpi4py import MPI

    return str(MPI.Get_library_version()).strip("\0").splitlines()[0].strip()


def refuse_cpus(world: World, framework: str, built_for: str = "") -> None:
    """DeviceError where ``device = "auto"`` would compute on CPUs in silence: no rank's framework
    sees a GPU, but it is built for other GPUs than NVIDIA's, or a rank may open one's file."""
    files = world.gather(device_file())
    there = [f", but {host} has {file}" for file, host in zip(files, world.hosts) if file]
    if not there and not built_for.startswith(("ROCm", "XPU")):
        return
    build = built_for and f" (built for {built_for})"
    raise DeviceError(
        f"{framework}{build} sees no GPU{''.join(there[:1])}: the run would compute on CPUs."
        " Install a build for the GPU and its driver (dlperf_hpc has not been tried on ROCm, and"
        ' has no back end for XPU), or say device = "cpu" if CPUs are meant',
        "gpu",
    )


def gpu_indices(
    world: World, seen: Sequence[Sequence[str]], count: int = 1, nobody: str = "no GPU"
) -> list[int]:
    """Which ``count`` of the GPUs it sees are this rank's, as :func:`.node.share_out` gives them;
    ``seen[r]`` are the UUIDs rank r sees. DeviceError if there are not so many, beginning with
    ``nobody`` where this rank sees none at all."""
    mine = seen[world.rank]
    visible = f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'unset')}"
    if not mine:
        # Where another rank has GPUs, it is not the environment that lacks them.
        fault = "" if any(seen) else "gpu"
        raise DeviceError(f"{nobody} on {world.host} ({visible})", fault)
    neighbours = [rank for rank, host in enumerate(world.hosts) if host == world.host]
    lists = [seen[rank] for rank in neighbours]
    own = share_out([world.host] * len(lists), lists, count)[world.local_rank]
    if own is None:
        different = len({uuid for uuids in lists for uuid in uuids})
        raise DeviceError(
            f"{world.local_size} ranks on {world.host}, {count} GPU{'s' * (count > 1)} each, but"
            f" rank {world.rank} sees {len(mine)} of its GPUs, which other ranks take, and all of"
            f" them together see {different} ({visible}): check how the site profile asks for GPUs"
        )
    return own
