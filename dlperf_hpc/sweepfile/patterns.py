"""Users' patterns: searched in a time that grows with the line alone, whatever it holds.

A pattern may come from a sweep file, or from somebody else's log, and the lines from any program.
Python's own ``re`` may take longer than anybody waits for a line of a few hundred bytes. RE2 never
does: it has no look-around and no back references, and refuses what would need too much memory. It
is loaded with the first pattern.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from dlperf_hpc.errors import RunError

LONGEST = 2000
"""Characters of a pattern."""

_MEMORY = 1 << 23  # bytes that RE2 may take for one pattern
_DEAR = r"\(\?<?[=!]|\(\?P=|\\[1-9]|\(\?\(|\(\?>"
_EXPLODES = (
    "looks around or back, which may take a time without bound: write what stands there instead"
)
_DIGITS = tuple("0123456789")


class PatternError(ValueError):
    """A text that is no pattern, or one that would take too much; the message says why."""


class Pattern:
    """A pattern; make it with :func:`compiled`. ``groups`` are the names of its groups, and
    ``captures`` is how many it has, those without a name as well."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._found = _with_re2(text)
        names: dict[bytes, int] = self._found.groupindex
        self._names = {name.decode(): index for name, index in names.items()}
        self.groups = tuple(self._names)
        self.captures: int = self._found.groups

    def fits(self, line: str) -> bool:
        """Whether it is found anywhere in a line."""
        return self._search(line) is not None

    def named(self, line: str) -> dict[str, str] | None:
        """The named groups that hold something where it is found first; None if it is not."""
        found = self._search(line)
        if found is None:
            return None
        texts = ((name, found.group(index)) for name, index in self._names.items())
        return {name: text.decode() for name, text in texts if text}

    def first(self, line: str) -> str | None:
        """What its first group holds; None if the pattern is not found, or the group is empty."""
        found = self._search(line)
        text = b"" if found is None else found.group(1)
        return text.decode() if text else None

    def _search(self, line: str) -> Any:
        return self._found.search(line.encode("utf-8", "replace"))


@lru_cache(maxsize=256)
def compiled(text: str) -> Pattern:
    """The pattern of a text; PatternError if it is none. RunError in a Python that lacks RE2."""
    if not text:
        raise PatternError("is empty")
    if len(text) > LONGEST:
        raise PatternError(f"has more than {LONGEST} characters")
    _parsed(text)
    return Pattern(text)


def _parsed(text: str) -> Any:
    """What Python's own parser makes of a pattern: users know its rules. PatternError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forms that later versions read otherwise
        try:
            re.compile(text, re.ASCII)
            return _parser().parse(text, re.ASCII)
        except (re.error, OverflowError, RecursionError, ValueError) as error:
            why = re.search(_DEAR, text) and "look" in str(error)
            raise PatternError(_EXPLODES if why else f"is no pattern: {error}") from None


def _parser() -> Any:
    try:
        from re import _parser as parser  # type: ignore[attr-defined]
    except ImportError:  # before Python 3.11
        import sre_parse as parser
    return parser


def _with_re2(text: str) -> Any:
    try:
        import re2
    except ImportError as error:
        raise RunError(
            "a pattern of [program.NAME.read] needs the package google-re2, which this Python"
            f" lacks: install it there ({error})"
        ) from error
    options = re2.Options()
    options.max_mem = _MEMORY
    options.log_errors = False
    try:
        return re2.compile(text.encode(), options)
    except re2.error as error:
        if re.search(_DEAR, text):
            raise PatternError(_EXPLODES) from None
        why = "".join(map(_text, error.args[:1]))
        if "too large" in why or "repetition" in why:
            raise PatternError(
                f"explodes when its repetitions are written out ({why[:100]}): repeat less"
            ) from None
        raise PatternError(f"is no pattern that RE2 reads: {why[:100]}") from None


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def fixed_texts(text: str) -> tuple[str, ...]:
    """Strings of which each line that a pattern fits has one: the longest that all of them have,
    else the ten digits, for a pattern with numbers alone."""
    parsed = _parsed(text)
    if parsed.state.flags & re.IGNORECASE:
        return _DIGITS
    best = max(_runs_of(parsed), key=_worth, default="")
    return (best,) if _worth(best) else _DIGITS


def _worth(text: str) -> int:
    # A string without a letter or a digit is in too many lines to look for.
    return len(text) if any(map(str.isalnum, text)) else 0


def _runs_of(items: Iterable[Any]) -> Iterator[str]:
    names = _parser()
    run = ""
    for kind, value in items:
        if kind is names.LITERAL:
            run += chr(value)
            continue
        if kind is names.AT:  # a place, which takes no letter
            continue
        yield run
        run = ""
        if kind is names.SUBPATTERN and not value[1] & re.IGNORECASE:
            yield from _runs_of(value[3])
        elif kind in (names.MAX_REPEAT, names.MIN_REPEAT) and value[0] > 0:
            yield from _runs_of(value[2])
    yield run
