"""How the runs of a sweep stand, and why one of them is what it is, for the terminal.

What a scheduler said is shown, never obeyed. Nothing of :mod:`dlperf_hpc.analysis` is loaded:
``status`` answers at once.
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from dlperf_hpc.errors import at_most, number_of, printable
from dlperf_hpc.model.result import RunResult, Status
from dlperf_hpc.reporting.table import (
    Column,
    Table,
    by_devices,
    common_beginning,
    drawn,
    figures,
    words,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dlperf_hpc.model.case import Topology
    from dlperf_hpc.records.collect import Collection as RunCollection
    from dlperf_hpc.records.collect import RunJob


_UNSUBMITTED = "not submitted"
_MOST_REASONS = 8
_MOST_CASES = 20
_MOST_NAMES = 4  # of jobs, indices or nodes in one cell
_MOST_TROUBLES = 20  # runs with a reason; a sweep of thousands may fail for one cause
_WIDEST = 120
_SCREEN = 23  # lines, and one to type in
_LONGEST = 3  # lines of what was seen at one place; fewer where the screen is full
_WHOLE = "log"  # never broken: it is copied

Line = Sequence[str]
"""A row whose cells are texts already."""


def _nth(place: int, heading: str) -> Column[Line]:
    """A column of lines of texts, which may take several lines on the terminal."""
    return words(heading, lambda line: line[place], long=True)


# --- how many runs stand how


def status_table(
    results: Sequence[RunResult], unsubmitted: Collection[str] = frozenset()
) -> Table[tuple[str, Counter[str]]]:
    """How many runs stand how, one row per topology from few devices to many, and their sum.
    ``unsubmitted`` are pending runs, by id, which have a column of their own."""
    groups: dict[Topology, Counter[str]] = {}
    for result in results:
        states = groups.setdefault(result.run.case.topology, Counter())
        states[_state(result, unsubmitted)] += 1
    lines = [(str(topology), groups[topology]) for topology in sorted(groups, key=by_devices)]
    if len(lines) > 1:
        lines.append(("all", sum(groups.values(), Counter())))
    columns = [
        words("topology", lambda line: line[0]),
        *map(_count_of, (_UNSUBMITTED, *(status.value for status in Status))),
        figures("all", lambda line: str(sum(line[1].values())), long=True),
    ]
    return Table("runs", columns, lines).without_empty()


def _count_of(state: str) -> Column[tuple[str, Counter[str]]]:
    return figures(state, lambda line: str(line[1][state] or ""), long=True, rank=1)


def _state(result: RunResult, unsubmitted: Collection[str]) -> str:
    return _UNSUBMITTED if result.run.id in unsubmitted else result.status.value


_WAITING = (
    figures("runs", lambda line: line[0]),
    *(_nth(place, heading) for place, heading in enumerate(("status", "why", "what to do"), 1)),
)


def waiting_table(results: Sequence[RunResult], directory: str) -> Table[Line] | None:
    """Why runs do not start or end, and what to do: a row for each reason, at most a few; None if
    there is nothing to say. ``directory`` is the sweep's, as one would type it."""
    groups = Counter(
        (result.status, result.reason, result.to_do)
        for result in results
        if result.to_do or result.status is Status.UNKNOWN or _waits(result)
    )
    if not groups:
        return None
    lines: list[Line] = []
    left = sum(groups.values())
    for (status, reason, to_do), count in groups.most_common(_MOST_REASONS):
        what = re.sub(r"\bDIR\b", lambda _: directory, to_do)
        lines.append((str(count), status.value, reason, what))
        left -= count
    if left:
        lines.append((str(left), "", "other reasons: --json shows them all", ""))
    return Table("runs that wait, cannot start, or whose end is not known", _WAITING, lines)


def _waits(result: RunResult) -> bool:
    """Whether a scheduler said why a run waits, in whatever words."""
    return result.status is Status.PENDING and result.source == "scheduler"


_TROUBLE = [_nth(place, heading) for place, heading in enumerate(("run", "status", "reason"))]


def trouble_table(
    results: Sequence[RunResult],
    damaged: Mapping[str, str] = MappingProxyType({}),
    most: int | None = None,
    more: str = "",
) -> Table[Line] | None:
    """Runs that do not count, with their reasons; None if there are none. ``damaged`` are logs that
    do not even tell which run they are of. Runs that ended for the same reason have one row, and
    those that were held back come first, for what held them back explains the rest; there are
    ``most`` rows at most, and ``more`` says where the rest is."""
    groups: dict[tuple[Status, str], list[RunResult]] = {}
    for result in results:
        if result.status.bad or result.status is Status.UNKNOWN:
            groups.setdefault((result.status, result.reason), []).append(result)
    ordered = sorted(groups.items(), key=lambda item: item[0][0] is not Status.HELD_BACK)
    lines = [(_named(runs), status.value, reason) for (status, reason), runs in ordered]
    lines += [(log, Status.UNKNOWN.value, why) for log, why in damaged.items()]
    if not lines:
        return None
    left = len(lines[most:]) if most else 0
    beneath = [f"and {left} more; {more}"] if left else []
    return Table("runs that do not count", _TROUBLE, lines[:most], beneath)


def _named(runs: Sequence[RunResult]) -> str:
    """One run by its id; of several the first, but only their number where none was attempted."""
    if runs[0].status is Status.HELD_BACK:
        return number_of(len(runs), "run")
    rest = f" and {number_of(len(runs) - 1, 'other')}" if len(runs) > 1 else ""
    return f"{runs[0].title}{rest}"


# --- cases of which runs wait or run


@dataclass(frozen=True)
class _OpenCase:
    """A case with runs that wait or run; ``running`` and ``waiting`` are the jobs of these runs."""

    name: str
    counts: Counter[str]
    running: Sequence[RunJob]
    waiting: Sequence[RunJob]

    @property
    def states(self) -> str:
        return ", ".join(f"{status} {count}" for status, count in self.counts.items())

    @property
    def elapsed(self) -> str:
        """How long the longest has run; '' where that is not known."""
        known = [job.elapsed_s for job in self.running if job.elapsed_s is not None]
        return clock(max(known)) if known else ""

    @property
    def left(self) -> str:
        """How long the shortest may still run; '' where that is not known."""
        known = [job.left_s for job in self.running if job.left_s is not None]
        return clock(max(0, min(known))) if known else ""

    @property
    def starts(self) -> str:
        """When the first that waits is expected to start; '' where that is not known."""
        first = min((job.starts for job in self.waiting if job.starts), default="")
        return first[5:16].replace("T", " ")


_CASE_COLUMNS: tuple[Column[_OpenCase], ...] = (
    words("case", "name", long=True),
    words("runs", "states", long=True, rank=1),
    words("job", lambda case: _jobs([*case.running, *case.waiting]), long=True, rank=1),
    words("nodes", lambda case: _few(job.nodes for job in case.running), long=True, rank=1),
    figures("elapsed", "elapsed", rank=1),
    figures("left", "left", rank=1),
    figures("starts", "starts", rank=1),
)


def cases_table(collection: RunCollection) -> Table[_OpenCase] | None:
    """A row for each case of which runs wait or run, those that run first: its jobs, their nodes,
    how long the longest has run, how long the shortest may still run, and when the first is
    expected to start. Columns of which nothing is known are left out. None if no run waits or runs.
    """
    cases = _open_cases(collection)
    if not cases:
        return None
    more = len(cases) - _MOST_CASES
    beneath = [f"and {more} more cases: --json shows every run"] if more > 0 else []
    title = "cases of which runs wait or run"
    return Table(title, _CASE_COLUMNS, cases[:_MOST_CASES], beneath).without_empty()


def _open_cases(collection: RunCollection) -> list[_OpenCase]:
    """In the order of the sweep, but those first of which a run runs."""
    from dlperf_hpc.records.collect import RunJob

    groups: dict[tuple[str, Topology], list[RunResult]] = {}
    for result in collection.results:
        groups.setdefault((result.run.case.series, result.run.case.topology), []).append(result)
    common = common_beginning([series for series, _ in groups])
    found = []
    for (series, topology), results in groups.items():
        standing: dict[Status, list[RunJob]] = {Status.RUNNING: [], Status.PENDING: []}
        for result in results:
            if result.status in standing and result.run.id not in collection.unsubmitted:
                job = collection.jobs.get(result.run.id, RunJob(""))
                standing[result.status].append(job)
        if any(standing.values()):
            name = f"{topology} {series.removeprefix(common)}"
            counts = Counter(_state(result, collection.unsubmitted) for result in results)
            found.append(_OpenCase(name, counts, *standing.values()))
    return sorted(found, key=lambda case: not case.running)


def _jobs(jobs: Iterable[RunJob]) -> str:
    """``4711_3, 4711_5`` as ``4711_[3,5]``."""
    indices: dict[str, dict[str, None]] = {}
    for job, _, index in (each.job.partition("_") for each in jobs if each.job):
        indices.setdefault(job, {})[index] = None
    names = []
    for job, of in indices.items():
        first = _few(of, ",")
        names.append(f"{job}_[{first}]" if len(of) > 1 else f"{job}_{first}")
    return _few(names)


def _few(names: Iterable[str], between: str = ", ") -> str:
    found = list(dict.fromkeys(filter(None, names)))
    return between.join(found[:_MOST_NAMES]) + f"{between}..." * (len(found) > _MOST_NAMES)


def clock(seconds: float) -> str:
    """``2:11``, ``1:02:11``, ``1-02:03:04``: as Slurm writes lengths of time."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}-{hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


# --- the whole, and warnings


def status_parts(collection: RunCollection, directory: str) -> list[RenderableType]:
    """All tables on how the runs stand, but for those that ended badly."""
    from rich.text import Text

    results = collection.results
    parts: list[RenderableType] = [drawn(status_table(results, collection.unsubmitted))]
    for table in (cases_table(collection), waiting_table(results, directory)):
        if table is not None:
            parts += ["", drawn(table)]
    warned = warning_lines(warnings_of(results))
    warned = at_most(warned, _MOST_REASONS, " warnings: --json shows them all")
    if warned:
        parts += ["", *(Text(printable(line), style="yellow") for line in warned)]
    return parts


def warnings_of(results: Iterable[RunResult]) -> dict[str, list[RunResult]]:
    """What logs warn of, each sentence once, with its runs; no reason why a run does not count."""
    found: dict[str, list[RunResult]] = {}
    for result in results:
        for warning in dict.fromkeys(result.warnings):
            if warning and warning != result.reason:
                found.setdefault(warning, []).append(result)
    return found


def warning_lines(found: Mapping[str, Sequence[RunResult]]) -> list[str]:
    """Each warning with the first run that it is about, and how many others there are."""
    return [f"warning of {_named(runs)}: {text}" for text, runs in found.items()]


def print_status(collection: RunCollection, directory: str) -> None:
    """Print how the runs stand, and why some wait or went wrong, to standard output."""
    from rich.console import Console

    console = Console(highlight=False)
    for part in status_parts(collection, directory):
        console.print(part)
    trouble = trouble_table(
        [result for result in collection.results if result.status.bad],
        most=_MOST_TROUBLES, more="--json shows them all",
    )  # fmt: skip
    if trouble is not None:
        console.print()
        console.print(drawn(trouble, style=""))


# --- why one run is what it is: what was looked at, in order, and what decided; on one screen


@dataclass(frozen=True)
class Why:
    """How a run ended. ``number`` of ``runs`` is its place in the sweep; ``looked`` has by what was
    looked at a text for each thing that was seen there, and ``decided`` names that which decided;
    ``lines`` are the last that a program printed of which nothing was read."""

    run: str
    number: int
    runs: int
    status: Status
    reason: str
    decided: str
    looked: Mapping[str, Sequence[str]]
    lines: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        looked = [
            {"what": what, "seen": list(seen), "decided": what == self.decided}
            for what, seen in self.looked.items()
        ]
        names = ("run", "number", "runs", "status", "reason", "decided")
        values = {name: getattr(self, name) for name in names}
        values["status"] = self.status.value
        return {**values, "looked_at": looked, "lines": list(self.lines)}


def text_of(why: Why, width: int | None = None) -> str:
    """For a terminal of ``width`` columns, by default this one's; as short as one screen."""
    columns = min(width or shutil.get_terminal_size().columns, _WIDEST)
    rows: Sequence[str] = ()
    for longest in range(_LONGEST, 0, -1):
        rows = _rows(why, columns, longest)
        if len(rows) + sum(len(row) // (columns + 1) for row in rows) <= _SCREEN:
            break
    return "\n".join(rows)


def _rows(why: Why, columns: int, longest: int) -> list[str]:
    rows = [printable(f"{why.run}, run {why.number} of {why.runs}: {why.status.value}")]
    rows += _wrapped(why.reason, columns, "  ", _LONGEST)
    margin = 4 + max(map(len, why.looked))
    for what, seen in why.looked.items():
        sign, most = ("> ", _LONGEST) if what == why.decided else ("  ", longest)
        head, text = f"{sign}{what}".ljust(margin), "; ".join(seen)
        if what == _WHOLE:
            rows.append(head + printable(text))
        else:
            rows += _wrapped(text, columns, head, most)
    return rows + [f"    {printable(line)}"[:columns] for line in why.lines]


def _wrapped(text: str, columns: int, head: str, longest: int) -> list[str]:
    if not text:
        return [*filter(None, [head.rstrip()])]
    return textwrap.wrap(
        printable(text),
        columns,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        max_lines=longest,
        placeholder=" ...",
    )
