r"""TensorFlow's own programs: the official models of TensorFlow 2, and tf_cnn_benchmarks.

TensorFlow 2 itself logs the devices on which it runs:
``Using MirroredStrategy with devices ('/job:localhost/replica:0/task:0/device:GPU:0',)`` names one
host's devices; of several hosts, ``MultiWorkerMirroredStrategy with cluster_spec = {...}, ...
num_workers = 2, local_devices = (...)`` has their number too. Real lines are those of the ResNet-50 logs.

tf2_bert
--------
TensorFlow 2's official BERT (tf-models-official 2.3), its custom training loop.

``I0826 15:12:50.113950 140405777909504 model_training_utils.py:505] Train Step: 20/120  / loss =
10.88  masked_lm_accuracy = 0.012000  ...``: the number is of optimizer steps done (there is no
accumulation), the loss the mean since the line before. No speed is printed: the clock gives it. The
stamp has no year. Under MultiWorkerMirroredStrategy each host's process prints the lines.
NVIDIA's version of the loop adds ``/ time = ...``: those lines are ``ngc_tf2_bert``'s (:mod:`.ngc_tensorflow`).

tf2_resnet
----------
TensorFlow 2's official Keras models, ResNet-50 first: the ``TimeHistory`` callback.

| since | line |
|---|---|
| 2019 | ``BenchmarkMetric: {'global step':100, 'time_taken': 39.1,'examples_per_second': 327.4}`` |
| 2020 | ``I0826 21:43:05.661866 140540494919424 keras_utils.py:133] TimeHistory: 42.65 seconds, 9602.84 examples/second between steps 100 and 200`` |
| end | ``{.. 'step_timestamp_log': ['BatchTimestamp<batch_index: 0, timestamp: 1598..>', ..], ..}`` |

The speed is the global batch's over the steps since the line before; steps are optimizer steps,
counted over the epochs. The stamp has no year. Each host's process prints the lines.
``BenchmarkMetric`` (``num_batches``, ``images_per_second`` in the oldest) is known from the source.

The end's ``BatchTimestamp`` are seconds since the epoch, a fraction of a millisecond before the
stamps of the lines. They are another time line, so they are read only where the lines are missing.

tf_cnn_benchmarks
-----------------
TensorFlow's ``tf_cnn_benchmarks.py``, alone and under Horovod.

| line | what |
|---|---|
| ``Model:       resnet101``, ``Batch size:  128 global``, ``   64 per device`` | settings |
| ``Devices:     ['horovod/gpu:0', 'horovod/gpu:1']`` | every process's under Horovod |
| ``10\timages/sec: 241.6 +/- 0.2 (jitter = 0.5)\t7.880`` | step, running mean, total loss |
| ``total images/sec: 238.68`` | whole run, all processes |

Under mpirun every rank prints every line: the step lines are the process's own, the total is all
processes' together (not so where mpirun starts processes that know nothing of each other). The
mean is that of all steps after the warm-up; steps count from there, and each is an optimizer step.
An evaluation prints a total of its own: one without a step line before it is not read. Real lines
were read where documents and issues quote them.
"""  # noqa: E501 - a row of the table is a line of the log

from __future__ import annotations

import operator
import re

from dlperf_hpc.logs.format import (
    Groups,
    Line,
    LinePattern,
    ReadingBuilder,
    whole,
)
from dlperf_hpc.logs.lineparts import NUMBER, full_stamp

STRATEGY_LITERALS = ("MirroredStrategy with ",)
_WORKERS = re.compile(r"num_workers = ([0-9]{1,9}),")


def strategy_facts(line: Line, builder: ReadingBuilder) -> None:
    """Add nodes and GPUs per node, as far as the line has them."""
    gpus = line.text.count("/device:GPU:")
    workers = _WORKERS.search(line.text)
    if workers is not None:
        builder.fact(line, "nodes", workers[1])
    elif "/job:localhost/" in line.text and gpus:
        builder.fact(line, "nodes", 1)
    builder.fact(line, "gpus_per_node", gpus)


# --- tf2_bert

BERT_STEP = LinePattern(
    rf"Train Step: (?P<iteration>[0-9]+)/[0-9]+  / loss = (?P<loss>{NUMBER})",
    clock="absl",
)
_STRATEGY = LinePattern(
    STRATEGY_LITERALS[0], take=lambda line, builder, _: strategy_facts(line, builder)
)


# --- tf2_resnet

_RESNET_LINES = (
    LinePattern(
        rf"TimeHistory: {NUMBER} seconds, (?P<printed>{NUMBER}) examples/second between steps "
        r"(?P<first>[0-9]{1,15}) and (?P<iteration>[0-9]{1,15})(?![0-9A-Za-z_])",
        clock="absl",
        usual=lambda _, columns: all(
            map(operator.gt, whole(columns["iteration"]), whole(columns["first"]))
        ),
    ),
    LinePattern("TimeHistory: ", note="TimeHistory, but not as the callback prints it"),
    LinePattern(
        r"BenchmarkMetric: \{'(?:global step|num_batches)': ?(?P<iteration>[0-9]+), ?"
        rf"'time_taken': ?[^,]+, ?'(?:examples|images)_per_second': ?(?P<printed>{NUMBER})\}}",
        clock="absl",
    ),
    LinePattern(
        r"BenchmarkMetric: \{(?!'epoch')",
        note="BenchmarkMetric, but not as the callback prints it",
    ),
)
_BATCH = re.compile(r"BatchTimestamp<batch_index: ([0-9]{1,15}), timestamp: ([0-9]{1,12}\.[0-9]+)>")
_AVERAGE = re.compile(rf"'avg_exp_per_second': ({NUMBER})[,}}]")
_DUMPED = re.compile(r"'(?P<name>dtype|enable_xla)': '?(?P<value>[0-9A-Za-z]{1,18})\b", re.ASCII)
_PRECISION = {"float32": "fp32", "float16": "fp16"}
_GLOBAL_BATCH = re.compile(r"Parameters: batch_size: ([0-9]{1,9}), epoch_size: ")
_FINAL = "Final model parameters: "


def _read_resnet(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """One line of the statistics at the end, or with settings."""
    if "'avg_exp_per_second': " in line.text:
        _statistics(line, builder)
    elif "BenchmarkMetric: {" not in line.text:
        _setting(line, builder)


def _statistics(line: Line, builder: ReadingBuilder) -> None:
    average = _AVERAGE.search(line.text)
    if average is not None:
        builder.total(line, "avg_exp_per_second", average[1])
    if builder.steps:
        return
    for place, match in enumerate(_BATCH.finditer(line.text)):
        # The first is the beginning of step 1, which older versions number 1.
        done = 0 if place == 0 and match[1] == "1" else match[1]
        builder.step(line, done, stamp=float(match[2]))


def _setting(line: Line, builder: ReadingBuilder) -> None:
    if STRATEGY_LITERALS[0] in line.text:
        strategy_facts(line, builder)
    batch = _GLOBAL_BATCH.search(line.text)
    if batch is not None:
        builder.fact(line, "global_batch", batch[1])
    if _FINAL in line.text:
        # The parameters are shown before and after they are overridden: only these hold.
        builder.state["final"] = True
    match = _DUMPED.search(line.text)
    if match is None or not builder.state.get("final"):
        return
    if match["name"] == "dtype":
        builder.fact(line, "precision", _PRECISION.get(match["value"]))
    elif match["value"] in ("True", "False"):
        builder.fact(line, "xla", match["value"] == "True")


# --- tf_cnn_benchmarks

_FIGURE = r"[-+.0-9a-z]{1,40}"
_BENCHMARKS_STEP = re.compile(
    rf"(?<![0-9.])(?P<step>[0-9]{{1,18}})\s{{1,16}}images/sec: (?P<rate>{_FIGURE}) \+/- {_FIGURE}"
    rf" \(jitter = {_FIGURE}\)(?:\s{{1,16}}(?P<loss>[0-9]{{1,12}}\.[0-9]{{3}}|nan|inf)\b)?"
)
_TOTAL = re.compile(r"total images/sec: (?P<rate>[0-9]{1,15}\.[0-9]{2})(?![0-9])")
_MODEL = re.compile(r"^Model: {2,12}(\S{1,60})\s*$")
_GLOBAL = re.compile(r"^Batch size: {2,4}([0-9]{1,12})(?:\.0)? global\s*$")
_DEVICE = re.compile(r"^\s*([0-9]{1,12})(?:\.0)? per device\s*$")
_MODE = re.compile(r"^Mode: {2,12}(\S{1,40})")


def _read_benchmarks(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """A step line, the total, or a line of the head."""
    if match := _BENCHMARKS_STEP.search(line.text):
        builder.release_held()
        builder.step(
            line,
            match["step"],
            stamp=full_stamp(line.text[: match.start()]),
            printed=match["rate"],
            loss=match["loss"],
        )
    elif match := _TOTAL.search(line.text):
        if builder.steps:
            builder.total(line, "total images/sec", match["rate"])
    elif "images/sec: " in line.text:
        builder.note(line, "images/sec, but not as tf_cnn_benchmarks prints it")
    else:
        _read_head(line, builder)


def _read_head(line: Line, builder: ReadingBuilder) -> None:
    text = line.text
    if match := _MODEL.search(text):
        builder.hold(line, "model", match[1])
    elif match := _GLOBAL.search(text):
        builder.hold(line, "global_batch", match[1])
    elif match := _DEVICE.search(text):
        builder.hold(line, "batch_size", match[1])
    elif text.startswith("Devices: "):
        builder.hold(line, "devices", text.count("'horovod/"))  # 0: this process's only, no fact
    elif (match := _MODE.search(text)) and match[1] != "training":
        builder.note(line, f"mode {match[1]}: these speeds are no training's")


LINES = {
    "tf2_bert": (
        _STRATEGY,
        LinePattern(" / time = ", passed_over=True),
        BERT_STEP,
        LinePattern("Train Step: ", note="Train Step, but not as the training loop prints it"),
    ),
    "tf2_resnet": (
        *_RESNET_LINES,
        LinePattern(take=_read_resnet),
    ),
    "tf_cnn_benchmarks": (LinePattern(take=_read_benchmarks),),
}
