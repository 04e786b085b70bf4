r"""detectron2 (``detectron2/utils/events.py``), and what is built on it: d2go, Detic, MaskFormer.

| since | line |
|---|---|
| 2019 | ``[11/01 11:23:38 d2.utils.events]:  eta: 8:08:27  iter: 639  total_loss: 1.194  loss_cls: 0.831  time: 0.3326  data_time: 0.0328  lr: 0.006394  max_mem: 3961M`` |
| 2022 | as above with ``time: 0.3326  last_time: 0.3311  data_time: ..  last_data_time: ..`` |
| a file | ``[04/14 09:05:02] d2.utils.events INFO:  eta: 0:11:54  iter: 119  ..`` |
| end | ``[04/14 09:15:02 d2.engine.hooks]: Overall training speed: 8997 iterations in 0:10:00 (0.0667 s / it)`` |

``iter`` is an index from 0 over the whole run, printed every 20 iterations. The losses are medians
over 20 iterations; ``time`` is the mean since the third iteration of this start, of all devices'
own batches together, without the hooks (evaluation, checkpoints). The stamps of quoted lines bear
it out: 20 iterations took 4 s where ``time`` fell from 0.3633 to 0.3147. The total leaves
out these two iterations and the hooks (until 2020 it divided by one iteration too few). The stamp
has no year, and no fraction of a second. Rank 0 prints.

``IMS_PER_BATCH`` of the configuration is the batch over all devices (``total_batch_size`` of a lazy
configuration). A real log of 300 iterations was read, Richard-cpu2333/tx2dl models/log/R50-FPN_log.py
(of its window the clock and the printed times differ by 0.3 %), and quoted lines of
facebookresearch/detectron2 issue 195, facebookresearch/d2go issues 19 and 524 and
ChenhongyiYang/QueryDet-PyTorch issue 17.
"""  # noqa: E501 - a row of the table is a line of the log

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Groups, Line, LinePattern, ReadingBuilder
from dlperf_hpc.logs.lineparts import month_day_stamp, one_more
from dlperf_hpc.logs.scanned import Stamps, Unit

_FIGURE = r"[-+.0-9a-z]{1,40}"  # nan and inf too: ReadingBuilder notes what is no measurement
_LITERAL = "d2.utils.events"
_SPEED = "Overall training speed: "
_ITERATION = re.compile(r" iter: ([0-9]{1,15})  ")
_TIME = re.compile(rf"  time: ({_FIGURE})  ")
_LOSS = re.compile(rf"  total_loss: ({_FIGURE})  ")
_LR = re.compile(rf" lr: ({_FIGURE})  ")
_MEMORY = re.compile(r"  max_mem: ([0-9]{1,9})M")
_TOTAL = re.compile(
    rf"{_SPEED}[0-9]{{1,15}} iterations in [0-9a-z,: ]{{1,40}} \(({_FIGURE}) s / it\)"
)
_WORLD = re.compile(r"Rank of current process: [0-9]{1,9}\. World size: ([0-9]{1,9})\s*$")
_BATCH = re.compile(
    r"(?:^ {0,4}IMS_PER_BATCH: |^ {2,8}total_batch_size: )([0-9]{1,9})\s*$"
    r"|Auto-scaling the config to batch_size=([0-9]{1,9}), "
)
_AMP = re.compile(r"^    ENABLED: (true|True|false|False)\s*$")


def read(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """A line of events, the speed of the whole run, or a setting."""
    iteration = _ITERATION.search(line.text) if _LITERAL in line.text else None
    if iteration:
        _read_step(line, builder, iteration)
    elif match := _TOTAL.search(line.text):
        builder.release_held()
        builder.total(line, "overall training speed", match[1], Unit.S_PER_ITERATION)
    elif _SPEED in line.text:
        builder.note(line, "the overall training speed without its number")
    else:
        _read_setting(line, builder)


def _read_step(line: Line, builder: ReadingBuilder, iteration: re.Match[str]) -> None:
    text, at = line.text, iteration.end() - 2
    time, loss, lr, memory = (p.search(text, at) for p in (_TIME, _LOSS, _LR, _MEMORY))
    builder.release_held()
    builder.step(
        line,
        one_more(iteration[1]),
        stamp=month_day_stamp(text[: iteration.start()]),
        stamps=Stamps.NO_YEAR,
        printed=time[1] if time else None,
        loss=loss[1] if loss else None,
        lr=lr[1] if lr else None,
        memory_mb=memory[1] if memory else None,
    )


def _read_setting(line: Line, builder: ReadingBuilder) -> None:
    """The world's size, or a line of the configuration, which is printed as YAML."""
    if match := _WORLD.search(line.text):
        builder.hold(line, "devices", match[1])
    elif match := _BATCH.search(line.text):
        builder.hold(line, "global_batch", match[1] or match[2])
    elif line.text.rstrip() == "  AMP:":
        builder.state["amp"] = line.number
    elif (match := _AMP.search(line.text)) and builder.state.get("amp") == line.number - 1:
        builder.hold(line, "precision", "fp16" if match[1].lower() == "true" else "fp32")


LINES = {
    "detectron2": (LinePattern(take=read),),
}
