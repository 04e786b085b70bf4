"""Readings for the tests of the post-processor: made from iteration numbers, without a log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dlperf_hpc.logs.scanned import (
    Counter,
    Evidence,
    Fact,
    LogStep,
    LogSteps,
    Printed,
    Reading,
    ScannedFile,
    Stamps,
    Total,
    Trouble,
)


def steps(
    iterations: Iterable[int],
    *,
    stamp: Callable[[int], float] | None = None,
    printed: Callable[[int], float] | None = None,
    loss: Callable[[int], float] | None = None,
    rank: int | None = None,
    line: int = 1,
) -> list[LogStep]:
    """One line per iteration from ``line`` on; figures as functions of the iteration."""
    return [
        LogStep(
            line + i,
            n,
            rank,
            stamp(n) if stamp else None,
            printed(n) if printed else None,
            loss(n) if loss else None,
        )
        for i, n in enumerate(iterations)
    ]


def reading(lines: Sequence[LogStep], totals: Sequence[Total] = (), **changes: Any) -> Reading:
    """A reading of some format, of samples/s over all devices unless ``changes`` say otherwise."""
    values: dict[str, Any] = {
        "format": "made_up",
        "framework": "torch",
        "evidence": Evidence.REAL,
        "printed": Printed(),
        "counter": Counter.OPTIMIZER_STEPS,
        "stamps": Stamps.ABSOLUTE if any(s.stamp is not None for s in lines) else Stamps.NONE,
        **changes,
    }
    return Reading(steps=LogSteps(lines), totals=tuple(totals), **values)


def scanned(
    *readings: Reading,
    facts: Sequence[Fact] = (),
    troubles: Sequence[Trouble] = (),
    end_line: int = 1000,
    cut: bool = False,
) -> ScannedFile:
    """A file with these readings."""
    return ScannedFile("some.log", 1, end_line, cut, tuple(readings), tuple(facts), tuple(troubles))


def facts(line: int = 0, **values: Any) -> list[Fact]:
    """Facts that one line states; of line 0, a name."""
    return [Fact(line, name, value) for name, value in values.items()]
