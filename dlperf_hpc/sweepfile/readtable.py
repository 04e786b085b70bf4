"""``[program.NAME.read]``: what a program prints, as a table. The same table in a file of its own
serves ``report --format-file``.

It names a log format that is known, or tells one: a pattern of the lines with figures, what these
figures are, and how the iterations are counted. :mod:`dlperf_hpc.logs.tableformat` makes a format
of it. ``fail`` and ``must`` say by which lines a run has failed, and which it must have.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from dlperf_hpc.errors import Issue, SpecError
from dlperf_hpc.sweepfile.patterns import Pattern, PatternError, compiled

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

_BY_ITERATION = ("iterations/s", "ms/iteration", "s/iteration")
_OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "samples/s": ("images/s", "img/s", "imgs/s", "sequences/s", "seq/s", "examples/s", "records/s",
                  "samples/sec", "images/sec", "img/sec"),
    "tokens/s": ("tok/s", "tks/s", "tokens/sec", "tok/sec", "token/s"),
    "iterations/s": ("it/s", "iter/s", "steps/s", "step/s", "batches/s"),
    "s/iteration": ("s/it", "s/step", "sec/step", "s/iter"),
    "ms/iteration": ("ms/it", "ms/step", "ms/iter"),
}  # fmt: skip
_OWN_UNIT = re.compile(r"[A-Za-z][A-Za-z0-9 .-]{0,36}/s")
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_MOST_PATTERNS = 100
_HIGHEST = 10**9
_TOP = "file"  # where a table's keys stand at the top of a file


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

    ``line`` is the pattern of a line with figures, ``first`` the number that is printed for the
    first iteration; ``each``: no number is printed, and so many iterations lie between two lines.
    ``total`` is the pattern of the figure of a whole run, which is in ``unit``.
    """

    format: str = ""
    line: str = ""
    printed: PrintedFigure | None = None
    counts: str = COUNTS[0]
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
        """The table as :func:`read_table` reads it, without what is as by default; plain JSON."""
        told = {f.name: getattr(self, f.name) for f in fields(self)}
        plain = {name: value for name, value in told.items() if value != _DEFAULTS[name]}
        if self.printed is not None:
            plain["printed"] = dict(vars(self.printed))
        return {name: list(v) if isinstance(v, tuple) else v for name, v in plain.items()}


_DEFAULTS = {f.name: f.default for f in fields(ReadTable)}


def read_table(
    where: str, table: Any, formats: Iterable[str] | None = None, check: bool = True
) -> tuple[ReadTable, list[Issue]]:
    """The value of a table that stands at ``where``, and what is wrong with it.

    ``formats`` are the log formats that there are; without them ``format`` is not looked up.
    ``check``: patterns are compiled; a table that was checked before need not be.
    """
    reader = _Reader(where, formats, check)
    if not isinstance(table, dict):
        reader.say("", f"{_shown(table)} is invalid", f"write a table, as [{where}]")
        return ReadTable(), reader.issues
    read = reader.table(table)
    return (ReadTable() if reader.issues else read), reader.issues


def read_table_file(path: Path, formats: Iterable[str]) -> tuple[str, ReadTable]:
    """Name and table of a file for ``--format-file``: the keys stand at its top, or where a program
    has them: below [read] in a file of its own, below [program.NAME.read] in a sweep's of which no
    other program has any. SpecError for a file that tells no format."""
    from dlperf_hpc.sweepfile.tomlfile import read_toml

    name, where, table = _table_in(path, read_toml(path)[1])
    read, issues = read_table(where, table, formats)
    if not issues and not read.tells_format:
        told = f"names the known format {read.format!r}" if read.format else "tells no format"
        hint = "write line, or total with its unit: docs/programs.md; a known format needs no file"
        issues = [Issue("line", f"{path.name} {told}", hint)]
    if issues:
        raise SpecError(str(path), issues)
    return _NO_NAME.sub("_", name)[:64], read


def _table_in(path: Path, tables: Mapping[str, Any]) -> tuple[str, str, Any]:
    """Name of a file's format, where its table stands, and the table."""
    if isinstance(tables.get("read"), dict):
        return path.stem, "read", tables["read"]
    if not isinstance(tables.get("program"), dict):
        return path.stem, _TOP, tables
    told = {
        n: t["read"] for n, t in tables["program"].items() if isinstance(t, dict) and "read" in t
    }
    if len(told) == 1:
        ((name, table),) = told.items()
        return name, f"program.{name}.read", table
    hint = "copy the keys of the one that you mean into a file of its own"
    message = f"{len(told)} programs have a table [program.NAME.read]"
    raise SpecError(str(path), [Issue("program", message, hint)])


class _Reader:
    """Reads the values of one table; what is wrong with them becomes ``issues``."""

    def __init__(self, where: str, formats: Iterable[str] | None, check: bool) -> None:
        self.where = where
        self.formats = None if formats is None else list(formats)
        self.check = check
        self.issues: list[Issue] = []

    def say(self, key: str, message: str, hint: str | None = None) -> None:
        place = self.where if not key else key if self.where == _TOP else f"{self.where}.{key}"
        self.issues.append(Issue(place, message, hint))

    def table(self, table: Mapping[str, Any]) -> ReadTable:
        for key in table:
            if key not in _DEFAULTS:
                self.say(key, f"unknown key {key!r}", _near(key, _DEFAULTS))
        read = ReadTable(
            format=self._format(table.get("format", "")),
            line=self._text("line", table.get("line", "")),
            printed=self._printed(table["printed"]) if "printed" in table else None,
            counts=self._one_of("counts", table.get("counts", COUNTS[0]), COUNTS),
            first=self._count("first", table.get("first", 1), 0),
            each=self._count("each", table.get("each", 1), 1) if "each" in table else 0,
            total=self._text("total", table.get("total", "")),
            unit=self._text("unit", table.get("unit", "")),
            fail=self._patterns("fail", table.get("fail", [])),
            must=self._patterns("must", table.get("must", [])),
        )
        if not self.issues:
            self._check_together(read, table)
        return read

    # --- one key

    def _text(self, key: str, value: Any) -> str:
        if isinstance(value, str):
            return value
        self.say(key, f"{_shown(value)} is invalid", "write text in single quotes: '...'")
        return ""

    def _count(self, key: str, value: Any, least: int) -> int:
        if type(value) is int and least <= value <= _HIGHEST:
            return value
        self.say(key, f"{_shown(value)} is invalid", f"write a whole number from {least} on")
        return least

    def _one_of(self, key: str, value: Any, known: Iterable[str]) -> str:
        if isinstance(value, str) and value in known:
            return value
        there = f"there are: {', '.join(known)}"
        hint = _near(value, known)
        self.say(key, f"there is no {_shown(value)}", f"{hint} {there}" if hint else there)
        return ""

    def _format(self, value: Any) -> str:
        name = self._text("format", value)
        if name and self.formats is not None and name not in self.formats:
            hint = _near(name, self.formats) or "`dlperf report --formats` lists them"
            self.say("format", f"there is no log format {name!r}", hint)
        return name

    def _patterns(self, key: str, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or len(value) > _MOST_PATTERNS:
            hint = f"write a list of at most {_MOST_PATTERNS} patterns, each in single quotes"
            self.say(key, f"{_shown(value)} is invalid", hint)
            return ()
        found = tuple(self._text(f"{key}[{i}]", each) for i, each in enumerate(value))
        for i, each in enumerate(found):
            self._compiled(f"{key}[{i}]", each)
        return found

    def _compiled(self, key: str, text: str) -> Pattern | None:
        """The pattern; None if it is none, or need not be checked."""
        if not self.check:
            return None
        try:
            return compiled(text)
        except PatternError as error:
            self.say(key, f"{_shown(text)} {error}", "docs/programs.md has an example")
            return None

    def _printed(self, value: Any) -> PrintedFigure | None:
        known = [f.name for f in fields(PrintedFigure)]
        form = '{ unit = "tokens/s", scope = "device" }'
        if not isinstance(value, dict):
            self.say("printed", f"{_shown(value)} is invalid", f"write a table: {form}")
            return None
        for key in value:
            if key not in known:
                self.say(f"printed.{key}", f"unknown key {key!r}", _near(key, known))
        if "unit" not in value:
            self.say("printed.unit", "is missing", f"say what the figure is: {form}")
            return None
        unit = self._unit("printed.unit", value["unit"])
        if "scope" not in value and unit not in _BY_ITERATION:
            hint = f"say of what the figure is: one of {', '.join(SCOPES)}"
            self.say("printed.scope", "is missing", hint)
        scale = value.get("scale", 1.0)
        if type(scale) not in (int, float) or not 0 < scale <= _HIGHEST:
            hint = "write what one of the printed figure stands for: 1000 for thousands of tokens"
            self.say("printed.scale", f"{_shown(scale)} is invalid", hint)
            scale = 1.0
        averaging = value.get("averaging", AVERAGINGS[0])
        return PrintedFigure(
            unit=unit,
            scope=self._one_of("printed.scope", value.get("scope", SCOPES[0]), SCOPES),
            averaging=self._one_of("printed.averaging", averaging, AVERAGINGS),
            scale=float(scale),
        )

    def _unit(self, key: str, value: Any) -> str:
        """A unit that is known, or another rate: more of it is faster."""
        text = self._text(key, value)
        if text in UNITS:
            return text
        meant = [unit for unit, others in _OTHER_NAMES.items() if text.lower() in others]
        meant = meant or difflib.get_close_matches(text, UNITS, n=1, cutoff=0.85)
        if meant:
            self.say(key, f"there is no unit {text!r}", f"it is written {meant[0]!r} here")
        elif not _OWN_UNIT.fullmatch(text):
            hint = f"there are: {', '.join(UNITS)}; any other is a rate that ends in /s: GFLOP/s"
            self.say(key, f"there is no unit {_shown(value)}", hint)
        return text

    # --- what keys mean together

    def _check_together(self, read: ReadTable, table: Mapping[str, Any]) -> None:
        if read.format:
            for key in ("line", "printed", "counts", "first", "each", "total", "unit"):
                if key in table:
                    hint = "leave one of the two out: a known format tells all of it itself"
                    self.say(key, f"stands beside format = {read.format!r}", hint)
            return
        if read.total or read.unit:
            self._check_total(read)
        if read.line:
            self._check_line(read, table)
            return
        for key in ("printed", "counts", "first", "each"):
            if key in table:
                self.say(key, "is of no use without line", "write line, or leave it out")

    def _check_total(self, read: ReadTable) -> None:
        if not read.total:
            hint = "write total = '... ([0-9.]+) ...', or the unit of lines in printed.unit"
            self.say("unit", "is that of total, which is missing", hint)
            return
        pattern = self._compiled("total", read.total)
        if pattern is not None and pattern.captures != 1:
            hint = "write brackets around the figure alone; others are written (?:...)"
            self.say("total", f"has {pattern.captures} groups, and must have one", hint)
        if not read.unit:
            hint = f"one of {', '.join(UNITS)}, or a rate of its own, as GFLOP/s"
            self.say("unit", "is missing: that of total", hint)
        else:
            self._unit("unit", read.unit)

    def _check_line(self, read: ReadTable, table: Mapping[str, Any]) -> None:
        pattern = self._compiled("line", read.line)
        if pattern is None:
            return
        there = f"there are: {', '.join(GROUPS)}"
        strange = [name for name in pattern.groups if name not in GROUPS]
        for name in strange:
            self.say("line", f"there is no group {name!r}", f"{_near(name, GROUPS) or there}")
        if not pattern.groups:
            hint = f"name what is to be read, as (?P<iteration>[0-9]+); {there}"
            self.say("line", "has no group with a name that is known", hint)
        if strange or not pattern.groups:
            return
        self._check_counting(read, table, pattern)
        if "printed" in pattern.groups and read.printed is None:
            hint = 'write printed = { unit = "tokens/s", scope = "device" }'
            self.say("printed", "is missing: what the group printed of line is", hint)
        elif read.printed is not None and "printed" not in pattern.groups:
            hint = "write (?P<printed>[0-9.]+) where the figure stands in line"
            self.say("printed", "is told, and line has no group of that name", hint)

    def _check_counting(self, read: ReadTable, table: Mapping[str, Any], pattern: Pattern) -> None:
        counted = [name for name in ("iteration", "epoch") if name in pattern.groups]
        if read.each and counted:
            hint = "leave out each where the lines print their iteration"
            self.say("each", f"stands beside the group {counted[0]} of line", hint)
        elif read.each and "first" in table:
            hint = "leave it out: no number is printed"
            self.say("first", "stands beside each", hint)
        elif not read.each and "iteration" not in counted:
            hint = "add (?P<iteration>[0-9]+), or each = 10: iterations from a line to the next"
            self.say("line", "has no group iteration", hint)


def _near(name: Any, known: Iterable[str]) -> str | None:
    close = difflib.get_close_matches(str(name)[:100], list(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
