"""A log format made of a table: ``[program.NAME.read]``, or a file of ``report --format-file``.

It tells what a module of :mod:`dlperf_hpc.logs.formats` tells, and is read by the same reader. The
pattern of a line is a :class:`.format.LinePattern`; the longest text that each line has which fits
it is the literal.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from dlperf_hpc.logs.format import OUR_OWN, Format, Groups, Line, LinePattern, ReadingBuilder
from dlperf_hpc.logs.formats import formats
from dlperf_hpc.logs.lineparts import full_stamp, without_commas
from dlperf_hpc.logs.scanned import Averaging, Counter, Evidence, Printed, Scope, Stamps, Unit
from dlperf_hpc.sweepfile.patterns import Pattern, compiled, fixed_texts
from dlperf_hpc.sweepfile.readtable import PrintedFigure, ReadTable

_SCOPES = {"all": Scope.ALL, "device": Scope.DEVICE, "process": Scope.PROCESS}
_AVERAGINGS = {
    "since-last-line": Averaging.SINCE_LAST,
    "last-iteration": Averaging.LAST_ONE,
    "running": Averaging.RUNNING,
}
_COUNTERS = {"optimizer-steps": Counter.OPTIMIZER_STEPS, "micro-steps": Counter.MICRO_STEPS}
_AS_THEY_STAND = ("loss", "lr", "memory_mb", "global_batch", "consumed")

_PLAIN = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?")
_OF_A_DAY = re.compile(r"([0-9]{1,2}):([0-9]{2}):([0-9]{2}(?:[.,][0-9]{1,9})?)")
_SINCE_1970 = 1e9  # seconds: no run lasts as long
_MOST_DIGITS = 18


def wanted_formats(table: ReadTable, name: str) -> list[Format]:
    """The formats by which a program's lines are read: the table's own, the known one that it
    names, or all that are known. PatternError for a pattern that is none."""
    if table.tells_format:
        return [format_of(table, name)]
    known = [each for each in formats() if each.name != OUR_OWN]
    return [each for each in known if table.format in ("", each.name)]


def own_name(name: str) -> str:
    """The name of a format that a table tells: no known one has it."""
    return f"read:{name}"


@lru_cache(maxsize=32)
def format_of(table: ReadTable, name: str) -> Format:
    """The format that a table tells; ``name`` is the program's, or the file's. PatternError for a
    pattern that is none."""
    step = compiled(table.line) if table.line else None
    total = compiled(table.total) if table.total else None

    def read_total(line: Line, builder: ReadingBuilder, figures: Groups) -> None:
        _add_total(table, line, builder, figures["total"])

    def read_step(line: Line, builder: ReadingBuilder, figures: Groups) -> None:
        _add_step(table, line, builder, figures)
        totals.read(line, builder)  # a line may be both

    totals = LinePattern(table.total, find=_first(total), take=read_total)
    own = [totals]
    if step:
        own.insert(0, LinePattern(table.line, find=step.named, take=read_step))
    literals = (literal for each in (step, total) for literal in _literals(each))
    return Format(
        name=own_name(name),
        title=f"lines as a table tells them ({name})",
        framework=name,
        evidence=Evidence.TOML,
        source="",
        literals=tuple(dict.fromkeys(literals)),
        own=tuple(own),
        printed=_printed(table),
        counter=_COUNTERS[table.counts],
    )


def _first(pattern: Pattern | None) -> Callable[[str], Groups | None]:
    """A search for the figure of a whole run."""

    def find(text: str) -> Groups | None:
        figure = pattern.first(text) if pattern else None
        return None if figure is None else {"total": figure}

    return find


def _literals(pattern: Pattern | None) -> tuple[str, ...]:
    return fixed_texts(pattern.text) if pattern else ()


def _printed(table: ReadTable) -> Printed:
    printed = table.printed
    if printed is None:
        # What the lines of iterations lack, the total has; its unit says what the figure is.
        own = table.unit if table.total and _unit(table.unit) is Unit.OWN else ""
        return Printed(Unit.OWN, name=own) if own else Printed()
    return _described(printed)


def _described(printed: PrintedFigure) -> Printed:
    unit = _unit(printed.unit)
    return Printed(
        unit,
        _SCOPES[printed.scope],
        _AVERAGINGS[printed.averaging],
        printed.scale,
        name=printed.unit if unit is Unit.OWN else "",
    )


def _unit(text: str) -> Unit:
    return next((unit for unit in Unit if unit.value == text), Unit.OWN)


def _add_total(table: ReadTable, line: Line, builder: ReadingBuilder, text: str) -> None:
    unit = _unit(table.unit)
    name = table.unit if unit is Unit.OWN else "total"
    builder.total(line, name, without_commas(text), unit)


def _add_step(table: ReadTable, line: Line, builder: ReadingBuilder, figures: Groups) -> None:
    if figures.get("rank", "").isdecimal() and len(figures["rank"]) <= _MOST_DIGITS:
        line = line._replace(rank=int(figures["rank"]))
    done = _next_line(table, line, builder) if table.each else _done(table, line, builder, figures)
    if done is None:
        return
    stamp = _stamp(figures.get("time", ""))
    if "time" in figures and stamp is None:
        builder.note(line, f"time {figures['time'][:40]!r} is no time that is known")
    seconds, kind = stamp or (None, Stamps.ABSOLUTE)
    printed = figures.get("printed")
    builder.step(
        line,
        done,
        stamp=seconds,
        stamps=kind,
        printed=None if printed is None else without_commas(printed),
        **{name: without_commas(figures[name]) for name in _AS_THEY_STAND if name in figures},
    )


def _next_line(table: ReadTable, line: Line, builder: ReadingBuilder) -> int:
    """Iterations done, of a program that prints no number: each process counts its own lines."""
    seen: dict[int | None, int] = builder.state.setdefault("lines", {})
    seen[line.rank] = seen.get(line.rank, 0) + 1
    return seen[line.rank] * table.each


def _done(table: ReadTable, line: Line, builder: ReadingBuilder, figures: Groups) -> int | None:
    """Iterations done by a line's number; None for one that is none, which is noted."""
    number, epoch = _whole(figures.get("iteration")), _whole(figures.get("epoch"))
    if number is None or (epoch is None and "epoch" in figures):
        what = "iteration" if number is None else "epoch"
        builder.note(line, f"{what} {figures.get(what, '')[:40]!r} is no number")
        return None
    done = number - table.first + 1
    if done < 0:
        builder.note(line, f"iteration {number} is below the first, {table.first}")
        return None
    if epoch is None:
        return done
    if builder.printed.averaging is Averaging.RUNNING:
        return builder.in_epoch(line, epoch, done)
    return builder.over_epochs(line, epoch, done)


def _whole(text: str | None) -> int | None:
    digits = without_commas(text or "").strip()
    return int(digits) if digits.isdecimal() and len(digits) <= _MOST_DIGITS else None


def _stamp(text: str) -> tuple[float, Stamps] | None:
    """Seconds, and on which time line; None for a text that is no time."""
    full = full_stamp(text)
    if full is not None:
        return full, Stamps.ABSOLUTE
    day = _OF_A_DAY.fullmatch(text)
    if day is not None:
        hours, minutes, seconds = int(day[1]), int(day[2]), float(day[3].replace(",", "."))
        return 3600 * hours + 60 * minutes + seconds, Stamps.TIME_ONLY
    if _PLAIN.fullmatch(text) is None:
        return None
    number = float(text)
    return number, Stamps.ABSOLUTE if number >= _SINCE_1970 else Stamps.ELAPSED
