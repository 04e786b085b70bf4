"""Our own log, so that a tree of many programs' logs can be told apart by content.

``dlperf 2026-11-21T14:53:35.595660Z iteration n=6 loss=10.86 ms=211.895`` (docs/log-format.md).
A log of ours that is found thus is then read whole by :mod:`dlperf_hpc.records.logfile`.
"""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Draft, Format, Line
from dlperf_hpc.logs.scan.stamps import full_stamp
from dlperf_hpc.logs.scanned import Averaging, Counter, Evidence, Printed, Unit

_TIME = r"dlperf (?P<time>[-0-9]{10}T[:.0-9]{15}Z)"
_ITERATION = re.compile(
    _TIME + r" iteration n=(?P<n>[0-9]+)(?: loss=(?P<loss>\S+))?(?: ms=(?P<ms>\S+))?"
)
_SUMMARY = re.compile(_TIME + r" summary .* samples_per_s=(?P<rate>\S+)")


def read(line: Line, draft: Draft) -> None:
    """An ``iteration`` or the ``summary``; other events say nothing of speed."""
    if match := _ITERATION.match(line.text):
        draft.step(
            line,
            match["n"],
            stamp=full_stamp(match["time"]),
            printed=match["ms"],
            loss=match["loss"],
        )
    elif match := _SUMMARY.match(line.text):
        draft.total(line, "samples_per_s", match["rate"])
    elif " begin format=" in line.text:
        draft.recognise(line)


FORMATS = (
    Format(
        name="dlperf",
        title="dlperf_hpc's own job log",
        framework="",
        evidence=Evidence.REAL,
        source="docs/log-format.md",
        needles=("dlperf 2",),
        read=read,
        printed=Printed(Unit.MS_PER_ITERATION, averaging=Averaging.LAST_ONE),
        counter=Counter.MICRO_STEPS,
    ),
)
