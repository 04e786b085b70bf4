"""OneFlow CNNs (``Metric`` of OneFlow-Benchmark's Classification/cnns/util.py).

``train: epoch 0, iter 20, loss: 7.087004, top_1: 0.000000, top_k: 0.000000, samples/s: 3988.891
1597933942.9863544``, in one line; in July 2020 without the time, and without a loss where none is
asked for. Lines of ``validation:`` are not training.

The iteration is printed as ``step + 1`` and begins again with each epoch: an epoch's length is
not told, so later epochs are counted on from the last that was printed. samples/s is of all
devices over the iterations since the line before; the loss is the last batch's.
"""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Draft, Format, Line
from dlperf_hpc.logs.formats._figures import over_epochs
from dlperf_hpc.logs.formats._numbers import NUMBER, THREE_DECIMALS, word
from dlperf_hpc.logs.formats._oneflow import ASIDE_NEEDLES, END, aside, memory_mb, stamp
from dlperf_hpc.logs.scanned import Evidence

_STEP = re.compile(
    rf"{word('train: epoch ')}(?P<epoch>[0-9]{{1,9}}), iter (?P<done>[0-9]{{1,9}}),"
    rf"(?: loss: (?P<loss>{NUMBER}),)? top_1: {NUMBER}, top_k: {NUMBER}, "
    rf"samples/s: (?P<rate>{THREE_DECIMALS}){END}"
)
_MINE = re.compile(rf"{word('train: epoch ')}[0-9]+, iter [0-9]+,")


def read(line: Line, draft: Draft) -> None:
    """A printed iteration, or a setting."""
    match = _STEP.search(line.text)
    if match:
        draft.step(
            line,
            over_epochs(draft, line, int(match["epoch"]), int(match["done"])),
            stamp=stamp(match["stamp"]),
            printed=match["rate"],
            loss=match["loss"],
            memory_mb=memory_mb(draft),
        )
    elif not aside(line, draft) and _MINE.search(line.text):
        draft.note(line, "an iteration of an OneFlow CNN, but not whole")


FORMAT = Format(
    name="oneflow_cnn",
    title="OneFlow CNN (ResNet-50)",
    framework="oneflow",
    evidence=Evidence.QUOTED,
    source="Oneflow-Inc/OneFlow-Benchmark Classification/cnns/util.py; README",
    needles=(", samples/s: ",),
    read=read,
    facts_needles=ASIDE_NEEDLES,
)
