"""OneFlow's programs (BERT, CNNs, GPT, GPT-2 and InsightFace), and MindSpore's callbacks.

Beside its iterations each program prints settings and memory. ``print_args`` prints an argument a
line as it starts: ``batch_size_per_device = 24``, ``gpu_num_per_node = 1``, ``num_nodes = 1``.
Where a program calls nvidia-smi (at iteration 10), a row per GPU of the machine follows:
``100 %, 13858 MiB``. That is the memory in use at one moment, whichever process uses it; no peak.

oneflow_bert
------------
OneFlow BERT pretraining (``Metric`` of OneFlow-Benchmark's LanguageModeling/BERT/util.py).

``step: 19, total_loss: 9.725, mlm_loss: 8.960, nsp_loss: 0.766, throughput: 54.982
1598056519.8844702``, in one line; other versions print no time at its end.

The step is a 0-based index: 19 is the 20th. The throughput is samples/s of all devices over the
steps since the line before, the first from the start of the program. Losses are means per sample.

oneflow_cnn
-----------
OneFlow CNNs (``Metric`` of OneFlow-Benchmark's Classification/cnns/util.py).

``train: epoch 0, iter 20, loss: 7.087004, top_1: 0.000000, top_k: 0.000000, samples/s: 3988.891
1597933942.9863544``, in one line; in July 2020 without the time, and without a loss where none is
asked for. Lines of ``validation:`` are not training.

The iteration is printed as ``step + 1`` and begins again with each epoch: an epoch's length is
not printed, so later epochs are counted on from the last printed iteration. samples/s is of all
devices over the iterations since the line before; the loss is the last batch's.

oneflow_gpt
-----------
OneFlow GPT (2021; ``Metric`` of OneFlow-Benchmark's LanguageModeling/GPT/oneflow_gpt/util.py).

| since | print |
|---|---|
| 2021-04 | a table: ``| batches  | micro_batches   | samples         | throughput | ...`` |
| 2021-05 | its first column is ``step`` |
| both, ``--metric-print-format normal`` | ``step=10,micro_batches=320,samples=5120,`` |
|  | ``throughput=35.88042,latency=14.26962,loss=11.23708,`` in one line |

A row has no meaning without its head, which is printed anew after nvidia-smi's reading. The first
column counts optimizer steps from 1; the throughput is samples/s of all devices since the line
before. The latency of the last row is wrong where the run does not end on a printed step; it is
not read. Under model parallelism ``micro_batch_size`` is no batch per device, so it is no fact.

oneflow_gpt2
------------
OneFlow GPT-2 (``Metric`` of OneFlow-Benchmark's LanguageModeling/gpt-2/src/util.py).

``step: 10, loss: 1.364, throughput: 103.900 1607400000.12``: BERT's print with other keys, and a
step that counts from 1. The throughput is samples/s of all devices since the line before.

The printed loss is kept as it stands, but it is the mean loss divided by the global batch: the
job's output is a mean already, and the print divides it by the number of samples once more (10.9
at a global batch of 8 prints 1.364). No two batch sizes compare.

oneflow_insightface
-------------------
OneFlow's InsightFace (``TrainMetric`` of oneflow_face's util.py).

``train: iter 20, loss 33.96, throughput: 512.345``: the iteration counts from 1, the throughput is
samples/s of all devices over the iterations since the line before. There is no time.

mindspore
---------
MindSpore (the callbacks of model_zoo's BERT and ``mindspore.train.callback``).

| callback | line |
|---|---|
| BERT's ``LossCallBack`` | ``epoch: 1, step: 20, outputs are [10.5]``; or a tuple of Tensors |
| ``LossMonitor`` | ``epoch: 1 step: 878, loss is 0.55011123`` |
| ``TimeMonitor`` | ``epoch time: 1234.500 ms, per step time: 61.725 ms``, later after ``Train`` |
| ... in 2020 | ``Epoch time: 1234.500, per step time: 61.725`` (ms too) |

``LossMonitor`` counts steps within the epoch, whose length is not printed: later epochs are counted
on from the last printed step. A step's line has its number, the next one the milliseconds per step
since the epoch began (an "epoch" may be a sink of 20 steps): both are read as one iteration.
Every process prints.

mindcv
------
MindCV (``StateMonitor``): ``Epoch: [2/120], batch: [2502/2502], loss: 4.4, lr: 0.08, time: 582.7s``
and ``Total time since last epoch: 629.5(train: 582.7, val: 44.6)s, ETA: 74279.2s``. The first
line's time leaves out the wait for data: read is ``train``, over the epoch's batches.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dlperf_hpc.logs.format import Groups, Line, LinePattern, ReadingBuilder
from dlperf_hpc.logs.lineparts import DECIMAL, NUMBER, THREE_DECIMALS, first_of, word


def _argument(name: str, fact: str) -> LinePattern:
    return LinePattern(rf"^\s*{name} = (?P<{fact}>[0-9]+)\s*$")


def _read_memory(line: Line, builder: ReadingBuilder, match: Groups) -> None:
    """The next iteration has the fullest GPU of the readings since the one before."""
    most = float(builder.ahead.get("memory_mb", 0.0))
    builder.ahead["memory_mb"] = max(most, float(match["mib"]))


_MEMORY = LinePattern(r"^\s*[0-9]+ %, (?P<mib>[0-9]{1,11}) MiB\s*$", take=_read_memory)
_ASIDE = (
    _MEMORY,
    _argument("batch_size_per_device", "batch_size"),
    _argument("gpu_num_per_node", "gpus_per_node"),
    _argument("num_nodes", "nodes"),
)

_END = r"(?: (?P<unix>[0-9]{10}\.[0-9]{2,}))?"
"""``time.time()`` as some versions print it after the line; one that was cut is none."""


# --- oneflow_bert

_BERT_STEP = LinePattern(
    rf"{word('step: ')}(?P<index>[0-9]+), total_loss: (?P<loss>{NUMBER}), mlm_loss: {NUMBER}, "
    rf"nsp_loss: {NUMBER}, throughput: (?P<printed>{THREE_DECIMALS}){_END}"
)


# --- oneflow_gpt

_HEADS = ("batches", "step")
_GPT_FACTS = {
    "global_batch_size": "global_batch",
    "num_gpus_per_node": "gpus_per_node",
    "num_nodes": "nodes",
}


def _read_row(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    cells = list(map(str.strip, line.text.split("|")[1:-1]))
    if "micro_batches" in cells and "throughput" in cells and cells[0] in _HEADS:
        builder.state["head"] = cells
        return
    head: list[str] | None = builder.state.get("head")
    if head is None or not cells or not cells[0].isdigit():
        return
    if len(cells) != len(head):
        builder.note(line, f"{len(cells)} cells under a head of {len(head)}")
        return
    named = dict(zip(head, cells))
    memory = builder.ahead.pop("memory_mb", None)
    builder.step(
        line, cells[0], printed=named["throughput"], loss=named.get("loss"), memory_mb=memory
    )


# --- mindspore

_MINDSPORE_STEP = (
    rf"{word('epoch: ')}(?P<epoch>[0-9]{{1,9}}),?(?: current epoch percent: {NUMBER},)? "
    r"step:? (?P<done>[0-9]{1,9}), (?P<what>outputs are|loss is)(?P<outputs>.{0,200})"
)
_LOSS = re.compile(rf"(?:\bvalue=|^) *[\[(]* *(?P<loss>{NUMBER})(?:[\]), ]|$)")
_TIME = re.compile(
    rf"(?P<eval>Eval )?\bepoch time: {NUMBER} ms, per step time: (?P<ms>{NUMBER}) ms"
    rf"|\bEpoch time: {NUMBER}, per step time: (?P<old>{THREE_DECIMALS})\s*$"
)


def _read_time(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    if (match := _TIME.search(line.text)) and not match["eval"]:
        _time(line, builder, match["ms"] or match["old"])


def _step(line: Line, builder: ReadingBuilder, match: Groups) -> None:
    before = len(builder.steps)
    done = int(match["done"])
    if match["what"] == "loss is":
        done = builder.over_epochs(line, int(match["epoch"]) - 1, done)
    builder.step(line, done, loss=first_of(_LOSS, match["outputs"]))
    if len(builder.steps) > before:
        builder.state[f"last of {line.rank}"] = before


def _remember_last(builder: ReadingBuilder, ranks: Sequence[int] | None) -> None:
    if ranks is None:
        builder.state["last of None"] = len(builder.steps) - 1
        return
    for index, rank in enumerate(ranks, len(builder.steps) - len(ranks)):
        builder.state[f"last of {None if rank < 0 else rank}"] = index


def _time(line: Line, builder: ReadingBuilder, time: str) -> None:
    """Once: other processes' times, and those of a second monitor, have no step of their own."""
    index: int | None = builder.state.pop(f"last of {line.rank}", None)
    if index is None:
        return
    try:
        milliseconds = float(time)
    except ValueError:
        milliseconds = 0.0
    if not 0 < milliseconds < 1e9:
        builder.note(line, f"ms/iteration {time[:40]!r} is no measurement")
        return
    builder.steps[index] = builder.steps[index]._replace(printed=milliseconds)


# --- mindcv


def _read_mindcv(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    epoch, length = builder.state.pop("epoch", None), int(builder.state.get("length", 0))
    if epoch and length:
        builder.step(line, int(epoch) * length, printed=float(found["train"]) / length)


LINES = {
    "oneflow_bert": (
        _BERT_STEP,
        *_ASIDE,
        LinePattern(
            rf"{word('step: ')}[0-9]+, total_loss: ", note="a step of OneFlow BERT, but not whole"
        ),
    ),
    "oneflow_cnn": (
        LinePattern(
            rf"{word('train: epoch ')}(?P<epoch>[0-9]{{1,9}}), iter (?P<iteration>[0-9]{{1,9}}),"
            rf"(?: loss: (?P<loss>{NUMBER}),)? top_1: {NUMBER}, top_k: {NUMBER}, "
            rf"samples/s: (?P<printed>{THREE_DECIMALS}){_END}"
        ),
        *_ASIDE,
        LinePattern(
            rf"{word('train: epoch ')}[0-9]+, iter [0-9]+,",
            note="an iteration of an OneFlow CNN, but not whole",
        ),
    ),
    # Rows are numbers and bars. A column of 15 places holds a count of 7 at most in earnest.
    "oneflow_gpt": (
        LinePattern(
            r"\bstep=(?P<iteration>[0-9]+),micro_batches=[0-9]+,samples=[0-9]+,"
            rf"throughput=(?P<printed>{NUMBER}),latency={NUMBER},(?:loss=(?P<loss>{NUMBER}),)?"
        ),
        *(
            LinePattern(rf"^\s*{name} \.+ (?P<{fact}>[0-9]+)\s*$")
            for name, fact in _GPT_FACTS.items()
        ),
        _MEMORY,
        LinePattern(r"^(?!.*\|).*step=", note="a step of OneFlow GPT, but not whole"),
        LinePattern(take=_read_row),
    ),
    "oneflow_gpt2": (
        _BERT_STEP.of_another(),
        LinePattern(
            rf"\bstep: (?P<iteration>[0-9]+), loss: (?P<loss>{NUMBER}), "
            rf"throughput: (?P<printed>{THREE_DECIMALS}){_END}"
        ),
        *_ASIDE,
        LinePattern(
            rf"{word('step: ')}[0-9]+, loss: [^,]*, throughput: ",
            note="a step of OneFlow GPT-2, but not whole",
        ),
    ),
    "oneflow_insightface": (
        LinePattern(
            rf"\btrain: iter (?P<iteration>[0-9]+), loss (?P<loss>{NUMBER}), "
            rf"throughput: (?P<printed>{THREE_DECIMALS})"
        ),
        LinePattern("throughput", note="an iteration of OneFlow's InsightFace, but not whole"),
    ),
    "mindspore": (
        LinePattern(
            rf"{word('epoch: ')}[0-9]{{1,9}}, step: (?P<iteration>[0-9]{{1,9}}), outputs are "
            rf"\[(?P<loss>{DECIMAL})\]",
            then=_remember_last,
        ),
        LinePattern(_MINDSPORE_STEP, take=_step),
        LinePattern(take=_read_time),
    ),
    "mindcv": (
        LinePattern(
            r"Epoch: \[(?P<epoch>[0-9]{1,9})/\S+ batch: \[(?P<length>[0-9]{1,9})/(?P=length)\]",
            kept=True,
        ),
        LinePattern(
            rf"Total time since last epoch: {NUMBER}\(train: (?P<train>{DECIMAL}), val: ",
            take=_read_mindcv,
        ),
    ),
}
