"""InsightFace's Partial FC with MXNet and Horovod (recognition/partial_fc/mxnet/callbacks.py).

``rank-id:0:2021-01-08 19:22:59,208-Iter:460 Rank:207.42 it/sec Total:1659.38 it/sec
[0][loss]:0.01``, in one line.

The iteration counts from 1. For all its ``it/sec``, ``Total`` is samples/s of all ranks (batch x
iterations / seconds x ranks), since the line before. Rank 0 prints.
"""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Draft, Format, Line
from dlperf_hpc.logs.formats._numbers import NUMBER
from dlperf_hpc.logs.scan.stamps import full_stamp
from dlperf_hpc.logs.scanned import Evidence

_STEP = re.compile(
    rf"\bIter:(?P<done>[0-9]+) Rank:{NUMBER} it/sec Total:(?P<rate>{NUMBER}) it/sec"
    rf"(?: +\[[0-9]+\]\[loss\]:(?P<loss>[0-9]+\.[0-9]{{2}}))?"
)


def read(line: Line, draft: Draft) -> None:
    """A printed iteration."""
    match = _STEP.search(line.text)
    if match is None:
        draft.note(line, "it/sec of a rank and in total, but no iteration of Partial FC")
        return
    draft.step(
        line,
        match["done"],
        stamp=full_stamp(line.text[: match.start()]),
        printed=match["rate"],
        loss=match["loss"],
    )


FORMAT = Format(
    name="insightface_partial_fc",
    title="MXNet InsightFace Partial FC",
    framework="mxnet",
    evidence=Evidence.QUOTED,
    source="deepinsight/insightface recognition/partial_fc/mxnet/callbacks.py; DLPerf pull 106",
    needles=(" it/sec Total:",),
    read=read,
)
