"""Figures as text for people, and names as text for a Markdown reader."""

from __future__ import annotations

import re

from dlperf_hpc.analysis.statistics import Interval
from dlperf_hpc.errors import printable

_SPECIAL = re.compile(r"([\\`*_\[\]|~#$])")


def number(value: float | None) -> str:
    """Two digits after the point, four significant ones below 10; '' for None."""
    if value is None:
        return ""
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.4g}"


def interval_text(interval: Interval | None) -> str:
    """``4873.92-4903.74``; '' for None."""
    return "" if interval is None else f"{number(interval.low)}-{number(interval.high)}"


def percent(value: float | None) -> str:
    """A fraction as per cent with at most one digit; '' for None."""
    return "" if value is None else f"{100 * value:.1f} %"


def escape(text: str) -> str:
    """``text`` on one line, shown as it is by a Markdown reader."""
    text = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", text)


def code(text: str) -> str:
    """``text`` as a Markdown code span that is safe in a table cell."""
    # GitHub splits cells before it sees code spans, and in a span no backtick can be escaped
    return "`" + printable(text).replace("`", "'").replace("|", "\\|") + "`"
