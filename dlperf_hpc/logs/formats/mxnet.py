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

from dlperf_hpc.logs.format import (
    Groups,
    Line,
    LinePattern,
    ReadingBuilder,
)
from dlperf_hpc.logs.lineparts import (
    NUMBER,
    cut_short,
    full_stamp,
    word,
)

# --- mxnet_gluon_bert


def _read_step(line: Line, builder: ReadingBuilder, match: Groups) -> None:
    """A step, without a latency that is cut."""
    latency = match["printed"]
    if latency is not None and cut_short(latency, 1):
        builder.note(line, f"latency {latency[:40]!r} is cut")
        latency = None
    stamp = full_stamp(line.text)
    builder.step(
        line,
        match["iteration"],
        stamp=stamp,
        printed=latency,
        loss=match["loss"],
        lr=match["lr"],
    )


# --- insightface


# --- insightface_partial_fc


LINES = {
    "mxnet_gluon_bert": (
        LinePattern(
            rf"\[step (?P<iteration>[0-9]+)\]\s+mlm_loss=\s*(?P<loss>{NUMBER})\s[^=]*=.{{0,200}}?"
            rf"throughput=\S+K tks/s\s+lr=(?P<lr>{NUMBER}) time=[0-9.]+"
            rf"(?:, latency=(?P<printed>{NUMBER}) ms/(?:batch|step))?",
            clock="full",
            take=_read_step,
            usual=lambda _, columns: (
                not any(cut_short(each, 1) for each in columns.get("printed", ()))
            ),
        ),
        LinePattern(r"\[step [0-9]+\].{0,200}K tks/s\s*$", passed_over=True),
        LinePattern("K tks/s", note="K tks/s, but not as gluon-nlp's BERT prints it"),
    ),
    "insightface": (
        LinePattern(
            rf"{word('Epoch')}\[(?P<epoch>[0-9]{{1,9}})\] Batch \[(?P<index>[0-9]{{1,9}})\]\s+"
            rf"Speed: (?P<printed>{NUMBER}) samples/sec"
            rf"(?:.*?{word('lossvalue=')}(?P<loss>{NUMBER}))?",
            clock="full",
        ),
        LinePattern(
            rf"{word('Epoch')}\[[0-9]+\] Batch \[[0-9]+\]\s+Speed: ",
            note="a batch of MXNet's Speedometer, but without its speed",
        ),
    ),
    "insightface_partial_fc": (
        LinePattern(
            rf"\bIter:(?P<iteration>[0-9]+) Rank:{NUMBER} it/sec Total:(?P<printed>{NUMBER}) it/sec"
            r"(?: +\[[0-9]+\]\[loss\]:(?P<loss>[0-9]+\.[0-9]{2})(?![0-9.]))?",
            clock="full",
        ),
        LinePattern(
            " it/sec Total:",
            note="it/sec of a rank and in total, but no iteration of Partial FC",
        ),
    ),
}
