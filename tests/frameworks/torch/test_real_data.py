"""Training on real data on two ranks under real mpiexec, and what masks and weights are for."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from data_samples import prepared, write_corpus
from places import BUSY, ROOT, SUPPORT

from dlperf_hpc.data import bert_files
from dlperf_hpc.engines.base import clean_environment
from dlperf_hpc.engines.local import find_mpiexec
from dlperf_hpc.train.torch.models import BertForPreTraining
from dlperf_hpc.train.workloads.bert import BertConfig, synthetic_batch

SCRIPT = SUPPORT / "mpi_data_checks.py"
Found = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each rank found, by check."""
    directory = tmp_path_factory.mktemp("data")
    corpus = write_corpus(directory)
    options = ("--format", "hdf5", "--shards", "2")
    bert = prepared(corpus, directory / "bert", *options)
    gpt2 = prepared(corpus, directory / "gpt2", "--format", "megatron")
    damaged = prepared(corpus, directory / "damaged", *options)
    # Only the rank that this file falls to meets the damage.
    (damaged / "manifest.json").unlink()
    with h5py.File(damaged / "training_00001.hdf5", "r+") as file:
        file["input_ids"][3, 3] = 40000
    mpiexec = find_mpiexec()
    assert mpiexec, "no mpiexec: install the mpich wheel"
    argv = [mpiexec, "-n", "2", sys.executable, "-m", "mpi4py", str(SCRIPT)]
    pipe, env = subprocess.PIPE, {**clean_environment(), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*argv, str(bert), str(gpt2), str(damaged)],
        env=env,
        stdout=pipe,
        stderr=pipe,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=250 * BUSY)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == 0, errors[-4000:]
    results: Found = json.loads(output.partition("FOUND ")[2])
    return results


@pytest.mark.parametrize("model", ["bert", "gpt2"])
def test_a_window_on_real_data_trains_and_measures_its_wait(found: Found, model: str) -> None:
    rows = found[model]
    for row in rows:
        assert 0 < row["wait"] < row["elapsed"]
        assert row["moved"]
        assert sum(row["losses"][-3:]) < sum(row["losses"][:3])
        assert row["facts"]["data_samples_per_rank"] > 50
    assert rows[0]["losses"] != rows[1]["losses"]
    sharing = {"bert": "whole files", "gpt2": "samples of each file"}
    assert rows[0]["facts"]["data_sharing"] == sharing[model]


def test_a_batch_is_the_models_arguments(found: Found) -> None:
    tokens = [4, 64]
    assert found["gpt2"][0]["batch"] == {"input_ids": tokens, "labels": tokens}
    assert found["bert"][0]["batch"] == {
        "input_ids": tokens,
        "input_mask": tokens,
        "segment_ids": tokens,
        "masked_lm_positions": [4, 10],
        "masked_lm_ids": [4, 10],
        "next_sentence_labels": [4],
    }


def test_ranks_see_other_samples(found: Found) -> None:
    first, second = (set(row["seen"]) for row in found["samples"])
    assert len(first) > 50 and len(second) > 50
    assert not first & second


def test_all_ranks_refuse_what_one_of_them_found(found: Found) -> None:
    for name, message in (
        ("damaged", "training_00001.hdf5: input_ids: found 40000, expected 0 to 30527"),
        ("other_length", "input_ids: found 64 values a sample, expected 128: set seq_len"),
    ):
        first, second = (row["error"] for row in found[name])
        assert first == second and message in first


CONFIG = BertConfig(layers=2, hidden=32, heads=2, ffn=64, vocab=200, dropout=0.0)


def tensors(seed: int) -> dict[str, torch.Tensor]:
    made = synthetic_batch(CONFIG, 3, 24, 4, seed)
    return {name: torch.from_numpy(array) for name, array in made.items()}


def test_an_unused_place_counts_for_nothing() -> None:
    """Weight 0 in the file, id -100 for the model: the mean is over the masked positions."""
    model, batch = BertForPreTraining(CONFIG).double(), tensors(1)
    weights = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 0, 0]], np.float32)
    arrays = {name: tensor.numpy() for name, tensor in batch.items()}
    made = bert_files.arguments({**arrays, "masked_lm_weights": weights})
    assert made.keys() == batch.keys()
    found = model(**{name: torch.from_numpy(array) for name, array in made.items()}).item()

    def masked_lm(row: int, count: int) -> float:
        one = {name: tensor[row : row + 1] for name, tensor in batch.items()}
        for name in ("masked_lm_positions", "masked_lm_ids"):
            one[name] = one[name][:, :count]
        hidden = model.encode(one["input_ids"], one["segment_ids"])
        labels = one["next_sentence_labels"]
        next_sentence = model.nsp(torch.tanh(model.pooler(hidden[:, 0]))).float()
        own = torch.nn.functional.cross_entropy(next_sentence, labels)
        nsp.append(own.item())
        return float(model(**one).item() - own.item()) * count

    nsp: list[float] = []
    together = masked_lm(0, 4) + masked_lm(1, 2) + masked_lm(2, 2)
    assert found == pytest.approx(together / 8 + sum(nsp) / 3, rel=1e-6)


def test_padding_changes_nothing() -> None:
    model, batch = BertForPreTraining(CONFIG).double(), tensors(2)
    expected = model(**batch)
    padded = dict(batch)
    for name in ("input_ids", "segment_ids"):
        padded[name] = torch.nn.functional.pad(batch[name], (0, 8))
    mask = torch.nn.functional.pad(torch.ones_like(batch["input_ids"]), (0, 8))
    assert model(**padded, input_mask=mask).item() == pytest.approx(expected.item(), rel=1e-9)
    assert model(**padded).item() != pytest.approx(expected.item(), rel=1e-9)


def test_the_benchmark_on_real_text_runs() -> None:
    """For its form: 3 steps are too few to learn anything, and it says so."""
    script = ROOT / "benchmarks" / "train_real_text.py"
    options = ["--model", "bert-tiny", "--ranks", "1", "--steps", "3", "--json"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, str(script), *options]
    done = subprocess.run(
        argv, env=env, text=True, capture_output=True, timeout=200 * BUSY, check=False
    )
    assert done.returncode == 1, done.stderr[-3000:]
    (found,) = json.loads(done.stdout)
    assert len(found["losses"]) == 3 and found["losses"][0] > 10
    assert 4 < found["entropy"] < math.log(200) and not found["below"]
