"""One run's speed on two bases: where they differ by more than 5 %, what factor lies between."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dlperf_hpc.logs.interpret.conversion import MissingFact, converted
from dlperf_hpc.logs.interpret.figures import Figure, NoFigure, figure
from dlperf_hpc.logs.interpret.rules import Basis, Rule
from dlperf_hpc.logs.interpret.segments import Segment, segments_of
from dlperf_hpc.logs.interpret.settings import accumulation_of, batch_size_of, devices_of
from dlperf_hpc.logs.scanned import Reading, Step

TOLERANCE = 0.05
"""Two bases may differ by so much; and a factor fits that explains all but so much."""

_MOST_ACCUMULATION = 4096


def on_other_basis(
    taken: Figure, reading: Reading, segment: Segment, values: Mapping[str, Any]
) -> float | None:
    """Samples/s of the same iterations by the clock, or for the clock by the printed figures."""
    if taken.first is None or taken.last is None or taken.rule.basis is Basis.TOTAL:
        return None
    basis = Basis.PRINTED if taken.rule.basis is Basis.CLOCK else Basis.CLOCK
    rule = Rule("check", basis, taken.first, taken.last, per_node=taken.rule.per_node)
    return _speed(rule, reading, segment, values)


def by_other_reading(
    taken: Figure, segment: Segment, other: Reading, values: Mapping[str, Any]
) -> tuple[str, float] | None:
    """Basis and samples/s of what another format reads in the lines of the same window.

    None unless its lines span half of it.
    """
    if not taken.steps or taken.rule.basis is Basis.TOTAL:
        return None
    first, last = taken.steps[0].line, taken.end_line
    steps = _between(other.steps, first, last)
    runs = segments_of(replace(other, steps=steps, totals=()))
    run = max(runs, key=lambda run: len(run.steps))
    if len(run.steps) < 2 or run.steps[-1].line - run.steps[0].line < (last - first) / 2:
        return None
    run = replace(run, ranks=max(run.ranks, 1), after=run.steps[0].iteration)
    ends = run.steps[0].iteration, run.steps[-1].iteration
    for basis in (Basis.PRINTED, Basis.CLOCK):
        speed = _speed(Rule("check", basis, *ends), other, run, values)
        if speed is not None:
            return basis.value, speed
    return None


class _Lines(Sequence[int]):
    """The line of each step, without a list of them: a file has many steps and many runs."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps

    def __len__(self) -> int:
        return len(self._steps)

    def __getitem__(self, index: Any) -> Any:
        return self._steps[index].line


def _between(steps: Sequence[Step], first: int, last: int) -> tuple[Step, ...]:
    lines = _Lines(steps)
    return tuple(steps[bisect_left(lines, first) : bisect_right(lines, last)])


def _speed(
    rule: Rule, reading: Reading, segment: Segment, values: Mapping[str, Any]
) -> float | None:
    try:
        found = figure(rule, reading, segment)
        speed = converted(found, values, reading.counter, segment.ranks).samples_per_s
    except (NoFigure, MissingFact):
        return None
    return speed if not found.lacking and math.isfinite(speed) else None


def disagreement(one: float, other: float, values: Mapping[str, Any]) -> str:
    """What lies between two speeds of one run; '' if they agree to 5 %."""
    ratio = other / one
    if abs(ratio - 1) <= TOLERANCE:
        return ""
    if not ratio > 0:
        return f"{other!r} is no speed"
    fitting = [
        f"1/{value} ({name})" if ratio < 1 else f"{value} ({name})"
        for name, value in _factors(values, ratio)
        if abs(ratio * value - 1) <= TOLERANCE or abs(ratio / value - 1) <= TOLERANCE
    ]
    likely = f"as by a factor {' or '.join(fitting)}" if fitting else "no known factor explains it"
    return f"{other:.6g} / {one:.6g} = {ratio:.4g}: {likely}"


def _factors(values: Mapping[str, Any], ratio: float) -> list[tuple[str, int]]:
    known = [
        ("a speed of one device", devices_of(values)),
        ("gradient accumulation", accumulation_of(values)),
        ("tokens of a sequence", values.get("seq_len")),
        ("samples of a batch", batch_size_of(values)),
        ("a speed of one node", values.get("nodes")),
        ("devices of a node", values.get("gpus_per_node")),
    ]
    factors = [(name, int(value)) for name, value in known if value and value > 1]
    larger = max(ratio, 1 / ratio)
    about = round(larger) if larger <= _MOST_ACCUMULATION else 1
    if accumulation_of(values) is None and about > 1:
        factors.append(("gradient accumulation, which nobody states", about))
    return factors
