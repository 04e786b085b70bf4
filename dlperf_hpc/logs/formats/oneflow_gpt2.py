"""OneFlow GPT-2 (``Metric`` of OneFlow-Benchmark's LanguageModeling/gpt-2/src/util.py).

``step: 10, loss: 1.364, throughput: 103.900 1607400000.12``: BERT's print with other keys, and a
step that counts from 1. The throughput is samples/s of all devices since the line before.

The printed loss is kept as it stands, but it is the mean loss divided by the global batch: the
job's output is a mean already, and the print divides it by the number of samples once more (10.9
at a global batch of 8 prints 1.364). No two batch sizes compare.
"""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Draft, Format, Line
from dlperf_hpc.logs.formats._numbers import NUMBER, THREE_DECIMALS, word
from dlperf_hpc.logs.formats._oneflow import ASIDE_NEEDLES, END, aside, memory_mb, stamp
from dlperf_hpc.logs.scanned import Evidence

_STEP = re.compile(
    rf"\bstep: (?P<done>[0-9]+), loss: (?P<loss>{NUMBER}), "
    rf"throughput: (?P<rate>{THREE_DECIMALS}){END}"
)
_MINE = re.compile(rf"{word('step: ')}[0-9]+, loss: [^,]*, throughput: ")


def read(line: Line, draft: Draft) -> None:
    """A printed step, or a setting."""
    match = _STEP.search(line.text)
    if match:
        draft.step(
            line,
            match["done"],
            stamp=stamp(match["stamp"]),
            printed=match["rate"],
            loss=match["loss"],
            memory_mb=memory_mb(draft),
        )
    elif not aside(line, draft) and _MINE.search(line.text):
        draft.note(line, "a step of OneFlow GPT-2, but not whole")


FORMAT = Format(
    name="oneflow_gpt2",
    title="OneFlow GPT-2 (2020)",
    framework="oneflow",
    evidence=Evidence.SOURCE,
    source="Oneflow-Inc/OneFlow-Benchmark LanguageModeling/gpt-2/src/util.py",
    needles=(", throughput: ",),
    read=read,
    facts_needles=ASIDE_NEEDLES,
)
