"""``dlperf status --watch``: the same screen drawn anew after each look, until every run has ended.

Where standard output is no terminal there is no screen: a line for each look that saw a change, and
the tables once, at the end.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dlperf_hpc.errors import number_of, printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from dlperf_hpc.model.result import RunResult
    from dlperf_hpc.records.collect import Collection


@dataclass
class _Pace:
    """How fast runs end while somebody watches."""

    every_s: float
    began: float = field(default_factory=time.time)
    ended_before: int | None = None

    def told(self, results: Sequence[RunResult]) -> str:
        """``0.8 runs/min since 15:10:02, the rest takes about 16 min``; '' until one has ended."""
        ended = sum(result.status.finished for result in results)
        if self.ended_before is None:
            self.ended_before = ended
        minutes, new = (time.time() - self.began) / 60, ended - self.ended_before
        if new <= 0 or minutes <= 0:
            return ""
        left = (len(results) - ended) * minutes / new
        rest = f", the rest takes about {left:.0f} min" if left >= 1 else ""
        return f"{new / minutes:.3g} runs/min since {_clock(self.began)}{rest}"


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def counts(collection: Collection) -> str:
    """``12 of 25 runs have ended (48 %): 11 ok, 1 failed, 3 running, 10 pending``."""
    results = collection.results
    ended = sum(result.status.finished for result in results)
    statuses = Counter(result.status.value for result in results)
    told = ", ".join(f"{count} {status}" for status, count in statuses.most_common())
    share = f" ({100 * ended / len(results):.0f} %)" if results else ""
    return f"{ended} of {number_of(len(results), 'run')} ended{share}: {told or 'none'}"


def watch(directory: Path, every_s: float, ask_scheduler: bool, on_stderr: bool) -> Collection:
    """Look again and again until every run has ended; the last state. Each look is one squeue, and
    at most one sacct. Whoever leaves by Ctrl-C keeps the last screen."""
    from rich.console import Console

    from dlperf_hpc.engines.states import current

    console = Console(highlight=False, stderr=on_stderr)
    pace = _Pace(every_s)
    with _screen(console) as screen:
        while True:
            collection = current(directory, ask_scheduler=ask_scheduler)
            over = all(result.status.finished for result in collection.results)
            screen.show(collection, _head(collection, pace, over), directory)
            if over:
                return collection
            time.sleep(every_s)


def _head(collection: Collection, pace: _Pace, over: bool) -> list[str]:
    now = time.time()
    lines = [counts(collection), pace.told(collection.results)]
    if not over:
        then = f"next look at {_clock(now + pace.every_s)}, every {pace.every_s:g} s; Ctrl-C leaves"
        lines.append(f"{_clock(now)}, {then}")
    return [printable(line) for line in lines if line]


@contextlib.contextmanager
def _screen(console: Console) -> Iterator[_Drawn | _Printed]:
    """What shows each look: a screen that is drawn anew, or lines."""
    if not console.is_terminal:
        printed = _Printed(console)
        try:
            yield printed
        finally:
            printed.finish()
        return
    from rich.live import Live

    with Live(console=console, auto_refresh=False) as live:
        yield _Drawn(live)


class _Drawn:
    """The terminal's screen, from the line on in which the command was typed."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def show(self, collection: Collection, head: Sequence[str], directory: Path) -> None:
        from rich.console import Group

        self._live.update(Group(*_parts(collection, head, directory)), refresh=True)


class _Printed:
    """Lines for a file or a pipe: one for each look that saw a change, the tables at the end."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._seen = ""
        self._last: list[RenderableType] = []

    def show(self, collection: Collection, head: Sequence[str], directory: Path) -> None:
        self._last = _parts(collection, head[:0], directory)
        if head[0] != self._seen:
            self._seen = head[0]
            self._console.print(f"{_clock(time.time())}  {head[0]}", markup=False, soft_wrap=True)

    def finish(self) -> None:
        for part in self._last:
            self._console.print(part)


def _parts(collection: Collection, head: Sequence[str], directory: Path) -> list[RenderableType]:
    from rich.text import Text

    from dlperf_hpc.cli.messages import shortest
    from dlperf_hpc.cli.submission import report_job_lines
    from dlperf_hpc.reporting.status import status_parts

    shown = shortest(directory)
    lines = [*head, ""] if head else []
    return [
        *map(Text, lines),
        *status_parts(collection, shown),
        *map(Text, report_job_lines(collection.report_job, shown)),
    ]
