"""Time stamps as frameworks print them, in seconds on a time line of their own.

A difference of two is a duration; the absolute value means nothing across files. Stamps without a
year lie on a year of 365 days, those without a date on one day: who takes a difference has to
know (:class:`dlperf_hpc.logs.scanned.Stamps`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import cast

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

    Of several the last: a cloud agent's own stamp stands before the program's.
    """
    match = _FULL.search(text)
    if match is None:
        return None
    if last and _may_hold_date(text, match.end()):
        for later in _FULL.finditer(text, match.end()):
            match = later
    return _seconds(*match.groups())


def full_stamps(texts: Sequence[str]) -> list[float] | None:
    """Of texts that are such stamps and nothing else; None if one is no time."""
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
    """Whether a date's dashes or slashes stand behind ``start``: quicker told than a stamp."""
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
    """Of texts that are such stamps without their letter; None if one is no time."""
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
