"""DeepSpeed's ThroughputTimer, all five generations of its line.

| since | line |
|---|---|
| 2020 | ``0/50, SamplesPerSec=1292.64`` (also with ``[INFO 2020-02-06 19:53:56]`` in front) |
| 2021-11 | ``0/40, SamplesPerSec=83.48, MemAllocated=0.26GB, MaxMemAllocated=9.02GB`` |
| 2022 | ``0/4, RunningAvgSamplesPerSec=16.15, CurrSamplesPerSec=15.72, MemAllocated=...`` |
| 2022-12 | ``epoch=0/micro_step=3/global_step=3, RunningAvgSamplesPerSec=..., CurrSamplesPerSec=...`` |

The first number is a running average from step 3 on: the timer's clock begins when step 2 ends.
"""

from __future__ import annotations

import re

from dlperf_hpc.parsers.format import Draft, Format, Line
from dlperf_hpc.parsers.stamps import full_stamp
from dlperf_hpc.records.foreign import Averaging, Counter, Evidence, Printed

_NUMBER = r"[-+.\deinfa]+"
_TIMER = re.compile(
    r"(?:(?P<epoch>\d+)/(?P<step>\d+)|epoch=\d+/micro_step=(?P<micro>\d+)/global_step=(?P<whole>\d+))"
    rf", (?:RunningAvg)?SamplesPerSec=(?P<rate>{_NUMBER})"
    rf"(?:, CurrSamplesPerSec={_NUMBER})?"
    r"(?:, MemAllocated=[\d.]+ ?GB, MaxMemAllocated=(?P<memory>[\d.]+) ?GB)?"
)


def read(line: Line, draft: Draft) -> None:
    """One line of the timer's."""
    match = _TIMER.search(line.text)
    if match is None:
        draft.note(line, "SamplesPerSec, but not as any DeepSpeed prints it")
        return
    memory = match["memory"]
    draft.step(
        line,
        match["step"] or match["micro"],
        stamp=full_stamp(line.text),
        printed=match["rate"],
        memory_mb=float(memory) * 1024 if memory else None,
    )


FORMAT = Format(
    name="deepspeed",
    title="DeepSpeed engine (ThroughputTimer)",
    framework="deepspeed",
    evidence=Evidence.REAL,
    source="deepspeedai/DeepSpeed deepspeed/utils/timer.py",
    needles=("SamplesPerSec=",),
    read=read,
    printed=Printed(averaging=Averaging.RUNNING, origin=2),
    counter=Counter.MICRO_STEPS,
)
