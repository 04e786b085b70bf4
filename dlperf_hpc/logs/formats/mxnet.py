r"""MXNet: gluon-nlp's BERT, and InsightFace with and without Partial FC.

mxnet_gluon_bert
----------------
gluon-nlp's BERT pre-training on MXNet (scripts/bert of its releases 0.x).

``[step 20]\tmlm_loss=9.12345\tmlm_acc=5.12\tnsp_loss=0.69\tnsp_acc=52.1\t`` and, on the same
line, ``throughput=18.7K tks/s\tlr=0.0000100 time=12.34, latency=617.1 ms/batch`` (later
``ms/step``, the same number). Every rank prints.

The throughput counts the tokens that are no padding, of this rank, in thousands and to one
decimal; so the latency is read: the mean time of an optimizer step (accumulation inside) since
the line before, which is one time for all ranks. The oldest lines end with ``time=``, and no speed
is read of them. The step is of optimizer steps done; in old versions it is an index from 0, which
a line does not show, so that it may be one too low.

insightface
-----------
MXNet's InsightFace (deepinsight/insightface ArcFace: ``mx.callback.Speedometer``).

``INFO:root:Epoch[0] Batch [20]\tSpeed: 1195.56 samples/sec\tacc=0.000000``, with MXNet before
1.3. From then on MXNet prints a range, ``Batch [0-20]``: that line is another format's.

The batch is a 0-based index within the epoch (``Module.fit``), so 20 means 21 done; a loop of
one's own that prints the same line may count from 1. An epoch's length is not printed: later ones
are counted on from the last printed batch. The speed is of all devices of the process,
since the line before.

insightface_partial_fc
----------------------
InsightFace's Partial FC with MXNet and Horovod (recognition/partial_fc/mxnet/callbacks.py).

``rank-id:0:2021-01-08 19:22:59,208-Iter:460 Rank:207.42 it/sec Total:1659.38 it/sec
[0][loss]:0.01``, in one line.

The iteration counts from 1. For all its ``it/sec``, ``Total`` is samples/s of all ranks (batch x
iterations / seconds x ranks), since the line before. Rank 0 prints.
"""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import NUMBER, Draft, Format, Line, cut_short, word
from dlperf_hpc.logs.scan.rows import DECIMAL, FULL_STAMP, WHOLE, Rows, full_stamp
from dlperf_hpc.logs.scanned import Evidence, Printed, Scope, Unit

# --- mxnet_gluon_bert

_BERT_STEP = re.compile(
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


def _read_bert(line: Line, draft: Draft) -> None:
    """One line of some steps; an evaluation's, which ends at ``tks/s``, is left."""
    match = _BERT_STEP.search(line.text)
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


BERT = Format(
    name="mxnet_gluon_bert",
    title="MXNet gluon-nlp BERT",
    framework="mxnet",
    evidence=Evidence.SOURCE,
    source="dmlc/gluon-nlp scripts/bert/pretraining_utils.py",
    needles=("K tks/s",),
    read=_read_bert,
    printed=Printed(unit=Unit.MS_PER_ITERATION),
    rows=(_ROWS,),
)


# --- insightface

_BATCH = re.compile(
    rf"{word('Epoch')}\[(?P<epoch>[0-9]{{1,9}})\] Batch \[(?P<index>[0-9]{{1,9}})\]\s+"
    rf"Speed: (?P<rate>{NUMBER}) samples/sec"
)
_MINE = re.compile(rf"{word('Epoch')}\[[0-9]+\] Batch \[[0-9]+\]\s+Speed: ")
_LOSS = re.compile(rf"{word('lossvalue=')}(?P<loss>{NUMBER})")


def _read_insightface(line: Line, draft: Draft) -> None:
    """A printed batch."""
    match = _BATCH.search(line.text)
    if match:
        loss = _LOSS.search(line.text, match.end())
        draft.step(
            line,
            draft.over_epochs(line, int(match["epoch"]), int(match["index"]) + 1),
            stamp=full_stamp(line.text),
            printed=match["rate"],
            loss=loss["loss"] if loss else None,
        )
    elif _MINE.search(line.text):
        draft.note(line, "a batch of MXNet's Speedometer, but without its speed")


INSIGHTFACE = Format(
    name="insightface",
    title="MXNet InsightFace (Speedometer without range)",
    framework="mxnet",
    evidence=Evidence.QUOTED,
    source="apache/mxnet python/mxnet/callback.py; deepinsight/insightface issues 74, 405",
    needles=("] Batch [",),
    read=_read_insightface,
    printed=Printed(scope=Scope.PROCESS),
)


# --- insightface_partial_fc

_PARTIAL_FC_STEP = re.compile(
    rf"\bIter:(?P<done>[0-9]+) Rank:{NUMBER} it/sec Total:(?P<rate>{NUMBER}) it/sec"
    rf"(?: +\[[0-9]+\]\[loss\]:(?P<loss>[0-9]+\.[0-9]{{2}})(?![0-9.]))?"
)


def _read_partial_fc(line: Line, draft: Draft) -> None:
    """A printed iteration."""
    match = _PARTIAL_FC_STEP.search(line.text)
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


PARTIAL_FC = Format(
    name="insightface_partial_fc",
    title="MXNet InsightFace Partial FC",
    framework="mxnet",
    evidence=Evidence.QUOTED,
    source="deepinsight/insightface recognition/partial_fc/mxnet/callbacks.py; DLPerf pull 106",
    needles=(" it/sec Total:",),
    read=_read_partial_fc,
)

FORMATS = (BERT, INSIGHTFACE, PARTIAL_FC)
