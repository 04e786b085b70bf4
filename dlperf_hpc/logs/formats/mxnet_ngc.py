"""ResNet-50 of NVIDIA's DeepLearningExamples for MXNet up to 2020 (python logging, on stderr).

``2020-12-16 08:21:31,031:INFO: Epoch[0] Batch [0-19]\\tSpeed: 833.904 samples/sec\\tLR: 0.0043``:
every rank prints the speed over all GPUs that it saw since its line before; the batches are
indices from 0 within the epoch. At the end, under ``train.total_ips``, stands the table of
``benchmark.py`` (:mod:`._mxnet_table`). MXNet's own Speedometer prints similar lines without
``LR``, with the speed of one process: those are not read.
"""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Draft, Format, Line
from dlperf_hpc.logs.formats import _mxnet_table
from dlperf_hpc.logs.formats._figures import one_more, over_epochs
from dlperf_hpc.logs.formats._numbers import NUMBER
from dlperf_hpc.logs.scan.stamps import full_stamp
from dlperf_hpc.logs.scanned import Evidence

_BATCH = re.compile(
    r"Epoch\[(?P<epoch>[0-9]{1,15})\] Batch \[[0-9]+-(?P<last>[0-9]{1,15})\]\s+"
    rf"Speed: (?P<rate>{NUMBER}) samples/sec\s+LR: (?P<lr>{NUMBER})"
)


def read(line: Line, draft: Draft) -> None:
    """One line of some batches, or of the table; similar lines of other programs are left."""
    if "] Batch [" not in line.text:
        _mxnet_table.table_line(line, draft, "train.total_ips")
        return
    match = _BATCH.search(line.text)
    if match is not None:
        done = over_epochs(draft, line, int(match["epoch"]), int(one_more(match["last"])))
        draft.step(line, done, stamp=full_stamp(line.text), printed=match["rate"], lr=match["lr"])
    elif "samples/sec" in line.text and "LR: " in line.text:
        draft.note(line, "Speed and LR, but not as the training loop prints them")


FORMAT = Format(
    name="mxnet_ngc",
    title="NVIDIA DeepLearningExamples MXNet ResNet-50 (Speed:, up to 2020)",
    framework="ngc-mxnet",
    evidence=Evidence.QUOTED,
    source="NVIDIA/DeepLearningExamples MxNet/Classification/RN50v1.5/fit.py, benchmark.py",
    needles=("] Batch [",),
    read=read,
    facts_needles=("train.total_ips", _mxnet_table.NEEDLE),
)
