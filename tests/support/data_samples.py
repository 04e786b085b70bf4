"""Text and prepared data for the tests of real data."""

from __future__ import annotations

import json
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np

from dlperf_hpc.cli.prepare import main
from dlperf_hpc.data.bert_files import Arrays
from dlperf_hpc.sweepfile.declarations import SampleLayout
from dlperf_hpc.train.workloads.bert import predictions_per_sequence

TOPICS = ("assert", "assignment", "atom-identifiers", "class", "compound", "exceptions", "import")


def write_corpus(directory: Path) -> Path:
    """Some of Python's manual, a file a topic: about 70 kB, a paragraph a document."""
    corpus = directory / "corpus"
    corpus.mkdir()
    for name in TOPICS:
        (corpus / f"{name}.txt").write_text(topics[name], encoding="utf-8")
    return corpus


def prepared(corpus: Path, out: Path, *options: str, seq_len: int = 64) -> Path:
    """``prepare`` in this process, with a small vocabulary of the text's own."""
    arguments = [str(corpus), "--out", str(out), "--seq-len", str(seq_len)]
    if "jsonl" not in options:
        arguments += ["--train-tokenizer", "--vocab-size", "500"]
    assert main([*arguments, *options]) == 0
    return out


def bert_layout(data: Path, seq_len: int = 64) -> SampleLayout:
    """What a BERT with just the data's vocabulary needs."""
    manifest = json.loads((data / "manifest.json").read_text(encoding="utf-8"))
    vocab = manifest["tokenizer"]["vocab_size"]
    return SampleLayout("bert", vocab, seq_len, predictions_per_sequence(seq_len))


def bert_arrays(count: int, first: int = 0) -> Arrays:
    """Samples that can be told apart: sample i has i in its first two tokens."""
    rng = np.random.RandomState(first)
    ids = rng.randint(5, 100, (count, 16))
    ids[:, 0], ids[:, 1] = np.divmod(np.arange(first, first + count), 100)
    positions = 2 + np.sort(rng.random_sample((count, 13)).argsort(axis=1)[:, :3], axis=1)
    positions[:, 2] *= rng.randint(0, 2, count)
    labels = rng.randint(5, 100, (count, 3)) * (positions > 0)
    return {
        "input_ids": ids,
        "input_mask": np.ones_like(ids),
        "segment_ids": (np.arange(16) > 8) * np.ones_like(ids),
        "masked_lm_positions": positions,
        "masked_lm_ids": labels,
        "masked_lm_weights": (positions > 0).astype(np.float32),
        "next_sentence_labels": rng.randint(0, 2, count),
    }
