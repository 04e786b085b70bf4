"""Lines with which a run says that it broke, whatever it was: launcher, framework or kernel."""

from __future__ import annotations

import re

from dlperf_hpc.logs.scanned import Trouble
from dlperf_hpc.records.status import Status

_LONGEST = 160
MOST = 50
"""Kept of one file: every rank of many may print its own traceback."""

# The first pattern that fits a line names what became of the run.
_SIGNS: tuple[tuple[str, str, Status], ...] = (
    ("DUE TO ", r"DUE TO TIME LIMIT", Status.TIMEOUT),
    ("DUE TO ", r"DUE TO PREEMPTION", Status.PREEMPTED),
    ("DUE TO ", r"DUE TO NODE FAILURE", Status.NODE_FAILED),
    ("slurmstepd: error: *** ", r"slurmstepd: error: \*\*\* .* CANCELLED", Status.CANCELLED),
    ("oom-kill", r"oom-kill|oom_kill", Status.OUT_OF_MEMORY),
    ("oom_kill", r"oom-kill|oom_kill", Status.OUT_OF_MEMORY),
    ("out of memory", r"(?i:CUDA|HIP|cuDNN|GPU).{0,80}out of memory", Status.OUT_OF_MEMORY),
    ("OutOfMemoryError", r"OutOfMemoryError", Status.OUT_OF_MEMORY),
    ("OOM when allocating", r"OOM when allocating", Status.OUT_OF_MEMORY),
    ("Traceback (most recent", r"Traceback \(most recent call last\)", Status.FAILED),
    ("Segmentation fault", r"Segmentation fault", Status.FAILED),
    ("srun: error: ", r"srun: error: ", Status.FAILED),
    ("unhandled ", r"unhandled (?:system|cuda) error", Status.FAILED),
    ("mpirun noticed that process", r"mpirun noticed that process", Status.FAILED),
    ("exited on signal ", r"exited on signal \d", Status.FAILED),
)

NEEDLES = tuple(dict.fromkeys(needle for needle, _, _ in _SIGNS))
_PATTERNS = tuple((re.compile(pattern, re.ASCII), status) for _, pattern, status in _SIGNS)


def trouble_in(number: int, text: str) -> Trouble | None:
    """What line ``number`` says that broke, or None: a word of it is not a sign of it."""
    for pattern, status in _PATTERNS:
        if pattern.search(text):
            return Trouble(number, status.value, text.strip()[:_LONGEST])
    return None
