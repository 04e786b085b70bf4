"""The whole of ``prepare``: text, tokenizer, shards in parallel, manifest; all there or nothing."""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dlperf_hpc import __version__, pools
from dlperf_hpc.data import manifest, shards, text, vocabulary
from dlperf_hpc.data.shards import Made, Settings
from dlperf_hpc.errors import DataError

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
    settings: Settings,
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
    allows no more: the same files, later.
    """
    start = time.monotonic()
    files = text.text_files(inputs)
    with _new_directory(out) as directory:
        count = shard_count or _shards_for(files)
        advance("reading the text", 0, count)
        spools, documents = text.spool(files, whole_files, count, directory)
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
        manifest.write(directory, content)
    return {"out": str(out), **content, "seconds": round(time.monotonic() - start, 3)}


def _entry(directory: Path, file: Made) -> dict[str, Any]:
    entry = {key: value for key, value in asdict(file).items() if key != "name"}
    return {"bytes": (directory / file.name).stat().st_size, **entry}


def _shards_for(files: Sequence[Path]) -> int:
    total = sum(os.path.getsize(file) for file in files)
    return min(_MOST_SHARDS, max(1, -(-total // _SHARD_BYTES)))


@contextmanager
def _new_directory(out: Path) -> Iterator[Path]:
    """A directory beside ``out`` that takes its name in the end, or is gone."""
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise DataError(f"{out}: exists and is not empty: name a new directory")
        out.parent.mkdir(parents=True, exist_ok=True)
        directory = out.parent / f".{out.name}.{uuid.uuid4().hex[:8]}.partial"
        directory.mkdir()
    except OSError as error:
        raise DataError(f"{out}: cannot be made: {error.strerror or error}") from error
    try:
        yield directory
        os.rename(directory, out)
    except OSError as error:
        raise DataError(f"{out}: cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _tokenizer(
    settings: Settings, words: Vocabulary, spools: list[Path], directory: Path, advance: Advance
) -> tuple[str | None, int]:
    """Leaves the tokenizer in the directory; its digest and number of tokens."""
    if settings.format == "jsonl":
        return None, 0

    def texts() -> Iterator[str]:
        for number, path in enumerate(spools):
            advance("learning the vocabulary", number, len(spools))
            yield from text.spooled(path)

    for_bert = settings.format != "megatron"
    if words.train is not None:
        if not pools.has_room(len(os.sched_getaffinity(0))):  # a thread per CPU, or it panics
            os.environ["TOKENIZERS_PARALLELISM"] = "false"
        train = vocabulary.train_bert if for_bert else vocabulary.train_gpt2
        made = train(texts, words.train, *([words.lowercase] if for_bert else []))
    elif words.vocab is None or (words.merges is None and not for_bert):
        needed = "--vocab vocab.txt" if for_bert else "--vocab vocab.json --merges merges.txt"
        raise DataError(f"{settings.format} needs a vocabulary: {needed}, or --train-tokenizer")
    elif for_bert:
        made = vocabulary.read_bert(words.vocab, words.lowercase)
    else:
        assert words.merges is not None
        made = vocabulary.read_gpt2(words.vocab, words.merges)
    return vocabulary.save(made, directory), made.get_vocab_size()


def _make_all(
    settings: Settings, directory: Path, count: int, workers: int, advance: Advance
) -> list[Made]:
    """All shards, in order of their numbers."""
    advance("writing samples", 0, count)
    made: dict[int, list[Made]] = {}
    workers = min(workers, count)
    if workers == 1 or not pools.has_room(workers + pools.POOL):
        for number in range(count):
            made[number] = shards.make(settings, directory, number)
            advance("writing samples", len(made), count)
        return [file for number in range(count) for file in made[number]]
    # Spawned, not forked: the tokenizer's threads do not live through a fork.
    try:
        pool = pools.pool(workers, "spawn")
    except OSError as error:  # no /dev/shm, say
        raise DataError(
            f"this machine starts no worker process ({error}): use --workers 1"
        ) from error
    with pool:
        waiting = {pool.submit(shards.make, settings, directory, n): n for n in range(count)}
        try:
            for done in as_completed(waiting):
                made[waiting[done]] = done.result()
                advance("writing samples", len(made), count)
        except BrokenProcessPool as error:
            raise DataError(
                "a worker process was killed, perhaps for lack of memory: use fewer --workers"
            ) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    return [file for number in range(count) for file in made[number]]
