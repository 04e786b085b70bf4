"""MXNet's InsightFace (deepinsight/insightface ArcFace: ``mx.callback.Speedometer``).

``INFO:root:Epoch[0] Batch [20]\\tSpeed: 1195.56 samples/sec\\tacc=0.000000``, with MXNet before
1.3. From then on MXNet prints a range, ``Batch [0-20]``: that line is another format's.

The batch is a 0-based index within the epoch (``Module.fit``), so 20 means 21 done; a loop of
one's own that prints the same line may count from 1. An epoch's length is not told: later ones are
counted on from the last that was printed. The speed is of all devices of the process,
since the line before.
"""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Draft, Format, Line
from dlperf_hpc.logs.formats._figures import over_epochs
from dlperf_hpc.logs.formats._numbers import NUMBER, word
from dlperf_hpc.logs.scan.stamps import full_stamp
from dlperf_hpc.logs.scanned import Evidence, Printed, Scope

_BATCH = re.compile(
    rf"{word('Epoch')}\[(?P<epoch>[0-9]{{1,9}})\] Batch \[(?P<index>[0-9]{{1,9}})\]\s+"
    rf"Speed: (?P<rate>{NUMBER}) samples/sec"
)
_MINE = re.compile(rf"{word('Epoch')}\[[0-9]+\] Batch \[[0-9]+\]\s+Speed: ")
_LOSS = re.compile(rf"{word('lossvalue=')}(?P<loss>{NUMBER})")


def read(line: Line, draft: Draft) -> None:
    """A printed batch."""
    match = _BATCH.search(line.text)
    if match:
        loss = _LOSS.search(line.text, match.end())
        draft.step(
            line,
            over_epochs(draft, line, int(match["epoch"]), int(match["index"]) + 1),
            stamp=full_stamp(line.text),
            printed=match["rate"],
            loss=loss["loss"] if loss else None,
        )
    elif _MINE.search(line.text):
        draft.note(line, "a batch of MXNet's Speedometer, but without its speed")


FORMAT = Format(
    name="insightface",
    title="MXNet InsightFace (Speedometer without range)",
    framework="mxnet",
    evidence=Evidence.QUOTED,
    source="apache/mxnet python/mxnet/callback.py; deepinsight/insightface issues 74, 405",
    needles=("] Batch [",),
    read=read,
    printed=Printed(scope=Scope.PROCESS),
)
