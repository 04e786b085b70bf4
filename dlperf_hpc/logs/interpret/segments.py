"""Time stamps of one run as seconds that rise: midnight and New Year are no going back.

The lines of a reading as runs of a program: one rank, in order, each iteration once.

A log may hold lines of many ranks, with or without a rank's tag; the same iteration again, where a
step was skipped for an overflow of the loss scale; and several runs, one after the other, where a
job was requeued or a file is appended to. Iteration numbers alone tell these apart: ranks run side
by side, so that numbers step back by little and often; a run that starts again steps back once.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import TypeVar

from dlperf_hpc.logs.scanned import Reading, Stamps, Step, Total

DAY_S = 86400.0
YEAR_S = 365 * DAY_S
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


APART = 8
"""Ranks side by side are at most so many lines apart; who steps back further has started again."""

MOST = 100
"""Runs that are told apart in one file; a file with more is out of order."""

_SAME_RUN_S = {Stamps.TIME_ONLY: 60.0, Stamps.NO_YEAR: YEAR_S / 2}
"""A stamp that is earlier by more may be of another day, or of the year after."""

_T = TypeVar("_T", Step, Total)


@dataclass(frozen=True)
class Segment:
    """One run of a program in a file, the ``number``-th of ``of``.

    ``steps`` are one rank's, rising, each iteration once: of repeats the last. ``lines`` are that
    rank's as they stand, and ``everyone`` those of all ranks. ``ranks`` is how many processes
    print: tags seen, or how often each iteration is printed. ``after`` iterations were done as the
    first step's line began to count. The segment holds the file's lines after ``since`` up to
    ``until`` (None: the end).
    """

    number: int
    of: int
    steps: tuple[Step, ...] = ()
    lines: tuple[Step, ...] = ()
    everyone: tuple[Step, ...] = ()
    totals: tuple[Total, ...] = ()
    rank: int | None = None
    ranks: int = 1
    after: int = 0
    repeats: int = 0
    since: int = 0
    until: int | None = None
    notes: tuple[str, ...] = ()

    def holds(self, line: int) -> bool:
        """Whether a line of the file belongs to this run."""
        return self.since < line and (self.until is None or line <= self.until)


def segments_of(reading: Reading) -> list[Segment]:
    """The runs that a reading tells of, in the order of the file; one without steps if it has none.

    The rank with most lines speaks for all; of several the lowest.
    """
    rank = _speaker(reading.steps)
    pieces = _pieces([step for step in reading.steps if step.rank == rank], reading.stamps)
    if not pieces:
        return [Segment(1, 1, totals=reading.totals)]
    starts = [piece.steps[0].line for piece in pieces]
    everyone = _dealt(reading.steps, starts)
    totals = _dealt(reading.totals, starts)
    segments = []
    for i, piece in enumerate(pieces):
        steps = sorted({s.iteration: s for s in piece.steps}.values(), key=lambda s: s.iteration)
        tags = {step.rank for step in everyone[i]} - {None}
        spacing = steps[1].iteration - steps[0].iteration if len(steps) > 1 else 0
        segments.append(
            Segment(
                number=i + 1,
                of=len(pieces),
                steps=tuple(steps),
                lines=tuple(steps if piece.copies > 1 else piece.steps),
                everyone=tuple(everyone[i]),
                totals=tuple(totals[i]),
                rank=rank,
                ranks=len(tags) if len(tags) > 1 else piece.copies,
                after=max(0, steps[0].iteration - spacing),
                repeats=len(piece.steps) - len(steps) if piece.copies == 1 else 0,
                since=starts[i] - 1 if i else 0,
                until=starts[i + 1] - 1 if i + 1 < len(starts) else None,
                notes=_notes(pieces, i, len(piece.steps) - len(steps)),
            )
        )
    return segments


@dataclass
class _Piece:
    """Lines of one run: how often each iteration is printed, how many did not fit in."""

    steps: list[Step]
    copies: int = 1
    strays: int = 0


def _pieces(steps: Sequence[Step], stamps: Stamps) -> list[_Piece]:
    found: list[_Piece] = []
    for piece in _cut(steps, APART, stamps):
        piece.copies = _copies(piece.steps)
        parts = [piece] if piece.copies > 1 else _cut(piece.steps, 0, stamps)
        parts[0].strays += piece.strays if piece.copies == 1 else 0
        found += parts
    if len(found) > MOST:
        found[MOST - 1].strays += sum(len(piece.steps) for piece in found[MOST:])
    return found[:MOST]


def _dealt(items: Sequence[_T], starts: Sequence[int]) -> list[list[_T]]:
    """Each to the run in which its line stands; what is before the first run belongs to it."""
    dealt: list[list[_T]] = [[] for _ in starts]
    for item in items:
        dealt[max(0, bisect_right(starts, item.line) - 1)].append(item)
    return dealt


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
            f"each iteration stands there {piece.copies} times, as from ranks without a tag: of "
            "each the last line counts"
        )
    elif repeats:
        notes.append(f"{repeats} lines repeat an iteration (a skipped step?): the last counts")
    if piece.strays:
        notes.append(f"{piece.strays} lines whose iteration is out of order were left out")
    return tuple(notes)


def _speaker(steps: Sequence[Step]) -> int | None:
    count = Counter(step.rank for step in steps)
    ranked = sorted(count, key=lambda rank: (-count[rank], rank is None, rank or 0))
    return ranked[0] if ranked else None


def _cut(steps: Sequence[Step], bound: int, stamps: Stamps) -> list[_Piece]:
    """Cut where the iteration goes back by more than ``bound`` lines and goes on from there.

    A single line that does not fit between its neighbours is damage, not a start: left out, and
    counted.
    """
    numbers = sorted({step.iteration for step in steps})
    place = {number: i for i, number in enumerate(numbers)}
    pieces: list[_Piece] = []
    for i, step in enumerate(steps):
        if not pieces:
            pieces.append(_Piece([step]))
            continue
        done = pieces[-1].steps
        before = done[-1]
        back = place[before.iteration] - place[step.iteration]
        if back <= bound or _side_by_side(before, step, stamps):
            done.append(step)
            continue
        following = steps[i + 1].iteration if i + 1 < len(steps) else None
        fits = len(done) > 1 and done[-2].iteration < step.iteration
        if fits and (following is None or following < before.iteration):
            done[-1] = step  # the line before stood out
            pieces[-1].strays += 1
        elif following is not None and following > before.iteration:
            pieces[-1].strays += 1  # this one does
        else:
            pieces.append(_Piece([step]))
    return pieces


def _side_by_side(before: Step, step: Step, stamps: Stamps) -> bool:
    """A line that follows another but was written earlier is another rank's, no new start."""
    if before.stamp is None or step.stamp is None:
        return False
    return 0 < before.stamp - step.stamp <= _SAME_RUN_S.get(stamps, math.inf)


def _copies(piece: Sequence[Step]) -> int:
    """How often each iteration is printed, if untagged ranks are woven into each other; else 1.

    k runs in a row give each iteration k times too, but go back only k - 1 times.
    """
    count = Counter(step.iteration for step in piece)
    copies = median_low(count.values())
    backs = sum(b.iteration <= a.iteration for a, b in zip(piece, piece[1:]))
    return copies if copies > 1 and backs >= copies else 1
