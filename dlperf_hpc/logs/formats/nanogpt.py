r"""nanoGPT and its kin: llama2.c, build-nanogpt, nanochat, modded-nanogpt; and llm.c.

nanogpt
-------
| program | line |
|---|---|
| nanoGPT until 2023-02 | ``iter 1631: loss 4.0863, time 561.94ms`` |
| nanoGPT | ``iter 100: loss 2.4049, time 929.71ms, mfu 16.59%``; forks add more behind it |
| llama2.c | ``2426 \| loss 0.2679 \| lr 3.6e-05 \| 14.52ms \| mfu 1.98%`` |

The number is an index from 0 of optimizer steps, the accumulation inside. The time is that of the
last iteration alone, however many lie between two lines (``log_interval``), of all devices together,
and is taken before the program waits for the device. Rank 0 prints. Where the program evaluates
(``step 100: train loss 2.38, val loss 2.40``) the time of the iteration of that number has the
evaluation and the checkpoint in it: its loss is read and its time is not. The first iteration has
the compilation in it, and is evaluated too.

Settings stand in the configuration that is printed first, as a file of Python or as ``Overriding:
batch_size = 8``. ``tokens per iteration will be: 491,520`` (2023-04) is of all devices with the
accumulation; divided by ``block_size`` it is the global batch. Without that line no batch is read,
since the accumulation of the configuration was of one process before and is of all since. llama2.c
takes it apart: ``breaks down as: 4 grad accum steps * 8 processes * 128 batch size * 256 max seq len``.
A log of nanoGPT's own was read from end to end; other real lines: karpathy/nanoGPT#110, #178, #215,
#466.

nanochat
--------
| program | line |
|---|---|
| build-nanogpt | ``step 12 \| loss: 6.02 \| lr 1.2e-05 \| norm: 2.4 \| dt: 312.50ms \| tok/sec: 1677721.60`` |
| nanochat | ``step 00012/21400 (0.06%) \| loss: 6.0 \| lrm: 1.00 \| dt: 455.21ms \| tok/sec: 1,151,902 \| mfu: 48.21 \| total time: 3.03m`` |
| autoresearch | ``step 00012 (1.2%) \| loss: 6.0 \| lrm: 1.00 \| dt: 312ms \| tok/sec: 168,000 \| mfu: 39.2% \| epoch: 1 \| remaining: 250s`` |

The number is an index from 0, the tokens/s are those of this one optimizer step over all devices,
after the device was waited for. Every step is printed, by rank 0; nanochat's loss is smoothed. The
time of a build-nanogpt's step has the evaluation in it that is done before (``validation loss:
3.2``), so that the speed of that step is left out.

Until 2025-10-26 nanochat's tokens/s were those of one micro-batch over the time of the step: too few
by the accumulation. Which they are, ``Total batch size 524,288 => gradient accumulation steps: 4``
and the step's own time show; where that line is missing, only lines with ``epoch:`` (2026-01) are
read. ``Tokens / micro-batch / rank: 8 x 2048 = 16,384`` and ``Tokens / micro-batch: 131,072`` are the
other settings. Real lines were read where repositories quote them (nanochat's run1000.sh).

modded_nanogpt
--------------
| since | line |
|---|---|
| 2024-10 | ``step:13/6000 train_loss:9.8811 train_time:2049ms step_avg:682.95ms`` |
| 2024-12 | ``step:13/1480 train_time:427ms step_avg:142.18ms``, the loss with ``val_loss:`` only |
| 2026 | ``step:125/3350 val_loss:4.66393 train_time:22.870s step_avg:182.95ms`` (track 3) |

The number is of optimizer steps done, also at ``val_loss``. ``train_time`` is a clock of the
program's own, which is stopped for validation, and is what the window is measured with here; until
2025 it was set back to 0 after 10 steps, which ``step_avg:nanms`` shows. ``step_avg`` is the mean
since then; where the time is in seconds it may be that since the validation before, and is not
read. On lines without ``val_loss`` the clock is read without waiting for the device. Rank 0
prints. A log holds the program's own text, whose settings are read where they are in sequences
(until 2024-12); later ones count tokens in a way that changes during a run. Real logs were read:
the records of KellerJordan/modded-nanogpt. openai/parameter-golf prints the same lines, and before
them ``world_size:8 grad_accum_steps:1`` and ``train_batch_tokens:524288 train_seq_len:1024 ..``; the
tokens are those of an optimizer step of all devices (its records of 2026-03 were read).

llm_c
-----
llm.c (karpathy/llm.c): its CUDA programs, and the PyTorch program beside them.

| since | line |
|---|---|
| 2024-04 | ``step   12/19560: train loss 7.1 (315.2 ms, 12999 tok/s)``; train_gpt2_fp32.cu still does |
| 2024-05 | ``step 12/19560: train loss 7.1 norm 2.1 lr 1.00e-04 (315.20 ms, 1663000 tok/s)``, or ``(acc 7.1)`` |
| 2024-05 | ``step 12/19560 \| train loss 7.10 \| norm 2.1 \| lr 1.00e-04 \| 315.20 ms \| 48.9% A100 fp16 MFU \| 1663000 tok/s`` |
| 2024-06 | ``step 12/19560 \| loss 7.10 (+0.3z)\| norm 2.1 (-0.1z)\| lr 1.00e-04 \| 315.20 ms \| 48.9% bf16 MFU \| 1663000 tok/s`` |
| train_gpt2.py | ``step 12/50 \| train loss 7.10 \| norm 2.1 \| lr 1.00e-04 \| (315.20 ms \| 12999 tok/s)`` |
| main.log | ``s:11 trl:7.1000 lr:0.000100 norm:2.10`` (step from 0), ``s:0 tel:10.9``: no speed |

Every optimizer step is printed, counted from 1, by process 0. The time is that step's alone, of all
devices together, and is read; ``tok/s`` is a moving average of it (0.95 a step, since 2024-05). Time
for validation is not in it but in train_gpt2.py's, whose step behind a ``val loss`` is therefore
read without it. ``total average iteration time: 316.4 ms`` at the end is over all steps but the
first, divided by those of a whole run: it is read if the log says that the run did not go on from
a checkpoint (``| weight init method | d12 |``).

Settings: ``batch_size B=64 * seq_len T=1024 * num_processes=8 and total_batch_size=524288`` (the
last in tokens), ``=> setting grad_accum_steps=1``, ``| precision | BF16 |``. Real lines were read
where issues and repositories quote logs (karpathy/llm.c#796), and a whole main.log.
"""  # noqa: E501 - a row of the table is a line of the log

from __future__ import annotations

import math
from dataclasses import replace

from dlperf_hpc.logs.format import Columns, Groups, Line, LinePattern, ReadingBuilder
from dlperf_hpc.logs.lineparts import (
    COUNT,
    NUMBER,
    full_stamp,
    further,
    in_any_order,
    in_order,
    one_more,
    perhaps,
    word,
)
from dlperf_hpc.logs.scanned import Unit


def _evaluation_over(builder: ReadingBuilder, _: object) -> None:
    """The time of the step behind an evaluation has that in it; the next one's has not."""
    builder.state.pop("evaluated", None)


# --- nanogpt


def _iterations(figure: str) -> tuple[str, str]:
    """The lines of nanoGPT and of llama2.c; ``figure`` names the group of the milliseconds."""
    return (
        rf"{word('iter ')}(?P<index>{COUNT}): loss (?P<loss>{NUMBER})(?: BPC)?,"
        rf" time (?P<{figure}>{NUMBER}) ?ms(?=[,\s]|$)",
        rf"^(?P<index>{COUNT}) \| loss (?P<loss>{NUMBER}) \| lr (?P<lr>{NUMBER})"
        rf" \| (?P<{figure}>{NUMBER})ms \| mfu ",
    )


def _not_evaluated(builder: ReadingBuilder, columns: Columns) -> bool:
    return builder.state.get("evaluated") not in columns["index"]


def _read_tokens(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    """The tokens of an optimizer step. The sequences of a micro-step are of no use without them: of
    how many an optimizer step consists would be guessed."""
    builder.hold(line, "global_tokens", _plain(found["tokens"]))
    builder.hold(line, "batch_size", builder.state.get("batch_size"))


def _plain(grouped: str) -> int:
    return int(grouped.replace(",", ""))


_NANOGPT = (
    *(LinePattern(each, clock="full", usual=_not_evaluated) for each in _iterations("printed")),
    # Behind an evaluation the time has that in it.
    *(LinePattern(each, clock="full") for each in _iterations("other")),
    LinePattern(rf"{word('step ')}(?P<evaluated>{COUNT}): train loss ", kept=True),
    LinePattern(
        r"breaks down as: (?P<accumulation>[0-9]{1,9}) grad accum steps \* (?P<devices>[0-9]{1,9})"
        r" processes \* (?P<batch_size>[0-9]{1,9}) batch size"
        r" \* (?P<seq_len>[0-9]{1,9}) max seq len",
        held=True,
    ),
    LinePattern(
        r"tokens per iteration will be: (?P<tokens>[0-9][0-9,]{0,20})\s*$", take=_read_tokens
    ),
    LinePattern(
        r"^(?:Overriding: )?dtype = '?(?P<precision>bfloat16|float16|float32)'?\s*(?:#|$)",
        held=True,
    ),
    LinePattern(
        r"^(?:Overriding: )?batch_size = '?(?P<batch_size>[0-9]{1,10})'?\s*(?:#|$)", kept=True
    ),
    LinePattern(
        r"^(?:Overriding: )?(?:block_size|max_seq_len) = '?(?P<seq_len>[0-9]{1,10})'?\s*(?:#|$)",
        held=True,
    ),
)

# --- nanochat

_NEARLY = 0.02  # of tokens that should be the same
_GROUPED = r"[0-9]{1,3}(?:,[0-9]{3}){0,6}"
_CHAT_STEP = (
    rf"{word('step ')} *(?P<index>{COUNT})(?:/{COUNT})?(?: \([0-9.]{{1,10}}%\))? +\|"
    rf" loss: (?P<loss>{NUMBER}) \|"
)
_CHAT_TIME = (
    _CHAT_STEP
    + in_any_order([rf"lr:? (?P<lr>{NUMBER}) \|"])
    + in_order([rf"dt: (?P<ms>{NUMBER})ms +\| tok/sec: "])
)
_ALONE = r"[0-9]{1,15}\.[0-9]{2}|nan|inf"


def _read_chat_step(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    builder.release_held()
    builder.step(
        line,
        one_more(found["index"]),
        stamp=full_stamp(line.text.partition("step ")[0]),
        printed=_chat_rate(line, builder, found["grouped"].replace(",", ""), found["ms"]),
        loss=found["loss"],
        lr=found["lr"],
    )


def _chat_rate(line: Line, builder: ReadingBuilder, rate: str, ms: str) -> str | None:
    """nanochat's tokens/s if it is known whether they are a whole step's. Those of a micro-batch
    are taken times the accumulation (``Printed.scale``)."""
    total = builder.state.get("total")
    if total is not None:
        scale = _scale(builder, total, rate, ms)
        if scale and not builder.steps:
            builder.printed = replace(builder.printed, scale=float(scale))
        return rate if scale == builder.printed.scale else None
    if "| epoch: " in line.text:
        return rate
    builder.note_once(line, "tok/sec of a step or of a micro-batch: no 'Total batch size' says it")
    return None


def _scale(builder: ReadingBuilder, total: int, rate: str, ms: str) -> int | None:
    """1 or the accumulation, by which tokens/s are those of a step of ``total`` tokens."""
    try:
        times = 1000 * total / (float(rate) * float(ms))
    except (ValueError, ZeroDivisionError, OverflowError):
        return None
    scales = (1, builder.latest("accumulation") or 1)
    return next((each for each in scales if abs(times / each - 1) < _NEARLY), None)


def _read_shape(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    builder.hold(line, "batch_size", found["batch"])
    builder.hold(line, "seq_len", found["length"])
    builder.state["tokens"] = _plain(found["tokens"])


def _read_world(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    devices, rest = divmod(_plain(found["tokens"]), builder.state.get("tokens") or 1)
    if "tokens" in builder.state and not rest:
        builder.hold(line, "devices", devices)


def _read_accumulation(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    builder.hold(line, "accumulation", found["steps"])
    if found["tokens"]:
        builder.state["total"] = _plain(found["tokens"])


_NANOCHAT = (
    LinePattern(
        rf"{_CHAT_TIME}(?P<printed>{_ALONE})\s*$",
        clock="full",
        usual=lambda builder, _: not builder.state.get("evaluated"),
    ),
    LinePattern(rf"{_CHAT_TIME}(?:{_ALONE})\s*$", clock="full", then=_evaluation_over),
    LinePattern(rf"{_CHAT_TIME}(?P<grouped>[0-9,]{{1,24}}) +\|", take=_read_chat_step),
    LinePattern(
        _CHAT_STEP, note="a step with tok/sec, but not as nanochat or build-nanogpt print it"
    ),
    LinePattern(
        rf"Tokens / micro-batch / rank: (?P<batch>[0-9]{{1,9}}) x (?P<length>[0-9]{{1,9}})"
        rf" = (?P<tokens>{_GROUPED})\s*$",
        take=_read_shape,
    ),
    LinePattern(rf"Tokens / micro-batch: (?P<tokens>{_GROUPED})\s*$", take=_read_world),
    LinePattern(
        rf"(?:Total batch size (?P<tokens>{_GROUPED}) )?=> (?:calculated )?gradient accumulation"
        r" steps: (?P<steps>[0-9]{1,9})\s*$",
        take=_read_accumulation,
    ),
    LinePattern("^(?P<evaluated>validation loss): ", kept=True),
)

# --- modded_nanogpt

_SPEEDRUN = (
    rf"{word('step:')}(?P<done>{COUNT})/{COUNT} (?:[a-z_:.0-9 ]{{0,200}}?"
    rf"\btrain_loss:(?P<loss>{NUMBER}) )?[a-z_:.0-9 ]{{0,200}}?"
    r"train_time:(?P<time>[0-9]{1,12}(?:\.[0-9]{1,6})?)(?P<unit>ms|s)"
    rf" step_avg:(?P<mean>{NUMBER})ms(?=\s|$)"
)
_SPEEDRUN_SETTING = (
    r"^\s{0,8}(?:device_)?(?:batch_size|sequence_length) : int = (?P<value>[0-9]{1,9}"
    r"(?:\*[0-9]{1,9})?) # (?P<what>batch size, in sequences, across all devices"
    r"|batch size, in sequences, per device|sequence length, in tokens)"
)
_SPEEDRUN_FACTS = {
    "batch size, in sequences, across all devices": "global_batch",
    "batch size, in sequences, per device": "batch_size",
    "sequence length, in tokens": "seq_len",
}
_ORIGINS = (0, 10)  # step after which the clock and the mean begin


def _read_own_text(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    value = math.prod(map(int, found["value"].split("*")))
    builder.hold(line, _SPEEDRUN_FACTS[found["what"]], value)


def _read_step_tokens(line: Line, builder: ReadingBuilder, found: Groups) -> None:
    """parameter-golf's tokens of an optimizer step, in sequences."""
    tokens, length = int(found["tokens"]), int(found["length"])
    if length and tokens % length == 0:
        builder.hold(line, "seq_len", length)
        builder.hold(line, "global_batch", tokens // length)


def _read_speedrun(line: Line, builder: ReadingBuilder, match: Groups) -> None:
    """A step. Of two lines for one, with and without validation, the first counts."""
    done = int(match["done"])
    before = builder.last_step()
    if before and before.iteration == done:
        return
    builder.release_held()
    seconds, mean = float(match["time"]), None
    if match["unit"] == "ms":
        seconds /= 1000.0
        mean = _running_mean(builder, done, seconds, match["mean"])
    stamp = builder.on_one_line(done, seconds)
    builder.step(line, done, stamp=stamp, printed=mean, loss=match["loss"])


def _running_mean(builder: ReadingBuilder, done: int, seconds: float, mean: str) -> str | None:
    """The mean if it is known since which step it is; it is no number up to there."""
    if mean == "nan" or not done or not seconds:
        return None
    if "origin" not in builder.state:
        fitting = _fitting_origins(done, 1000.0 * seconds, mean)
        if len(fitting) > 1:
            return None  # so far from the start the rounded mean does not tell
        builder.state["origin"] = fitting[0] if fitting else None
        builder.printed = replace(builder.printed, origin=builder.state["origin"] or 0)
    return mean if builder.state["origin"] is not None else None


def _fitting_origins(done: int, ms: float, mean: str) -> list[int]:
    try:
        steps, error = ms / float(mean), 0.005 * ms / float(mean) ** 2
    except (ValueError, ZeroDivisionError, OverflowError):
        return []
    return [each for each in _ORIGINS if abs(done - each - steps) <= 0.5 + error]


# --- llm_c

_TOTAL = "total average iteration time"
_RESUMED = "intermediate checkpoint"  # a total after it has other steps in it
_STEP = (
    rf"{word('step ')} *(?P<iteration>{COUNT})/{COUNT}(?::| \|) (?:train )?loss +"
    rf"(?P<loss>{NUMBER})(?= )"
)
_LR = rf"lr (?P<lr>{NUMBER})[ |]"
_TIME = (
    rf"(?P<printed>{NUMBER}) ms(?:, |(?: \| {NUMBER}% [0-9A-Za-z ]{{3,16}} MFU)? \| )"
    rf"{NUMBER} tok/s"
)


_LLM_C = (
    LinePattern("^" + _STEP + in_order([rf"lr (?P<lr>{NUMBER}) \|", _TIME])),
    LinePattern(
        _STEP + further(r"\| \(" + _TIME) + perhaps(rf"\b{_LR}"),
        clock="full",
        usual=lambda builder, _: not builder.state.get("evaluated"),
    ),
    LinePattern(
        _STEP + further(r"\| \(" + _TIME.replace("printed", "other")) + perhaps(rf"\b{_LR}"),
        clock="full",
        then=_evaluation_over,
    ),
    LinePattern(_STEP + further(r"(?:\(|\| )" + _TIME) + perhaps(rf"\b{_LR}"), clock="full"),
    LinePattern(
        rf"{word('step ')} *{COUNT}/{COUNT}(?::| \|) (?:train )?loss +{NUMBER} ",
        note="a step with tok/s, but not as llm.c prints it",
    ),
    LinePattern(
        rf"^s:(?P<index>{COUNT}) trl:(?P<loss>-?[0-9]{{1,12}}\.(?:[0-9]{{4}}(?= lr:{NUMBER} norm:)"
        rf"|[0-9]{{6}}(?=\s*$)))(?: lr:(?P<lr>{NUMBER}))?"
    ),
    LinePattern(
        rf"{_TOTAL}: (?P<total>{NUMBER}) ms\s*$",
        name=_TOTAL,
        unit=Unit.MS_PER_ITERATION,
        usual=lambda builder, _: builder.state.get("weights", _RESUMED) != _RESUMED,
    ),
    LinePattern(
        r"batch_size B=(?P<batch_size>[0-9]{1,9}) \* seq_len T=(?P<seq_len>[0-9]{1,9})"
        r" \* num_processes=(?P<devices>[0-9]{1,9}) and ",
        held=True,
    ),
    LinePattern(
        r"=> (?:setting grad_accum_steps=|calculated gradient accumulation steps: )"
        r"(?P<accumulation>[0-9]{1,9})\s*$",
        held=True,
    ),
    LinePattern(r"^\| precision +\| (?P<precision>FP32|TF32|FP16|BF16) +\|", held=True),
    LinePattern("^(?P<evaluated>val loss) ", kept=True),
    LinePattern(r"^\| weight init method +\| (?P<weights>.{1,400}?) +\|\s*$", kept=True),
)

LINES = {
    "nanogpt": _NANOGPT,
    "nanochat": _NANOCHAT,
    "modded_nanogpt": (
        LinePattern(_SPEEDRUN, take=_read_speedrun),
        LinePattern(_SPEEDRUN_SETTING, take=_read_own_text),
        LinePattern(
            r"^world_size:(?P<devices>[0-9]{1,9})"
            r" grad_accum_steps:(?P<accumulation>[0-9]{1,9})\s*$",
            held=True,
        ),
        LinePattern(
            r"^train_batch_tokens:(?P<tokens>[0-9]{1,15}) train_seq_len:(?P<length>[0-9]{1,9}) ",
            take=_read_step_tokens,
        ),
    ),
    "llm_c": _LLM_C,
}
