r"""Megatron-LM, its descendants and NeMo, which is built on it.

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

``validation loss at iteration 100 | ..`` and ``saving checkpoint at iteration 100 to ..`` tell of
pauses. Until 2024, in lines without a stamp, these are in the time of the next line; later programs
stop their timer. How long they were, ``evaluate ....: (57313.42, 57314.02)`` says, in ms, with the
timers of all ranks.

megatron_gpt2
-------------
Megatron-LM of 2019/2020, as DeepSpeedExamples' ``Megatron-LM/pretrain_gpt2.py`` has it.

`` iteration      100/  320000 | elapsed time per iteration (ms): 528.9 | learning rate 1.500E-04
| lm loss 1.010000E+01 | loss scale 65536.0 |`` - one line; the loss scale under fp16 only.

Rank 0 prints it every ``--log-interval`` iterations; the time is the mean since the line before
(the first has the set-up in it). An iteration is an optimizer step. The batch is not in the line
but in the arguments printed before (``batch_size``). The line is known from the source only.

nemo
----
NeMo 2 (``nemo/lightning/pytorch/callbacks/progress_printer.py``), and BioNeMo, which prints by it.

``Training epoch 0, iteration 12/99 | lr: 3e-05 | global_batch_size: 512 | global_step: 12 |
reduced_train_loss: 10.25 | train_step_timing in s: 1.234 | consumed_samples: 6656 | val_loss: 9.5``
- one line; the order of the keys, and which there are, depend on the program.

``iteration`` is an index from 0 that begins anew with each epoch, ``global_step`` one over all
epochs. An iteration is an optimizer step. The time is from the beginning of a batch to its end, so
that validation, checkpoints and all else between two batches are not in it; with ``log_interval``
above 1 each figure but ``global_step`` is a mean over the iterations since the line before,
``consumed_samples`` too, which is why that is not read. Numbers have 4 digits, and the last of a
line may be cut: there it counts with all 4 only. There is no time stamp. Rank 0 prints.

nemo_bar
--------
NeMo 1, and NeMo 2 with its bar: Lightning's progress bar without its own it/s (since 2023-09).

``Epoch 0: :  47%|####7     | 47/99 [06:19<07:13, v_num=0, reduced_train_loss=11.50,
global_step=46.00, consumed_samples=94208.0, train_step_timing in s=49.50]`` - one line, redrawn
behind carriage returns.

``global_step`` is an index from 0; the time is the last iteration's alone, with 3 digits.
``consumed_samples`` are those at the iteration's end: the global batch is their difference between
two lines, as long as they are printed in full (Lightning prints ``1.31e+5`` where that is shorter).
With a ramp-up the bar has the batch itself, ``global_batch_size=``.

Quoted lines were read: NVIDIA-BioNeMo/bionemo-recipes pull request 740, NVIDIA/cloudai's tests of
its NeMo report and the READMEs of recipes by cloud providers (nemo; some with
``max_memory_allocated``, bytes, and ``TFLOPS_per_GPU``), the READMEs of NVIDIA's DGX benchmarking
recipes and NVIDIA-NeMo/Speech issue 7957, as NeMo's repository is called now (nemo_bar).
"""  # noqa: E501 - a row of the table is a line of the log

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Columns, Groups, Line, LinePattern, ReadingBuilder, is_not_split
from dlperf_hpc.logs.lineparts import (
    COUNT,
    FIGURE,
    FULL_STAMP,
    WHOLE,
    full_stamp,
    further,
    in_any_order,
    in_order,
    one_more,
    perhaps,
)
from dlperf_hpc.logs.scanned import Printed, Stamps, Unit

_FIGURE = r"[-+.0-9a-zA-Z]{1,40}"
"""A number as it is printed, nan and inf too: the builder notes what is no measurement."""

_LITERAL = "elapsed time per iteration"
_MODEL_PARALLEL = re.compile(r"(?:model|context)-parallel size: ([0-9]{1,9})\b")


def _read_world(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    sizes = list(map(int, _MODEL_PARALLEL.findall(line.text)))
    builder.state["split"] = any(size > 1 for size in sizes)
    builder.hold(line, "devices", found["world"])


def _read_memory(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    """The peak in MB (2**20 bytes) that a rank prints after its iteration's line, or before it
    where another rank prints that."""
    iteration, peak = int(found["after"]), float(found["peak"])
    last = builder.last_step()
    if last and last.iteration == iteration:
        peak = max(peak, last.memory_mb or 0.0)
        builder.steps[-1] = last._replace(memory_mb=peak)
    else:
        builder.state["memory"] = (iteration, peak)


def _memory_of(builder: ReadingBuilder, iteration: str) -> float | None:
    at, peak = builder.state.get("memory", (None, None))
    return {int(iteration): peak}.get(at)


_SETTINGS = (
    LinePattern(
        r"^(?: {0,8}seq_length \.{2,60}|  seq_length:) (?P<seq_len>\S{1,40})"
        r"(?:  \(Mcore default: .{0,200}\))?\s*$",
        held=True,
    ),
    LinePattern(
        r"^(?: {0,8}params_dtype \.{2,60}|  params_dtype:)"
        r" (?P<precision>torch\.(?:float16|half|bfloat16|float32|float))"
        r"(?:  \(Mcore default: .{0,200}\))?\s*$",
        held=True,
    ),
    LinePattern(
        r"^ {0,8}(?:micro_)?batch_size \.{2,60} (?P<batch_size>\S{1,40})\s*$",
        held=True,
        usual=is_not_split,
    ),
    LinePattern(r"using world size: (?P<world>[0-9]{1,9})\b", take=_read_world),
    LinePattern(
        r"setting number of micro-?batches to constant (?P<accumulation>[0-9]{1,9})\s*$", held=True
    ),
    LinePattern(
        rf"after (?P<after>{COUNT}) iterations\)? memory \(MB\) \| allocated: [.0-9]{{1,40}}"
        r" \| max allocated: (?P<peak>[0-9]{1,12}(?:\.[0-9]{1,20})?) \|",
        take=_read_memory,
    ),
)
"""Lines of all generations. Memory is no setting, but is found as they are."""


# --- evaluations and checkpoints

_DID = {"validation loss": "evaluation", "saving checkpoint": "checkpoint"}


def _read_pause(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    """Lines with a stamp are of programs whose timer of an iteration stands still meanwhile."""
    seconds = builder.state.pop("evaluate", None)
    runs_on = builder.stamps is Stamps.NONE
    builder.pause(line, _DID[found["what"]], seconds, found["after"], runs_on)


def _read_seconds(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    """How long the evaluation took that is printed next, or the checkpoint that was begun last."""
    seconds = float(found["ms"]) / 1000
    if found["timer"] == "evaluate":
        builder.state["evaluate"] = seconds
    elif builder.pauses:
        builder.pauses[-1] = builder.pauses[-1]._replace(seconds=seconds)


_PAUSES = (
    LinePattern(
        r"^ *(?P<timer>evaluate|save-checkpoint) \.{2,60}: \([0-9.]{1,20}, "
        r"(?P<ms>[0-9]{1,12}(?:\.[0-9]{1,9})?)\)",
        take=_read_seconds,
    ),
    LinePattern(rf"(?P<what>{'|'.join(_DID)}) at iteration +(?P<after>{COUNT}) ", take=_read_pause),
)

# --- megatron

_HEAD = rf"iteration +(?P<iteration>{COUNT})/ *(?:{COUNT}|infinity) \|"
_ONE_HEAD = rf"{_HEAD}(?!.*iteration +[0-9]+/)"
_TIME = rf"{_LITERAL} ?\((?P<unit>ms|s)\): *(?P<printed>{_FIGURE})(?:/{_FIGURE})? *\|"
_CONSUMED = rf"consumed samples: *(?P<consumed>{WHOLE}) *\|"
_KEYS = (
    rf"learning rate: *(?P<lr>{_FIGURE}) *\|",
    rf"(?:global|gloabl) batch size: *(?P<global_batch>{COUNT}) *\|",
    rf"lm[ _]loss: *(?P<loss>{_FIGURE}) *\|",
)
_RATE = rf"(?:samples/sec: {{0,8}}(?P<rate>{_FIGURE}) \| )?"
_BEGINNING = re.compile(rf"(?:\[?{FULL_STAMP}\]? {{0,4}})?{_RATE}{_HEAD}")
_MARKS = ("| consumed samples:", "| learning rate:")
_UNITS = {"ms": Unit.MS_PER_ITERATION, "s": Unit.S_PER_ITERATION}


def _are_usual(builder: ReadingBuilder, columns: Columns) -> bool:
    return (
        bool(builder.steps)
        and {_UNITS[unit] for unit in set(columns["unit"])} == {builder.printed.unit}
        and not {"held", "memory"} & builder.state.keys()
    )


def _read_iteration(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    rate, batch = found.get("rate"), found["global_batch"]
    if not rate and not any(mark in line.text for mark in _MARKS):
        return  # megatron_gpt2's line, or too little of any
    printed, unit = found["printed"], _UNITS[found["unit"]]
    if rate and batch is None:
        printed, unit = rate, Unit.SAMPLES_PER_S
    if not builder.steps:
        builder.printed = Printed(unit)
    if builder.printed.unit is not unit:
        builder.note(line, f"prints {unit.value}, unlike the lines before: not read")
        return
    builder.release_held()
    builder.fact(line, "global_batch", batch)
    builder.step(
        line,
        found["iteration"],
        stamp=full_stamp(line.text.partition("iteration ")[0]),
        printed=printed,
        loss=found["loss"],
        lr=found["lr"],
        memory_mb=_memory_of(builder, found["iteration"]),
        global_batch=batch,
        consumed=found["consumed"],
    )


def _read_several(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """A line into which several processes, or one without a line's end, have printed."""
    heads = list(_BEGINNING.finditer(line.text))
    ends = [*(head.start() for head in heads[1:]), None]
    for head, begin, end in zip(heads, [0, *ends], ends):
        if not _ANY.read(line._replace(text=line.text[begin:end]), builder):
            builder.note(line, f"iteration {head['iteration']} without a time")
    if not heads:
        builder.note(line, "time per iteration, but not as any Megatron prints it")


_ROWS = LinePattern(
    rf"^(?: \[(?P<full>{FULL_STAMP})\])? {_ONE_HEAD}" + in_order([_CONSUMED, _TIME, *_KEYS]),
    take=_read_iteration,
    usual=_are_usual,
)
_ANY = LinePattern(
    _RATE + _ONE_HEAD + in_any_order([_CONSUMED, *_KEYS]) + in_order([_TIME]), take=_read_iteration
)
_MEGATRON = (
    _ROWS,
    LinePattern(r"iteration +[0-9]+/.*iteration +[0-9]+/", take=_read_several),
    _ANY,
    LinePattern(_LITERAL, take=_read_several),
    *_PAUSES,
    *_SETTINGS,
)


# --- megatron_gpt2


def _read_gpt2(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    builder.release_held()
    builder.step(
        line,
        found["iteration"],
        stamp=full_stamp(line.text.partition("iteration ")[0]),
        printed=found["printed"],
        loss=found["loss"],
        lr=found["lr"],
        memory_mb=_memory_of(builder, found["iteration"]),
    )


_GPT2 = (
    _ROWS.of_another(lambda _, columns: bool({"consumed", "lr"} & columns.keys())),
    LinePattern(
        rf"iteration +(?P<iteration>{COUNT})/ *{COUNT} \| {_LITERAL} \(ms\): (?P<printed>{_FIGURE})"
        rf" \| learning rate (?P<lr>{_FIGURE}) \|(?: lm loss (?P<loss>{_FIGURE}) \|)?",
        take=_read_gpt2,
    ),
    # A later generation's.
    LinePattern("consumed samples:|learning rate:|samples/sec:", passed_over=True),
    LinePattern(_LITERAL, note="time per iteration, but not as Megatron-LM prints it"),
    *_PAUSES,
    *_SETTINGS,
)


# --- nemo

_TIMING = "train_step_timing in s: "
_NEMO_SETTINGS = (
    LinePattern(
        r"All distributed processes registered\. Starting with (?P<devices>[0-9]{1,9}) processes",
        held=True,
    ),
    LinePattern(r"^ {2,8}encoder_seq_length: (?P<seq_len>[0-9]{1,9})\s*$", held=True),
)
# A number that is no whole one has 4 digits: with fewer of them the line's end may have cut it.
_MEMORY = "max_memory_allocated: "
_GLOBAL_STEP = rf"global_step: (?P<index>{WHOLE}) \|"
_NEMO_KEYS = (
    rf"lr: (?P<lr>{FIGURE}) \|",
    r"global_batch_size: (?P<global_batch>[0-9]{1,15}) \|",
    rf"reduced_train_loss: (?P<loss>{FIGURE}) \|",
    rf"{_TIMING}(?P<printed>{FIGURE}(?= \|)|[0.]*[1-9](?:\.?[0-9]){{3,}}(?=\s*$))",
    rf"{_MEMORY}(?P<memory_bytes>[0-9]{{1,18}}(?:\.[0-9]*)?(?:e\+[0-9]{{2}})?) \|",
)
_LR, _NEMO_BATCH, *_REST, _ = _NEMO_KEYS
_PLACE = rf"Training epoch {WHOLE}, iteration {WHOLE}/[-.0-9a-z]{{1,20}} \|"
_NEMO = (
    LinePattern(rf"^{_PLACE}(?!.*{_MEMORY})" + in_order([_LR, _NEMO_BATCH, _GLOBAL_STEP, *_REST])),
    LinePattern(_PLACE + in_any_order(_NEMO_KEYS) + in_order([_GLOBAL_STEP])),
    LinePattern(
        rf"Training epoch 0, iteration (?P<index>{WHOLE})/[-.0-9a-z]{{1,20}} \|"
        + in_any_order(_NEMO_KEYS)
    ),
    LinePattern(_PLACE, note="an iteration of a later epoch without its global_step"),
    LinePattern(_TIMING, note="a time of NeMo's, but not as it prints it"),
    *_NEMO_SETTINGS,
)


# --- nemo_bar


def _read_bar(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    builder.release_held()
    if found["batch"] is None and found["consumed"]:
        _read_consumed(line, builder, int(found["index"]), int(found["consumed"]))
    builder.step(
        line,
        one_more(found["index"]),
        printed=found["printed"],
        loss=found["loss"],
        global_batch=found["batch"],
    )


def _read_consumed(line: Line, builder: ReadingBuilder, step: int, consumed: int) -> None:
    before = builder.state.get("consumed")
    builder.state["consumed"] = step, consumed
    if before and step > before[0]:
        batch, rest = divmod(consumed - before[1], step - before[0])
        if batch > 0 and not rest:
            builder.fact(line, "global_batch", batch)


_BAR_TIME = rf", train_step_timing in s=(?P<printed>{FIGURE})[],]"
_NEMO_BAR = (
    LinePattern(
        "^"
        + further(_BAR_TIME)
        + further(rf"[ ,\[]global_step=(?P<index>{WHOLE})\.[0-9]*[],]")
        + perhaps(rf", consumed_samples=(?P<consumed>{WHOLE})\.[0-9]*[],]")
        + perhaps(rf", global_batch_size=(?P<batch>{WHOLE})\.[0-9]*[],]")
        + perhaps(rf"[ ,\[]reduced_train_loss=(?P<loss>{FIGURE})[],]"),
        take=_read_bar,
    ),
    LinePattern(_BAR_TIME, passed_over=True),  # of a step that the bar prints rounded
    *_NEMO_SETTINGS,
)

LINES = {"megatron": _MEGATRON, "megatron_gpt2": _GPT2, "nemo": _NEMO, "nemo_bar": _NEMO_BAR}
