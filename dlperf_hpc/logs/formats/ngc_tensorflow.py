"""NVIDIA's DeepLearningExamples for TensorFlow 1 and 2.

Both BERT programs print averages when they are done:
``Throughput Average (sentences/sec) with overhead = 1033.33`` and, without start and checkpoints,
``Throughput Average (sentences/sec) = 1067.19`` (TF2: ``sequences/sec``). TF1 prints each twice,
through ``INFO:tensorflow:`` and through absl; an evaluation prints the same words for itself,
after its own ``Total Inference Time``.

ngc_tf1_bert
------------
BERT of NVIDIA's DeepLearningExamples for TensorFlow 1 (dllogger ``Iteration:``).

| since | line |
|---|---|
| 2020 | ``DLL 2021-05-26 03:51:01.399857 - Iteration: 2  throughput_train : 370.588 seq/s ..`` |
| some | ``.. - Iteration: 2 Rank : 0  throughput_train : ..`` |
| 2022-11 | ``.. throughput_train : 1239.665 sequences/s ..``, with AMP ``loss_scaler : ..`` |
| end | ``DLL .. -  throughput_train : 1238.020 sequences/s`` and the averages |

The speed is over all GPUs and accumulated micro-batches, of the optimizer steps since the line
before, by the time of ``session.run`` alone. The number is the program's, one more than the
optimizer steps done: a run of 45 steps prints 2 to 46. A step that overflowed under AMP changes
nothing and is printed with the number of the one before, so ``Iteration: 1`` comes several times.
Rank 0 prints. The shape of the features, ``name = input_ids, shape = (96, 128)``, has the batch of
one GPU (``?`` in an evaluation); the flags are printed under Horovod only.

ngc_tf1_resnet
--------------
ResNet-50 of NVIDIA's DeepLearningExamples for TensorFlow 1 (dllogger, plain steps).

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

ngc_tf2_bert
------------
BERT of NVIDIA's DeepLearningExamples for TensorFlow 2: three lines for each round of steps.

::

    I0302 02:15:34.291999 140.. model_training_utils.py:538] Step: 47 Lr 1.6526e-05 Loss ..
    I0302 02:15:34.292104 140.. ..539] Train Step: 47/90  / loss = 11.0390625 / time = 0.136 sec
    I0302 02:15:34.292135 140.. ..540] Perf 7.74

``Step`` is missing without 16 bits. The number is of optimizer steps done; ``Perf`` is the speed
over all GPUs and accumulated micro-batches, of the steps since the line before, without what the
loop does besides them. The stamps have no year. Rank 0 prints. At the end stand the averages
and ``DLL .. -  throughput_train : ..``, which are known from the source.
"""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Groups, Line, LinePattern, ReadingBuilder
from dlperf_hpc.logs.formats._dllogger import (
    Program,
    Record,
    flag,
    precision,
    read_lines,
    read_record,
    records,
    shell_fact,
)
from dlperf_hpc.logs.formats.tensorflow_keras import BERT_STEP
from dlperf_hpc.logs.lineparts import (
    DECIMAL,
    FULL_STAMP,
    NUMBER,
    WHOLE,
    absl_stamp,
    cut_short,
    first_of,
)
from dlperf_hpc.logs.scanned import Stamps

_PHASES = ("Total Training Time", "Total Inference Time")
"""Each stands before the average of its phase."""

_AVERAGES = ("average", "average with overhead")
_AVERAGE = re.compile(
    r"Throughput Average \((?:sentences|sequences)/sec\)(?P<with> with overhead)? = "
    rf"(?P<value>{NUMBER})\s*$"
)


def _average(line: Line, builder: ReadingBuilder) -> bool:
    """Whether the line is an average or names the next one's phase; training's become totals."""
    for phase in _PHASES:
        if phase in line.text:
            builder.state.update(dict.fromkeys(_AVERAGES), phase=phase)
            return True
    match = _AVERAGE.search(line.text)
    if match is None:
        return False
    if builder.state.get("phase") == _PHASES[0]:
        _add_total_once(line, builder, _AVERAGES[bool(match["with"])], match["value"])
    return True


def _add_total_once(line: Line, builder: ReadingBuilder, name: str, value: str) -> None:
    if builder.state.get(name) != value:
        builder.state[name] = value
        builder.total(line, name, value)


# --- ngc_tf1_bert

_ACCUMULATION = re.compile(r"  num_accumulation_steps: (?P<steps>[0-9]{1,9})\s*$")
_ROW = (
    rf"^DLL (?P<full>{FULL_STAMP}) - Iteration: (?P<iteration>{WHOLE})  "
    rf"throughput_train : (?P<printed>[0-9]+\.[0-9]{{3}}) seq(?:uences)?/s "
    rf"(?:(?:mlm|nsp)_loss : {DECIMAL}  )*total_loss : (?P<loss>{DECIMAL})  "
    rf"(?:avg_loss_step : {DECIMAL}  )?learning_rate : (?P<lr>{DECIMAL}) "
)
_ROWS = (
    LinePattern(rf"{_ROW}$"),
    LinePattern(
        rf"{_ROW} loss_scaler : {DECIMAL} $",
        usual=lambda builder, _: builder.latest("precision") == "fp16",
    ),
)
_XLA = re.compile(r"  use_xla: (?P<on>True|False)\s*$")
_SHAPE = re.compile(
    r"name = input_ids, shape = \((?P<batch>[0-9]{1,9}|\?), (?P<length>[0-9]{1,9})\)"
)
_PRECISION = re.compile(r"Precision = (?P<precision>fp(?:16|32))\s*$")

TF1_BERT_PROGRAM = Program(
    marks=("throughput_train",),
    rates=("throughput_train",),
    losses=("total_loss",),
    lrs=("learning_rate",),
    depth=1,
    decimals=3,
    totals={"throughput_train": "throughput_train"},
)


def _read_tf1_bert(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    if "throughput_train : " in line.text:
        _tf1_bert_record(line, builder)
    elif not (_average(line, builder) or shell_fact(line, builder)):
        _tf1_bert_setting(line, builder)


def _tf1_bert_record(line: Line, builder: ReadingBuilder) -> None:
    found = list(records(line.text))
    if all(record.step == () for record in found) and not (builder.steps or builder.totals):
        return  # the TensorFlow 2 program prints the record of the whole run too
    for record in found:
        rank = str(record.metrics.get("Rank", ""))
        if "loss_scaler" in record.metrics:
            builder.fact(line, "precision", "fp16")
        if rank.isascii() and rank.isdigit() and len(rank) < 9:
            line = line._replace(rank=int(rank))
    read_lines(TF1_BERT_PROGRAM, line, builder, found)


def _tf1_bert_setting(line: Line, builder: ReadingBuilder) -> None:
    shape, precision = _SHAPE.search(line.text), _PRECISION.search(line.text)
    accumulation, xla = _ACCUMULATION.search(line.text), _XLA.search(line.text)
    if shape is not None:
        builder.fact(line, "batch_size", shape["batch"])
        builder.fact(line, "seq_len", shape["length"])
    elif precision is not None:
        builder.fact(line, "precision", precision["precision"])
    elif accumulation is not None:
        builder.fact(line, "accumulation", accumulation["steps"])
    elif xla is not None:
        builder.fact(line, "xla", xla["on"] == "True")


# --- ngc_tf1_resnet

_OWN = re.compile(
    r"(?<![\w.])(?:(?:total_ips|imgs_per_sec|train_throughput) : |PARAMETER )", re.ASCII
)
_PRINT = re.compile(r"(?P<name>Num GPUs|Per-GPU Batch Size) (?P<value>[0-9]{1,9})\s*")
_PRINTED_FACTS = {"Num GPUs": "devices", "Per-GPU Batch Size": "batch_size"}


def _tf1_resnet_parameters(line: Line, builder: ReadingBuilder, record: Record) -> None:
    metrics = record.metrics
    if "iter_unit" not in metrics:
        return
    builder.fact(line, "model", str(metrics.get("arch", "")))
    builder.fact(line, "batch_size", str(metrics.get("batch_size")))
    builder.fact(line, "precision", precision(metrics.get("amp")))
    builder.fact(line, "xla", flag(metrics.get("xla")))


TF1_RESNET_PROGRAM = Program(
    marks=("total_ips", "imgs_per_sec"),
    rates=("total_ips", "imgs_per_sec"),
    losses=("total_loss",),
    lrs=("learning_rate",),
    depth=2,
    first=0,
    totals={"train_throughput": "train_throughput"},
    parameters=_tf1_resnet_parameters,
)


def _read_tf1_resnet(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """One line of an iteration, of the run, or with arguments.

    ``total_ips : `` is also part of other programs' metrics: those lines are left to them.
    """
    setting = _PRINT.fullmatch(line.text)
    if setting is not None:
        builder.fact(line, _PRINTED_FACTS[setting["name"]], setting["value"])
    elif _OWN.search(line.text):
        read_lines(TF1_RESNET_PROGRAM, line, builder)


# --- ngc_tf2_bert

_RATE = re.compile(rf"\] Step: (?P<step>[0-9]+) Lr (?P<lr>{NUMBER})")
_STEP = re.compile(rf"Train Step: (?P<step>[0-9]+)/[0-9]+  / loss = (?P<loss>{NUMBER}) / time = ")
_PERF = re.compile(rf"\] Perf (?P<perf>{NUMBER})\s*$")

_END = Program((), (), (), 1, totals={"throughput_train": "throughput_train"})


def _read_tf2_bert(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """One line of a round, or of the run. A round is added at its ``Perf`` or at the next round."""
    if "Train Step: " in line.text:
        if " / time = " in line.text:
            _train_step(line, builder)
    elif "] Perf " in line.text:
        _add_round(builder, first_of(_PERF, line.text))
    elif "] Step: " in line.text:
        match = _RATE.search(line.text)
        if match is not None:
            builder.state["lr"] = (match["step"], match["lr"])
    elif not _average(line, builder):
        _whole_run(line, builder)


def _train_step(line: Line, builder: ReadingBuilder) -> None:
    _add_round(builder, None)
    match = _STEP.search(line.text)
    if match is None:
        builder.note(line, "Train Step, but not as the training loop prints it")
    else:
        builder.state["round"] = (line, match["step"], match["loss"])


def _add_round(builder: ReadingBuilder, perf: str | None) -> None:
    """Add the round that has begun, if any, with the speed of its last line."""
    if "round" not in builder.state:
        return
    line, step, loss = builder.state.pop("round")
    of, lr = builder.state.get("lr", (None, None))
    if perf is not None and cut_short(perf, 2):
        builder.note(line, f"Perf {perf[:40]!r} is cut")
        perf = None
    builder.step(
        line,
        step,
        stamp=absl_stamp(line.text),
        stamps=Stamps.NO_YEAR,
        printed=perf,
        loss=loss,
        lr=lr if of == step else None,
    )


def _whole_run(line: Line, builder: ReadingBuilder) -> None:
    """Read the record of the whole run, which counts only below lines of this program: the one for
    TensorFlow 1 prints the record too."""
    _add_round(builder, None)
    if not builder.steps and not builder.totals:
        return
    for record in records(line.text):
        if record.step == ():
            read_record(_END, line, builder, record)


def _before_any_round(builder: ReadingBuilder, _: object) -> bool:
    return not (builder.steps or builder.totals or "round" in builder.state)


LINES = {
    "ngc_tf1_bert": (*_ROWS, LinePattern(take=_read_tf1_bert)),
    "ngc_tf1_resnet": (LinePattern(take=_read_tf1_resnet),),
    "ngc_tf2_bert": (
        LinePattern(" / time = ", take=_read_tf2_bert),
        BERT_STEP.of_another(),
        *(each.of_another(_before_any_round) for each in _ROWS),
        LinePattern(take=_read_tf2_bert),
    ),
}
