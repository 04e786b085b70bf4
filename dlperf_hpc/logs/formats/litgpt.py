"""LitGPT (Lightning-AI/litgpt, lit-gpt before 2024-03) and TinyLlama, which was made of it.

| since | line |
|---|---|
| 2023 | ``iter 77 step 39: loss 10.8259, iter time: 214.40ms (optimizer.step)`` |
| 2024-02 | ``iter 77 | step 39: loss 10.8259, iter time: 214.40 ms (optimizer.step)`` |
| 2024-03 | ``Epoch 1 | iter 8 step 2 | loss train: 1.761, val: n/a | iter time: 121.17 ms (step)``, and for pre-training ``remaining time: 3 days, 1:00:00`` behind it |

``iter`` counts micro-steps, ``step`` optimizer steps; a mark stands where a micro-step ends one. Until
2024-03 some of the programs count ``iter`` from 0, so that it may be one too low. The time is that
of the one micro-step, of all devices together. It is read where every micro-step has a line: at a
line the program waits for the device, so that where lines are rarer (``log_interval``) the time has
work of the micro-steps before in it. Rank 0 prints.

The ``Tok/sec`` at the end is not read: that of pre-training divides the tokens by the time of day at
which it began, that of fine-tuning is one process's over the whole run with its validations. Real
lines: Lightning-AI/litgpt issues 689, 1110.
"""  # noqa: E501 - a row of the table is a line of the log

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Groups, Line, LinePattern, ReadingBuilder
from dlperf_hpc.logs.lineparts import NUMBER, full_stamp, word

_COUNT = r"[0-9]{1,18}"
_ITER = re.compile(
    rf"{word('iter ')} *(?P<iter>{_COUNT})(?: \|)? step (?P<step>{_COUNT})"
    rf"(?:: loss | \| loss train: )(?P<loss>{NUMBER}),"
    rf"(?: val: [^ |]{{1,40}} \|)? iter time: (?P<ms>{NUMBER}) ?ms"
    r"(?P<ends> \((?:optimizer\.)?step\))?"
)


def read(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """A micro-step. What an optimizer step consists of shows where one ends."""
    match = _ITER.search(line.text)
    if match is None:
        return
    done, steps = int(match["iter"]), int(match["step"])
    before = builder.state.get("before")
    builder.state["before"] = done
    builder.step(
        line,
        done,
        stamp=full_stamp(line.text[: match.start()]),
        printed=match["ms"] if before == done - 1 else None,
        loss=match["loss"],
    )
    if match["ends"] and "| loss train" in match[0] and steps and done % steps == 0:
        builder.fact(line, "accumulation", done // steps)


LINES = {
    "litgpt": (LinePattern(take=read),),
}
