"""The tables of a report's page. A column that no row has is left out, and named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dlperf_hpc.analysis.costs import energy_doubts
from dlperf_hpc.analysis.nodes import NodeFindings
from dlperf_hpc.analysis.option_pairs import OptionPair
from dlperf_hpc.analysis.speedup import CaseSummary, series_name
from dlperf_hpc.analysis.statistics import Interval
from dlperf_hpc.errors import printable
from dlperf_hpc.records.results import SAMPLES_PER_S, TOKENS_PER_S, RunResult, throttle_words
from dlperf_hpc.records.status import Status
from dlperf_hpc.reporting.nodes import node_rows
from dlperf_hpc.reporting.page import Cell, Heading, Row, Table
from dlperf_hpc.reporting.page.shown import listed, nodes_of
from dlperf_hpc.reporting.text import number, percent

TO = "\N{EN DASH}"
Make = Callable[[CaseSummary], Cell]


def interval(value: Interval | None, form: Callable[[float | None], str] = number) -> str:
    """From its lower end to its upper; '' for None."""
    return "" if value is None else f"{form(value.low)}{TO}{form(value.high)}"


def figure(value: float | None, form: Callable[[float | None], str] = number) -> Cell:
    """A number as people read it, sorted by what it is."""
    return Cell(form(value), value)


def text(value: object) -> Cell:
    """A name, or nothing."""
    return Cell(printable(str(value)) if value is not None else "")


@dataclass(frozen=True)
class _Column:
    heading: Heading
    make: Make
    always: bool = False


def _column(
    title: str, make: Make, unit: str = "", *, numeric: bool = True, always: bool = False,
    meaning: str = "",
) -> _Column:  # fmt: skip
    return _Column(Heading(title, unit, numeric, meaning), make, always)


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _covered(summary: CaseSummary, unit: str) -> Cell:
    sample = summary.samples.get(unit)
    found = None if sample is None else sample.interval
    title = "" if found is None else f"covers {percent(found.coverage)}"
    return Cell(interval(found), None if found is None else found.low, title=title)


def _speed(unit: str) -> list[_Column]:
    return [
        _column(unit, lambda s: figure(s.median(unit)), "all devices", meaning="median"),
        _column(
            "interval", lambda s: _covered(s, unit), unit,
            meaning="confidence interval of the median; its coverage is shown on each",
        ),
        _column(f"{unit}", lambda s: figure(s.per_device(unit)), "per device"),
    ]  # fmt: skip


_HEAD = [
    _column("series", lambda s: text(s.series), numeric=False),
    _column("topology", lambda s: text(s.case.topology), numeric=False, always=True),
    _column("devices", lambda s: figure(s.case.topology.devices, str), always=True),
    _column("global batch", lambda s: figure(s.global_batch, _plain), "samples"),
    _column(
        "runs", lambda s: Cell(f"{s.ok}/{s.runs}", s.ok), "count/all", always=True,
        meaning="runs that count, of all",
    ),
]  # fmt: skip
_SPEEDUP = [
    _column("speedup", lambda s: Cell(_ratio(s.speedup), s.speedup, "speedup"), always=True),
    _column(
        "interval",
        lambda s: Cell(interval(s.speedup_interval, _ratio), _low(s), "speedup_ends"),
        "of the speedup",
    ),
    _column("efficiency", lambda s: Cell(percent(s.efficiency), s.efficiency, "efficiency")),
]
_REST = [
    _column(
        "step time", lambda s: figure(s.step_ms_p50), "ms",
        meaning="median of the runs' own medians over the iterations, slowest rank of each",
    ),
    _column("MFU", lambda s: figure(s.mfu, percent), meaning="model FLOPS / peak of the device"),
    _column("TFLOPS", lambda s: figure(s.tflops_per_device), "per device"),
    _column("memory", lambda s: figure(s.memory_mb), "MB, peak"),
    _column("exposed comm.", lambda s: figure(s.exposed_comm, percent), "of a step"),
    _column("rank spread", lambda s: figure(s.rank_spread, percent), "largest"),
    _column("GPU util.", lambda s: figure(s.gpu_util), "%"),
    _column("energy", lambda s: figure(s.joules_per_sample), "J/sample"),
    _column("checkpoint save", lambda s: figure(s.checkpoint_save_s), "s"),
    _column("flags", lambda s: text(", ".join(s.flags)), numeric=False),
]  # fmt: skip


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _low(summary: CaseSummary) -> float | None:
    found = summary.speedup_interval
    return None if found is None else found.low


def case_table(cases: Sequence[CaseSummary]) -> tuple[Table, list[str]]:
    """A row for each case, and the names of columns that would be empty."""
    units = dict.fromkeys(unit for case in cases for unit in case.samples)
    order = [u for u in (SAMPLES_PER_S, TOKENS_PER_S) if u in units or u == SAMPLES_PER_S]
    speeds = [_speed(unit) for unit in dict.fromkeys([*order, *units])]
    others = [column for part in speeds[1:] for column in part]
    columns = [*_HEAD, *speeds[0], *_SPEEDUP, *others, *_REST]
    made = [[column.make(case) for column in columns] for case in cases]
    kept, left_out = [], []
    one_series = len({case.series for case in cases}) == 1
    for place, column in enumerate(columns):
        if column.heading.title == "series" and one_series:
            continue
        if column.always or any(row[place].text for row in made):
            kept.append(place)
        elif column.heading.title not in ("interval", "flags"):
            left_out.append(column.heading.title)
    rows = tuple(
        Row(tuple(cells[place] for place in kept), item=item, bad=not cases[item].ok)
        for item, cells in enumerate(made)
    )
    headings = tuple(columns[place].heading for place in kept)
    return Table("cases", "Every case: medians of its runs", headings, rows), left_out


_RUN_COLUMNS = (
    Heading("series"), Heading("topology"), Heading("run"), Heading("status"),
    Heading("throughput", "all devices", True), Heading("unit"),
    Heading("step time", "ms, median", True), Heading(f"p5{TO}p95", "ms", True),
    Heading("drift", "of the step time", True), Heading("memory", "MB, peak", True),
    Heading("nodes"), Heading("job"), Heading("started", "UTC"), Heading("reason", long=True),
    Heading("energy in doubt", long=True),
)  # fmt: skip


def run_table(runs: Iterable[tuple[RunResult, int, bool]]) -> Table:
    """A row for each run with the number of its case, and whether it counts."""
    rows = [_run_row(place, *each) for place, each in enumerate(runs)]
    one_series = len({row.cells[0].text for row in rows}) == 1
    used = [
        place
        for place, heading in enumerate(_RUN_COLUMNS)
        if any(row.cells[place].text for row in rows) or heading.title == "throughput"
    ][one_series:]
    kept = [
        Row(tuple(row.cells[place] for place in used), row.item, row.run, row.bad) for row in rows
    ]
    headings = tuple(_RUN_COLUMNS[place] for place in used)
    return Table("runs", "Every run, also those that do not count", headings, tuple(kept))


def _run_row(place: int, run: RunResult, item: int, counts: bool) -> Row:
    window, either = run.window, run.window or run.external
    unit, speed = next(iter(run.rates.items()), ("", None))
    cells = (
        text(series_name(run.run.case, run.sweep)),
        text(run.run.case.topology),
        Cell(f"#{run.run.repeat}" + (f" ({run.attempt})" if run.attempt != 1 else ""),
             float(run.run.repeat), run=place, title=printable(run.run.id)),
        text(run.status.value if counts or run.status is not Status.OK else "ok, not counted"),
        figure(speed),
        text(unit),
        figure(window.step_ms_p50 if window else None),
        Cell(f"{number(window.step_ms_p5)}{TO}{number(window.step_ms_p95)}", window.step_ms_p5)
        if window else Cell(""),
        figure(either.drift if either else None, percent),
        figure(either.memory_mb if either else None),
        text(listed(nodes_of(run), 3)),
        text(run.launch),
        text(run.started[:16].replace("T", " ")),
        text(run.reason),
        text("; ".join(energy_doubts(run))),
    )  # fmt: skip
    return Row(cells, item=item, run=place, bad=not counts)


_PAIR_COLUMNS = (
    Heading("case"), Heading("option"), Heading("off", "throughput", True),
    Heading("on", "throughput", True), Heading("unit"), Heading("change", "", True),
    Heading("interval", "on / off", True), Heading("memory", "MB, on - off", True),
)  # fmt: skip


def option_table(pairs: Iterable[OptionPair]) -> Table:
    """A row for each pair of cases that differ in one option."""
    rows = []
    for pair in pairs:
        change = pair.ratio - 1
        cells = (
            text(f"{pair.off.series} {pair.on.case.topology}"),
            text(pair.name),
            figure(pair.off.median(pair.unit)),
            figure(pair.on.median(pair.unit)),
            text(pair.unit),
            Cell(f"{100 * change:+.1f} %", change),
            Cell(interval(pair.interval, _ratio)),
            Cell("" if pair.memory_mb is None else f"{pair.memory_mb:+.0f}", pair.memory_mb),
        )
        rows.append(Row(cells))
    return Table("options", "Cases with and without one option", _PAIR_COLUMNS, tuple(rows))


MOST_NODES = 1000
"""Nodes that the page shows, the slow ones first; ``nodes.csv`` has all."""

_NODE_COLUMNS: tuple[tuple[str, Heading, Callable[[Any], str]], ...] = (
    ("node", Heading("node"), str),
    ("slow", Heading("outcome", meaning="named by its runs, or by a device's own times"),
     lambda slow: "slow" if slow else ""),
    ("difference", Heading("difference", "to runs without it", True,
     "how much faster runs with the node are, each against its case; below 0: slower"),
     lambda share: f"{100 * share:+.1f} %"),
    ("errors", Heading("errors", "of the difference", True, "the difference in standard errors"),
     lambda errors: f"{errors:+.1f}"),
    ("p", Heading("p", "", True, "how often chance alone gives some node as much"),
     lambda p: f"{p:.2g}"),
    ("runs", Heading("runs", "with it", True), str),
    ("runs_without", Heading("runs", "without it", True), str),
    ("together_with", Heading("always together with", long=True), str),
    ("device", Heading("slowest device"), str),
    ("device_excess", Heading("own time", "to the median rank", True,
     "how much longer its ranks take for a step in which no rank waits for another"),
     lambda share: f"{100 * share:+.1f} %"),
    ("device_slowest", Heading("slowest", "in runs", True), str),
    ("device_runs", Heading("of runs", "", True), str),
    ("device_sm_mhz", Heading("SM clock", "MHz", True), number),
    ("others_sm_mhz", Heading("SM clock", "MHz, the others", True), number),
    ("device_throttle", Heading("throttled"), throttle_words),
    ("missing", Heading("what is lacking", long=True), str),
)  # fmt: skip


def node_table(found: NodeFindings) -> Table:
    """A row for each node, the slow ones first."""
    told = node_rows(found)[:MOST_NODES]
    kept = [
        (name, heading, form)
        for name, heading, form in _NODE_COLUMNS
        if any(row[name] not in (None, "", False) for row in told) or name == "node"
    ]
    rows = tuple(
        Row(
            tuple(_node_cell(row[name], heading, form) for name, heading, form in kept),
            bad=row["slow"],
        )
        for row in told
    )
    headings = tuple(heading for _, heading, _ in kept)
    return Table("nodes", "Every node: what runs and devices tell of it", headings, rows)


def _node_cell(value: Any, heading: Heading, form: Callable[[Any], str]) -> Cell:
    if value is None:
        return Cell("")
    return Cell(printable(form(value)), float(value) if heading.numeric else None)
