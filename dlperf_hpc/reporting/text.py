"""Figures and names as text for people: printable on a terminal, escaped for Markdown."""

from __future__ import annotations

import re
import unicodedata

from dlperf_hpc.analysis.statistics import Interval

# CSI, OSC (title, links) and the two-character escapes of ECMA-48
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -~])")
_HIDDEN = ("Cc", "Cf", "Zl", "Zp")  # control, format (direction overrides), separators
_SPECIAL = re.compile(r"([\\`*_\[\]|~#$])")


def printable(text: str) -> str:
    """One line of ``text`` with nothing in it that a terminal or an editor would act upon.

    Escape sequences go, other control characters and runs of white space become one space, and
    bytes that were no UTF-8 become U+FFFD.
    """
    return " ".join(visible(text).split())


def visible(text: str) -> str:
    """``text`` without what a terminal would act upon, blanks and indentation kept."""
    if text.isascii() and text.isprintable():  # nearly every name and path
        return text
    return "".join(map(_visible, _ESCAPES.sub("", text)))


def _visible(char: str) -> str:
    category = unicodedata.category(char)
    if category == "Cs":
        return "\ufffd"
    return " " if category in _HIDDEN else char


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
