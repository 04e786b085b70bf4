"""A batch that counts tokens is no batch of samples."""

from __future__ import annotations

from pathlib import Path

import pytest
from named_logs import lines_of, one

TOKENS = "2026-01-05 10:{0:02}:{1:02},250 INFO Step: {2:8}, Batch Loss: 4.02, Tokens per Sec: 4900"


def line(n: int) -> str:
    return TOKENS.format(n * 2 // 60, n * 2 % 60, n)


@pytest.mark.parametrize(
    "settings",
    [
        "cfg.training.batch_size : 2048\ncfg.training.batch_type : token\n",
        "cfg.training.batch_type : token\ncfg.training.batch_size : 2048\n",
        "{'batch_size': 2048, 'batch_type': 'tokens'}\n",
        "batch_size=2048, max_tokens=4096\n",
        '"batch_size": 2048,\n"max_tokens": 4096,\n',
        "batch_size: 2048 tokens\n",
    ],
)
def test_a_batch_of_tokens_gives_no_samples_per_second(tmp_path: Path, settings: str) -> None:
    result = one(tmp_path, settings + lines_of(line))
    assert result.samples_per_s is None
    assert result.rates["tokens/s"] == pytest.approx(4900)


@pytest.mark.parametrize(
    "settings",
    [
        "batch_size : 16\nbatch_type : sentence\n",
        "batch_size=16, max_tokens=None, max_tokens_valid=4096\n",
    ],
)
def test_a_batch_of_samples_counts(tmp_path: Path, settings: str) -> None:
    result = one(tmp_path, settings + lines_of(lambda n: line(n).rpartition(", Tok")[0]))
    assert result.samples_per_s == pytest.approx(16 / 2.0)
