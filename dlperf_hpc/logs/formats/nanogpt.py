r"""nanoGPT and its kin: llama2.c, build-nanogpt, nanochat, modded-nanogpt.

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
accumulation; divided by ``block_size`` it is the global batch. Without both no batch is read, since
the accumulation of the configuration was of one process before and is of all since. llama2.c takes
it apart: ``breaks down as: 4 grad accum steps * 8 processes * 128 batch size * 256 max seq len``.
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
the records of KellerJordan/modded-nanogpt. openai/parameter-golf prints the same lines.
"""  # noqa: E501 - a row of the table is a line of the log

from __future__ import annotations

import math
import re
from dataclasses import replace

from dlperf_hpc.logs.format import Groups, Line, LinePattern, ReadingBuilder
from dlperf_hpc.logs.lineparts import DECIMAL, NUMBER, WHOLE, full_stamp, one_more, word

_COUNT = r"[0-9]{1,18}"
_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


# --- nanogpt


def _iterations(figure: str) -> tuple[str, str]:
    """The lines of nanoGPT and of llama2.c; ``figure`` names the group of the milliseconds."""
    return (
        rf"{word('iter ')}(?P<index>{_COUNT}): loss (?P<loss>{NUMBER}),"
        rf" time (?P<{figure}>{NUMBER})ms(?=[,\s]|$)",
        rf"^(?P<index>{_COUNT}) \| loss (?P<loss>{NUMBER}) \| lr (?P<lr>{NUMBER})"
        rf" \| (?P<{figure}>{NUMBER})ms \| mfu ",
    )


_LINES = (
    *(
        LinePattern(
            each,
            clock="full",
            usual=lambda builder, columns: builder.state.get("evaluated") not in columns["index"],
        )
        for each in _iterations("printed")
    ),
    # Behind an evaluation the time has that in it.
    *(LinePattern(each, clock="full") for each in _iterations("evaluated")),
)
_EVALUATION = re.compile(rf"{word('step ')}(?P<index>{_COUNT}): train loss ")
_SETTING = re.compile(
    r"^(?:Overriding: )?(?P<name>batch_size|block_size|max_seq_len|dtype)"
    r" = (?P<value>'[a-z0-9]{1,10}'|[a-z0-9]{1,10})\s*(?:#|$)"
)
_TOKENS = re.compile(r"tokens per iteration will be: (?P<tokens>[0-9][0-9,]{0,20})\s*$")
_BREAKDOWN = re.compile(
    r"breaks down as: (?P<accumulation>[0-9]{1,9}) grad accum steps \* (?P<devices>[0-9]{1,9})"
    r" processes \* (?P<batch_size>[0-9]{1,9}) batch size \* (?P<seq_len>[0-9]{1,9}) max seq len"
)


def _read_nanogpt(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """An evaluation before an iteration, or a setting."""
    if match := _EVALUATION.search(line.text):
        builder.state["evaluated"] = match["index"]
    elif match := _BREAKDOWN.search(line.text):
        for name, value in match.groupdict().items():
            builder.hold(line, name, value)
    elif match := _TOKENS.search(line.text):
        _hold_batches(line, builder, _plain(match["tokens"]))
    elif match := _SETTING.search(line.text):
        _read_setting(line, builder, match["name"], match["value"].strip("'"))


def _read_setting(line: Line, builder: ReadingBuilder, name: str, value: str) -> None:
    if name == "dtype":
        builder.hold(line, "precision", _PRECISIONS.get(value))
    elif not value.isdigit():
        return
    elif name == "batch_size":
        builder.state["batch_size"] = value
    else:
        builder.hold(line, "seq_len", value)
        builder.state["seq_len"] = int(value)


def _hold_batches(line: Line, builder: ReadingBuilder, tokens: int) -> None:
    """The sequences of an optimizer step, where the length of one is known. Those of a micro-step
    are of no use without it: of how many an optimizer step consists would be guessed."""
    seq_len = builder.state.get("seq_len")
    if seq_len and tokens % seq_len == 0:
        builder.hold(line, "global_batch", tokens // seq_len)
        if "batch_size" in builder.state:
            builder.hold(line, "batch_size", builder.state["batch_size"])


# --- nanochat

_NEARLY = 0.02  # of tokens that should be the same
_GROUPED = r"[0-9]{1,3}(?:,[0-9]{3}){0,6}"
_CHAT_STEP = re.compile(
    rf"{word('step ')} *(?P<index>{_COUNT})(?:/{_COUNT})?(?: \([0-9.]{{1,10}}%\))? +\|"
    rf" loss: (?P<loss>{NUMBER}) \|"
)
_CHAT_RATE = re.compile(
    rf"\| dt: (?P<ms>{NUMBER})ms +\| tok/sec: "
    rf"(?:(?P<alone>[0-9]{{1,15}}\.[0-9]{{2}}|nan|inf)\s*$|(?P<grouped>[0-9,]{{1,24}}) +\|)"
)
_CHAT_LR = re.compile(rf"\| lr:? (?P<lr>{NUMBER}) \|")
_CHAT_SHAPE = re.compile(
    rf"Tokens / micro-batch / rank: (?P<batch_size>[0-9]{{1,9}}) x (?P<seq_len>[0-9]{{1,9}})"
    rf" = (?P<tokens>{_GROUPED})\s*$"
)
_CHAT_WORLD = re.compile(rf"Tokens / micro-batch: (?P<tokens>{_GROUPED})\s*$")
_CHAT_ACCUMULATION = re.compile(
    rf"(?:Total batch size (?P<tokens>{_GROUPED}) )?=> (?:calculated )?gradient accumulation steps:"
    r" (?P<steps>[0-9]{1,9})\s*$"
)
_CHAT_ROWS = LinePattern(
    rf"^step +(?P<index>{WHOLE}) \| loss: (?P<loss>{DECIMAL}) \| lr (?P<lr>{DECIMAL})"
    rf" \| norm: {DECIMAL} \| dt: {DECIMAL}ms \| tok/sec: (?P<printed>[0-9]{{1,15}}\.[0-9]{{2}})$",
    usual=lambda builder, columns: bool(builder.steps) and not builder.state.get("evaluated"),
)


def _read_nanochat(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """A step, an evaluation before one, or a setting."""
    if step := _CHAT_STEP.search(line.text):
        _read_chat_step(line, builder, step)
    elif match := _CHAT_SHAPE.search(line.text):
        builder.hold(line, "batch_size", match["batch_size"])
        builder.hold(line, "seq_len", match["seq_len"])
        builder.state["tokens"] = _plain(match["tokens"])
    elif match := _CHAT_WORLD.search(line.text):
        devices, rest = divmod(_plain(match["tokens"]), builder.state.get("tokens") or 1)
        if "tokens" in builder.state and not rest:
            builder.hold(line, "devices", devices)
    elif match := _CHAT_ACCUMULATION.search(line.text):
        builder.hold(line, "accumulation", match["steps"])
        if match["tokens"]:
            builder.state["total"] = _plain(match["tokens"])
    elif line.text.startswith("validation loss: "):
        builder.state["evaluated"] = True


def _read_chat_step(line: Line, builder: ReadingBuilder, step: re.Match[str]) -> None:
    rate = _CHAT_RATE.search(line.text, step.end() - 1)
    if rate is None:
        builder.note(line, "a step with tok/sec, but not as nanochat or build-nanogpt print it")
        return
    builder.release_held()
    evaluated = builder.state.pop("evaluated", False)
    lr = _CHAT_LR.search(line.text, step.end() - 1)
    printed = rate["alone"]
    if printed is None:
        printed = _chat_rate(line, builder, rate["grouped"].replace(",", ""), rate["ms"])
    elif evaluated:
        printed = None
    builder.step(
        line,
        one_more(step["index"]),
        stamp=full_stamp(line.text[: step.start()]),
        printed=printed,
        loss=step["loss"],
        lr=lr["lr"] if lr else None,
    )


def _chat_rate(line: Line, builder: ReadingBuilder, rate: str, ms: str) -> str | None:
    """nanochat's tokens/s if it is known whether they are a whole step's. Those of a micro-batch
    are taken times the accumulation (``Printed.scale``)."""
    total = builder.state.get("total")
    if total is None:
        if "| epoch: " in line.text:
            return rate
        if not builder.state.setdefault("unknown", False):
            builder.state["unknown"] = True
            builder.note(
                line, "tok/sec of a step or of a micro-batch: no 'Total batch size' says it"
            )
        return None
    try:
        times = 1000 * total / (float(rate) * float(ms))
    except (ValueError, ZeroDivisionError, OverflowError):
        return None
    scales = (1, builder.latest("accumulation") or 1)
    scale = next((each for each in scales if abs(times / each - 1) < _NEARLY), None)
    if not builder.steps and scale:
        builder.printed = replace(builder.printed, scale=float(scale))
    return rate if scale == builder.printed.scale else None


def _plain(grouped: str) -> int:
    return int(grouped.replace(",", ""))


# --- modded_nanogpt

_SPEEDRUN = re.compile(
    rf"{word('step:')}(?P<done>{_COUNT})/{_COUNT} (?P<losses>[a-z_:.0-9 ]{{0,200}}?)"
    r"train_time:(?P<time>[0-9]{1,12}(?:\.[0-9]{1,6})?)(?P<unit>ms|s)"
    rf" step_avg:(?P<mean>{NUMBER})ms(?=\s|$)"
)
_TRAIN_LOSS = re.compile(rf"\btrain_loss:(?P<loss>{NUMBER}) ")
_SPEEDRUN_SETTING = re.compile(
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


def _read_modded(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """A step, or a setting in the program's own text."""
    if match := _SPEEDRUN.search(line.text):
        _read_speedrun(line, builder, match)
    elif match := _SPEEDRUN_SETTING.search(line.text):
        value = math.prod(int(factor) for factor in match["value"].split("*"))
        builder.hold(line, _SPEEDRUN_FACTS[match["what"]], value)


def _read_speedrun(line: Line, builder: ReadingBuilder, match: re.Match[str]) -> None:
    """A step. Of two lines for one, with and without validation, the first counts."""
    done = int(match["done"])
    before = builder.steps[-1] if builder.steps else None
    if before and before.iteration == done:
        return
    builder.release_held()
    loss = _TRAIN_LOSS.search(match["losses"])
    ms = match["unit"] == "ms"
    seconds = float(match["time"]) / (1000.0 if ms else 1.0)
    builder.step(
        line,
        done,
        stamp=builder.on_one_line(done, seconds),
        printed=_running_mean(builder, done, seconds, match["mean"]) if ms else None,
        loss=loss["loss"] if loss else None,
    )


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
    """The steps since which ``ms`` would have that mean, which has two decimals."""
    try:
        steps, error = ms / float(mean), 0.005 * ms / float(mean) ** 2
    except (ValueError, ZeroDivisionError, OverflowError):
        return []
    return [each for each in _ORIGINS if abs(done - each - steps) <= 0.5 + error]


LINES = {
    "nanogpt": (
        *_LINES,
        LinePattern(take=_read_nanogpt),
    ),
    "nanochat": (
        _CHAT_ROWS,
        LinePattern(take=_read_nanochat),
    ),
    "modded_nanogpt": (LinePattern(take=_read_modded),),
}
