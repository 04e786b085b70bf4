"""What a log format is: the forms of its lines.

Two tables declare the formats: ``formats.json`` those whose lines a module of
:mod:`dlperf_hpc.logs.formats` reads, in its ``LINES``, ``pattern_formats.json`` those for which
patterns are enough. A format's ``literals`` are fixed strings; a line that holds none of
them is never shown to it. Its patterns (:class:`LinePattern`) take the figures out of a line, as
they are printed, and add them to a :class:`ReadingBuilder`; they convert no unit that
:class:`~dlperf_hpc.logs.scanned.Printed` can name, average nothing and decide nothing.
"""

from __future__ import annotations

import functools
import importlib
import math
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dlperf_hpc.logs.builder import HIGHEST, MAX_STEPS, Line, ReadingBuilder
from dlperf_hpc.logs.lineparts import CLOCKS, PRECISIONS, one_more, without_commas
from dlperf_hpc.logs.scanned import FACTS, Counter, Evidence, Printed, Stamps, Unit, are_finite

__all__ = [
    "MAX_STEPS",
    "Columns",
    "ReadingBuilder",
    "Format",
    "Found",
    "Groups",
    "Line",
    "LinePattern",
    "is_not_split",
    "whole",
]

# --- lines

_LEAST = {"printed": math.ulp(0.0)}  # a speed or a time is above 0
_DIGITS = 15  # of an iteration's number, at most
_NUMBERS = {"iteration", "index"}
_FIGURES = {*_NUMBERS, "printed", "total"}
_ALONE = {"epoch", "only_epoch", "power"}  # groups of lines that are read one by one
_POWERS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
_MEMORY = {"memory_gib": 1024.0, "memory_bytes": 2.0**-20}  # groups, and what makes MB of them
_FLOATS = ("printed", "loss", "lr", "memory_mb", "global_batch", "consumed")

Columns = Mapping[str, Sequence[str]]
"""The groups of many lines, by their names."""

Groups = Mapping[str, Any]
"""The groups of a line, by their names: a text, or None for one that holds nothing."""

Found = Sequence[Any]
"""The groups of each line in which a pattern was found."""


@dataclass(frozen=True)
class LinePattern:
    """A form of line: a pattern that is looked for in it, whose groups are named after what they
    hold.

    Groups are the fields of a :class:`~dlperf_hpc.logs.scanned.LogStep` (``iteration`` or, if it
    counts from 0, ``index``; with ``epoch`` it begins anew with each, which has ``length`` of them,
    with ``only_epoch`` as the mean beside it does, so that only the first is read; ``printed``,
    with ``power`` in thousands (K) or more, ``memory_gib``, ...), ``total``, a figure of the whole
    run that is called ``name`` and is in ``unit``, settings by their names in ``FACTS``, and time
    stamps by their names in ``CLOCKS``. ``clock`` names the stamp that stands before what the
    pattern finds. Settings are ``held`` back if any program may print them so; groups that are
    ``kept`` only go into the builder's state. Figures of a line ``ahead``, the iteration's number
    among them, belong to the speed that one of the next lines prints. A speed that is a mean over
    the last ``window`` iterations is read at multiples of ``window`` alone. A line with a ``pause``
    tells that the program did that instead of training, behind iteration ``after`` if it has such a
    group (``in_speed``: in the time of the speeds that it prints). A line with a ``note`` is only
    noted, one that is ``passed_over`` is another format's. ``take`` does what a pattern cannot say
    with the line and its groups. ``find`` gives a text's groups, or None, in place of a pattern.

    Lines that follow each other are taken apart by one call, if the pattern finds each of them, and
    ``usual``, which is given the builder and the lines' groups, is true. If it is not, ``take``
    reads the lines; without ``take`` they are left to the patterns behind this one.
    ``then`` is given the builder and the ranks of the lines (None: they have none) when their
    iterations were added.
    """

    pattern: str = ""
    clock: str = ""
    held: bool = False
    kept: bool = False
    name: str = "total"
    unit: Unit = Unit.SAMPLES_PER_S
    note: str = ""
    take: Callable[[Line, ReadingBuilder, Groups], None] | None = None
    find: Callable[[str], Groups | None] | None = None
    usual: Callable[[ReadingBuilder, Columns], bool] | None = None
    then: Callable[[ReadingBuilder, Sequence[int] | None], None] = lambda builder, ranks: None
    passed_over: bool = False
    ahead: bool = False
    window: int = 0
    pause: str = ""
    in_speed: bool = True

    def of_another(
        self, usual: Callable[[ReadingBuilder, Columns], bool] | None = None
    ) -> LinePattern:
        """These lines, for a format that shares a literal with them and makes nothing of them."""
        return LinePattern(self.pattern, usual=usual, passed_over=True)

    def read(self, line: Line, builder: ReadingBuilder) -> bool:
        """Read a line; False, and nothing done, if it is not of this form."""
        match = self._one.search(line.text) if self.find is None else None
        found = match.groupdict() if match else self.find and self.find(line.text)
        if found is None:
            return False
        if self.take is not None:
            self.take(line, builder, found)
            return True
        groups = {name: text for name, text in found.items() if text}
        if self.usual is not None and not self.usual(builder, {k: [v] for k, v in groups.items()}):
            return False
        if self.note:
            builder.note(line, self.note)
        elif not self.passed_over:
            self._add(line, builder, groups, line.text[: match.start()] if match else "")
        return True

    def find_all(self, text: str) -> Found:
        """The groups of each line of a text in which the pattern is found."""
        return self._many.findall(text) if self.pattern and self.find is None else ()

    def columns(self, found: Found) -> Columns | None:
        """The groups of lines; None if only some of the lines have a group, or if such lines are
        read one by one."""
        if not self.at_once:
            return None
        names = self._many.groupindex
        columns = list(zip(*found)) if self._many.groups > 1 else [tuple(found)]
        there = {name: columns[at - 1] for name, at in names.items() if any(columns[at - 1])}
        return None if any(["" in column for column in there.values()]) else there

    def read_all(
        self,
        columns: Columns,
        numbers: array[int],
        ranks: array[int] | None,
        builder: ReadingBuilder,
    ) -> bool:
        """Add the iterations of lines of this form to the builder; False, and none added, if one of
        the lines is unusual. ``numbers`` and ``ranks`` are those of the lines."""
        if self.usual is not None and not self.usual(builder, columns):
            return False
        if self.passed_over:
            return True
        waits = builder.ahead or "held" in builder.state
        counted = "index" if "index" in columns else "iteration"
        if waits or not builder.has_room(len(numbers)) or max(map(len, columns[counted])) > _DIGITS:
            return False
        try:
            floats = {name: _floats(name, columns[name]) for name in _FLOATS if name in columns}
            for name in _MEMORY.keys() & columns.keys():
                own = _floats(name, columns[name])
                floats["memory_mb"] = own and array("d", [_MEMORY[name] * each for each in own])
            if not _repeats_settings(columns, builder):
                return False
        except ValueError:
            return False
        stamps, kind = self._stamps(columns)
        if None in floats.values() or (stamps is not None and None in stamps):
            return False
        iterations = whole(columns[counted], first=1 if counted == "index" else 0)
        stamp = None if stamps is None else array("d", [s for s in stamps if s is not None])
        first = [numbers, iterations, ranks, stamp]
        arrival = None  # which no line tells
        builder.steps.add([*first, *map(floats.get, _FLOATS), arrival], len(numbers))
        builder.stamps = kind if stamps else builder.stamps
        self.then(builder, ranks)
        return True

    @functools.cached_property
    def at_once(self) -> bool:
        """Whether many lines can be read at once."""
        if self.find is not None:
            return False
        names = self._many.groupindex
        alone = (
            self.note
            or self.ahead
            or self.window
            or _ALONE & names.keys()
            or (self.take and not self.usual)
        )
        counts = self.passed_over or "index" in names or "iteration" in names
        return bool(counts and not alone)

    @functools.cached_property
    def _one(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    @functools.cached_property
    def _many(self) -> re.Pattern[str]:
        """Found once in a line: it goes up to the line's end."""
        before = "^(?P<before>.*?)" if self.clock else ""
        return re.compile(f"{before}(?:{self.pattern}).*$", re.ASCII | re.MULTILINE)

    def _stamps(self, columns: Columns) -> tuple[Sequence[float | None] | None, Stamps]:
        """The stamps of lines, in seconds, and their kind; None if the lines have none."""
        for name, clock in CLOCKS.items():
            if name in columns:
                return clock.texts(columns[name]) or [None], clock.stamps
        if not self.clock:
            return None, Stamps.NONE
        clock = CLOCKS[self.clock]
        found = list(map(clock.first, columns.get("before", ())))
        return (found if found.count(None) < len(found) else None), clock.stamps

    def _add(
        self, line: Line, builder: ReadingBuilder, groups: Mapping[str, str], before: str
    ) -> None:
        if self.pause:
            after = groups.get("after")
            builder.pause(line, self.pause, after=after, printed=self.in_speed)
            return
        if self.kept:
            builder.state |= groups
            return
        if self.ahead:
            if _NUMBERS & groups.keys():
                builder.ahead.clear()
            builder.ahead |= {**self._figures(line, builder, groups, before), "of": line.rank}
            return
        if _FIGURES & groups.keys():
            builder.release_held()
        state = builder.hold if self.held else builder.fact
        for name in filter(FACTS.__contains__, groups):
            state(line, name, _setting(name, groups[name]))
        if "total" in groups:
            builder.total(line, self.name, groups["total"], self.unit)
        elif _FIGURES & groups.keys():
            self._add_step(line, builder, groups, before)

    def _add_step(
        self, line: Line, builder: ReadingBuilder, groups: Mapping[str, str], before: str
    ) -> None:
        if "only_epoch" in groups and builder.later_epoch(line, groups["only_epoch"]):
            return
        of_this = builder.ahead.pop("of", line.rank) == line.rank
        figures = {**builder.ahead} if of_this else {}
        figures |= self._figures(line, builder, groups, before)
        builder.ahead.clear()
        done, known = figures.pop("iteration", None), len(builder.steps)
        if done is None:
            return
        if self.window and int(done) % self.window:
            builder.recognise(line)
            mean = figures.pop("printed")  # it is that of a part of a window
            if int(done) > self.window or not mean or "stamp" not in figures:
                return  # else the log may end before any mean of a whole window
        builder.step(line, done, **figures)
        if len(builder.steps) > known:
            self.then(builder, None if line.rank is None else [line.rank])

    def _figures(
        self, line: Line, builder: ReadingBuilder, groups: Mapping[str, str], before: str
    ) -> dict[str, Any]:
        figures: dict[str, Any] = {}
        if _NUMBERS & groups.keys():
            figures["iteration"] = _iteration(line, builder, groups)
        columns = {name: [text] for name, text in groups.items()}
        stamps, kind = self._stamps({**columns, "before": [before]})
        if stamps:
            figures |= {"stamp": stamps[0], "stamps": kind}
        figures |= {name: without_commas(groups[name]) for name in _FLOATS if name in groups}
        if "power" in groups:
            figures["printed"] = float(figures["printed"]) * _POWERS[groups["power"]]
        for name in _MEMORY.keys() & groups.keys():
            figures["memory_mb"] = _MEMORY[name] * float(groups[name])
        return figures


def _iteration(line: Line, builder: ReadingBuilder, groups: Mapping[str, str]) -> int | str | None:
    """How many iterations are done; None for a line that states another epoch than those before."""
    done = one_more(groups["index"]) if "index" in groups else groups["iteration"]
    if "epoch" not in groups:
        return done
    length = int(groups["length"]) if "length" in groups else None
    return builder.in_epoch(line, int(groups["epoch"]), int(done), length)


def _setting(name: str, text: str) -> str:
    if name == "precision":
        plain = text.lower().removeprefix("torch.")
        return PRECISIONS.get(plain, plain)
    return text if FACTS[name] is str else without_commas(text)


def whole(texts: Sequence[str], first: int = 0) -> array[int]:
    """Whole numbers, counted on from ``first``."""
    return array("q", [int(text) + first for text in texts])


def _floats(name: str, texts: Sequence[str]) -> array[float] | None:
    """A group's numbers; None if one is larger than any program prints, or is no measurement.
    ValueError if one is no number."""
    values = array("d", map(float, texts))
    fits = _LEAST.get(name, -HIGHEST) <= min(values) and max(values) <= HIGHEST
    return values if fits and are_finite(values) else None


def _repeats_settings(columns: Columns, builder: ReadingBuilder) -> bool:
    return all(
        {builder.latest(name)} == set(map(FACTS[name], set(columns[name])))
        for name in columns
        if name in FACTS
    )


def is_not_split(builder: ReadingBuilder, _: Columns) -> bool:
    """Whether each device has the whole model, so that a micro-batch is one device's."""
    return builder.state.get("split") is False


# --- formats


@dataclass(frozen=True)
class Format:
    """A log format.

    ``evidence`` says what its reader rests on, ``source`` where the lines come from (a file of a
    public repository). Lines that hold one of the ``literals`` or of the ``facts_literals`` are
    read by the first of the patterns in ``lines`` that finds something in them. The latter literals
    are in lines that state settings, and do not make a file one of this format. ``instead`` names,
    for the docs, what a run's speed is taken from if the lines of an iteration print none.

    The patterns are ``own``, or those that ``module`` has for the format in its ``LINES``: it is
    imported when the first line is read.
    """

    name: str
    title: str
    evidence: Evidence
    source: str
    literals: tuple[str, ...]
    framework: str = ""
    printed: Printed = field(default_factory=Printed)
    counter: Counter = Counter.OPTIMIZER_STEPS
    facts_literals: tuple[str, ...] = ()
    instead: str = ""
    own: tuple[LinePattern, ...] = ()
    module: str = ""

    @functools.cached_property
    def lines(self) -> tuple[LinePattern, ...]:
        """The forms of its lines."""
        if not self.module:
            return self.own
        found: tuple[LinePattern, ...] = importlib.import_module(self.module).LINES[self.name]
        return found

    def read(self, line: Line, builder: ReadingBuilder) -> None:
        """Take out of a line what the builder is to have of it."""
        any(each.read(line, builder) for each in self.lines)

    @property
    def at_once(self) -> bool:
        """Whether there are lines that can be read many at once."""
        return any(each.at_once for each in self.lines)
