"""Megatron-LM since v2, current, Megatron-DeepSpeed and GPT-NeoX: an iteration's line.

| program | line (one; ``..`` stands for more keys) |
|---|---|
| v2 | `` iteration  10/ 100 \\| consumed samples: 40 \\| elapsed time per iteration (ms): 430.0 \\| learning rate: 1.5E-04 \\| global batch size: 4 \\| lm loss: 2.6E+01 \\| ..`` |
| current | the same after ``[2025-12-19 10:49:15]`` (2026: microseconds), with ``throughput per GPU (TFLOP/s/GPU): 134.0 \\|`` |
| Megatron-DeepSpeed | ends with ``samples per second: 26.942 \\| TFLOPs: 147.61 \\|``; BigScience's prints seconds: ``elapsed time per iteration (s): 35.8651 \\|`` |
| GPT-NeoX | ``  samples/sec: 7.799 \\| iteration  34/ 1000 \\| elapsed time per iteration (ms): ..``, no batch |

The time is the mean over the iterations since the line before; the first one has the set-up in
it. Samples per second of all devices follow from it and the ``global batch size`` of the line,
which may grow; GPT-NeoX has no batch there, so its samples per second are taken instead: over all
devices, since the line before. An iteration is an optimizer step, micro-batches and all. The last
rank prints the line (GPT-NeoX: rank 0), so on many nodes the last node does. ROCm's Primus prints
``13100.0/13240.9``, this iteration's and an average: the first counts. Real logs of v2, the
current one and Megatron-DeepSpeed were read; GPT-NeoX's line is known from the source.
"""  # noqa: E501 - a line of a log is as long as it is

from __future__ import annotations

import re
from itertools import zip_longest

from dlperf_hpc.logs.format import Draft, Format, Line
from dlperf_hpc.logs.formats import _megatron
from dlperf_hpc.logs.formats._held import tell
from dlperf_hpc.logs.scan.rows import DECIMAL, FULL_STAMP, WHOLE, Rows
from dlperf_hpc.logs.scan.stamps import full_stamp
from dlperf_hpc.logs.scanned import Evidence, Printed, Unit

_FIGURE = _megatron.FIGURE
_NUMBERS = r"iteration +(?P<n>[0-9]{1,18})/ *(?:[0-9]{1,18}|infinity) \|"
_ITERATION = re.compile(rf"(?:samples/sec: {{0,8}}(?P<rate>{_FIGURE}) \| )?{_NUMBERS}")
_WITHOUT_RATE = re.compile(rf"{_NUMBERS}(?P<rate>x{{0}})")  # the same, found in a tenth of the time
_ELAPSED = re.compile(
    rf"elapsed time per iteration ?\((?P<unit>ms|s)\): *(?P<time>{_FIGURE})(?:/{_FIGURE})? *\|"
)
_BATCH = re.compile(r"\| (?:global|gloabl) batch size: *([0-9]{1,18}) *\|")
_LR = re.compile(rf"\| learning rate: *({_FIGURE}) *\|")
_LOSS = re.compile(rf"\| lm[ _]loss: *({_FIGURE}) *\|")
_ROWS = Rows(
    rf"(?: \[(?P<full>{FULL_STAMP})\])? iteration +(?P<iteration>{WHOLE})/ *{WHOLE} \|"
    rf" consumed samples: +[0-9]+ \|(?: consumed tokens: +[0-9]+ \|)?"
    rf" elapsed time per iteration \(ms\): (?P<printed>{DECIMAL}) \|"
    rf"(?: throughput per GPU \(TFLOP/s/GPU\): {DECIMAL} \|)?"
    rf" learning rate: (?P<lr>{DECIMAL}) \| global batch size: +(?P<global_batch>{WHOLE}) \|"
    rf" lm loss: (?P<loss>{DECIMAL}) \|(?: [a-z ]+: +{DECIMAL} \|)*",
    usual=lambda draft, _: (
        bool(draft.steps)
        and draft.printed.unit is Unit.MS_PER_ITERATION
        and not {"held", "memory"} & draft.state.keys()
    ),
)
_MARKS = ("| consumed samples:", "| learning rate:")
_UNITS = {"ms": Unit.MS_PER_ITERATION, "s": Unit.S_PER_ITERATION}


def read(line: Line, draft: Draft) -> None:
    """An iteration's line, or one of the lines that state settings or memory."""
    if _megatron.NEEDLE not in line.text:
        _megatron.read_setting(line, draft)
        return
    head_pattern = _ITERATION if "samples/sec: " in line.text else _WITHOUT_RATE
    heads = list(head_pattern.finditer(line.text))
    start = 0
    for head, following in zip_longest(heads, heads[1:]):
        stamp = full_stamp(line.text[start : head.start()])
        start = head.end()
        keys = line.text[start - 1 : following.start() if following else None]
        _read_iteration(line, draft, head, keys, stamp)
    if not heads:
        draft.note(line, "time per iteration, but not as any Megatron prints it")


def _read_iteration(
    line: Line, draft: Draft, head: re.Match[str], keys: str, stamp: float | None
) -> None:
    """One iteration: its number is in ``head``, the rest in ``keys``, each between bars."""
    if not head["rate"] and not any(mark in keys for mark in _MARKS):
        return  # megatron_gpt2's line, or too little of one to tell
    elapsed = _ELAPSED.search(keys)
    if elapsed is None:
        draft.note(line, f"iteration {head['n']} without a time")
        return
    batch = _BATCH.search(keys)
    by_rate = bool(head["rate"]) and batch is None
    unit = Unit.SAMPLES_PER_S if by_rate else _UNITS[elapsed["unit"]]
    if not draft.steps:
        draft.printed = Printed(unit)
    if draft.printed.unit is not unit:
        draft.note(line, f"prints {unit.value}, unlike the lines before: not read")
        return
    tell(draft)
    if batch:
        draft.fact(line, "global_batch", batch[1])
    draft.step(
        line,
        head["n"],
        stamp=stamp,
        printed=head["rate"] if by_rate else elapsed["time"],
        loss=_first(_LOSS, keys),
        lr=_first(_LR, keys),
        memory_mb=_megatron.memory_of(draft, head["n"]),
    )


def _first(pattern: re.Pattern[str], keys: str) -> str | None:
    match = pattern.search(keys)
    return match[1] if match else None


FORMAT = Format(
    name="megatron",
    title="Megatron-LM (v2 to current), Megatron-DeepSpeed, GPT-NeoX",
    framework="megatron",
    evidence=Evidence.REAL,
    source="NVIDIA/Megatron-LM megatron/training/training.py",
    needles=(_megatron.NEEDLE,),
    read=read,
    printed=Printed(Unit.MS_PER_ITERATION),
    facts_needles=_megatron.FACTS_NEEDLES,
    rows=(_ROWS,),
)
