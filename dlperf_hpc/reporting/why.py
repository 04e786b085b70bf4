"""Why a run is what it is: what was looked at, in order, and what decided; on one screen."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dlperf_hpc.errors import printable
from dlperf_hpc.model.result import Status

_WIDEST = 120
_SCREEN = 23  # lines, and one to type in
_LONGEST = 3  # lines of what was seen at one place; fewer where the screen is full
_WHOLE = "log"  # never broken: it is copied


@dataclass(frozen=True)
class Looked:
    """One thing that was looked at, and what was seen there, a text for each thing that was."""

    what: str
    seen: tuple[str, ...]


@dataclass(frozen=True)
class Why:
    """How a run ended. ``number`` of ``runs`` is its place in the sweep; ``decided`` names that of
    ``looked`` which decided; ``lines`` are the last that a program printed of which nothing was
    read."""

    run: str
    number: int
    runs: int
    status: Status
    reason: str
    decided: str
    looked: tuple[Looked, ...]
    lines: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "run": self.run,
            "number": self.number,
            "runs": self.runs,
            "status": self.status.value,
            "reason": self.reason,
            "decided": self.decided,
            "looked_at": [
                {"what": each.what, "seen": list(each.seen), "decided": each.what == self.decided}
                for each in self.looked
            ],
            "lines": list(self.lines),
        }


def text_of(why: Why, width: int | None = None) -> str:
    """For a terminal of ``width`` columns, by default this one's; as short as one screen."""
    columns = min(width or shutil.get_terminal_size().columns, _WIDEST)
    texts = (_rows(why, columns, longest) for longest in range(_LONGEST, 0, -1))
    rows: Sequence[str] = ()
    for rows in texts:
        if len(rows) + sum(len(row) // (columns + 1) for row in rows) <= _SCREEN:
            break
    return "\n".join(rows)


def _rows(why: Why, columns: int, longest: int) -> list[str]:
    rows = [printable(f"{why.run}, run {why.number} of {why.runs}: {why.status.value}")]
    rows += _wrapped(why.reason, columns, "  ", _LONGEST)
    margin = 2 + max(len(each.what) for each in why.looked) + 2
    for each in why.looked:
        decided = each.what == why.decided
        head = f"{'> ' if decided else '  '}{each.what}".ljust(margin)
        seen = "; ".join(each.seen)
        if each.what == _WHOLE:
            rows.append(head + printable(seen))
        else:
            rows += _wrapped(seen, columns, head, _LONGEST if decided else longest)
    return rows + [f"    {printable(line)}"[:columns] for line in why.lines]


def _wrapped(text: str, columns: int, head: str, longest: int) -> list[str]:
    if not text:
        return [head.rstrip()] if head.strip() else []
    return textwrap.wrap(
        printable(text),
        columns,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        max_lines=longest,
        placeholder=" ...",
    )
