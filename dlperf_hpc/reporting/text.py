"""Figures as text for people, and names as text for a Markdown reader."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from dlperf_hpc.errors import printable
from dlperf_hpc.model.result import SAMPLES_PER_S

if TYPE_CHECKING:
    from dlperf_hpc.model.statistics import Interval

_DIGITS = re.compile(r"([0-9]{1,18})")
_SPECIAL = re.compile(r"([\\`*_\[\]|~#$])")


def natural(name: str) -> list[tuple[int, int | str]]:
    """A key that sorts names with their numbers as numbers: bz2 before bz16, 2n8g before 10n8g."""
    parts = _DIGITS.split(name)
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in parts if part]


def span(times: Sequence[str]) -> str:
    """``2026-11-21 14:53 to 16:10 UTC``: from the first to the last of a log's time stamps, which
    stand in order; '' for none."""
    if not times:
        return ""
    first, last = (when[:16].replace("T", " ") for when in (times[0], times[-1]))
    if first == last:
        return f"{first} UTC"
    return f"{first} to {last[11:] if first[:10] == last[:10] else last} UTC"


def common_beginning(names: Sequence[str]) -> str:
    """What whole parts of a path all names begin with: ``ddp/bert-base/``; '' for no names."""
    parts = [name.split("/") for name in names] or [[""]]
    shared = 0
    while all(len(each) > shared + 1 and each[shared] == parts[0][shared] for each in parts):
        shared += 1
    return "".join(f"{part}/" for part in parts[0][:shared])


def number(value: float | None) -> str:
    """Two digits after the point, none from 100 000 on, four significant ones below 10; '' for
    None."""
    if value is None:
        return ""
    if abs(value) >= 100_000:
        return f"{value:.0f}"
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.4g}"


def listed(names: Sequence[str], most: int, between: str = ", ") -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return between.join(names[:most]) + more


def at_most(lines: Sequence[str], most: int, others: str) -> list[str]:
    """The first lines, then how many more there are, with what is to be said of the ``others``."""
    left = len(lines) - most
    return [*lines[:most], f"and {left} more{others}"] if left > 0 else list(lines)


def two_digits(value: float | None) -> str:
    """Two digits after the point, as of a speedup; '' for None."""
    return "" if value is None else f"{value:.2f}"


def hundredths(value: float | None) -> str:
    """A fraction as per cent with one digit, without the sign; '' for None."""
    return "" if value is None else f"{100 * value:.1f}"


def signed_percent(value: float | None) -> str:
    """``+6.1 %``: a fraction as per cent with its sign; '' for None."""
    return "" if value is None else f"{100 * value:+.1f} %"


def speed_heading(units: Iterable[str]) -> str:
    """The heading of a column of throughputs: their unit, if they have one in common."""
    found = {*units}
    return found.pop() if len(found) == 1 else "throughput" if found else SAMPLES_PER_S


def speed_text(value: float | None, unit: str, heading: str) -> str:
    """A throughput, with its unit where the column's heading does not say it."""
    return number(value) if value is None or unit == heading else f"{number(value)} {unit}"


def with_unit(unit: str) -> Callable[[float], str]:
    """A form of numbers: ``12.50 MB``."""
    return lambda value: f"{number(value)} {unit}"


def interval_text(interval: Interval | None) -> str:
    """``4873.92-4903.74``; '' for None."""
    return "" if interval is None else f"{number(interval.low)}-{number(interval.high)}"


def percent(value: float | None) -> str:
    """A fraction as per cent with at most one digit; '' for None."""
    return "" if value is None else f"{hundredths(value)} %"


def escape(text: str) -> str:
    """``text`` on one line, shown as it is by a Markdown reader."""
    text = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", text)


def code(text: str) -> str:
    """``text`` as a Markdown code span that is safe in a table cell; '' for ''."""
    if not text:
        return ""
    # GitHub splits cells before it sees code spans, and in a span no backtick can be escaped
    return "`" + printable(text).replace("`", "'").replace("|", "\\|") + "`"
