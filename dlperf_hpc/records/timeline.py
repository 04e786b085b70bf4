"""The iteration lines of a log: when the window opened, and what each iteration took."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

_ITERATION = re.compile(
    rb"^dlperf (\S{27}) iteration n=([0-9]+)(?: loss=\S+)? ms=([0-9.eE+-]+)\r?$", re.MULTILINE
)
_OPENED = re.compile(rb"^dlperf (\S{27}) window_open iteration=([0-9]+)\r?$", re.MULTILINE)


_STAMPED = len("dlperf 2026-11-21T14:53:20.696482Z")


@dataclass(frozen=True)
class Timeline:
    """The iteration lines of a log: numbers of the line and of the iteration before the window,
    stamps (the first is the window's opening), and milliseconds."""

    before: int
    numbers: tuple[int, ...]
    stamps: Sequence[bytes]
    ms: Sequence[float]

    def seconds(self, first: int, last: int) -> float:
        """Time between two stamps. ValueError if one of them is none."""
        opened, ended = (
            datetime.fromisoformat(self.stamps[place][:-1].decode("ascii"))
            for place in (first, last)
        )
        return (ended - opened).total_seconds()


def read_timeline(data: bytes) -> tuple[Timeline | None, slice]:
    """The iteration lines in a log, None if there are none that can be read; and where they stand
    with nothing else between, so that nobody need look there again."""
    try:
        start = data.find(b" window_open iteration=") - _STAMPED
        end = data.find(b" communication ", start) - _STAMPED
        begins = 0 < start < end and data[start - 1 : start] == b"\n"
        found = _as_written(data[start:end]) if begins else None
        if found is not None:
            return found, slice(start, end)
        return _line_by_line(data), slice(0, 0)
    except (ValueError, IndexError, OverflowError):
        return None, slice(0, 0)


def _as_written(block: bytes) -> Timeline | None:
    """Of lines as the wrapper writes them, in one block with nothing between: the quick way."""
    words = block.split()
    count, rest = divmod(len(words) - 4, 6)
    if rest or count < 1 or block.count(b"\n") != 1 + count or block[-1:] != b"\n":
        return None
    if not words[4::6].count(b"dlperf") == words[6::6].count(b"iteration") == count:
        return None
    if words[4] != b"dlperf" or words[9][:3] != b"ms=" or words[8][:5] != b"loss=":
        return None
    return Timeline(
        before=int(words[3][10:]),
        numbers=_numbers(b" ".join(words[7::6])),
        stamps=[words[1], *words[5::6]],
        ms=[float(word[3:]) for word in words[9::6]],
    )


@functools.lru_cache(maxsize=64)
def _numbers(text: bytes) -> tuple[int, ...]:
    """Of ``n=6 n=7``: the runs of a sweep have the same, for the most part."""
    return tuple(int(word[2:]) for word in text.split())


def _line_by_line(data: bytes) -> Timeline | None:
    opened, found = _OPENED.search(data), _ITERATION.findall(data)
    if opened is None or not found:
        return None
    stamps, numbers, ms = zip(*found)
    return Timeline(
        before=int(opened[2]),
        numbers=tuple(map(int, numbers)),
        stamps=[opened[1], *stamps],
        ms=list(map(float, ms)),
    )
