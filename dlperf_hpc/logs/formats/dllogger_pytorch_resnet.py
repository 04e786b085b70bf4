"""ResNet-50 of NVIDIA's DeepLearningExamples for PyTorch, on the screen (dllogger).

| since | line |
|---|---|
| 2019 | ``DLL .. - Epoch: 0 Iteration: 1  train.loss : 7.09  train.total_ips : 267.44 img/s`` |
| 2021 | ``.. train.loss : 7.14 None train.compute_ips : 25.22 images/s train.total_ips : ..`` |

``train.total_ips`` is over all GPUs, with the time for data in it: the mean of the speeds of the
iterations since the line before. An iteration is one batch of the loader (a micro-step if
``optimizer_batch_size`` asks for more), counted from 1 in each epoch. ``Summary:`` has the whole
run's mean, warm-up included; ``Epoch: 0`` that of an epoch, which is left. In the argument dump
``batch_size`` is per GPU.
"""

from __future__ import annotations

from dlperf_hpc.logs.format import Draft, Format, Line
from dlperf_hpc.logs.formats._dllogger import PARAMETERS, Program, Record, precision, read_lines
from dlperf_hpc.logs.scanned import Counter, Evidence


def _parameters(line: Line, draft: Draft, record: Record) -> None:
    stated = record.metrics
    if "optimizer_batch_size" not in stated:
        return
    draft.fact(line, "model", str(stated.get("arch", "")))
    draft.fact(line, "batch_size", str(stated.get("batch_size")))
    draft.fact(line, "devices", str(stated.get("world_size")))
    draft.fact(line, "precision", precision(stated.get("amp"), stated.get("fp16")))
    whole = str(stated["optimizer_batch_size"])
    if whole == "-1":
        draft.fact(line, "accumulation", 1)
    else:
        draft.fact(line, "global_batch", whole)


PROGRAM = Program(
    marks=("train.total_ips",),
    rates=("train.total_ips",),
    losses=("train.loss",),
    lrs=("train.lr", "lr"),
    depth=2,
    per_epoch=True,
    decimals=2,
    totals={"train.total_ips": "summary"},
    parameters=_parameters,
)


_OWN = ("train.total_ips : ", "Validation Iteration: ", PARAMETERS)
"""The name of the metric alone is in dllogger's JSON too, and heads a table of MXNet's."""


def read(line: Line, draft: Draft) -> None:
    """One line with the speed of an iteration, an epoch or the run, or with arguments."""
    if any(needle in line.text for needle in _OWN):
        read_lines(PROGRAM, line, draft)


FORMAT = Format(
    name="dllogger_pytorch_resnet",
    title="NVIDIA DeepLearningExamples PyTorch ResNet-50 (dllogger text)",
    framework="ngc-pytorch",
    evidence=Evidence.REAL,
    source="NVIDIA/DeepLearningExamples PyTorch/Classification/ConvNets/image_classification",
    needles=("train.total_ips",),
    read=read,
    counter=Counter.MICRO_STEPS,
    facts_needles=(PARAMETERS, "Validation Iteration: "),
)
