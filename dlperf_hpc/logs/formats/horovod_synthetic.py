"""Horovod's synthetic benchmarks (PyTorch, TensorFlow 1 and 2, Keras, MXNet).

| line | what |
|---|---|
| ``Model: resnet50``, ``Batch size: 32``, ``Number of GPUs: 4`` | settings, batch per process |
| ``Iter #0: 108.3 img/sec per GPU`` | one device, over a block of batches |
| ``Img/sec per GPU: 108.2 +-1.2`` | the blocks' mean and 1.96 standard deviations: not read |
| ``Total img/sec on 4 GPU(s): 432.8 +-4.9`` | that mean times the number of processes |

Rank 0 prints. An ``Iter`` is a block of ``--num-batches-per-iter`` optimizer steps (10 by
default; the number is not printed), timed by itself after the warm-up (10 batches); the Keras
variant has no warm-up and leaves ``Iter #0`` out of its total. ``CPU`` stands for ``GPU`` where
there is none. Real lines were read where documents and issues quote them.
"""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Groups, Line, LinePattern, ReadingBuilder

_FIGURE = r"[-+.0-9a-z]{1,40}"
_ITER = re.compile(rf"Iter #(?P<n>[0-9]{{1,17}}): (?P<rate>{_FIGURE}) img/sec per [A-Z]{{1,8}}\b")
_TOTAL = re.compile(
    rf"Total img/sec on (?P<devices>[0-9]{{1,9}}) [A-Z]{{1,8}}\(s\): (?P<rate>{_FIGURE}) \+-"
)
_SETTING = re.compile(r"^(Model|Batch size|Number of [A-Z]{1,8}s): (\S{1,60})\s*$")
_SETTINGS = {"M": "model", "B": "batch_size", "N": "devices"}


def read(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """A block's speed, the total, or a line of the head."""
    if match := _ITER.search(line.text):
        builder.release_held()
        builder.step(line, int(match["n"]) + 1, printed=match["rate"])
    elif match := _TOTAL.search(line.text):
        builder.release_held()
        builder.fact(line, "devices", match["devices"])
        builder.total(line, "Total img/sec", match["rate"])
    elif match := _SETTING.search(line.text):
        builder.hold(line, _SETTINGS[match[1][0]], match[2])
    elif "img/sec" in line.text:
        builder.note(line, "img/sec, but not as Horovod's benchmarks print it")


LINES = {
    "horovod_synthetic": (LinePattern(take=read),),
}
