r"""The MetricLogger of torchvision's references, and of the many programs that copied it.

DETR, DeiT, MAE, DINO and DINOv2, BEiT, ConvNeXt, VideoMAE, ALBEF, BLIP and others.

| program | line |
|---|---|
| torchvision | ``Epoch: [0]  [  20/5005]  eta: 1:00:00  lr: 0.1  img/s: 400.1  loss: 6.97 (6.98)  acc1: 0.0 (0.2)  time: 0.3012  data: 0.0031  max mem: 3524`` |
| DETR, DeiT, MAE | as above without ``img/s`` |
| DINO | ``Epoch: [0/100]  [2240/2502]  eta: 0:02:44  loss: 5.38 (7.54)  ..`` |
| DINOv2 | ``I20231111 00:21:00 65566 dinov2 helpers.py:103] Training  [  3280/164000]  eta: ..`` |
| ALBEF, BLIP | ``Train Epoch: [0]  [   50/1000]  eta: ..`` |

The index counts batches of the epoch from 0, micro-steps where gradients are accumulated. ``time``
is seconds of a batch, data loader included: of all devices' own batches together, and a mean over
the last 20 batches (``SmoothedValue``, at the epoch's begin over fewer), whatever the distance of
lines is. Lines that are closer print means that overlap, so those whose index is a multiple of 20
are read, and no others: with the default distances of 10, 20 and 100 each of these stands for the
batches since the one before, or for the last 20 of them. ``img/s`` is the last batch's and of one
process: it is not read. Count and means begin anew with each epoch: the first is read. Rank 0
prints. Lines of ``Test:`` are not read.

``batch_size`` of the arguments is one device's in all programs named here. Quoted lines were read:
fangwei123456/Spike-Element-Wise-ResNet issue 10 (torchvision), THU-MIG/PYRA issue 3 (DeiT),
facebookresearch/dino issue 69, facebookresearch/dinov2 issue 307.
"""  # noqa: E501 - a row of the table is a line of the log

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Groups, Line, LinePattern, ReadingBuilder
from dlperf_hpc.logs.lineparts import full_stamp, one_more

_FIGURE = r"[-+.0-9a-z]{1,40}"  # nan and inf too: ReadingBuilder notes what is no measurement
_COUNT = r"[0-9]{1,12}"
_WINDOW = 20  # batches of a mean
_LITERAL = "]  eta: "
_HEAD = re.compile(
    rf"(?:Epoch: \[(?P<era>{_COUNT})(?:/{_COUNT})?\]|\bTraining)"
    rf"  \[ {{0,12}}(?P<index>{_COUNT})/{_COUNT}{re.escape(_LITERAL)}"
)
_TIME = re.compile(
    rf"  time: (?P<time>{_FIGURE})  data: {_FIGURE}(?:  max mem: (?P<memory>[0-9]{{1,9}}))?"
)
_LOSS = re.compile(rf"  (?:total_)?loss: (?P<loss>{_FIGURE}) \(")
_LR = re.compile(rf"  lr: (?P<lr>{_FIGURE})(?: \({_FIGURE}\))?  ")
_DINOV2 = re.compile(r"\bI([0-9]{4})([0-9]{2})([0-9]{2}) ([0-9]{2}:[0-9]{2}:[0-9]{2}) ")
_ARGUMENT = re.compile(r"(?<![a-z_])(batch_size|world_size|accum_iter)=([0-9]{1,9})[,)]")
_PRINTED = re.compile(r"^(effective batch size|accumulate grad iterations): ([0-9]{1,12})\s*$")
_SETTINGS = {
    "batch_size": "batch_size",
    "world_size": "devices",
    "accum_iter": "accumulation",
    "effective batch size": "global_batch",
    "accumulate grad iterations": "accumulation",
}


def read(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """A batch of the training loop, or settings."""
    head = _HEAD.search(line.text)
    if head is None:
        if _LITERAL not in line.text:
            _read_settings(line, builder)
        return
    time = _TIME.search(line.text, head.end() - 2)
    if time is None:
        builder.note(line, "a batch of a MetricLogger's, but without its time")
        return
    builder.release_held()
    if builder.later_epoch(line, head["era"] or "") or int(head["index"]) % _WINDOW:
        return
    loss = _LOSS.search(line.text, head.end() - 2)
    lr = _LR.search(line.text, head.end() - 2)
    builder.step(
        line,
        one_more(head["index"]),
        stamp=_stamp(line.text[: head.start()]),
        printed=time["time"],
        loss=loss["loss"] if loss else None,
        lr=lr["lr"] if lr else None,
        memory_mb=time["memory"],
    )


def _stamp(text: str) -> float | None:
    """DINOv2's stamp, whose date has no dashes, or any other that is whole."""
    match = _DINOV2.search(text)
    return full_stamp("{}-{}-{} {}".format(*match.groups()) if match else text)


def _read_settings(line: Line, builder: ReadingBuilder) -> None:
    """Arguments as argparse prints them, on one line or (MAE) on a line each."""
    if match := _PRINTED.search(line.text):
        builder.hold(line, _SETTINGS[match[1]], match[2])
    elif line.text.startswith("Namespace(") or _ARGUMENT.match(line.text):
        for name, value in _ARGUMENT.findall(line.text):
            builder.hold(line, _SETTINGS[name], value)


LINES = {
    "metric_logger": (LinePattern(take=read),),
}
