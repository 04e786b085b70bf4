"""Each launcher's variables, as every part of the package reads them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from dlperf_hpc.errors import WorldError
from dlperf_hpc.model.case import Case, Topology
from dlperf_hpc.timer import config
from dlperf_hpc.train.probe import __main__ as probe
from dlperf_hpc.train.probe.node import LAUNCHERS, TORCHRUN, cannot_compile, gpus, launched
from dlperf_hpc.train.program import launching
from dlperf_hpc.train.ranks import World, check, is_without_mpi, launcher_rank

SRUN = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
}
ON_TWO_NODES = {"SLURM_JOB_NODELIST": "n[1-2]"}
# One process for each of two nodes, which starts four by another launcher there.
ONE_FOR_EACH_NODE = {
    "SLURM_PROCID": "1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}
PMI = {"PMI_RANK": "5", "PMI_SIZE": "8"}
MPICH = {**PMI, "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
OPEN_MPI, MVAPICH = (
    {
        f"{name}_COMM_WORLD_RANK": "5",
        f"{name}_COMM_WORLD_SIZE": "8",
        f"{name}_COMM_WORLD_LOCAL_RANK": "1",
        f"{name}_COMM_WORLD_LOCAL_SIZE": "4",
    }
    for name in ("OMPI", "MV2")
)
TOLD = {
    "srun": SRUN,
    "srun --mpi=pmi2": {**SRUN, **PMI},
    "srun --mpi=pmix": {**SRUN, "PMIX_RANK": "5"},
    "srun where no size came through PMI": {**SRUN, "PMI_RANK": "0"},
    "mpiexec": MPICH,
    "mpiexec over srun's daemons": {**ONE_FOR_EACH_NODE, **MPICH},
    "mpiexec in a batch script": {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", **MPICH},
    "aprun": {**PMI, "PMI_LOCAL_RANK": "1", "PMI_LOCAL_SIZE": "4"},
    "mpirun": OPEN_MPI,
    "mpirun over srun's daemons": {**ONE_FOR_EACH_NODE, **OPEN_MPI, "PMIX_RANK": "5"},
    "mpirun_rsh": MVAPICH,
    "flux run": {"FLUX_TASK_RANK": "5", "FLUX_JOB_SIZE": "8", "FLUX_TASK_LOCAL_ID": "1"},
    "jsrun": {
        "JSM_NAMESPACE_RANK": "5",
        "JSM_NAMESPACE_SIZE": "8",
        "JSM_NAMESPACE_LOCAL_RANK": "1",
    },
}
TELL_HOW_MANY_ON_A_NODE = TOLD.keys() - {"flux run", "jsrun"}


def case(topology: str, launch: str = "") -> Case:
    found = Topology.parse(topology)
    more = {"processes_per_node": found.gpus_per_node, "launch": launch} if launch else {}
    return Case("mine", "toy", found, "fp32", 4, 0, **more)  # type: ignore[arg-type]


def facts_of_a_rank(folder: Path, rank: int) -> dict[str, object]:
    arguments = argparse.Namespace(
        collectives=0.0, directory=str(folder), token="t", patience=0.0, modules="", checkout=False
    )
    return probe.node_facts(arguments, rank)


@pytest.mark.parametrize("started_by", TOLD)
def test_every_caller_is_told_alike(
    started_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {**ON_TWO_NODES, **TOLD[started_by]}
    told = launched(env)
    assert (told.rank, told.size, told.local_rank, told.whole) == (5, 8, 1, True)
    assert launcher_rank(env) == 5
    with pytest.raises(WorldError, match="the launcher started 8 ranks"):
        check(World(0, ("n1",)), case("2n4g"), env)
    with pytest.raises(WorldError, match="never find each other"):
        is_without_mpi({**env, "DLPERF_MPI": "none"})
    where = launching.discover(case("2n4g", "rank"), env)
    assert (where.rank, where.size, where.local_rank, where.node_rank) == (5, 8, 1, 1)
    timed = config.launched(env)
    topology = Topology(2, 4) if started_by in TELL_HOW_MANY_ON_A_NODE else None
    assert (timed.rank, timed.size, timed.topology) == (5, 8, topology)
    with monkeypatch.context() as patch:
        patch.setattr(probe, "gpus", dict)
        for name in {name for row in (TORCHRUN, *LAUNCHERS) for name in row if name}:
            patch.delenv(name, raising=False)
        for name, value in env.items():
            patch.setenv(name, value)
        facts = facts_of_a_rank(tmp_path, 5)
    assert (facts["local_rank"], facts["told"]) == (1, 8)


def test_torchruns_variables_are_a_programs_alone() -> None:
    """A shell may have left them: none of our own tasks is started by torchrun."""
    left = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    env = {**SRUN, **ON_TWO_NODES, **left}
    assert launcher_rank(env) == 5
    assert launching.discover(case("2n4g", "rank"), env).rank == 5
    assert (config.launched(env).rank, config.launched(env).size) == (0, 1)


@pytest.mark.parametrize(
    ("env", "rank", "size"),
    [
        ({}, None, None),
        ({"PMIX_RANK": "3"}, 3, None),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, 0, 8),
        ({"PMI_RANK": "9", "PMI_SIZE": "8"}, 9, 8),  # they do not belong together
        ({"PMI_RANK": "²", "PMI_SIZE": "12345678", "OMPI_COMM_WORLD_RANK": " 1"}, None, None),
        ({"SLURM_PROCID": "-1", "SLURM_STEP_NUM_TASKS": "1_0"}, None, None),
    ],
)
def test_what_no_launcher_tells_whole(
    env: dict[str, str], rank: int | None, size: int | None
) -> None:
    told = launched(env)
    assert (told.rank, told.size, told.whole) == (rank, size, False)
    assert (config.launched(env).rank, config.launched(env).size) == (0, 1)
    with pytest.raises(WorldError):
        launching.discover(case("2n4g", "rank"), env)


@pytest.mark.parametrize("count", ["4,2", "4(x1),2", "", "x"])
def test_ranks_that_lie_unevenly_have_no_topology(count: str) -> None:
    env = {**SRUN, "SLURM_STEP_NUM_TASKS": "6", "SLURM_STEP_TASKS_PER_NODE": count}
    assert config.launched(env).size == 6 and config.launched(env).topology is None


NVML = SimpleNamespace(
    NVMLError=KeyError,
    nvmlInit=lambda: None,
    nvmlDeviceGetCount=lambda: 2,
    nvmlDeviceGetHandleByIndex=lambda index: f"GPU-{index}",
    nvmlDeviceGetUUID=lambda handle: handle,
    nvmlDeviceGetName=lambda _: "NVIDIA H100 80GB HBM3",
    nvmlDeviceGetMaxMigDeviceCount=lambda handle: 7 * (handle == "GPU-1"),
    nvmlDeviceGetMigDeviceHandleByIndex=lambda _, index: {0: "MIG-a", 1: "MIG-b"}[index],
)
"""Two GPUs, the second in two slices, of a library that is faked."""


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        (None, ["GPU-0", "GPU-1"]),
        ("1", ["GPU-1"]),
        ("GPU-0,MIG-b", ["GPU-0", "MIG-b"]),
        ("MIG-a,MIG-b", ["MIG-a", "MIG-b"]),
        ("MIG-GPU-1/3/0", ["MIG-GPU-1/3/0"]),
        ("MIG-c", []),
        ("-1", []),
        ("", []),
    ],
)
def test_what_the_words_of_cuda_visible_devices_let_through(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, uuids: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", NVML)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = gpus()
    assert found["source"] == "NVML"
    assert [device["uuid"] for device in found["devices"]] == uuids


def test_what_torch_compile_lacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "Python.h").touch()
    (tmp_path / "gcc").touch(0o755)
    monkeypatch.setattr("sysconfig.get_path", lambda _name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert cannot_compile() == []
    (tmp_path / "gcc").unlink()
    (tmp_path / "Python.h").unlink()
    assert len(cannot_compile()) == 2
    monkeypatch.setenv("CC", "icx")
    assert cannot_compile() == [str(tmp_path / "Python.h")]
