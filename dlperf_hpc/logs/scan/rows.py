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
from array import array
from collections.abc import Callable, Mapping, Sequence
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


class Clock(NamedTuple):
    """How stamps of one form are read: ``texts`` gives many of them in seconds, None if one is no
    time."""

    stamps: Stamps
    texts: Callable[[Sequence[str]], list[float] | None]


CLOCKS: Mapping[str, Clock] = {
    "full": Clock(Stamps.ABSOLUTE, full_stamps),
    "absl": Clock(Stamps.NO_YEAR, absl_stamps),
    "epoch": Clock(Stamps.ABSOLUTE, lambda texts: list(map(float, texts))),
}
"""Clocks by the names of the groups that hold their stamps."""

Columns = Mapping[str, Sequence[str]]
"""The groups of many lines, by their names."""


def whole(texts: Sequence[str], first: int = 0) -> array[int]:
    """Whole numbers, counted on from ``first``."""
    return array("q", [int(text) + first for text in texts])


def _floats(name: str, texts: Sequence[str]) -> array[float] | None:
    """A group's numbers; None if one is larger than any program prints, or is no measurement."""
    values = array("d", map(float, texts))
    fits = _LEAST.get(name, -HIGHEST) <= min(values) and max(values) <= HIGHEST
    return values if fits else None


@dataclass(frozen=True)
class Rows:
    """The form of a whole line, as a pattern that spans no line's end.

    Its groups are named as the fields of :class:`~dlperf_hpc.logs.scanned.Step` that they are:
    ``iteration`` or, if it counts from 0, ``index``; ``printed``, ``loss``, ``lr``, ``memory_mb``,
    ``global_batch``, ``consumed``; for the stamp ``full``, ``absl`` (see :func:`full_stamps`,
    :func:`absl_stamps`) or ``epoch`` (seconds since 1970); and as the settings that a line repeats.
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
        return None if any(["" in column for column in there.values()]) else there

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
            floats[name] = _floats(name, columns[name])
            if floats[name] is None:
                return False
        clocks = {name: clock for name, clock in CLOCKS.items() if name in columns}
        stamps = [clock.texts(columns[name]) for name, clock in clocks.items()]
        if None in stamps or not self.usual(draft, columns):
            return False
        counted = "index" if "index" in columns else "iteration"
        iterations = whole(columns[counted], first=1 if counted == "index" else 0)
        stamp = array("d", stamps[0]) if stamps and stamps[0] else None
        first = [numbers, iterations, ranks, stamp]
        arrival = None  # which no line tells
        draft.steps.add([*first, *map(floats.get, _FLOATS), arrival], len(numbers))
        for clock in clocks.values():
            draft.stamps = clock.stamps
        self.then(draft, ranks)
        return True


def _repeats_settings(columns: Columns, draft: Any) -> bool:
    """Whether every line states the settings that the draft has already."""
    return all(
        {draft.latest(name)} == set(map(FACTS[name], set(columns[name])))
        for name in columns
        if name in FACTS
    )
