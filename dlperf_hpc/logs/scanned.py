"""The values that a log of another program is read into: :mod:`.scan` makes them, and
:mod:`.interpret` makes runs of them.

Nothing here is converted or averaged: a step holds the figures as its line prints them, and
:class:`Printed` describes them. What is not in the log is None, never 0.
"""

from __future__ import annotations

import math
import operator
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate, compress, islice, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, overload

if TYPE_CHECKING:
    Numbers = array[Any]
else:
    Numbers = array  # which takes no type at run time before Python 3.12

OUR_OWN = "dlperf"  # the format of our own logs


def bounds(column: Numbers) -> tuple[Any, Any]:
    """The least and the greatest number of a column that is not empty and has no NaN."""
    return min(column), max(column)


def is_rising(column: Numbers) -> bool:
    """Whether each number is above the one before it."""
    return all(map(operator.lt, column, islice(column, 1, None)))


def never_falls(column: Numbers) -> bool:
    """Whether no number is below the one before it."""
    return all(map(operator.le, column, islice(column, 1, None)))


def are_finite(column: Numbers) -> bool:
    """Whether no number is infinite or NaN."""
    return math.isfinite(sum(column)) or all(map(math.isfinite, column))  # a sum may be too large


def differences(column: Numbers) -> Numbers:
    """Each number less the one before it: one fewer than the column has."""
    return array(column.typecode, map(operator.sub, islice(column, 1, None), column))


def sums(column: Numbers) -> Numbers:
    """0, and what each number makes with all before it: added one after the other."""
    return array("d", accumulate(column, initial=0.0))


# --- values


class Evidence(str, Enum):
    """Which lines the reader of a format was written and tested with."""

    REAL = "real logs"
    QUOTED = "quoted lines"  # real lines, but only those that a document or an issue quotes
    SOURCE = "source only"  # the print statement; no real line was seen
    TOML = "told in TOML"  # a user's table: nobody else has seen a line


class Unit(str, Enum):
    """What a printed speed counts. Times are per iteration."""

    SAMPLES_PER_S = "samples/s"
    TOKENS_PER_S = "tokens/s"
    UNPADDED_TOKENS_PER_S = "tokens/s without padding"  # no samples/s follow from these
    ITERATIONS_PER_S = "iterations/s"
    MS_PER_ITERATION = "ms/iteration"
    S_PER_ITERATION = "s/iteration"
    OWN = "a unit of its own"  # a rate that says nothing of samples: GFLOP/s


class Scope(str, Enum):
    """Over what a printed speed is taken."""

    ALL = "all devices"
    DEVICE = "one device"
    PROCESS = "one process"


class Averaging(str, Enum):
    """Over which iterations a printed speed is taken."""

    SINCE_LAST = "since the line before"
    RUNNING = "running"  # from the iteration ``Printed.origin`` on
    LAST_ONE = "the last iteration only"


class Counter(str, Enum):
    """What an iteration number counts; the first two are the same without accumulation."""

    MICRO_STEPS = "micro-steps"
    OPTIMIZER_STEPS = "optimizer steps"
    BLOCKS = "blocks"  # of an unknown number of steps: no window is cut out of these


@dataclass(frozen=True)
class Printed:
    """What ``LogStep.printed`` is: that number times ``scale`` is in ``unit`` (K tokens/s: 1000).
    ``name`` is that of a unit of its own."""

    unit: Unit = Unit.SAMPLES_PER_S
    scope: Scope = Scope.ALL
    averaging: Averaging = Averaging.SINCE_LAST
    scale: float = 1.0
    origin: int = 0
    name: str = ""

    @property
    def label(self) -> str:
        """The unit's name."""
        return self.name or self.unit.value


class Stamps(str, Enum):
    """How far a line's time stamp can be trusted to be one time line."""

    ABSOLUTE = "absolute"  # date with year, or seconds since the epoch
    NO_YEAR = "no year"  # month, day and time: differences wrap at New Year
    TIME_ONLY = "time only"  # wraps at midnight
    ELAPSED = "elapsed"  # since the run or a part of it began: no hour of any day, and coarse
    NONE = "none"


class LogStep(NamedTuple):
    """A line that is printed at an iteration. ``iteration`` is how many iterations are done then,
    counted from 1 however the log counts; ``stamp`` is in seconds, ``memory_mb`` in MB (2**20).
    ``global_batch`` is the setting as this very line states it, and ``consumed`` the samples that
    were trained until then, for programs whose batch grows as they run. ``arrival`` is when the
    line came (s), where a supervisor of ours has noted it."""

    line: int
    iteration: int
    rank: int | None = None
    stamp: float | None = None
    printed: float | None = None
    loss: float | None = None
    lr: float | None = None
    memory_mb: float | None = None
    global_batch: float | None = None
    consumed: float | None = None
    arrival: float | None = None


WHOLE_FIELDS = ("line", "iteration", "rank")
"""Fields of a :class:`LogStep` that are whole numbers; the others are floats."""

GAPS = tuple([("q", -1) if name in WHOLE_FIELDS else ("d", math.nan) for name in LogStep._fields])
"""Of each field of a :class:`LogStep`, what its column consists of (typecodes as :mod:`array` has
them), and the number that stands there for None."""

_MOST_LATE = 4096

Column = Optional[Numbers]  # None: no step has a value


class LogSteps(Sequence[LogStep]):
    """Steps as columns, which take 8 bytes a number where a named tuple's take 40: a block's lines
    become steps, bytes of the cache and a window's figures without a loop over them in Python."""

    __slots__ = ("_columns", "_late")

    def __init__(self, steps: Iterable[LogStep] = ()) -> None:
        self._columns: list[Column] = [None] * len(GAPS)
        self._late = list(steps)  # not yet in the columns

    @classmethod
    def of(cls, columns: Sequence[Column]) -> LogSteps:
        """The steps that these columns hold, which stand in the order of a step's fields."""
        made = cls()
        made._columns = list(columns)
        return made

    def columns(self) -> Sequence[Column]:
        """One column for each field of a step, of GAPS' kinds; not to be changed."""
        if self._late:
            late = [_column(kind, gap, c) for (kind, gap), c in zip(GAPS, zip(*self._late))]
            count, self._late = len(self._late), []
            self.add(late, count)
        return self._columns

    def column(self, name: str) -> Column:
        """A field's numbers, GAPS' where a step has none; None if no step has any."""
        return self.columns()[LogStep._fields.index(name)]

    def numbers(self, name: str) -> Numbers:
        """A field's numbers, GAPS' where a step has none; not to be changed."""
        column = self.column(name)
        if column is None:
            kind, gap = GAPS[LogStep._fields.index(name)]
            return array(kind, [gap]) * len(self)
        return column

    def values(self, name: str) -> list[Any]:
        """A field's values, None where a step has none."""
        at = LogStep._fields.index(name)
        return list(_values(self.columns()[at], at, len(self)))

    def where(self, there: Sequence[bool]) -> LogSteps:
        """Those of the steps for which this is true."""
        return LogSteps.of(
            [None if c is None else array(c.typecode, compress(c, there)) for c in self.columns()]
        )

    def last_line(self) -> int:
        """The greatest number of a line; 0 if there are no steps."""
        return max(self.numbers("line"), default=0)

    def add(self, columns: Sequence[Column], count: int) -> None:
        """Append ``count`` steps, given by their columns."""
        done = len(self.columns()[0] or ())
        for at, (mine, more) in enumerate(zip(self._columns, columns)):
            if mine is None and more is None:
                continue
            kind, gap = GAPS[at]
            if mine is None:
                mine = self._columns[at] = array(kind, [gap]) * done
            mine.extend(array(kind, [gap]) * count if more is None else more)

    def append(self, value: LogStep) -> None:
        """Add a step behind all."""
        self._late.append(value)
        if len(self._late) >= _MOST_LATE:
            self.columns()

    def pop(self) -> LogStep:
        """Take the last step off."""
        last = self[-1]
        self[-1:] = []
        return last

    def clear(self) -> None:
        """Remove all steps."""
        self._columns, self._late = [None] * len(GAPS), []

    def __len__(self) -> int:
        return len(self._columns[0] or ()) + len(self._late)

    def __iter__(self) -> Iterator[LogStep]:
        count = len(self)
        columns = [_values(column, at, count) for at, column in enumerate(self.columns())]
        return map(LogStep._make, zip(*columns))

    @overload
    def __getitem__(self, at: int) -> LogStep: ...
    @overload
    def __getitem__(self, at: slice) -> LogSteps: ...
    def __getitem__(self, at: int | slice) -> LogStep | LogSteps:
        if isinstance(at, slice):
            return LogSteps.of([None if c is None else c[at] for c in self.columns()])
        late = range(len(self))[at] - len(self) + len(self._late)
        if late >= 0:
            return self._late[late]
        numbers = [None if c is None else c[at] for c in self.columns()]
        return LogStep._make([None if n == -1 or n != n else n for n in numbers])

    def __setitem__(self, at: int | slice, value: LogStep | Sequence[LogStep]) -> None:
        """Replace steps: the latest ones for the most part, so that what stands before them is left
        alone."""
        new = [value] if isinstance(value, LogStep) else value
        found = range(len(self))[at]
        places = range(found, found + 1) if isinstance(found, int) else found
        begin = places.start - len(self) + len(self._late)
        if begin < 0:
            self._late = list(self[places.start :])
            self._columns = [None if c is None else c[: places.start] for c in self._columns]
            begin = 0
        self._late[begin : begin + len(places)] = new

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (LogSteps, list, tuple)):
            return len(self) == len(other) and all(map(LogStep.__eq__, self, other))
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"LogSteps({list(self)!r})"


def _column(kind: str, gap: float, values: Sequence[Any]) -> Column:
    if values.count(None) == len(values):
        return None
    return array(kind, [gap if v is None else v for v in values] if None in values else values)


def _values(column: Column, at: int, count: int) -> Iterable[Any]:
    if column is None:
        return repeat(None, count)
    numbers = column.tolist()
    if GAPS[at][0] == "d":
        total = sum(numbers)  # NaN if one of them is
        return [None if v != v else v for v in numbers] if total != total else numbers
    return [None if v == -1 else v for v in numbers] if -1 in numbers else numbers


class Total(NamedTuple):
    """A speed that the program prints once, of its whole run, in ``unit`` over ``scope``. One in a
    unit of its own is called after it."""

    line: int
    name: str
    value: float
    unit: Unit = Unit.SAMPLES_PER_S
    scope: Scope = Scope.ALL
    rank: int | None = None


class Epoch(NamedTuple):
    """From ``line`` on, up to the line of the next one, running averages are of the iterations
    behind ``after``."""

    line: int
    after: int


class Pause(NamedTuple):
    """Behind iteration ``after`` the program did not train but did ``what`` (an evaluation, a
    checkpoint), for ``seconds``; None if no line says how long. ``printed``: that time is in the
    program's own figures of speed too."""

    line: int
    after: int
    what: str
    seconds: float | None = None
    printed: bool = True


class Count(NamedTuple):
    """How much was trained or was to be, as a line says it; ``name`` is one of :data:`COUNTS`."""

    line: int
    name: str
    value: float


COUNTS: Mapping[str, str] = {
    "seconds": "time over which a total is taken",
    "steps_per_s": "steps that were to be done, over that time",
    "epochs": "epochs done at the end, those before a checkpoint counted",
    "epochs_error": "by how much that number is rounded at most",
    "epochs_asked": "epochs to be done",
    "first_epochs": "epochs done at the first line that says it",
    "second_epochs": "epochs done at the second",
    "epoch_samples": "samples of an epoch",
    "steps": "optimizer steps done at the end, those before a checkpoint counted",
    "steps_asked": "optimizer steps to be done",
    "resumed": "optimizer steps done before the checkpoint from which the run goes on",
    "resumed_epochs": "epochs done before that checkpoint",
}
"""Names of counts and what they are: a total is held against them."""


class Fact(NamedTuple):
    """A setting that a log or its name states; ``name`` is one of :data:`FACTS`."""

    line: int
    name: str
    value: Any


class Trouble(NamedTuple):
    """A line by which something broke; ``kind`` is the value of a status, ``cause`` why, '' where
    that is not known."""

    line: int
    kind: str
    text: str
    cause: str = ""


class Note(NamedTuple):
    """Why a line, or the lines from ``line`` on, could not be read. Line 0: the whole file.
    ``partly``: what was read is the beginning of what could be."""

    line: int
    text: str
    partly: bool = False


FACTS: Mapping[str, type] = {
    **{"framework": str, "model": str, "precision": str, "xla": bool},
    **{"nodes": int, "gpus_per_node": int, "devices": int, "batch_size": int},
    **{"global_batch": int, "accumulation": int, "seq_len": int, "repeat": int},
    **{"replicas": int, "global_tokens": int},
}
"""Names of facts and their types. ``batch_size`` is per device, ``devices`` over all nodes;
``global_batch`` is samples per optimizer step over all devices, ``global_tokens`` its tokens.
``replicas`` are copies of the
model that are trained side by side, each on one device or split over several."""


@dataclass(frozen=True)
class Reading:
    """A log as one format reads it. ``epochs`` are those of a program whose running averages begin
    anew with each, in the order of the lines; ``starts`` are lines that say a run begins there."""

    format: str
    framework: str
    evidence: Evidence
    printed: Printed
    counter: Counter
    stamps: Stamps
    steps: LogSteps = field(default_factory=LogSteps)
    totals: tuple[Total, ...] = ()
    counts: tuple[Count, ...] = ()
    epochs: tuple[Epoch, ...] = ()
    pauses: tuple[Pause, ...] = ()
    starts: tuple[int, ...] = ()


@dataclass(frozen=True)
class ScannedFile:
    """One file: a reading for each format that was recognised in it, most steps first.

    ``facts`` are the settings that the log states, in the order of its lines; ``end_line`` is the
    number of lines; ``cut``: the last of these has no newline and was not read, since it may not be
    whole. ``launcher`` is the launcher's name (:mod:`.scan.launchers`). Of a file without a
    reading, ``program`` is who wrote it, where its lines say it, and ``nearest`` a line that a
    format has a literal of and could not read, and why. ``nccl`` is which way NCCL's ranks
    talked, by its own lines (:meth:`dlperf_hpc.records.nccl.Connections.facts`).
    """

    path: str
    size: int
    end_line: int
    cut: bool = False
    readings: tuple[Reading, ...] = ()
    facts: tuple[Fact, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    notes: tuple[Note, ...] = ()
    launcher: str = ""
    program: str = ""
    nearest: str = ""
    nccl: dict[str, Any] = field(default_factory=dict)


def no_speed(program: str) -> str:
    """What is said of a log whose program is known, and of which no speed is read."""
    return f"recognised: {program}, no speed read"
