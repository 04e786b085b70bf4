"""``dlperf prepare TEXT.. --out DIR``: training data from plain text."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dlperf_hpc.cli import common
from dlperf_hpc.errors import Issue, SpecError

if TYPE_CHECKING:
    from dlperf_hpc.data.build import Advance, Vocabulary
    from dlperf_hpc.data.shards import Settings

_DESCRIPTION = """\
Turns text into the files that `data = "real"` reads: hdf5 (NVIDIA's layout) or tfrecord (Google's
seven features) for BERT, megatron (.bin and .idx) for GPT-2, or jsonl (loose JSON, for Megatron's
own tools). The same text, settings and seed give the same files, whatever the number of workers.
"""
_EPILOG = """\
examples:
  dlperf data prepare wiki/ --format hdf5 --vocab vocab.txt --seq-len 128 --out wiki_128
  dlperf data prepare a.txt --format megatron --train-tokenizer --vocab-size 8000 --out a_gpt2
"""
_FORMATS = ("hdf5", "tfrecord", "megatron", "jsonl")


def _parser() -> argparse.ArgumentParser:
    made = common.parser("prepare", _DESCRIPTION, _EPILOG)
    add = made.add_argument
    add("text", type=Path, nargs="+", help='text files, JSON lines with "text", or directories')
    add("--out", type=Path, required=True, help="the directory to make")
    add("--format", choices=_FORMATS, required=True)
    documents = ("blank-lines", "files")
    add("--documents", choices=documents, default=documents[0], help="what ends one (plain text)")
    add("--shards", type=_count, help="files to make (default: one per 16 MiB of text)")
    add("--workers", type=_count, default=os.cpu_count() or 1, help="processes (default: CPUs)")
    add("--seed", type=int, default=1, help="default: 1")
    add("--json", action="store_true", help="print the manifest and the time as JSON")
    words = made.add_argument_group("vocabulary")
    words.add_argument("--vocab", type=Path, help="vocab.txt (BERT) or vocab.json (GPT-2)")
    words.add_argument("--merges", type=Path, help="merges.txt (GPT-2)")
    words.add_argument("--train-tokenizer", action="store_true", help="learn it from the text")
    words.add_argument("--vocab-size", type=_count, help="tokens to learn (default: 8000)")
    words.add_argument("--cased", action="store_true", help="BERT: keep capitals and accents")
    bert = made.add_argument_group("BERT")
    bert.add_argument("--seq-len", type=_count, default=128, help="default: 128")
    predictions = "masked tokens at most (default: 20 of 128, 80 of 512, 5/32 of others)"
    bert.add_argument("--max-predictions", type=_count, help=predictions)
    duplicates = "times each document is used, masked anew (default: 1)"
    bert.add_argument("--duplicates", type=_count, default=1, help=duplicates)
    short = "share of sequences cut to a random length (default: 0.1)"
    bert.add_argument("--short-probability", type=float, default=0.1, help=short)
    sentence = "lines: the text has one sentence a line (default: split at stops)"
    bert.add_argument("--sentences", choices=("split", "lines"), default="split", help=sentence)
    return made


def _count(text: str) -> int:
    value = int(text)
    if not 0 < value <= 10**9:
        raise argparse.ArgumentTypeError(f"{value} is not a count of 1 or more")
    return value


def _refusal(where: str, message: str) -> SpecError:
    return SpecError("command line", [Issue(where, message)])


def _settings(arguments: argparse.Namespace) -> Settings:
    from dlperf_hpc.data.shards import Settings
    from dlperf_hpc.train.workloads.bert import predictions_per_sequence

    seq_len = arguments.seq_len
    predictions = arguments.max_predictions or predictions_per_sequence(seq_len)
    if arguments.format in ("hdf5", "tfrecord") and not 5 <= seq_len <= 512:
        raise _refusal("--seq-len", f"{seq_len} is not within 5 to 512")
    if predictions > seq_len - 3:
        raise _refusal("--max-predictions", f"{predictions} do not fit {seq_len} tokens")
    if not 0 <= arguments.short_probability <= 1:
        raise _refusal("--short-probability", f"{arguments.short_probability} is no probability")
    if not 0 <= arguments.seed < 2**32:
        raise _refusal("--seed", f"{arguments.seed} is not within 0 to {2**32 - 1}")
    return Settings(
        format=arguments.format,
        seed=arguments.seed,
        seq_len=seq_len,
        predictions=predictions,
        duplicates=arguments.duplicates,
        short_probability=arguments.short_probability,
        sentence_per_line=arguments.sentences == "lines",
    )


def _words(arguments: argparse.Namespace) -> Vocabulary:
    from dlperf_hpc.data.build import Vocabulary

    trained = arguments.train_tokenizer
    if trained and (arguments.vocab or arguments.merges):
        raise _refusal("--train-tokenizer", "and --vocab are both given: one or the other")
    if arguments.vocab_size and not trained:
        raise _refusal("--vocab-size", "is for --train-tokenizer")
    size = (arguments.vocab_size or 8000) if trained else None
    return Vocabulary(arguments.vocab, arguments.merges, size, not arguments.cased)


@contextmanager
def _progress() -> Iterator[Advance]:
    """A bar on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("")
        yield lambda what, done, total: bar.update(
            task, description=what, completed=done, total=total
        )


def _prepare(arguments: argparse.Namespace) -> int:
    settings, words = _settings(arguments), _words(arguments)
    from dlperf_hpc.data.build import build

    with _progress() as advance:
        made = build(
            arguments.text, arguments.out, settings, words,
            whole_files=arguments.documents == "files", shard_count=arguments.shards,
            workers=arguments.workers, advance=advance,
        )  # fmt: skip
    if arguments.json:
        print(json.dumps(made, indent=1))
    else:
        count, files = made["samples"], len(made["files"])
        noun = "samples" if settings.format in ("hdf5", "tfrecord") else "documents"
        print(f"{made['out']}: {count} {noun} in {files} file(s), {made['seconds']} s")
    return 0


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    return common.run(_prepare, _parser(), argv, one_thread=True)


if __name__ == "__main__":
    sys.exit(main())
