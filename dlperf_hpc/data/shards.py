"""One shard of prepared data from one spool of documents: what a worker process does.

A shard depends on its documents, the settings and its number, and on nothing else: the data is
the same whatever the number of workers.
"""

from __future__ import annotations

import functools
import json
import os
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from dlperf_hpc.data import bert_records, bert_samples, hdf5, indexed, vocabulary
from dlperf_hpc.data.bert_samples import Document, pairs
from dlperf_hpc.data.text import sentences, spooled
from dlperf_hpc.errors import DataError

_TOGETHER = 1000  # texts handed to the tokenizer at once

ENDINGS = {"hdf5": ".hdf5", "tfrecord": ".tfrecord", "megatron": ".bin", "jsonl": ".jsonl"}


@dataclass(frozen=True)
class Settings:
    """What is to be made; ``predictions``, ``duplicates`` and the rest below them are BERT's."""

    format: str
    seed: int
    seq_len: int
    predictions: int
    duplicates: int
    short_probability: float
    sentence_per_line: bool


@dataclass(frozen=True)
class Made:
    """One file of prepared data."""

    name: str
    samples: int
    documents: int
    tokens: int
    largest_id: int | None


def make(settings: Settings, directory: Path, number: int) -> list[Made]:
    """Turn ``directory``'s spool of this number into a shard beside it, and remove the spool."""
    spool = directory / f"{number}.spool"
    path = directory / f"training_{number:05d}{ENDINGS[settings.format]}"
    if settings.format == "jsonl":
        made = _json_lines(path, spool)
    elif settings.format == "megatron":
        made = _megatron(path, spool, directory)
    else:
        made = _bert(settings, path, spool, number, directory)
    spool.unlink()
    return made


def _json_lines(path: Path, spool: Path) -> list[Made]:
    count = 0
    with open(path, "w", encoding="utf-8") as file:
        for text in spooled(spool):
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            count += 1
    return [Made(path.name, count, count, 0, None)]


def _parts(items: Iterable[str]) -> Iterator[list[str]]:
    left = iter(items)
    while part := list(islice(left, _TOGETHER)):
        yield part


@functools.lru_cache(maxsize=1)
def _tokenizer(directory: Path) -> Any:
    # The workers are the parallel ones: threads of the library's own would come on top of them.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return vocabulary.load(directory)


def _megatron(path: Path, spool: Path, directory: Path) -> list[Made]:
    tokenizer = _tokenizer(directory)
    end = tokenizer.token_to_id(vocabulary.END_OF_TEXT)
    documents = [
        np.array([*ids, end], np.int32)
        for part in _parts(spooled(spool))
        for ids in vocabulary.encode(tokenizer, part)
    ]
    indexed.write(path, documents, tokenizer.get_vocab_size())
    tokens = sum(map(len, documents))
    largest = max(int(document.max()) for document in documents)
    return [Made(path.name, len(documents), len(documents), tokens, largest)]


def _bert(settings: Settings, path: Path, spool: Path, number: int, directory: Path) -> list[Made]:
    tokenizer = _tokenizer(directory)
    documents = [d for d in _encoded(settings, spool, tokenizer) if d]
    if len(documents) < 2:
        raise DataError(
            f"shard {number} has {len(documents)} document(s), but next sentences are taken"
            " from two: prepare more text, use fewer --shards, or another --documents"
        )
    rng = random.Random(f"{settings.seed} {number}")
    made = [
        pair
        for _ in range(settings.duplicates)
        for pair in pairs(documents, settings.seq_len, settings.short_probability, rng)
    ]
    if not made:
        raise DataError(
            f"shard {number}: no document has two sentences: try other --sentences or --documents"
        )
    sequence = np.random.SeedSequence([settings.seed, number])
    numbers = np.random.RandomState(np.random.MT19937(sequence))
    order = numbers.permutation(len(made))
    samples = bert_samples.arrays(
        [made[i] for i in order],
        settings.seq_len,
        settings.predictions,
        _special(tokenizer),
        numbers,
    )
    {"hdf5": hdf5.write, "tfrecord": bert_records.write}[settings.format](path, samples)
    tokens = int(samples["input_mask"].sum())
    return [Made(path.name, len(made), len(documents), tokens, hdf5.largest_id(samples))]


def _encoded(settings: Settings, spool: Path, tokenizer: Any) -> Iterator[Document]:
    for text in spooled(spool):
        parts = sentences(text, settings.sentence_per_line)
        yield [ids for ids in vocabulary.encode(tokenizer, parts) if ids]


def _special(tokenizer: Any) -> bert_samples.Special:
    pad, unknown, cls, sep, mask = map(tokenizer.token_to_id, vocabulary.BERT_SPECIAL)
    special = (pad, unknown, cls, sep, mask)
    ordinary = sorted(set(tokenizer.get_vocab().values()) - set(special))
    return bert_samples.Special(pad, cls, sep, mask, np.array(ordinary, np.int64))
