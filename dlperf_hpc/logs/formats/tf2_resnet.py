"""TensorFlow 2's official Keras models, ResNet-50 first: the ``TimeHistory`` callback.

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
"""  # noqa: E501 - a row of the table is a line of the log

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Draft, Format, Line
from dlperf_hpc.logs.formats import _tf2
from dlperf_hpc.logs.formats._numbers import NUMBER
from dlperf_hpc.logs.scan.rows import ABSL_STAMP, DECIMAL, WHOLE, Rows
from dlperf_hpc.logs.scan.stamps import absl_stamp
from dlperf_hpc.logs.scanned import Evidence, Stamps

_HISTORY = re.compile(
    rf"TimeHistory: {NUMBER} seconds, (?P<rate>{NUMBER}) examples/second between steps "
    r"(?P<first>[0-9]{1,15}) and (?P<last>[0-9]{1,15})\b",
    re.ASCII,
)
_ROWS = Rows(
    rf"I(?P<absl>{ABSL_STAMP}) [0-9]+ keras_utils\.py:[0-9]+\] TimeHistory: {DECIMAL} seconds, "
    rf"(?P<printed>{DECIMAL}) examples/second between steps (?P<first>{WHOLE}) and"
    rf" (?P<iteration>{WHOLE})",
    usual=lambda _, columns: all(
        int(last) > int(first) for first, last in zip(columns["first"], columns["iteration"])
    ),
)
_METRIC = re.compile(
    r"BenchmarkMetric: \{'(?:global step|num_batches)': ?(?P<last>[0-9]+), ?'time_taken': ?[^,]+, ?"
    rf"'(?:examples|images)_per_second': ?(?P<rate>{NUMBER})\}}"
)
_BATCH = re.compile(r"BatchTimestamp<batch_index: ([0-9]{1,15}), timestamp: ([0-9]{1,12}\.[0-9]+)>")
_AVERAGE = re.compile(rf"'avg_exp_per_second': ({NUMBER})[,}}]")
_DUMPED = re.compile(r"'(?P<name>dtype|enable_xla)': '?(?P<value>[0-9A-Za-z]{1,18})\b", re.ASCII)
_PRECISION = {"float32": "fp32", "float16": "fp16"}
_GLOBAL_BATCH = re.compile(r"Parameters: batch_size: ([0-9]{1,9}), epoch_size: ")
_FINAL = "Final model parameters: "


def read(line: Line, draft: Draft) -> None:
    """One line of the callback, of the statistics at the end, or with settings."""
    if "TimeHistory: " in line.text:
        _history(line, draft)
    elif "BenchmarkMetric: {" in line.text:
        _metric(line, draft)
    elif "'avg_exp_per_second': " in line.text:
        _statistics(line, draft)
    else:
        _setting(line, draft)


def _history(line: Line, draft: Draft) -> None:
    match = _HISTORY.search(line.text)
    if match is None or int(match["last"]) <= int(match["first"]):
        draft.note(line, "TimeHistory, but not as the callback prints it")
        return
    _step(line, draft, match["last"], match["rate"])


def _metric(line: Line, draft: Draft) -> None:
    match = _METRIC.search(line.text)
    if match is not None:
        _step(line, draft, match["last"], match["rate"])
    elif "{'epoch'" not in line.text:
        draft.note(line, "BenchmarkMetric, but not as the callback prints it")


def _step(line: Line, draft: Draft, done: str, rate: str) -> None:
    stamp = absl_stamp(line.text)
    draft.step(line, done, stamp=stamp, stamps=Stamps.NO_YEAR, printed=rate)


def _statistics(line: Line, draft: Draft) -> None:
    average = _AVERAGE.search(line.text)
    if average is not None:
        draft.total(line, "avg_exp_per_second", average[1])
    if draft.steps:
        return
    for place, match in enumerate(_BATCH.finditer(line.text)):
        # The first is the beginning of step 1, which older versions number 1.
        done = 0 if place == 0 and match[1] == "1" else match[1]
        draft.step(line, done, stamp=float(match[2]))


def _setting(line: Line, draft: Draft) -> None:
    if _tf2.NEEDLES[0] in line.text:
        _tf2.strategy_facts(line, draft)
    batch = _GLOBAL_BATCH.search(line.text)
    if batch is not None:
        draft.fact(line, "global_batch", batch[1])
    if _FINAL in line.text:
        # The parameters are shown before and after they are overridden: only these hold.
        draft.state["final"] = True
    match = _DUMPED.search(line.text)
    if match is None or not draft.state.get("final"):
        return
    if match["name"] == "dtype":
        draft.fact(line, "precision", _PRECISION.get(match["value"]))
    elif match["value"] in ("True", "False"):
        draft.fact(line, "xla", match["value"] == "True")


FORMAT = Format(
    name="tf2_resnet",
    title="TensorFlow 2 official ResNet-50 (TimeHistory)",
    framework="tensorflow",
    evidence=Evidence.REAL,
    source="tensorflow/models official/utils/misc/keras_utils.py",
    needles=("TimeHistory: ", "BenchmarkMetric: {", "'avg_exp_per_second': "),
    read=read,
    facts_needles=(
        *_tf2.NEEDLES,
        _FINAL,
        "Parameters: batch_size: ",
        "'dtype': 'float",
        "'enable_xla': ",
    ),
    rows=(_ROWS,),
)
