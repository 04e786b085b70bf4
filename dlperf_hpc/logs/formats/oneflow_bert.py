"""OneFlow BERT pretraining (``Metric`` of OneFlow-Benchmark's LanguageModeling/BERT/util.py).

``step: 19, total_loss: 9.725, mlm_loss: 8.960, nsp_loss: 0.766, throughput: 54.982
1598056519.8844702``, in one line; other versions print no time at its end.

The step is a 0-based index: 19 is the 20th. The throughput is samples/s of all devices over the
steps since the line before, the first from the start of the program. Losses are means per sample.
"""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Draft, Format, Line
from dlperf_hpc.logs.formats._figures import one_more
from dlperf_hpc.logs.formats._numbers import NUMBER, THREE_DECIMALS, word
from dlperf_hpc.logs.formats._oneflow import ASIDE_NEEDLES, END, aside, memory_mb, stamp
from dlperf_hpc.logs.scan.rows import DECIMAL, WHOLE, Rows
from dlperf_hpc.logs.scanned import Evidence

_STEP = re.compile(
    rf"{word('step: ')}(?P<index>[0-9]+), total_loss: (?P<loss>{NUMBER}), mlm_loss: {NUMBER}, "
    rf"nsp_loss: {NUMBER}, throughput: (?P<rate>{THREE_DECIMALS}){END}"
)
_ROWS = Rows(
    rf"step: (?P<index>{WHOLE}), total_loss: (?P<loss>{DECIMAL}), mlm_loss: {DECIMAL}, "
    rf"nsp_loss: {DECIMAL}, throughput: (?P<printed>[0-9]+\.[0-9]{{3}}) "
    r"(?P<epoch>[0-9]{10}\.[0-9]{2,20})",
    usual=lambda draft, _: "mib" not in draft.state,
)
_MINE = re.compile(rf"{word('step: ')}[0-9]+, total_loss: ")


def read(line: Line, draft: Draft) -> None:
    """A printed step, or a setting."""
    match = _STEP.search(line.text)
    if match:
        draft.step(
            line,
            one_more(match["index"]),
            stamp=stamp(match["stamp"]),
            printed=match["rate"],
            loss=match["loss"],
            memory_mb=memory_mb(draft),
        )
    elif not aside(line, draft) and _MINE.search(line.text):
        draft.note(line, "a step of OneFlow BERT, but not whole")


FORMAT = Format(
    name="oneflow_bert",
    title="OneFlow BERT",
    framework="oneflow",
    evidence=Evidence.QUOTED,
    source="Oneflow-Inc/OneFlow-Benchmark LanguageModeling/BERT/util.py; README",
    needles=(", nsp_loss: ",),
    read=read,
    facts_needles=ASIDE_NEEDLES,
    rows=(_ROWS,),
)
