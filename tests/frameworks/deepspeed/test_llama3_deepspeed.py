"""Llama 3 under DeepSpeed on two ranks, beside DDP: ``llama3_checks`` in its environment."""

from __future__ import annotations

from typing import Any

import pytest
from frameworks import run_checks
from places import SUPPORT


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    script, place = SUPPORT / "llama3_checks.py", tmp_path_factory.mktemp("llama3")
    return run_checks("deepspeed", script, place, timeout=540, arguments=("stages", "half"))


@pytest.mark.parametrize(
    ("head", "stage"), [*(("tied", stage) for stage in range(4)), ("untied", 0), ("untied", 3)]
)
def test_every_stage_trains_as_ddp_does(found: Any, head: str, stage: int) -> None:
    curves = found["stages"][head]
    losses, counts, moved, parameters = curves[f"zero {stage}"]
    assert losses == pytest.approx(curves["ddp"], rel=1e-5)
    assert counts == [5, 0] and moved and losses[-1] < losses[0] - 0.05
    # Of the vocabulary of 128256 words, each of 128 numbers, the checks have 1024.
    fewer = (128_256 - 1024) * 128
    assert parameters == {"tied": 16_810_624 - fewer, "untied": 33_030_528 - 2 * fewer}[head]


def test_activations_are_computed_twice_under_stage_3(found: Any) -> None:
    curves = found["stages"]["checkpointed"]
    assert curves["zero 3"][0] == pytest.approx(found["stages"]["tied"]["ddp"], rel=1e-5)
    assert curves["ddp"] == found["stages"]["tied"]["ddp"]


@pytest.mark.parametrize("stage", [0, 3])
def test_in_bf16_the_losses_are_those_of_fp32_within_rounding(found: Any, stage: int) -> None:
    losses, counts, moved, _ = found["half"][f"zero {stage}"]
    assert losses == pytest.approx(found["stages"]["tied"]["ddp"], rel=3e-3)
    assert counts == [5, 0] and moved
