"""Where a rule's window lies among the iterations that a log prints, and the figure of one."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dlperf_hpc.logs.interpret.rules import Rule
from dlperf_hpc.logs.interpret.segments import Segment
from dlperf_hpc.logs.scanned import Printed, Steps, Unit

SPAN = 0.5
"""The least share of the window asked for that printed lines must span."""

_NEARLY = 0.9  # of the window: a warning is given of less


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
    these. ``times`` gives seconds per iteration, one per line, none if they are not known.
    ``lacking`` is why the window is not complete, '' if it is. ``batch`` is how many samples an
    iteration of the window has, over all devices, where its lines state that themselves; a mean, if
    it changes.
    """

    rule: Rule
    value: float
    unit: Unit
    printed: Printed
    end_line: int
    first: int | None = None
    last: int | None = None
    steps: Steps = field(default_factory=Steps)
    elapsed_s: float | None = None
    times: Callable[[], Sequence[float]] = tuple
    lacking: str = ""
    warnings: tuple[str, ...] = ()
    batch: float | None = None


def losses_of(found: Figure) -> tuple[float | None, float | None, list[str]]:
    """The first and the last loss of a window, and a warning if the last line lacks its own."""
    losses = found.steps.numbers("loss")
    places = [place for place, loss in enumerate(losses) if loss == loss]
    if not places:
        return None, None, []
    last, warnings = found.steps[-1], []
    if _lacks_one(places, len(losses)):
        warnings = [f"iteration {last.iteration} has no finite loss, though earlier ones have"]
    return losses[places[0]], last.loss, warnings


def _lacks_one(places: Sequence[int], count: int) -> bool:
    """Whether the last of ``count`` lines has no loss where, as those at the other ``places`` have
    theirs, it would be."""
    apart = max((b - a for a, b in zip(places, places[1:])), default=places[0] + 1)
    return count - places[-1] > 2 * apart - 1


class Window(NamedTuple):
    """Positions in a list of iterations; why the window is not complete, and a warning, or ''."""

    first: int
    last: int
    lacking: str = ""
    warning: str = ""


def window_of_iterations(rule: Rule, numbers: Sequence[int], segment: Segment) -> Window:
    """Where the window begins and ends among the rising ``numbers`` that are printed."""
    first, last = rule.first or 0, rule.last or 0
    begin, end = bisect_left(numbers, first), bisect_right(numbers, last) - 1
    if not numbers or numbers[-1] < last:
        reached = f"the log ends at iteration {numbers[-1]}" if numbers else "the log has no lines"
        lacking = f"{reached}, the window lies between {first} and {last}"
        if end - begin < 1:
            raise NoFigure(lacking, short=True)
        return Window(begin, end, lacking)
    span = numbers[end] - numbers[begin] if end > begin else 0
    if span >= SPAN * (last - first):
        used = f"{numbers[begin]} to {numbers[end]}"
        missing = f"iterations {first} and {last} are not both printed: {used} are used"
        return Window(begin, end, "", missing if span < _NEARLY * (last - first) else "")
    what = f"no two lines between iterations {first} and {last} span half of them"
    if not rule.nearest:
        raise NoFigure(what)
    begin = bisect_left(numbers, max(first, segment.after + first))
    if begin >= len(numbers) - 1:
        raise NoFigure(f"{what}, and the log ends at iteration {numbers[-1]}", short=True)
    end = bisect_left(numbers, numbers[begin] + last - first)
    if end >= len(numbers):
        ends = f"{what}, and after {numbers[begin]} the log ends at iteration {numbers[-1]}"
        return Window(begin, len(numbers) - 1, ends)
    return Window(begin, end, "", f"{what}: {numbers[begin]} to {numbers[end]} are used")


def window_of_lines(rule: Rule, count: int) -> Window:
    """Window of a clock rule that counts lines: both ends are lines."""
    first, last = rule.first or 0, rule.last or 0
    if last < count:
        return Window(first, last)
    lacking = f"{count} lines count, the window ends with the {last + 1}th"
    if count - first < 2:
        raise NoFigure(lacking, short=True)
    return Window(first, count - 1, lacking)
