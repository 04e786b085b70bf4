"""A log format made of a table: ``[program.NAME.read]``, or a file of ``report --format-file``.

It tells what a module of :mod:`dlperf_hpc.logs.formats` tells, and is read by the same reader. The
pattern of a line is a :class:`.format.LinePattern`; the longest text that each line has which fits
it is the literal.
"""

from __future__ import annotations

import math
import re
from collections import Counter as Counts
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from dlperf_hpc.errors import printable
from dlperf_hpc.logs import scanned
from dlperf_hpc.logs.format import Format, Groups, Line, LinePattern, ReadingBuilder
from dlperf_hpc.logs.formats import formats
from dlperf_hpc.logs.lineparts import full_stamp, without_commas
from dlperf_hpc.model.case import Case
from dlperf_hpc.model.result import ExternalWindow
from dlperf_hpc.sweepfile.patterns import Pattern, compiled, fixed_texts
from dlperf_hpc.sweepfile.readtable import BY_ITERATION, PrintedFigure, ReadTable

_SCOPES = {
    "all": scanned.Scope.ALL,
    "device": scanned.Scope.DEVICE,
    "process": scanned.Scope.PROCESS,
}
_AVERAGINGS = {
    "since-last-line": scanned.Averaging.SINCE_LAST,
    "last-iteration": scanned.Averaging.LAST_ONE,
    "running": scanned.Averaging.RUNNING,
}
_COUNTERS = {"micro-steps": scanned.Counter.MICRO_STEPS}
_AS_THEY_STAND = ("loss", "lr", "memory_mb", "global_batch", "consumed")

_PLAIN = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?")
_OF_A_DAY = re.compile(r"([0-9]{1,2}):([0-9]{2}):([0-9]{2}(?:[.,][0-9]{1,9})?)")
_SINCE_1970 = 1e9  # seconds: no run lasts as long
_MOST_DIGITS = 18
_ROUND = re.compile(r"(?:1|2|25|5)0+|[125]")  # lines may well come at each multiple of these
_EXCEPTION = re.compile(r"\b[A-Z]\w{0,60}(?:Error|Exception): ")  # of Python, whichever it is
_LONGEST = 120  # characters of a line that is printed
_WORD = re.compile(r"[A-Za-z]{3,}")
_NEARLY = 0.05
_IN_STEP = 0.8  # of the iterations of another rank: those of one that waits for it
_BAR = re.compile(r"it/s|s/it")  # is drawn by time, at whichever number
_LEAST = 8  # of a batch that numbers may count: lines may come at each multiple of a smaller one
_FEW = 0.05  # of the lines that a pattern fits: a line or two at the beginning or the end


def wanted_formats(table: ReadTable, name: str) -> list[Format]:
    """The formats by which a program's lines are read: the table's own, the known one that it
    names, or all that are known. PatternError for a pattern that is none."""
    if table.tells_format:
        return [format_of(table, name)]
    known = [each for each in formats() if each.name != scanned.OUR_OWN]
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
    patterns = filter(None, (step, total))
    literals = (literal for pattern in patterns for literal in fixed_texts(pattern.text))
    return Format(
        name=own_name(name),
        title=f"lines as a table tells them ({name})",
        framework=name,
        evidence=scanned.Evidence.TOML,
        source="",
        literals=tuple(dict.fromkeys(literals)),
        own=tuple(own),
        printed=_printed(table),
        counter=_COUNTERS.get(table.counts, scanned.Counter.OPTIMIZER_STEPS),
    )


def _first(pattern: Pattern | None) -> Callable[[str], Groups | None]:
    def find(text: str) -> Groups | None:
        figure = pattern.first(text) if pattern else None
        return None if figure is None else {"total": figure}

    return find


def _printed(table: ReadTable) -> scanned.Printed:
    printed = table.printed
    if printed is None:
        # What the lines of iterations lack, the total has; its unit says what the figure is.
        own = table.unit if table.total and _unit(table.unit) is scanned.Unit.OWN else ""
        return scanned.Printed(scanned.Unit.OWN, name=own) if own else scanned.Printed()
    return _described(printed)


def _described(printed: PrintedFigure) -> scanned.Printed:
    unit = _unit(printed.unit)
    return scanned.Printed(
        unit,
        _SCOPES[printed.scope],
        _AVERAGINGS[printed.averaging],
        printed.scale,
        name=printed.unit if unit is scanned.Unit.OWN else "",
    )


def _unit(text: str) -> scanned.Unit:
    return next((unit for unit in scanned.Unit if unit.value == text), scanned.Unit.OWN)


def _add_total(table: ReadTable, line: Line, builder: ReadingBuilder, text: str) -> None:
    unit = _unit(table.unit)
    name = table.unit if unit is scanned.Unit.OWN else "total"
    builder.total(line, name, without_commas(text), unit)


def _add_step(table: ReadTable, line: Line, builder: ReadingBuilder, figures: Groups) -> None:
    if figures.get("rank", "").isdecimal() and len(figures["rank"]) <= _MOST_DIGITS:
        line = line._replace(rank=int(figures["rank"]))
    done = _done(table, line, builder, figures)
    if done is None:
        return
    stamp = _stamp(figures.get("time", ""))
    if "time" in figures and stamp is None:
        builder.note(line, f"time {figures['time'][:40]!r} is no time that is known")
    seconds, kind = stamp or (None, scanned.Stamps.ABSOLUTE)
    printed = figures.get("printed")
    builder.step(
        line,
        done,
        stamp=seconds,
        stamps=kind,
        printed=None if printed is None else without_commas(printed),
        **{name: without_commas(figures[name]) for name in _AS_THEY_STAND if name in figures},
    )


def _number(table: ReadTable, line: Line, builder: ReadingBuilder, epoch: int | None) -> int:
    """The number that a program does not print: in each epoch each process counts its own lines,
    which come at the multiples of ``each`` from the first iteration's number on."""
    seen: dict[tuple[int | None, int | None], int] = builder.state.setdefault("lines", {})
    place = line.rank, epoch
    seen[place] = seen.get(place, -1) + 1
    return (-(-table.first // table.each) + seen[place]) * table.each


def _done(table: ReadTable, line: Line, builder: ReadingBuilder, figures: Groups) -> int | None:
    """Iterations done by a line's number; None for one that is none, which is noted."""
    number, epoch = _whole(figures.get("iteration")), _whole(figures.get("epoch"))
    if table.each:
        number = _number(table, line, builder, epoch)
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
    if builder.printed.averaging is scanned.Averaging.RUNNING:
        return builder.in_epoch(line, epoch, done)
    return builder.over_epochs(line, epoch, done)


def _whole(text: str | None) -> int | None:
    digits = without_commas(text or "").strip()
    return int(digits) if digits.isdecimal() and len(digits) <= _MOST_DIGITS else None


def _stamp(text: str) -> tuple[float, scanned.Stamps] | None:
    full = full_stamp(text)
    if full is not None:
        return full, scanned.Stamps.ABSOLUTE
    day = _OF_A_DAY.fullmatch(text)
    if day is not None:
        hours, minutes, seconds = int(day[1]), int(day[2]), float(day[3].replace(",", "."))
        return 3600 * hours + 60 * minutes + seconds, scanned.Stamps.TIME_ONLY
    if _PLAIN.fullmatch(text) is None:
        return None
    number = float(text)
    return number, scanned.Stamps.ABSOLUTE if number >= _SINCE_1970 else scanned.Stamps.ELAPSED


@dataclass(frozen=True)
class Doubts:
    """What a program's lines show against their table, and against each other. ``case`` is what was
    requested, ``stated`` has the names of the settings that the lines state."""

    table: ReadTable
    reading: scanned.Reading
    case: Case
    stated: Collection[str]

    def of_numbers(self, lines: Sequence[str], batch: int) -> Iterator[str]:
        """That the numbers count samples, of which a replica takes ``batch``, or that lines of two
        kinds are counted; ``lines`` are the texts by their numbers."""
        steps = self.reading.steps
        if self.table.each:
            yield from _of_kinds([lines[number] for number in steps.numbers("line")])
        elif self.table.line and len(steps) > 1 and not _BAR.search(lines[steps.last_line()]):
            apart = math.gcd(*(n + self.table.first - 1 for n in steps.numbers("iteration")))
            yield from _of_samples(apart, batch)

    @property
    def _is_unsaid(self) -> bool:
        """Whether nobody says what the numbers count, and it matters."""
        return bool(self.table.line) and not self.table.counts and self.case.accumulation > 1

    def is_of_micro_steps(self, window: ExternalWindow) -> bool:
        """Whether the printed speeds say that the numbers are of micro-steps."""
        off = self.case.accumulation * (window.check or 0.0) / window.speed
        return self._is_unsaid and abs(off - 1) <= _NEARLY

    def of_figure(self, window: ExternalWindow, lines: Sequence[str]) -> Iterator[str]:
        """That not all ranks are as fast as that which counts, which of the samples of an iteration
        no line says, and that a line among those of iterations tells of a fault."""
        steps, devices = self.reading.steps, self.case.topology.devices
        yield from _of_ranks(steps, window.first or 0, window.last or 0)
        if self._is_unsaid and window.check_basis != "printed":
            yield "read.counts is not given: the numbers are taken for those of optimizer steps"
        stated = {"global_batch", "devices"} & {*self.stated} or steps.column("global_batch")
        if devices > 1 and window.unit in BY_ITERATION and not stated:
            yield f"no line states the ranks or the global batch: {devices} devices, says the sweep"
        first = min(steps.numbers("line"), default=1)
        for text in list(filter(_EXCEPTION.search, lines[first : steps.last_line() + 1]))[:1]:
            yield f"a line tells of a fault, and the program went on: {printable(text)[:_LONGEST]}"


def _of_samples(apart: int, batch: int) -> Iterator[str]:
    """That numbers, which are multiples of ``apart``, may count samples of a batch."""
    if apart >= _LEAST and batch > 1 and apart % batch == 0 and not _ROUND.fullmatch(str(apart)):
        yield (
            f"all numbers are multiples of {apart}, and so of the batch of {batch}: if they count"
            " samples, read.each must stand in place of the group iteration"
        )


def _of_ranks(steps: scanned.LogSteps, first: int, last: int) -> Iterator[str]:
    """That a rank does fewer iterations than that which counts while this does those of a window
    after ``first`` up to ``last``."""
    done: dict[int, list[tuple[int, float]]] = {}
    for rank, *row in zip(*map(steps.values, ("rank", "iteration", "arrival"))):
        done.setdefault(rank, []).append((row[0], row[1] or 0.0))
    done.pop(None, None)  # type: ignore[call-overload]
    counted = min(done, key=lambda rank: (-len(done[rank]), rank), default=0)
    ends = [at for number, at in done.pop(counted, ()) if first <= number <= last]
    for rank, rows in sorted(done.items()):
        inside = [number for number, at in rows if ends[:1] <= [at] <= ends[-1:]]
        if len(inside) > 2 and inside[-1] - inside[0] < _IN_STEP * (last - first):
            yield (
                f"rank {rank} did {inside[-1] - inside[0]} iterations in the time in which rank"
                f" {counted} did {last - first}: they do not wait for each other, and the speed"
                f" counts rank {counted}'s for all"
            )
            return


def _of_kinds(lines: Sequence[str]) -> Iterator[str]:
    """That lines of several kinds, which have other words, are counted as iterations."""
    kinds = Counts(" ".join(_WORD.findall(text)) for text in lines)
    often = [kind for kind, count in kinds.most_common() if count > 1 + _FEW * len(lines)]
    if len(often) > 1:
        names = " and ".join(map(repr, often[:2]))
        yield f"lines of several kinds fit read.line, and each is counted: {names}"
