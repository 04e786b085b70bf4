"""The DDP back end on two ranks under real mpiexec: one run of ``mpi_ddp_checks``, judged here."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest
import torch.distributed
from frameworks import run_checks
from places import BUSY, SUPPORT
from reference_curve import communication_is_measured

from dlperf_hpc.train.probe.bandwidth import store_of

SCRIPT = SUPPORT / "mpi_ddp_checks.py"
Found = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each rank found, by check."""
    return run_checks("torch", SCRIPT, tmp_path_factory.mktemp("ddp"))


def same(rows: list[dict[str, Any]], key: str) -> bool:
    return bool(rows[0][key] == rows[1][key])


def test_parameters_stay_equal_on_all_ranks(found: Found) -> None:
    rows = found["equal_parameters"]
    assert same(rows, "before") and same(rows, "after")
    assert rows[0]["before"] != rows[0]["after"] and rows[0]["moved"]


def test_ddps_own_logger_is_kept_out_of_the_window() -> None:
    """It asks the device for times at each 100th iteration, and the first ten."""
    code = (
        "import torch, torch.distributed as dist\n"
        "from torch.nn.parallel import DistributedDataParallel\n"
        "from dlperf_hpc.train.torch.ddp import keep_from_waiting\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "for quiet in (False, True):\n"
        "    model = DistributedDataParallel(torch.nn.Linear(1, 1))\n"
        "    if quiet: keep_from_waiting(model)\n"
        "    for _ in range(210): model(torch.ones(1, 1)).sum().backward()\n"
        "    print(model._get_ddp_logging_data()['iteration'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120 * BUSY, check=True
    )
    usual, quiet = map(int, done.stdout.split())
    assert usual == 200 and quiet <= 10  # the iteration at which it last looked


def test_a_store_does_without_libuv_where_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch honours USE_LIBUV in its own rendezvous alone; Debian builds it without libuv."""
    place, alone = ("127.0.0.1", 0, 1, True), {"wait_for_workers": False}
    first = store_of(*place, **alone)
    assert first.libuvBackend
    with pytest.raises(RuntimeError, match=f"{first.port}"):
        store_of("127.0.0.1", first.port, 1, True, **alone)
    monkeypatch.setenv("USE_LIBUV", "0")
    assert not store_of(*place, **alone).libuvBackend
    monkeypatch.delenv("USE_LIBUV")

    class Without(torch.distributed.TCPStore):
        def __init__(self, *place: Any, use_libuv: bool = True, **more: Any) -> None:
            if use_libuv:
                words = "use_libuv was requested but PyTorch was built without libuv support, run"
                raise torch.distributed.DistStoreError(f"{words} with USE_LIBUV=0 to disable it.")
            super().__init__(*place, **{**more, "use_libuv": False})

    monkeypatch.setattr(torch.distributed, "TCPStore", Without)
    assert not store_of(*place, **alone).libuvBackend


def test_each_rank_has_its_own_data(found: Found) -> None:
    first, second = (row["losses"] for row in found["equal_parameters"])
    assert all(a != b for a, b in zip(first, second))


def test_accumulation_equals_a_larger_batch(found: Found) -> None:
    for row in found["accumulation_is_a_larger_batch"]:
        assert row["steps"] == [1, 1]
        assert row["size"] > 0.01
        assert row["gradients"] < 1e-6 and row["parameters"] < 1e-6


def test_gradients_are_reduced_at_the_boundary_only(found: Found) -> None:
    first, second = found["gradients_meet_at_the_boundary"]
    assert len(first["micro"]) == 2 and len(first["step"]) == 1
    assert all(a != b for a, b in zip(first["micro"], second["micro"]))
    assert first["step"] == second["step"]
    assert first["dropped"] and second["dropped"]


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_optimizers_are_those_of_a_plain_loop(found: Found, name: str) -> None:
    """Fused, clipped, with decay on matrices only: as written out by hand."""
    for row in found["optimizers_are_plain_torch"]:
        apart, moved = row[name]
        assert moved > 1e-3
        assert apart < 5e-6


@pytest.mark.parametrize(
    ("precision", "kind"), [("fp32", "float32"), ("bf16", "bfloat16"), ("fp16", "float16")]
)
def test_precisions(found: Found, precision: str, kind: str) -> None:
    for row in found["autocast_computes_in_half"]:
        products, weights, losses, counts = row[precision]
        assert products == [f"torch.{kind}"] and weights == ["torch.float32"]
        assert losses == pytest.approx(row["fp32"][2], rel=1e-3)
        assert counts == [3, 0]


@pytest.mark.parametrize("clip", ["clip 0", "clip 1"])
def test_overflowing_steps_are_counted_and_change_nothing(found: Found, clip: str) -> None:
    for row in found["overflowing_steps_are_counted"]:
        alone, among_others = row[clip]
        assert alone == [1, 1, False]
        assert among_others == [4, 1, True]


def test_tf32_is_refused_where_there_is_none(found: Found) -> None:
    for row in found["tf32_is_refused"]:
        assert "precision tf32 needs an NVIDIA GPU of Ampere or later, not a CPU" in row["error"]


def test_compiled_layers_train_alike(found: Found) -> None:
    """On two ranks; buckets of 1 MiB do not cut what is compiled. Every graph is one whole layer,
    and layers that are alike may share it."""
    rows = found["compiled_trains_alike"]
    assert same(rows, "after")
    (compiled, eager), attentions = rows[0]["layers"], rows[0]["attentions"]
    assert all(compiled) and not any(eager)
    assert 1 <= len(attentions) <= len(compiled) and set(attentions) == {1}
    assert rows[0]["apart"] < 1e-5


@pytest.mark.parametrize(("window", "iterations", "steps"), [("timed", 5, 3), ("again", 4, 2)])
def test_a_window(found: Found, window: str, iterations: int, steps: int) -> None:
    """After a warm-up of 3 with accumulation 2, five iterations hold three optimizer steps."""
    for row in found["a_window"]:
        timed = row[window]
        assert timed["iterations"] == len(timed["step_times"]) == len(timed["losses"]) == iterations
        assert (timed["optimizer_steps"], timed["skipped_steps"]) == (steps, 0)
        assert timed["moved"] and timed["data_wait_s"] == 0.0
        assert all(t > 0 for t in timed["step_times"]) and row["estimate"] > 0
        assert sum(timed["step_times"]) == pytest.approx(timed["elapsed_s"], rel=0.5)
        assert sum(timed["step_times"]) <= timed["elapsed_s"]
        assert all(5 < loss < 15 and math.isfinite(loss) for loss in timed["losses"])
        assert timed["memory_mb"] > 100


def test_the_all_reduce_is_left_out_and_its_share_measured(found: Found) -> None:
    communication_is_measured(found["a_window"])


def test_a_window_is_not_lost_for_want_of_room_without_all_reduce(found: Found) -> None:
    reasons: Any = found["without_all_reduce_one_fails"]
    near, no_room = "the time limit is near", "without all-reduce: MemoryError: no room"
    assert reasons == [[near, no_room]] * 2


def test_facts(found: Found) -> None:
    for row in found["a_window"]:
        facts = row["facts"]
        assert {"torch", "device", "device_name", "threads", "parameters"} <= set(facts)
        assert (facts["device"], facts["threads"], facts["parameters"]) == ("cpu", 1, 4_434_242)
        assert facts["tf32_matmul"] is False and facts["tf32_cudnn"] is False
        assert facts["fp32_products"] == row["fp32"] == "fp32"
