"""The variables by which launchers tell a process its place among those that they started.

The table is the only one: the worker, the supervisor of a user's program, doctor's probe and the
Timer read it. The names are those of torchrun's, Open MPI's, MVAPICH's, MPICH's (Intel MPI's, Cray
PALS'), Flux', IBM's jsrun's and Slurm's documents (srun(1), "output environment variables").
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class Launcher(NamedTuple):
    """Names of variables: rank, number of processes, rank on this node, processes on this node; ''
    where a launcher has none."""

    rank: str
    size: str
    local_rank: str = ""
    local_size: str = ""


TORCHRUN = Launcher("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
"""It starts users' programs and none of our own tasks: these do not read its variables, which a
user's shell or environment may have left."""

# A launcher inside another's task comes before it: mpiexec starts its processes below srun's,
# whose variables these inherit.
LAUNCHERS = (
    Launcher("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
             "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    Launcher("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE",
             "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    Launcher("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    Launcher("PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"),
    Launcher("PMIX_RANK", "PMIX_SIZE"),
    Launcher("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID"),
    Launcher("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK"),
    Launcher("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
)  # fmt: skip
_STEP_SIZE = "SLURM_STEP_NUM_TASKS"
_JOB_SIZE = "SLURM_NTASKS"  # of the whole job, of which a step may be a part
_NUMBER = re.compile(r"([0-9]{1,7})(?:\(x[0-9]{1,7}\))?", re.ASCII)  # 4(x2): 4 on each of 2 nodes


class Launched(NamedTuple):
    """What the launcher tells of this process; None: nothing.

    ``whole``: one launcher tells rank and size, and the other figures agree with it. Else each is
    what any launcher tells, and they may not belong together.
    """

    rank: int | None
    size: int | None
    local_rank: int | None
    local_size: int | None
    whole: bool


def launched(
    env: Mapping[str, str] = os.environ, launchers: Sequence[Launcher] = LAUNCHERS
) -> Launched:
    """This process's place, whether or not its MPI library listens to the launcher."""
    for each in launchers:
        rank, size = _number(env, each.rank), _number(env, each.size)
        if rank is not None and size is not None and rank < size:
            alike = [row for row in launchers if _tells(env, row, rank, size)]
            local_rank = _first(env, (row.local_rank for row in alike))
            local_size = _first(env, (row.local_size for row in alike))
            return Launched(rank, size, local_rank, local_size, True)
    return Launched(
        rank=_first(env, (each.rank for each in launchers)),
        size=_first(env, (*(each.size for each in launchers), _JOB_SIZE)),
        local_rank=_first(env, (each.local_rank for each in launchers)),
        local_size=_first(env, (each.local_size for each in launchers)),
        whole=False,
    )


def counts(env: Mapping[str, str] = os.environ) -> dict[str, int]:
    """Every count of processes that some launcher tells, by the variable's name."""
    names = [name for each in (TORCHRUN, *LAUNCHERS) for name in (each.size, each.local_size)]
    if _number(env, _STEP_SIZE) is None:
        names.append(_JOB_SIZE)
    numbers = {name: _number(env, name) for name in names}
    return {name: number for name, number in numbers.items() if number is not None}


def _tells(env: Mapping[str, str], launcher: Launcher, rank: int, size: int) -> bool:
    return (_number(env, launcher.rank), _number(env, launcher.size)) == (rank, size)


def _first(env: Mapping[str, str], names: Iterable[str]) -> int | None:
    for name in names:
        number = _number(env, name)
        if number is not None:
            return number
    return None


def _number(env: Mapping[str, str], name: str) -> int | None:
    found = _NUMBER.fullmatch(env.get(name, ""))
    return int(found[1]) if found else None
