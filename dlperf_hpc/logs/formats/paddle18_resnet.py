"""PaddlePaddle 1.8 image classification (PaddlePaddle/models PaddleCV/image_classification).

``[Pass 0, train batch 19] \\tloss 7.07123, acc1 0.00000, acc5 0.00781, lr 0.10000, elapse 0.3425
sec``, in one line (2 decimals before 2019; without accuracies under mixup). ``test  batch`` lines
are not training.

The batch is a 0-based index within the pass: a pass's length is not told, so later ones are
counted on from the last that was printed. ``elapse`` is the seconds of that batch alone, over
all devices; until 2020 the time in which the loader is waited for is not in it.
"""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Draft, Format, Line
from dlperf_hpc.logs.formats._figures import over_epochs
from dlperf_hpc.logs.formats._numbers import NUMBER
from dlperf_hpc.logs.scan.stamps import full_stamp
from dlperf_hpc.logs.scanned import Averaging, Evidence, Printed, Unit

_BATCH = re.compile(
    r"\[Pass (?P<epoch>[0-9]{1,9}), train batch (?P<index>[0-9]{1,9})\],?\s+"
    rf"loss (?P<loss>{NUMBER}),(?: acc1 {NUMBER}, acc[0-9] {NUMBER},)? "
    rf"lr (?P<lr>{NUMBER}), elapse (?P<time>{NUMBER}) sec"
)


def read(line: Line, draft: Draft) -> None:
    """A printed batch."""
    match = _BATCH.search(line.text)
    if match is None:
        draft.note(line, "a train batch, but not as Paddle 1.8 prints it")
        return
    draft.step(
        line,
        over_epochs(draft, line, int(match["epoch"]), int(match["index"]) + 1),
        stamp=full_stamp(line.text),
        printed=match["time"],
        loss=match["loss"],
        lr=match["lr"],
    )


FORMAT = Format(
    name="paddle18_resnet",
    title="PaddlePaddle 1.8 image classification",
    framework="paddle",
    evidence=Evidence.SOURCE,
    source="PaddlePaddle/models (release/1.8) PaddleCV/image_classification/utils/utility.py",
    needles=(", train batch ",),
    read=read,
    printed=Printed(Unit.S_PER_ITERATION, averaging=Averaging.LAST_ONE),
)
