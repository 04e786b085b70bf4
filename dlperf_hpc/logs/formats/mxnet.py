r"""MXNet: gluon-nlp's BERT, InsightFace, and ResNet-50 of NVIDIA's DeepLearningExamples.

Both programs for ResNet-50 end with the table of NVIDIA's ``benchmark.py``, from which published
figures are taken::

    train.ips
               |    128    |
    ------------------------
         8     |   2957.8  |

A row is a number of GPUs, a column a batch size per GPU; a cell is the harmonic mean of the
epochs' images/s after ``--warmup`` epochs, over all GPUs, with five digits.

mxnet_gluon_bert
----------------
gluon-nlp's BERT pre-training on MXNet (scripts/bert of its releases 0.x).

``[step 20]\tmlm_loss=9.12345\tmlm_acc=5.12\tnsp_loss=0.69\tnsp_acc=52.1\t`` and, on the same
line, ``throughput=18.7K tks/s\tlr=0.0000100 time=12.34, latency=617.1 ms/batch`` (later
``ms/step``, the same number). Every rank prints.

The throughput counts the tokens that are no padding, of this rank, in thousands and to one
decimal; so the latency is read: the mean time of an optimizer step (accumulation inside) since
the line before, which is one time for all ranks. The oldest lines end with ``time=``, and no speed
is read of them. The step is of optimizer steps done; in old versions it is an index from 0, which
a line does not show, so that it may be one too low.

insightface
-----------
MXNet's InsightFace (deepinsight/insightface ArcFace: ``mx.callback.Speedometer``).

``INFO:root:Epoch[0] Batch [20]\tSpeed: 1195.56 samples/sec\tacc=0.000000``, with MXNet before
1.3. From then on MXNet prints a range, ``Batch [0-20]``: that line is another format's.

The batch is a 0-based index within the epoch (``Module.fit``), so 20 means 21 done; a loop of
one's own that prints the same line may count from 1. An epoch's length is not printed: later ones
are counted on from the last printed batch. The speed is of all devices of the process,
since the line before.

insightface_partial_fc
----------------------
InsightFace's Partial FC with MXNet and Horovod (recognition/partial_fc/mxnet/callbacks.py).

``rank-id:0:2021-01-08 19:22:59,208-Iter:460 Rank:207.42 it/sec Total:1659.38 it/sec
[0][loss]:0.01``, in one line.

The iteration counts from 1. For all its ``it/sec``, ``Total`` is samples/s of all ranks (batch x
iterations / seconds x ranks), since the line before. Rank 0 prints.

mxnet_ngc
---------
ResNet-50 of NVIDIA's DeepLearningExamples for MXNet up to 2020 (python logging, on stderr).

``2020-12-16 08:21:31,031:INFO: Epoch[0] Batch [0-19]\tSpeed: 833.904 samples/sec\tLR: 0.0043``:
every rank prints the speed over all GPUs that it saw since its line before; the batches are
indices from 0 within the epoch. At the end, under ``train.total_ips``, stands the table of
``benchmark.py``. MXNet's own Speedometer prints similar lines without
``LR``, with the speed of one process: those are not read.

dllogger_mxnet_resnet
---------------------
ResNet-50 of NVIDIA's DeepLearningExamples for MXNet since 2021, on the screen (dllogger).

``DLL 2023-07-31 09:17:53.117629 - Epoch: 2 Iteration: 479  train.loss : 5.87  train.ips : 2945.19
images/s train.lr : 0``: images/s over all GPUs since the line before, printed by rank 0; the
iteration is an index from 0 within the epoch, whose length is ``benchmark_iters`` of the argument
dump if that is a number. ``Summary:`` has the mean of the epochs, and the table
follows. In the dump ``batch_size`` is over all GPUs, ``gpus`` are those of one node.
"""

from __future__ import annotations

import re
from typing import Any

from dlperf_hpc.logs.format import Groups, Line, LinePattern, ReadingBuilder
from dlperf_hpc.logs.formats._dllogger import PARAMETERS, Program, Record, flag, read_lines
from dlperf_hpc.logs.lineparts import NUMBER, cut_short, full_stamp, one_more, word

# --- mxnet_gluon_bert


def _read_step(line: Line, builder: ReadingBuilder, match: Groups) -> None:
    latency = match["printed"]
    if latency is not None and cut_short(latency, 1):
        builder.note(line, f"latency {latency[:40]!r} is cut")
        latency = None
    stamp = full_stamp(line.text)
    builder.step(
        line, match["iteration"], stamp=stamp, printed=latency, loss=match["loss"], lr=match["lr"]
    )


# --- tables

_TABLE_ROW = re.compile(
    r" *(?P<gpus>[0-9]{1,5}) *\|(?P<cells>(?: *[-+.0-9a-z]{1,15} *\|){1,32})\s*"
)
_TABLE_HEAD = re.compile(r" *\|(?P<cells>(?: *[0-9]{1,7} *\|){1,32})\s*")


def _table_line(line: Line, builder: ReadingBuilder, metric: str) -> bool:
    """Whether the line belongs to the table whose head is ``metric`` alone on its line."""
    if line.text.strip() == metric:
        builder.state["table"] = (line.number, ())
        return True
    if "|" not in line.text or "table" not in builder.state:
        return False
    top, sizes = builder.state["table"]
    head = _TABLE_HEAD.fullmatch(line.text)
    if head is not None:
        # The next table (val.ips) has a head too, but not below our metric's name.
        if line.number == top + 1:
            builder.state["table"] = (top, tuple(_cells(head["cells"])))
        else:
            del builder.state["table"]
        return True
    row = _TABLE_ROW.fullmatch(line.text)
    if row is None or not sizes:
        return False
    _table_row(line, builder, row["gpus"], sizes, _cells(row["cells"]))
    return True


def _table_row(
    line: Line, builder: ReadingBuilder, gpus: str, sizes: tuple[str, ...], cells: list[str]
) -> None:
    if len(cells) != len(sizes):
        builder.note(line, f"a row of {len(cells)} cells below {len(sizes)} batch sizes")
        return
    for size, cell in zip(sizes, cells):
        builder.total(line, "table" if len(sizes) == 1 else f"table, batch size {size}", cell)
    if len(sizes) == 1:
        builder.fact(line, "devices", gpus)
        builder.fact(line, "batch_size", sizes[0])


def _cells(text: str) -> list[str]:
    return list(map(str.strip, text.split("|")[:-1]))


# --- mxnet_ngc

_NGC_BATCH = re.compile(
    r"Epoch\[(?P<epoch>[0-9]{1,15})\] Batch \[[0-9]+-(?P<last>[0-9]{1,15})\]\s+"
    rf"Speed: (?P<rate>{NUMBER}) samples/sec\s+LR: (?P<lr>{NUMBER})"
)


def _read_ngc(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """One line of some batches, or of the table; similar lines of other programs are left."""
    if "] Batch [" not in line.text:
        _table_line(line, builder, "train.total_ips")
        return
    match = _NGC_BATCH.search(line.text)
    if match is not None:
        done = builder.over_epochs(line, int(match["epoch"]), int(one_more(match["last"])))
        builder.step(line, done, stamp=full_stamp(line.text), printed=match["rate"], lr=match["lr"])
    elif "samples/sec" in line.text and "LR: " in line.text:
        builder.note(line, "Speed and LR, but not as the training loop prints them")


# --- dllogger_mxnet_resnet

_GPUS = re.compile(r"\bgpus : \[([0-9, ]*)\]", re.ASCII)
_PRECISION = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def _parameters(line: Line, builder: ReadingBuilder, record: Record) -> None:
    metrics = record.metrics
    if "kv_store" not in metrics:
        return
    length = str(metrics.get("benchmark_iters"))
    if length.isascii() and length.isdigit() and len(length) < 10:
        builder.state["epoch_length"] = int(length)
    if str(metrics.get("arch", "")).startswith("resnet"):
        builder.fact(line, "model", f"resnet{metrics.get('num_layers', '')}"[:20])
    builder.fact(line, "global_batch", str(metrics.get("batch_size")))
    builder.fact(line, "gpus_per_node", _gpus(metrics.get("gpus"), record.text))
    half = "fp16" if flag(metrics.get("amp")) else _PRECISION.get(str(metrics.get("dtype")))
    builder.fact(line, "precision", half)


def _gpus(value: Any, text: str) -> int:
    if isinstance(value, list):
        return len(value)
    match = _GPUS.search(text)
    return match[1].count(",") + 1 if match and match[1].strip() else 0


DLLOGGER_PROGRAM = Program(
    marks=("train.ips",),
    rates=("train.ips",),
    losses=("train.loss",),
    lrs=("train.lr",),
    depth=2,
    first=0,
    per_epoch=True,
    totals={"train.ips": "summary"},
    parameters=_parameters,
)


def _read_dllogger(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    if "train.ips : " in line.text or PARAMETERS in line.text:
        read_lines(DLLOGGER_PROGRAM, line, builder)
    else:
        _table_line(line, builder, "train.ips")


LINES = {
    "mxnet_gluon_bert": (
        LinePattern(
            rf"\[step (?P<iteration>[0-9]+)\]\s+mlm_loss=\s*(?P<loss>{NUMBER})\s[^=]*=.{{0,200}}?"
            rf"throughput=\S+K tks/s\s+lr=(?P<lr>{NUMBER}) time=[0-9.]+"
            rf"(?:, latency=(?P<printed>{NUMBER}) ms/(?:batch|step))?",
            clock="full",
            take=_read_step,
            usual=lambda _, columns: (
                not any(cut_short(each, 1) for each in columns.get("printed", ()))
            ),
        ),
        # An evaluation's line ends at ``tks/s``.
        LinePattern(r"\[step [0-9]+\].{0,200}K tks/s\s*$", passed_over=True),
        LinePattern("K tks/s", note="K tks/s, but not as gluon-nlp's BERT prints it"),
    ),
    "insightface": (
        LinePattern(
            rf"{word('Epoch')}\[(?P<epoch>[0-9]{{1,9}})\] Batch \[(?P<index>[0-9]{{1,9}})\]\s+"
            rf"Speed: (?P<printed>{NUMBER}) samples/sec"
            rf"(?:.*?{word('lossvalue=')}(?P<loss>{NUMBER}))?",
            clock="full",
        ),
        LinePattern(
            rf"{word('Epoch')}\[[0-9]+\] Batch \[[0-9]+\]\s+Speed: ",
            note="a batch of MXNet's Speedometer, but without its speed",
        ),
    ),
    "insightface_partial_fc": (
        LinePattern(
            rf"\bIter:(?P<iteration>[0-9]+) Rank:{NUMBER} it/sec Total:(?P<printed>{NUMBER}) it/sec"
            r"(?: +\[[0-9]+\]\[loss\]:(?P<loss>[0-9]+\.[0-9]{2})(?![0-9.]))?",
            clock="full",
        ),
        LinePattern(
            " it/sec Total:", note="it/sec of a rank and in total, but no iteration of Partial FC"
        ),
    ),
    "mxnet_ngc": (LinePattern(take=_read_ngc),),
    "dllogger_mxnet_resnet": (LinePattern(take=_read_dllogger),),
}
