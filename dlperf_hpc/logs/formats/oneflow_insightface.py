"""OneFlow's InsightFace (``TrainMetric`` of oneflow_face's util.py).

``train: iter 20, loss 33.96, throughput: 512.345``: the iteration counts from 1, the throughput is
samples/s of all devices over the iterations since the line before. There is no time.
"""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Draft, Format, Line
from dlperf_hpc.logs.formats._numbers import NUMBER, THREE_DECIMALS
from dlperf_hpc.logs.scanned import Evidence

_STEP = re.compile(
    rf"\btrain: iter (?P<done>[0-9]+), loss (?P<loss>{NUMBER}), "
    rf"throughput: (?P<rate>{THREE_DECIMALS})"
)


def read(line: Line, draft: Draft) -> None:
    """A printed iteration."""
    match = _STEP.search(line.text)
    if match:
        draft.step(line, match["done"], printed=match["rate"], loss=match["loss"])
    elif "throughput" in line.text:
        draft.note(line, "an iteration of OneFlow's InsightFace, but not whole")


FORMAT = Format(
    name="oneflow_insightface",
    title="OneFlow InsightFace",
    framework="oneflow",
    evidence=Evidence.SOURCE,
    source="Oneflow-Inc/oneflow_face util.py",
    needles=("train: iter ",),
    read=read,
)
