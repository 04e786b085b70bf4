"""What formats use to take lines apart: time stamps, and a format's usual lines many at once.

Stamps are read as frameworks print them, in seconds on a time line of their own. A difference of
two is a duration; the absolute value means nothing across files. Stamps without a year lie on a
year of 365 days, those without a date on one day: whoever takes a difference has to know which
(:class:`dlperf_hpc.logs.scanned.Stamps`).

Nearly all figures of a log stand in lines of one form, and their cost is what Python does for each
line. A format may describe that form as one pattern, :class:`Rows`: runs of such lines are then
taken apart by a single call. Anything unusual in a run (a line of another form, a number out of
range, a setting that changes) leaves the whole run to the format's ``read``. Rows give what
``read`` gives, only faster.
"""

from __future__ import annotations

import functools
import math
import re
from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, NamedTuple, cast

from dlperf_hpc.logs.scanned import FACTS, Column, Stamps

# --- time stamps

# Date, hour, minute, second, fraction. A pattern that begins with a set, and not with a repetition
# of it, is looked for twice as fast.
_FULL = re.compile(
    r"([0-9][0-9]{3}[-/][0-9]{2}[-/][0-9]{2})[ T]([0-9]{2}):([0-9]{2}):([0-9]{2})"
    r"(?:[.,]([0-9]{1,9}))?"
)
_ABSL = re.compile(r"[IWEF](?<!\w[IWEF])(\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{6})\b")
_POWERS = tuple(10**digits for digits in range(10))
_DAYS_BEFORE = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)


def full_stamp(text: str, last: bool = True) -> float | None:
    """``2020-10-27 11:28:12,892`` (or with ``.``, ``/``, ``T``) in a line; seconds, or None.

    Of several stamps the last counts: a cloud agent's own stands before the program's.
    """
    match = _FULL.search(text)
    if match is None:
        return None
    if last and _may_hold_date(text, match.end()):
        for later in _FULL.finditer(text, match.end()):
            match = later
    return _seconds(*match.groups())


def full_stamps(texts: Sequence[str]) -> list[float] | None:
    """Seconds of texts that :func:`full_stamp` reads and nothing else; None if one is no time."""
    stamps = [
        _seconds(text[:10], text[11:13], text[14:16], text[17:19], text[20:]) for text in texts
    ]
    return None if None in stamps else cast("list[float]", stamps)


def _seconds(date: str, hour: str, minute: str, second: str, fraction: str | None) -> float | None:
    begun = _minute(date, hour, minute)
    if begun is None or second > "59":
        return None
    seconds = begun + int(second)
    return seconds + int(fraction) / _POWERS[len(fraction)] if fraction else seconds


def _may_hold_date(text: str, start: int) -> bool:
    """Whether a date's dashes or slashes stand behind ``start``: found sooner than a stamp is."""
    for mark in "-/":
        at = text.find(mark, start)
        while at >= 0:
            if text[at + 3 : at + 4] in ("-", "/"):
                return True
            at = text.find(mark, at + 1)
    return False


@functools.lru_cache(maxsize=1024)
def _minute(date: str, hour: str, minute: str) -> float | None:
    if hour > "23" or minute > "59":
        return None
    try:
        day = datetime(int(date[:4]), int(date[5:7]), int(date[8:]), tzinfo=timezone.utc)
    except ValueError:
        return None
    return day.timestamp() + 3600 * int(hour) + 60 * int(minute)


def absl_stamp(text: str) -> float | None:
    """``I0826 21:43:05.661866``: seconds since 1 January of a year of 365 days, or None."""
    match = _ABSL.search(text)
    return None if match is None else _seconds_of_year(*match.groups())


def absl_stamps(texts: Sequence[str]) -> list[float] | None:
    """Seconds of texts that are absl stamps without their letter; None if one is no time."""
    stamps = [
        _seconds_of_year(text[:2], text[2:4], text[5:7], text[8:10], text[11:13], text[14:])
        for text in texts
    ]
    return None if None in stamps else cast("list[float]", stamps)


def _seconds_of_year(*parts: str) -> float | None:
    month, day, hour, minute, second, millionths = map(int, parts)
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second <= 60):
        return None
    days = _DAYS_BEFORE[month - 1] + day - 1
    return ((days * 24 + hour) * 60 + minute) * 60 + second + millionths / 10**6


# --- rows

HIGHEST = 1e15
"""No program prints a speed, a loss or a stamp beyond this: a larger number is damage."""

WHOLE = r"[0-9]{1,15}"
DECIMAL = r"-?[0-9]{1,15}(?:\.[0-9]{1,25})?(?:[eE][-+][0-9]{1,2})?"
"""A number as it is printed if nothing is damaged."""

FULL_STAMP = r"[0-9]{4}[-/][0-9]{2}[-/][0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?"
ABSL_STAMP = r"[0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}"

_LEAST = {"printed": math.ulp(0.0)}  # a speed or a time is above 0
_FLOATS = ("printed", "loss", "lr", "memory_mb", "global_batch", "consumed")
_DIGITS = re.compile("[0-9]+")
_MOST_REMEMBERED = 4096  # forms


class Clock(NamedTuple):
    """How stamps of one form are read. The first ``length`` characters reach up to the minute,
    whose beginning ``minute`` gives in seconds; behind them stand seconds, at most ``last``, and
    their fraction. ``texts`` reads whole stamps."""

    stamps: Stamps
    texts: Callable[[Sequence[str]], list[float] | None]
    length: int = 0
    minute: Callable[[str], float | None] = lambda text: None
    last: int = 59


CLOCKS: Mapping[str, Clock] = {
    "full": Clock(
        Stamps.ABSOLUTE, full_stamps, 16, lambda text: _minute(text[:10], text[11:13], text[14:16])
    ),
    "absl": Clock(
        Stamps.NO_YEAR,
        absl_stamps,
        10,
        lambda text: _seconds_of_year(text[:2], text[2:4], text[5:7], text[8:10], "0", "0"),
        60,
    ),
    "epoch": Clock(Stamps.ABSOLUTE, lambda texts: list(map(float, texts))),
}
"""Clocks by the names of the groups that hold their stamps."""

MASK = bytes(48 if 48 <= code <= 57 else code for code in range(256))
"""For bytes.translate: every digit becomes a 0. Lines of one form are equal then."""


class Form(NamedTuple):
    """Where the groups of a pattern lie in all lines of one form: where each begins, and its masked
    text. Of ``fixed`` texts the pattern takes no other digits."""

    groups: Mapping[str, tuple[int, bytes]]
    fixed: tuple[tuple[int, bytes], ...] = ()


class Columns(Mapping[str, Sequence[str]]):
    """The groups of many lines, by their names: as texts, or at once as numbers."""

    @abstractmethod
    def floats(self, name: str, least: float, most: float) -> array[float] | None:
        """A group's numbers; None if one is outside of these bounds."""

    @abstractmethod
    def whole(self, name: str, first: int = 0) -> array[int]:
        """A group's whole numbers, counted on from ``first``."""

    @abstractmethod
    def stamps(self, name: str) -> array[float] | None:
        """A group's time stamps in seconds; None if one is no time."""

    def distinct(self, name: str) -> set[str]:
        """The texts that a group has."""
        return set(self[name])


class Texts(Columns):
    """The groups of a few lines, which a pattern found."""

    def __init__(self, texts: Mapping[str, Sequence[str]]) -> None:
        self._texts = texts

    def __getitem__(self, name: str) -> Sequence[str]:
        return self._texts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def floats(self, name: str, least: float, most: float) -> array[float] | None:
        values = array("d", map(float, self._texts[name]))
        return values if least <= min(values) and max(values) <= most else None

    def whole(self, name: str, first: int = 0) -> array[int]:
        return array("q", [int(text) + first for text in self._texts[name]])

    def stamps(self, name: str) -> array[float] | None:
        seconds = CLOCKS[name].texts(self._texts[name])
        return None if seconds is None else array("d", seconds)


@dataclass(frozen=True)
class Rows:
    """The form of a whole line, as a pattern that spans no line's end.

    Its groups are named as the fields of :class:`~dlperf_hpc.logs.scanned.Step` that they are:
    ``iteration`` or, if it counts from 0, ``index``; ``printed``, ``loss``, ``lr``, ``memory_mb``,
    ``global_batch``, ``consumed``; for the stamp ``full``, ``absl`` (see :func:`full_stamps`,
    :func:`absl_stamps`) or ``epoch`` (seconds since 1970); and as the settings that a line repeats.
    Where the pattern takes a digit, it takes either any or a certain one.
    ``usual`` is given the draft and a run's groups (:class:`Columns`), and is false if ``read`` has
    more to do for them. ``then`` is given the draft and the ranks of the lines (None: they have
    none) when their iterations were added. Rows that are ``passed_over`` add none.
    """

    pattern: str
    usual: Callable[[Any, Columns], bool] = lambda draft, columns: True
    then: Callable[[Any, array[int] | None], None] = lambda draft, ranks: None
    passed_over: bool = False

    def of_another(
        self, usual: Callable[[Any, Columns], bool] = lambda draft, columns: True
    ) -> Rows:
        """These rows, for a format that shares a needle with theirs, and whose ``read`` makes
        nothing of their lines."""
        return Rows(self.pattern, usual, passed_over=True)

    @functools.cached_property
    def _lines(self) -> re.Pattern[str]:
        return re.compile(f"^(?:{self.pattern})$", re.ASCII | re.MULTILINE)

    def columns(self, text: str, count: int) -> Columns | None:
        """The groups of the ``count`` lines in ``text``; None if a line is not of these rows, or
        if only some of the lines have a group."""
        found = self._lines.findall(text)
        if len(found) != count:
            return None
        names = self._lines.groupindex
        every = dict(zip(names, zip(*found) if len(names) > 1 else [found]))
        there = {name: column for name, column in every.items() if any(column)}
        return None if any(["" in column for column in there.values()]) else Texts(there)

    def read(
        self, columns: Columns, numbers: array[int], ranks: array[int] | None, draft: Any
    ) -> bool:
        """Add the iterations of lines of these rows to the draft; False, and none added, if one of
        the lines is unusual. ``numbers`` and ``ranks`` are those of the lines."""
        if self.passed_over:
            return self.usual(draft, columns)
        if not (draft.has_room(len(numbers)) and _repeats_settings(columns, draft)):
            return False
        floats: dict[str, Column] = {}
        for name in filter(columns.__contains__, _FLOATS):
            floats[name] = columns.floats(name, _LEAST.get(name, -HIGHEST), HIGHEST)
            if floats[name] is None:
                return False
        clocks = {name: clock for name, clock in CLOCKS.items() if name in columns}
        stamps = [columns.stamps(name) for name in clocks]
        if None in stamps or not self.usual(draft, columns):
            return False
        counted = "index" if "index" in columns else "iteration"
        iterations = columns.whole(counted, first=1 if counted == "index" else 0)
        first = [numbers, iterations, ranks, stamps[0] if stamps else None]
        arrival = None  # which no line tells
        draft.steps.add([*first, *map(floats.get, _FLOATS), arrival], len(numbers))
        for clock in clocks.values():
            draft.stamps = clock.stamps
        self.then(draft, ranks)
        return True

    def form(self, text: str) -> Form | None:
        """The form of a line; None if it is not of these rows."""
        found = self._lines.fullmatch(text)
        if found is None:
            return None
        masked = text.encode().translate(MASK)
        names = self._lines.groupindex
        spans = {name: found.span(name) for name in names if found[name]}
        groups = {name: (begin, masked[begin:end]) for name, (begin, end) in spans.items()}
        fixed = self._fixed.get(masked)
        if fixed is None:
            runs = [run.span() for run in _DIGITS.finditer(text)]
            whole = self._takes_any(found, 0, len(text))
            fixed = [] if whole else [run for run in runs if not self._takes_any(found, *run)]
            if len(self._fixed) < _MOST_REMEMBERED:
                self._fixed[masked] = fixed
        texts = [(begin, text[begin:end].encode()) for begin, end in fixed]
        return Form(groups, tuple(texts))

    @functools.cached_property
    def _fixed(self) -> dict[bytes, list[tuple[int, int]]]:
        """Of masked lines: where the pattern does not take any digits."""
        return {}

    def _takes_any(self, found: re.Match[str], begin: int, end: int) -> bool:
        """Whether the pattern takes any digits in a part of the line, and finds the same groups."""
        text = found.string
        for code in range(48, 58):
            part = text[begin:end].translate(dict.fromkeys(range(48, 58), code))
            match = self._lines.fullmatch(text[:begin] + part + text[end:])
            if match is None or match.regs != found.regs:
                return False
        return True


def _repeats_settings(columns: Columns, draft: Any) -> bool:
    """Whether every line states the settings that the draft has already."""
    return all(
        {draft.latest(name)} == set(map(FACTS[name], columns.distinct(name)))
        for name in columns
        if name in FACTS
    )
