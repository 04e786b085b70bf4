"""NVIDIA's DeepLearningExamples for PyTorch, and the JSON file of all that use dllogger.

dllogger_pytorch_resnet
-----------------------
ResNet-50 of NVIDIA's DeepLearningExamples for PyTorch, on the screen (dllogger).

| since | line |
|---|---|
| 2019 | ``DLL .. - Epoch: 0 Iteration: 1  train.loss : 7.09  train.total_ips : 267.44 img/s`` |
| 2021 | ``.. train.loss : 7.14 None train.compute_ips : 25.22 images/s train.total_ips : ..`` |

``train.total_ips`` is over all GPUs, with the time for data in it: the mean of the speeds of the
iterations since the line before. An iteration is one batch of the loader (a micro-step if
``optimizer_batch_size`` asks for more), counted from 1 in each epoch. ``Summary:`` has the whole
run's mean, warm-up included; ``Epoch: 0`` that of an epoch, which is left. In the argument dump
``batch_size`` is per GPU.

dllogger_pytorch_bert
---------------------
BERT of NVIDIA's DeepLearningExamples for PyTorch, on the screen (dllogger).

| since | line |
|---|---|
| 2020 | ``DLL 2021-12-14 .. - Training Epoch: 0 Training Iteration: 14  average_loss : 9.1  step_loss : 9.0  learning_rate : ..`` |
| 2022 | ``... Training Iteration: 1  average_loss : 11.18  learning_rate : 0.001  skipped_steps : 1`` |
| last | ``... Training Iteration: 20  final_loss : 8.566 None`` |
| end | ``DLL .. -  e2e_train_time : 898.39 s training_sequences_per_second : 4208.1 sequences/s ..`` |

An iteration is an optimizer step, accumulation inside, counted over the epochs; the number is the
steps done, so that one which overflowed under AMP repeats it (0 if it was the first). The speed is
printed once, of the whole run: sequences over ``raw_train_time``, warm-up included, units since
2022. In the dump ``train_batch_size`` is before or after it was divided: it is left.

dllogger_json
-------------
dllogger's file, whichever of NVIDIA's programs wrote it: ``DLLL`` and a JSON object per line.

``DLLL {"timestamp": "1570716921.842053", "datetime": "2019-10-10 14:15:21.842053", "elapsedtime":
"5.7", "type": "LOG", "step": [0, 5], "data": {"train.loss": 8.56, "train.total_ips": 545.27}}``:
the times are strings, a step is a list, a number, or "PARAMETER" (arguments); METADATA records
have the units. The metrics show which program wrote the file, and so what its numbers mean: they
are the metrics and steps of that program's text, in full precision. A record that has none of a
program's metrics (its validation, its verbose part) is left. Of PyTorch's ResNet-50 real lines of
the file were read, of the other programs only real lines of the text.
"""  # noqa: E501 - a row of the table is a line of the log

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from dlperf_hpc.logs.format import Groups, Line, LinePattern, ReadingBuilder
from dlperf_hpc.logs.formats import format_named, mxnet, ngc_tensorflow
from dlperf_hpc.logs.formats._dllogger import (
    PARAMETERS,
    Program,
    Record,
    precision,
    read_lines,
    read_record,
    shell_fact,
)
from dlperf_hpc.logs.lineparts import DECIMAL, FULL_STAMP, WHOLE, full_stamp, json_object

# --- dllogger_pytorch_resnet


def _resnet_parameters(line: Line, builder: ReadingBuilder, record: Record) -> None:
    metrics = record.metrics
    if "optimizer_batch_size" not in metrics:
        return
    builder.fact(line, "model", str(metrics.get("arch", "")))
    builder.fact(line, "batch_size", str(metrics.get("batch_size")))
    builder.fact(line, "devices", str(metrics.get("world_size")))
    builder.fact(line, "precision", precision(metrics.get("amp"), metrics.get("fp16")))
    whole = str(metrics["optimizer_batch_size"])
    if whole == "-1":
        builder.fact(line, "accumulation", 1)
    else:
        builder.fact(line, "global_batch", whole)


RESNET_PROGRAM = Program(
    marks=("train.total_ips",),
    rates=("train.total_ips",),
    losses=("train.loss",),
    lrs=("train.lr", "lr"),
    depth=2,
    per_epoch=True,
    decimals=2,
    totals={"train.total_ips": "summary"},
    parameters=_resnet_parameters,
)


_RESNET_MARKS = ("train.total_ips : ", "Validation Iteration: ", PARAMETERS)
"""The name of the metric alone is in dllogger's JSON too, and heads a table of MXNet's."""


def _read_resnet(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """One line with the speed of an iteration, an epoch or the run, or with arguments."""
    if any(literal in line.text for literal in _RESNET_MARKS):
        read_lines(RESNET_PROGRAM, line, builder)


# --- dllogger_pytorch_bert

_ACCUMULATION = re.compile(r"\bgradient_accumulation_steps=([0-9]{1,9})\b", re.ASCII)
_ROWS = LinePattern(
    rf"^DLL (?P<full>{FULL_STAMP}) - Training Epoch: {WHOLE} "
    rf"Training Iteration: (?P<iteration>{WHOLE})  average_loss : {DECIMAL}  "
    rf"step_loss : (?P<loss>{DECIMAL})  learning_rate : (?P<lr>{DECIMAL}) $"
)
_LENGTH = re.compile(r"\bmax_seq_length=([0-9]{1,9})\b", re.ASCII)
_HALF = re.compile(r"\b(?:fp16|amp)=(True|False)\b", re.ASCII)


def _bert_parameters(line: Line, builder: ReadingBuilder, record: Record) -> None:
    if "batch_size_per_gpu" in record.metrics:
        builder.fact(line, "batch_size", str(record.metrics["batch_size_per_gpu"]))
    if "Namespace(" not in record.text:
        return
    for name, pattern in (("accumulation", _ACCUMULATION), ("seq_len", _LENGTH)):
        match = pattern.search(record.text)
        if match is not None:
            builder.fact(line, name, match[1])
    builder.fact(line, "precision", precision(*_HALF.findall(record.text)))


BERT_PROGRAM = Program(
    marks=("average_loss", "step_loss", "final_loss"),
    losses=("step_loss", "average_loss", "final_loss"),
    lrs=("learning_rate",),
    depth=2,
    totals={"training_sequences_per_second": "training_sequences_per_second"},
    parameters=_bert_parameters,
)


def _read_bert(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    if not shell_fact(line, builder):
        read_lines(BERT_PROGRAM, line, builder)


# --- dllogger_json

_WRITERS = (
    (RESNET_PROGRAM, "dllogger_pytorch_resnet"),
    (mxnet.DLLOGGER_PROGRAM, "dllogger_mxnet_resnet"),
    (BERT_PROGRAM, "dllogger_pytorch_bert"),
    (ngc_tensorflow.TF1_BERT_PROGRAM, "ngc_tf1_bert"),
    (ngc_tensorflow.TF1_RESNET_PROGRAM, "ngc_tf1_resnet"),
)
_SAMPLES = {"img/s", "images/s", "seq/s", "sequences/s"}
_LATEST = 1e11  # seconds since the epoch: no clock shows the year 5138
_MOST_UNITS = 1000
_MOST_PARAMETERS = 50


def _read_json(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    entry = json_object(line.text, "DLLL {")
    if entry is None:
        builder.note(line, "DLLL, but no JSON object that can be read")
    elif entry.get("type") == "METADATA":
        _metadata(builder, entry)
    elif isinstance(entry.get("data"), dict):
        _log(line, builder, entry["data"], _record(entry))


def _log(line: Line, builder: ReadingBuilder, data: Mapping[str, Any], record: Record) -> None:
    program: Program | None = builder.state.get("program") or _recognise(line, builder, data)
    if program is not None:
        if not read_record(program, line, builder, record):
            builder.note(line, "a step that no program writes")
    elif record.parameters:
        # The arguments come before the metrics that show which program wrote them.
        waiting = builder.state.setdefault("waiting", [])
        if len(waiting) < _MOST_PARAMETERS:
            waiting.append((line._replace(text=""), record))


def _recognise(line: Line, builder: ReadingBuilder, data: Mapping[str, Any]) -> Program | None:
    metrics = data.keys()
    found = next((each for each in _WRITERS if metrics & {*each[0].marks, *each[0].totals}), None)
    if found is None:
        return None
    program, written = found[0], format_named(found[1])
    builder.state["program"] = program
    builder.framework = written.framework
    builder.printed = written.printed
    builder.counter = written.counter
    units = builder.state.get("units", {})
    for metric in sorted({*program.rates, *program.totals} & units.keys()):
        if units[metric] not in _SAMPLES:
            builder.note(
                line, f"{metric} is in {units[metric][:40]!r}, which is taken for samples/s"
            )
    for earlier, parameters in builder.state.pop("waiting", []):
        read_record(program, earlier, builder, parameters)
    return program


def _record(entry: Mapping[str, Any]) -> Record:
    step = entry.get("step")
    text = str(entry["data"].get("Config", "")) if step == "PARAMETER" else ""
    return Record(_stamp(entry), _step(step), entry["data"], step == "PARAMETER", text)


def _step(step: Any) -> tuple[int, ...] | None:
    numbers = step if isinstance(step, list) else [step]
    if not all(type(number) is int and 0 <= number < 10**15 for number in numbers):
        return None
    return tuple(numbers)


def _stamp(entry: Mapping[str, Any]) -> float | None:
    """``timestamp``, or else ``datetime`` (older files of some programs have no zone in it)."""
    try:
        seconds = float(entry.get("timestamp"))  # type: ignore[arg-type]  # None: below
    except (TypeError, ValueError, OverflowError):
        return full_stamp(str(entry.get("datetime"))[:40])
    return seconds if math.isfinite(seconds) and 0 < seconds < _LATEST else None


def _metadata(builder: ReadingBuilder, entry: Mapping[str, Any]) -> None:
    units = builder.state.setdefault("units", {})
    metadata = entry.get("metadata")
    unit = metadata.get("unit") if isinstance(metadata, dict) else None
    if isinstance(unit, str) and len(units) < _MOST_UNITS:
        units[str(entry.get("metric"))] = unit


LINES = {
    "dllogger_pytorch_resnet": (LinePattern(take=_read_resnet),),
    "dllogger_pytorch_bert": (_ROWS, LinePattern(take=_read_bert)),
    "dllogger_json": (LinePattern(take=_read_json),),
}
