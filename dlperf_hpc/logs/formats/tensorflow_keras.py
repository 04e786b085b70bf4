r"""TensorFlow's own programs: the official models of TensorFlow 2, and Keras' ``fit``.

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

keras
-----
Keras ``fit``: the line at the end of each epoch (keras/src/utils/progbar.py).

| line | since |
|---|---|
| ``60000/60000 [=====] - 11s 176us/sample - loss: 0.22`` | TF 2.0, 2.1: samples, not read |
| ``500/500 [=======] - 12s 24ms/step - loss: 0.3 - val_loss: 0.4`` | Keras 2.1 (pull 8169) |
| ``500/500 - 12s - loss: 0.3 - 12s/epoch - 24ms/step`` | Keras 2, ``verbose=2`` |
| ``500/500 ━━━━ 12s 24ms/step - loss: 0.3`` | Keras 3 |
| ``500/500 - 12s - 24ms/step - loss: 0.3`` | Keras 3, ``verbose=2`` |

``Epoch 2/5`` stands before the lines of an epoch; lines behind its last one, or of another length,
are of ``evaluate`` or ``predict``, which draw the same bars. The bar is drawn in place, with
backspaces and a carriage return, also into a file. A step is a batch over all devices.

Both figures are rounded to whole numbers: the seconds of the epoch, and the time of a step in it
(in us, ms or, from 1 s on, s), which with a bar leaves out the epoch's first step. The one that is
rounded less counts, the seconds divided by the steps; none if both may be off by more than 5 %.
Where the line has a ``val_``, the validation is in both, as is a checkpoint (``saving model to``). Keras 3 says the time of a step in each
line of its bar, so that the last one before the epoch's end counts instead; others give no speed.

Keras up to 2.3 counts samples, not steps, of what it names as ``Train on 60000 samples``. The
devices are those of TensorFlow's own line above. Real lines were read in
keras-team/keras pull request 8169 and tensorflow/tensorflow issues 33809, 31032 and 38810, and
whole logs of Keras 2 (tf_keras) and 3.15 that were made by runs on a CPU.
"""  # noqa: E501 - a row of the table is a line of the log

from __future__ import annotations

import operator
import re

from dlperf_hpc.logs.format import Groups, Line, LinePattern, ReadingBuilder, whole
from dlperf_hpc.logs.lineparts import NUMBER, first_of

_STRATEGY_LITERAL = "MirroredStrategy with "
_WORKERS = re.compile(r"num_workers = ([0-9]{1,9}),")


def _read_strategy(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    gpus = line.text.count("/device:GPU:")
    workers = _WORKERS.search(line.text)
    if workers is not None:
        builder.fact(line, "nodes", workers[1])
    elif "/job:localhost/" in line.text and gpus:
        builder.fact(line, "nodes", 1)
    builder.fact(line, "gpus_per_node", gpus)


# --- tf2_bert

BERT_STEP = LinePattern(
    rf"Train Step: (?P<iteration>[0-9]+)/[0-9]+  / loss = (?P<loss>{NUMBER})", clock="absl"
)
_STRATEGY = LinePattern(_STRATEGY_LITERAL, take=_read_strategy)


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
        r"BenchmarkMetric: \{(?!'epoch')", note="BenchmarkMetric, but not as the callback prints it"
    ),
)
_BATCH = re.compile(r"BatchTimestamp<batch_index: ([0-9]{1,15}), timestamp: ([0-9]{1,12}\.[0-9]+)>")
_AVERAGE = re.compile(rf"'avg_exp_per_second': ({NUMBER})[,}}]")
_DUMPED = re.compile(r"'(?P<name>dtype|enable_xla)': '?(?P<value>[0-9A-Za-z]{1,18})\b", re.ASCII)
_PRECISION = {"float32": "fp32", "float16": "fp16"}
_GLOBAL_BATCH = re.compile(r"Parameters: batch_size: ([0-9]{1,9}), epoch_size: ")
_FINAL = "Final model parameters: "


def _read_resnet(line: Line, builder: ReadingBuilder, _: Groups) -> None:
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
    if _STRATEGY_LITERAL in line.text:
        _read_strategy(line, builder, {})
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


# --- keras

_PER_STEP = "s/step"
_SAVES = ": saving model to "  # ModelCheckpoint, of an epoch whose end has that in its time
_PER_SAMPLE = "s/sample - "
# Most lines of a bar end with a carriage return: a launcher's label is on few, and so is not known.
_EPOCH = re.compile(r"(?:^|: ?)Epoch (?P<epoch>[0-9]{1,9})/(?P<epochs>[0-9]{1,9})\s*$")
_FIT_SAMPLES = re.compile(r"^Train on (?P<samples>[0-9]{1,15}) samples\b")
_FIT_BAR = re.compile(
    r"^\s*(?P<done>[0-9]{1,15})/(?P<steps>[0-9]{1,15}) (?:\[[=>.]{1,80}\] -|━{1,80}|-) +"
    r"(?:(?P<time>[0-9]{1,9})s|[0-9:]{1,12})(?: -)? "
)
_EACH = re.compile(r"[ -](?P<each>[0-9]{1,12})(?P<unit>us|ms|s)/step(?![a-z])")
_FIT_LOSS = re.compile(rf" - loss: (?P<loss>{NUMBER})(?:[ \x08]|$)")
_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3}
_HALF = 0.5  # by which a rounded number is off at most
_MOST_OFF = 0.05
_NEARLY = 0.9  # of an epoch's steps, which a line before its end has to have


def _read_fit(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    if epoch := _EPOCH.search(line.text):
        builder.state.update(epoch=int(epoch["epoch"]), inside=None)
        builder.state["last"] = epoch["epoch"] == epoch["epochs"]
        if builder.state["epoch"] == 1:  # perhaps another fit, with other data
            builder.state.pop("steps", None)
    elif _SAVES in line.text:
        builder.state["saved"] = True
    elif _PER_STEP in line.text:
        _read_bar(line, builder)
    elif samples := _FIT_SAMPLES.search(line.text):
        builder.state["samples"] = int(samples["samples"])
    elif _PER_SAMPLE in line.text and "epoch" in builder.state:
        _note_samples(line, builder)
    elif _STRATEGY_LITERAL in line.text:
        _read_strategy(line, builder, {})


def _read_bar(line: Line, builder: ReadingBuilder) -> None:
    bar, each, state = _FIT_BAR.search(line.text), _EACH.search(line.text), builder.state
    if not (bar and each and "last" in state and " - loss: " in line.text):
        return
    builder.recognise(line)
    done, steps, ms = int(bar["done"]), int(bar["steps"]), int(each["each"]) * _MS[each["unit"]]
    off = _HALF / max(int(each["each"]), _HALF)
    if steps == state.get("samples"):
        _note_samples(line, builder)
    elif steps != state.setdefault("steps", steps):
        _other_bar(line, builder)
    elif "epoch" in state and (done < steps or bar["time"] is None):
        state["inside"] = (done, ms, off)
    elif "epoch" in state and not state.get("unclear"):
        _read_end(line, builder, steps, _best(ms, off, int(bar["time"]), steps))


def _other_bar(line: Line, builder: ReadingBuilder) -> None:
    """A bar of another length is of ``evaluate``: in a callback it stands before the epoch's end,
    behind ``fit`` after it. Behind the end of an epoch in the midst, that end was no end."""
    if "epoch" not in builder.state and not builder.state["last"]:
        builder.state["unclear"] = True
        builder.steps.clear()
        builder.note_once(line, "bars of different lengths end an epoch: no speed is read")


def _best(ms: float, off: float, elapsed: int, steps: int) -> tuple[float, float]:
    """The time of a step by that of two figures which is rounded less, and by how much."""
    off_all = _HALF / max(elapsed, _HALF)
    if off_all < off:
        return 1000 * elapsed / max(steps, 1), off_all
    return ms, off


def _read_end(line: Line, builder: ReadingBuilder, steps: int, figure: tuple[float, float]) -> None:
    """The steps of an epoch, or of nearly all of it where the end has the validation in it."""
    epoch, done, (ms, off) = builder.state.pop("epoch"), steps, figure
    saved = builder.state.pop("saved", False)
    if saved or " - val_" in line.text:
        done, ms, off = builder.state.get("inside") or (0, 0.0, 0.0)
    printed: float | None = ms
    if done < _NEARLY * steps or not done:
        what = "a checkpoint" if saved else "validation"
        builder.note_once(line, f"{what} is in the time of an epoch: no speed is read")
    else:
        if off > _MOST_OFF:
            printed = None
            builder.note_once(line, "the times of an epoch and a step are rounded by more than 5 %")
        builder.state["epoch_length"] = steps
        at, loss = (
            builder.over_epochs(line, max(epoch - 1, 0), done),
            first_of(_FIT_LOSS, line.text),
        )
        builder.step(line, at, printed=printed, loss=loss)


def _note_samples(line: Line, builder: ReadingBuilder) -> None:
    builder.recognise(line)
    builder.note_once(line, "the bar counts samples, not steps: no speed is read")


LINES = {
    "tf2_bert": (
        _STRATEGY,
        LinePattern(" / time = ", passed_over=True),  # another program's
        BERT_STEP,
        LinePattern("Train Step: ", note="Train Step, but not as the training loop prints it"),
    ),
    "tf2_resnet": (*_RESNET_LINES, LinePattern(take=_read_resnet)),
    "keras": (LinePattern(take=_read_fit),),
}
