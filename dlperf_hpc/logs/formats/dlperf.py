"""The log of this package, so that it is recognised among other programs' logs.

``dlperf 2026-11-21T14:53:35.595660Z iteration n=6 loss=10.86 ms=211.895`` (docs/log-format.md).
Such a log is then read by :mod:`dlperf_hpc.records.logfile` and not by its figures here.
"""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Groups, Line, LinePattern, ReadingBuilder
from dlperf_hpc.logs.lineparts import full_stamp

_TIME = r"dlperf (?P<time>[-0-9]{10}T[:.0-9]{15}Z)"
_ITERATION = re.compile(
    _TIME + r" iteration n=(?P<n>[0-9]+)(?: loss=(?P<loss>\S+))?(?: ms=(?P<ms>\S+))?"
)
_SUMMARY = re.compile(_TIME + r" summary .* samples_per_s=(?P<rate>\S+)")


def read(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """An ``iteration`` or the ``summary``; other events have no speed."""
    if match := _ITERATION.match(line.text):
        builder.step(
            line,
            match["n"],
            stamp=full_stamp(match["time"]),
            printed=match["ms"],
            loss=match["loss"],
        )
    elif match := _SUMMARY.match(line.text):
        builder.total(line, "samples_per_s", match["rate"])
    elif " begin format=" in line.text:
        builder.recognise(line)


LINES = {
    "dlperf": (LinePattern(take=read),),
}
