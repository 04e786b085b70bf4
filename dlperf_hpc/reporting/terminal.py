"""Tables for the terminal. What a log or a scheduler said is shown, never obeyed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from dlperf_hpc.errors import printable
from dlperf_hpc.records.status import Status
from dlperf_hpc.reporting.text import interval_text, percent, speed_heading, speed_text

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table

    from dlperf_hpc.analysis.speedup import CaseSummary
    from dlperf_hpc.records.collect import Collection as RunCollection
    from dlperf_hpc.records.results import RunResult
    from dlperf_hpc.reporting.report import Report

_UNSUBMITTED = "not submitted"
_MOST_REASONS = 8
_MOST_SHOWN = 20  # runs with a reason; a sweep of thousands may fail for one cause


def speedup_table(report: Report) -> Group:
    """One table per series, with what its readers must know beneath; fits 80 columns."""
    from rich.console import Group
    from rich.text import Text

    if not report.cases:
        return Group(Text("no runs yet"))
    parts: list[Table | Text] = []
    for name, members in report.series.items():
        parts.append(_series_table(name, members))
        parts += [Text(printable(line), style="dim") for line in _beneath(members)]
        parts.append(Text())
    return Group(*parts[:-1])


def _beneath(members: Sequence[CaseSummary]) -> list[str]:
    lines = []
    for summary in members:
        # without a base the reason is that of the whole series
        where = "" if summary.base is None else f" of {summary.case.topology}"
        if summary.speedup_missing:
            lines.append(f"no speedup{where}: {summary.speedup_missing}")
    samples = [summary.sample for summary in members if summary.sample is not None]
    covered = {sample.n: sample.interval.coverage for sample in samples if sample.interval}
    if covered:
        each = ", ".join(f"{percent(covered[n])} for {n} runs" for n in sorted(covered))
        lines.append(f"CI of the median covers {each}")
    return list(dict.fromkeys(lines))


def _plain_table(title: str) -> Table:
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


def _series_table(name: str, members: Sequence[CaseSummary]) -> Table:
    from rich.text import Text

    table = _plain_table(printable(name))
    table.add_column("case", no_wrap=True)
    throughput = speed_heading(summary.unit for summary in members if summary.samples)
    for heading in (throughput, "CI", "speedup", "eff.", "runs"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("flags", overflow="fold")
    for summary in members:
        interval = None if summary.sample is None else summary.sample.interval
        cells = (
            str(summary.case.topology),
            speed_text(summary.speed, summary.unit, throughput),
            interval_text(interval),
            "" if summary.speedup is None else f"{summary.speedup:.2f}",
            percent(summary.efficiency),
            f"{summary.ok}/{summary.runs}",
            # too few repeats is said once, beneath, as the coverage
            "\n".join(flag for flag in summary.flags if flag != "too-few-repeats"),
        )
        table.add_row(*map(Text, cells), style="" if summary.ok else "red")
    return table


def trouble_table(
    results: Sequence[RunResult], damaged: Mapping[str, str] = MappingProxyType({})
) -> Table | None:
    """Runs that do not count, with their reasons; None if there are none. ``damaged`` are logs that
    do not even tell which run they are of. Runs that are held back for the same reason have one
    row."""
    from rich.text import Text

    bad = [result for result in results if result.status.bad or result.status is Status.UNKNOWN]
    if not bad and not damaged:
        return None
    held = Counter(result.reason for result in bad if result.status is Status.HELD_BACK)
    table = _plain_table("runs that do not count")
    for heading in ("run", "status", "reason"):
        table.add_column(heading, overflow="fold")
    rows = [
        (result.run.id, result.status.value, result.reason)
        for result in bad
        if result.status is not Status.HELD_BACK
    ]
    rows += [
        (f"{count} run{'s' * (count > 1)}", Status.HELD_BACK.value, reason)
        for reason, count in held.items()
    ]
    rows += [(log, Status.UNKNOWN.value, why) for log, why in damaged.items()]
    for cells in rows:
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table


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
    table = _plain_table("runs that wait, cannot start, or whose end is not known")
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


def status_table(results: Sequence[RunResult], unsubmitted: Collection[str] = frozenset()) -> Table:
    """How many runs stand how, one row per topology from few devices to many, and their sum.

    ``unsubmitted`` are pending runs, by id, which have a column of their own.
    """
    from rich.text import Text

    def state(result: RunResult) -> str:
        return _UNSUBMITTED if result.run.id in unsubmitted else result.status.value

    seen = {state(result) for result in results}
    known = (_UNSUBMITTED, *(status.value for status in Status))
    statuses = [status for status in known if status in seen]
    table = _plain_table("runs")
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


def print_report(report: Report, damaged: Mapping[str, str] = MappingProxyType({})) -> None:
    """Print the speedups of a report and what does not count to standard output; ``damaged`` as in
    :func:`trouble_table`."""
    _print([report.name, speedup_table(report)], report.troubles, "runs.csv has them all", damaged)


def print_status(collection: RunCollection, directory: str) -> None:
    """Print how the runs stand, and why some wait or went wrong, to standard output."""
    results = collection.results
    waiting = waiting_table(results, directory)
    parts: list[RenderableType] = [status_table(results, collection.unsubmitted)]
    parts += [] if waiting is None else ["", waiting]
    _print(parts, [r for r in results if r.status.bad], "--json shows them all")


def _print(
    parts: Sequence[RenderableType],
    bad: Sequence[RunResult],
    more: str,
    damaged: Mapping[str, str] = MappingProxyType({}),
) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for part in parts:
        console.print(Text(printable(part), style="bold") if isinstance(part, str) else part)
    held = [result for result in bad if result.status is Status.HELD_BACK]
    bad = [result for result in bad if result.status is not Status.HELD_BACK]
    shown = [*bad[:_MOST_SHOWN], *held]
    trouble = trouble_table(shown, dict([*damaged.items()][:_MOST_SHOWN]))
    if trouble is not None:
        console.print()
        console.print(trouble)
    if len(bad) > _MOST_SHOWN:
        console.print(Text(f"and {len(bad) - _MOST_SHOWN} more; {more}"))
