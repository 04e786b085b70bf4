"""``dlperf prepare TEXT.. --out DIR``: training data from plain text."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from dlperf_hpc.cli import messages, options
from dlperf_hpc.cli.messages import usage_error
from dlperf_hpc.cli.options import count
from dlperf_hpc.errors import visible
from dlperf_hpc.train.workloads.bert import predictions_per_sequence

if TYPE_CHECKING:
    from dlperf_hpc.data.build import PrepareSettings, Vocabulary

SUMMARY = "prepare training data from plain text"

_DESCRIPTION = """\
Turn text into the files that `data = "real"` reads: hdf5 (NVIDIA's layout) or tfrecord (Google's
seven features) for BERT, megatron (.bin and .idx) for GPT-2, or jsonl (loose JSON, for Megatron's
own tools). The same text, settings and seed give the same files, whatever the number of workers.
"""
_EPILOG = """\
examples:
  dlperf prepare wiki/ --format hdf5 --vocab vocab.txt --out wiki_128
  dlperf prepare a.txt --format megatron --train-tokenizer --out a_gpt2
"""
_FORMATS = ("hdf5", "tfrecord", "megatron", "jsonl")


def _parser() -> argparse.ArgumentParser:
    made = options.parser("prepare", _DESCRIPTION, _EPILOG)
    add = made.add_argument
    add("text", type=Path, nargs="+", help='text files, JSON lines with "text", or directories')
    add("--out", type=Path, required=True, help="the directory to write: a new or an empty one")
    add("--format", choices=_FORMATS, required=True, help="format of the files")
    documents = ("blank-lines", "files")
    ends = "what ends a document of plain text: a blank line, or its file (default: blank-lines)"
    add("--documents", choices=documents, default=documents[0], help=ends)
    add(
        "--shards", type=count, metavar="N", help="files to write (default: one per 16 MiB of text)"
    )
    workers = "worker processes (default: the number of CPUs)"
    add("--workers", type=count, default=os.cpu_count() or 1, metavar="N", help=workers)
    add("--seed", type=int, default=1, metavar="N", help="seed of the random choices (default: 1)")
    options.add_json(made, "the manifest and the time")
    words = made.add_argument_group("vocabulary")
    words.add_argument("--vocab", type=Path, help="vocab.txt (BERT) or vocab.json (GPT-2)")
    words.add_argument("--merges", type=Path, help="merges.txt (GPT-2)")
    learnt = "learn the vocabulary from the text"
    words.add_argument("--train-tokenizer", action="store_true", help=learnt)
    size = "tokens of the learnt vocabulary (default: 8000)"
    words.add_argument("--vocab-size", type=count, metavar="N", help=size)
    words.add_argument("--cased", action="store_true", help="BERT: keep capitals and accents")
    bert = made.add_argument_group("samples of BERT (hdf5 and tfrecord)")
    seq_len = "tokens per sample (default: 128)"
    bert.add_argument("--seq-len", type=count, default=128, metavar="N", help=seq_len)
    predictions = (
        "most masked tokens of a sample (default: 20 of 128, 80 of 512, 5/32 of other lengths)"
    )
    bert.add_argument("--max-predictions", type=count, metavar="N", help=predictions)
    duplicates = "how often each document is used, with other masks each time (default: 1)"
    bert.add_argument("--duplicates", type=count, default=1, metavar="N", help=duplicates)
    short = "share of the samples that are cut to a random length (default: 0.1)"
    bert.add_argument("--short-probability", type=float, default=0.1, metavar="P", help=short)
    sentence = "lines: each line of the text is one sentence (default: split at full stops)"
    bert.add_argument("--sentences", choices=("split", "lines"), default="split", help=sentence)
    return made


def _settings(arguments: argparse.Namespace) -> PrepareSettings:
    from dlperf_hpc.data.build import PrepareSettings

    seq_len = arguments.seq_len
    predictions = arguments.max_predictions or predictions_per_sequence(seq_len)
    if arguments.format in ("hdf5", "tfrecord") and not 5 <= seq_len <= 512:
        raise usage_error("--seq-len", f"{seq_len} is not within 5 to 512")
    if predictions > seq_len - 3:
        raise usage_error("--max-predictions", f"{predictions} masked tokens do not fit {seq_len}")
    if not 0 <= arguments.short_probability <= 1:
        raise usage_error(
            "--short-probability", f"{arguments.short_probability} is not within 0 to 1"
        )
    if not 0 <= arguments.seed < 2**32:
        raise usage_error("--seed", f"{arguments.seed} is not within 0 to {2**32 - 1}")
    return PrepareSettings(
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
        raise usage_error(
            "--train-tokenizer", "a vocabulary is given too", "leave out --vocab and --merges"
        )
    if arguments.vocab_size and not trained:
        raise usage_error("--vocab-size", "has no meaning without --train-tokenizer")
    size = (arguments.vocab_size or 8000) if trained else None
    return Vocabulary(arguments.vocab, arguments.merges, size, not arguments.cased)


def _prepare(arguments: argparse.Namespace) -> int:
    settings, words = _settings(arguments), _words(arguments)
    from dlperf_hpc.data.build import build

    with messages.counting_bar() as advance:
        made = build(
            arguments.text, arguments.out, settings, words,
            whole_files=arguments.documents == "files", shard_count=arguments.shards,
            workers=arguments.workers, advance=advance,
        )  # fmt: skip
    if arguments.json:
        messages.print_json(made)
    else:
        samples, files = made["samples"], len(made["files"])
        noun = "samples" if settings.format in ("hdf5", "tfrecord") else "documents"
        print(
            f"{visible(str(made['out']))}: {samples} {noun} in {files} file(s), {made['seconds']} s"
        )
    return 0


main = messages.entry(_prepare, _parser, one_thread=True)
