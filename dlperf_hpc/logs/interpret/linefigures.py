"""The figure of a window's lines: by their clock, or by the figures that they print."""

from __future__ import annotations

import functools
import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from operator import and_, truediv
from statistics import fmean, median

from dlperf_hpc.logs.interpret.intervals import less_pauses, of_long_intervals, without_long
from dlperf_hpc.logs.interpret.rules import Basis, By, Mean, WindowRule
from dlperf_hpc.logs.interpret.segments import (
    DAY_S,
    SPAN,
    YEAR_S,
    NoFigure,
    Segment,
    WindowFigure,
    WindowRows,
    window_of_iterations,
    window_of_lines,
)
from dlperf_hpc.logs.scanned import (
    Averaging,
    LogSteps,
    Numbers,
    Printed,
    Reading,
    Scope,
    Stamps,
    Unit,
    are_finite,
    bounds,
    differences,
    is_rising,
    never_falls,
    sums,
)

_WITHOUT_BETWEEN = "epoch_bars"  # whose clock leaves out what lies between two epochs
_COARSE = 0.02  # error of a difference of whole seconds from which on a warning is given
_FINE = 0.005  # and from which on the arrival of lines is the better clock
_TOO_COARSE = 0.05  # and from which on there is no figure
_AT_ONCE_S, _MOST_AT_ONCE = 1e-3, 0.1  # lines nearer to each other, and how many may be
_BURST, _MOST_IN_BURSTS = 0.25, 0.4  # the same as a share of the mean time of an iteration
_MARCH_1 = 59  # day of a year of 365 days that a leap year's 29 February falls on too
_TIMES = {Unit.MS_PER_ITERATION: 1e-3, Unit.S_PER_ITERATION: 1.0}


def by_clock(rule: WindowRule, reading: Reading, segment: Segment) -> WindowFigure:
    """The figure by the lines' own stamps or, by a rule of that basis, by when the lines came."""
    arrival = rule.basis is Basis.ARRIVAL
    name, kind, what = "stamp", reading.stamps, "have no time stamps"
    if arrival:
        name, kind, what = "arrival", Stamps.ABSOLUTE, "are of no program that we supervised"
    steps = _stamped(segment.steps, name)
    if kind is Stamps.NONE or not steps:
        raise NoFigure(f"the lines {what}", expected=True)
    steps, window = _in_window(rule, steps, segment)
    numbers, stamps = steps.numbers("iteration"), steps.numbers(name)
    try:
        seconds = duration(stamps, kind)
    except ClockError as error:
        raise NoFigure(f"line {steps[error.position].line}: {error}") from None
    spent = differences(elapsed(stamps, kind))
    net, iterations = less_pauses(segment.pauses, numbers, spent), numbers[-1] - numbers[0]
    if net.warning:
        iterations, seconds = sum(net.apart), math.fsum(net.spent)
    if not seconds > 0:
        lines = f"lines {steps[0].line} and {steps[-1].line}"
        same = "came at once: the output was buffered" if arrival else "have the same time stamp"
        whole = rule.fine and stamps[0] == int(stamps[0])
        raise NoFigure(f"{lines} {same}", expected=whole)
    if arrival:
        _refuse_buffered(elapsed(stamps, kind), _times(stamps, kind, numbers))
    coarse = _coarse(stamps, seconds, pieces=1 + net.counts.count(False))
    if rule.fine and _coarse(stamps, seconds, _FINE):
        raise NoFigure(f"the stamps are whole seconds, the window {seconds:.0f} s", expected=True)
    if coarse and 1 / seconds > _TOO_COARSE:
        enough = math.ceil(iterations / seconds / _TOO_COARSE)
        raise NoFigure(f"{coarse}, and a window of {enough} iterations or more is needed")
    left_out = reading.format == _WITHOUT_BETWEEN and not arrival
    between = "" if left_out else _between_epochs(reading, steps)
    uneven = of_long_intervals(net, 1.0 if _are_whole(stamps) else 0.0)
    return WindowFigure(
        rule=rule,
        value=iterations / seconds,
        unit=Unit.ITERATIONS_PER_S,
        printed=Printed(Unit.ITERATIONS_PER_S),
        end_line=steps.last_line(),
        first=numbers[0],
        last=numbers[-1],
        steps=steps[1:],
        elapsed_s=seconds,
        times=functools.partial(_times, stamps, kind, numbers),
        lacking=window.lacking,
        warnings=tuple(filter(None, (window.warning, coarse, net.warning, between, uneven))),
    )


def _in_window(rule: WindowRule, steps: LogSteps, segment: Segment) -> tuple[LogSteps, WindowRows]:
    numbers, skipped = steps.numbers("iteration"), 0
    if rule.by is By.LINES:
        skipped = bisect_right(numbers, rule.skip)
        window = window_of_lines(rule, len(numbers) - skipped)
    else:
        window = window_of_iterations(rule, numbers, segment)
    return steps[skipped + window.first : skipped + window.last + 1], window


def _between_epochs(reading: Reading, steps: LogSteps) -> str:
    """A warning if an epoch begins behind the first of the window's lines."""
    lines, first = range(steps[0].line + 1, steps[-1].line + 1), steps[0].iteration
    if not any(epoch.line in lines and epoch.after >= first for epoch in reading.epochs):
        return ""
    return (
        "several epochs are in the window: what the program does between two of them "
        "(evaluation, checkpoints) is in its time"
    )


def _stamped(steps: LogSteps, name: str) -> LogSteps:
    stamps = steps.column(name)
    if stamps is None:
        return LogSteps()
    return steps if are_finite(stamps) else steps.where(list(map(math.isfinite, stamps)))


def _times(stamps: Numbers, kind: Stamps, numbers: Numbers) -> tuple[float, ...]:
    return tuple(map(truediv, differences(elapsed(stamps, kind)), differences(numbers)))


def _refuse_buffered(seconds: array[float], times: Sequence[float]) -> None:
    """NoFigure for lines of which many came at once, or in bursts: their moments are those of a
    buffer. ``times`` are the seconds per iteration between each two lines."""
    at_once = sum(passed < _AT_ONCE_S for passed in differences(seconds))
    burst = _BURST * fmean(times)
    in_bursts = sum(each < burst for each in times)
    many = f" of the window's {len(seconds)} lines came "
    if at_once > _MOST_AT_ONCE * len(times):
        many = f"{at_once}{many}within 1 ms of the one before"
    elif in_bursts > max(2, _MOST_IN_BURSTS * len(times)):
        many = f"{in_bursts}{many}in bursts, more than 4 times as fast as the mean"
    else:
        return
    raise NoFigure(
        f"{many}: the output was buffered, or several processes print, and when the lines came"
        " says nothing"
    )


def _coarse(stamps: Sequence[float], seconds: float, most: float = _COARSE, pieces: int = 1) -> str:
    """What to say of a window of ``seconds`` between stamps that are whole seconds; '' if it is
    long enough for these: they are off by ``most`` of it or less."""
    if pieces / seconds <= most or not _are_whole(stamps):
        return ""
    return (
        f"the stamps are whole seconds and the window is {seconds:.0f} s: the speed may be "
        f"off by {100 * pieces / seconds:.0f} %"
    )


def _are_whole(stamps: Sequence[float]) -> bool:
    return all(stamp == int(stamp) for stamp in stamps)


class ClockError(ValueError):
    """The clock went backward; ``position`` is the stamp that is earlier than the one before."""

    def __init__(self, position: int, by_s: float) -> None:
        self.position = position
        self.by_s = by_s
        super().__init__(f"the clock goes backward by {by_s:.6g} s")


def duration(stamps: Numbers, kind: Stamps) -> float:
    """Seconds between the first and the last of ``stamps``, as :func:`elapsed` counts them."""
    if never_falls(stamps):
        return float(stamps[-1] - stamps[0])
    return elapsed(stamps, kind)[-1]


def elapsed(stamps: Sequence[float], kind: Stamps) -> array[float]:
    """Seconds since the first of ``stamps``, in the order of the iterations.

    Stamps without a date that are earlier by more than 12 h have passed midnight; those without a
    year that are earlier by more than half a year, New Year. ClockError for any other step back.
    """
    passed = differences(array("d", stamps[:]))
    for i, each in enumerate(passed):
        if each < 0:
            passed[i] = each + _wrap(each, stamps[i + 1], kind)
            if passed[i] < 0:
                raise ClockError(i + 1, -passed[i])
    return sums(passed) if stamps else passed


def _wrap(passed: float, now: float, kind: Stamps) -> float:
    leap_day = now // DAY_S == _MARCH_1 and passed < -DAY_S / 2
    if kind is Stamps.NO_YEAR and passed < -YEAR_S / 2:
        return YEAR_S
    if (kind is Stamps.TIME_ONLY and passed < -DAY_S / 2) or (kind is Stamps.NO_YEAR and leap_day):
        return DAY_S
    return 0.0


# --- printed figures: rates since the line before, running averages, or means of figures


def by_printed(rule: WindowRule, reading: Reading, segment: Segment) -> WindowFigure:
    """The figure of the lines' own, taken together as the rule says."""
    if rule.by is By.LINES or rule.mean is Mean.FIGURES:
        return _of_lines(rule, reading, segment)
    if reading.printed.averaging is Averaging.RUNNING:
        return _running(rule, reading, segment)
    return _since_last(rule, reading, segment)


def rate(value: float | None, printed: Printed) -> float | None:
    """A printed figure as a rate; of a time per iteration, iterations/s. None if it is none."""
    if value is None or not (math.isfinite(value) and value > 0):
        return None
    scaled = value * printed.scale * _TIMES.get(printed.unit, 1.0)
    if scaled > 0 and printed.unit in _TIMES:
        scaled = 1 / scaled
    return scaled if math.isfinite(scaled) and scaled > 0 else None


def rate_unit(printed: Printed) -> Unit:
    """The unit of a figure's :func:`rate`."""
    return Unit.ITERATIONS_PER_S if printed.unit in _TIMES else printed.unit


def _rated(steps: LogSteps, printed: Printed) -> LogSteps:
    figures = steps.column("printed")
    if figures is not None and not (
        are_finite(figures) and None not in [rate(end, printed) for end in bounds(figures)]
    ):  # or else what lies between two rates is one
        steps = steps.where([rate(value, printed) is not None for value in figures])
    if figures is None or not steps:
        raise NoFigure("the lines print no speed", expected=True)
    return steps


def _since_last(rule: WindowRule, reading: Reading, segment: Segment) -> WindowFigure:
    """Samples over time: each line's rate is taken for the iterations since the line before."""
    rated = _rated(segment.steps, reading.printed)
    numbers = segment.steps.numbers("iteration")
    offset = 1 if segment.after < numbers[0] else 0  # the first line has iterations of its own
    ends = array("q", [segment.after]) + numbers if offset else numbers
    window = window_of_iterations(rule, ends, segment)
    steps = segment.steps[window.first + 1 - offset : window.last + 1 - offset]
    apart = differences(ends[window.first : window.last + 1])
    figures = steps.numbers("printed")
    # How much of a pause is in a figure is not known.
    own = [pause._replace(seconds=None) for pause in segment.pauses if pause.printed]
    net = less_pauses(own, ends[window.first : window.last + 1], [math.inf] * len(apart))
    if len(rated) < len(segment.steps) or not all(net.counts):
        there = [rate(value, reading.printed) is not None for value in figures]
        there = list(map(and_, there, net.counts))
        apart, figures = array("q", compress(apart, there)), array("d", compress(figures, there))
    rates, long = _rates(figures, reading.printed), ""
    if reading.printed.averaging is Averaging.LAST_ONE:
        apart, rates, long = without_long(apart, rates)
    # sum() of floats rounds otherwise from Python 3.12 on
    covered, seconds = float(sum(apart)), sums(array("d", map(truediv, apart, rates)))[-1]
    found = _timed(rule, reading, window, ends, (covered, seconds), steps)
    warnings = (*found.warnings, *filter(None, [net.warning, long]))
    return replace(found, times=lambda: [1 / each for each in rates], warnings=warnings)


def _timed(
    rule: WindowRule,
    reading: Reading,
    window: WindowRows,
    ends: Sequence[int],
    taken: tuple[float, float],
    steps: LogSteps,
) -> WindowFigure:
    """The figure of a window between two of ``ends``, of which ``taken`` are the iterations with a
    speed and their seconds. NoFigure if they are too few."""
    (covered, seconds), span = taken, ends[window.last] - ends[window.first]
    if covered < SPAN * span or not seconds > 0:
        what = f"lines of {covered:.0f} of the window's {span} iterations print a speed"
        raise NoFigure(what, short=bool(window.lacking))
    warnings = [window.warning] if window.warning else []
    if covered < span:
        warnings.append(f"{span - covered:.0f} iterations of the window have no printed speed")
    if reading.printed.averaging is Averaging.LAST_ONE and span > len(steps):
        warnings.append(f"the printed speeds are of {len(steps)} single iterations of {span}")
    return replace(
        _figure(rule, reading, covered / seconds, steps, window.lacking),
        first=ends[window.first],
        last=ends[window.last],
        warnings=tuple(warnings),
    )


def _rates(figures: Sequence[float], printed: Printed) -> Sequence[float]:
    per_s, scale = _TIMES.get(printed.unit), printed.scale
    if per_s is None:
        return figures if scale == 1 else [value * scale for value in figures]
    return [1 / (value * scale * per_s) for value in figures]


@dataclass
class _Points:
    """Lines with a running average, and before those of each epoch (at the places ``begins``) the
    beginning of what it is taken over: at each point the iterations that are done, the seconds for
    one sample each since the beginning, t(n) = (n - origin) / rate(n), and the row of its line."""

    ends: array[int] = field(default_factory=lambda: array("q"))
    seconds: array[float] = field(default_factory=lambda: array("d"))
    rows: array[int] = field(default_factory=lambda: array("q"))
    begins: list[int] = field(default_factory=list)

    def begin(self, origin: int) -> None:
        """A point at which averages begin after ``origin``, unless those before it do so too."""
        if self.begins and self.ends[self.begins[-1]] == origin:
            return
        self.begins.append(len(self.ends))
        self.ends.append(origin)
        self.seconds.append(0.0)
        self.rows.append(-1)

    def within_epochs(self, first: int, last: int) -> tuple[int, float]:
        """Iterations and seconds between the first and the last point of each epoch, of those from
        ``first`` to ``last``."""
        iterations, seconds = 0, 0.0
        for begin, end in zip(self.begins, [*self.begins[1:], len(self.ends)]):
            low, high = max(begin, first), min(end - 1, last)
            if low <= high:
                iterations += self.ends[high] - self.ends[low]
                seconds += self.seconds[high] - self.seconds[low]
        return iterations, seconds


def _points(reading: Reading, steps: LogSteps) -> _Points:
    """The points of running averages, whose origin is that of each epoch."""
    numbers, points = steps.numbers("iteration"), _Points()
    rates = _rates(steps.numbers("printed"), reading.printed)
    for origin, begin, end in _by_epoch(reading, steps):
        begin = bisect_right(numbers, origin, begin, end)
        if begin < end:
            points.begin(origin)
            points.ends.extend(numbers[begin:end])
            samples = (number - origin for number in numbers[begin:end])
            points.seconds.extend(map(truediv, samples, rates[begin:end]))
            points.rows.extend(range(begin, end))
    return points


def _by_epoch(reading: Reading, steps: LogSteps) -> Iterator[tuple[int, int, int]]:
    """The iteration after which each epoch's averages begin, and which of ``steps`` are its own:
    from one up to another."""
    starts = [epoch.line for epoch in reading.epochs]
    origins = [reading.printed.origin + after for after in (0, *(e.after for e in reading.epochs))]
    lines = steps.numbers("line")
    if is_rising(lines):
        cuts = [0, *(bisect_left(lines, line) for line in starts), len(lines)]
        yield from zip(origins, cuts, cuts[1:])
        return
    for at, line in enumerate(lines):
        yield origins[bisect_right(starts, line)], at, at + 1


def _running(rule: WindowRule, reading: Reading, segment: Segment) -> WindowFigure:
    """The rate between running averages, within each epoch if they begin anew with it."""
    rated = _rated(segment.steps, reading.printed)
    if not rule.nearest:  # up to the first line behind the window
        rated = rated[: bisect_right(rated.numbers("iteration"), rule.last or 0) + 1]
    points = _points(reading, rated)
    ends = points.ends
    if not ends:
        raise NoFigure("the lines print no speed", expected=True)
    resumed = segment.after > ends[0] + (ends[1] - segment.after)
    printed = rated.numbers("iteration") if resumed else ends
    window = window_of_iterations(rule, printed, segment)
    if resumed:
        raise NoFigure(
            f"the run goes on after iteration {segment.after}, so that it is not known at which "
            "iteration its printed averages begin",
            short=bool(window.lacking),
        )
    covered, seconds = points.within_epochs(window.first, window.last)
    if not seconds > 0:
        raise NoFigure("the printed running averages leave no time for the window")
    rows = set(points.rows[window.first + 1 : window.last + 1])
    steps = rated.where([row in rows for row in range(len(rated))])
    warning, inside = "", range(ends[window.first], ends[window.last])
    within = [each for each in segment.pauses if each.printed and each.after in inside]
    in_seconds = rate_unit(reading.printed) is Unit.ITERATIONS_PER_S and len(points.begins) == 1
    span = slice(window.first, window.last + 1)
    if in_seconds and within and None not in [each.seconds for each in within]:
        net = less_pauses(within, ends[span], differences(points.seconds[span]))
        seconds, warning = math.fsum(net.spent), net.warning
    elif within:
        warning = f"the time of the printed means holds the time of {within[0].what}s too"
    found = _timed(rule, reading, window, ends, (covered, seconds), steps)
    if rule.short and len(points.begins) == 1:
        each = map(truediv, differences(points.seconds[span]), differences(ends[span]))
        found = replace(found, times=functools.partial(tuple, tuple(each)))
    return replace(found, warnings=(*found.warnings, *filter(None, [warning])))


def _of_lines(rule: WindowRule, reading: Reading, segment: Segment) -> WindowFigure:
    rows = _rows(segment, reading.printed, rule)
    window_of = _rows_by_line if rule.by is By.LINES else _rows_by_iteration
    rows, lacking = window_of(rule, rows, segment)
    if not rows:
        span = f"{rule.first or ''}:{rule.last or ''}"
        raise NoFigure(lacking or f"no {rule.by.value} within [{span}]", short=bool(lacking))
    warning = "the lines print running averages: their mean is a mean of means, of no window"
    running = reading.printed.averaging is Averaging.RUNNING
    every, numbers = segment.steps.numbers("iteration"), rows.numbers("iteration")
    before = bisect_left(every, numbers[0])
    return replace(
        _figure(rule, reading, _mean_rate(rule, rows, reading.printed), rows, lacking),
        first=every[before - 1] if before else segment.after,
        last=max(numbers),
        warnings=(warning,) if running else (),
    )


def _rows_by_line(rule: WindowRule, rows: LogSteps, _: Segment) -> tuple[LogSteps, str]:
    """The rows of a window that counts lines, and why it is not complete, or ''."""
    rows = rows.where([number > rule.skip for number in rows.numbers("iteration")])
    need = rule.need or rule.last or 1 + (rule.first or 0)
    lacking = ""
    if len(rows) < need:
        lacking = f"{len(rows)} lines count, the window needs {need}"
    return rows[rule.first : rule.last], lacking


def _rows_by_iteration(rule: WindowRule, rows: LogSteps, segment: Segment) -> tuple[LogSteps, str]:
    """The rows of a window that counts iterations, and why it is not complete, or ''."""
    numbers = rows.numbers("iteration")
    low, ends = rule.first or 0, numbers[-1]
    high = ends if rule.last is None else rule.last
    rows = rows.where([low < number <= high for number in numbers])
    if ends < high:
        return rows, f"the log ends at iteration {ends}, the window at {high}"
    if rows and segment.after > low + (1 - SPAN) * (high - low):
        return rows, f"the log begins after iteration {segment.after}, the window at {low}"
    return rows, ""


def _mean_rate(rule: WindowRule, rows: LogSteps, printed: Printed) -> float:
    """The mean of figures as a rate, or of their rates; NaN if it is none."""
    figures = rows.numbers("printed")
    if rule.mean is Mean.RATES:
        return _mean([rate(each, printed) or math.nan for each in figures]) or math.nan
    return rate(_mean(figures), printed) or math.nan


def _rows(segment: Segment, printed: Printed, rule: WindowRule) -> LogSteps:
    """Lines with a figure as they stand; or one per iteration with the median over ranks. NoFigure
    if there are none."""
    if not rule.every_rank:
        return _rated(segment.lines, printed)
    figures: dict[int, list[float]] = {}
    rated = _rated(segment.everyone, printed)
    for number, figure in zip(rated.numbers("iteration"), rated.numbers("printed")):
        figures.setdefault(number, []).append(figure)
    return _rated(
        LogSteps(
            step._replace(printed=median(figures[step.iteration]))
            for step in segment.steps
            if step.iteration in figures
        ),
        printed,
    )


def _mean(values: Sequence[float]) -> float:
    try:
        return fmean(values)
    except OverflowError:
        return math.inf


def _figure(
    rule: WindowRule, reading: Reading, value: float, steps: LogSteps, lacking: str
) -> WindowFigure:
    scope = Scope.PROCESS if rule.per_node else reading.printed.scope
    return WindowFigure(
        rule=rule,
        value=value,
        unit=rate_unit(reading.printed),
        printed=replace(reading.printed, scope=scope),
        end_line=steps.last_line(),
        steps=steps,
        lacking=lacking,
    )
