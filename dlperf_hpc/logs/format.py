"""What a log format is: a declaration, and a function that is shown the lines which concern it.

A format is one module in :mod:`dlperf_hpc.logs.formats` with a ``FORMAT``. Its ``needles`` are
fixed strings; a line that holds none of them is never shown to it. Its ``read`` takes the figures
out of a line, as they are printed, and tells a :class:`Draft`; it converts no unit that
:class:`~dlperf_hpc.logs.scanned.Printed` can name, averages nothing and decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dlperf_hpc.logs.scan.rows import HIGHEST, Rows
from dlperf_hpc.logs.scanned import (
    FACTS,
    Counter,
    Evidence,
    Fact,
    Note,
    Printed,
    Reading,
    Scope,
    Stamps,
    Step,
    Total,
    Unit,
)

MAX_STEPS = 200_000
"""Steps kept of one file: memory stays flat whatever is in it."""

MAX_FACTS = 1000
"""The same of settings."""


class Line(NamedTuple):
    """A whole line without its launcher's prefix; ``number`` counts physical lines from 1."""

    number: int
    text: str
    rank: int | None = None
    host: str | None = None


class Draft:
    """A file's reading as it grows: what a format tells of the lines it was shown."""

    def __init__(self, declared: Format) -> None:
        self.format = declared
        self.printed = declared.printed
        self.counter = declared.counter
        self.framework = declared.framework
        self.evidence = declared.evidence
        self.stamps = Stamps.NONE
        self.steps: list[Step] = []
        self.totals: list[Total] = []
        self.facts: list[Fact] = []
        self.notes: list[Note] = []
        self.state: dict[str, Any] = {}
        """For a format whose lines explain one another (a table's head and its rows)."""

    def step(
        self,
        line: Line,
        iteration: int | str,
        *,
        stamp: float | None = None,
        stamps: Stamps = Stamps.ABSOLUTE,
        printed: float | str | None = None,
        loss: float | str | None = None,
        lr: float | str | None = None,
        memory_mb: float | str | None = None,
    ) -> None:
        """An iteration is done. Text is turned into numbers here; what is not finite is left out,
        and a speed or a time that is not positive is noted, for it can be no measurement."""
        if len(self.steps) >= MAX_STEPS:
            if len(self.steps) == MAX_STEPS and "full" not in self.state:
                self.state["full"] = True
                self.note(line, f"more than {MAX_STEPS} iterations: the rest was not read")
            return
        number = _whole(iteration)
        if number is None:
            self.note(line, f"iteration {str(iteration)[:40]!r} is no number")
            return
        speed = None if printed is None else _number(printed)
        if printed is not None and (speed is None or speed <= 0):
            self.note(line, f"{self.printed.unit.value} {str(printed)[:40]!r} is no measurement")
            speed = None
        if stamp is not None:
            self.stamps = stamps
        self.steps.append(
            Step(
                line.number,
                number,
                line.rank,
                stamp,
                speed,
                None if loss is None else _number(loss),
                None if lr is None else _number(lr),
                None if memory_mb is None else _number(memory_mb),
            )
        )

    def total(
        self,
        line: Line,
        name: str,
        value: float | str,
        unit: Unit = Unit.SAMPLES_PER_S,
        scope: Scope = Scope.ALL,
    ) -> None:
        """The program's own figure for its whole run."""
        number = _number(value)
        if number is None or number <= 0:
            self.note(line, f"{name} {str(value)[:40]!r} is no measurement")
        elif len(self.totals) < MAX_STEPS:
            self.totals.append(Total(line.number, name, number, unit, scope, line.rank))

    def fact(self, line: Line, name: str, value: Any) -> None:
        """A setting that the log states; ``name`` is one of ``FACTS``. Said again is said once,
        but not if it was said otherwise in between: several runs may share a file."""
        kind = FACTS[name]
        if kind is int:
            value = _whole(value)
        if value is None or value == "" or (kind is int and value <= 0):
            return
        latest = self.state.setdefault("facts", {})
        if latest.get(name) != value and len(self.facts) < MAX_FACTS:
            latest[name] = value
            self.facts.append(Fact(line.number, name, kind(value)))

    def takes(self, steps: int) -> bool:
        """Whether there is room for that many iterations more."""
        return len(self.steps) + steps <= MAX_STEPS

    def latest(self, name: str) -> Any:
        """A setting as it was told last, or None."""
        return self.state.get("facts", {}).get(name)

    def begins(self, line: Line) -> None:
        """This line alone shows whose log it is, though it has no figure."""
        self.state.setdefault("begins", line.number)

    def note(self, line: Line, text: str) -> None:
        """A line that is the format's but cannot be read."""
        if len(self.notes) < 100:
            self.notes.append(Note(line.number, text))

    def reading(self) -> Reading | None:
        """What was read; None if nothing shows that the log is of this format."""
        if not self.steps and not self.totals and "begins" not in self.state:
            return None
        return Reading(
            format=self.format.name,
            framework=self.framework,
            evidence=self.evidence,
            printed=self.printed,
            counter=self.counter,
            stamps=self.stamps,
            steps=tuple(self.steps),
            totals=tuple(self.totals),
        )


@dataclass(frozen=True)
class Format:
    """A log format. ``source`` says where the lines come from (a file of a public repository);
    ``seen`` what real lines were read. ``facts_needles`` bring lines that state settings: they
    are shown too, but a file that has only those is not recognised by them. ``rows`` say what
    ``read`` would, of the lines that make up most of a log."""

    name: str
    title: str
    framework: str
    evidence: Evidence
    source: str
    needles: tuple[str, ...]
    read: Callable[[Line, Draft], None]
    printed: Printed = field(default_factory=Printed)
    counter: Counter = Counter.OPTIMIZER_STEPS
    facts_needles: tuple[str, ...] = field(default=())
    rows: tuple[Rows, ...] = ()


def _number(value: float | str | None) -> float | None:
    """A finite number of a believable size, or None."""
    if value is None:
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    # Not for nan either.
    return number if -HIGHEST <= number <= HIGHEST and _is_plain(value) else None


def _whole(value: int | str) -> int | None:
    if isinstance(value, str):
        if not value.isdigit():  # it may have a sign, or blanks around it
            return _whole_number(value)
        return int(value) if len(value) <= 18 and value.isascii() else None
    return value if 0 <= value < 10**18 else None


def _whole_number(value: str) -> int | None:
    try:
        number = int(value) if len(value) <= 18 and _is_plain(value) else -1
    except ValueError:
        return None
    return number if number >= 0 else None


def _is_plain(value: float | str) -> bool:
    """Python reads ``1_0`` and digits of other scripts too; no program prints them."""
    return not isinstance(value, str) or (value.isascii() and "_" not in value)
