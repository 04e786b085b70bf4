"""A file's reading as it grows: what formats add to it, line by line or many lines at once."""

from __future__ import annotations

import bisect
from typing import Any, NamedTuple, Protocol

from dlperf_hpc.logs import scanned

MAX_STEPS = 200_000
"""Iterations kept of one file: memory stays flat whatever is in it."""

MAX_FACTS = 1000
"""Settings kept of one file."""

_MAX_HELD = 100
_APART_S = 86400.0  # seconds between two runs whose clocks begin at 0

HIGHEST = 1e15
"""No program prints a speed, a loss or a stamp beyond this: a larger number is damage."""


class _Declared(Protocol):
    """What a builder has to know of its format."""

    @property
    def name(self) -> str: ...
    @property
    def framework(self) -> str: ...
    @property
    def evidence(self) -> scanned.Evidence: ...
    @property
    def printed(self) -> scanned.Printed: ...
    @property
    def counter(self) -> scanned.Counter: ...


class Line(NamedTuple):
    """A whole line without its launcher's prefix; ``number`` counts physical lines from 1."""

    number: int
    text: str
    rank: int | None = None
    host: str | None = None


class ReadingBuilder:
    """A file's reading as it grows: what a format has read in the lines that it was shown."""

    def __init__(self, declared: _Declared) -> None:
        self.format = declared
        self.printed = declared.printed
        self.counter = declared.counter
        self.framework = declared.framework
        self.stamps = scanned.Stamps.NONE
        self.steps = scanned.LogSteps()
        self.totals: list[scanned.Total] = []
        self.counts: list[scanned.Count] = []
        self.facts: list[scanned.Fact] = []
        self.epochs: list[scanned.Epoch] = []
        self.pauses: list[scanned.Pause] = []
        self.notes: list[scanned.Note] = []
        self.ahead: dict[str, Any] = {}
        """Figures of the iteration that is printed next."""
        self.state: dict[str, Any] = {}
        """For a format whose lines explain one another (a table's head and its rows)."""

    def step(
        self,
        line: Line,
        iteration: int | str,
        *,
        stamp: float | None = None,
        stamps: scanned.Stamps = scanned.Stamps.ABSOLUTE,
        printed: float | str | None = None,
        **figures: float | str | None,
    ) -> None:
        """Add an iteration that is done.

        ``iteration`` is how many iterations are done; ``stamp`` is in seconds; ``printed`` is the
        line's own figure, in the unit of ``Format.printed``; ``figures`` are other fields of a
        :class:`~dlperf_hpc.logs.scanned.LogStep`. Text is turned into numbers here: a number that
        is not finite is left out, and a speed or a time that is not positive is noted, because it
        cannot be a measurement.
        """
        if not self.has_room(1):
            if "full" not in self.state:
                self.state["full"] = True
                self.note(line, f"more than {MAX_STEPS} iterations: the rest was not read")
            return
        number = _whole(iteration)
        if number is None:
            self.note(line, f"iteration {str(iteration)[:40]!r} is no number")
            return
        speed = _number(printed)
        if printed is not None and (speed is None or speed <= 0):
            self.note(line, f"{self.printed.label} {str(printed)[:40]!r} is no measurement")
            speed = None
        if stamp is not None:
            self.stamps = stamps
        numbers = {name: _number(value) for name, value in figures.items()}
        self.steps.append(scanned.LogStep(line.number, number, line.rank, stamp, speed, **numbers))

    def total(
        self,
        line: Line,
        name: str,
        value: float | str,
        unit: scanned.Unit = scanned.Unit.SAMPLES_PER_S,
        scope: scanned.Scope = scanned.Scope.ALL,
    ) -> None:
        """Add the program's own figure for its whole run."""
        number = _number(value)
        if number is None or number <= 0:
            self.note(line, f"{name} {str(value)[:40]!r} is no measurement")
        elif len(self.totals) < MAX_STEPS:
            self.totals.append(scanned.Total(line.number, name, number, unit, scope, line.rank))

    def count(self, line: Line, name: str, value: float | str) -> None:
        """Add how much was trained, or was to be; ``name`` is one of ``COUNTS``. What is no such
        number is left out. Of those that belong to one total only the last of a name is kept."""
        number, known = _number(value), self.state.setdefault("counts", {})
        if name not in scanned.COUNTS or number is None or number < 0:
            return
        at, count = known.get(name), scanned.Count(line.number, name, number)
        if at is not None and (not self.totals or self.totals[-1].line < self.counts[at].line):
            self.counts[at] = count
        elif len(self.counts) < MAX_FACTS:
            known[name] = len(self.counts)
            self.counts.append(count)

    def pause(
        self,
        line: Line,
        what: str,
        seconds: float | str | None = None,
        after: int | str | None = None,
        printed: bool = True,
    ) -> None:
        """Add that the program did ``what`` instead of training, behind iteration ``after`` (None:
        the one that was added last); the other fields are those of a
        :class:`~dlperf_hpc.logs.scanned.Pause`. Of several ranks the first that says so counts."""
        of_rank = self.state.setdefault(f"rank of {what}", line.rank)
        last, done = self.last_step(), None if after is None else _whole(after)
        if done is None:
            done = last.iteration if last else 0
        if of_rank == line.rank and len(self.pauses) < MAX_STEPS:
            self.pauses.append(scanned.Pause(line.number, done, what, _number(seconds), printed))

    def fact(self, line: Line, name: str, value: Any) -> None:
        """Add a setting that the log states; ``name`` is one of ``FACTS``. One that is stated again
        is not added again unless it had another value in between: runs may share a file."""
        kind = scanned.FACTS[name]
        if kind is int and value is not None:
            value = _whole(value) or None
        latest = self.state.setdefault("facts", {})
        if value not in (None, "", latest.get(name)) and len(self.facts) < MAX_FACTS:
            latest[name] = value
            self.facts.append(scanned.Fact(line.number, name, kind(value)))

    def last_step(self) -> scanned.LogStep | None:
        """The step that was added last; None if there is none."""
        return self.steps[-1] if self.steps else None

    def has_room(self, steps: int) -> bool:
        """Whether that many iterations more can be kept."""
        return len(self.steps) + steps <= MAX_STEPS

    def latest(self, name: str) -> Any:
        """A setting's latest value in this log, or None."""
        return self.state.get("facts", {}).get(name)

    def hold(self, line: Line, name: str, value: Any) -> None:
        """Keep a setting back until a figure shows whose log it is (:meth:`release_held`): ``Batch
        size: 96`` may be any program's line. Of very many settings the first hundred are kept."""
        held = self.state.setdefault("held", [])
        if len(held) < _MAX_HELD:
            held.append((line._replace(text=""), name, value))

    def release_held(self) -> None:
        """Add the settings that were kept back: the log is of this format."""
        for line, name, value in self.state.pop("held", ()):
            self.fact(line, name, value)

    def later_epoch(self, line: Line, epoch: str) -> bool:
        """Whether a line is of another epoch than the first printed one, in a program whose bars or
        numbers of different epochs cannot be put one behind the other. Such a line is noted once,
        and not to be read: another epoch is no other run."""
        first = self.state.setdefault("epoch", epoch)
        if epoch != first and "later_epochs" not in self.state:
            self.state["later_epochs"] = True
            why = "count and mean begin anew with each epoch: only the first was read"
            self.note(line, why, partly=True)
        return bool(epoch != first)

    def in_epoch(self, line: Line, epoch: int, done: int, length: int | None = None) -> int | None:
        """Iterations done since the first epoch of the file began, of a number that begins anew
        with each epoch, as the running average beside it does. ``length`` is the number of an
        epoch's iterations as the line states it. None for a line, which may be damaged, that states
        another than those before it, unless the line before it does as well."""
        if length is not None and not self._fits(line, length):
            return None
        first = min(epoch, self.state.get("first_epoch", epoch))
        self.state["first_epoch"] = first
        at = self.over_epochs(line, epoch if length is None else epoch - first, done)
        if (not self.epochs or self.epochs[-1].after != at - done) and self.has_room(1):
            self.epochs.append(scanned.Epoch(line.number, at - done))
        return at

    def _fits(self, line: Line, length: int) -> bool:
        if self.state.setdefault("epoch_length", length) != length:
            if self.state.get("other_length") != length:
                self.state["other_length"] = length
                self.note(line, f"an epoch of {length} iterations: those before had another number")
                return False
            self.state["epoch_length"] = length
        self.state["other_length"] = None
        return True

    def first_epoch_up_to(self, epoch: int, done: int) -> bool:
        """Whether ``epoch`` alone was read until now, so that its numbers count as they stand, as
        they do where lines are read at once; if so, ``done`` of its iterations are known of."""
        most: dict[int, int] = self.state.get("most_of_epoch", {})
        if self.state.get("first_epoch") != epoch or len(self.epochs) != 1:
            return False
        if epoch in most:
            most[epoch] = max(most[epoch], done)
        self.state["other_length"] = None
        return True

    def over_epochs(self, line: Line, epoch: int, done: int) -> int:
        """Iterations done since the file began, of a number that begins anew with each epoch.

        Where the log does not state an epoch's iterations (``state["epoch_length"]``), an epoch is
        taken to have as many as were printed of it, which may be too few: a note names that.
        """
        length = self.state.get("epoch_length")
        if length:
            return int(epoch * length + done)
        epochs: list[int] = self.state.setdefault("epochs", [])
        before: dict[int, int] = self.state.setdefault("before_epoch", {})
        most: dict[int, int] = self.state.setdefault("most_of_epoch", {})
        if epoch not in before:
            if len(self.steps) >= MAX_STEPS:
                return done
            place = bisect.bisect(epochs, epoch)
            before[epoch] = before[epochs[place - 1]] + most[epochs[place - 1]] if place else 0
            epochs.insert(place, epoch)
            if len(epochs) == 2:
                why = "an epoch's number of iterations is taken from the last one printed of it:"
                self.note(line, f"{why} the log does not say it")
        most[epoch] = max(most.get(epoch, 0), done)
        return before[epoch] + done

    def on_one_line(self, done: int, seconds: float) -> float:
        """The time of step ``done``, ``seconds`` since its run began, on one time line of the file,
        for clocks that begin at 0 with each run. A run begins where the step is lower than that of
        the line before; its stamps lie a day behind those of the run before, or else a line with an
        earlier stamp would be taken for another rank's. Call it before the step is added."""
        before = self.last_step()
        if before and before.stamp is not None and done < before.iteration:
            self.state["since"] = before.stamp + _APART_S
        return float(self.state.get("since", 0.0) + seconds)

    def recognise(self, line: Line) -> None:
        """Note that this line shows which program wrote the log, though it has no figure."""
        self.state.setdefault("recognised", line.number)

    def note(self, line: Line, text: str, partly: bool = False) -> None:
        """Note a line that is the format's but cannot be read, and why; ``partly``: from it on
        lines count for no row of the file."""
        if len(self.notes) < 100:
            self.notes.append(scanned.Note(line.number, text, partly))

    def note_once(self, line: Line, text: str, partly: bool = False) -> None:
        """Note a line unless the same was noted of another."""
        if text not in self.state.setdefault("noted", []):
            self.state["noted"].append(text)
            self.note(line, text, partly)

    def reading(self) -> scanned.Reading | None:
        """All that was read; None if no line shows that the log is of this format."""
        if not self.steps and not self.totals and "recognised" not in self.state:
            return None
        return scanned.Reading(
            format=self.format.name,
            framework=self.framework,
            evidence=self.format.evidence,
            printed=self.printed,
            counter=self.counter,
            stamps=self.stamps,
            steps=self.steps,
            totals=tuple(self.totals),
            counts=tuple(self.counts),
            epochs=tuple(self.epochs),
            pauses=tuple(self.pauses),
            starts=tuple(self.state.get("starts", ())),
        )


def _number(value: float | str | None) -> float | None:
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
        try:
            value = int(value) if len(value) <= 18 and _is_plain(value) else -1
        except ValueError:
            return None
    return value if 0 <= value < 10**18 else None


def _is_plain(value: float | str) -> bool:
    """Python reads ``1_0`` and digits of other scripts too; no program prints them."""
    return not isinstance(value, str) or (value.isascii() and "_" not in value)
