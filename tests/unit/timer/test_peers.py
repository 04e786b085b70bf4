"""What launchers tell a process of the others."""

from __future__ import annotations

import pytest

from dlperf_hpc.model.case import Topology
from dlperf_hpc.timer.config import launched

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}
SRUN = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "6", "SLURM_STEP_TASKS_PER_NODE": "3(x2)"}


@pytest.mark.parametrize(
    ("env", "rank", "size", "topology"),
    [
        ({}, 0, 1, "1n1g"),
        (TORCHRUN, 5, 8, "2n4g"),
        (SRUN, 3, 6, "2n3g"),
        # torchrun once on each node under srun: its own variables count.
        ({**SRUN, **TORCHRUN}, 5, 8, "2n4g"),
        ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "4,2"}, 3, 6, None),
        # A batch script that starts one process itself: Slurm tells of the allocation only.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, 0, 1, "1n1g"),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}, 1, 2, "1n2g"),
        ({"PMI_RANK": "3", "PMI_SIZE": "6", **SRUN}, 3, 6, "2n3g"),
        ({"PMI_RANK": "3", "PMI_SIZE": "6"}, 3, 6, None),
        (
            {f"OMPI_COMM_WORLD_{k}": v for k, v in
             {"RANK": "1", "SIZE": "4", "LOCAL_SIZE": "2"}.items()}, 1, 4, "2n2g",
        ),
        ({"RANK": "8", "WORLD_SIZE": "8"}, 0, 1, "1n1g"),
        ({"RANK": "x", "WORLD_SIZE": "²"}, 0, 1, "1n1g"),
        ({"RANK": "0", "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "4"}, 0, 6, None),
    ],
)  # fmt: skip
def test_the_launchers_variables(
    env: dict[str, str], rank: int, size: int, topology: str | None
) -> None:
    told = launched(env)
    assert (told.rank, told.size) == (rank, size)
    assert told.topology == (None if topology is None else Topology.parse(topology))
