"""The tables of a report for people. A column of :mod:`.columns` is taken from there by its name,
with the heading and the form that suit the place; CSV and JSON have every column there is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from dlperf_hpc.analysis.costs import energy_doubts
from dlperf_hpc.analysis.nodes import hosts_of
from dlperf_hpc.analysis.option_pairs import OptionPair
from dlperf_hpc.analysis.speedup import CaseSummary, series_name
from dlperf_hpc.model.result import (
    SAMPLES_PER_S,
    TOKENS_PER_S,
    ExternalWindow,
    RunResult,
    Status,
    Window,
    throttle_words,
)
from dlperf_hpc.model.statistics import Interval
from dlperf_hpc.reporting.columns import CASE_COLUMNS
from dlperf_hpc.reporting.nodes import NODE_COLUMNS, NodeRow
from dlperf_hpc.reporting.table import Cell, Column, PartOf, Table, figures, part, picked, words
from dlperf_hpc.reporting.text import (
    common_beginning,
    hundredths,
    interval_text,
    listed,
    natural,
    number,
    percent,
    signed_percent,
    speed_heading,
    speed_text,
    two_digits,
)

TO = "\N{EN DASH}"

_case = picked(CASE_COLUMNS)
_node = picked(NODE_COLUMNS)
_RUNS: Column[CaseSummary] = figures("runs", lambda s: Cell(f"{s.ok}/{s.runs}", s.ok))


# --- a table for each series: terminal and Markdown


def _unit_of(members: Sequence[CaseSummary]) -> str:
    return speed_heading(summary.unit for summary in members if summary.samples)


def _speed_column(members: Sequence[CaseSummary]) -> Column[CaseSummary]:
    unit = _unit_of(members)
    return figures(unit, lambda s: speed_text(s.speed, s.unit, unit))


def _interval(summary: CaseSummary) -> Interval | None:
    return None if summary.sample is None else summary.sample.interval


def narrow_table(name: str, members: Sequence[CaseSummary]) -> Table[CaseSummary]:
    """The cases of a series for a terminal, which drops what is asked for least where it is
    narrow."""
    tokens = _case("tokens_per_s", name=TOKENS_PER_S, rank=7)
    columns = [
        _case("topology", name="case", rank=0),
        _speed_column(members),
        figures("CI", lambda s: interval_text(_interval(s)), rank=3),
        _case("speedup", form=two_digits, rank=1),
        _case("efficiency", name="eff. %", form=hundredths, rank=2),
        _case("iteration_ms", name="ms/it.", rank=4),
        _case("mfu", name="MFU %", form=hundredths, rank=5),
        _case("memory_mb_max", name="mem GB", form=_gigabytes, rank=6),
        *([tokens] if _unit_of(members) == SAMPLES_PER_S else []),
        _RUNS,
    ]
    return Table(name, columns, members, bad=lambda s: not s.ok).without_empty()


def _gigabytes(megabytes: float) -> str:
    return f"{megabytes / 1000:.2f}"


def wide_table(members: Sequence[CaseSummary]) -> Table[CaseSummary]:
    """The cases of a series for Markdown: DLPerf's columns and its order, each figure with its
    interval."""
    tokens = _case("tokens_per_s", name=TOKENS_PER_S)
    columns = [
        _case("nodes", name="node_num", rank=0),
        _case("devices", name="gpu_num", rank=0),
        _speed_column(members),
        figures("CI (coverage)", lambda s: with_coverage(_interval(s))),
        *([tokens] if _unit_of(members) == SAMPLES_PER_S else []),
        _case("speedup", form=two_digits, rank=0),
        figures("speedup CI", lambda s: interval_text(s.speedup_interval)),
        _case("efficiency", form=percent, rank=0),
        _case("iteration_ms", name="ms/iteration"),
        _case("mfu", name="MFU", form=percent),
        _case("memory_mb_max", name="memory_mb", form=_whole),
        _case("exposed_comm", form=percent),
        _RUNS,
        words("flags", lambda s: ", ".join(s.flags)),
    ]
    return Table("", columns, members).without_empty()


def _whole(value: float) -> str:
    return f"{value:.0f}"


def with_coverage(interval: Interval | None) -> str:
    """``4873.92-4903.74 (93.8 %)``; '' for None."""
    return "" if interval is None else f"{interval_text(interval)} ({percent(interval.coverage)})"


# --- cases that differ in one option: Markdown


def switch_table(pairs: Sequence[OptionPair]) -> Table[OptionPair]:
    """A row for each pair, with all that both cases measured."""
    unit = speed_heading(pair.unit for pair in pairs)
    columns: list[Column[OptionPair]] = [
        words("batch", lambda p: str(p.on.case.batch_size or "")),
        words("precision", lambda p: p.on.case.precision),
        words("topology", lambda p: str(p.on.case.topology)),
        words(
            "switched on", lambda p: f"{p.on.case.framework}/{p.on.case.model} {p.name}", code=True
        ),
        figures(f"{unit} off", lambda p: speed_text(p.off.median(p.unit), p.unit, unit)),
        figures("on", lambda p: speed_text(p.on.median(p.unit), p.unit, unit)),
        figures("change", lambda p: signed_percent(p.ratio - 1)),
        figures("ratio CI", lambda p: interval_text(p.interval)),
        figures("memory_mb off", lambda p: p.off.memory_mb if _more_memory(p) else None),
        figures("on", lambda p: p.on.memory_mb if _more_memory(p) else None),
        figures("change", _more_memory),
        figures("gpu_util off", lambda p: p.off.gpu_util),
        figures("on", lambda p: p.on.gpu_util),
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


def overview(series: Mapping[str, Sequence[CaseSummary]]) -> Overview | None:
    """A row for each series, a column for each topology; None for fewer than two series, or where
    no topology has a figure. The cells are speedups where some series has any, else throughputs. A
    narrow terminal drops the smallest topologies first."""
    members = [summary for each in series.values() for summary in each]
    if len(series) < 2 or not any(summary.samples for summary in members):
        return None
    scaled = any(s.efficiency is not None and s.case.topology != s.base for s in members)
    unit = _unit_of(members)
    cells = f"{unit}, median"
    if scaled:
        bases = sorted({str(s.base) for s in members if s.base is not None})
        cells = f"speedup over {', '.join(bases)}"
    common = common_beginning(list(series))
    lines = [
        (name.removeprefix(common), _by_topology(cases, scaled, unit))
        for name, cases in series.items()
    ]
    topologies = sorted(
        {summary.case.topology for summary in members if summary.samples},
        key=lambda each: (each.devices, each),
    )
    names: Column[SeriesRow] = words("series", lambda line: line[0], long=True)
    columns = [names]
    for place, topology in enumerate(map(str, topologies)):
        columns.append(_at(topology, len(topologies) - 1 - place))
    return Overview(common, Table(f"all series: {cells}", columns, lines))


def _by_topology(cases: Sequence[CaseSummary], scaled: bool, unit: str) -> Mapping[str, str]:
    if scaled:
        return {str(s.case.topology): two_digits(s.speedup) for s in cases}
    return {str(s.case.topology): speed_text(s.speed, s.unit, unit) for s in cases}


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


# --- the tables of the page


def interval_cell(
    value: Interval | None, form: Callable[[float | None], str] = number
) -> Cell | None:
    """From the lower end to the upper, with the coverage as the hint."""
    if value is None:
        return None
    text = f"{form(value.low)}{TO}{form(value.high)}"
    return Cell(text, value.low, f"covers {percent(value.coverage)}")


def _speed_columns(unit: str) -> list[Column[CaseSummary]]:
    def ends(summary: CaseSummary) -> Cell | None:
        sample = summary.samples.get(unit)
        return None if sample is None else interval_cell(sample.interval)

    about = "confidence interval of the median; its coverage is shown on each"
    return [
        figures(unit, lambda s: s.median(unit), unit="all devices", meaning="median", rank=1),
        figures("interval", ends, unit=unit, meaning=about, rank=1),
        figures(unit, lambda s: s.per_device(unit), unit="per device", rank=1),
    ]


_PAGE_HEAD: Sequence[Column[CaseSummary]] = (
    _case("series"),
    _case("topology", rank=0),
    _case("devices", rank=0),
    _case("global_batch", name="global batch"),
    figures(
        "runs", _RUNS.value, unit="count/all", meaning="runs that count, of all"
    ),
)  # fmt: skip
_PAGE_SPEEDUP: Sequence[Column[CaseSummary]] = (
    _case("speedup", unit="", form=two_digits, rank=0, quantity="speedup"),
    figures(
        "interval", lambda s: interval_cell(s.speedup_interval, two_digits),
        unit="of the speedup", rank=1, quantity="speedup_ends",
    ),
    _case("efficiency", unit="", form=percent, quantity="efficiency"),
)  # fmt: skip
_PAGE_REST: Sequence[Column[CaseSummary]] = (
    _case("step_ms_p50", name="step time"),
    _case("mfu", name="MFU", unit="", form=percent),
    _case("tflops_per_device", name="TFLOPS", unit="per device"),
    _case("memory_mb_max", name="memory", unit="MB, peak"),
    _case("exposed_comm", name="exposed comm.", unit="of a step", form=percent),
    _case("rank_spread_max", name="rank spread", unit="largest", form=percent),
    _case("gpu_util", name="GPU util."),
    _case("gpu_joules_per_sample", name="energy", unit="J/sample"),
    _case("checkpoint_save_s", name="checkpoint save"),
    words("flags", lambda s: ", ".join(s.flags), rank=1),
)
_NOT_MISSED = ("interval", "flags")


def units_of(cases: Sequence[CaseSummary]) -> tuple[str, ...]:
    """Throughputs that some case has: samples/s, tokens/s, then others."""
    known = dict.fromkeys(unit for case in cases for unit in case.samples)
    order = [unit for unit in (SAMPLES_PER_S, TOKENS_PER_S) if unit in known]
    return (*order, *(unit for unit in known if unit not in order))


def case_table(cases: Sequence[CaseSummary]) -> tuple[Table[CaseSummary], list[str]]:
    """A row for each case, and the names of columns that would be empty."""
    columns = [*_PAGE_HEAD, *_speed_columns(SAMPLES_PER_S), *_PAGE_SPEEDUP]
    for unit in units_of(cases):
        if unit != SAMPLES_PER_S:
            columns += _speed_columns(unit)
    columns += _PAGE_REST
    if len({case.series for case in cases}) == 1:
        columns = columns[1:]
    whole = Table(
        "Every case: medians of its runs", columns, cases, bad=lambda s: not s.ok, name="cases",
        items=range(len(cases)),
    )  # fmt: skip
    table = whole.without_empty()
    return table, [name for name in whole.dropped(table) if name not in _NOT_MISSED]


@dataclass(frozen=True)
class RunRow:
    """A run of the page: ``item`` is the number of its case; whether it ``counts``."""

    run: RunResult
    item: int
    counts: bool


_window: PartOf[Window, RunRow] = part(lambda row: row.run.window)
_either: PartOf[Window | ExternalWindow, RunRow] = part(
    lambda row: row.run.window or row.run.external
)


def _repeat(row: RunRow) -> Cell:
    again = f" ({row.run.attempt})" if row.run.attempt != 1 else ""
    return Cell(f"#{row.run.run.repeat}{again}", float(row.run.run.repeat), row.run.run.id)


def _status(row: RunRow) -> str:
    uncounted = row.run.status is Status.OK and not row.counts
    return "ok, not counted" if uncounted else row.run.status.value


def _p5_p95(window: Window) -> Cell:
    return Cell(f"{number(window.step_ms_p5)}{TO}{number(window.step_ms_p95)}", window.step_ms_p5)


_RUN_COLUMNS: Sequence[Column[RunRow]] = (
    words("series", lambda r: series_name(r.run.run.case, r.run.sweep)),
    words("topology", lambda r: str(r.run.run.case.topology)),
    words("run", _repeat, opens=True),
    words("status", _status),
    figures("throughput", lambda r: next(iter(r.run.rates.values()), None), unit="all devices"),
    words("unit", lambda r: next(iter(r.run.rates), ""), rank=1),
    figures("step time", _window(lambda w: w.step_ms_p50), unit="ms, median", rank=1),
    figures(f"p5{TO}p95", _window(_p5_p95), unit="ms", rank=1),
    figures("drift", _either(lambda w: w.drift), unit="of the step time", form=percent, rank=1),
    figures("memory", _either(lambda w: w.memory_mb), unit="MB, peak", rank=1),
    words("nodes", lambda r: listed(nodes_of(r.run), 3), rank=1),
    words("job", lambda r: r.run.launch, rank=1),
    words("started", lambda r: r.run.started[:16].replace("T", " "), unit="UTC", rank=1),
    words("reason", lambda r: r.run.reason, long=True, rank=1),
    words("energy in doubt", lambda r: "; ".join(energy_doubts(r.run)), long=True, rank=1),
)


def nodes_of(run: RunResult) -> list[str]:
    """The nodes of a run, as its log tells them, in natural order."""
    return sorted(hosts_of(run), key=natural)


def run_table(runs: Sequence[RunRow]) -> Table[RunRow]:
    """A row for each run of the page."""
    one_series = len({series_name(row.run.run.case, row.run.sweep) for row in runs}) == 1
    columns = _RUN_COLUMNS[1:] if one_series else _RUN_COLUMNS
    return Table(
        "Every run, also those that do not count", columns, runs, bad=lambda row: not row.counts,
        name="runs", items=[row.item for row in runs], runs=True,
    ).without_empty()  # fmt: skip


def _change(pair: OptionPair) -> Cell:
    return Cell(signed_percent(pair.ratio - 1), pair.ratio - 1)


_PAIR_COLUMNS: Sequence[Column[OptionPair]] = (
    words("case", lambda p: f"{p.off.series} {p.on.case.topology}"),
    words("option", lambda p: p.name),
    figures("off", lambda p: p.off.median(p.unit), unit="throughput"),
    figures("on", lambda p: p.on.median(p.unit), unit="throughput"),
    words("unit", lambda p: p.unit),
    figures("change", _change),
    figures("interval", lambda p: interval_cell(p.interval, two_digits), unit="on / off"),
    figures("memory", lambda p: p.memory_mb, unit="MB, on - off", form=lambda mb: f"{mb:+.0f}"),
)


def option_table(pairs: Sequence[OptionPair]) -> Table[OptionPair]:
    """A row for each pair of cases that differ in one option."""
    return Table("Cases with and without one option", _PAIR_COLUMNS, pairs, name="options")


_NODE_TABLE_COLUMNS = (
    _node("node", rank=0),
    _node("slow", name="outcome", kind="text", form=lambda slow: "slow" if slow else ""),
    _node("difference", unit="to runs without it", form=signed_percent),
    _node("errors", unit="of the difference", form=lambda errors: f"{errors:+.1f}"),
    _node("p", unit="", form=lambda p: f"{p:.2g}"),
    _node("runs", unit="with it"),
    _node("runs_without", name="runs", unit="without it"),
    _node("together_with", name="always together with", long=True),
    _node("device", name="slowest device"),
    _node("device_excess", name="own time", unit="to the median rank", form=signed_percent),
    _node("device_slowest", name="slowest", unit="in runs"),
    _node("device_runs", name="of runs"),
    _node("device_sm_mhz", name="SM clock"),
    _node("others_sm_mhz", name="SM clock", unit="MHz, the others"),
    _node("device_throttle", name="throttled", kind="text", unit="", form=throttle_words),
    _node("missing", name="what is lacking", long=True),
)


def node_table(nodes: Sequence[NodeRow]) -> Table[NodeRow]:
    """A row for each node."""
    return Table(
        "Every node: what runs and devices tell of it", _NODE_TABLE_COLUMNS, nodes,
        bad=lambda row: row.slow, name="nodes",
    ).without_empty()  # fmt: skip
