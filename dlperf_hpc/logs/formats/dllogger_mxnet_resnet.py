"""ResNet-50 of NVIDIA's DeepLearningExamples for MXNet since 2021, on the screen (dllogger).

``DLL 2023-07-31 09:17:53.117629 - Epoch: 2 Iteration: 479  train.loss : 5.87  train.ips : 2945.19
images/s train.lr : 0``: images/s over all GPUs since the line before, printed by rank 0; the
iteration is an index from 0 within the epoch, whose length is ``benchmark_iters`` of the argument
dump if that is a number. ``Summary:`` has the mean of the epochs, and the table of
``benchmark.py``, which published figures are taken from, follows (:mod:`._mxnet_table`). In the
dump ``batch_size`` is over all GPUs, ``gpus`` are those of one node.
"""

from __future__ import annotations

import re
from typing import Any

from dlperf_hpc.logs.format import Draft, Format, Line
from dlperf_hpc.logs.formats import _mxnet_table
from dlperf_hpc.logs.formats._dllogger import PARAMETERS, Program, Record, flag, read_lines
from dlperf_hpc.logs.scanned import Evidence

_GPUS = re.compile(r"\bgpus : \[([0-9, ]*)\]", re.ASCII)
_PRECISION = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def _parameters(line: Line, draft: Draft, record: Record) -> None:
    stated = record.metrics
    if "kv_store" not in stated:
        return
    length = str(stated.get("benchmark_iters"))
    if length.isascii() and length.isdigit() and len(length) < 10:
        draft.state["epoch_length"] = int(length)
    if str(stated.get("arch", "")).startswith("resnet"):
        draft.fact(line, "model", f"resnet{stated.get('num_layers', '')}"[:20])
    draft.fact(line, "global_batch", str(stated.get("batch_size")))
    draft.fact(line, "gpus_per_node", _gpus(stated.get("gpus"), record.text))
    half = "fp16" if flag(stated.get("amp")) else _PRECISION.get(str(stated.get("dtype")))
    draft.fact(line, "precision", half)


def _gpus(value: Any, text: str) -> int:
    if isinstance(value, list):
        return len(value)
    match = _GPUS.search(text)
    return match[1].count(",") + 1 if match and match[1].strip() else 0


PROGRAM = Program(
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


def read(line: Line, draft: Draft) -> None:
    """One line with a speed, with arguments, or of the table."""
    if "train.ips : " in line.text or PARAMETERS in line.text:
        read_lines(PROGRAM, line, draft)
    else:
        _mxnet_table.table_line(line, draft, "train.ips")


FORMAT = Format(
    name="dllogger_mxnet_resnet",
    title="NVIDIA DeepLearningExamples MXNet ResNet-50 (dllogger text)",
    framework="ngc-mxnet",
    evidence=Evidence.REAL,
    source="NVIDIA/DeepLearningExamples MxNet/Classification/RN50v1.5/fit.py, benchmark.py",
    needles=("train.ips",),
    read=read,
    facts_needles=(PARAMETERS, _mxnet_table.NEEDLE),
)
