r"""NVIDIA NeMo: the lines of NeMo 2, and the progress bar of NeMo 1.

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
"""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Groups, Line, LinePattern, ReadingBuilder
from dlperf_hpc.logs.lineparts import DECIMAL, WHOLE, first_of, one_more

_FIGURE = r"[-+.0-9a-z]{1,40}"  # nan and inf too: ReadingBuilder notes what is no measurement
_INDEX = r"[0-9]{1,15}"
_RANKS = "All distributed processes registered. Starting with "
_WORLD = re.compile(re.escape(_RANKS) + r"([0-9]{1,9}) processes")
_SEQ_LEN = re.compile(r"^ {2,8}encoder_seq_length: ([0-9]{1,9})\s*$")
_FACTS_LITERALS = (_RANKS, " encoder_seq_length: ")


def _read_setting(line: Line, builder: ReadingBuilder) -> None:
    if match := _WORLD.search(line.text):
        builder.hold(line, "devices", match[1])
    elif match := _SEQ_LEN.search(line.text):
        builder.hold(line, "seq_len", match[1])


# --- nemo

_LITERAL = "train_step_timing in s: "
_HEAD = re.compile(
    rf"Training epoch (?P<era>{_INDEX}), iteration (?P<index>{_INDEX})/[-.0-9a-z]{{1,20}} \|"
)
_STEP = re.compile(rf" \| global_step: ({_INDEX}) \|")
_TIME = re.compile(rf" \| {_LITERAL}(?P<time>{_FIGURE})(?P<end> \||\s*$)")
_BATCH = re.compile(r" \| global_batch_size: ([0-9]{1,15}) \|")
_LOSS = re.compile(rf" \| reduced_train_loss: ({_FIGURE}) \|")
_LR = re.compile(rf" \| lr: ({_FIGURE}) \|")
_MEMORY = re.compile(rf" \| max_memory_allocated: ({_FIGURE}) \|")
_DIGITS = 4  # of a number that is no whole one: ``{val:.4}``
_ROWS = LinePattern(
    rf"^Training epoch {_INDEX}, iteration {_INDEX}/{_INDEX} \| lr: (?P<lr>{DECIMAL})"
    rf" \| global_batch_size: (?P<global_batch>{WHOLE}) \| global_step: (?P<index>{WHOLE})"
    rf" \| reduced_train_loss: (?P<loss>{DECIMAL}) \| {_LITERAL}(?P<printed>{DECIMAL})"
    rf"(?: \| TFLOPS_per_GPU: {DECIMAL})?(?: \| tokens_per_sec_per_gpu: {DECIMAL})?"
    rf" \| consumed_samples: {WHOLE}(?: \| val_loss: {DECIMAL})?$"
)


def _read_nemo(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """An iteration's line, or a setting."""
    head = _HEAD.search(line.text)
    if head is None:
        if _LITERAL in line.text:
            builder.note(line, "a time of NeMo's, but not as it prints it")
        else:
            _read_setting(line, builder)
        return
    keys = line.text[head.end() - 2 :]
    step, batch = _STEP.search(keys), _BATCH.search(keys)
    if step is None and int(head["era"]):
        builder.note(line, "an iteration of a later epoch without its global_step")
        return
    builder.release_held()
    if batch:
        builder.fact(line, "global_batch", batch[1])
    builder.step(
        line,
        one_more(step[1] if step else head["index"]),
        printed=_time(keys),
        loss=first_of(_LOSS, keys),
        lr=first_of(_LR, keys),
        memory_mb=_megabytes(first_of(_MEMORY, keys)),
        global_batch=batch[1] if batch else None,
    )


def _megabytes(octets: str | None) -> float | None:
    try:
        return float(octets) / 2**20 if octets else None
    except ValueError:
        return None


def _time(keys: str) -> str | None:
    """The time as it stands; None if there is none, or if the line's end may have cut it."""
    match = _TIME.search(keys)
    if match is None:
        return None
    digits = match["time"].replace(".", "").lstrip("0")
    whole = match["end"].startswith(" |") or len(digits) >= _DIGITS
    return match["time"] if whole else None


# --- nemo_bar

_BAR_LITERAL = "train_step_timing in s="
_POSTFIX = re.compile(rf", {_BAR_LITERAL}({_FIGURE})[],]")
_BAR_STEP = re.compile(r"[ ,\[]global_step=([0-9]{1,15})\.[0-9]*[],]")
_BAR_CONSUMED = re.compile(r", consumed_samples=([0-9]{1,15})\.[0-9]*[],]")
_BAR_BATCH = re.compile(r", global_batch_size=([0-9]{1,15})\.[0-9]*[],]")
_BAR_LOSS = re.compile(rf"[ ,\[]reduced_train_loss=({_FIGURE})[],]")


def _read_bar(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """A bar's state, or a setting. A step is not read where the bar prints it rounded."""
    time = _POSTFIX.search(line.text)
    if time is None:
        _read_setting(line, builder)
        return
    step = _BAR_STEP.search(line.text)
    if step is None:
        return
    builder.release_held()
    batch = first_of(_BAR_BATCH, line.text)
    if batch is None:
        _read_consumed(line, builder, int(step[1]), first_of(_BAR_CONSUMED, line.text))
    builder.step(
        line,
        one_more(step[1]),
        printed=time[1],
        loss=first_of(_BAR_LOSS, line.text),
        global_batch=batch,
    )


def _read_consumed(line: Line, builder: ReadingBuilder, step: int, consumed: str | None) -> None:
    """The global batch from the samples consumed between two lines."""
    if consumed is None:
        return
    before = builder.state.get("consumed")
    builder.state["consumed"] = step, int(consumed)
    if before and step > before[0]:
        batch, rest = divmod(int(consumed) - before[1], step - before[0])
        if batch > 0 and not rest:
            builder.fact(line, "global_batch", batch)


LINES = {
    "nemo": (
        _ROWS,
        LinePattern(take=_read_nemo),
    ),
    "nemo_bar": (LinePattern(take=_read_bar),),
}
