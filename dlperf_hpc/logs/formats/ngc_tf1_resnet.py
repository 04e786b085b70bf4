"""ResNet-50 of NVIDIA's DeepLearningExamples for TensorFlow 1 (dllogger, plain steps).

| since | line |
|---|---|
| 20.03 | ``DLL .. - (0, 20) imgs_per_sec : 390.1  cross_entropy : ..  total_loss : ..`` |
| 20.12 | ``DLL 2022-06-07 08:11:20.889682 - (0, 200) total_ips : 1142.672393463279`` |
| end | ``DLL .. - () train_throughput : 1219.65 images/s`` (no unit before 2022-11) |

Both speeds are those of the last iteration alone (its ``session.run``), over all GPUs, also where
only every tenth is printed; the number is an index from 0 over all epochs, and the first
``warmup_steps`` are not printed. ``train_throughput`` is the mean over those after them.
``imgs_per_sec`` is known from the source only. In the dump ``batch_size`` is per GPU; the number of
GPUs stands in ``Num GPUs 8``.
"""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Draft, Format, Line
from dlperf_hpc.logs.formats._dllogger import (
    PARAMETERS,
    Program,
    Record,
    flag,
    precision,
    read_lines,
)
from dlperf_hpc.logs.scanned import Averaging, Evidence, Printed

_OWN = re.compile(
    r"(?<![\w.])(?:(?:total_ips|imgs_per_sec|train_throughput) : |PARAMETER )", re.ASCII
)
_PRINT = re.compile(r"(?P<name>Num GPUs|Per-GPU Batch Size) (?P<value>[0-9]{1,9})\s*")
_PRINTED_FACTS = {"Num GPUs": "devices", "Per-GPU Batch Size": "batch_size"}


def _parameters(line: Line, draft: Draft, record: Record) -> None:
    stated = record.metrics
    if "iter_unit" not in stated:
        return
    draft.fact(line, "model", str(stated.get("arch", "")))
    draft.fact(line, "batch_size", str(stated.get("batch_size")))
    draft.fact(line, "precision", precision(stated.get("amp")))
    draft.fact(line, "xla", flag(stated.get("xla")))


PROGRAM = Program(
    marks=("total_ips", "imgs_per_sec"),
    rates=("total_ips", "imgs_per_sec"),
    losses=("total_loss",),
    lrs=("learning_rate",),
    depth=2,
    first=0,
    totals={"train_throughput": "train_throughput"},
    parameters=_parameters,
)
PRINTED = Printed(averaging=Averaging.LAST_ONE)


def read(line: Line, draft: Draft) -> None:
    """One line of an iteration, of the run, or with arguments.

    ``total_ips : `` is also part of other programs' metrics: those lines are left to them.
    """
    stated = _PRINT.fullmatch(line.text)
    if stated is not None:
        draft.fact(line, _PRINTED_FACTS[stated["name"]], stated["value"])
    elif _OWN.search(line.text):
        read_lines(PROGRAM, line, draft)


FORMAT = Format(
    name="ngc_tf1_resnet",
    title="NVIDIA DeepLearningExamples TensorFlow 1 ResNet-50",
    framework="ngc-tensorflow",
    evidence=Evidence.REAL,
    source="NVIDIA/DeepLearningExamples TensorFlow/Classification/ConvNets/utils/hooks",
    needles=("total_ips : ", "imgs_per_sec : ", "train_throughput : "),
    read=read,
    printed=PRINTED,
    facts_needles=(PARAMETERS, "Num GPUs ", "Per-GPU Batch Size "),
)
