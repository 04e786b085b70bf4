"""How the runs of a sweep stand, for the terminal. What a scheduler said is shown, never obeyed.

Nothing of :mod:`dlperf_hpc.analysis` is loaded: ``status`` answers at once.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from dlperf_hpc.errors import number_of, printable
from dlperf_hpc.records.collect import RunJob
from dlperf_hpc.records.status import Status
from dlperf_hpc.reporting.text import common_beginning

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from dlperf_hpc.records.collect import Collection as RunCollection
    from dlperf_hpc.records.results import RunResult
    from dlperf_hpc.sweepfile.case import Topology

_UNSUBMITTED = "not submitted"
_MOST_REASONS = 8
_MOST_CASES = 20
_MOST_NAMES = 4  # of jobs, indices or nodes in one cell
_MOST_SHOWN = 20  # runs with a reason; a sweep of thousands may fail for one cause


def plain_table(title: str) -> Table:
    """Narrow: without edges and frames a row of seven columns fits 80 characters."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    return Table(
        title=Text(title, style="bold"),
        title_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )


def status_table(results: Sequence[RunResult], unsubmitted: Collection[str] = frozenset()) -> Table:
    """How many runs stand how, one row per topology from few devices to many, and their sum.

    ``unsubmitted`` are pending runs, by id, which have a column of their own.
    """
    from rich.text import Text

    def state(result: RunResult) -> str:
        return _state(result, unsubmitted)

    seen = {state(result) for result in results}
    known = (_UNSUBMITTED, *(status.value for status in Status))
    statuses = [status for status in known if status in seen]
    table = plain_table("runs")
    table.add_column("topology", no_wrap=True)
    for heading in [*statuses, "all"]:
        table.add_column(heading, justify="right", overflow="fold")
    topologies = {result.run.case.topology for result in results}
    groups: list[tuple[str, list[str]]] = [
        (str(topology), [state(r) for r in results if r.run.case.topology == topology])
        for topology in sorted(topologies, key=lambda t: (t.devices, t))
    ]
    if len(groups) > 1:
        groups.append(("all", [state(result) for result in results]))
    for name, group in groups:
        counts = [group.count(status) for status in statuses]
        row = [name, *(str(count) if count else "" for count in counts), str(len(group))]
        table.add_row(*map(Text, row))
    return table


def _state(result: RunResult, unsubmitted: Collection[str]) -> str:
    return _UNSUBMITTED if result.run.id in unsubmitted else result.status.value


def waiting_table(results: Sequence[RunResult], directory: str) -> Table | None:
    """Why runs do not start or end, and what to do: a row for each reason, at most a few; None if
    there is nothing to say. ``directory`` is the sweep's, as one would type it."""
    from rich.text import Text

    groups = Counter(
        (result.status, result.reason, result.to_do)
        for result in results
        if result.to_do or result.status is Status.UNKNOWN
    )
    if not groups:
        return None
    table = plain_table("runs that wait, cannot start, or whose end is not known")
    table.add_column("runs", justify="right", no_wrap=True)
    for heading in ("status", "why", "what to do"):
        table.add_column(heading, overflow="fold")
    for (status, reason, to_do), count in groups.most_common(_MOST_REASONS):
        cells = (str(count), status.value, reason, re.sub(r"\bDIR\b", lambda _: directory, to_do))
        table.add_row(*(Text(printable(cell)) for cell in cells))
    left = sum(groups.values()) - sum(count for _, count in groups.most_common(_MOST_REASONS))
    if left:
        table.add_row(Text(str(left)), Text(""), Text("other reasons: --json shows them all"))
    return table


def trouble_table(
    results: Sequence[RunResult],
    damaged: Mapping[str, str] = MappingProxyType({}),
    most: int | None = None,
) -> Table | None:
    """Runs that do not count, with their reasons; None if there are none. ``damaged`` are logs that
    do not even tell which run they are of. Runs that ended for the same reason have one row; there
    are ``most`` rows at most, but all of those that were held back."""
    from rich.text import Text

    rows = _troubles(results, damaged)
    if not rows:
        return None
    table = plain_table("runs that do not count")
    for heading in ("run", "status", "reason"):
        table.add_column(heading, overflow="fold")
    for row in rows[:most]:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


def _troubles(
    results: Sequence[RunResult], damaged: Mapping[str, str]
) -> list[tuple[str, str, str]]:
    """Run, status and reason of each row; those that were held back come first, for what held them
    back explains the rest."""
    groups: dict[tuple[Status, str], list[RunResult]] = {}
    for result in results:
        if result.status.bad or result.status is Status.UNKNOWN:
            groups.setdefault((result.status, result.reason), []).append(result)
    rows = [
        (_named(runs), status.value, reason)
        for (status, reason), runs in sorted(
            groups.items(), key=lambda item: item[0][0] is not Status.HELD_BACK
        )
    ]
    return rows + [(log, Status.UNKNOWN.value, why) for log, why in damaged.items()]


def _named(runs: Sequence[RunResult]) -> str:
    """One run by its id; of several the first, but only their number where none was attempted."""
    if runs[0].status is Status.HELD_BACK:
        return number_of(len(runs), "run")
    others = f" and {number_of(len(runs) - 1, 'other')}" if len(runs) > 1 else ""
    return f"{runs[0].title}{others}"


def cases_table(collection: RunCollection) -> Table | None:
    """A row for each case of which runs wait or run, those that run first: its jobs, their nodes,
    how long the longest has run, how long the shortest may still run, and when the first is
    expected to start. Columns of which nothing is known are left out. None if no run waits or runs.
    """
    from rich.text import Text

    cases = _open_cases(collection)
    if not cases:
        return None
    rows = [case.cells() for case in cases[:_MOST_CASES]]
    known = [any(cells) for cells in zip(*rows)]
    table = plain_table("cases of which runs wait or run")
    for heading in itertools.compress(_CASE_HEADINGS, known):
        clocked = heading in ("elapsed", "left", "starts")
        justify: Literal["left", "right"] = "right" if clocked else "left"
        table.add_column(heading, justify=justify, no_wrap=clocked, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in itertools.compress(row, known)))
    if len(cases) > _MOST_CASES:
        table.caption = f"and {len(cases) - _MOST_CASES} more cases: --json shows every run"
        table.caption_justify = "left"
    return table


_CASE_HEADINGS = ("case", "runs", "job", "nodes", "elapsed", "left", "starts")


@dataclass(frozen=True)
class _OpenCase:
    """A case with runs that wait or run; ``jobs`` are those of these runs."""

    name: str
    counts: Counter[str]
    running: Sequence[RunJob]
    waiting: Sequence[RunJob]

    def cells(self) -> tuple[str, ...]:
        elapsed = [job.elapsed_s for job in self.running if job.elapsed_s is not None]
        left = [job.left_s for job in self.running if job.left_s is not None]
        starts = min((job.starts for job in self.waiting if job.starts), default="")
        return (
            self.name,
            ", ".join(f"{status} {count}" for status, count in self.counts.items()),
            _jobs([job.job for job in (*self.running, *self.waiting)]),
            _few(job.nodes for job in self.running),
            clock(max(elapsed)) if elapsed else "",
            clock(max(0, min(left))) if left else "",
            starts[5:16].replace("T", " "),
        )


def _open_cases(collection: RunCollection) -> list[_OpenCase]:
    """In the order of the sweep, but those first of which a run runs."""
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


def _jobs(names: Iterable[str]) -> str:
    """``4711_3, 4711_5`` as ``4711_[3,5]``."""
    indices: dict[str, list[str]] = {}
    for job, _, index in (name.partition("_") for name in names if name):
        indices.setdefault(job, []).append(index)
    told = []
    for job, of in indices.items():
        of = list(dict.fromkeys(of))
        shown = ",".join(of[:_MOST_NAMES]) + ",..." * (len(of) > _MOST_NAMES)
        told.append(f"{job}_[{shown}]" if len(of) > 1 else f"{job}_{shown}")
    return _few(told)


def _few(names: Iterable[str]) -> str:
    found = list(dict.fromkeys(filter(None, names)))
    return ", ".join(found[:_MOST_NAMES]) + ", ..." * (len(found) > _MOST_NAMES)


def clock(seconds: float) -> str:
    """``2:11``, ``1:02:11``, ``1-02:03:04``: as Slurm writes lengths of time."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}-{hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def status_parts(collection: RunCollection, directory: str) -> list[RenderableType]:
    """All tables on how the runs stand, but for those that ended badly."""
    results = collection.results
    parts: list[RenderableType] = [status_table(results, collection.unsubmitted)]
    for table in (cases_table(collection), waiting_table(results, directory)):
        parts += [] if table is None else ["", table]
    warned = _warnings(results)
    return [*parts, *(["", *warned] if warned else [])]


def _warnings(results: Sequence[RunResult]) -> list[RenderableType]:
    """What is doubtful about runs that ended ok, each sentence once."""
    from rich.text import Text

    found: dict[str, list[RunResult]] = {}
    for result in results:
        for warning in result.warnings:
            if warning != result.reason:
                found.setdefault(warning, []).append(result)
    lines = []
    for text, runs in [*found.items()][:_MOST_REASONS]:
        of = runs[0].run.id if len(runs) == 1 else number_of(len(runs), "run")
        lines.append(f"warning of {of}: {text}")
    if len(found) > _MOST_REASONS:
        lines.append(f"and {len(found) - _MOST_REASONS} more warnings: --json shows them all")
    return [Text(printable(line), style="yellow") for line in lines]


def print_status(collection: RunCollection, directory: str) -> None:
    """Print how the runs stand, and why some wait or went wrong, to standard output."""
    from rich.console import Console

    console = Console(highlight=False)
    for part in status_parts(collection, directory):
        console.print(part)
    bad = [result for result in collection.results if result.status.bad]
    print_troubles(console, bad, "--json shows them all")


def print_troubles(
    console: Console,
    bad: Sequence[RunResult],
    more: str,
    damaged: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Print :func:`trouble_table`, of so many rows as one reads; ``more`` says where the others
    are."""
    from rich.text import Text

    trouble = trouble_table(bad, damaged, _MOST_SHOWN)
    if trouble is None:
        return
    console.print()
    console.print(trouble)
    left = len(_troubles(bad, damaged)) - _MOST_SHOWN
    if left > 0:
        console.print(Text(f"and {left} more; {more}"))
