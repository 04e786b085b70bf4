r"""llm.c (karpathy/llm.c): its CUDA programs, and the PyTorch program beside them.

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

import re

from dlperf_hpc.logs.format import Groups, Line, LinePattern, ReadingBuilder
from dlperf_hpc.logs.lineparts import DECIMAL, NUMBER, WHOLE, full_stamp, one_more, word
from dlperf_hpc.logs.scanned import Unit

_COUNT = r"[0-9]{1,18}"
_STEP = re.compile(
    rf"{word('step ')} *(?P<done>{_COUNT})/{_COUNT}(?::| \|) (?:train )?loss +(?P<loss>{NUMBER}) "
)
_TIME = re.compile(
    rf"(?:(?P<python>\| \()|\(|\| )(?P<ms>{NUMBER}) ms"
    rf"(?:, |(?: \| {NUMBER}% [0-9A-Za-z ]{{3,16}} MFU)? \| ){NUMBER} tok/s"
)
_LR = re.compile(rf"\blr (?P<lr>{NUMBER})[ |]")
_MAIN_LOG = re.compile(
    rf"^s:(?P<index>{_COUNT}) trl:(?:(?P<loss>-?[0-9]{{1,12}}\.[0-9]{{4}}) lr:(?P<lr>{NUMBER})"
    r" norm:|(?P<alone>-?[0-9]{1,12}\.[0-9]{6})\s*$)"
)
_SHAPE = re.compile(
    r"batch_size B=(?P<batch_size>[0-9]{1,9}) \* seq_len T=(?P<seq_len>[0-9]{1,9})"
    r" \* num_processes=(?P<devices>[0-9]{1,9}) and "
)
_ACCUMULATION = re.compile(
    r"=> (?:setting grad_accum_steps=|calculated gradient accumulation steps: )([0-9]{1,9})\s*$"
)
_PRECISION = re.compile(r"^\| precision +\| (FP32|TF32|FP16|BF16) +\|")
_WEIGHTS = re.compile(r"^\| weight init method +\| (.{1,400}?) +\|\s*$")
_TOTAL_NAME = "total average iteration time"
_TOTAL = re.compile(rf"{_TOTAL_NAME}: (?P<ms>{NUMBER}) ms\s*$")
_Z = r"\([-+](?:[0-9]{1,9}\.[0-9]{2}|nan|inf)z\)"
_ROWS = LinePattern(
    rf"^step +(?P<iteration>{WHOLE})/{WHOLE} \| loss +(?P<loss>{DECIMAL}) {_Z}\| norm +{DECIMAL}"
    rf" {_Z}\| lr (?P<lr>{DECIMAL}) \| (?P<printed>{DECIMAL}) ms \| -?[0-9]{{1,9}}\.[0-9]% bf16 MFU"
    r" \| [0-9]{1,15} tok/s$",
)


def read(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """A step, a line of main.log, the end's mean, or a setting."""
    if step := _STEP.search(line.text):
        _read_step(line, builder, step)
    elif match := _MAIN_LOG.search(line.text):
        loss = match["loss"] or match["alone"]
        builder.step(line, one_more(match["index"]), loss=loss, lr=match["lr"])
    elif match := _TOTAL.search(line.text):
        if builder.state.get("resumed") is False:
            builder.total(line, _TOTAL_NAME, match["ms"], Unit.MS_PER_ITERATION)
    elif match := _SHAPE.search(line.text):
        for name, value in match.groupdict().items():
            builder.hold(line, name, value)
    elif match := _ACCUMULATION.search(line.text):
        builder.hold(line, "accumulation", match[1])
    elif match := _PRECISION.search(line.text):
        builder.hold(line, "precision", match[1].lower())
    elif line.text.startswith("val loss "):
        builder.state["evaluated"] = True
    elif match := _WEIGHTS.search(line.text):
        builder.state["resumed"] = match[1] == "intermediate checkpoint"


def _read_step(line: Line, builder: ReadingBuilder, step: re.Match[str]) -> None:
    time = _TIME.search(line.text, step.end() - 1)
    if time is None:
        builder.note(line, "a step with tok/s, but not as llm.c prints it")
        return
    builder.release_held()
    evaluated = builder.state.pop("evaluated", False) and time["python"]
    lr = _LR.search(line.text, step.end() - 1)
    builder.step(
        line,
        step["done"],
        stamp=full_stamp(line.text[: step.start()]),
        printed=None if evaluated else time["ms"],
        loss=step["loss"],
        lr=lr["lr"] if lr else None,
    )


LINES = {
    "llm_c": (
        _ROWS,
        LinePattern(take=read),
    ),
}
