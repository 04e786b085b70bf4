"""The lines with which a launcher, a framework or the kernel says that a run broke."""

from __future__ import annotations

import re

from dlperf_hpc.logs.scanned import Trouble
from dlperf_hpc.records.status import Status

MOST = 50
"""Kept of one file: every rank of many may print its own traceback."""

_LONGEST = 160  # characters

# The lines with which a launcher, a framework or the kernel says that a run broke: a needle, and a
# pattern. The first pattern that fits a line names the run's status.
SIGNS: tuple[tuple[str, str, Status], ...] = (
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

NEEDLES = tuple(dict.fromkeys(needle for needle, _, _ in SIGNS))
_PATTERNS = tuple((re.compile(pattern, re.ASCII), status) for _, pattern, status in SIGNS)


def trouble_in(number: int, text: str) -> Trouble | None:
    """What broke, by line ``number``; None if it holds a sign's needle but not the sign."""
    for pattern, status in _PATTERNS:
        if pattern.search(text):
            return Trouble(number, status.value, text.strip()[:_LONGEST])
    return None
