"""From a figure as a log has it to samples/s over all devices, and the same run on another basis.

:func:`converted` finds the one factor between a printed figure and samples/s, and the settings that
it rests on. Printed tokens/s stay tokens/s where the length of a sequence is not known. The speed
of one run on two bases (the clock and the printed figures, or the lines of two formats) shows
whether these settings are right: where the two differ by more than 5 %, :func:`disagreement` names
the factor that lies between them.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dlperf_hpc.logs.interpret.figures import figure
from dlperf_hpc.logs.interpret.rules import Basis, Rule
from dlperf_hpc.logs.interpret.segments import Segment, segments_of
from dlperf_hpc.logs.interpret.settings import accumulation_of, batch_size_of, devices_of
from dlperf_hpc.logs.interpret.window import Figure, NoFigure
from dlperf_hpc.logs.scanned import Counter, Reading, Scope, Steps, Unit

OPTIONS: Mapping[str, str] = {
    "devices": "--devices",
    "batch_size": "--batch-size",
    "seq_len": "--seq-len",
    "accumulation": "--accumulation",
    "nodes": "--nodes",
    "gpus_per_node": "--gpus-per-node",
    "precision": "--precision",
}
"""Settings that a user can give, and the options for them."""

_NAMES = {
    "devices": "number of devices",
    "batch_size": "batch size per device",
    "seq_len": "sequence length",
    "accumulation": "gradient accumulation",
    "nodes": "number of nodes",
}
_PER_PRINTED = {Unit.MS_PER_ITERATION: 1000.0}


class MissingFact(ValueError):
    """A figure cannot be converted; the message names the facts and the options for them."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        listed = " and ".join(f"the {_NAMES[name]} ({OPTIONS[name]})" for name in names)
        verb = "is" if len(names) == 1 else "are"
        super().__init__(f"{listed} {verb} not known")


@dataclass(frozen=True)
class Converted:
    """A figure over all devices, in samples/s or, as ``unit`` says, in tokens/s or in a unit of its
    own, ``name``. ``factor`` times the printed figure, or over a printed time, is ``value``;
    ``assumed`` are settings that were taken without being stated."""

    value: float
    factor: float
    assumed: tuple[str, ...] = ()
    unit: Unit = Unit.SAMPLES_PER_S
    name: str = ""

    @property
    def label(self) -> str:
        """The unit's name."""
        return self.name or self.unit.value


def converted(
    figure: Figure, values: Mapping[str, Any], counter: Counter, processes: int
) -> Converted:
    """``figure`` in samples/s over all devices; tokens of sequences of an unknown length, or
    counted without their padding, in tokens/s; another rate as it is.

    MissingFact if a setting for it is not known, NoFigure if no setting would help.

    ``processes`` is how many processes print; 1 may mean that only one of all prints.
    """
    assumed: list[str] = []
    unit = Unit.SAMPLES_PER_S
    if figure.unit is Unit.ITERATIONS_PER_S:
        # all devices do an iteration together, whoever prints its time
        factor = figure.batch or samples_per_iteration(values, counter, assumed)
    else:
        factor = _over(figure.printed.scope, values, processes, figure.rule.per_node)
        if figure.unit is Unit.TOKENS_PER_S and "seq_len" in values:
            factor /= float(values["seq_len"])
        elif figure.unit is Unit.OWN:
            unit = Unit.OWN
        elif figure.unit is not Unit.SAMPLES_PER_S:
            unit = Unit.TOKENS_PER_S
    per_printed = factor * figure.printed.scale
    if figure.printed.unit in (Unit.MS_PER_ITERATION, Unit.S_PER_ITERATION):
        per_printed = factor * _PER_PRINTED.get(figure.printed.unit, 1.0) / figure.printed.scale
    name = figure.printed.name if unit is Unit.OWN else ""
    return Converted(figure.value * factor, per_printed, tuple(assumed), unit, name)


def samples_per_iteration(values: Mapping[str, Any], counter: Counter, assumed: list[str]) -> float:
    """Samples over all devices in what the log counts as one iteration; MissingFact."""
    accumulation = accumulation_of(values)
    if counter is Counter.OPTIMIZER_STEPS and "global_batch" in values:
        return float(values["global_batch"])
    batch, devices = batch_size_of(values), devices_of(values)
    if batch is None or devices is None:
        if counter is Counter.MICRO_STEPS and "global_batch" in values and accumulation:
            return float(values["global_batch"]) / accumulation
        facts = (("batch_size", batch), ("devices", devices))
        raise MissingFact([name for name, value in facts if value is None])
    if counter is Counter.MICRO_STEPS:
        return float(batch * devices)
    if accumulation is None:
        assumed.append("no gradient accumulation is stated: 1 is taken (--accumulation)")
    return float(batch * devices * (accumulation or 1))


def _over(scope: Scope, values: Mapping[str, Any], processes: int, per_node: bool) -> float:
    """The factor from a speed of ``scope`` to that of all devices."""
    if scope is Scope.ALL:
        return 1.0
    if scope is Scope.PROCESS and per_node:
        return _need(values, "nodes")
    devices = _devices(values)
    if scope is Scope.DEVICE or devices == 1:
        return devices
    if processes > 1 and processes in (devices, values.get("nodes")):
        return float(processes)
    raise NoFigure(
        f"the printed speed is of one process; {processes} of them print, and how many ran on "
        f"the {devices:.0f} devices is not known"
    )


def _devices(values: Mapping[str, Any]) -> float:
    devices = devices_of(values)
    if devices is None:
        raise MissingFact(["devices"])
    return float(devices)


def _need(values: Mapping[str, Any], name: str) -> float:
    if name not in values:
        raise MissingFact([name])
    return float(values[name])


def optimizer_steps(
    values: Mapping[str, Any], counter: Counter, first: int | None, last: int | None
) -> int | None:
    """Optimizer steps that end in the window after ``first`` up to ``last``; None if not known."""
    if first is None or last is None or counter is Counter.BLOCKS:
        return None
    if counter is Counter.OPTIMIZER_STEPS:
        return last - first
    accumulation = accumulation_of(values)
    return None if accumulation is None else last // accumulation - first // accumulation


# --- the same run on another basis

TOLERANCE = 0.05
"""The relative difference up to which two bases agree, and up to which a factor explains one."""

_MOST_ACCUMULATION = 4096


Other = tuple[Basis, Converted]
"""A speed on another basis, and which that is."""

_CLOCKS = (Basis.CLOCK, Basis.ARRIVAL)
_PRINTED_FIRST = (Basis.PRINTED, Basis.CLOCK)


def on_other_basis(
    taken: Figure, reading: Reading, segment: Segment, values: Mapping[str, Any]
) -> Other | None:
    """The speed of the same iterations by the clock, or for the clock by the printed figures."""
    if taken.first is None or taken.last is None or taken.rule.basis is Basis.TOTAL:
        return None
    bases = (Basis.PRINTED,) if taken.rule.basis in _CLOCKS else _CLOCKS
    ends = taken.first, taken.last
    return _speed(bases, ends, reading, segment, values, taken.rule.per_node)


def of_all_lines(reading: Reading, segment: Segment, values: Mapping[str, Any]) -> Other | None:
    """The speed of all iterations behind the first line, which has the warm-up in it: what a total
    is held against. None where the lines give no speed, or are fewer than three."""
    if len(segment.steps) < 3:
        return None
    ends = segment.steps[0].iteration, segment.steps[-1].iteration
    return _speed(_PRINTED_FIRST, ends, reading, segment, values)


def behind_window(
    taken: Figure, reading: Reading, segment: Segment, values: Mapping[str, Any]
) -> Converted | None:
    """The speed of the iterations behind a window, on its basis; None if they are fewer than half
    of the window's, or give no speed."""
    if taken.first is None or taken.last is None or taken.rule.basis is Basis.TOTAL:
        return None
    end = segment.steps[-1].iteration if segment.steps else 0
    if end - taken.last < max(1, (taken.last - taken.first) / 2):
        return None
    ends = taken.last, end
    found = _speed((taken.rule.basis,), ends, reading, segment, values, taken.rule.per_node)
    return None if found is None else found[1]


def by_other_reading(
    taken: Figure, segment: Segment, other: Reading, values: Mapping[str, Any]
) -> Other | None:
    """The speed of what another format reads in the lines of the same window; None unless its lines
    span half of it."""
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
    return _speed(_PRINTED_FIRST, ends, other, run, values)


def _between(steps: Steps, first: int, last: int) -> Steps:
    lines = steps.numbers("line")
    return steps[bisect_left(lines, first) : bisect_right(lines, last)]


def _speed(
    bases: Sequence[Basis],
    ends: tuple[int, int],
    reading: Reading,
    segment: Segment,
    values: Mapping[str, Any],
    per_node: bool = False,
) -> Other | None:
    """The speed between two iterations on the first of the bases that gives one."""
    for basis in bases:
        try:
            found = figure(Rule("check", basis, *ends, per_node=per_node), reading, segment)
            speed = converted(found, values, reading.counter, segment.ranks)
        except (NoFigure, MissingFact):
            continue
        if not found.lacking and math.isfinite(speed.value):
            return basis, speed
    return None


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
    about = round(min(max(ratio, 1 / ratio), _MOST_ACCUMULATION + 1))
    if accumulation_of(values) is None and 1 < about <= _MOST_ACCUMULATION:
        factors.append(("gradient accumulation, which is not stated", about))
    return factors
