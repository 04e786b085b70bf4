"""The values that a log of another program is read into: :mod:`.scan` makes them, and
:mod:`.interpret` makes runs of them.

Nothing here is converted or averaged: a step holds the figures as its line prints them, and
:class:`Printed` describes them. What is not in the log is None, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, NamedTuple


class Evidence(str, Enum):
    """Which lines the reader of a format was written and tested with."""

    REAL = "real logs"
    QUOTED = "quoted lines"  # real lines, but only those that a document or an issue quotes
    SOURCE = "source only"  # the print statement; no real line was seen


class Unit(str, Enum):
    """What a printed speed counts. Times are per iteration."""

    SAMPLES_PER_S = "samples/s"
    TOKENS_PER_S = "tokens/s"
    ITERATIONS_PER_S = "iterations/s"
    MS_PER_ITERATION = "ms/iteration"
    S_PER_ITERATION = "s/iteration"


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
    """What ``Step.printed`` is: that number times ``scale`` is in ``unit`` (K tokens/s: 1000)."""

    unit: Unit = Unit.SAMPLES_PER_S
    scope: Scope = Scope.ALL
    averaging: Averaging = Averaging.SINCE_LAST
    scale: float = 1.0
    origin: int = 0


class Stamps(str, Enum):
    """How far a line's time stamp can be trusted to be one time line."""

    ABSOLUTE = "absolute"  # date with year, or seconds since the epoch
    NO_YEAR = "no year"  # month, day and time: differences wrap at New Year
    TIME_ONLY = "time only"  # wraps at midnight
    NONE = "none"


class Step(NamedTuple):
    """A line that is printed at an iteration. ``iteration`` is how many iterations are done then,
    counted from 1 however the log counts; ``stamp`` is in seconds, ``memory_mb`` in MB (2**20).
    ``global_batch`` is the setting as this very line states it, and ``consumed`` the samples that
    were trained until then, for programs whose batch grows as they run."""

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


class Total(NamedTuple):
    """A speed that the program prints once, of its whole run, in ``unit`` over ``scope``."""

    line: int
    name: str
    value: float
    unit: Unit = Unit.SAMPLES_PER_S
    scope: Scope = Scope.ALL
    rank: int | None = None


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
    """A line by which something broke; ``kind`` is the value of a status."""

    line: int
    kind: str
    text: str


class Note(NamedTuple):
    """Why a line, or the lines from ``line`` on, could not be read. Line 0: the whole file."""

    line: int
    text: str


FACTS: Mapping[str, type] = {
    "framework": str,
    "model": str,
    "precision": str,
    "xla": bool,
    "nodes": int,
    "gpus_per_node": int,
    "devices": int,
    "batch_size": int,
    "global_batch": int,
    "accumulation": int,
    "seq_len": int,
    "repeat": int,
}
"""Names of facts and their types. ``batch_size`` is per device, ``devices`` over all nodes;
``global_batch`` is samples per optimizer step over all devices."""


@dataclass(frozen=True)
class Reading:
    """A log as one format reads it."""

    format: str
    framework: str
    evidence: Evidence
    printed: Printed
    counter: Counter
    stamps: Stamps
    steps: tuple[Step, ...] = ()
    totals: tuple[Total, ...] = ()
    counts: tuple[Count, ...] = ()


@dataclass(frozen=True)
class ScannedFile:
    """One file: a reading for each format that was recognised in it, most steps first.

    ``facts`` are the settings that the log states, in the order of its lines; ``end_line`` is the
    number of lines; ``cut``: the last of these has no newline and was not read, since it may not be
    whole. ``launcher`` is the launcher's name (:mod:`.scan.prefixes`).
    """

    path: str
    size: int
    end_line: int
    cut: bool = False
    readings: tuple[Reading, ...] = ()
    facts: tuple[Fact, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    notes: tuple[Note, ...] = ()
    launcher: str = field(default="")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; :meth:`from_dict` reads them back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ScannedFile:
        """Inverse of :meth:`to_dict`; KeyError, TypeError or ValueError if it is not one."""
        return cls(
            **{
                **data,
                "readings": tuple(_reading(reading) for reading in data["readings"]),
                "facts": tuple(Fact(*fact) for fact in data["facts"]),
                "troubles": tuple(Trouble(*trouble) for trouble in data["troubles"]),
                "notes": tuple(Note(*note) for note in data["notes"]),
            }
        )


def _reading(data: Mapping[str, Any]) -> Reading:
    printed = data["printed"]
    return Reading(
        format=data["format"],
        framework=data["framework"],
        evidence=Evidence(data["evidence"]),
        printed=Printed(
            Unit(printed["unit"]),
            Scope(printed["scope"]),
            Averaging(printed["averaging"]),
            printed["scale"],
            printed["origin"],
        ),
        counter=Counter(data["counter"]),
        stamps=Stamps(data["stamps"]),
        steps=tuple(Step(*step) for step in data["steps"]),
        totals=tuple(
            Total(line, name, value, Unit(unit), Scope(scope), rank)
            for line, name, value, unit, scope, rank in data["totals"]
        ),
        counts=tuple(Count(*count) for count in data["counts"]),
    )
