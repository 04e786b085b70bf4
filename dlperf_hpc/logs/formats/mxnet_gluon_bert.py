"""gluon-nlp's BERT pre-training on MXNet (scripts/bert of its releases 0.x).

``[step 20]\\tmlm_loss=9.12345\\tmlm_acc=5.12\\tnsp_loss=0.69\\tnsp_acc=52.1\\t`` and, on the same
line, ``throughput=18.7K tks/s\\tlr=0.0000100 time=12.34, latency=617.1 ms/batch`` (later
``ms/step``, the same number). Every rank prints.

The throughput counts the tokens that are no padding, of this rank, in thousands and to one
decimal; so the latency is read: the mean time of an optimizer step (accumulation inside) since
the line before, which is one time for all ranks. The oldest lines end with ``time=``, and no speed
is read of them. The step is of optimizer steps done; in old versions it is an index from 0, which
a line does not show, so that it may be one too low.
"""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Draft, Format, Line
from dlperf_hpc.logs.formats._figures import cut_short
from dlperf_hpc.logs.formats._numbers import NUMBER
from dlperf_hpc.logs.scan.rows import DECIMAL, FULL_STAMP, WHOLE, Rows
from dlperf_hpc.logs.scan.stamps import full_stamp
from dlperf_hpc.logs.scanned import Evidence, Printed, Unit

_STEP = re.compile(
    rf"\[step (?P<step>[0-9]+)\]\s+mlm_loss=\s*(?P<loss>{NUMBER})\s[^=]*=.{{0,200}}?"
    rf"throughput=\S+K tks/s\s+lr=(?P<lr>{NUMBER}) time=[0-9.]+"
    rf"(?:, latency=(?P<latency>{NUMBER}) ms/(?:batch|step))?"
)
_ROWS = Rows(
    rf"(?:INFO:root:(?P<full>{FULL_STAMP}) )?\[step (?P<iteration>{WHOLE})\]"
    rf"\tmlm_loss=(?P<loss>{DECIMAL})\tmlm_acc={DECIMAL}\tnsp_loss={DECIMAL}\tnsp_acc={DECIMAL}"
    rf"\tthroughput={DECIMAL}K tks/s\tlr=(?P<lr>{DECIMAL}) time=[0-9]+\.[0-9]+"
    r", latency=(?P<printed>[0-9]+\.[0-9]) ms/(?:batch|step)"
)
_EVALUATION = re.compile(r"\[step [0-9]+\].{0,200}K tks/s\s*$")


def read(line: Line, draft: Draft) -> None:
    """One line of some steps; an evaluation's, which ends at ``tks/s``, is left."""
    match = _STEP.search(line.text)
    if match is None:
        if not _EVALUATION.search(line.text):
            draft.note(line, "K tks/s, but not as gluon-nlp's BERT prints it")
        return
    latency = match["latency"]
    if latency is not None and cut_short(latency, 1):
        draft.note(line, f"latency {latency[:40]!r} is cut")
        latency = None
    draft.step(
        line,
        match["step"],
        stamp=full_stamp(line.text),
        printed=latency,
        loss=match["loss"],
        lr=match["lr"],
    )


FORMAT = Format(
    name="mxnet_gluon_bert",
    title="MXNet gluon-nlp BERT",
    framework="mxnet",
    evidence=Evidence.SOURCE,
    source="dmlc/gluon-nlp scripts/bert/pretraining_utils.py",
    needles=("K tks/s",),
    read=read,
    printed=Printed(unit=Unit.MS_PER_ITERATION),
    rows=(_ROWS,),
)
