"""HugeCTR (NVIDIA-Merlin/HugeCTR, ``Model::fit``).

| version | line |
|---|---|
| 2.x | ``[02d07h54m43s][HUGECTR][INFO]: Iter: 3000 Time(1000 iters): 5.381177s Loss: .. lr:..`` |
| 3.1 | ``[HUGECTR][02:51:59][INFO][RANK0]: Iter: 100 Time(100 iters): 0.315066s Loss: 0.13 ...`` |
| 3.3 | ``[HCTR][07:03:04.414][INFO][RK0][main]: Iter: ...``; no ``lr`` if the GPU schedules it |

The time is seconds of all the iterations that the brackets name, those since the line before, and
holds an evaluation if one fell among them. ``Training batchsize: 65536, evaluation batchsize: ..``
is the batch of all devices. ``Finish 1200 iterations with batchsize: 65536 in 879.05s.`` (its issue
186) is a total with the evaluations in its time. The number is taken as the count of iterations
done, which it is in the latest versions; before them it was an index, so one more was done.
"""

from __future__ import annotations

import re
from dataclasses import replace

from dlperf_hpc.logs.format import Groups, Line, LinePattern, ReadingBuilder
from dlperf_hpc.logs.lineparts import NUMBER
from dlperf_hpc.logs.scanned import Stamps

_ITERATION = re.compile(
    rf"\bIter: (?P<done>[0-9]+) Time\((?P<count>[0-9]{{1,9}}) iters\): "
    rf"(?P<time>{NUMBER})(?:s|(?= Loss: ))(?: Loss: (?P<loss>{NUMBER}))?(?: lr: ?(?P<lr>{NUMBER}))?"
)
_BATCH = re.compile(r"Training batchsize: (?P<batch>[0-9]{1,12}), evaluation batchsize: ")
_FINISH = re.compile(
    r"Finish (?P<count>[0-9]{1,12}) iterations with batchsize: (?P<batch>[0-9]{1,12}) "
    r"in (?P<time>[0-9]{1,12}\.[0-9]{1,6})s"
)
_CLOCK = re.compile(
    r"\[(?:[0-9]+d)?(?P<hour>[0-9]{2})[:h](?P<minute>[0-9]{2})[:m]"
    r"(?P<second>[0-9]{2}(?:\.[0-9]{1,6})?)s?\]"
)


def read(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """A printed iteration."""
    match = _ITERATION.search(line.text)
    if match is None:
        if _read_whole(line, builder):
            return
        if "Iter: " in line.text:
            builder.note(line, "an iteration of HugeCTR, but not whole")
        return
    count = int(match["count"])
    if count and not builder.steps:
        builder.printed = replace(builder.printed, scale=1 / count)
    builder.release_held()
    known = count > 0 and builder.printed.scale == 1 / count
    if not known:
        builder.note(line, f"a time of {count} iterations, unlike the first line's")
    builder.step(
        line,
        match["done"],
        stamp=_clock(line.text[: match.start()]),
        stamps=Stamps.TIME_ONLY,
        printed=match["time"] if known else None,
        loss=match["loss"],
        lr=match["lr"],
    )


def _read_whole(line: Line, builder: ReadingBuilder) -> bool:
    """The batch as the program begins, or its last line: iterations, batch and time of all."""
    if batch := _BATCH.search(line.text):
        builder.hold(line, "global_batch", batch["batch"])
        return True
    finish = _FINISH.search(line.text)
    if finish is None:
        return False
    builder.release_held()
    builder.fact(line, "global_batch", finish["batch"])
    samples, seconds = int(finish["count"]) * int(finish["batch"]), float(finish["time"])
    if seconds > 0:
        builder.total(line, "Finish", samples / seconds)
    return True


def _clock(text: str) -> float | None:
    """Seconds since midnight."""
    match = _CLOCK.search(text)
    if match is None:
        return None
    hour, minute, second = int(match["hour"]), int(match["minute"]), float(match["second"])
    if hour >= 24 or minute >= 60 or second >= 61:
        return None
    return (hour * 60 + minute) * 60 + second


LINES = {"hugectr": (LinePattern(take=read),)}
