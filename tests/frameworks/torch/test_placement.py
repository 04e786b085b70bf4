"""Optimizer placement and schedules on two ranks under real mpiexec: ``mpi_placement_checks``."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from frameworks import run_checks
from places import SUPPORT

from dlperf_hpc.model.case import OPTIMIZERS

SCRIPT = SUPPORT / "mpi_placement_checks.py"
Found = dict[str, list[dict[str, Any]]]
LAYOUTS = ("whole", "placed")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each rank found, by check."""
    return run_checks("torch", SCRIPT, tmp_path_factory.mktemp("placement"))


@pytest.mark.parametrize("name", [*OPTIMIZERS, "adamw uncorrected, accumulation 2"])
def test_placement_changes_nothing_but_where_the_state_lies(found: Found, name: str) -> None:
    first, second = (row[name] for row in found["placement"])
    for rank in (first, second):
        assert rank["placed"]["losses"] == pytest.approx(rank["whole"]["losses"], rel=1e-5)
        assert rank["placed"]["counts"] == rank["whole"]["counts"] == [4, 0]
        assert len(set(rank["whole"]["losses"])) >= 3
    for layout in LAYOUTS:
        assert first[layout]["parameters"] == second[layout]["parameters"]
    whole = first["whole"]["state"]
    assert whole == second["whole"]["state"]
    assert first["placed"]["state"] + second["placed"]["state"] == whole
    # Each parameter's state lies as a whole on one of them.
    assert 0 < min(first["placed"]["state"], second["placed"]["state"]) < 0.5 * whole


@pytest.mark.parametrize("name", ["adamw fp16", "lamb fp16"])
def test_placement_with_a_loss_scale_that_overflows(found: Found, name: str) -> None:
    first, second = (row[name] for row in found["placement"])
    for rank in (first, second):
        assert rank["placed"]["counts"] == rank["whole"]["counts"] == [4, 1]
        assert rank["placed"]["losses"] == pytest.approx(rank["whole"]["losses"], rel=1e-3)
    for layout in LAYOUTS:
        assert first[layout]["parameters"] == second[layout]["parameters"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_schedule_runs_on_through_warm_up_and_window(found: Found, layout: str) -> None:
    """Optimizer steps from 0, not micro-steps, and not from where the window opens."""
    wanted = [0.0, 0.5, *((1 - step / 8) ** 0.5 for step in range(2, 6))]
    for row in found["rates"]:
        assert row[layout] == pytest.approx(wanted)


def test_the_rank_keeps_a_torch_optimizer_of_the_named_kind(found: Found) -> None:
    for row in found["placement"]:
        assert row["lamb"]["whole"]["kind"] == "Lamb"
        assert row["lamb"]["placed"]["kind"] == "PlacedOptimizer"


def test_a_rank_without_placement_does_not_import_what_only_placement_needs() -> None:
    program = (
        "import sys, dlperf_hpc.train.torch.ddp; print('torch.distributed.optim' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["False"], done.stderr
