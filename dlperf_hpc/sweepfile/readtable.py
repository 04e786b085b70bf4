"""``[program.NAME.read]``: what a program prints, as a table. The same table in a file of its own
serves ``report --format-file``.

It names a log format that is known, or tells one: a pattern of the lines with figures, what these
figures are, and how the iterations are counted. :mod:`dlperf_hpc.logs.tableformat` makes a format
of it. ``fail`` and ``must`` say by which lines a run has failed, and which it must have.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from dlperf_hpc.errors import Issue, nearest, toml_text
from dlperf_hpc.sweepfile.patterns import LONGEST, PatternError, compiled

GROUPS: Mapping[str, str] = {
    "iteration": "number of the iteration",
    "epoch": "number of the epoch, where the iterations of each are counted anew",
    "printed": "the speed, or the time of an iteration, that `printed` describes",
    "loss": "loss; one that is not finite up to the window's end is a failure",
    "time": "date and time, time of day, seconds since 1970, or seconds since the program began",
    "global_batch": "samples of an optimizer step over all devices, where batches differ",
    "consumed": "samples trained so far, over all devices",
    "lr": "learning rate",
    "memory_mb": "memory of a device (MB)",
    "rank": "rank of the process that prints the line",
}
"""Groups that ``line`` may have."""
UNITS = (
    *("samples/s", "tokens/s", "tokens/s without padding"),
    *("iterations/s", "ms/iteration", "s/iteration"),
)
"""Units that samples/s or tokens/s follow from. Any other rate is a figure of its own."""
SCOPES = ("all", "device", "process")
AVERAGINGS = ("since-last-line", "last-iteration", "running")
COUNTS = ("optimizer-steps", "micro-steps")
MOST_PATTERNS = 100
HIGHEST = 10**9

BY_ITERATION = ("iterations/s", "ms/iteration", "s/iteration")
_OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "samples/s": ("images/s", "img/s", "imgs/s", "sequences/s", "seq/s", "examples/s", "records/s",
                  "samples/sec", "images/sec", "img/sec"),
    "tokens/s": ("tok/s", "tks/s", "tokens/sec", "tok/sec", "token/s"),
    "iterations/s": ("it/s", "iter/s", "steps/s", "step/s", "batches/s"),
    "s/iteration": ("s/it", "s/step", "sec/step", "s/iter"),
    "ms/iteration": ("ms/it", "ms/step", "ms/iter"),
}  # fmt: skip
_OWN_UNIT = re.compile(r"[A-Za-z][A-Za-z0-9 .-]{0,36}/s")
_BESIDE_LINE = ("printed", "counts", "first", "each")


@dataclass(frozen=True)
class PrintedFigure:
    """What the group ``printed`` holds: that number times ``scale`` is in ``unit``."""

    unit: str
    scope: str = SCOPES[0]
    averaging: str = AVERAGINGS[0]
    scale: float = 1.0


@dataclass(frozen=True)
class ReadTable:
    """How a program's lines are read. ``format`` is a known format, '' for what the lines show.
    ``line`` is the pattern of a line with figures, ``first`` the number that the program gives its
    first iteration; ``each``: no number is printed, and a line comes at each multiple of this one.
    ``counts`` is '' where nobody says what the numbers count: optimizer steps. ``total`` is the
    pattern of the figure of a whole run, which is in ``unit``."""

    format: str = ""
    line: str = ""
    printed: PrintedFigure | None = None
    counts: str = ""
    first: int = 1
    each: int = 0
    total: str = ""
    unit: str = ""
    fail: tuple[str, ...] = ()
    must: tuple[str, ...] = ()

    @property
    def tells_format(self) -> bool:
        """Whether it tells a format of its own."""
        return bool(self.line or self.total)

    @property
    def has_iterations(self) -> bool:
        """Whether lines with iterations are to come: a program that prints none may hang."""
        return bool(self.format or self.line)

    def to_dict(self) -> dict[str, Any]:
        """The table as :mod:`.programtables` reads it, without defaults; plain JSON."""
        plain = {key: value for key, value in vars(self).items() if value != _DEFAULTS[key]}
        for name in plain.keys() & {"fail", "must"}:
            plain[name] = list(plain[name])
        if self.printed is not None:
            plain["printed"] = dict(vars(self.printed))
        return plain


_DEFAULTS = {f.name: f.default for f in fields(ReadTable)}


def is_unit(text: str) -> bool:
    """Whether a figure may be in this unit: one of :data:`UNITS`, or another rate."""
    if text in UNITS:
        return True
    return _meant_unit(text) is None and _OWN_UNIT.fullmatch(text) is not None


def unit_issue(where: str, text: str) -> Issue | None:
    """Why a text is no unit, and which unit may be meant; None for one that is."""
    if is_unit(text):
        return None
    meant = _meant_unit(text)
    hint = f"there are: {', '.join(UNITS)}; any other is a rate that ends in /s: GFLOP/s"
    if meant is not None:
        hint = f"it is written {meant!r} here"
    return Issue(where, f"there is no unit {text!r}", hint)


def _meant_unit(text: str) -> str | None:
    """The unit of :data:`UNITS` that other programs call so, or that is spelt nearly so."""
    import difflib

    called = [unit for unit, names in _OTHER_NAMES.items() if text.lower() in names]
    close = called or difflib.get_close_matches(text[:LONGEST], UNITS, n=1, cutoff=0.85)
    return next(iter(close), None)


def misuses(read: ReadTable) -> Iterator[Issue]:
    """What is wrong with the patterns of a table, and between its keys whose values hold each."""
    no_patterns = list(_no_patterns(read))
    yield from no_patterns
    if no_patterns:
        return
    if read.format:
        for key in _of_own_format(read, "line", *_BESIDE_LINE, "total", "unit"):
            hint = "leave one of the two out: a known format tells all of it itself"
            yield Issue(key, f"stands beside format = {read.format!r}", hint)
        return
    if read.total or read.unit:
        yield from _misused_total(read)
    if read.line:
        yield from _misused_line(read)
        return
    for key in _of_own_format(read, *_BESIDE_LINE):
        yield Issue(key, "is of no use without line", "write line, or leave it out")


def _of_own_format(read: ReadTable, *keys: str) -> list[str]:
    """Those of the keys whose value is another than the default."""
    return [key for key in keys if getattr(read, key) != _DEFAULTS[key]]


def _no_patterns(read: ReadTable) -> Iterator[Issue]:
    """What is wrong with each text that is to be a pattern."""
    texts = {key: getattr(read, key) for key in ("line", "total") if getattr(read, key)}
    for key in ("fail", "must"):
        texts.update({f"{key}[{i}]": text for i, text in enumerate(getattr(read, key))})
    for where, text in texts.items():
        try:
            compiled(text)
        except PatternError as error:
            yield Issue(where, f"{toml_text(text)} {error}", "docs/programs.md has an example")


def _misused_total(read: ReadTable) -> Iterator[Issue]:
    if not read.total:
        hint = "write total = '... ([0-9.]+) ...', or the unit of lines in printed.unit"
        yield Issue("unit", "is that of total, which is missing", hint)
        return
    captures = compiled(read.total).captures
    if captures != 1:
        hint = "write brackets around the figure alone; others are written (?:...)"
        yield Issue("total", f"has {captures} groups, and must have one", hint)
    if not read.unit:
        hint = f"one of {', '.join(UNITS)}, or a rate of its own, as GFLOP/s"
        yield Issue("unit", "is missing: that of total", hint)


def _misused_line(read: ReadTable) -> Iterator[Issue]:
    groups = compiled(read.line).groups
    there = f"there are: {', '.join(GROUPS)}"
    strange = [name for name in groups if name not in GROUPS]
    for name in strange:
        yield Issue("line", f"there is no group {name!r}", nearest(name, GROUPS) or there)
    if not groups:
        hint = f"name what is to be read, as (?P<iteration>[0-9]+); {there}"
        yield Issue("line", "has no group with a name that is known", hint)
    elif not strange:
        yield from _misused_groups(read, groups)


def _misused_groups(read: ReadTable, groups: Collection[str]) -> Iterator[Issue]:
    """What is wrong between the groups of ``line`` and the keys that say what they hold."""
    yield from _misused_counting(read, groups)
    if "printed" in groups and read.printed is None:
        hint = 'write printed = { unit = "tokens/s", scope = "device" }'
        yield Issue("printed", "is missing: what the group printed of line is", hint)
    elif read.printed is not None and "printed" not in groups:
        hint = "write (?P<printed>[0-9.]+) where the figure stands in line"
        yield Issue("printed", "is told, and line has no group of that name", hint)


def _misused_counting(read: ReadTable, groups: Collection[str]) -> Iterator[Issue]:
    if read.each and "iteration" in groups:
        hint = "leave out each where the lines print their iteration"
        yield Issue("each", "stands beside the group iteration of line", hint)
    elif not read.each and "iteration" not in groups:
        hint = "add (?P<iteration>[0-9]+), or each = 10: iterations from a line to the next"
        yield Issue("line", "has no group iteration", hint)
