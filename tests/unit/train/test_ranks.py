"""Who is who: local ranks, nodes and addresses, and every wrong world refused with its reason."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dlperf_hpc.errors import DeviceError, WorldError
from dlperf_hpc.model.case import Case, Topology
from dlperf_hpc.train.probe import node
from dlperf_hpc.train.ranks import World, alone, check, launcher_rank, refuse_cpus

BLOCK = ("a", "a", "b", "b")
CYCLIC = ("a", "b", "a", "b")


def case(topology: str, **more: Any) -> Case:
    return Case("ddp", "bert-tiny", Topology.parse(topology), "fp32", 2, 16, **more)


@pytest.mark.parametrize(
    ("hosts", "local_ranks"),
    [
        (("a",), [0]),
        (BLOCK, [0, 1, 0, 1]),
        (CYCLIC, [0, 0, 1, 1]),
        (("b", "a", "a", "b"), [0, 0, 1, 1]),
    ],
)
def test_local_ranks(hosts: tuple[str, ...], local_ranks: list[int]) -> None:
    worlds = [World(rank, hosts) for rank in range(len(hosts))]
    assert [world.local_rank for world in worlds] == local_ranks
    assert {world.size for world in worlds} == {len(hosts)}
    assert [world.host for world in worlds] == list(hosts)


def test_nodes_are_numbered_by_their_first_rank() -> None:
    world = World(3, ("n7", "n2", "n7", "n2"))
    assert world.nodes == ["n7", "n2"]
    assert world.local_size == 2
    assert world.address == "n7"


def test_ranks_of_one_node_need_no_name_service() -> None:
    assert World(1, ("odd-name", "odd-name")).address == "127.0.0.1"


@pytest.mark.parametrize(
    ("hosts", "topology", "more"),
    [
        (("a",), "1n1g", {}),
        (("a", "a"), "1n2g", {}),
        (BLOCK, "2n2g", {}),
        (CYCLIC, "2n2g", {}),
        (("a", "b"), "2n8g", {"processes_per_node": 1}),
    ],
)
def test_the_right_world_passes(
    hosts: tuple[str, ...], topology: str, more: dict[str, Any]
) -> None:
    for rank in range(len(hosts)):
        check(World(rank, hosts), case(topology, **more), {"SLURM_NTASKS": str(len(hosts))})


def refusal(hosts: tuple[str, ...], topology: str, env: dict[str, str]) -> str:
    with pytest.raises(WorldError) as caught:
        check(World(0, hosts), case(topology), env)
    return str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_SIZE"],
)
def test_ranks_that_each_believe_they_are_alone(name: str) -> None:
    """The commonest mistake on a new cluster: srun's --mpi and the MPI library do not fit."""
    said = refusal(("a",), "1n8g", {name: "8"})
    assert "started 8 ranks" in said and "world size 1" in said
    assert "--mpi" in said and "srun --mpi=list" in said
    assert "[environment.<name>]" in said and "site profile" in said
    assert re.search(r"the library here is \S+", said)


def test_alone_is_told_even_where_the_case_wants_one_rank() -> None:
    assert "--mpi" in refusal(("a",), "1n1g", {"SLURM_NTASKS": "8"})


def test_a_step_of_one_in_a_larger_job_is_right() -> None:
    check(World(0, ("a",)), case("1n1g"), {"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "8"})


def test_another_size_than_asked() -> None:
    said = refusal(("a", "a", "a"), "2n2g", {"SLURM_NTASKS": "3"})
    assert "3 ranks started" in said and "2n2g needs 4" in said and "batch script" in said


@pytest.mark.parametrize(
    ("hosts", "topology"),
    [
        (("a", "a", "a", "b"), "2n2g"),
        (("a", "a", "a", "a"), "2n2g"),
        (("a", "b", "c", "d"), "2n2g"),
        (("a", "a", "b", "b"), "1n4g"),
    ],
)
def test_ranks_on_the_wrong_nodes(hosts: tuple[str, ...], topology: str) -> None:
    said = refusal(hosts, topology, {})
    assert f"'a': {hosts.count('a')}" in said
    assert "ntasks-per-node" in said and "--distribution" in said


@pytest.mark.parametrize(
    ("env", "rank"),
    [
        ({}, 0),
        ({"PMI_RANK": "3"}, 3),
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "PMI_RANK": "0"}, 5),
        ({"SLURM_PROCID": "", "OMPI_COMM_WORLD_RANK": "2"}, 2),
    ],
)
def test_the_launcher_s_rank_before_mpi_is_known(env: dict[str, str], rank: int) -> None:
    assert launcher_rank(env) == rank


# --- which GPU a rank takes ---------------------------------------------------------------------


def gpus(hosts: tuple[str, ...], seen: list[list[str]]) -> list[int]:
    from dlperf_hpc.train.ranks import gpu_indices

    return [gpu_indices(World(rank, hosts), seen)[0] for rank in range(len(hosts))]


def test_gpus_shared_by_a_node_s_ranks_go_by_local_rank() -> None:
    seen = [["g0", "g1"]] * 2 + [["g2", "g3"]] * 2
    assert gpus(BLOCK, seen) == [0, 1, 0, 1]
    assert gpus(CYCLIC, [seen[0], seen[2], seen[0], seen[2]]) == [0, 0, 1, 1]


def test_gpus_bound_by_the_launcher_are_each_rank_s_first() -> None:
    assert gpus(("a", "a"), [["g0"], ["g1"]]) == [0, 0]
    assert gpus(("a", "a"), [["g0", "g1"], ["g2", "g3"]]) == [0, 0]


def test_several_gpus_for_each_rank() -> None:
    """Of a node's four the second rank has the last two; all where it sees its own only."""
    from dlperf_hpc.train.ranks import gpu_indices

    second = World(1, ("a", "a"))
    assert gpu_indices(second, [["p", "q", "r", "s"]] * 2, 2) == [2, 3]
    assert gpu_indices(second, [["p", "q"], ["r", "s"]], 2) == [0, 1]


def chosen(hosts: tuple[str, ...], seen: list[list[str]]) -> list[tuple[str, str]]:
    taken = [(hosts[r], seen[r][i]) for r, i in enumerate(gpus(hosts, seen))]
    assert len(set(taken)) == len(taken)  # no GPU is two ranks'
    return taken


def test_gpus_near_a_rank_s_cores_are_shared_by_those_who_see_them() -> None:
    """srun --gpu-bind=closest: four ranks on two sockets of two GPUs."""
    hosts, near, far = ("a",) * 4, ["g0", "g1"], ["g2", "g3"]
    assert [uuid for _, uuid in chosen(hosts, [near, near, far, far])] == ["g0", "g1", "g2", "g3"]
    assert [uuid for _, uuid in chosen(hosts, [near, far, near, far])] == ["g0", "g2", "g1", "g3"]


def test_gpus_that_a_site_shows_to_each_rank_in_another_order() -> None:
    """Each rank's own first: by local rank two of them would take one card."""
    rotated = [["g0", "g1", "g2"], ["g1", "g2", "g0"], ["g2", "g0", "g1"]]
    assert gpus(("a",) * 3, rotated) == [0, 0, 0]
    assert chosen(("a",) * 3, [["g1", "g0"], ["g1", "g0"], ["g2", "g1"]])


def test_a_rank_gives_way_to_one_that_has_no_other() -> None:
    assert gpus(("a", "a"), [["g0", "g1"], ["g0"]]) == [1, 0]
    assert gpus(("a",) * 3, [["g0", "g1"], ["g1", "g2"], ["g0"]]) == [1, 1, 0]
    assert gpus(("a", "b"), [["g0"], ["g0"]]) == [0, 0]  # another host's are other cards


def test_too_few_gpus_and_none() -> None:
    with pytest.raises(
        DeviceError, match=r"2 ranks on a, 1 GPU each, but rank 1 sees 1 .*together see 1"
    ):
        gpus(("a", "a"), [["g0"], ["g0"]])
    with pytest.raises(DeviceError, match=r"no GPU on b \(CUDA_VISIBLE_DEVICES="):
        gpus(("a", "b"), [["g0"], []])


@pytest.mark.parametrize(
    ("build", "file", "visible", "words"),
    [
        ("CPUs", "", None, None),
        ("CUDA 12.8", "", None, None),  # a login node
        ("CPUs", "nvidia0", "", None),  # the job has been given none
        ("CPUs", "nvidia0", None, r"PyTorch \(built for CPUs\) sees no GPU, but a has .*nvidia0"),
        ("CUDA 12.8", "kfd", "0", r"PyTorch \(built for CUDA 12.8\) sees no GPU, but a has .*kfd"),
        ("ROCm 7.0", "", None, r"PyTorch \(built for ROCm 7.0\) sees no GPU: the run would"),
        ("XPU 20250301", "", None, "no back end for XPU"),
        ("", "nvidia0", None, "PyTorch sees no GPU, but a has"),
    ],
)
def test_no_run_computes_on_cpus_in_silence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    build: str,
    file: str,
    visible: str | None,
    words: str | None,
) -> None:
    monkeypatch.setattr(node, "_DEV", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    if file:
        (tmp_path / file).touch()
    world = World(0, ("a",), alone())
    if words is None:
        refuse_cpus(world, "PyTorch", build)
        return
    with pytest.raises(DeviceError, match=words) as error:
        refuse_cpus(world, "PyTorch", build)
    assert error.value.fault == "gpu" and 'device = "cpu"' in str(error.value)


def test_a_gpu_that_a_job_may_not_open_is_none_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "_DEV", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    (tmp_path / "nvidia0").symlink_to(tmp_path / "absent")  # as root every file can be opened
    assert node.device_file() == ""
