"""A rule applied to one run of a log: one figure, in the units of the log.

Nothing here knows a batch size: :mod:`.conversion` makes samples/s of a figure.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import fmean, median
from typing import NamedTuple

from dlperf_hpc.logs.interpret.planned import share_done
from dlperf_hpc.logs.interpret.rules import Basis, By, Mean, Rule
from dlperf_hpc.logs.interpret.segments import DAY_S, YEAR_S, Segment
from dlperf_hpc.logs.scanned import (
    Averaging,
    Printed,
    Reading,
    Scope,
    Stamps,
    Step,
    Total,
    Unit,
)

SPAN = 0.5
"""The least share of the window asked for that printed lines must span."""

_NEARLY = 0.9  # of the window: a warning is given of less
_COARSE = 0.02  # error of a difference of whole seconds from which on a warning is given
_AT_ONCE_S, _MOST_AT_ONCE = 1e-3, 0.1  # lines nearer to each other, and how many may be
_TOO_COARSE = 0.05  # and, of seconds since a program began, from which on there is no figure
_TIMES = {Unit.MS_PER_ITERATION: 1e-3, Unit.S_PER_ITERATION: 1.0}


class NoFigure(ValueError):
    """The log has no figure by this rule; the message says why.

    ``short``: the log ends before the window does. ``expected``: the format does not print what
    the rule takes, which is no news if another rule gives a figure.
    """

    def __init__(self, reason: str, short: bool = False, expected: bool = False) -> None:
        self.short = short
        self.expected = expected
        super().__init__(reason)


@dataclass(frozen=True)
class Figure:
    """One figure of one run.

    ``value`` is in ``unit``, which is never a time: a time per iteration becomes iterations/s.
    ``printed`` describes the log's own figure (for the clock, iterations/s). The window lies after
    iteration ``first``, up to ``last``; ``steps`` are its lines, and ``end_line`` is the last of
    these. ``times`` are seconds per iteration, one per line, if they are known. ``lacking`` is why
    the window is not complete, '' if it is. ``batch`` is how many samples an iteration of the
    window has, over all devices, where its lines state that themselves; a mean, if it changes.
    """

    rule: Rule
    value: float
    unit: Unit
    printed: Printed
    end_line: int
    first: int | None = None
    last: int | None = None
    steps: tuple[Step, ...] = ()
    elapsed_s: float | None = None
    times: tuple[float, ...] = ()
    lacking: str = ""
    warnings: tuple[str, ...] = ()
    batch: float | None = None


def figure(rule: Rule, reading: Reading, segment: Segment) -> Figure:
    """The figure of one run by ``rule``, whose alternatives are not tried; NoFigure if none."""
    if rule.basis is Basis.TOTAL:
        return _total(rule, reading, segment)
    if reading.printed.unit is Unit.OWN and rule.basis is not Basis.PRINTED:
        raise NoFigure(f"the program's figure is in {reading.printed.label}", expected=True)
    if not segment.steps:
        raise NoFigure("no line has an iteration", expected=True)
    if rule.basis in (Basis.CLOCK, Basis.ARRIVAL):
        found = _clock(rule, reading, segment)
    elif rule.by is By.LINES or rule.mean is Mean.FIGURES:
        found = _of_lines(rule, reading, segment)
    elif reading.printed.averaging is Averaging.RUNNING:
        found = _running(rule, reading, segment)
    else:
        found = _since_last(rule, reading, segment)
    if not (math.isfinite(found.value) and found.value > 0):
        raise NoFigure(f"{found.value!r} {found.printed.label} is no speed")
    return _with_batch(found, segment) if found.unit is Unit.ITERATIONS_PER_S else found


def _with_batch(found: Figure, segment: Segment) -> Figure:
    """The figure with the samples of an iteration, where its lines state them. NoFigure if they
    change, and how many samples the window has does not follow from its lines."""
    steps = sorted({s.iteration: s for s in found.steps}.values(), key=lambda s: s.iteration)
    stated = _batches(steps)
    if not stated or found.first is None:
        return found
    if steps[-1].iteration <= found.first:
        raise NoFigure(f"line {steps[-1].line}: no iteration lies behind iteration {found.first}")
    numbers = [step.iteration for step in segment.steps]
    at = bisect_left(numbers, found.first)
    before = segment.steps[at] if at < len(numbers) and numbers[at] == found.first else None
    batch = _mean_batch(before, found.first, steps)
    contiguous = steps[0].iteration == found.first + 1
    sizes = stated if contiguous or before is None else stated | _batches([before])
    if len(sizes) == 1:
        return replace(found, batch=batch)
    ends = [found.first, *(step.iteration for step in steps)]
    spaces = {after - begin for begin, after in zip(ends, ends[1:])}
    if found.rule.mean is Mean.RATES or (found.rule.mean is Mean.FIGURES and len(spaces) > 1):
        raise NoFigure(
            "the global batch changes within the lines, whose mean then has no one batch"
        )
    told = (
        f"the global batch changes within the window (up to {max(stated):g}, from {min(sizes):g}): "
        "the samples that its lines state are counted"
    )
    return replace(found, batch=batch, warnings=(*found.warnings, told))


def _mean_batch(before: Step | None, first: int, steps: Sequence[Step]) -> float:
    """Samples of an iteration: by the samples consumed until the window's two ends, else by each
    line's batch, which is that of the iterations since the line before if it did not change."""
    sizes = _batches((*([before] if before else []), *steps))
    begun = before.consumed if before else (None if first else 0.0)
    ended = steps[-1].consumed
    if begun is not None and ended is not None:
        mean = (ended - begun) / (steps[-1].iteration - first)
        if not 0.99 * min(sizes) <= mean <= 1.01 * max(sizes):
            raise NoFigure(
                f"line {steps[-1].line}: the samples consumed are {mean:g} an iteration, "
                f"the global batch is {_span(sizes)}"
            )
        return sizes.pop() if len(sizes) == 1 else mean
    samples, latest = 0.0, before
    for step in steps:
        done = latest.iteration if latest else first
        known = latest is None or latest.global_batch == step.global_batch
        if step.global_batch is None or not (known or step.iteration == done + 1):
            raise NoFigure(
                f"line {step.line}: the global batch changes ({_span(sizes)}), and how many "
                f"samples the iterations from {done} to {step.iteration} had is not known"
            )
        samples, latest = samples + step.global_batch * (step.iteration - done), step
    return samples / (steps[-1].iteration - first)


def _batches(steps: Iterable[Step]) -> set[float]:
    return {step.global_batch for step in steps if step.global_batch is not None}


def _span(sizes: Collection[float]) -> str:
    return " to ".join(dict.fromkeys([f"{min(sizes):g}", f"{max(sizes):g}"]))


class _Window(NamedTuple):
    """Positions in a list of iterations; why the window is not complete, and a warning, or ''."""

    first: int
    last: int
    lacking: str = ""
    warning: str = ""


def _window(rule: Rule, numbers: Sequence[int], segment: Segment) -> _Window:
    """Where the window begins and ends among the rising ``numbers`` that are printed."""
    first, last = rule.first or 0, rule.last or 0
    begin, end = bisect_left(numbers, first), bisect_right(numbers, last) - 1
    if not numbers or numbers[-1] < last:
        reached = f"the log ends at iteration {numbers[-1]}" if numbers else "the log has no lines"
        lacking = f"{reached}, the window lies between {first} and {last}"
        if end - begin < 1:
            raise NoFigure(lacking, short=True)
        return _Window(begin, end, lacking)
    span = numbers[end] - numbers[begin] if end > begin else 0
    if span >= SPAN * (last - first):
        used = f"{numbers[begin]} to {numbers[end]}"
        missing = f"iterations {first} and {last} are not both printed: {used} are used"
        return _Window(begin, end, "", missing if span < _NEARLY * (last - first) else "")
    what = f"no two lines between iterations {first} and {last} span half of them"
    if not rule.nearest:
        raise NoFigure(what)
    begin = bisect_left(numbers, max(first, segment.after + first))
    if begin >= len(numbers) - 1:
        raise NoFigure(f"{what}, and the log ends at iteration {numbers[-1]}", short=True)
    end = bisect_left(numbers, numbers[begin] + last - first)
    if end >= len(numbers):
        ends = f"{what}, and after {numbers[begin]} the log ends at iteration {numbers[-1]}"
        return _Window(begin, len(numbers) - 1, ends)
    return _Window(begin, end, "", f"{what}: {numbers[begin]} to {numbers[end]} are used")


def _clock(rule: Rule, reading: Reading, segment: Segment) -> Figure:
    arrival = rule.basis is Basis.ARRIVAL
    kind = Stamps.ABSOLUTE if arrival else reading.stamps
    timed = [s._replace(stamp=s.arrival) for s in segment.steps] if arrival else segment.steps
    stamped = [s for s in timed if s.stamp is not None and math.isfinite(s.stamp)]
    if kind is Stamps.NONE or not stamped:
        what = "are of no program that we supervised" if arrival else "have no time stamps"
        raise NoFigure(f"the lines {what}", expected=True)
    if rule.by is By.LINES:
        stamped = [step for step in stamped if step.iteration > rule.skip]
        window = _line_window(rule, len(stamped))
    else:
        window = _window(rule, [step.iteration for step in stamped], segment)
    steps = stamped[window.first : window.last + 1]
    stamps = [step.stamp for step in steps if step.stamp is not None]
    try:
        seconds = elapsed(stamps, kind)
    except ClockError as error:
        raise NoFigure(f"line {steps[error.position].line}: {error}") from None
    iterations = steps[-1].iteration - steps[0].iteration
    if not seconds[-1] > 0:
        lines = f"lines {steps[0].line} and {steps[-1].line}"
        raise NoFigure(f"{lines} have the same time stamp")
    if arrival:
        _refuse_buffered(seconds)
    warnings = [window.warning] if window.warning else []
    coarse = _coarse(stamps, seconds[-1])
    if coarse and reading.stamps is Stamps.ELAPSED and 1 / seconds[-1] > _TOO_COARSE:
        enough = math.ceil(iterations / seconds[-1] / _TOO_COARSE)
        raise NoFigure(f"{coarse}, and a window of {enough} iterations or more is needed")
    warnings += [coarse] if coarse else []
    inside = range(steps[0].line + 1, steps[-1].line + 1)
    if any(epoch.line in inside and epoch.after >= steps[0].iteration for epoch in reading.epochs):
        warnings.append(
            "several epochs are in the window: what the program does between two of them "
            "(evaluation, checkpoints) is in its time"
        )
    return Figure(
        rule=rule,
        value=iterations / seconds[-1],
        unit=Unit.ITERATIONS_PER_S,
        printed=Printed(Unit.ITERATIONS_PER_S),
        end_line=max(step.line for step in steps),
        first=steps[0].iteration,
        last=steps[-1].iteration,
        steps=tuple(steps[1:]),
        elapsed_s=seconds[-1],
        times=tuple(
            (seconds[i + 1] - seconds[i]) / (b.iteration - a.iteration)
            for i, (a, b) in enumerate(zip(steps, steps[1:]))
        ),
        lacking=window.lacking,
        warnings=tuple(warnings),
    )


def _refuse_buffered(seconds: Sequence[float]) -> None:
    """NoFigure for lines of which many came at once: their moments are those of a buffer."""
    at_once = sum(later - before < _AT_ONCE_S for before, later in zip(seconds, seconds[1:]))
    if at_once > _MOST_AT_ONCE * (len(seconds) - 1):
        raise NoFigure(
            f"{at_once} of the window's {len(seconds)} lines came within 1 ms of the one before:"
            " the output was buffered, and when they came says nothing"
        )


def _coarse(stamps: Sequence[float], seconds: float) -> str:
    """What to say of a window of ``seconds`` between stamps that are whole seconds; '' if it is
    long enough for these."""
    if 1 / seconds <= _COARSE or not all(stamp == int(stamp) for stamp in stamps):
        return ""
    return (
        f"the stamps are whole seconds and the window is {seconds:.0f} s: the speed may be "
        f"off by {100 / seconds:.0f} %"
    )


def _line_window(rule: Rule, count: int) -> _Window:
    """Window of a clock rule that counts lines: both ends are lines."""
    first, last = rule.first or 0, rule.last or 0
    if last < count:
        return _Window(first, last)
    lacking = f"{count} lines count, the window ends with the {last + 1}th"
    if count - first < 2:
        raise NoFigure(lacking, short=True)
    return _Window(first, count - 1, lacking)


def _rate(value: float | None, printed: Printed) -> float | None:
    """A printed figure as a rate; of a time per iteration, iterations/s. None if it is none."""
    if value is None or not (math.isfinite(value) and value > 0):
        return None
    per_s = _TIMES.get(printed.unit)
    scaled = value * printed.scale
    rate = scaled if per_s is None else 1 / (scaled * per_s) if scaled * per_s > 0 else math.inf
    return rate if math.isfinite(rate) and rate > 0 else None


def _mean(values: Sequence[float]) -> float:
    """The mean; infinite if the sum of the values is no number any more."""
    try:
        return fmean(values)
    except OverflowError:
        return math.inf


def _rate_unit(printed: Printed) -> Unit:
    return Unit.ITERATIONS_PER_S if printed.unit in _TIMES else printed.unit


def _no_figures() -> NoFigure:
    return NoFigure("the lines print no speed", expected=True)


def _since_last(rule: Rule, reading: Reading, segment: Segment) -> Figure:
    """Samples over time: each line's rate is taken for the iterations since the line before."""
    if all(_rate(step.printed, reading.printed) is None for step in segment.steps):
        raise _no_figures()
    numbers = [step.iteration for step in segment.steps]
    offset = 1 if segment.after < numbers[0] else 0  # the first line has iterations of its own
    if offset:
        numbers.insert(0, segment.after)
    window = _window(rule, numbers, segment)
    covered = seconds = 0.0
    times = []
    for i in range(window.first + 1, window.last + 1):
        rate = _rate(segment.steps[i - offset].printed, reading.printed)
        if rate is not None:
            covered += numbers[i] - numbers[i - 1]
            seconds += (numbers[i] - numbers[i - 1]) / rate
            times.append(1 / rate)
    span = numbers[window.last] - numbers[window.first]
    if covered < SPAN * span or not seconds > 0:
        what = f"lines of {covered:.0f} of the window's {span} iterations print a speed"
        raise NoFigure(what, short=bool(window.lacking))
    steps = segment.steps[window.first + 1 - offset : window.last + 1 - offset]
    warnings = [window.warning] if window.warning else []
    if covered < span:
        warnings.append(f"{span - covered:.0f} iterations of the window have no printed speed")
    if reading.printed.averaging is Averaging.LAST_ONE and span > len(steps):
        warnings.append(f"the printed speeds are of {len(steps)} single iterations of {span}")
    made = _printed(rule, reading, covered / seconds, steps, window)
    return replace(
        made,
        first=numbers[window.first],
        last=numbers[window.last],
        times=tuple(times),
        warnings=tuple(warnings),
    )


class _Point(NamedTuple):
    """A line with a running average, or the beginning (``step`` is None) of what it is taken over;
    ``seconds`` since that ``origin``."""

    iteration: int
    seconds: float
    origin: int
    step: Step | None = None


def _points(reading: Reading, segment: Segment) -> list[_Point]:
    """t(n) = (n - origin) / rate(n), for one sample each; the origin is that of each epoch."""
    points: list[_Point] = []
    lines = [epoch.line for epoch in reading.epochs]
    for step in segment.steps:
        at = bisect_right(lines, step.line)
        origin = reading.printed.origin + (reading.epochs[at - 1].after if at else 0)
        rate = _rate(step.printed, reading.printed)
        if rate is None or step.iteration <= origin:
            continue
        if not points or points[-1].origin != origin:
            points.append(_Point(origin, 0.0, origin))
        seconds = (step.iteration - origin) / rate
        points.append(_Point(step.iteration, seconds, origin, step))
    return points


def _running(rule: Rule, reading: Reading, segment: Segment) -> Figure:
    """The rate between running averages, within each epoch if they begin anew with it."""
    points = _points(reading, segment)
    if not points:
        raise _no_figures()
    resumed = segment.after > points[0].origin + (points[1].iteration - segment.after)
    ends = [point.iteration for point in points]
    window = _window(rule, ends[1:] if resumed else ends, segment)
    if resumed:
        raise NoFigure(
            f"the run goes on after iteration {segment.after}, so that it is not known at which "
            "iteration its printed averages begin",
            short=bool(window.lacking),
        )
    inside = points[window.first : window.last + 1]
    covered, seconds = _within_epochs(inside)
    span = inside[-1].iteration - inside[0].iteration
    if not seconds > 0:
        raise NoFigure("the printed running averages leave no time for the window")
    if covered < SPAN * span:
        what = f"lines of {covered} of the window's {span} iterations print a speed"
        raise NoFigure(what, short=bool(window.lacking))
    warnings = [window.warning] if window.warning else []
    if covered < span:
        warnings.append(f"{span - covered} iterations of the window have no printed speed")
    steps = [point.step for point in inside[1:] if point.step is not None]
    made = _printed(rule, reading, covered / seconds, steps, window)
    return replace(made, first=ends[window.first], last=ends[window.last], warnings=tuple(warnings))


def _within_epochs(points: Sequence[_Point]) -> tuple[int, float]:
    """Iterations and seconds between the first and the last point of each epoch."""
    iterations, seconds = 0, 0.0
    for _, group in groupby(points, key=lambda point: point.origin):
        members = [*group]
        iterations += members[-1].iteration - members[0].iteration
        seconds += members[-1].seconds - members[0].seconds
    return iterations, seconds


def _of_lines(rule: Rule, reading: Reading, segment: Segment) -> Figure:
    """The mean of the printed figures of lines, as they stand."""
    rows = _rows(segment, reading.printed, rule)
    if not rows:
        raise _no_figures()
    lacking = ""
    if rule.by is By.LINES:
        rows = [row for row in rows if row.step.iteration > rule.skip]
        need = rule.need or rule.last or 1 + (rule.first or 0)
        if len(rows) < need:
            lacking = f"{len(rows)} lines count, the window needs {need}"
        rows = rows[rule.first : rule.last]
    else:
        ends = rows[-1].step.iteration
        if rule.last is not None and ends < rule.last:
            lacking = f"the log ends at iteration {ends}, the window at {rule.last}"
        low, high = rule.first or 0, ends if rule.last is None else rule.last
        rows = [row for row in rows if low < row.step.iteration <= high]
        if rows and not lacking and segment.after > low + (1 - SPAN) * (high - low):
            lacking = f"the log begins after iteration {segment.after}, the window at {low}"
    if not rows:
        span = f"{rule.first or ''}:{rule.last or ''}"
        raise NoFigure(lacking or f"no {rule.by.value} within [{span}]", short=bool(lacking))
    if rule.mean is Mean.RATES:
        rates = [_rate(row.value, reading.printed) or math.nan for row in rows]
        value: float | None = _mean(rates)
    else:
        value = _rate(_mean([row.value for row in rows]), reading.printed)
    told: tuple[str, ...] = ()
    if reading.printed.averaging is Averaging.RUNNING:
        told = ("the lines print running averages: their mean is a mean of means, of no window",)
    steps = [row.step for row in rows]
    numbers = [step.iteration for step in segment.steps]
    before = bisect_left(numbers, steps[0].iteration)
    return replace(
        _printed(rule, reading, value or math.nan, steps, _Window(0, 0, lacking)),
        first=numbers[before - 1] if before else segment.after,
        last=max(step.iteration for step in steps),
        warnings=told,
    )


class _Row(NamedTuple):
    step: Step
    value: float


def _rows(segment: Segment, printed: Printed, rule: Rule) -> list[_Row]:
    """Lines with a figure as they stand; or one per iteration with the median over ranks."""
    if not rule.every_rank:
        return [
            _Row(step, step.printed)
            for step in segment.lines
            if step.printed is not None and _rate(step.printed, printed)
        ]
    figures: dict[int, list[float]] = {}
    for step in segment.everyone:
        if step.printed is not None and _rate(step.printed, printed):
            figures.setdefault(step.iteration, []).append(step.printed)
    return [
        _Row(step, median(figures[step.iteration]))
        for step in segment.steps
        if step.iteration in figures
    ]


def _printed(
    rule: Rule, reading: Reading, value: float, steps: Sequence[Step], window: _Window
) -> Figure:
    scope = Scope.PROCESS if rule.per_node else reading.printed.scope
    return Figure(
        rule=rule,
        value=value,
        unit=_rate_unit(reading.printed),
        printed=replace(reading.printed, scope=scope),
        end_line=max((step.line for step in steps), default=0),
        steps=tuple(steps),
        lacking=window.lacking,
    )


def _total(rule: Rule, reading: Reading, segment: Segment) -> Figure:
    """The last of the totals; one over all devices, in samples, before any other. Of one that
    divides what was planned, the part that was done."""
    if not segment.totals:
        raise NoFigure("the program prints no total", expected=not rule.total)
    named = [total for total in segment.totals if rule.total in ("", total.name)]
    if not named:
        names = ", ".join(dict.fromkeys(total.name for total in segment.totals))
        raise NoFigure(f"there is no total {rule.total!r}, but {names}")
    tests: list[Callable[[Scope, Unit], bool]] = [
        lambda scope, unit: scope is Scope.ALL and unit is Unit.SAMPLES_PER_S,
        lambda scope, unit: unit is Unit.SAMPLES_PER_S,
        lambda scope, unit: scope is Scope.ALL,
    ]
    best = named[-1]
    for test in tests:
        fitting = [total for total in named if test(total.scope, total.unit)]
        if fitting:
            best = fitting[-1]
            break
    part, told = _part_done(reading, best)
    own = best.name if best.unit is Unit.OWN else ""
    printed = Printed(best.unit, best.scope, scale=part, name=own)
    value = _rate(best.value, printed)
    if value is None:
        raise NoFigure(f"line {best.line}: {best.name} {best.value!r} is no speed")
    if own and len({t.value for t in named if t.name == own}) > 1:
        told.append(f"there are several figures in {own}: that of line {best.line} is the last")
    others = {t.name for t in named} - {best.name}
    if others and not rule.total:
        told.append(f"the total is {best.name}; there is also {', '.join(sorted(others)[:5])}")
    return Figure(
        rule=rule,
        value=value,
        unit=_rate_unit(printed),
        printed=printed,
        end_line=best.line,
        steps=segment.steps,
        last=segment.steps[-1].iteration if segment.steps else None,
        first=segment.after if segment.steps else None,
        warnings=tuple(told),
    )


def _part_done(reading: Reading, total: Total) -> tuple[float, list[str]]:
    """The factor to a total from the part of what it divides that was done, and what to say of it.
    NoFigure if the total is known to be wrong, and by which factor is not."""
    share = share_done(reading, total)
    if share is None or share.value == 1:
        return 1.0, []
    divides = f"{total.name} (line {total.line}) divides the samples that were planned"
    if share.wrong:
        raise NoFigure(f"{divides}; {share.doubt}")
    if share.value is None:
        return 1.0, [f"{divides}; {share.doubt}: after early stopping or resuming it is wrong"]
    return share.value, [f"{divides}; {share.why}: {share.value:.4g} of the printed figure counts"]


# --- the clock

_MARCH_1 = 59  # day of a year of 365 days that a leap year's 29 February falls on too


class ClockError(ValueError):
    """The clock went backward; ``position`` is the stamp that is earlier than the one before."""

    def __init__(self, position: int, by_s: float) -> None:
        self.position = position
        self.by_s = by_s
        super().__init__(f"the clock goes backward by {by_s:.6g} s")


def elapsed(stamps: Sequence[float], kind: Stamps) -> list[float]:
    """Seconds since the first of ``stamps``, in the order of the iterations.

    Stamps without a date that are earlier by more than 12 h have passed midnight; those without a
    year that are earlier by more than half a year, New Year. ClockError for any other step back.
    """
    seconds = [0.0] if stamps else []
    for i, (before, now) in enumerate(zip(stamps, stamps[1:]), 1):
        passed = now - before
        if passed < 0:
            passed += _wrap(passed, now, kind)
        if passed < 0:
            raise ClockError(i, -passed)
        seconds.append(seconds[-1] + passed)
    return seconds


def _wrap(passed: float, now: float, kind: Stamps) -> float:
    if kind is Stamps.TIME_ONLY and passed < -DAY_S / 2:
        return DAY_S
    if kind is Stamps.NO_YEAR:
        if passed < -YEAR_S / 2:
            return YEAR_S
        if passed < -DAY_S / 2 and now // DAY_S == _MARCH_1:
            return DAY_S
    return 0.0
