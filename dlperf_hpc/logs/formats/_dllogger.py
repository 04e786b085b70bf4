"""NVIDIA's dllogger: the grammar of its lines, and what the programs that use it share.

On the screen a record is ``DLL <date> <time> - <step> <metric> : <value> <unit> <metric> : ...``.
The time has no fraction when its microseconds are 0; a metric without unit leaves two blanks, and
the unit None is printed. The step is ``str`` of a tuple, or words that the program chooses::

    (0, 430)   ()   PARAMETER   Iteration: 3   Epoch: 0 Iteration: 1   Summary:

A record need not begin its line (a progress bar stands before it), and two may share one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dlperf_hpc.logs.format import Line, ReadingBuilder
from dlperf_hpc.logs.lineparts import NUMBER, cut_short, full_stamp

_RECORD = re.compile(
    r"DLLL? (?P<stamp>[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?) - "
)
_NAME = re.compile(r"[A-Za-z_][\w.]*", re.ASCII)
_OTHER_BLANK = re.compile(r"[\t\n\r\f\v]")
_WORDS = re.compile(r"(?:(?:Training |Validation )?(?:Epoch|Iteration): [0-9]{1,15} *)+")
_TUPLE = re.compile(r"\([0-9]{1,15}, [0-9]{1,15}\)")
_DIGITS = re.compile(r"[0-9]+")
_VALUE = re.compile(NUMBER)
PARAMETERS = " - PARAMETER "
"""In every record of arguments: a literal."""

_WHOLE_RUN = ("", "()", "Summary:")


class Record(NamedTuple):
    """One record. ``step`` is () for the whole run, None where there is no number to read."""

    stamp: float | None
    step: tuple[int, ...] | None
    metrics: Mapping[str, Any]
    parameters: bool = False
    text: str = ""


@dataclass(frozen=True)
class Program:
    """What one program's records hold.

    ``marks`` are metrics of which an iteration's record has at least one; ``rates`` (its speed),
    ``losses`` and ``lrs`` are looked for in their order. ``depth`` is how many numbers such a
    record's step has, the last of which is the iteration: ``first`` is the first one's number,
    and ``per_epoch``: it begins anew with each epoch, which is the number before it.
    ``decimals`` is how many the screen shows of a rate. ``totals`` are metrics of the record of
    the whole run, with our names for them.
    """

    marks: tuple[str, ...]
    losses: tuple[str, ...]
    lrs: tuple[str, ...]
    depth: int
    rates: tuple[str, ...] = ()
    first: int = 1
    per_epoch: bool = False
    decimals: int = 0
    totals: Mapping[str, str] = field(default_factory=dict)
    parameters: Callable[[Line, ReadingBuilder, Record], None] | None = None


def records(text: str) -> Iterator[Record]:
    """The records of a line."""
    found = list(_RECORD.finditer(text))
    for match, following in zip(found, [*found[1:], None]):
        body = text[match.end() : following.start() if following else len(text)]
        if following and not body.endswith(" "):
            body = body.rpartition(" ")[0]  # cut by the next record: its last word is no word
        head, metrics = _metrics(body)
        yield Record(
            full_stamp(match["stamp"]),
            _step(head.strip()),
            metrics,
            head.startswith("PARAMETER"),
            body,
        )


def _metrics(body: str) -> tuple[str, dict[str, str]]:
    """What stands before the first ``name : value``, and each name's (last) value."""
    blanks = body if body.isprintable() else _OTHER_BLANK.sub(" ", body)
    head, at = body, 0
    metrics: dict[str, str] = {}
    colon = blanks.find(" : ")
    while colon >= 0:
        start = blanks.rfind(" ", at, colon) + 1 or at
        if _NAME.fullmatch(body, start, colon):
            if not metrics:
                head = body[:start]
            at = blanks.find(" ", colon + 3)
            at = len(body) if at < 0 else at
            metrics[body[start:colon]] = body[colon + 3 : at]
            colon = blanks.find(" : ", at)
        else:
            colon = blanks.find(" : ", colon + 1)
    return head, metrics


def read_lines(
    program: Program, line: Line, builder: ReadingBuilder, found: Iterable[Record] | None = None
) -> None:
    """Read a line's records (``found``, if the caller has them). A line that has none, or a damaged
    one, is noted."""
    found = records(line.text) if found is None else found
    known = [read_record(program, line, builder, record) for record in found]
    if not known or not all(known):
        builder.note(line, "a line of dllogger's, but not as this program prints it")


def read_record(program: Program, line: Line, builder: ReadingBuilder, record: Record) -> bool:
    """Add what a record holds to the builder; False if no program would print such a record."""
    if record.parameters:
        if program.parameters:
            program.parameters(line, builder, record)
    elif record.step is None:
        return False
    elif not record.step:
        for metric, name in program.totals.items():
            if metric in record.metrics:
                builder.total(line, name, _plain(record.metrics[metric]) or "")
    elif len(record.step) == program.depth and any(
        mark in record.metrics for mark in program.marks
    ):
        _iteration(program, line, builder, record)
    elif program.per_epoch and len(record.step) > program.depth:
        # A validation after this many iterations of the epoch: it may have printed fewer.
        builder.over_epochs(line, record.step[0], record.step[1])
    return True


def flag(value: Any) -> bool | None:
    """``True`` or ``False`` as the screen or JSON has it."""
    return {"True": True, "False": False}.get(str(value))


def precision(*half: Any) -> str | None:
    """Of options that turn 16 bits on: fp16 if one is on, fp32 if those that were found are off."""
    flags = list(map(flag, half))
    if True in flags:
        return "fp16"
    return "fp32" if False in flags else None


def _iteration(program: Program, line: Line, builder: ReadingBuilder, record: Record) -> None:
    assert record.step is not None
    done = record.step[-1] + 1 - program.first
    if program.per_epoch:
        done = builder.over_epochs(line, record.step[0], done)
    speed = _first(program.rates, record)
    if isinstance(speed, str) and cut_short(speed, program.decimals):
        builder.note(line, f"the speed {speed[:40]!r} is cut")
        speed = None
    builder.step(
        line,
        done,
        stamp=record.stamp,
        printed=speed,
        loss=_first(program.losses, record),
        lr=_first(program.lrs, record),
    )


def _first(names: tuple[str, ...], record: Record) -> float | str | None:
    for name in names:
        if name in record.metrics:
            value = _plain(record.metrics[name])
            if value is not None:
                return value
    return None


def _plain(value: Any) -> float | str | None:
    """A metric as text or number; what JSON has besides (null, a list) is none."""
    if isinstance(value, str):
        # Python reads more than its own prints as numbers: 1_0, digits of other scripts.
        return value if _VALUE.fullmatch(value) else ascii(value)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _step(head: str) -> tuple[int, ...] | None:
    if head in _WHOLE_RUN:
        return ()
    if _WORDS.fullmatch(head) or _TUPLE.fullmatch(head):
        return tuple(map(int, _DIGITS.findall(head)))
    return None


# --- settings that a benchmark's shell script shows with ``set -x``

_SHELL_FACTS = {"num_gpus": "gpus_per_node", "num_accumulation_steps_phase1": "accumulation"}
_SHELL_SETTING = re.compile(rf"\++ (?P<name>{'|'.join(_SHELL_FACTS)})=(?P<value>[0-9]{{1,9}})\s*")


def shell_fact(line: Line, builder: ReadingBuilder) -> bool:
    """Whether the line is a setting that the shell shows, which is then added."""
    match = _SHELL_SETTING.fullmatch(line.text)
    if match is not None:
        builder.fact(line, _SHELL_FACTS[match["name"]], match["value"])
    return match is not None
