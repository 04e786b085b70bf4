"""LLaMA-Factory's ``trainer_log.jsonl`` (``LogCallback`` of train/callbacks.py).

| since | line |
|---|---|
| 2023 | ``{"current_steps": 10, "total_steps": 90, "loss": 4.1, "eval_loss": null, ..`` |
| | ``"learning_rate": 5e-05, "epoch": 0.1, .., "elapsed_time": "0:01:10", ..}`` |
| 2024 (pull request 4066) | without what is null, ``lr``, and at the end |
| | ``.., "throughput": 4025.5, "total_tokens": 281785}`` |

Process 0 writes a line at each loss line of the Trainer; evaluations and the end have lines of
their own, without a loss, which are not read. The steps are optimizer steps. ``throughput`` is the
tokens of all devices over the time since ``train()`` began, set-up included; it is there with
``include_num_input_tokens_seen``. In a run that went on from a checkpoint it has the tokens of the
run before it over the time of its own (issue 7415), so that no window of it is taken.
``elapsed_time`` is that time in whole seconds. Real lines were read in the issues 774 and 7415.
"""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Groups, Line, LinePattern, ReadingBuilder
from dlperf_hpc.logs.formats import _bars
from dlperf_hpc.logs.lineparts import NUMBER
from dlperf_hpc.logs.scanned import Stamps

_HEAD = re.compile(
    r'\{"current_steps": (?P<step>[0-9]{1,15}), "total_steps": [0-9]{1,15}, '
    rf'"loss": (?P<loss>{NUMBER}), .{{0,2000}}\}}\s*$'
)
_LR = re.compile(rf'"(?:lr|learning_rate)": ({NUMBER}),')
_ELAPSED = re.compile(r'"elapsed_time": "(?:(?P<days>[0-9]{1,5}) days?, )?(?P<time>[0-9:]{4,12})"')
_THROUGHPUT = re.compile(rf'"throughput": ({NUMBER})[,}}]')
_DAY_S = 86400.0


def read(line: Line, builder: ReadingBuilder, _: Groups) -> None:
    """A line with a loss; one without is an evaluation's or the end's."""
    head = _HEAD.search(line.text)
    if head is None:
        return
    lr, rate = _LR.search(line.text), _THROUGHPUT.search(line.text)
    builder.step(
        line,
        head["step"],
        stamp=_elapsed(line.text),
        stamps=Stamps.ELAPSED,
        printed=rate[1] if rate else None,
        loss=head["loss"],
        lr=lr[1] if lr else None,
    )


def _elapsed(text: str) -> float | None:
    match = _ELAPSED.search(text)
    time = _bars.seconds(match["time"]) if match else None
    return None if time is None or match is None else time + int(match["days"] or 0) * _DAY_S


LINES = {
    "llama_factory": (LinePattern(take=read),),
}
