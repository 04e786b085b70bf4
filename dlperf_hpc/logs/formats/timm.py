r"""timm: pytorch-image-models' ``train.py``, and the scripts that were made of it.

| since | line |
|---|---|
| 2019 | ``Train: 0 [  50/1251 (  4%)]  Loss:  6.912345 (6.9234)  Time: 0.245s, 1044.90/s  (0.312s,  820.51/s)  LR: 1.000e-05  Data: 0.010 (0.080)`` |
| 2022 | as above with ``Loss: 6.91 (6.92)`` |

The index counts from 0 (since 2023 optimizer steps; before, batches, which were the same). Rank 0
prints, without a time stamp. ``820.51/s`` is samples per second of all devices: the line's batch
over the mean time since the epoch began, data loader and first iterations included. Mean and count
begin anew with each epoch, so the first epoch is read. An epoch's last batch may have fewer
samples, which makes its line's figure too low by that factor: it is not read. With batches of
changing size (``Using NaFlex loader``) none is.

The global batch is printed where the learning rate is scaled by it. Quoted lines of both forms were
read, in the README of phamdinhkhanh/general_backbone and in notes of repositories made of timm.
"""  # noqa: E501 - a row of the table is a line of the log

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Groups, Line, LinePattern, ReadingBuilder
from dlperf_hpc.logs.lineparts import full_stamp, one_more

_FIGURE = r"[-+.0-9a-z]{1,40}"  # nan and inf too: ReadingBuilder notes what is no measurement
_COUNT = r"[0-9]{1,12}"
_LINE = re.compile(
    rf"Train: (?P<era>{_COUNT}) \[ {{0,12}}(?P<index>{_COUNT})/(?P<length>{_COUNT})"
    rf" \( {{0,3}}[0-9]{{1,3}}%\)\]"
    rf" {{1,4}}Loss: {{1,4}}(?P<loss>{_FIGURE}) \( {{0,4}}{_FIGURE}\)"
    rf" {{1,4}}Time: {{1,4}}{_FIGURE}s, {{1,8}}{_FIGURE}/s"
    rf" {{1,4}}\({_FIGURE}s, {{1,8}}(?P<rate>{_FIGURE})/s\)"
    rf"(?: {{1,4}}LR: (?P<lr>{_FIGURE}) )?"
)
_WORLD = re.compile(r" per process\. ?Process [0-9]{1,9}, total ([0-9]{1,9})[.,]")
_BATCH = re.compile(r"and effective global batch size \(([0-9]{1,12})\) with ")
_MODEL = re.compile(r"\bModel ([A-Za-z0-9_.-]{1,80}) created, param count:")
_PLAIN = re.compile(r"AMP not enabled\. Training in (?:torch\.)?(float32|float16|bfloat16)\.")
_PRECISIONS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
_ALONE = "Training with a single process on 1 "
_NAFLEX = "Using NaFlex loader"


def read(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """A printed update, or a setting."""
    match = _LINE.search(line.text)
    if match is None:
        _read_setting(line, builder)
        return
    builder.release_held()
    if builder.later_epoch(line, match["era"]):
        return
    builder.step(
        line,
        one_more(match["index"]),
        stamp=full_stamp(line.text[: match.start()]),
        printed=match["rate"] if _same_batch(match, builder) else None,
        loss=match["loss"],
        lr=match["lr"],
    )


def _same_batch(match: re.Match[str], builder: ReadingBuilder) -> bool:
    """Whether the batch of a line is that of all before it."""
    return _NAFLEX not in builder.state and int(match["index"]) + 1 < int(match["length"])


def _read_setting(line: Line, builder: ReadingBuilder) -> None:
    if match := _WORLD.search(line.text):
        builder.hold(line, "devices", match[1])
    elif _ALONE in line.text:
        builder.hold(line, "devices", 1)
    elif match := _BATCH.search(line.text):
        builder.hold(line, "global_batch", match[1])
    elif match := _MODEL.search(line.text):
        builder.hold(line, "model", match[1])
    elif match := _PLAIN.search(line.text):
        builder.hold(line, "precision", _PRECISIONS[match[1]])
    elif _NAFLEX in line.text:
        builder.state[_NAFLEX] = True


LINES = {
    "timm": (LinePattern(take=read),),
}
