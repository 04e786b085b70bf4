"""A rule applied to one run of a log: one figure, in the units of the log.

Nothing here knows a batch size: :mod:`.speed` makes samples/s of a figure.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from dlperf_hpc.logs.columns import bounds, differences, is_rising
from dlperf_hpc.logs.interpret.clock import by_clock
from dlperf_hpc.logs.interpret.planned import completion
from dlperf_hpc.logs.interpret.printed import by_printed, rate, rate_unit
from dlperf_hpc.logs.interpret.rules import Basis, Mean, Rule
from dlperf_hpc.logs.interpret.segments import Segment
from dlperf_hpc.logs.interpret.window import Figure, NoFigure
from dlperf_hpc.logs.scanned import Printed, Reading, Scope, Step, Steps, Total, Unit


def figure(rule: Rule, reading: Reading, segment: Segment) -> Figure:
    """The figure of one run by ``rule``, whose alternatives are not tried; NoFigure if none."""
    if rule.basis is Basis.TOTAL:
        return _total(rule, reading, segment)
    if reading.printed.unit is Unit.OWN and rule.basis is not Basis.PRINTED:
        raise NoFigure(f"the program's figure is in {reading.printed.label}", expected=True)
    if not segment.steps:
        raise NoFigure("no line has an iteration", expected=True)
    by = by_clock if rule.basis in (Basis.CLOCK, Basis.ARRIVAL) else by_printed
    found = by(rule, reading, segment)
    if not (math.isfinite(found.value) and found.value > 0):
        raise NoFigure(f"{found.value!r} {found.printed.label} is no speed")
    return _with_batch(found, segment) if found.unit is Unit.ITERATIONS_PER_S else found


def _with_batch(found: Figure, segment: Segment) -> Figure:
    """The figure with the samples of an iteration, where its lines state them. NoFigure if they
    change, and how many samples the window has does not follow from its lines."""
    stated = _batches(found.steps)
    if not stated or found.first is None:
        return found
    steps = _each_once(found.steps)
    numbers, stated = steps.numbers("iteration"), _batches(steps)
    if numbers[-1] <= found.first:
        raise NoFigure(f"line {steps[-1].line}: no iteration lies behind iteration {found.first}")
    every = segment.steps.numbers("iteration")
    at = bisect_left(every, found.first)
    before = segment.steps[at] if at < len(every) and every[at] == found.first else None
    batch = _mean_batch(before, found.first, steps)
    alone = before is None or numbers[0] == found.first + 1
    sizes = stated if alone else stated | _batches(Steps([before] if before else ()))
    if len(sizes) == 1:
        return replace(found, batch=batch)
    spaces = set(differences(array("q", [found.first]) + numbers[:]))
    if found.rule.mean is Mean.RATES or (found.rule.mean is Mean.FIGURES and len(spaces) > 1):
        raise NoFigure(
            "the global batch changes within the lines, whose mean then has no one batch"
        )
    warning = (
        f"the global batch changes within the window (up to {max(stated):g}, from {min(sizes):g}): "
        "the samples that its lines state are counted"
    )
    return replace(found, batch=batch, warnings=(*found.warnings, warning))


def _each_once(steps: Steps) -> Steps:
    """The steps in the order of their iterations, of repeats the last."""
    if is_rising(steps.numbers("iteration")):
        return steps
    last = {step.iteration: step for step in steps}
    return Steps(last[number] for number in sorted(last))


def _mean_batch(before: Step | None, first: int, steps: Steps) -> float:
    """Samples of an iteration: by the samples consumed until the window's two ends, else by each
    line's batch, which is that of the iterations since the line before if it did not change."""
    sizes = _batches(steps)
    if before is not None and before.global_batch is not None:
        sizes.add(before.global_batch)
    mean = _mean_consumed(before, first, steps[-1])
    if mean is None:
        return _mean_stated(before, first, steps, sizes)
    if not 0.99 * min(sizes) <= mean <= 1.01 * max(sizes):
        raise NoFigure(
            f"line {steps[-1].line}: the samples consumed are {mean:g} an iteration, "
            f"the global batch is {_span(sizes)}"
        )
    return sizes.pop() if len(sizes) == 1 else mean


def _mean_consumed(before: Step | None, first: int, last: Step) -> float | None:
    """Samples of an iteration by those consumed until the window's two ends; None if a line does
    not state them. Before the first iteration none are."""
    done: float | None = 0.0
    if before is not None or first:
        done = before.consumed if before is not None else None
    if done is None or last.consumed is None:
        return None
    return (last.consumed - done) / (last.iteration - first)


def _mean_stated(before: Step | None, first: int, steps: Steps, sizes: Collection[float]) -> float:
    """Samples of an iteration by each line's batch. NoFigure if a line has a batch that may be that
    of some of its iterations only."""
    samples, done = 0.0, first
    size = before.global_batch if before else None
    known = before is None  # or else the first line's batch may be that of some iterations only
    for number, batch, line in zip(*map(steps.values, ("iteration", "global_batch", "line"))):
        if batch is None or not (known or batch == size or number == done + 1):
            raise NoFigure(
                f"line {line}: the global batch changes ({_span(sizes)}), and how many "
                f"samples the iterations from {done} to {number} had is not known"
            )
        samples += batch * (number - done)
        done, size, known = number, batch, False
    return samples / (steps[-1].iteration - first)


def _batches(steps: Steps) -> set[float]:
    """The sizes of a batch that lines state."""
    column = steps.column("global_batch")
    if not column:
        return set()
    least, greatest = bounds(column)
    if least is not None and least == greatest:
        return {least}
    return {size for size in set(column) if size == size}


def _span(sizes: Collection[float]) -> str:
    return " to ".join(dict.fromkeys([f"{min(sizes):g}", f"{max(sizes):g}"]))


def _total(rule: Rule, reading: Reading, segment: Segment) -> Figure:
    """The last of the totals; one over all devices, in samples, before any other. Of one that
    divides what was planned, the part that was done."""
    if not segment.totals:
        raise NoFigure("the program prints no total", expected=not rule.total)
    named = [total for total in segment.totals if rule.total in ("", total.name)]
    if not named:
        names = ", ".join(dict.fromkeys(total.name for total in segment.totals))
        raise NoFigure(f"there is no total {rule.total!r}, but {names}")
    best = min(reversed(named), key=_preference)
    part, warnings = _part_done(reading, best)
    own = best.name if best.unit is Unit.OWN else ""
    printed = Printed(best.unit, best.scope, scale=part, name=own)
    value = rate(best.value, printed)
    if value is None:
        raise NoFigure(f"line {best.line}: {best.name} {best.value!r} is no speed")
    warnings += _of_several(rule, named, best)
    return Figure(
        rule=rule,
        value=value,
        unit=rate_unit(printed),
        printed=printed,
        end_line=best.line,
        steps=segment.steps,
        last=segment.steps[-1].iteration if segment.steps else None,
        first=segment.after if segment.steps else None,
        warnings=tuple(warnings),
    )


def _preference(total: Total) -> tuple[bool, bool]:
    """The lesser counts first: in samples, and over all devices."""
    return total.unit is not Unit.SAMPLES_PER_S, total.scope is not Scope.ALL


def _of_several(rule: Rule, named: Sequence[Total], best: Total) -> Iterator[str]:
    """What to say where a program prints several totals."""
    own = best.unit is Unit.OWN
    if own and len({total.value for total in named if total.name == best.name}) > 1:
        yield f"there are several figures in {best.name}: that of line {best.line} is the last"
    names = sorted({total.name for total in named} - {best.name})
    if names and not rule.total:
        yield f"the total is {best.name}; there is also {', '.join(names[:5])}"


def _part_done(reading: Reading, total: Total) -> tuple[float, list[str]]:
    """The factor to a total from the part of what it divides that was done, and what to say of it.
    NoFigure if the total is known to be wrong, and by which factor is not."""
    done = completion(reading, total)
    if done is None or done.value == 1:
        return 1.0, []
    divides = f"{total.name} (line {total.line}) divides the samples that were planned"
    if done.wrong:
        raise NoFigure(f"{divides}; {done.doubt}")
    if done.value is None:
        return 1.0, [f"{divides}; {done.doubt}: after early stopping or resuming it is wrong"]
    return done.value, [f"{divides}; {done.why}: {done.value:.4g} of the printed figure counts"]
