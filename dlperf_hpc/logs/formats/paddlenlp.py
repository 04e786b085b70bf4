"""PaddleNLP's pretraining scripts (PaddlePaddle/PaddleNLP examples, run_pretrain.py and others).

``tobal step: 40, epoch: 0, batch: 39, loss: 11.128925, avg_reader_cost: 0.00011 sec,
avg_batch_cost: 0.13001 sec, avg_samples: 64.00000, ips: 492.25918 sequences/sec``, in one line;
later ``total step:``, in dynamic graphs ``global step:``, in benchmarks ``global step 40 / 500``.

The step counts batches from 1: with gradient merge, micro-steps. ``ips`` is of one device, over
the steps since the line before; trainer 0 prints it.
"""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Draft, Format, Line
from dlperf_hpc.logs.formats._numbers import NUMBER, word
from dlperf_hpc.logs.scan.rows import DECIMAL, FULL_STAMP, WHOLE, Rows
from dlperf_hpc.logs.scan.stamps import full_stamp
from dlperf_hpc.logs.scanned import Counter, Evidence, Printed, Scope

_HEAD = re.compile(r"\b(?:tobal|total|global) step:? (?P<done>[0-9]+)(?: / [0-9]+)?,")
_ROWS = Rows(
    rf"(?:\[(?P<full>{FULL_STAMP})\] \[ {{0,4}}INFO\] - )?"
    rf"(?:tobal|total|global) step:? (?P<iteration>{WHOLE}), epoch: [0-9]+, batch: [0-9]+, "
    rf"loss: (?P<loss>{DECIMAL}), (?:avg_[a-z_]+: {DECIMAL}(?: sec)?, )*"
    rf"ips: (?P<printed>{DECIMAL}) sequences/sec"
)
_LOSS = re.compile(rf"{word('loss: ')}(?P<loss>{NUMBER}),")
_RATE = re.compile(rf"{word('ips: ')}(?P<rate>{NUMBER}) sequences/sec")
_MEMORY = re.compile(rf"{word('max_mem_allocated: ')}(?P<mb>[0-9]+) MB")
_MERGE = re.compile(rf"{word('gradient_merge_steps=')}(?P<value>[0-9]+)")
_BATCH = re.compile(rf"{word('batch_size=')}(?P<value>[0-9]+)")
_FP16 = re.compile(r"\buse_(?:amp|pure_fp16)=(?P<value>True|False|0|1)\b")


def read(line: Line, draft: Draft) -> None:
    """A printed step, or the arguments."""
    head = _HEAD.search(line.text)
    if head is None:
        if "Namespace(" in line.text:
            _arguments(line, draft)
        return
    rate = _RATE.search(line.text, head.end())
    if rate is None:
        draft.note(line, "a step of PaddleNLP, but without its speed")
        return
    loss = _LOSS.search(line.text, head.end())
    memory = _MEMORY.search(line.text, rate.end())
    draft.step(
        line,
        head["done"],
        stamp=full_stamp(line.text),
        printed=rate["rate"],
        loss=loss["loss"] if loss else None,
        memory_mb=memory["mb"] if memory else None,
    )


def _arguments(line: Line, draft: Draft) -> None:
    for pattern, name in ((_MERGE, "accumulation"), (_BATCH, "batch_size")):
        match = pattern.search(line.text)
        if match:
            draft.fact(line, name, match["value"])
    switches = _FP16.findall(line.text)
    if switches:
        on = "True" in switches or "1" in switches
        draft.fact(line, "precision", "fp16" if on else "fp32")


FORMAT = Format(
    name="paddlenlp",
    title="PaddleNLP pretraining",
    framework="paddle",
    evidence=Evidence.REAL,
    source="PaddlePaddle/PaddleNLP examples/language_model/bert/static/run_pretrain.py",
    needles=(" sequences/sec",),
    read=read,
    printed=Printed(scope=Scope.DEVICE),
    counter=Counter.MICRO_STEPS,
    facts_needles=("gradient_merge_steps=",),
    rows=(_ROWS,),
)
