"""The FSDP back end beside DDP's under real mpiexec, on two ranks and on four: ``mpi_fsdp_checks``,
judged here; and one sweep of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from frameworks import run_checks
from places import SUPPORT
from sweeping import Workplace, local_environment

from dlperf_hpc.errors import WorldError
from dlperf_hpc.model.result import Status
from dlperf_hpc.records.layout import RunPaths
from dlperf_hpc.records.logfile import read_log
from dlperf_hpc.records.record import read_record
from dlperf_hpc.train.torch.fsdp import shards_of

SCRIPT = SUPPORT / "mpi_fsdp_checks.py"
BERT_TINY = 4_434_242  # parameters
SMALLER = BERT_TINY - (30_528 - 1024) * 129  # with the vocabulary that the checks give it
Found = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Found]:
    """What each rank found, by the number of ranks and by check."""
    scratch = tmp_path_factory.mktemp("fsdp")
    return {ranks: run_checks("torch", SCRIPT, scratch, ranks) for ranks in (2, 4)}


WAYS = [(2, "all"), (4, "all"), (4, "node")]


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize(("ranks", "shard"), WAYS)
def test_trains_as_ddp_does(
    found: dict[int, Found], ranks: int, shard: str, accumulation: int
) -> None:
    """fp32 over 20 steps, each of them clipped, on another batch in each micro-step."""
    for row in found[ranks]["like_ddp"]:
        own, ddp = (row[f"{name} {accumulation}"] for name in (shard, "ddp"))
        assert own["losses"] == pytest.approx(ddp["losses"], rel=1e-5)
        assert own["norms"] == pytest.approx(ddp["norms"], rel=1e-5)
        assert own["counts"] == ddp["counts"] == [20, 0]
        assert len(own["losses"]) == 20 * accumulation and min(own["norms"]) > 0.5
        assert own["losses"][-1] < own["losses"][0] - 1
    assert row["ddp 1"]["norms"] != row["ddp 4"]["norms"]


@pytest.mark.parametrize(("ranks", "shard"), WAYS)
def test_a_rank_holds_its_share(found: dict[int, Found], ranks: int, shard: str) -> None:
    """Though the smallest tensors (two rows) cannot be spread over four ranks."""
    degree = 2 if shard == "node" else ranks
    for row in found[ranks]["like_ddp"]:
        whole, share = row["ddp 4"]["bytes"], row[f"{shard} 4"]["bytes"]
        assert whole["parameter_bytes"] == whole["gradient_bytes"] == 4 * SMALLER
        assert whole["optimizer_bytes"] == pytest.approx(8 * SMALLER, rel=1e-4)
        for name, size in whole.items():
            assert share[name] == pytest.approx(size / degree, rel=0.05), name
        facts = row[f"{shard} 4"]["facts"]
        assert facts["sharding_degree"] == degree and facts["parameters"] == SMALLER
        assert facts["replication_degree"] == ranks // degree


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_new_session_goes_on_from_a_checkpoint(found: dict[int, Found], ranks: int) -> None:
    """To the last bit, with dropout; as HSDP on four ranks, where each shard is written once."""
    for row in found[ranks]["goes_on"]:
        assert row["loaded"] == row["unbroken"] != row["before"]
        assert row["steps"] == 8
        sharded = [size for name, size in row["files"].items() if name.endswith(".distcp")]
        assert len(sharded) == ranks and ".metadata" in row["files"]
        assert sum(sharded) == pytest.approx(12 * SMALLER, rel=0.1)  # fp32, and two moments


def test_bf16_computes_in_bf16_and_keeps_fp32(found: dict[int, Found]) -> None:
    for row, first in zip(found[2]["half"], found[2]["like_ddp"], strict=True):
        assert row["losses"] == pytest.approx(first["ddp 4"]["losses"], rel=0.02)
        assert row["losses"] != first["all 4"]["losses"]
        assert row["kinds"] == ["torch.bfloat16"] and row["weights"] == ["torch.float32"]


def test_llama_trains_as_in_ddp(found: dict[int, Found]) -> None:
    for row in found[2]["llama"]:
        assert row["fsdp"] == pytest.approx(row["ddp"], rel=1e-5)
        assert row["half"] == pytest.approx(row["ddp"], rel=0.02) and row["half"] != row["fsdp"]


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_every_optimizer_is_that_of_ddp(found: dict[int, Found], name: str) -> None:
    for row in found[2]["optimizers"]:
        ddp, own = row[name]
        assert own == pytest.approx(ddp, rel=1e-5) and own[-1] < own[0] - 0.5


@pytest.mark.parametrize("way", ["again", "kept", "compiled"])
def test_other_ways_train_alike(found: dict[int, Found], way: str) -> None:
    for row in found[2]["ways"]:
        assert row[way] == pytest.approx(row["ddp"], rel=1e-5)


def test_layers_are_compiled_one_by_one_without_a_break(found: dict[int, Found]) -> None:
    for row in found[2]["ways"]:
        assert row["layers"] == [True, True]
        assert row["execution"]["graphs"] >= 2 and row["execution"]["graph_breaks"] == 0


def test_the_ranks_of_a_replica() -> None:
    hosts = ("a", "b", "a", "b")
    assert shards_of(hosts, "all") == [[0, 1, 2, 3]]
    assert shards_of(hosts, "node") == [[0, 2], [1, 3]]
    assert shards_of(("a", "a"), "node") == [[0, 1]]
    with pytest.raises(WorldError, match="equally many ranks on each node, not 2, 1"):
        shards_of(("a", "a", "b"), "node")


def test_a_sweep_of_it(tmp_path: Path) -> None:
    """By the local engine, to the table: with a checkpoint, and bytes in log and record."""
    place = Workplace(tmp_path, local_environment())
    spec = place.tiny("sharded", ["1n1g", "1n2g"])
    text = spec.read_text().replace('"ddp"', '"fsdp"\naccumulation = 2')
    spec.write_text(text.replace("iterations = 6", "iterations = 6\ncheckpoint = true"))
    done = place.verb("sweep", spec, "--cluster", "local")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["topology"]: row for row in place.table("sharded")}
    for topology, ranks in (("1n1g", 1), ("1n2g", 2)):
        result = place.results("sharded")[topology]
        assert result.status is Status.OK and result.window is not None
        share = 4 * BERT_TINY / ranks
        assert result.window.parameter_bytes == pytest.approx(share, rel=0.05)
        assert result.window.gradient_bytes == result.window.parameter_bytes
        assert result.checkpoint is not None and result.checkpoint.load_s is not None
        assert result.checkpoint.bytes == pytest.approx(12 * BERT_TINY, rel=0.05)
        assert (rows[topology]["framework"], rows[topology]["runs_ok"]) == ("fsdp", "1")
        record = read_record(RunPaths(place.directory("sharded"), result.run.id).record)
        assert record is not None
        held = record["detail"]["rank_optimizer_bytes"]
        assert held == [pytest.approx(2 * share, rel=0.05)] * ranks
        world = read_log(Path(result.log)).tables["world"]
        assert (world["framework_name"], world["sharding_degree"]) == ("PyTorch", ranks)
