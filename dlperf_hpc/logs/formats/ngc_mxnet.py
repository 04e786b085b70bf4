r"""ResNet-50 of NVIDIA's DeepLearningExamples for MXNet, before and since dllogger.

Both end with the table of NVIDIA's ``benchmark.py``, from which published figures are taken::

    train.ips
               |    128    |
    ------------------------
         8     |   2957.8  |

A row is a number of GPUs, a column a batch size per GPU; a cell is the harmonic mean of the
epochs' images/s after ``--warmup`` epochs, over all GPUs, with five digits.

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
from dlperf_hpc.logs.lineparts import NUMBER, full_stamp, one_more

_TABLE_LITERAL = " |   "
"""In the row of batch sizes, and in each row with a figure below 100,000."""

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
    return [cell.strip() for cell in text.split("|")[:-1]]


# --- mxnet_ngc

_BATCH = re.compile(
    r"Epoch\[(?P<epoch>[0-9]{1,15})\] Batch \[[0-9]+-(?P<last>[0-9]{1,15})\]\s+"
    rf"Speed: (?P<rate>{NUMBER}) samples/sec\s+LR: (?P<lr>{NUMBER})"
)


def _read_ngc(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """One line of some batches, or of the table; similar lines of other programs are left."""
    if "] Batch [" not in line.text:
        _table_line(line, builder, "train.total_ips")
        return
    match = _BATCH.search(line.text)
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
    """One line with a speed, with arguments, or of the table."""
    if "train.ips : " in line.text or PARAMETERS in line.text:
        read_lines(DLLOGGER_PROGRAM, line, builder)
    else:
        _table_line(line, builder, "train.ips")


LINES = {
    "mxnet_ngc": (LinePattern(take=_read_ngc),),
    "dllogger_mxnet_resnet": (LinePattern(take=_read_dllogger),),
}
