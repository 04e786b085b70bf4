r"""OpenMMLab: MMEngine's log, and the TextLoggerHook of mmcv, its ancestor.

Both print for MMDetection, MMSegmentation, MMPretrain, MMAction2, MMPose, XTuner and others.

| format | line |
|---|---|
| `mmengine` | ``2023/05/24 20:17:36 - mmengine - INFO - Epoch(train)  [1][  50/1051]  lr: 9.0530e-06  base_lr: 1.0000e-02 eta: 8 days, 4:44:34  time: 0.6969  data_time: 0.0698  memory: 17929  loss: 7.6343  loss_cls: 3.1140`` |
| | ``.. - Iter(train) [   50/20000]  ..`` where iterations are counted over all epochs |
| | until 0.2: ``.. [1][5/7]  lr: 7.0000e-03  memory: 7730  data_time: 0.4496  loss: 17.8843  time: 1.8666`` |
| | on the console the stamp has no year: ``04/21 21:03:52 - mmengine - ..`` |
| `mmcv` | ``2020-11-11 18:20:40,841 - mmdet - INFO - Epoch [1][1050/29317]\tlr: 2.000e-02, eta: 1 day, 18:57:37, time: 0.387, data_time: 0.008, memory: 3946, loss_cls: 0.4957, loss: 1.0031`` |
| | ``.. Iter [50/80000]\tlr: ..`` |

Rank 0 prints. Iterations are counted from 1, an epoch's from its begin; they are calls of the
model, micro-steps where gradients are accumulated (``accumulative_counts``, ``cumulative_iters``).
``time`` is seconds of an iteration, data loader included, of all devices' own batches together. In
mmcv's line it is the mean over the iterations since the line before (``log_config.interval``); in
MMEngine's over the last ``log_processor.window_size`` of them, which is 10 unless the program says
otherwise: MMDetection and MMYOLO set it to the lines' distance, 50, MMPretrain prints every 100 and
leaves it at 10. The first line has the set-up in it. Memory is the peak of rank 0's device. Between
two lines there may be a validation (``Iter(val) [50/313]``, ``Epoch(val) [1][240]``) or ``Saving
checkpoint at 500 iterations``: these are in the clock, and may be in the next line's ``time``.

Settings come from the configuration that both dump before they begin (``train_dataloader``'s
``batch_size`` and mmcv's ``samples_per_gpu`` are one device's). Quoted lines were read:
open-mmlab/mmdetection issues 4090 and 2672, open-mmlab/mmpretrain issue 408, open-mmlab/mmyolo
issue 789, open-mmlab/mmengine pull request 155 and issue 935, openmedlab/MedFM issue 3.
"""  # noqa: E501 - a row of the table is a line of the log

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Groups, Line, LinePattern, ReadingBuilder
from dlperf_hpc.logs.lineparts import first_of, full_stamp, month_day_stamp
from dlperf_hpc.logs.scanned import Stamps

_FIGURE = r"[-+.0-9a-z]{1,40}"  # nan and inf too: ReadingBuilder notes what is no measurement
_COUNT = r"[0-9]{1,12}"
_PLACE = rf"\[ {{0,12}}(?P<n>{_COUNT})/(?P<length>{_COUNT})\]"
_LR = re.compile(rf"\blr: ({_FIGURE})[ ,]")  # MMEngine prints base_lr before it, apart by 1 blank
_DECIMALS = 4  # of a loss, or more (``log_processor.num_digits``)


def _read_step(line: Line, builder: ReadingBuilder, head: re.Match[str], apart: str) -> None:
    """An iteration; ``head`` ends before the keys, which ``apart`` separates."""
    keys = _keys(line.text[head.end() :], apart)
    done = int(head["n"])
    if head["epoch"]:
        builder.state["epoch_length"] = int(head["length"])
        done = builder.over_epochs(line, max(int(head["epoch"]) - 1, 0), done)
    before = line.text[: head.start()]
    full = full_stamp(before)
    builder.step(
        line,
        done,
        stamp=month_day_stamp(before) if full is None else full,
        stamps=Stamps.NO_YEAR if full is None else Stamps.ABSOLUTE,
        printed=keys.get("time"),
        loss=keys.get("loss"),
        lr=first_of(_LR, line.text, head.end()),
        memory_mb=keys.get("memory"),
    )


def _keys(text: str, apart: str) -> dict[str, str]:
    """Figures by their keys; the last of a line counts only with all decimals of a loss."""
    *parts, last = text.strip("\t\r\n").split(apart)
    found: dict[str, str] = {}
    for part in parts:
        _add(part, found)
    decimals = max(_DECIMALS, len(found.get("data_time", "").partition(".")[2]))
    if len(last.partition(".")[2]) >= decimals:
        _add(last, found)
    return found


def _add(part: str, found: dict[str, str]) -> None:
    key, colon, value = part.strip().partition(": ")
    if colon:
        found.setdefault(key, value)


# --- settings: a configuration that is printed as Python

_TOP = re.compile(r"^([a-z0-9_]{1,40}) = dict\(")
_BATCHES = {
    "train_dataloader": re.compile(
        r"^(?: {4}|train_dataloader = dict\()batch_size=([0-9]{1,9})[,)]"
    ),
    "data": re.compile(r"^(?: {4}|data = dict\()(?:samples|videos|imgs)_per_gpu=([0-9]{1,9})[,)]"),
}
_NEAR = 4  # lines behind a block's head: what is further may be another's, whose head is damaged
_DTYPE = re.compile(r"^    dtype='(float16|bfloat16)'")
_DEVICES = re.compile(r"^(?: {4}GPU number: |gpu_ids = range\(0, )([0-9]{1,9})\)?\s*$")
_ACCUMULATION = re.compile(r"\b(?:accumulative_counts|cumulative_iters)=([0-9]{1,9})[,)]")
_PRECISIONS = {"float16": "fp16", "bfloat16": "bf16"}


def _read_setting(line: Line, builder: ReadingBuilder) -> None:
    """A line of the configuration: ``NAME = dict(`` opens a block, its keys are 4 blanks in."""
    if top := _TOP.search(line.text):
        builder.state["block"], builder.state["block at"] = top[1], line.number
        if top[1] == "fp16":
            builder.hold(line, "precision", "fp16")
    block = builder.state.get("block", "")
    near = line.number - builder.state.get("block at", 0) <= _NEAR
    if block in _BATCHES and near and (match := _BATCHES[block].search(line.text)):
        builder.hold(line, "batch_size", match[1])
        del builder.state["block"]  # a block has one
    elif match := _DEVICES.search(line.text):
        builder.hold(line, "devices", match[1])
    elif match := _ACCUMULATION.search(line.text):
        builder.hold(line, "accumulation", match[1])
    elif block == "optim_wrapper":
        _read_precision(line, builder)


def _read_precision(line: Line, builder: ReadingBuilder) -> None:
    """AMP is fp16 unless a ``dtype``, which may stand before it or after it, says otherwise."""
    if match := _DTYPE.search(line.text):
        builder.state["dtype"] = _PRECISIONS[match[1]]
        builder.hold(line, "precision", builder.state["dtype"])
    elif "AmpOptimWrapper'" in line.text:
        builder.hold(line, "precision", builder.state.get("dtype", "fp16"))


# --- mmengine

_ENGINE = re.compile(
    rf"(?:Epoch\(train\) {{1,12}}\[(?P<epoch>{_COUNT})\]|Iter\(train\) {{1,4}}){_PLACE}  "
)


def _read_mmengine(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    head = _ENGINE.search(line.text)
    if head:
        builder.release_held()
        _read_step(line, builder, head, "  ")
    elif "(train)" in line.text:
        builder.note(line, "a training line of MMEngine's, but not as it prints it")
    else:
        _read_setting(line, builder)


# --- mmcv

_HOOK = re.compile(rf"(?:Epoch \[(?P<epoch>{_COUNT})\]|Iter ){_PLACE}\s{{1,16}}(?=lr)")


def _read_mmcv(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    head = _HOOK.search(line.text)
    if head:
        builder.release_held()
        _read_step(line, builder, head, ", ")
    elif ", data_time: " not in line.text:
        _read_setting(line, builder)


# --- evaluations and checkpoints, whose seconds no line has


def _read_pause(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    """A line of a validation, which may have many, or of a checkpoint."""
    what, latest = "checkpoint" if found["saving"] else "evaluation", builder.last_step()
    after = latest.iteration if latest else 0
    if (after, what) not in [(pause.after, pause.what) for pause in builder.pauses[-2:]]:
        # An epoch's begin sets the clock of ``time`` anew (IterTimerHook).
        builder.pause(line, what, printed="epoch_length" not in builder.state)


_PAUSE = LinePattern(
    r" - (?:(?:Epoch|Iter)\((?:val|test)\) {1,12}\[|(?P<saving>Saving checkpoint at [0-9]))",
    take=_read_pause,
)

LINES = {
    "mmengine": (_PAUSE, LinePattern(take=_read_mmengine)),
    "mmcv": (_PAUSE, LinePattern(take=_read_mmcv)),
}
