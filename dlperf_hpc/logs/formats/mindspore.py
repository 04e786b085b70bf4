"""MindSpore (the callbacks of model_zoo's BERT and ``mindspore.train.callback``).

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
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dlperf_hpc.logs.format import (
    Groups,
    Line,
    LinePattern,
    ReadingBuilder,
)
from dlperf_hpc.logs.lineparts import DECIMAL, NUMBER, THREE_DECIMALS, word

_STEP = (
    rf"{word('epoch: ')}(?P<epoch>[0-9]{{1,9}}),?(?: current epoch percent: {NUMBER},)? "
    r"step:? (?P<done>[0-9]{1,9}), (?P<what>outputs are|loss is)(?P<outputs>.{0,200})"
)
_LOSS = re.compile(rf"(?:\bvalue=|^) *[\[(]* *(?P<loss>{NUMBER})(?:[\]), ]|$)")
_TIME = re.compile(
    rf"(?P<eval>Eval )?\bepoch time: {NUMBER} ms, per step time: (?P<ms>{NUMBER}) ms"
    rf"|\bEpoch time: {NUMBER}, per step time: (?P<old>{THREE_DECIMALS})\s*$"
)


def read(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """The time that belongs to the step before."""
    if (match := _TIME.search(line.text)) and not match["eval"]:
        _time(line, builder, match["ms"] or match["old"])


def _step(line: Line, builder: ReadingBuilder, match: Groups) -> None:
    before = len(builder.steps)
    loss = _LOSS.search(match["outputs"])
    done = int(match["done"])
    if match["what"] == "loss is":
        done = builder.over_epochs(line, int(match["epoch"]) - 1, done)
    builder.step(line, done, loss=loss["loss"] if loss else None)
    if len(builder.steps) > before:
        builder.state[f"last of {line.rank}"] = before


def _remember_last(builder: ReadingBuilder, ranks: Sequence[int] | None) -> None:
    """Of many steps that were added: the last of each rank."""
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


LINES = {
    "mindspore": (
        LinePattern(
            rf"{word('epoch: ')}[0-9]{{1,9}}, step: (?P<iteration>[0-9]{{1,9}}), outputs are "
            rf"\[(?P<loss>{DECIMAL})\]",
            then=_remember_last,
        ),
        LinePattern(_STEP, take=_step),
        LinePattern(take=read),
    ),
}
