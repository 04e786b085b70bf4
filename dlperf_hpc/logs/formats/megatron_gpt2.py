"""Megatron-LM of 2019/2020, as DeepSpeedExamples' ``Megatron-LM/pretrain_gpt2.py`` has it.

`` iteration      100/  320000 | elapsed time per iteration (ms): 528.9 | learning rate 1.500E-04
| lm loss 1.010000E+01 | loss scale 65536.0 |`` - one line; the loss scale under fp16 only.

Rank 0 prints it every ``--log-interval`` iterations; the time is the mean since the line before
(the first has the set-up in it). An iteration is an optimizer step. The batch is not in the line
but in the arguments printed before (``batch_size``). The line is known from the source only.
"""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Draft, Format, Line
from dlperf_hpc.logs.formats import _megatron
from dlperf_hpc.logs.formats._held import tell
from dlperf_hpc.logs.scan.stamps import full_stamp
from dlperf_hpc.logs.scanned import Evidence, Printed, Unit

_ITERATION = re.compile(
    r"iteration +(?P<n>[0-9]{1,18})/ *[0-9]{1,18} \| elapsed time per iteration \(ms\): "
    rf"(?P<ms>{_megatron.FIGURE}) \| learning rate (?P<lr>{_megatron.FIGURE}) \|"
    rf"(?: lm loss (?P<loss>{_megatron.FIGURE}) \|)?"
)
_LATER = ("consumed samples:", "learning rate:", "samples/sec:")


def read(line: Line, draft: Draft) -> None:
    """An iteration's line, or one of the lines that state settings or memory."""
    if _megatron.NEEDLE not in line.text:
        _megatron.read_setting(line, draft)
    elif match := _ITERATION.search(line.text):
        tell(draft)
        draft.step(
            line,
            match["n"],
            stamp=full_stamp(line.text[: match.start()]),
            printed=match["ms"],
            loss=match["loss"],
            lr=match["lr"],
            memory_mb=_megatron.memory_of(draft, match["n"]),
        )
    elif not any(mark in line.text for mark in _LATER):
        draft.note(line, "time per iteration, but not as Megatron-LM prints it")


FORMAT = Format(
    name="megatron_gpt2",
    title="Megatron-LM of 2020 (DeepSpeedExamples GPT-2)",
    framework="megatron",
    evidence=Evidence.SOURCE,
    source="deepspeedai/DeepSpeedExamples Megatron-LM/pretrain_gpt2.py",
    needles=(_megatron.NEEDLE,),
    read=read,
    printed=Printed(Unit.MS_PER_ITERATION),
    facts_needles=_megatron.FACTS_NEEDLES,
)
