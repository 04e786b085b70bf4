"""Whether the last line of a file, which has no newline, was written to its end."""

from __future__ import annotations

import re

_NO_DIGITS = bytes(code for code in range(256) if not 48 <= code <= 57)
_LAST_NUMBER = re.compile(rb"(?<![0-9.eE+-])[0-9]{1,15}\.([0-9]{2,4})\Z")


def is_whole(line: bytes, earlier: bytes, before: bytes, is_known: bool) -> bool:
    """Whether a line was written to its end, by the last two lines that hold the same needles:
    ``earlier``, and ``before`` it.

    Where a number was cut cannot be seen, but the text behind the last number can be compared with
    earlier lines. A line that ends with a dictionary is whole if all that it opened is closed and
    it holds a needle (``is_known``); one that ends with a number, if it is the same figure as that
    of the two lines before it, with as many decimals.
    """
    tail = _tail(line)
    if tail:
        return tail == _tail(earlier) or (is_known and _is_closed(line))
    places = _places(line)
    return places is not None and places == _places(earlier) == _places(before)


def _tail(line: bytes) -> bytes:
    """What follows the last digit."""
    return line[len(line.rstrip(_NO_DIGITS)) :] if line else b""


def _is_closed(line: bytes) -> bool:
    """Whether a line ends with the end of a dictionary, and leaves none open."""
    opened = line.count(b"{")
    return line.rstrip().endswith(b"}") and opened == line.count(b"}") > 0


def _places(line: bytes) -> tuple[bytes, int] | None:
    """What stands before the number with which a line ends, behind the number before that, and its
    decimals; None if they are so few or so many that it may not be printed with a fixed number of
    them."""
    match = _LAST_NUMBER.search(line)
    return (_tail(line[: match.start()]), len(match[1])) if match else None
