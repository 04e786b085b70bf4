"""One process without MPI: only where it is asked for, and never in place of several."""

from __future__ import annotations

import socket

import pytest

from dlperf_hpc.errors import WorldError
from dlperf_hpc.train import joblog
from dlperf_hpc.train.ranks import alone, discover, is_without_mpi

ASKED = {"DLPERF_MPI": "none"}


def test_a_world_of_one_has_what_a_world_has() -> None:
    world = discover(ASKED)
    assert (world.rank, world.size, world.host) == (0, 1, socket.gethostname())
    world.barrier()
    assert world.broadcast({"a": 1}) == {"a": 1} and world.gather("x") == ["x"]
    assert (alone().Get_rank(), alone().Get_size()) == (0, 1)


def test_provenance_says_that_there_was_no_mpi() -> None:
    told = joblog.provenance(discover(ASKED))["mpi"]
    assert told == "none: one process, as DLPERF_MPI=none asks"


@pytest.mark.parametrize("name", ["", "mpi"])
def test_nothing_else_asks_for_it(name: str) -> None:
    assert not is_without_mpi({}) and not is_without_mpi({"DLPERF_MPI": name})


def test_a_value_that_is_none_of_both_is_refused() -> None:
    with pytest.raises(WorldError, match="there are only none and mpi"):
        is_without_mpi({"DLPERF_MPI": "no"})


@pytest.mark.parametrize(
    "name",
    [
        *("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_SIZE"),
        *("MPI_LOCALNRANKS", "MV2_COMM_WORLD_SIZE", "JSM_NAMESPACE_SIZE", "WORLD_SIZE"),
    ],
)
def test_many_lonely_ranks_are_refused_whatever_launched_them(name: str) -> None:
    with pytest.raises(WorldError, match=f"{name}=4.*never find each other") as caught:
        discover({**ASKED, name: "4"})
    assert caught.value.fault == "mpi_alone"
    assert is_without_mpi({**ASKED, name: "1"})


def test_a_step_of_one_within_a_larger_job_is_one_process() -> None:
    assert is_without_mpi({**ASKED, "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "8"})
