"""A format's usual lines, many at once.

Nearly all figures of a log stand in lines of one form, and what they cost is what Python does for
each. A format may tell that form as one pattern: runs of such lines are then taken apart by a
single call. Whatever is unusual in a run (a line of another form, a number that is none, a setting
that changes) leaves all of it to the format's ``read``: rows say the same, only faster.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Any

from dlperf_hpc.logs.scan.stamps import absl_stamps, full_stamps
from dlperf_hpc.logs.scanned import FACTS, Stamps, Step

HIGHEST = 1e15
"""No speed, loss or stamp of anybody's is beyond this: a larger number is damage."""

WHOLE = r"[0-9]{1,15}"
DECIMAL = r"-?[0-9]{1,15}(?:\.[0-9]{1,25})?(?:[eE][-+][0-9]{1,2})?"
"""A number as it is printed if all is well."""

FULL_STAMP = r"[0-9]{4}[-/][0-9]{2}[-/][0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?"
ABSL_STAMP = r"[0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}"

_FLOATS = ("printed", "loss", "lr", "memory_mb")
_STAMPS: Mapping[str, tuple[Stamps, Callable[[Sequence[str]], list[float] | None]]] = {
    "full": (Stamps.ABSOLUTE, full_stamps),
    "absl": (Stamps.NO_YEAR, absl_stamps),
    "epoch": (Stamps.ABSOLUTE, lambda texts: list(map(float, texts))),
}


@dataclass(frozen=True)
class Rows:
    """The form of a whole line, as a pattern that spans no line's end.

    Its groups are named as the fields of :class:`~dlperf_hpc.logs.scanned.Step` that they are:
    ``iteration`` or, if it counts from 0, ``index``; ``printed``, ``loss``, ``lr``, ``memory_mb``;
    for the stamp ``full``, ``absl`` (as :mod:`dlperf_hpc.logs.scan.stamps` reads them) or ``epoch``
    (seconds since then); and as the settings that a line repeats. ``usual`` says of a draft and the
    texts of a run's groups, by their names, whether nothing else is to be done for them.
    """

    pattern: str
    usual: Callable[[Any, Mapping[str, Sequence[str]]], bool] = lambda draft, columns: True

    @cached_property
    def _lines(self) -> re.Pattern[str]:
        return re.compile(f"^(?:{self.pattern})$", re.ASCII | re.MULTILINE)

    def read(
        self, text: str, numbers: Sequence[int], ranks: Sequence[int | None], draft: Any
    ) -> bool:
        """Tell the draft of lines, joined by line ends in ``text``; False, and nothing told, if one
        is unusual. ``numbers`` and ``ranks`` are the lines'."""
        found = self._lines.findall(text)
        if len(found) != len(numbers):
            return False
        names = self._lines.groupindex
        every = dict(zip(names, zip(*found) if len(names) > 1 else [found]))
        columns = {name: column for name, column in every.items() if any(column)}
        if any(["" in column for column in columns.values()]):
            return False  # what only some of the lines have
        steps = _steps(columns, numbers, ranks)
        if steps is None or not draft.has_room(len(steps)) or not _said(columns, draft):
            return False
        if not self.usual(draft, columns):
            return False
        draft.steps.extend(steps)
        for name, (kind, _) in _STAMPS.items():
            if name in columns:
                draft.stamps = kind
        return True


def _steps(
    columns: Mapping[str, Sequence[str]], numbers: Sequence[int], ranks: Sequence[int | None]
) -> list[Step] | None:
    values = [_floats(columns[name], name) if name in columns else repeat(None) for name in _FLOATS]
    stamps: Any = repeat(None)
    for name, (_, read) in _STAMPS.items():
        if name in columns:
            stamps = read(columns[name])
    if stamps is None or None in values:
        return None
    first = 1 if "index" in columns else 0
    iterations = [int(text) + first for text in columns["index" if first else "iteration"]]
    return list(map(Step, numbers, iterations, ranks, stamps, *values))


def _floats(texts: Sequence[str], name: str) -> list[float] | None:
    """The numbers, if all of them can be what they are."""
    values = list(map(float, texts))
    if max(values) > HIGHEST or min(values) < -HIGHEST or (name == "printed" and min(values) <= 0):
        return None
    return values


def _said(columns: Mapping[str, Sequence[str]], draft: Any) -> bool:
    """Whether every line repeats the settings that were told last."""
    return all(
        {draft.latest(name)} == set(map(FACTS[name], set(columns[name])))
        for name in columns
        if name in FACTS
    )
