"""The runs of a program in one log: of each one rank, in order, every iteration once.

A log may hold lines of many ranks, with or without a rank's label; an iteration twice, where a step
was skipped for an overflow of the loss scale; and several runs, one after the other, where a job
was requeued or a file was appended to. Only the iteration numbers tell these apart: ranks run side
by side, so that the numbers step back by little and often; a run that starts again steps back once.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median_low
from typing import TypeVar

from dlperf_hpc.logs.columns import is_rising
from dlperf_hpc.logs.scanned import GAPS, Reading, Stamps, Step, Steps, Total

DAY_S = 86400.0
YEAR_S = 365 * DAY_S
APART = 8
"""Ranks side by side are at most so many lines apart; a rank that steps back further has started
again."""

MOST = 100
"""Runs that are separated in one file; the lines of a file with more are out of order."""

_SAME_RUN_S = {Stamps.TIME_ONLY: 60.0, Stamps.NO_YEAR: YEAR_S / 2, Stamps.ELAPSED: 0.0}
"""Seconds: a stamp that is earlier by more may be of another day, of the year after, or of a run
that began later."""

_NO_RANK = GAPS[Step._fields.index("rank")][1]

_T = TypeVar("_T", Step, Total)


@dataclass(frozen=True)
class Segment:
    """One run of a program in a file, the ``number``-th of ``of``.

    ``steps`` are one rank's, rising, each iteration once: of repeats the last. ``lines`` are that
    rank's as they stand, and ``everyone`` those of all ranks. ``ranks`` is how many processes
    print: labels seen, or how often each iteration is printed. ``after`` is the number of
    iterations after which the first step's line began to count. The segment holds the file's lines
    after ``since`` up to ``until`` (None: the end).
    """

    number: int
    of: int
    steps: Steps = field(default_factory=Steps)
    lines: Steps = field(default_factory=Steps)
    everyone: Steps = field(default_factory=Steps)
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
    """The runs of a reading, in the order of the file; one without steps if the reading has none.

    The rank with most lines counts for all ranks; of several such the lowest.
    """
    own, ranks = _of_rank_with_most_lines(reading.steps)
    if not own:
        return [Segment(1, 1, totals=reading.totals)]
    rank, after = own[0].rank, _before(own)
    if is_rising(own.numbers("iteration")):  # as nearly all logs are
        return [Segment(1, 1, own, own, reading.steps, reading.totals, rank, ranks, after)]
    every = tuple(reading.steps)
    pieces = _pieces([*own], reading.stamps)
    starts = [piece.steps[0].line for piece in pieces]
    everyone = _by_run(every, starts)
    totals = _by_run(reading.totals, starts)
    segments = []
    for i, piece in enumerate(pieces):
        once = {step.iteration: step for step in piece.steps}
        steps = Steps(once[number] for number in sorted(once))
        tags = {step.rank for step in everyone[i]} - {None}
        segments.append(
            Segment(
                number=i + 1,
                of=len(pieces),
                steps=steps,
                lines=steps if piece.copies > 1 else Steps(piece.steps),
                everyone=Steps(everyone[i]),
                totals=tuple(totals[i]),
                rank=rank,
                ranks=len(tags) if len(tags) > 1 else piece.copies,
                after=_before(steps),
                repeats=len(piece.steps) - len(steps) if piece.copies == 1 else 0,
                since=starts[i] - 1 if i else 0,
                until=starts[i + 1] - 1 if i + 1 < len(starts) else None,
                notes=_notes(pieces, i, len(piece.steps) - len(steps)),
            )
        )
    return segments


def _of_rank_with_most_lines(steps: Steps) -> tuple[Steps, int]:
    """The steps of that rank, of several such the lowest, and how many ranks print."""
    ranks = steps.column("rank") or ()
    count = Counter(ranks)
    if len(count) < 2:
        return steps, 1
    most = min(count, key=lambda rank: (-count[rank], rank == _NO_RANK, rank))
    labels = count.keys() - {_NO_RANK}
    return steps.where([rank == most for rank in ranks]), len(labels)


def _before(steps: Steps) -> int:
    """The iterations after which the first step's line began to count: as many before it as lie
    between it and the second."""
    first, *more = steps[:2]
    return max(0, 2 * first.iteration - more[0].iteration) if more else first.iteration


@dataclass
class _Piece:
    """Lines of one run; ``copies`` is how often each iteration is printed, ``strays`` is how many
    lines were out of order."""

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


def _by_run(items: Sequence[_T], starts: Sequence[int]) -> list[list[_T]]:
    """The items of each run, which begin at the lines ``starts``. Items before the first of these
    belong to the first run."""
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


def _cut(steps: Sequence[Step], bound: int, stamps: Stamps) -> list[_Piece]:
    """Cut where the iteration goes back by more than ``bound`` lines and goes on from there.

    A single line that does not fit between its neighbours is damage and not a start: it is left
    out and counted as a stray.
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
            done[-1] = step  # the line before is the stray
            pieces[-1].strays += 1
        elif following is not None and following > before.iteration:
            pieces[-1].strays += 1  # this line is the stray
        else:
            pieces.append(_Piece([step]))
    return pieces


def _side_by_side(before: Step, step: Step, stamps: Stamps) -> bool:
    """Whether a line was written earlier than the one before it, and so is another rank's."""
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
