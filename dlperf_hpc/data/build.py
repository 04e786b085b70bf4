"""The whole of ``prepare``: text, tokenizer, shards in parallel, manifest; all there or nothing."""

from __future__ import annotations

import functools
import json
import os
import random
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from dlperf_hpc import __version__, pools
from dlperf_hpc.data import bert_files, bert_samples, corpus, opening
from dlperf_hpc.data.bert_samples import Document, pairs
from dlperf_hpc.errors import DataError, raising
from dlperf_hpc.files import make_output_directory

Advance = Callable[[str, int, int], None]
"""Told (what is being done, how much is done, of how much)."""

_SHARD_BYTES = 16 << 20  # of text, where the number of shards is not said
_MOST_SHARDS = 1024


@dataclass(frozen=True)
class Vocabulary:
    """Where the tokenizer comes from: files, or the text itself (``train`` tokens)."""

    vocab: Path | None = None
    merges: Path | None = None
    train: int | None = None
    lowercase: bool = True


def build(
    inputs: Sequence[Path],
    out: Path,
    settings: PrepareSettings,
    words: Vocabulary,
    *,
    whole_files: bool = False,
    shard_count: int | None = None,
    workers: int = 1,
    advance: Advance = lambda *_: None,
) -> dict[str, Any]:
    """Prepare ``inputs`` into the new directory ``out``; what its manifest says, and the time.
    ``out`` is made elsewhere and gets its name when it is complete. DataError for text that will
    not do, or if ``out`` is there and not empty. Fewer than ``workers`` do it where a login node
    allows no more: the same files, later."""
    start = time.monotonic()
    files = corpus.text_files(inputs)
    with _new_directory(out) as directory:
        total = sum(map(os.path.getsize, files))
        count = shard_count or min(_MOST_SHARDS, max(1, -(-total // _SHARD_BYTES)))
        advance("reading the text", 0, count)
        spools, documents = corpus.spool(files, whole_files, count, directory)
        digest, size = _tokenizer(settings, words, spools, directory, advance)
        made = _make_all(settings, directory, count, workers, advance)
        content = {
            "made_by": f"dlperf_hpc {__version__}",
            "settings": asdict(settings),
            "documents": documents,
            "samples": sum(file.samples for file in made),
            "tokens": sum(file.tokens for file in made),
            "tokenizer": {"sha256": digest, "vocab_size": size, "lowercase": words.lowercase},
            "files": {file.name: _entry(directory, file) for file in made},
        }
        opening.write_manifest(directory, content)
    return {"out": str(out), **content, "seconds": round(time.monotonic() - start, 3)}


def _entry(directory: Path, file: Made) -> dict[str, Any]:
    entry = {key: value for key, value in asdict(file).items() if key != "name"}
    return {"bytes": (directory / file.name).stat().st_size, **entry}


@contextmanager
def _new_directory(out: Path) -> Iterator[Path]:
    """A directory beside ``out`` that takes its name in the end, or is gone."""
    with raising(DataError, f"{out}: cannot be made"):
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise DataError(f"{out}: exists and is not empty: name a new directory")
        make_output_directory(out.parent)
        directory = out.parent / f".{out.name}.{uuid.uuid4().hex[:8]}.partial"
        directory.mkdir()
    try:
        with raising(DataError, f"{out}: cannot be written"):
            yield directory
            os.rename(directory, out)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _tokenizer(
    settings: PrepareSettings,
    words: Vocabulary,
    spools: list[Path],
    directory: Path,
    advance: Advance,
) -> tuple[str | None, int]:
    if settings.format == "jsonl":
        return None, 0

    def texts() -> Iterator[str]:
        for number, path in enumerate(spools):
            advance("learning the vocabulary", number, len(spools))
            yield from corpus.spooled(path)

    made = _read_tokenizer(settings.format, words)
    if words.train is not None:
        if not pools.has_room(len(os.sched_getaffinity(0))):  # a thread per CPU, or it panics
            os.environ["TOKENIZERS_PARALLELISM"] = "false"
        if settings.format == "megatron":
            made = corpus.train_gpt2(texts, words.train)
        else:
            made = corpus.train_bert(texts, words.train, words.lowercase)
    return corpus.save(made, directory), made.get_vocab_size()


def _read_tokenizer(kind: str, words: Vocabulary) -> Any:
    """The tokenizer of the files that are given; None where the text itself gives one."""
    if words.train is not None:
        return None
    needed = "--vocab vocab.txt"
    if kind == "megatron":
        needed = "--vocab vocab.json --merges merges.txt"
        if words.vocab and words.merges:
            return corpus.read_gpt2(words.vocab, words.merges)
    elif words.vocab:
        return corpus.read_bert(words.vocab, words.lowercase)
    raise DataError(f"{kind} needs a vocabulary: {needed}, or --train-tokenizer")


def _make_all(
    settings: PrepareSettings, directory: Path, count: int, workers: int, advance: Advance
) -> list[Made]:
    advance("writing samples", 0, count)
    workers = min(workers, count)
    pairs: Iterable[tuple[int, list[Made]]]
    if workers == 1 or not pools.has_room(workers + pools.POOL):
        pairs = ((number, make_shard(settings, directory, number)) for number in range(count))
    else:
        pairs = _made_in_parallel(settings, directory, count, workers)
    made: dict[int, list[Made]] = {}
    for number, files in pairs:
        made[number] = files
        advance("writing samples", len(made), count)
    return [file for number in range(count) for file in made[number]]


def _made_in_parallel(
    settings: PrepareSettings, directory: Path, count: int, workers: int
) -> Iterator[tuple[int, list[Made]]]:
    try:  # spawned, not forked: the tokenizer's threads do not live through a fork
        pool = pools.pool(workers, "spawn")
    except OSError as error:  # no /dev/shm, say
        raise DataError(
            f"this machine starts no worker process ({error}): use --workers 1"
        ) from error
    with pool:
        waiting = {pool.submit(make_shard, settings, directory, n): n for n in range(count)}
        try:
            for done in as_completed(waiting):
                yield waiting[done], done.result()
        except BrokenProcessPool as error:
            raise DataError(
                "a worker process was killed, perhaps for lack of memory: use fewer --workers"
            ) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


# --- one shard from one spool of documents: what a worker process does


_TOGETHER = 1000  # texts handed to the tokenizer at once

ENDINGS = {"hdf5": ".hdf5", "tfrecord": ".tfrecord", "megatron": ".bin", "jsonl": ".jsonl"}


@dataclass(frozen=True)
class PrepareSettings:
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


def make_shard(settings: PrepareSettings, directory: Path, number: int) -> list[Made]:
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
        for text in corpus.spooled(spool):
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            count += 1
    return [Made(path.name, count, count, 0, None)]


def _parts(items: Iterable[str]) -> Iterator[list[str]]:
    left = iter(items)
    while part := list(islice(left, _TOGETHER)):
        yield part


@functools.lru_cache(maxsize=1)
def _loaded_tokenizer(directory: Path) -> Any:
    # The workers are the parallel ones: threads of the library's own would come on top of them.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return corpus.load(directory)


def _megatron(path: Path, spool: Path, directory: Path) -> list[Made]:
    tokenizer = _loaded_tokenizer(directory)
    end = tokenizer.token_to_id(corpus.END_OF_TEXT)
    documents = [
        np.array([*ids, end], np.int32)
        for part in _parts(corpus.spooled(spool))
        for ids in corpus.encode(tokenizer, part)
    ]
    opening.write_indexed(path, documents, tokenizer.get_vocab_size())
    tokens = sum(map(len, documents))
    largest = max(int(document.max()) for document in documents)
    return [Made(path.name, len(documents), len(documents), tokens, largest)]


def _bert(
    settings: PrepareSettings, path: Path, spool: Path, number: int, directory: Path
) -> list[Made]:
    tokenizer = _loaded_tokenizer(directory)
    documents = list(filter(None, _encoded(settings, spool, tokenizer)))
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
    {"hdf5": bert_files.write_hdf5, "tfrecord": bert_files.write_records}[settings.format](
        path, samples
    )
    tokens = int(samples["input_mask"].sum())
    return [Made(path.name, len(made), len(documents), tokens, bert_files.largest_id(samples))]


def _encoded(settings: PrepareSettings, spool: Path, tokenizer: Any) -> Iterator[Document]:
    for text in corpus.spooled(spool):
        parts = corpus.sentences(text, settings.sentence_per_line)
        yield list(filter(None, corpus.encode(tokenizer, parts)))


def _special(tokenizer: Any) -> bert_samples.Special:
    pad, unknown, cls, sep, mask = map(tokenizer.token_to_id, corpus.BERT_SPECIAL)
    special = (pad, unknown, cls, sep, mask)
    ordinary = sorted(set(tokenizer.get_vocab().values()) - set(special))
    return bert_samples.Special(pad, cls, sep, mask, np.array(ordinary, np.int64))
