"""The tables of a report for terminal and Markdown, and the report on a terminal.

A column of :mod:`.csv_columns` is taken from there by its name, with the heading and the form that
suit the place; CSV and JSON have every column there is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from dlperf_hpc.analysis.costs import Cost
from dlperf_hpc.analysis.speedup import CaseSummary, OptionPair
from dlperf_hpc.errors import at_most, number_of, printable
from dlperf_hpc.model.result import SAMPLES_PER_S, TOKENS_PER_S
from dlperf_hpc.model.statistics import Interval
from dlperf_hpc.reporting.contents import Report
from dlperf_hpc.reporting.csv_columns import CASE_COLUMNS
from dlperf_hpc.reporting.run_states import print_troubles, warning_lines
from dlperf_hpc.reporting.table import (
    Cell,
    Column,
    Table,
    common_beginning,
    drawn,
    figures,
    hundredths,
    interval_text,
    number,
    percent,
    picked,
    signed_percent,
    speed_heading,
    speed_text,
    two_digits,
    value_at,
    words,
)

if TYPE_CHECKING:
    from rich.console import Group, RenderableType


_WIDTH = 80
_MOST_REMARKS = 8  # of one series
_MOST_HOSTS = 4  # by their names; of more their number
_SAID_AS_COVERAGE = ("too-few-repeats",)  # once beneath the table, and not case by case
_IN_THE_HEAD = ("Device", "CPU", "Framework", "CUDA", "NCCL", "Transport")

case_column = picked(CASE_COLUMNS)
RUNS: Column[CaseSummary] = figures("runs", lambda s: Cell(f"{s.ok}/{s.runs}", s.ok))
_interval = value_at("sample.interval")


# --- a table for each series


def _unit_of(members: Sequence[CaseSummary]) -> str:
    return speed_heading(summary.unit for summary in members if summary.samples)


def _speeds(members: Sequence[CaseSummary]) -> Column[CaseSummary]:
    unit = _unit_of(members)
    return figures(unit, lambda s: speed_text(s.speed, s.unit, unit))


def _tokens(members: Sequence[CaseSummary], rank: int) -> list[Column[CaseSummary]]:
    if _unit_of(members) != SAMPLES_PER_S:
        return []
    return [case_column("tokens_per_s", name=TOKENS_PER_S, rank=rank)]


def narrow_table(name: str, members: Sequence[CaseSummary]) -> Table[CaseSummary]:
    """The cases of a series for a terminal, which drops the columns of the highest rank first."""
    columns = [
        case_column("topology", name="case", rank=0),
        _speeds(members),
        figures("CI", lambda s: interval_text(_interval(s)), rank=3),
        case_column("speedup", form=two_digits, rank=1),
        case_column("efficiency", name="eff. %", form=hundredths, rank=2),
        case_column("iteration_ms", name="ms/it.", rank=4),
        case_column("mfu", name="MFU %", form=hundredths, rank=5),
        case_column("memory_mb_max", name="mem GB", form=lambda mb: f"{mb / 1000:.2f}", rank=6),
        *_tokens(members, rank=7),
        RUNS,
    ]
    return Table(name, columns, members, bad=lambda s: not s.ok).without_empty()


def wide_table(members: Sequence[CaseSummary]) -> Table[CaseSummary]:
    """The cases of a series for Markdown: DLPerf's columns in its order, figures with intervals."""
    columns = [
        case_column("nodes", name="node_num", rank=0),
        case_column("devices", name="gpu_num", rank=0),
        _speeds(members),
        figures("CI (coverage)", lambda s: with_coverage(_interval(s))),
        *_tokens(members, rank=1),
        case_column("speedup", form=two_digits, rank=0),
        figures("speedup CI", lambda s: interval_text(s.speedup_interval)),
        case_column("efficiency", form=percent, rank=0),
        case_column("iteration_ms", name="ms/iteration"),
        case_column("mfu", name="MFU", form=percent),
        case_column("memory_mb_max", name="memory_mb", form="{:.0f}".format),
        case_column("exposed_comm", form=percent),
        RUNS,
        words("flags", lambda s: ", ".join(s.flags)),
    ]
    return Table("", columns, members).without_empty()


def with_coverage(interval: Interval | None) -> str:
    """``4873.92-4903.74 (93.8 %)``; '' for None."""
    return "" if interval is None else f"{interval_text(interval)} ({percent(interval.coverage)})"


# --- cases that differ in one option


def switch_table(pairs: Sequence[OptionPair]) -> Table[OptionPair]:
    """A row for each pair, with all that both cases measured."""
    unit = speed_heading(pair.unit for pair in pairs)
    columns: list[Column[OptionPair]] = [
        words("batch", lambda p: str(p.on.case.batch_size or "")),
        words("precision", "on.case.precision"),
        words("topology", lambda p: str(p.on.case.topology)),
        words(
            "switched on", lambda p: f"{p.on.case.framework}/{p.on.case.model} {p.name}", code=True
        ),
        figures(f"{unit} off", lambda p: speed_text(p.off.median(p.unit), p.unit, unit)),
        figures("on", lambda p: speed_text(p.on.median(p.unit), p.unit, unit)),
        figures("change", lambda p: signed_percent(p.ratio - 1)),
        figures("ratio CI", lambda p: interval_text(p.interval)),
        figures("memory_mb off", lambda p: _more_memory(p) and p.off.memory_mb),
        figures("on", lambda p: _more_memory(p) and p.on.memory_mb),
        figures("change", _more_memory),
        figures("gpu_util off", "off.gpu_util"),
        figures("on", "on.gpu_util"),
    ]
    return Table("", columns, pairs)


def _more_memory(pair: OptionPair) -> str:
    """``+512 (2.4 %)`` MB; '' where one of the two is not known."""
    if pair.memory_mb is None or not pair.off.memory_mb:
        return ""
    return f"{pair.memory_mb:+.0f} ({signed_percent(pair.memory_mb / pair.off.memory_mb)})"


# --- all series side by side

SeriesRow = tuple[str, Mapping[str, str]]
"""A series by its name, with a figure as text for each topology."""


@dataclass(frozen=True)
class Overview:
    """``common`` is the beginning that the names of all series share and the rows leave out; the
    rows of ``table`` are such names with the cells by topology."""

    common: str
    table: Table[SeriesRow]


def overview(report: Report) -> Overview | None:
    """A row for each series, a column for each topology; None for fewer than two series, or where
    no topology has a figure. The cells are speedups where some series has any, else throughputs. A
    narrow terminal drops the smallest topologies first."""
    series, members = report.series, report.cases
    measured = {str(s.case.topology) for s in members if s.samples}
    if len(series) < 2 or not measured:
        return None
    unit = _unit_of(members)
    cells = f"{unit}, median"
    scaled = any(s.efficiency is not None and s.case.topology != s.base for s in members)
    if scaled:
        bases = sorted({str(s.base) for s in members if s.base is not None})
        cells = f"speedup over {', '.join(bases)}"

    def figure(case: CaseSummary) -> str:
        return two_digits(case.speedup) if scaled else speed_text(case.speed, case.unit, unit)

    common = common_beginning(list(series))
    lines = []
    for name, cases in series.items():
        by_topology = {str(s.case.topology): figure(s) for s in cases}
        lines.append((name.removeprefix(common), by_topology))
    columns: list[Column[SeriesRow]] = [words("series", lambda line: line[0], long=True)]
    names = [each for each in map(str, report.topologies) if each in measured]
    columns += [_at(name, len(names) - 1 - place) for place, name in enumerate(names)]
    return Overview(common, Table(f"all series: {cells}", columns, lines))


def _at(topology: str, rank: int) -> Column[SeriesRow]:
    return figures(topology, lambda line: line[1].get(topology), rank=rank)


# --- what single cases are remarked on


def remarks(members: Sequence[CaseSummary], without: Collection[str] = ()) -> list[str]:
    """What the flags of these cases say, but for those ``without``: name and sentence, each once
    with the topologies that it is about. Then why single cases have no speedup: why a whole series
    has none is not among them."""
    about: dict[str, list[str]] = {}
    for summary in members:
        names = {flag.note: flag.name for flag in reversed(summary.evidence)}
        for note in summary.notes:
            of_series = summary.base is None and note == summary.speedup_note
            name = names.get(note, "")
            if not of_series and name not in without:
                remark = f"{name}: {note}" if name else note
                about.setdefault(remark, []).append(str(summary.case.topology))
    return [f"{', '.join(topologies)}: {remark}" for remark, topologies in about.items()]


# --- the terminal


def speedup_table(report: Report, width: int = _WIDTH) -> Group:
    """An overview of all series, then one table per series, with what its readers must know
    beneath. Columns for which ``width`` characters have no room are left out, and named."""
    from rich.console import Group
    from rich.text import Text

    if not report.cases:
        return Group(Text("no runs yet"))
    parts: list[RenderableType] = []
    across = overview(report)
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
    intervals = {s.ok: interval for s in members if (interval := _interval(s))}
    covered = (f"{percent(each.coverage)} for {n} runs" for n, each in sorted(intervals.items()))
    return [*lines, *([f"CI of the median covers {', '.join(covered)}"] if intervals else [])]


def _overview(across: Overview, width: int) -> Table[SeriesRow]:
    """Topologies for which there is no room beside the names are left out, and named."""
    table = across.table
    if across.common:
        names, *figure = table.columns
        heading = replace(names, name=f"series ({printable(across.common)}...)")
        table = replace(table, columns=[heading, *figure])
    fitting = table.fitting(width)
    left_out = table.dropped(fitting)
    if left_out:
        lines = [f"no room for {', '.join(left_out)}: the tables below have them"]
        fitting = replace(fitting, beneath=lines)
    return fitting


def _head(report: Report) -> list[str]:
    """When, where and on what: what one must know to believe a figure."""
    hosts = ""
    if report.hosts:
        hosts = number_of(len(report.hosts), "host")
        hosts += f" ({', '.join(report.hosts)})" if len(report.hosts) <= _MOST_HOSTS else ""
    measured = " on ".join(filter(None, [report.measured, hosts]))
    machine = [f"{name}: {text}" for name, text in report.machines.items() if name in _IN_THE_HEAD]
    return [measured and f"measured {measured}", "; ".join(machine)]


def print_report(report: Report, damaged: Mapping[str, str] = MappingProxyType({})) -> None:
    """Print what a report says, what its logs warn of and which runs do not count to standard
    output; ``damaged`` as in :func:`.run_states.trouble_table`."""
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


def cost_text(found: Cost | None) -> str:
    """One line on the node-hours of a sweep; '' where no log tells how long a run took."""
    if found is None:
        return ""
    text = f"node-hours: {found.used:.3g} used"
    if found.requested is not None:
        text += f" of {found.requested:.3g} asked for"
    text += f" by {number_of(found.runs, 'run')}"
    if found.window_share is not None:
        text += f", {100 * found.window_share:.0f} % window"
    if found.samples_per_node_hour is not None:
        text += f", {number(found.samples_per_node_hour)} samples per node-hour"
    if found.unknown:
        text += f"; {number_of(found.unknown, 'run')} not counted"
    return f"{text}\n"
