"""The runs of a program in one log: of each one rank, in order, every iteration once.

A log may hold lines of many ranks, with or without a label; an iteration twice, where a step was
skipped; and several runs, where a job was requeued. Only the iteration numbers tell these apart:
ranks run side by side, so that the numbers step back by little and often; a run that starts again
steps back once.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median_low
from typing import NamedTuple, TypeVar

from dlperf_hpc.logs.interpret.rules import WindowRule
from dlperf_hpc.logs.scanned import (
    GAPS,
    LogStep,
    LogSteps,
    Note,
    Pause,
    Printed,
    Reading,
    ScannedFile,
    Stamps,
    Total,
    Unit,
    is_rising,
)

DAY_S = 86400.0
YEAR_S = 365 * DAY_S
APART = 8
"""Ranks side by side are at most so many lines apart; one that steps back further has restarted."""

MOST = 100
"""Runs that are separated in one file; the lines of a file with more are out of order."""

SPAN = 0.5
"""The least share of a window that printed lines must span."""

UNSURE = "?"
"""What the digest of a window begins with that other runs may have as well."""

FEWEST = 4  # intervals between lines of a window in a log that has no whole one
_NEARLY = 0.9  # of the window: a warning is given of less
_SAME_RUN_S = {Stamps.TIME_ONLY: 60.0, Stamps.NO_YEAR: YEAR_S / 2, Stamps.ELAPSED: 0.0}
"""Seconds: an earlier stamp by more may be of another day, the year after, or a later run."""

_NO_RANK = GAPS[LogStep._fields.index("rank")][1]

_T = TypeVar("_T", LogStep, Total, Pause)


def parts_of(file: ScannedFile) -> list[ScannedFile]:
    """The file, cut where the lines of one program end before another's begin, as if each had a
    file of its own. Formats whose lines stand among each other's are of one program, and so is a
    bar, or a format without steps."""
    spans: list[tuple[int, int]] = []
    for first, last in sorted(map(_span, filter(_is_program, file.readings))):
        if spans and first <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(last, spans[-1][1]))
        else:
            spans.append((first, last))
    if len(spans) < 2:
        return [file]
    return [_part(file, spans, at) for at in range(len(spans))]


def _is_program(reading: Reading) -> bool:
    return len(reading.steps) > 1 and reading.stamps is not Stamps.ELAPSED


def _span(reading: Reading) -> tuple[int, int]:
    lines = reading.steps.numbers("line")
    totals = [total.line for total in reading.totals]
    return min([*lines[:1], *totals], default=0), max([reading.steps.last_line(), *totals])


def _part(file: ScannedFile, spans: Sequence[tuple[int, int]], at: int) -> ScannedFile:
    """The lines of one program in a file of several. Its settings stand behind the program before
    it, and what it broke of before the next one."""
    begin, until = (spans[at][0] if at else 1), file.end_line
    since, end = (spans[at - 1][1] if at else 0), until
    if at + 1 < len(spans):
        until, end = spans[at][1], spans[at + 1][0] - 1
    own = [reading for reading in file.readings if begin <= _span(reading)[0] <= end]
    why = f"lines {since + 1} to {until} are of one of {len(spans)} programs in this file"
    return replace(
        file,
        end_line=end,
        cut=file.cut and end == file.end_line,
        readings=tuple(own),
        facts=tuple(fact for fact in file.facts if since < fact.line <= until),
        troubles=tuple(trouble for trouble in file.troubles if begin <= trouble.line <= end),
        notes=(*(note for note in file.notes if since < note.line <= until), Note(0, why, True)),
    )


@dataclass(frozen=True)
class Segment:
    """One run of a program in a file, the ``number``-th.

    ``steps`` are one rank's, rising, each iteration once: of repeats the last. ``lines`` are that
    rank's as they stand, and ``everyone`` those of all ranks. ``ranks`` is how many processes
    print: labels seen, or how often each iteration is printed. ``after`` is the number of
    iterations after which the first step's line began to count. The segment holds the file's lines
    after ``since`` up to ``until`` (None: the end).
    """

    number: int = 1
    steps: LogSteps = field(default_factory=LogSteps)
    lines: LogSteps = field(default_factory=LogSteps)
    everyone: LogSteps = field(default_factory=LogSteps)
    totals: tuple[Total, ...] = ()
    pauses: tuple[Pause, ...] = ()
    ranks: int = 1
    after: int = 0
    since: int = 0
    until: int | None = None
    notes: tuple[str, ...] = ()

    def holds(self, line: int) -> bool:
        """Whether a line of the file belongs to this run."""
        return self.since < line and (self.until is None or line <= self.until)


def segments_of(reading: Reading) -> list[Segment]:
    """The runs of a reading, in the order of the file; one without steps if the reading has none.

    The rank with most lines counts for all ranks; of several such the lowest.
    """
    own, ranks = _of_rank_with_most_lines(reading.steps)
    if not own:
        return [Segment(totals=reading.totals, pauses=reading.pauses)]
    cuts = sorted({0, len(own), *(bisect_left(own.numbers("line"), s) for s in reading.starts)})
    if len(cuts) == 2 and is_rising(own.numbers("iteration")):  # as nearly all logs are
        there = reading.totals, reading.pauses
        return [Segment(1, own, own, reading.steps, *there, ranks, _before(own))]
    runs = [own[begin:end] for begin, end in zip(cuts, cuts[1:])]
    pieces = [piece for run in runs for piece in _pieces([*run], reading.stamps)][:MOST]
    starts = [piece.steps[0].line for piece in pieces]
    everyone = _by_run(tuple(reading.steps), starts)
    totals, pauses = _by_run(reading.totals, starts), _by_run(reading.pauses, starts)
    segments = []
    for i, (piece, end) in enumerate(zip(pieces, [*starts[1:], None])):
        once = {step.iteration: step for step in piece.steps}
        steps = LogSteps(once[number] for number in sorted(once))
        tags = {step.rank for step in everyone[i]} - {None}
        segments.append(
            Segment(
                number=i + 1,
                steps=steps,
                lines=steps if piece.copies > 1 else LogSteps(piece.steps),
                everyone=LogSteps(everyone[i]),
                totals=tuple(totals[i]),
                pauses=tuple(pauses[i]),
                ranks=len(tags) if len(tags) > 1 else piece.copies,
                after=_before(steps),
                since=starts[i] - 1 if i else 0,
                until=None if end is None else end - 1,
                notes=_notes(pieces, i, len(piece.steps) - len(steps)),
            )
        )
    return segments


def _of_rank_with_most_lines(steps: LogSteps) -> tuple[LogSteps, int]:
    """The steps of that rank, of several such the lowest, and how many ranks print."""
    ranks = steps.column("rank") or ()
    count = Counter(ranks)
    if len(count) < 2:
        return steps, 1
    most = min(count, key=lambda rank: (-count[rank], rank == _NO_RANK, rank))
    return steps.where([rank == most for rank in ranks]), len(count.keys() - {_NO_RANK})


def _before(steps: LogSteps) -> int:
    """The iterations after which the first step's line began to count: as many before it as lie
    between it and the second."""
    first, *more = steps[:2]
    return max(0, 2 * first.iteration - more[0].iteration) if more else first.iteration


@dataclass
class _Piece:
    """Lines of one run; ``copies`` is how often each iteration is printed, ``strays`` is how many
    lines were out of order."""

    steps: list[LogStep]
    copies: int = 1
    strays: int = 0


def _pieces(steps: Sequence[LogStep], stamps: Stamps) -> list[_Piece]:
    found: list[_Piece] = []
    for piece in _cut(steps, APART, stamps):
        piece.copies = _copies(piece.steps)
        if piece.copies > 1:
            found.append(piece)
            continue
        parts = _cut(piece.steps, 0, stamps)
        parts[0].strays += piece.strays
        found += parts
    if len(found) > MOST:
        found[MOST - 1].strays += sum(len(piece.steps) for piece in found[MOST:])
    return found[:MOST]


def _by_run(items: Sequence[_T], starts: Sequence[int]) -> list[list[_T]]:
    """The items of each run, which begin at the lines ``starts``; the first has those before."""
    runs: list[list[_T]] = [[] for _ in starts]
    for item in items:
        runs[max(0, bisect_right(starts, item.line) - 1)].append(item)
    return runs


def _notes(pieces: Sequence[_Piece], i: int, repeats: int) -> tuple[str, ...]:
    piece, notes = pieces[i], []
    if i:
        notes.append(
            f"run {i + 1} of {len(pieces)} in this file: it begins at line {piece.steps[0].line}, "
            f"where iteration {pieces[i - 1].steps[-1].iteration} is followed by "
            f"{piece.steps[0].iteration}"
        )
    if piece.copies > 1:
        notes.append(
            f"each iteration is printed {piece.copies} times, as by ranks without a label: the "
            "last line of each counts"
        )
    elif repeats:
        notes.append(f"{repeats} lines repeat an iteration (a skipped step?): the last counts")
    if piece.strays:
        notes.append(f"{piece.strays} lines whose iteration is out of order were left out")
    return tuple(notes)


def _cut(steps: Sequence[LogStep], bound: int, stamps: Stamps) -> list[_Piece]:
    """Cut where the iteration goes back by more than ``bound`` lines and goes on from there.

    A single line that does not fit between its neighbours is damage and not a start: it is left
    out and counted as a stray.
    """
    place = {number: i for i, number in enumerate(sorted({step.iteration for step in steps}))}
    pieces = [_Piece([steps[0]])]
    for step, following in zip(steps[1:], [*steps[2:], None]):
        done = pieces[-1].steps
        before = done[-1]
        back = place[before.iteration] - place[step.iteration]
        if back <= bound or _side_by_side(before, step, stamps):
            done.append(step)
            continue
        after = -1 if following is None else following.iteration
        fits = len(done) > 1 and done[-2].iteration < step.iteration
        if fits and after < before.iteration:
            done[-1] = step  # the line before is the stray
        elif after <= before.iteration:
            pieces.append(_Piece([step]))
            continue
        pieces[-1].strays += 1
    return pieces


def _side_by_side(before: LogStep, step: LogStep, stamps: Stamps) -> bool:
    """Whether a line was written earlier than the one before it, and so is another rank's."""
    if before.stamp is None or step.stamp is None:
        return False
    return 0 < before.stamp - step.stamp <= _SAME_RUN_S.get(stamps, math.inf)


def _copies(piece: Sequence[LogStep]) -> int:
    """How often each iteration is printed, if untagged ranks are woven into each other; else 1.

    k runs in a row give each iteration k times too, but go back only k - 1 times.
    """
    copies = median_low(Counter(step.iteration for step in piece).values())
    backs = sum(b.iteration <= a.iteration for a, b in zip(piece, piece[1:]))
    return copies if copies > 1 and backs >= copies else 1


# --- windows in a run


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
class WindowFigure:
    """One figure of one run.

    ``value`` is in ``unit``, which is never a time: a time per iteration becomes iterations/s.
    ``printed`` describes the log's own figure (for the clock, iterations/s). The window lies after
    iteration ``first``, up to ``last``; ``steps`` are its lines, and ``end_line`` is the last of
    these. ``times`` gives seconds per iteration, one per line, none if they are not known.
    ``lacking`` is why the window is not complete, '' if it is. ``batch`` is how many samples an
    iteration of the window has (a mean, if it changes), over all devices, where lines state that.
    """

    rule: WindowRule
    value: float
    unit: Unit
    printed: Printed
    end_line: int
    first: int | None = None
    last: int | None = None
    steps: LogSteps = field(default_factory=LogSteps)
    elapsed_s: float | None = None
    times: Callable[[], Sequence[float]] = tuple
    lacking: str = ""
    warnings: tuple[str, ...] = ()
    batch: float | None = None


def losses_of(found: WindowFigure) -> tuple[float | None, float | None, list[str]]:
    """The first and the last loss of a window; a warning if the last line has none although, by the
    distances between those that are there, it should have one."""
    losses = found.steps.numbers("loss")
    places = [place for place, loss in enumerate(losses) if loss == loss]
    if not places:
        return None, None, []
    last = found.steps[-1]
    apart = max((b - a for a, b in zip(places, places[1:])), default=places[0] + 1)
    if len(losses) - places[-1] <= 2 * apart - 1:
        return losses[places[0]], last.loss, []
    warning = f"iteration {last.iteration} has no finite loss, though earlier ones have"
    return losses[places[0]], last.loss, [warning]


_SAID = ("iteration", "stamp", "printed", "loss", "lr")
_MANY_DIGITS = 20  # in which two runs are never alike


def content_of(found: WindowFigure, reading: Reading) -> str:
    """A digest of what a window's lines say, the same in each copy of them: in a file of one rank
    and in the launcher's. It begins with :data:`UNSURE` where two runs may print the same figures:
    their lines have no dates, and few digits differ (a bar's whole seconds)."""
    steps = found.steps
    said = [steps.numbers(name).tobytes() for name in _SAID]
    digits = sum(len(repr(figure)) for figure in set(steps.values("printed")) - {None})
    sure = digits >= _MANY_DIGITS
    if reading.stamps in (Stamps.ABSOLUTE, Stamps.NO_YEAR) and steps.column("stamp") is not None:
        sure = True
    if not sure:  # the end's figures, which are of the whole run
        spans = [count.value for count in reading.counts if count.name == "seconds"]
        said.append(repr((found.value, [total.value for total in reading.totals], spans)).encode())
        sure = any(span != int(span) for span in spans)
    digest = hashlib.sha256(b"\0".join([reading.format.encode(), *said])).hexdigest()
    return digest if sure else UNSURE + digest


class WindowRows(NamedTuple):
    """Positions in a list of iterations; why the window is not complete, and a warning, or ''."""

    first: int
    last: int
    lacking: str = ""
    warning: str = ""


def window_of_iterations(rule: WindowRule, numbers: Sequence[int], segment: Segment) -> WindowRows:
    """Where the window begins and ends among the rising ``numbers`` that are printed."""
    first, last = rule.first or 0, rule.last or 0
    begin, end = bisect_left(numbers, first), bisect_right(numbers, last) - 1
    if rule.short:
        return _short_window(numbers, first + segment.after)
    if not numbers or numbers[-1] < last:
        reached = f"the log ends at iteration {numbers[-1]}" if numbers else "the log has no lines"
        lacking = f"{reached}, the window lies between {first} and {last}"
        if end - begin < 1:
            raise NoFigure(lacking, short=True)
        return WindowRows(begin, end, lacking)
    span = numbers[end] - numbers[begin] if end > begin else 0
    if span >= SPAN * (last - first):
        used = f"{numbers[begin]} to {numbers[end]}"
        missing = f"iterations {first} and {last} are not both printed: {used} are used"
        return WindowRows(begin, end, "", missing if span < _NEARLY * (last - first) else "")
    what = f"no two lines between iterations {first} and {last} span half of them"
    if not rule.nearest:
        raise NoFigure(what)
    return _next_window(numbers, max(first, segment.after + first), last - first, what)


def _short_window(numbers: Sequence[int], first: int) -> WindowRows:
    """All behind ``first``, or, where that is not enough, all but the first third."""
    for begin in (bisect_left(numbers, first), max(1, len(numbers) // 3)):
        if len(numbers) - begin > FEWEST:
            return WindowRows(begin, len(numbers) - 1)
    raise NoFigure(f"there are {len(numbers)} lines", expected=True)


def _next_window(numbers: Sequence[int], first: int, length: int, what: str) -> WindowRows:
    """The first window of so many iterations behind ``first`` whose ends are printed."""
    begin, ends = bisect_left(numbers, first), f"the log ends at iteration {numbers[-1]}"
    if begin >= len(numbers) - 1:
        raise NoFigure(f"{what}, and {ends}", short=True)
    end = bisect_left(numbers, numbers[begin] + length)
    if end >= len(numbers):
        return WindowRows(begin, len(numbers) - 1, f"{what}, and after {numbers[begin]} {ends}")
    return WindowRows(begin, end, "", f"{what}: {numbers[begin]} to {numbers[end]} are used")


def window_of_lines(rule: WindowRule, count: int) -> WindowRows:
    """Window of a clock rule that counts lines: both ends are lines."""
    first, last = rule.first or 0, rule.last or 0
    if last < count:
        return WindowRows(first, last)
    lacking = f"{count} lines count, the window ends with the {last + 1}th"
    if count - first < 2:
        raise NoFigure(lacking, short=True)
    return WindowRows(first, count - 1, lacking)
