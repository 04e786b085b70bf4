"""Parts of lines that formats have in common: time stamps and numbers, and patterns of these.

Stamps are read as frameworks print them, in seconds on a time line of their own. A difference of
two is a duration; the absolute value means nothing across files. Stamps without a year lie on a
year of 365 days, those without a date on one day: whoever takes a difference has to know which
(:class:`dlperf_hpc.logs.scanned.Stamps`).
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple, cast

from dlperf_hpc.logs.scanned import Stamps

# --- time stamps

# Date, hour, minute, second, fraction. A pattern that begins with a set, and not with a repetition
# of it, is looked for twice as fast.
_FULL = re.compile(
    r"([0-9][0-9]{3}[-/][0-9]{2}[-/][0-9]{2})[ T]([0-9]{2}):([0-9]{2}):([0-9]{2})"
    r"(?:[.,]([0-9]{1,9}))?"
)
_ABSL = re.compile(r"[IWEF](?<!\w[IWEF])(\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{6})\b")
_MONTH_DAY = re.compile(r"(?<![\d/-])(\d\d)[/-](\d\d) (\d\d:\d\d:\d\d)(?!\d)")
_DAY_TIME = re.compile(r"^\W{0,3}(?:[A-Z]\w+ [\d ]*){0,2}(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
_GLOG = re.compile(r"\bI([0-9]{4})([0-9]{2})([0-9]{2}) ([0-9]{2}:[0-9]{2}:[0-9]{2}) ")
_TIME = re.compile(r"(?:(?:([0-9]{1,5}) days?, )?([0-9]{1,6}):)?([0-5]?[0-9]):([0-5][0-9])")
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
    minutes = _minute(date, hour, minute)
    if minutes is None or second > "59":
        return None
    seconds = minutes + int(second)
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


def month_day_stamp(text: str) -> float | None:
    """``04/05 01:30:24``: seconds since 1 January of a year of 365 days, or None."""
    match = _MONTH_DAY.search(text)
    return absl_stamp(f"I{match[1]}{match[2]} {match[3]}.000000") if match else None


def day_time_stamp(text: str) -> float | None:
    """``[20:21:13,5]`` or ``Nov 28 20:21:13`` as a line begins: seconds on one day, or None."""
    match = _DAY_TIME.search(text)
    return _seconds("2001-01-01", *match.groups()) if match else None


def glog_stamp(text: str) -> float | None:
    """``I20231111 00:21:00`` in a line, or else what :func:`full_stamp` finds; seconds, or None."""
    match = _GLOG.search(text)
    return full_stamp("{}-{}-{} {}".format(*match.groups()) if match else text)


def seconds_of(time: str) -> float | None:
    """``1:02:03``, ``02:03`` or ``1 day, 1:02:03`` in seconds; None for anything else."""
    match = _TIME.fullmatch(time)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


class Clock(NamedTuple):
    """How stamps of one form are read: ``first`` finds one in a text, in seconds, None without one;
    ``texts`` gives texts that are stamps in seconds, None if one is no time."""

    stamps: Stamps
    first: Callable[[str], float | None]
    texts: Callable[[Sequence[str]], Sequence[float | None] | None]


CLOCKS: Mapping[str, Clock] = {
    "full": Clock(Stamps.ABSOLUTE, full_stamp, full_stamps),
    "absl": Clock(Stamps.NO_YEAR, absl_stamp, absl_stamps),
    "glog": Clock(Stamps.ABSOLUTE, glog_stamp, lambda texts: None),
    "elapsed": Clock(Stamps.ELAPSED, seconds_of, lambda texts: list(map(seconds_of, texts))),
    "month_day": Clock(Stamps.NO_YEAR, month_day_stamp, lambda texts: None),
    "day_time": Clock(Stamps.TIME_ONLY, day_time_stamp, lambda texts: None),
    "unix": Clock(Stamps.ABSOLUTE, float, lambda texts: list(map(float, texts))),
}
"""Clocks by the names of a pattern's groups with their stamps; ``unix`` is s since 1970."""

# --- numbers, and words

PRECISIONS = {
    "bfloat16": "bf16",
    **dict.fromkeys(("float16", "half"), "fp16"),
    **dict.fromkeys(("float32", "float"), "fp32"),
}
"""Our names of precisions, by those that programs print."""

FIGURE = r"[-+.0-9a-z]{1,40}"
"""A number, nan and inf too: the builder notes what is no measurement."""

COUNT = r"[0-9]{1,18}"

NUMBER = r"[-+.0-9einfaEN]+"
"""A number as Python or C prints it, ``nan`` and ``inf`` too: damage is noted, not passed over."""

WHOLE = r"[0-9]{1,15}"
DECIMAL = r"-?[0-9]{1,15}(?:\.[0-9]{1,25})?(?:[eE][-+][0-9]{1,2})?"
"""A number as it is printed if nothing is damaged."""

FULL_STAMP = r"[0-9]{4}[-/][0-9]{2}[-/][0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?"

THREE_DECIMALS = r"(?:[0-9]+\.[0-9]{3}(?![0-9])|[-+]?(?:nan|inf))"
"""``{:.3f}`` at the end of a line, where fewer decimals show that the line was cut."""

_PLAIN = re.compile(r"[0-9]+(?:\.[0-9]*)?")
_MOST_DIGITS = 18  # of an iteration's number


def word(literal: str) -> str:
    r"""The pattern ``\b`` and ``literal``, which begins with a letter. It is found at the speed of
    the literal alone; a pattern that begins with an assertion is tried at each character."""
    return rf"{literal}(?<!\w{literal})"


def further(key: str) -> str:
    """A pattern that looks for ``key`` in the next 2000 characters of a line: without a bound, a
    line of many beginnings is read to its end for each of them. It belongs before what is there
    :func:`perhaps`."""
    return f"(?=.{{0,2000}}?{key})"


def perhaps(key: str) -> str:
    """A pattern that looks for ``key`` in the next 4000 characters of a line; its groups hold
    nothing if there is none."""
    return f"(?=(?:.{{0,4000}}?{key})?)"


def in_order(keys: Sequence[str]) -> str:
    """A pattern of a line of cells between bars that has all of ``keys``, in this order."""
    return "".join(map(_cell, keys))


def in_any_order(keys: Sequence[str]) -> str:
    """A pattern that looks for each of ``keys`` in a line of cells; groups of one that is not there
    hold nothing."""
    return "".join([f"(?=(?:{_cell(key)})?)" for key in keys])


def _cell(key: str) -> str:
    """The first cell that is ``key``, and up to 99 before it, none of which is: of n cells and k
    keys of which the last is missing there would else be n**k ways."""
    unnamed = re.sub(r"\?P<\w+>", "?:", key)
    return rf"(?:(?! {unnamed})[^|\n]*\|){{0,99}} {key}"


def first_of(pattern: re.Pattern[str], text: str, start: int = 0) -> str | None:
    """The first group of where a pattern is found behind ``start``; None if it is not."""
    match = pattern.search(text, start)
    return match[1] if match else None


_THOUSANDS = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]*)?")


def without_commas(number: str) -> str:
    """A number without the commas between its thousands; any other text as it is."""
    return number.replace(",", "") if _THOUSANDS.fullmatch(number) else number


def megabytes(gib: str | None) -> float | None:
    """MB (2**20 bytes) of a number of GB (2**30); None of none."""
    return None if gib is None else 1024 * float(gib)


def one_more(digits: str) -> int | str:
    """The iterations done, of an index from 0. Text that is too long comes back as it is, and
    :meth:`.format.ReadingBuilder.step` notes it."""
    return int(digits) + 1 if len(digits) <= _MOST_DIGITS else digits


def cut_short(value: str, decimals: int) -> bool:
    """Whether a plain number has fewer decimals than its program always prints.

    Such a number is the beginning of another: its line was cut.
    """
    return bool(_PLAIN.fullmatch(value)) and len(value.partition(".")[2]) < decimals


def json_object(text: str, mark: str) -> dict[str, Any] | None:
    """The JSON object that begins with the last character of ``mark``; None if none does. Whole
    numbers of very many digits, which take their time, become floats."""
    before, _, _ = text.partition(mark)
    try:
        found, _ = _DECODER.raw_decode(text, len(before) + len(mark) - 1)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


_DECODER = json.JSONDecoder(
    parse_int=lambda digits: int(digits) if len(digits) <= _MOST_DIGITS else float(digits)
)
