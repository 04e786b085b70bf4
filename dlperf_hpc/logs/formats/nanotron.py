"""nanotron (huggingface/nanotron).

| since | line, behind ``01/17/2024 14:02:16 [INFO|DP=0|PP=0|TP=0|host]: `` |
|---|---|
| 2023-12 | ``iteration: 992 / 1000 | consumed_tokens: 635K | elapsed_time_per_iteration_ms: 268 | tokens_per_sec: 2.39K | tokens_per_sec_per_gpu: 298 | global_batch_size: 20 | lm_loss: 9.69 | lr: 1e-05 | ..`` |
| 2025-03 | ``time_per_iteration_ms: 268``; ``global_batch_size`` in tokens; a head without the year |

The iteration counts optimizer steps done. The tokens/s are those of the last iteration alone, of all
devices, after all ranks have waited for each other; every iteration has a line unless
``iteration_step_info_interval`` is set. Numbers have three digits, so that a speed may be off by 0.5 %
(1.01K); K, M, G or B (since 2025-04) and T are powers of 1000. The time stamps, of whole seconds, are
not read.

Settings: ``mbs: 2 | grad_accum: 8 | sequence_length: 4096 | global_batch_size: 1024 | train_steps:``
as the training starts, in sequences. Real lines: huggingface/nanotron#390, #233, pull request 23.
"""  # noqa: E501 - a row of the table is a line of the log

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Groups, Line, LinePattern, ReadingBuilder
from dlperf_hpc.logs.lineparts import NUMBER, word

_COUNT = r"[0-9]{1,18}"
_POWERS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
_ITERATION = re.compile(rf"{word('iteration: ')}(?P<done>{_COUNT}) / {_COUNT} \| ")
_RATE = re.compile(
    r"\| tokens_per_sec: (?P<rate>[0-9]{1,15}(?:\.[0-9]{1,20})?)(?P<unit>[KMGBT]?) \|"
)
_LOSS = re.compile(rf"\| lm_loss: (?P<loss>{NUMBER}) \|")
_LR = re.compile(rf"\| lr: (?P<lr>{NUMBER}) \|")
_START = re.compile(
    r"\bmbs: [0-9]{1,9} \| grad_accum: (?P<accumulation>[0-9]{1,9}) \|(?: cp: [0-9]{1,9} \|)?"
    r"(?: sequence_length: (?P<length>[0-9]{1,9}) \|)? global_batch_size: (?P<batch>[0-9]{1,12}) \|"
    r"(?: sequence_length: (?P<length_behind>[0-9]{1,9}) \|)? train_steps: "
)


def read(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """An iteration, or the settings as the training starts."""
    if start := _START.search(line.text):
        builder.hold(line, "accumulation", start["accumulation"])
        builder.hold(line, "global_batch", start["batch"])
        if length := start["length"] or start["length_behind"]:
            builder.hold(line, "seq_len", length)
        return
    iteration = _ITERATION.search(line.text)
    rate = _RATE.search(line.text, iteration.end() - 2) if iteration else None
    if iteration is None or rate is None:
        return
    builder.release_held()
    loss, lr = (each.search(line.text, rate.end() - 2) for each in (_LOSS, _LR))
    builder.step(
        line,
        iteration["done"],
        printed=float(rate["rate"]) * _POWERS[rate["unit"]],
        loss=loss["loss"] if loss else None,
        lr=lr["lr"] if lr else None,
    )


LINES = {
    "nanotron": (LinePattern(take=read),),
}
