"""What a check found, as one line of JSON between the process of the check and the pack."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

OK, FAIL, TOLD, SKIPPED = "ok", "FAIL", "told", "skipped"
"""Verdicts. ``told``: a figure without a bound, or a goal that is reported and never a FAIL;
``skipped``: this machine cannot show it, and ``value`` says why."""
VERDICTS = (OK, FAIL, TOLD, SKIPPED)
MARK = "dlperf_acceptance "
"""What a line of the check's output that holds a finding begins with."""


@dataclass(frozen=True)
class Finding:
    """One row: what was looked at, what was found, what was asked for, and the verdict."""

    what: str
    value: str
    goal: str = ""
    verdict: str = TOLD

    def line(self) -> str:
        """What the process of a check prints."""
        return MARK + json.dumps(asdict(self))


def read(line: str) -> Finding | None:
    """The finding of a line of output; None for any other line."""
    if not line.startswith(MARK):
        return None
    told: dict[str, Any] = json.loads(line[len(MARK) :])
    return Finding(**told)


def judged(what: str, value: str, goal: str, holds: bool) -> Finding:
    """A finding with a bound: ``ok`` where it holds, else ``FAIL``."""
    return Finding(what, value, goal, OK if holds else FAIL)


def skipped(what: str, why: str) -> Finding:
    """What this machine cannot show."""
    return Finding(what, why, verdict=SKIPPED)
