r"""Megatron-LM and its descendants, and the Megatron-LM of 2020.

All generations of Megatron-LM print arguments, sizes and memory alike:

| line | holds |
|---|---|
| ``  micro_batch_size ................................ 2`` | an argument (old: ``batch_size``) |
| ``using world size: 16, data-parallel-size: 16, tensor-model-parallel size: 1, ...`` | devices |
| ``setting number of micro-batches to constant 64`` | accumulation |
| ``  seq_length: 8192  (Mcore default: None)`` | a setting of Megatron-Bridge's summary |
| ``[Rank 0] (after 1 iterations) memory (MB) \| allocated: 1.5 \| max allocated: 9.5`` | peak |

megatron
--------
Megatron-LM since v2, current, Megatron-DeepSpeed and GPT-NeoX: an iteration's line.

| program | line (one; ``..`` stands for more keys) |
|---|---|
| v2 | `` iteration  10/ 100 \| consumed samples: 40 \| elapsed time per iteration (ms): 430.0 \| learning rate: 1.5E-04 \| global batch size: 4 \| lm loss: 2.6E+01 \| ..`` |
| current | as v2 after ``[2025-12-19 10:49:15]`` (2026: microseconds), with ``throughput per GPU (TFLOP/s/GPU): 134.0 \|`` |
| Megatron-DeepSpeed | ends with ``samples per second: 26.942 \| TFLOPs: 147.61 \|``; BigScience's prints seconds: ``elapsed time per iteration (s): 35.8651 \|`` |
| Megatron-Bridge | as the current one, ``Step Time : 1.55s GPU utilization: 134.0MODEL_TFLOP/s/GPU`` before it, which has no iteration and is not read |
| GPT-NeoX | ``  samples/sec: 7.799 \| iteration  34/ 1000 \| elapsed time per iteration (ms): ..``, no batch |

The time is the mean over the iterations since the line before; the first one has the set-up in
it. Samples per second of all devices follow from it and the ``global batch size`` of the line,
which may grow; GPT-NeoX has no batch there, so its samples per second are taken instead: over all
devices, since the line before. An iteration is an optimizer step, micro-batches and all. The last
rank prints the line (GPT-NeoX: rank 0), so on many nodes the last node does. ROCm's Primus prints
``13100.0/13240.9``, this iteration's and an average: the first counts. Real logs of v2, the
current one and Megatron-DeepSpeed were read; GPT-NeoX's line is known from the source.

megatron_gpt2
-------------
Megatron-LM of 2019/2020, as DeepSpeedExamples' ``Megatron-LM/pretrain_gpt2.py`` has it.

`` iteration      100/  320000 | elapsed time per iteration (ms): 528.9 | learning rate 1.500E-04
| lm loss 1.010000E+01 | loss scale 65536.0 |`` - one line; the loss scale under fp16 only.

Rank 0 prints it every ``--log-interval`` iterations; the time is the mean since the line before
(the first has the set-up in it). An iteration is an optimizer step. The batch is not in the line
but in the arguments printed before (``batch_size``). The line is known from the source only.
"""  # noqa: E501 - a row of the table is a line of the log

from __future__ import annotations

import re
from itertools import zip_longest

from dlperf_hpc.logs.format import Groups, Line, LinePattern, ReadingBuilder
from dlperf_hpc.logs.lineparts import DECIMAL, FULL_STAMP, WHOLE, first_of, full_stamp
from dlperf_hpc.logs.scanned import Printed, Unit

_FIGURE = r"[-+.0-9a-zA-Z]{1,40}"
"""A number as it is printed, nan and inf too: the builder notes what is no measurement."""

_LITERAL = "elapsed time per iteration"
_FACTS_LITERALS = (
    "micro_batch_size ..",
    " batch_size ..",
    "seq_length ..",
    "params_dtype ..",
    "  seq_length: ",
    "  params_dtype: ",
    "using world size: ",
    "batches to constant ",
    " memory (MB) | allocated: ",
)

_ARGUMENT = re.compile(
    r"^ {0,8}(micro_batch_size|batch_size|seq_length|params_dtype) \.{2,60} (\S{1,40})\s*$"
)
_SUMMARY = re.compile(
    r"^  (seq_length|params_dtype): (\S{1,40})(?:  \(Mcore default: .{0,200}\))?\s*$"
)
_WORLD = re.compile(r"using world size: ([0-9]{1,9})\b")
_MODEL_PARALLEL = re.compile(r"(?:model|context)-parallel size: ([0-9]{1,9})\b")
_ACCUMULATION = re.compile(r"setting number of micro-?batches to constant ([0-9]{1,9})\s*$")
_MEMORY = re.compile(
    r"after (?P<iteration>[0-9]{1,18}) iterations\)? memory \(MB\) \| allocated: [.0-9]{1,40}"
    r" \| max allocated: (?P<peak>[0-9]{1,12}(?:\.[0-9]{1,20})?) \|"
)
_PRECISIONS = {
    "torch.float16": "fp16",
    "torch.half": "fp16",
    "torch.bfloat16": "bf16",
    "torch.float32": "fp32",
    "torch.float": "fp32",
}


def _read_setting(line: Line, builder: ReadingBuilder) -> None:
    """A line with a setting, which is held back until an iteration is read, or with memory."""
    if match := _ARGUMENT.search(line.text) or _SUMMARY.search(line.text):
        _read_argument(line, builder, match[1], match[2])
    elif match := _WORLD.search(line.text):
        sizes = [int(size) for size in _MODEL_PARALLEL.findall(line.text)]
        builder.state["split"] = any(size > 1 for size in sizes)
        builder.hold(line, "devices", match[1])
    elif match := _ACCUMULATION.search(line.text):
        builder.hold(line, "accumulation", match[1])
    elif match := _MEMORY.search(line.text):
        _read_memory(builder, int(match["iteration"]), float(match["peak"]))


def _memory_of(builder: ReadingBuilder, iteration: str) -> float | None:
    """The peak in MB (2**20 bytes) that a rank printed before the line of this iteration."""
    at, peak = builder.state.get("memory", (None, None))
    return peak if at == int(iteration) else None


def _read_argument(line: Line, builder: ReadingBuilder, name: str, value: str) -> None:
    if name == "seq_length":
        builder.hold(line, "seq_len", value)
    elif name == "params_dtype":
        builder.hold(line, "precision", _PRECISIONS.get(value))
    elif builder.state.get("split") is False:
        # A micro-batch is one device's only where the model is not split over devices.
        builder.hold(line, "batch_size", value)


def _read_memory(builder: ReadingBuilder, iteration: int, peak: float) -> None:
    """Memory stands after its iteration's line, or before it where another rank prints that."""
    last = builder.steps[-1] if builder.steps else None
    if last and last.iteration == iteration:
        peak = max(peak, last.memory_mb or 0.0)
        builder.steps[-1] = last._replace(memory_mb=peak)
    else:
        builder.state["memory"] = (iteration, peak)


# --- megatron

_NUMBERS = r"iteration +(?P<n>[0-9]{1,18})/ *(?:[0-9]{1,18}|infinity) \|"
_MEGATRON_ITERATION = re.compile(rf"(?:samples/sec: {{0,8}}(?P<rate>{_FIGURE}) \| )?{_NUMBERS}")
_WITHOUT_RATE = re.compile(rf"{_NUMBERS}(?P<rate>x{{0}})")  # as above, found in a tenth of the time
_ELAPSED = re.compile(
    rf"elapsed time per iteration ?\((?P<unit>ms|s)\): *(?P<time>{_FIGURE})(?:/{_FIGURE})? *\|"
)
_BATCH = re.compile(r"\| (?:global|gloabl) batch size: *([0-9]{1,18}) *\|")
_CONSUMED = re.compile(r"\| consumed samples: *([0-9]{1,15}) *\|")
_LR = re.compile(rf"\| learning rate: *({_FIGURE}) *\|")
_LOSS = re.compile(rf"\| lm[ _]loss: *({_FIGURE}) *\|")
_ROWS = LinePattern(
    rf"^(?: \[(?P<full>{FULL_STAMP})\])? iteration +(?P<iteration>{WHOLE})/ *{WHOLE} \|"
    rf" consumed samples: +(?P<consumed>{WHOLE}) \|(?: consumed tokens: +[0-9]+ \|)?"
    rf" elapsed time per iteration \(ms\): (?P<printed>{DECIMAL}) \|"
    rf"(?: throughput per GPU \(TFLOP/s/GPU\): {DECIMAL} \|)?"
    rf" learning rate: (?P<lr>{DECIMAL}) \| global batch size: +(?P<global_batch>{WHOLE}) \|"
    rf" lm loss: (?P<loss>{DECIMAL}) \|(?: [a-z ]+: +{DECIMAL} \|)*$",
    usual=lambda builder, _: (
        bool(builder.steps)
        and builder.printed.unit is Unit.MS_PER_ITERATION
        and not {"held", "memory"} & builder.state.keys()
    ),
)
_MARKS = ("| consumed samples:", "| learning rate:")
_UNITS = {"ms": Unit.MS_PER_ITERATION, "s": Unit.S_PER_ITERATION}


def _read_megatron(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """An iteration's line, or one of the lines that state settings or memory."""
    if _LITERAL not in line.text:
        _read_setting(line, builder)
        return
    head_pattern = _MEGATRON_ITERATION if "samples/sec: " in line.text else _WITHOUT_RATE
    heads = list(head_pattern.finditer(line.text))
    start = 0
    for head, following in zip_longest(heads, heads[1:]):
        stamp = full_stamp(line.text[start : head.start()])
        start = head.end()
        keys = line.text[start - 1 : following.start() if following else None]
        _read_iteration(line, builder, head, keys, stamp)
    if not heads:
        builder.note(line, "time per iteration, but not as any Megatron prints it")


def _read_iteration(
    line: Line, builder: ReadingBuilder, head: re.Match[str], keys: str, stamp: float | None
) -> None:
    """One iteration: its number is in ``head``, the rest in ``keys``, each between bars."""
    if not head["rate"] and not any(mark in keys for mark in _MARKS):
        return  # megatron_gpt2's line, or too little of any
    elapsed = _ELAPSED.search(keys)
    if elapsed is None:
        builder.note(line, f"iteration {head['n']} without a time")
        return
    batch = _BATCH.search(keys)
    by_rate = bool(head["rate"]) and batch is None
    unit = Unit.SAMPLES_PER_S if by_rate else _UNITS[elapsed["unit"]]
    if not builder.steps:
        builder.printed = Printed(unit)
    if builder.printed.unit is not unit:
        builder.note(line, f"prints {unit.value}, unlike the lines before: not read")
        return
    builder.release_held()
    if batch:
        builder.fact(line, "global_batch", batch[1])
    builder.step(
        line,
        head["n"],
        stamp=stamp,
        printed=head["rate"] if by_rate else elapsed["time"],
        loss=first_of(_LOSS, keys),
        lr=first_of(_LR, keys),
        memory_mb=_memory_of(builder, head["n"]),
        global_batch=batch[1] if batch else None,
        consumed=first_of(_CONSUMED, keys),
    )


# --- megatron_gpt2

_GPT2_ITERATION = re.compile(
    r"iteration +(?P<n>[0-9]{1,18})/ *[0-9]{1,18} \| elapsed time per iteration \(ms\): "
    rf"(?P<ms>{_FIGURE}) \| learning rate (?P<lr>{_FIGURE}) \|"
    rf"(?: lm loss (?P<loss>{_FIGURE}) \|)?"
)
_LATER = ("consumed samples:", "learning rate:", "samples/sec:")


def _read_gpt2(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """An iteration's line, or one of the lines that state settings or memory."""
    if _LITERAL not in line.text:
        _read_setting(line, builder)
    elif match := _GPT2_ITERATION.search(line.text):
        builder.release_held()
        builder.step(
            line,
            match["n"],
            stamp=full_stamp(line.text[: match.start()]),
            printed=match["ms"],
            loss=match["loss"],
            lr=match["lr"],
            memory_mb=_memory_of(builder, match["n"]),
        )
    elif not any(mark in line.text for mark in _LATER):
        builder.note(line, "time per iteration, but not as Megatron-LM prints it")


LINES = {
    "megatron": (
        _ROWS,
        LinePattern(take=_read_megatron),
    ),
    "megatron_gpt2": (
        _ROWS.of_another(),
        LinePattern(take=_read_gpt2),
    ),
}
