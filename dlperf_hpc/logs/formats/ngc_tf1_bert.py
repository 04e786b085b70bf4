"""BERT of NVIDIA's DeepLearningExamples for TensorFlow 1 (dllogger ``Iteration:``).

| since | line |
|---|---|
| 2020 | ``DLL 2021-05-26 03:51:01.399857 - Iteration: 2  throughput_train : 370.588 seq/s ..`` |
| some | ``.. - Iteration: 2 Rank : 0  throughput_train : ..`` |
| 2022-11 | ``.. throughput_train : 1239.665 sequences/s ..``, with AMP ``loss_scaler : ..`` |
| end | ``DLL .. -  throughput_train : 1238.020 sequences/s`` and :mod:`._ngc_tensorflow` |

The speed is over all GPUs and accumulated micro-batches, of the optimizer steps since the line
before, by the time of ``session.run`` alone. The number is the program's, one more than the
optimizer steps done: a run of 45 steps prints 2 to 46. A step that overflowed under AMP changes
nothing and is printed with the number of the one before, so ``Iteration: 1`` comes several times.
Rank 0 prints. The shape of the features, ``name = input_ids, shape = (96, 128)``, has the batch of
one GPU (``?`` in an evaluation); the flags are printed under Horovod only.
"""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Draft, Format, Line
from dlperf_hpc.logs.formats import _ngc_tensorflow, _shell
from dlperf_hpc.logs.formats._dllogger import Program, read_lines, records
from dlperf_hpc.logs.scan.rows import DECIMAL, FULL_STAMP, WHOLE, Rows
from dlperf_hpc.logs.scanned import Evidence

_ACCUMULATION = re.compile(r"  num_accumulation_steps: (?P<steps>[0-9]{1,9})\s*$")
_ROW = (
    rf"DLL (?P<full>{FULL_STAMP}) - Iteration: (?P<iteration>{WHOLE})  "
    rf"throughput_train : (?P<printed>[0-9]+\.[0-9]{{3}}) seq(?:uences)?/s "
    rf"(?:(?:mlm|nsp)_loss : {DECIMAL}  )*total_loss : (?P<loss>{DECIMAL})  "
    rf"(?:avg_loss_step : {DECIMAL}  )?learning_rate : (?P<lr>{DECIMAL}) "
)
_ROWS = (
    Rows(_ROW),
    Rows(
        rf"{_ROW} loss_scaler : {DECIMAL} ",
        usual=lambda draft, _: draft.latest("precision") == "fp16",
    ),
)
_XLA = re.compile(r"  use_xla: (?P<on>True|False)\s*$")
_SHAPE = re.compile(
    r"name = input_ids, shape = \((?P<batch>[0-9]{1,9}|\?), (?P<length>[0-9]{1,9})\)"
)
_PRECISION = re.compile(r"Precision = (?P<precision>fp(?:16|32))\s*$")

PROGRAM = Program(
    marks=("throughput_train",),
    rates=("throughput_train",),
    losses=("total_loss",),
    lrs=("learning_rate",),
    depth=1,
    decimals=3,
    totals={"throughput_train": "throughput_train"},
)


def read(line: Line, draft: Draft) -> None:
    """One line of an iteration, of the run, or with settings."""
    if "throughput_train : " in line.text:
        _record(line, draft)
    elif not (_ngc_tensorflow.averages(line, draft) or _shell.shell_fact(line, draft)):
        _setting(line, draft)


def _record(line: Line, draft: Draft) -> None:
    found = list(records(line.text))
    if all(record.step == () for record in found) and not (draft.steps or draft.totals):
        return  # the TensorFlow 2 program prints the record of the whole run too
    for record in found:
        rank = str(record.metrics.get("Rank", ""))
        if "loss_scaler" in record.metrics:
            draft.fact(line, "precision", "fp16")
        if rank.isascii() and rank.isdigit() and len(rank) < 9:
            line = line._replace(rank=int(rank))
    read_lines(PROGRAM, line, draft, found)


def _setting(line: Line, draft: Draft) -> None:
    shape, precision = _SHAPE.search(line.text), _PRECISION.search(line.text)
    accumulation, xla = _ACCUMULATION.search(line.text), _XLA.search(line.text)
    if shape is not None:
        draft.fact(line, "batch_size", shape["batch"])
        draft.fact(line, "seq_len", shape["length"])
    elif precision is not None:
        draft.fact(line, "precision", precision["precision"])
    elif accumulation is not None:
        draft.fact(line, "accumulation", accumulation["steps"])
    elif xla is not None:
        draft.fact(line, "xla", xla["on"] == "True")


FORMAT = Format(
    name="ngc_tf1_bert",
    title="NVIDIA DeepLearningExamples TensorFlow 1 BERT",
    framework="ngc-tensorflow",
    evidence=Evidence.REAL,
    source="NVIDIA/DeepLearningExamples TensorFlow/LanguageModeling/BERT/run_pretraining.py",
    needles=("throughput_train : ", "Throughput Average (sentences/sec)"),
    read=read,
    facts_needles=(
        *_ngc_tensorflow.PHASES,
        "name = input_ids, shape = (",
        "Precision = fp",
        "num_accumulation_steps",
        "use_xla: ",
        _shell.NEEDLE,
    ),
    rows=_ROWS,
)
