"""The averages which NVIDIA's TensorFlow BERT programs print when they are done.

``Throughput Average (sentences/sec) with overhead = 1033.33`` and, without start and checkpoints,
``Throughput Average (sentences/sec) = 1067.19`` (TF2: ``sequences/sec``). TF1 prints each twice,
through ``INFO:tensorflow:`` and through absl; an evaluation prints the same words for itself,
after its own ``Total Inference Time``.
"""

from __future__ import annotations

import re

from dlperf_hpc.logs.format import Draft, Line
from dlperf_hpc.logs.formats._numbers import NUMBER

PHASES = ("Total Training Time", "Total Inference Time")
"""What tells whose average follows: needles."""

_NAMES = ("average", "average with overhead")
_AVERAGE = re.compile(
    r"Throughput Average \((?:sentences|sequences)/sec\)(?P<with> with overhead)? = "
    rf"(?P<value>{NUMBER})\s*$"
)


def averages(line: Line, draft: Draft) -> bool:
    """True if the line is one of these or says whose they are; totals are those of training."""
    for phase in PHASES:
        if phase in line.text:
            draft.state.update(dict.fromkeys(_NAMES), phase=phase)
            return True
    match = _AVERAGE.search(line.text)
    if match is None:
        return False
    if draft.state.get("phase") == PHASES[0]:
        once(line, draft, _NAMES[bool(match["with"])], match["value"])
    return True


def once(line: Line, draft: Draft, name: str, value: str) -> None:
    """A total that may be printed twice in a row."""
    if draft.state.get(name) != value:
        draft.state[name] = value
        draft.total(line, name, value)
