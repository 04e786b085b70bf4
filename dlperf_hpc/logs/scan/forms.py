"""The forms that a file's lines have, by which they are found again without a search.

Where most lines have a figure, or every sixth, lines have few forms: they are equal once all digits
are masked. What one line of a form was found to be (the needles in it, the rows that read it, the
length of its prefix; or that it has no needle), all of them are, so that a dictionary tells of each
line what is in it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from dlperf_hpc.logs.format import Format
from dlperf_hpc.logs.scan.columns import Places, Whole
from dlperf_hpc.logs.scan.prefixes import Launcher
from dlperf_hpc.logs.scan.rows import MASK, Form, Rows

_FEWEST = 32  # lines of one kind, from which on it pays to read them at once
_MOST = 8192  # forms of one file
_LONGEST = 1024  # bytes of a line whose form is remembered
_NOISE, _ODD, _UNKNOWN = -1, -2, -3


class Kind(NamedTuple):
    """What lines have in common that are read together: the needles in them, the formats that asked
    for these, of each its rows with the names of their groups, and whether there is a prefix."""

    needles: frozenset[int]
    takers: tuple[tuple[Format, Rows | None, tuple[str, ...]], ...]
    prefixed: bool


class Stretch(NamedTuple):
    """Lines of a part of a block, the first of them its ``first``-th from 0: all those of one
    ``kind`` that follow each other, with only noise between them. If ``kind`` is None, they have
    to be searched. ``which`` are their forms, ``numbers`` counts them from the part's first line.
    """

    kind: Kind | None
    numbers: Whole
    begins: Whole
    ends: Whole
    which: Whole


class Forms:
    """The forms of one file's lines."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}  # of masked lines
        self._kinds: list[Kind] = []
        self._kind_of: list[int] = []
        self._forms: list[list[Form | None]] = []  # one for each taker
        self._prefixes: list[int] = []  # their lengths
        self._lines: list[bytes] = []  # one of each form

    def learn_noise(self, line: bytes) -> None:
        """Learn that no line of this form has a needle."""
        self._numbers[line.translate(MASK)] = _NOISE

    def learn_odd(self, line: bytes) -> None:
        """Learn that each line of this form has to be searched."""
        self._numbers[line.translate(MASK)] = _ODD

    def learn(
        self, line: bytes, text: str, needles: frozenset[int], takers: Sequence[Format]
    ) -> None:
        """Learn the form of a line, in which ``needles`` were found; ``text`` is what is left of it
        without its prefix. Where no format has rows for it, it is of no use."""
        found = [
            next(((rows, form) for rows in each.rows if (form := rows.form(text))), (None, None))
            for each in takers
        ]
        masked = line.translate(MASK)
        if not any(form for _, form in found) or not line.endswith(text.encode()):
            self._numbers[masked] = _ODD
            return
        readers = [
            (each, rows, tuple(form.groups) if form else ())
            for each, (rows, form) in zip(takers, found)
        ]
        kind = Kind(needles, tuple(readers), len(text) < len(line))
        if kind not in self._kinds:
            self._kinds.append(kind)
        self._numbers[masked] = len(self._forms)
        self._kind_of.append(self._kinds.index(kind))
        self._forms.append([form for _, form in found])
        self._prefixes.append(len(line) - len(text))
        self._lines.append(line)

    def keep(self, needles_in: Callable[[bytes], frozenset[int]]) -> None:
        """Forget what may be otherwise now that other needles are sought."""
        for line, kind in zip(self._lines, self._kind_of):
            if needles_in(line) != self._kinds[kind].needles:
                self._numbers.pop(line.translate(MASK), None)
        self._numbers = {text: number for text, number in self._numbers.items() if number >= 0}

    def stretches(
        self, block: bytes, begin: int, end: int, learn: Callable[[bytes], None]
    ) -> tuple[list[Stretch], int]:
        """The lines of a part of a block that are not noise, and how many line ends the part has.
        One stretch that has to be searched, if the lines have too many forms. ``learn`` is called
        with a line of each form not yet known."""
        masked = block[begin:end].translate(MASK).split(b"\n")
        line_ends = len(masked) - 1
        if not masked[-1]:
            masked.pop()
        ends = np.cumsum(np.fromiter(map(len, masked), np.int64, len(masked)) + 1) + (begin - 1)
        begins = np.concatenate(([begin], ends[:-1] + 1))
        which = np.fromiter(map(self._numbers.get, masked, repeat(_UNKNOWN)), np.int64, len(masked))
        every = Stretch(None, np.arange(len(masked)), begins, ends, which)
        unknown = np.flatnonzero(which == _UNKNOWN).tolist()
        new = {masked[at]: at for at in unknown}
        if 8 * len(new) > len(masked) + 8 * _FEWEST or len(self._numbers) + len(new) > _MOST:
            return [_some(every, 0, len(masked))], line_ends
        for text, at in new.items():
            if len(text) <= _LONGEST:
                learn(block[begins[at] : ends[at]])
        which[unknown] = [self._numbers.get(masked[at], _ODD) for at in unknown]
        return self._by_kind(every), line_ends

    def _by_kind(self, every: Stretch) -> list[Stretch]:
        """Stretches of a kind with enough lines, and between them what has to be searched."""
        lines = np.flatnonzero(every.which != _NOISE)
        kinds = np.array([*self._kind_of, _ODD, _NOISE])[every.which[lines]]
        cuts = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(lines)]
        if 16 * len(cuts) > len(lines) + 16 * _FEWEST:
            return [_some(every, 0, len(every.which))]
        found: list[Stretch] = []
        searched = 0  # up to this line
        for first, last in zip(cuts, cuts[1:]):
            if last - first < _FEWEST or kinds[first] < 0:
                continue
            at = lines[first:last]
            if lines[first - 1] >= searched and first:
                found.append(_some(every, searched, int(at[0])))
            searched = int(at[-1]) + 1
            kind = self._kinds[kinds[first]]
            found.append(Stretch(kind, at, every.begins[at], every.ends[at], every.which[at]))
        if len(lines) and lines[-1] >= searched:
            found.append(_some(every, searched, len(every.which)))
        return found

    def columns(self, block: bytes, stretch: Stretch) -> Iterator[Places | None]:
        """The groups of a stretch's lines, for each format that asked for them; None for one that
        has no rows for them."""
        begins = stretch.begins + np.array(self._prefixes)[stretch.which]
        for taker, (_, rows, _) in enumerate(stretch.kind.takers if stretch.kind else ()):
            forms: list[Any] = [each[taker] for each in self._forms]
            yield Places(block, begins, stretch.which, forms) if rows else None

    def ranks(self, block: bytes, stretch: Stretch, launcher: Launcher) -> array[int] | None:
        """The ranks that the lines' prefixes name; None if they name none."""
        if stretch.kind is None or not stretch.kind.prefixed:
            return None
        begins = stretch.begins.tolist()
        behind = (stretch.begins + np.array(self._prefixes)[stretch.which]).tolist()
        prefixes = [block[begin:end] for begin, end in zip(begins, behind)]
        lines = dict(zip(prefixes, zip(begins, stretch.ends.tolist())))
        rank_of = {
            prefix: launcher.strip(block[begin:end].decode()).rank
            for prefix, (begin, end) in lines.items()
        }
        if set(rank_of.values()) == {None}:
            return None
        ranks = {prefix: -1 if rank is None else rank for prefix, rank in rank_of.items()}
        return array("q", map(ranks.__getitem__, prefixes))


def _some(every: Stretch, first: int, last: int) -> Stretch:
    """Lines in a row that have to be searched."""
    return Stretch(None, *(column[first:last] for column in every[1:]))
