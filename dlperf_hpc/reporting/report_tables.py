"""The tables of a report for terminal and Markdown, and the report on a terminal.

A column of :mod:`.csv_columns` is taken from there by its name, with the heading and the form that
suit the place; CSV and JSON have every column there is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from dlperf_hpc.analysis.speedup import CaseSummary, OptionPair
from dlperf_hpc.errors import at_most, listed, number_of, printable
from dlperf_hpc.model.case import value_at
from dlperf_hpc.model.result import SAMPLES_PER_S, TOKENS_PER_S
from dlperf_hpc.model.statistics import Interval
from dlperf_hpc.reporting.contents import FlagRow, Report
from dlperf_hpc.reporting.csv_columns import CASE_COLUMNS
from dlperf_hpc.reporting.table import (
    Cell,
    Column,
    Table,
    by_devices,
    common_beginning,
    drawn,
    figures,
    hundredths,
    interval_text,
    number,
    percent,
    picked,
    signed_percent,
    speed_cell,
    speed_heading,
    two_digits,
    words,
)

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.text import Text


_WIDTH = 80
MOST_LINES = 40
"""Of a report behind its head: more than a screen is not read."""
_MOST_FLAGS, _FEW_FLAGS = 8, 4  # so few have two lines each
_MOST_CASES = 3  # by their names, with a flag
_MOST_TROUBLES = (20, 8, 4, 2, 1)  # rows: as many as leave half of the lines for tables
_NOTES = 3  # lines of what is left out
_MOST_FACTS = 6  # in which sweeps differ
_MOST_HOSTS = 4  # by their names; of more their number
_IN_THE_HEAD = ("Device", "CPU", "Framework", "CUDA", "NCCL", "Transport")

case_column = picked(CASE_COLUMNS)
RUNS: Column[CaseSummary] = figures("runs", lambda s: Cell(f"{s.ok}/{s.runs}", s.ok))
_interval = value_at("sample.interval")


# --- a table for each series


def _unit_of(members: Sequence[CaseSummary]) -> str:
    return speed_heading(summary.unit for summary in members if summary.samples)


def _speeds(members: Sequence[CaseSummary]) -> Column[CaseSummary]:
    unit = _unit_of(members)
    return figures(unit, lambda s: speed_cell(s.speed, s.unit, unit))


def _tokens(members: Sequence[CaseSummary], rank: int) -> list[Column[CaseSummary]]:
    if _unit_of(members) != SAMPLES_PER_S:
        return []
    return [case_column("tokens_per_s", name=TOKENS_PER_S, rank=rank)]


def bought(members: Sequence[CaseSummary], rank: int) -> list[Column[CaseSummary]]:
    """What one unit of the currency buys of samples and tokens, where a price is known."""
    price = members[0].price if members else None
    if price is None:
        return []
    return [
        case_column(f"{what}_per_currency", name=f"{what}/{price.currency}", unit="", rank=rank)
        for what in ("samples", "tokens")
    ]


def narrow_table(name: str, members: Sequence[CaseSummary]) -> Table[CaseSummary]:
    """The cases of a series, or of those of several sweeps that differ in nothing else, for a
    terminal, which drops the columns of the highest rank first."""
    columns: list[Column[CaseSummary]] = [
        case_column("topology", name="case", rank=0),
        _speeds(members),
        figures("CI", lambda s: interval_text(_interval(s)), rank=3),
        case_column("speedup", form=two_digits, rank=1),
        case_column("efficiency", name="eff. %", form=hundredths, rank=2),
        case_column("iteration_ms", name="ms/it.", rank=4),
        case_column("mfu", name="MFU %", form=hundredths, rank=5),
        case_column("memory_mb_max", name="mem GB", form=lambda mb: f"{mb / 1000:.2f}", rank=6),
        *_tokens(members, rank=7),
        *bought(members, rank=3),
        RUNS,
    ]
    if any(s.sweep for s in members):
        columns.insert(1, words("sweep", "sweep", rank=0, long=True))
    return Table(name, columns, members, bad=lambda s: not s.ok).without_empty()


def wide_table(members: Sequence[CaseSummary]) -> Table[CaseSummary]:
    """The cases of a series for Markdown: DLPerf's columns in its order, figures with intervals."""
    columns = [
        case_column("nodes", name="node_num", rank=0),
        case_column("devices", name="gpu_num", rank=0),
        _speeds(members),
        figures("CI (coverage)", lambda s: with_coverage(_interval(s))),
        *_tokens(members, rank=1),
        *bought(members, rank=1),
        case_column("speedup", form=two_digits, rank=0),
        figures("speedup CI", lambda s: interval_text(s.speedup_interval)),
        case_column("efficiency", form=percent, rank=0),
        case_column("iteration_ms", name="ms/iteration"),
        case_column("mfu", name="MFU", form=percent),
        case_column("memory_mb_max", name="memory_mb", form="{:.0f}".format),
        case_column("exposed_comm", form=percent),
        case_column("allreduce_bus_gb_s", name="bus_gb_s"),
        RUNS,
        words("flags", lambda s: ", ".join(s.flags)),
    ]
    return Table("", columns, members).without_empty()


def with_coverage(interval: Interval | None) -> str:
    """``4873.92-4903.74 (93.8 %)``; '' for None."""
    return "" if interval is None else f"{interval_text(interval)} ({percent(interval.coverage)})"


# --- cases that differ in one option


def switch_table(pairs: Sequence[OptionPair]) -> Table[OptionPair]:
    """A row for each pair, with all that both cases measured; for Markdown and the page."""
    unit = speed_heading(pair.unit for pair in pairs)
    columns: list[Column[OptionPair]] = [
        words("sweep", "on.sweep", rank=1),
        words("batch", lambda p: str(p.on.case.batch_size or "")),
        words("precision", "on.case.precision"),
        words("topology", lambda p: str(p.on.case.topology)),
        words("tags", lambda p: " ".join(p.off.case.tags), rank=1),
        words(
            "switched on", lambda p: f"{p.on.case.framework}/{p.on.case.model} {p.name}", code=True
        ),
        figures(f"{unit} off", lambda p: speed_cell(p.off.median(p.unit), p.unit, unit)),
        figures("on", lambda p: speed_cell(p.on.median(p.unit), p.unit, unit), unit=unit),
        figures("change", lambda p: p.ratio - 1, unit=unit, form=signed_percent),
        figures("ratio CI", _ratio_interval),
        figures("memory_mb off", lambda p: _more_memory(p) and p.off.memory_mb),
        figures("on", lambda p: _more_memory(p) and p.on.memory_mb, unit="memory_mb"),
        figures("change", _more_memory, unit="memory_mb"),
        figures("gpu_util off", "off.gpu_util"),
        figures("on", "on.gpu_util", unit="gpu_util"),
    ]
    return Table(
        "Cases with and without one option", columns, pairs, name="options"
    ).without_empty()


def _ratio_interval(pair: OptionPair) -> Cell:
    text = interval_text(pair.interval) + f" in {pair.pairs} pairs" * bool(pair.pairs)
    return Cell(text, getattr(pair.interval, "low", None))


def _more_memory(pair: OptionPair) -> Cell | None:
    """``+512 (2.4 %)`` MB; None where one of the two is not known."""
    if pair.memory_mb is None or not pair.off.memory_mb:
        return None
    share = signed_percent(pair.memory_mb / pair.off.memory_mb)
    return Cell(f"{pair.memory_mb:+.0f} ({share})", pair.memory_mb)


# --- all series side by side

SeriesRow = tuple[str, Mapping[str, str], str]
"""A series by its name, with a figure as text for each topology, and its sweep, of several."""


def overview(report: Report) -> Table[SeriesRow] | None:
    """A row for each series, a column for each topology; None for fewer than two series, or where
    no topology has a figure. The cells are speedups where some series has any, else throughputs.
    What the names of all series begin with stands in the heading. A narrow terminal drops the
    smallest topologies first."""
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
        return two_digits(case.speedup) if scaled else speed_cell(case.speed, case.unit, unit).text

    common = common_beginning([members[0].case.series for members in series.values()])
    lines = []
    for cases in series.values():
        by_topology = {str(s.case.topology): figure(s) for s in cases}
        lines.append((cases[0].case.series.removeprefix(common), by_topology, cases[0].sweep))
    heading = f"series ({printable(common)}...)" if common else "series"
    columns: list[Column[SeriesRow]] = [words(heading, lambda line: line[0], long=True)]
    if report.sweeps:
        columns.append(words("sweep", lambda line: line[2], long=True))
    names = [each for each in map(str, report.topologies) if each in measured]
    columns += [_at(name, len(names) - 1 - place) for place, name in enumerate(names)]
    return Table(f"all series: {cells}", columns, lines)


def _at(topology: str, rank: int) -> Column[SeriesRow]:
    return figures(topology, lambda line: line[1].get(topology), rank=rank)


# --- what is odd about cases


def flag_count(row: FlagRow) -> str:
    """``77 of 200 cases, largest -31.0 %``."""
    largest = "" if row.largest is None else f", largest {signed_percent(row.largest)}"
    return f"{row.cases} of {number_of(row.of, 'case')}{largest}"


def case_names(cases: Sequence[CaseSummary], common: str = "") -> list[str]:
    """Cases by the names of their series, without the beginning that all have, and topology."""
    return [f"{s.series.removeprefix(common)} {s.case.topology}".strip() for s in cases]


def flag_text(row: FlagRow, common: str = "") -> str:
    """The row with its first sentence, and the cases that this is about."""
    note, cases = next(iter(row.about.items()))
    where = listed(case_names(cases, common), _MOST_CASES if len(cases) <= _MOST_CASES else 1)
    return f"{row.name}: {flag_count(row)}: {where}: {note.removeprefix(f'{row.name}: ')}"


# --- the terminal


class _Room:
    """Lines that are left on a terminal of this width; None: any number."""

    def __init__(self, width: int, left: int | None) -> None:
        self.width, self.left = width, left

    def takes(self, *parts: RenderableType) -> bool:
        """Whether there is room for these parts, which then take it."""
        if self.left is None:
            return True
        count = _lines(self.width, *parts)
        if count > self.left:
            return False
        self.left -= count
        return True

    def cut(self, table: Table[Any]) -> tuple[Table[Any], int]:
        """The table with as many of its rows as there is room for, and how many are left out."""
        rows, made = len(table.rows), table
        while not self.takes(drawn(made), "") and rows > 1:
            rows = max(1, rows - 1 if rows < 60 else rows // 2)
            made = replace(table, rows=table.rows[:rows])
        return made, len(table.rows) - rows


def _lines(width: int, *parts: RenderableType) -> int:
    from rich.console import Console

    console = Console(width=width, highlight=False)
    return sum(len(console.render_lines(part, pad=False)) for part in parts)


def speedup_table(report: Report, width: int = _WIDTH, most: int | None = None) -> Group:
    """An overview of all series, then one table per series, then a line for each flag. Columns for
    which ``width`` characters have no room are left out, and named; so are, by their number, rows
    and tables for which ``most`` lines have none. None: there is any number of lines."""
    from rich.console import Group
    from rich.text import Text

    if not report.cases:
        return Group(Text("no runs yet"))
    room = _Room(width, None if most is None else most - _NOTES)
    odd = _flag_lines(report, width, most)
    room.takes(*odd)
    parts, left_out, hidden = _tables(report, width, room)
    notes = []
    if left_out:
        notes.append(f"no room for {', '.join(left_out)}: a wider terminal shows more")
    if hidden:
        notes.append(f"left out: {' and '.join(hidden)}: --all shows them")
    if notes:
        parts += [Text(f"{'; '.join(notes)}; report.md has all", style="dim"), Text()]
    return Group(*([*parts, *odd] if odd else parts[:-1]))


def _tables(
    report: Report, width: int, room: _Room
) -> tuple[list[RenderableType], list[str], list[str]]:
    """The tables with blank lines between; columns and rows that were left out."""
    parts: list[RenderableType] = []
    hidden: list[str] = []
    across = overview(report)
    if across is not None:
        fitting = across.fitting(width)
        lines = [*_losses(report)]
        if dropped := across.dropped(fitting):
            lines.insert(0, f"no room for {', '.join(dropped)}: the tables below have them")
        first, rows = room.cut(replace(fitting, beneath=lines))
        parts += [drawn(first), ""]
        hidden += [f"{rows} series of the first table"] * (rows > 0)
    left_out: dict[str, None] = {}
    tables = rows = 0
    series = _across_sweeps(report)
    for name, members in series.items():
        lost = (each.removeprefix(f"{name} ") for each in _losses(report, name))
        beneath = [*_beneath(members), *lost]
        whole = replace(narrow_table(name, members), beneath=beneath)
        table = whole.fitting(width)
        if len(series) == 1:
            table, rows = room.cut(table)
        elif tables or not room.takes(drawn(table), ""):
            tables, rows = tables + 1, rows + len(members)
            continue
        left_out.update(dict.fromkeys(whole.dropped(table)))
        parts += [drawn(table), ""]
    if rows:
        of = f" in {number_of(tables, 'table')}" if tables else ""
        hidden.append(f"{number_of(rows, 'row')}{of}")
    return parts, [*left_out], hidden


def _losses(report: Report, series: str = "") -> Sequence[str]:
    """What a series, or without one that which loses most, loses of a step, where runs tell it."""
    if not report.step_parts:
        return []
    from dlperf_hpc.reporting.step_tables import loss_sentence, step_table

    if not series:
        return step_table(report.step_parts, 1).beneath[:1]
    return [*filter(None, [loss_sentence(report.step_parts.get(series, ()))])]


def _across_sweeps(report: Report) -> Mapping[str, Sequence[CaseSummary]]:
    """The cases by the names of their series without the sweep: those of one topology side by
    side."""
    if not report.sweeps:
        return report.series
    found: dict[str, list[CaseSummary]] = {}
    for members in report.series.values():
        found.setdefault(members[0].case.series, []).extend(members)
    return {name: sorted(each, key=lambda s: by_devices(s.case.topology))
            for name, each in found.items()}  # fmt: skip


def _flag_lines(report: Report, width: int, most: int | None) -> list[Text]:
    """A line for each flag, cut where lines are few; all sentences where they are not."""
    from rich.text import Text

    rows, common = report.flag_rows, common_beginning(list(report.series))
    if len(report.series) == 1:
        common = next(iter(report.series))
    lines = [flag_text(row, common) for row in rows]
    if most is not None:
        room = width * (2 if len(rows) <= _FEW_FLAGS else 1)
        lines = [line if len(line) <= room else f"{line[: room - 4]} ..." for line in lines]
        lines = at_most(lines, _MOST_FLAGS, " flags: --all shows them")
    else:
        lines = [line for row in rows for line in flag_sentences(row, common)]
    return [Text(printable(line), style="yellow") for line in lines]


def flag_sentences(row: FlagRow, common: str = "") -> list[str]:
    """The row without a sentence, then each sentence, indented, with its cases."""
    return [
        f"{row.name}: {flag_count(row)}",
        *(f"  {', '.join(case_names(cases, common))}: {note}" for note, cases in row.about.items()),
    ]


def _beneath(members: Sequence[CaseSummary]) -> list[str]:
    """What the intervals cover."""
    intervals = {s.ok: interval for s in members if (interval := _interval(s))}
    covered = (f"{percent(each.coverage)} for {n} runs" for n, each in sorted(intervals.items()))
    return [f"CI of the median covers {', '.join(covered)}"] if intervals else []


def _head(report: Report) -> list[str]:
    """When, where and on what: what one must know to believe a figure."""
    hosts = ""
    if report.hosts:
        hosts = number_of(len(report.hosts), "host")
        hosts += f" ({', '.join(report.hosts)})" if len(report.hosts) <= _MOST_HOSTS else ""
    measured = " on ".join(filter(None, [report.measured, hosts]))
    machine = [f"{name}: {text}" for name, text in report.machines.items() if name in _IN_THE_HEAD]
    repeats = report.repeats and f"repeats: {report.repeats}"
    lines = [measured and f"measured {measured}", "; ".join(machine), repeats]
    if report.sweeps:
        from dlperf_hpc.reporting.side_by_side import first_lines

        lines += first_lines(report, _MOST_FACTS)
    return lines


def print_report(
    report: Report,
    damaged: Mapping[str, str] = MappingProxyType({}),
    everything: bool = False,
) -> None:
    """Print what a report says, what its logs warn of and which runs do not count to standard
    output, in :data:`MOST_LINES` lines behind the head unless ``everything`` is to be printed;
    ``damaged`` as in :func:`.run_states.trouble_table`."""
    from rich.console import Console, Group
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Text(printable(report.name), style="bold"))
    for line in filter(None, _head(report)):
        console.print(Text(printable(line), style="dim"))
    console.print()
    last: Sequence[RenderableType] = ()
    room = None
    for rows in (None,) if everything else _MOST_TROUBLES:
        last = _behind(report, damaged, rows)
        if rows is not None:
            room = MOST_LINES - _lines(console.width, *last)
            if room >= MOST_LINES // 2:
                break
    console.print(Group(speedup_table(report, console.width, room), *last))


def _behind(
    report: Report, damaged: Mapping[str, str], most: int | None
) -> Sequence[RenderableType]:
    """What logs warn of and which runs do not count, in so many rows each."""
    if not (report.warnings or report.troubles or damaged):
        return []
    from rich.text import Text

    from dlperf_hpc.reporting.run_states import trouble_table, warning_lines

    where = "runs.csv has them all"
    warned = warning_lines(report.warnings)
    if most is not None:
        warned = at_most(warned, most, f" warnings: {where}")
    parts: list[RenderableType] = [Text(printable(line), style="yellow") for line in warned]
    trouble = trouble_table(report.troubles, damaged, most, where)
    return [*parts, "", drawn(trouble, style="")] if trouble is not None else parts


def cost_text(report: Report) -> str:
    """One line on the node-hours of a sweep, what they cost where a price is known, and its budget
    of them, if it has one; '' where no log tells how long a run took."""
    found, budget, price = report.cost, report.budget, report.price
    if found is None:
        return ""
    text = f"node-hours: {found.used:.3g} used"
    if price is not None:
        text += f" ({price.of(found.used):.6g} {price.currency} at {price.node_hour:g} each)"
    if budget is not None:
        text += f" / {budget:.6g} (the budget),"
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
