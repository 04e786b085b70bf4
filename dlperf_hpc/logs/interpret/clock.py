"""A figure by the clock: iterations between two time stamps over the seconds between these."""

from __future__ import annotations

import functools
import math
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from operator import truediv

from dlperf_hpc.logs.columns import Numbers, are_finite, differences, never_falls, sums
from dlperf_hpc.logs.interpret.rules import Basis, By, Rule
from dlperf_hpc.logs.interpret.segments import DAY_S, YEAR_S, Segment
from dlperf_hpc.logs.interpret.window import (
    Figure,
    NoFigure,
    Window,
    window_of_iterations,
    window_of_lines,
)
from dlperf_hpc.logs.scanned import Printed, Reading, Stamps, Steps, Unit

_COARSE = 0.02  # error of a difference of whole seconds from which on a warning is given
_AT_ONCE_S, _MOST_AT_ONCE = 1e-3, 0.1  # lines nearer to each other, and how many may be
_TOO_COARSE = 0.05  # and, of seconds since a program began, from which on there is no figure
_MARCH_1 = 59  # day of a year of 365 days that a leap year's 29 February falls on too


def by_clock(rule: Rule, reading: Reading, segment: Segment) -> Figure:
    """The figure by the lines' own stamps or, by a rule of that basis, by when the lines came."""
    arrival = rule.basis is Basis.ARRIVAL
    kind = Stamps.ABSOLUTE if arrival else reading.stamps
    name = "arrival" if arrival else "stamp"
    steps = _stamped(segment.steps, name)
    if kind is Stamps.NONE or not steps:
        what = "are of no program that we supervised" if arrival else "have no time stamps"
        raise NoFigure(f"the lines {what}", expected=True)
    steps, window = _in_window(rule, steps, segment)
    numbers, stamps = steps.numbers("iteration"), steps.numbers(name)
    try:
        seconds = duration(stamps, kind)
    except ClockError as error:
        raise NoFigure(f"line {steps[error.position].line}: {error}") from None
    iterations = numbers[-1] - numbers[0]
    if not seconds > 0:
        lines = f"lines {steps[0].line} and {steps[-1].line}"
        raise NoFigure(f"{lines} have the same time stamp")
    if arrival:
        _refuse_buffered(elapsed(stamps, kind))
    warnings = [window.warning] if window.warning else []
    coarse = _coarse(stamps, seconds)
    if coarse and reading.stamps is Stamps.ELAPSED and 1 / seconds > _TOO_COARSE:
        enough = math.ceil(iterations / seconds / _TOO_COARSE)
        raise NoFigure(f"{coarse}, and a window of {enough} iterations or more is needed")
    warnings += [coarse] if coarse else []
    warnings += _between_epochs(reading, steps)
    return Figure(
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
        warnings=tuple(warnings),
    )


def _in_window(rule: Rule, steps: Steps, segment: Segment) -> tuple[Steps, Window]:
    """The steps of the window, and the window."""
    numbers, skipped = steps.numbers("iteration"), 0
    if rule.by is By.LINES:
        skipped = bisect_right(numbers, rule.skip)
        window = window_of_lines(rule, len(numbers) - skipped)
    else:
        window = window_of_iterations(rule, numbers, segment)
    return steps[skipped + window.first : skipped + window.last + 1], window


def _between_epochs(reading: Reading, steps: Steps) -> list[str]:
    """A warning if an epoch begins behind the first of the window's lines."""
    lines, first = range(steps[0].line + 1, steps[-1].line + 1), steps[0].iteration
    if not any(epoch.line in lines and epoch.after >= first for epoch in reading.epochs):
        return []
    return [
        "several epochs are in the window: what the program does between two of them "
        "(evaluation, checkpoints) is in its time"
    ]


def _stamped(steps: Steps, name: str) -> Steps:
    """The steps whose stamps of this name are numbers."""
    stamps = steps.column(name)
    if stamps is None:
        return Steps()
    return steps if are_finite(stamps) else steps.where(list(map(math.isfinite, stamps)))


def _times(stamps: Numbers, kind: Stamps, numbers: Numbers) -> tuple[float, ...]:
    """Seconds per iteration between each two lines."""
    return tuple(map(truediv, differences(elapsed(stamps, kind)), differences(numbers)))


def _refuse_buffered(seconds: array[float]) -> None:
    """NoFigure for lines of which many came at once: their moments are those of a buffer."""
    at_once = sum(passed < _AT_ONCE_S for passed in differences(seconds))
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
    column = array("d", stamps[:])
    passed = differences(column)
    if not never_falls(column):
        for i, each in enumerate(passed):
            if each < 0:
                passed[i] = each + _wrap(each, stamps[i + 1], kind)
                if passed[i] < 0:
                    raise ClockError(i + 1, -passed[i])
    return sums(passed) if stamps else passed


def _wrap(passed: float, now: float, kind: Stamps) -> float:
    if kind is Stamps.TIME_ONLY and passed < -DAY_S / 2:
        return DAY_S
    if kind is Stamps.NO_YEAR:
        if passed < -YEAR_S / 2:
            return YEAR_S
        if passed < -DAY_S / 2 and now // DAY_S == _MARCH_1:
            return DAY_S
    return 0.0
