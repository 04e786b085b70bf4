"""The line by which a user's own ``Timer`` tells a supervisor of ours what it has measured.

    dlperf 2026-11-22T12:00:00.123456Z timed status=ok warmup=20 iterations=100 samples=3200 ...

It has the keys of a log's ``summary`` line (docs/log-format.md) behind the status, or the
``reason`` why there is no number, and stands in the run's log among the program's lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from dlperf_hpc.model.result import Window
from dlperf_hpc.model.status import Status
from dlperf_hpc.records.lines import PREFIX, read_line, write_line

SUPERVISED = "DLPERF_SUPERVISED"
"""The variable that asks a Timer for the line: a supervisor of ours reads what it prints."""

_EVENT = "timed"
_BEGINS = f"{PREFIX} 2"
_LITERAL = f" {_EVENT} status="
_MOST_NOTES, _LONGEST = 10, 300  # so that one write to a pipe is one line: 4096 bytes


@dataclass(frozen=True)
class Timed:
    """What a Timer has told: its window, or why there is none; ``notes`` are its remarks."""

    status: Status
    window: Window | None = None
    reason: str = ""
    notes: tuple[str, ...] = ()


def timed_line(timed: Timed) -> str:
    """The line, without its newline."""
    told = {
        "status": timed.status.value,
        "reason": timed.reason[:_LONGEST],
        **(asdict(timed.window) if timed.window else {}),
        "notes": [note[:_LONGEST] for note in timed.notes[:_MOST_NOTES]],
    }
    return write_line(_EVENT, told, nulls=True)


def read_timed(text: str) -> Timed | None:
    """What a line of a program tells of its Timer, behind whatever label of a launcher; None for
    any other line, and for one that is damaged."""
    if _LITERAL not in text:
        return None
    line = read_line(text[max(text.find(_BEGINS), 0) :].rstrip())
    if line is None or line.event != _EVENT:
        return None
    values = line.values
    try:
        status = Status(values.get("status"))
        window = Window.from_dict(values) if status is Status.OK else None
    except (TypeError, ValueError):
        return None
    notes = values.get("notes")
    told = notes if isinstance(notes, list) else []
    return Timed(status, window, str(values.get("reason", "")), tuple(map(str, told)))


def timed_in(lines: Iterable[str]) -> Iterator[Timed]:
    """What the Timers of a program have told, in the order of its lines."""
    return (told for line in lines if (told := read_timed(line)) is not None)
