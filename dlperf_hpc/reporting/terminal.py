"""A report for the terminal. What a log or a scheduler said is shown, never obeyed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from dlperf_hpc.errors import number_of, printable
from dlperf_hpc.reporting.status import print_troubles, warning_lines
from dlperf_hpc.reporting.table import Table, drawn
from dlperf_hpc.reporting.tables import Overview, SeriesRow, narrow_table, overview, remarks
from dlperf_hpc.reporting.text import at_most, percent

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

    from dlperf_hpc.analysis.speedup import CaseSummary
    from dlperf_hpc.reporting.report import Report

_WIDTH = 80
_MOST_REMARKS = 8  # of one series
_MOST_HOSTS = 4  # by their names; of more their number
_SAID_AS_COVERAGE = ("too-few-repeats",)  # once beneath the table, and not case by case
_IN_THE_HEAD = ("Device", "CPU", "Framework", "CUDA", "NCCL", "Transport")


def speedup_table(report: Report, width: int = _WIDTH) -> Group:
    """An overview of all series, then one table per series, with what its readers must know
    beneath. Columns for which ``width`` characters have no room are left out, and named."""
    from rich.console import Group
    from rich.text import Text

    if not report.cases:
        return Group(Text("no runs yet"))
    parts: list[RenderableType] = []
    across = overview(report.series)
    if across is not None:
        parts += [drawn(_overview(across, width)), Text()]
    left_out: dict[str, None] = {}
    for name, members in report.series.items():
        whole = replace(narrow_table(name, members), beneath=_beneath(members))
        table = whole.fitting(width)
        left_out.update(dict.fromkeys(whole.dropped(table)))
        parts += [drawn(table), Text()]
    if left_out:
        line = f"no room for {', '.join(left_out)}: a wider terminal shows more, report.md all"
        parts += [Text(line, style="dim"), Text()]
    return Group(*parts[:-1])


def _beneath(members: Sequence[CaseSummary]) -> list[str]:
    """Why there is no speedup, what is odd, and what the intervals cover."""
    whole = {s.speedup_missing for s in members if s.base is None and s.speedup_missing}
    lines = [f"no speedup: {why}" for why in whole]
    odd = remarks(members, without=_SAID_AS_COVERAGE)
    lines += at_most(odd, _MOST_REMARKS, " remarks: report.md has them all")
    samples = [summary.sample for summary in members if summary.sample is not None]
    covered = {sample.n: sample.interval.coverage for sample in samples if sample.interval}
    if covered:
        each = ", ".join(f"{percent(covered[n])} for {n} runs" for n in sorted(covered))
        lines.append(f"CI of the median covers {each}")
    return lines


def _overview(across: Overview, width: int) -> Table[SeriesRow]:
    """Topologies for which there is no room beside the names are left out, and named."""
    table = across.table
    if across.common:
        names, *others = table.columns
        heading = replace(names, name=f"series ({printable(across.common)}...)")
        table = replace(table, columns=[heading, *others])
    fitting = table.fitting(width)
    left_out = table.dropped(fitting)
    if left_out:
        lines = [f"no room for {', '.join(left_out)}: the tables below have them"]
        fitting = replace(fitting, beneath=lines)
    return fitting


def _head(report: Report) -> list[str]:
    """When, where and on what: what one must know to believe a figure."""
    hosts = number_of(len(report.hosts), "host") if report.hosts else ""
    listed = f" ({', '.join(report.hosts)})" if 0 < len(report.hosts) <= _MOST_HOSTS else ""
    measured = " on ".join(filter(None, [report.measured, f"{hosts}{listed}"]))
    told = [f"{name}: {text}" for name, text in report.machines.items() if name in _IN_THE_HEAD]
    return [f"measured {measured}" if measured else "", "; ".join(told)]


def print_report(report: Report, damaged: Mapping[str, str] = MappingProxyType({})) -> None:
    """Print what a report says, what its logs warn of and which runs do not count to standard
    output; ``damaged`` as in :func:`.status.trouble_table`."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Text(printable(report.name), style="bold"))
    for line in filter(None, _head(report)):
        console.print(Text(printable(line), style="dim"))
    console.print()
    console.print(speedup_table(report, console.width))
    for line in warning_lines(report.warnings, "runs.csv has them all"):
        console.print(Text(printable(line), style="yellow"))
    print_troubles(console, report.troubles, "runs.csv has them all", damaged)
