"""Saved, killed, loaded by new processes: on every back end the curve goes on as if unbroken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from data_samples import prepared, write_corpus
from frameworks import run_checks
from places import SUPPORT

SCRIPT = SUPPORT / "checkpoint_checks.py"
BACKENDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ddp": ("torch", "ddp", {}),
    "placed": ("torch", "ddp", {"optimizer_placement": True}),
    "fsdp": ("torch", "fsdp", {}),
    "deepspeed": ("deepspeed", "deepspeed", {"zero_stage": 3}),
    "horovod-torch": ("horovod", "horovod-torch", {}),
    "tensorflow": ("tensorflow", "tensorflow", {}),
    "horovod-tensorflow": ("horovod", "horovod-tensorflow", {}),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("data")
    return prepared(write_corpus(directory), directory / "bert", "--format", "hdf5", seq_len=32)


@pytest.mark.parametrize("name", list(BACKENDS))
def test_training_goes_on_from_a_checkpoint(tmp_path: Path, data: Path, name: str) -> None:
    """Two ranks, real data, dropout, accumulation and a schedule; equal to the last bit."""
    environment, framework, options = BACKENDS[name]
    checkpoint = tmp_path / "checkpoint"
    arguments = [framework, "", json.dumps(options), str(data), str(checkpoint)]
    first, second = (
        run_checks(environment, SCRIPT, tmp_path, arguments=arguments, killed=True)
        for _ in range(2)
    )
    for unbroken, loaded in zip(first["ranks"], second["ranks"], strict=True):
        assert loaded["after"] == unbroken["after"] != unbroken["before"]
        assert "only after a whole optimizer step" in unbroken["between"]
        assert "is there already" in unbroken["again"]
        assert "there is no checkpoint in" in loaded["nowhere"]
        assert "precision is fp32 there, bf16 here; seed is 1 there, 7 here" in loaded["other"]
    assert [path.suffix for path in tmp_path.glob("*torn*")] == [".partial"]
