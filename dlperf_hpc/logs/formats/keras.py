"""Keras ``fit``: the line at the end of each epoch (keras/src/utils/progbar.py).

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
Where the line has a ``val_``, the validation is in both. Keras 3 says the time of a step in each
line of its bar, so that the last one before the epoch's end counts instead; others give no speed.

Keras up to 2.3 counts samples, not steps, of what it names as ``Train on 60000 samples``. The
devices are those of TensorFlow's own line (:mod:`.tensorflow`). Real lines were read in
keras-team/keras pull request 8169 and tensorflow/tensorflow issues 33809, 31032 and 38810, and
whole logs of Keras 2 (tf_keras) and 3.15 that were made by runs on a CPU.
"""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Groups, Line, LinePattern, ReadingBuilder
from dlperf_hpc.logs.formats.tensorflow import STRATEGY_LITERALS, strategy_facts
from dlperf_hpc.logs.lineparts import NUMBER

_STEP = "s/step"
_SAMPLE = "s/sample - "
# Most lines of a bar end with a carriage return: a launcher's label is on few, and so is not known.
_EPOCH = re.compile(r"(?:^|: ?)Epoch (?P<epoch>[0-9]{1,9})/(?P<epochs>[0-9]{1,9})\s*$")
_SAMPLES = re.compile(r"^Train on (?P<samples>[0-9]{1,15}) samples\b")
_BAR = re.compile(
    r"^\s*(?P<done>[0-9]{1,15})/(?P<steps>[0-9]{1,15}) (?:\[[=>.]{1,80}\] -|━{1,80}|-) +"
    r"(?:(?P<time>[0-9]{1,9})s|[0-9:]{1,12})(?: -)? "
)
_EACH = re.compile(r"[ -](?P<each>[0-9]{1,12})(?P<unit>us|ms|s)/step(?![a-z])")
_LOSS = re.compile(rf" - loss: (?P<loss>{NUMBER})(?:[ \x08]|$)")
_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3}
_HALF = 0.5  # by which a rounded number is off at most
_MOST_OFF = 0.05
_NEARLY = 0.9  # of an epoch's steps, which a line before its end has to have


def read(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """The beginning or the end of an epoch, a state in it, or a setting."""
    if epoch := _EPOCH.search(line.text):
        builder.state.update(epoch=int(epoch["epoch"]), inside=None)
        builder.state["last"] = epoch["epoch"] == epoch["epochs"]
        if builder.state["epoch"] == 1:  # perhaps another fit, with other data
            builder.state.pop("steps", None)
    elif _STEP in line.text:
        _read_bar(line, builder)
    elif samples := _SAMPLES.search(line.text):
        builder.state["samples"] = int(samples["samples"])
    elif _SAMPLE in line.text and "epoch" in builder.state:
        _note_samples(line, builder)
    elif STRATEGY_LITERALS[0] in line.text:
        strategy_facts(line, builder)


def _read_bar(line: Line, builder: ReadingBuilder) -> None:
    bar, each, state = _BAR.search(line.text), _EACH.search(line.text), builder.state
    if bar is None or each is None or "last" not in state or " - loss: " not in line.text:
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
        _note_once(line, builder, "bars of different lengths end an epoch: no speed is read")


def _best(ms: float, off: float, elapsed: int, steps: int) -> tuple[float, float]:
    """The time of a step by that of two figures which is rounded less, and by how much."""
    off_all = _HALF / max(elapsed, _HALF)
    return (1000 * elapsed / max(steps, 1), off_all) if off_all < off else (ms, off)


def _read_end(line: Line, builder: ReadingBuilder, steps: int, figure: tuple[float, float]) -> None:
    """The steps of an epoch, or of nearly all of it where the end has the validation in it."""
    epoch, done, (ms, off) = builder.state.pop("epoch"), steps, figure
    if " - val_" in line.text:
        done, ms, off = builder.state.get("inside") or (0, 0.0, 0.0)
    loss = _LOSS.search(line.text)
    if done < _NEARLY * steps or not done:
        _note_once(line, builder, "validation is in the time of an epoch: no speed is read")
    else:
        if off > _MOST_OFF:
            _note_once(
                line, builder, "the times of an epoch and a step are rounded by more than 5 %"
            )
        builder.state["epoch_length"] = steps
        builder.step(
            line,
            builder.over_epochs(line, max(epoch - 1, 0), done),
            printed=ms if off <= _MOST_OFF else None,
            loss=loss["loss"] if loss else None,
        )


def _note_samples(line: Line, builder: ReadingBuilder) -> None:
    builder.recognise(line)
    _note_once(line, builder, "the bar counts samples, not steps: no speed is read")


def _note_once(line: Line, builder: ReadingBuilder, text: str) -> None:
    noted: set[str] = builder.state.setdefault("noted", set())
    if text not in noted:
        noted.add(text)
        builder.note(line, text)


LINES = {
    "keras": (LinePattern(take=read),),
}
