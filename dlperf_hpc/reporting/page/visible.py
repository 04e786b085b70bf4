"""A report as far as its page shows it: cases and runs, their names and keys, and their tables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dlperf_hpc.analysis.costs import energy_doubts
from dlperf_hpc.analysis.slow_nodes import hosts_of
from dlperf_hpc.analysis.speedup import CaseSummary, chosen, series_name
from dlperf_hpc.errors import listed, printable
from dlperf_hpc.model.case import value_at
from dlperf_hpc.model.result import SAMPLES_PER_S, TOKENS_PER_S, RunResult, Status, throttle_words
from dlperf_hpc.model.statistics import Interval
from dlperf_hpc.reporting.contents import Report
from dlperf_hpc.reporting.node_tables import NODE_COLUMNS, NodeRow
from dlperf_hpc.reporting.page import COLOURS, colour_of
from dlperf_hpc.reporting.report_tables import RUNS, bought, case_column
from dlperf_hpc.reporting.table import (
    FOLDED,
    Cell,
    Column,
    Table,
    common_beginning,
    figures,
    interval_text,
    natural,
    number,
    percent,
    picked,
    signed_percent,
    two_digits,
    words,
)

MOST_RUNS = 1000
"""Runs that the page shows one by one; the files for download have all."""
MOST_CASES = 1000
MOST_SERIES = 12
"""Of a panel, drawn at first; the rest on request."""
MOST_PANELS = 6
"""Values of a key by which the figure may have panels."""
_PANELS_BY = ("framework", "precision", "model", "batch size", "tags", "sequence length", "sweep")
MOST_BYTES = 24_000_000
"""Of a file within the page; a larger one lies beside it."""
MOST_NAMED = 6
NONE = "(none)"
TO = "\N{EN DASH}"


@dataclass(frozen=True)
class RunRow:
    """A run of the page: ``item`` is the number of its case; whether it ``counts``."""

    run: RunResult
    item: int
    counts: bool


@dataclass(frozen=True)
class VisibleReport:
    """A report as far as its page shows it: ``cases`` in order, as many ``runs`` as fit."""

    report: Report

    @cached_property
    def series(self) -> tuple[str, ...]:
        """All series, in natural order."""
        return tuple(self.report.series)

    @cached_property
    def cases(self) -> tuple[CaseSummary, ...]:
        """By series, then from few devices to many."""
        ordered = (case for members in self.report.series.values() for case in members)
        return tuple(ordered)[:MOST_CASES]

    @cached_property
    def places(self) -> Mapping[tuple[str, str], int]:
        """The number of a case, by its id and by the sweep, if several have measured it."""
        return {(summary.case.id, summary.sweep): n for n, summary in enumerate(self.cases)}

    @cached_property
    def runs(self) -> tuple[RunRow, ...]:
        """By case and repeat. Of too many, those that do not count and the first of each case."""
        taken = {id(run) for run in chosen(self.report.runs) if run.rates}
        placed = ((self.places.get((r.run.case.id, r.sweep)), r) for r in self.report.runs)
        rows = [RunRow(run, n, id(run) in taken) for n, run in placed if n is not None]
        rows.sort(key=lambda row: (row.item, row.run.run.repeat, row.run.attempt))
        if len(rows) <= MOST_RUNS:
            return tuple(rows)
        kept = {*map(id, [row for row in rows if not row.run.rates][: MOST_RUNS // 2])}
        share = max(1, (MOST_RUNS - len(kept)) // len(self.places))
        of_case: Counter[int] = Counter()
        for row in rows:
            if row.run.rates and of_case[row.item] < share and len(kept) < MOST_RUNS:
                of_case[row.item] += 1
                kept.add(id(row))
        return tuple(row for row in rows if id(row) in kept)

    @cached_property
    def base(self) -> str:
        """The topology that speedup refers to at first; '' if no case has one."""
        return next((str(case.base) for case in self.cases if case.base is not None), "")

    @cached_property
    def units(self) -> tuple[str, ...]:
        """Throughputs that some case has: samples/s, tokens/s, then the rest."""
        known = dict.fromkeys(unit for case in self.cases for unit in case.samples)
        first = (unit for unit in (SAMPLES_PER_S, TOKENS_PER_S) if unit in known)
        return tuple(dict.fromkeys((*first, *known)))


# --- names, keys of cases, which are filters


def name_of(summary: CaseSummary) -> str:
    """``ddp/bert-base/bz32/fp32 2n8g``: a case as the page calls it."""
    return printable(f"{summary.series} {summary.case.topology}")


def sentence(text: str) -> str:
    """The text with a stop at its end, and a capital first if that is a word and no name."""
    text = printable(text)
    if text.partition(" ")[0].rstrip(":,").isalpha():
        text = text[:1].upper() + text[1:]
    return text + "." * (not text.endswith((".", "?", "!")))


_KEYS: Mapping[str, Callable[[CaseSummary], Any]] = {
    "framework": lambda s: s.case.framework,
    "model": lambda s: s.case.model,
    "precision": lambda s: s.case.precision,
    "batch size": lambda s: s.case.batch_size,
    "sequence length": lambda s: s.case.seq_len,
    "tags": lambda s: "-".join(s.case.tags),
    "accumulation": lambda s: s.accumulation,
    "global batch": lambda s: s.scaling != "weak" and s.global_batch,
    "scaling": lambda s: s.scaling,
    "device": lambda s: ", ".join(sorted(s.devices)),
    "topology": lambda s: s.case.topology,
    "sweep": lambda s: s.sweep,
}


def key_values(summary: CaseSummary) -> dict[str, str]:
    """The keys of a case with their values as text, :data:`NONE` where there is none."""
    return {key: printable(str(of(summary) or NONE)) for key, of in _KEYS.items()}


def keys(cases: Iterable[Mapping[str, str]]) -> dict[str, Sequence[str]]:
    """Every key of cases with the values that some case has, in natural order."""
    found: dict[str, set[str]] = {}
    for values in cases:
        for key, value in values.items():
            found.setdefault(key, set()).add(value)
    return {key: sorted(values, key=natural) for key, values in found.items()}


def filters(cases: Iterable[Mapping[str, str]]) -> dict[str, Sequence[str]]:
    """Keys in which cases differ, with their values."""
    return {key: values for key, values in keys(cases).items() if len(values) > 1}


# --- panels of the figure


Panels = Mapping[str, Sequence[str]]
"""The series of each panel, by the value of the key that parts them."""


def panels_by(
    series: Mapping[str, Sequence[CaseSummary]], most: int = MOST_PANELS
) -> dict[str, Panels]:
    """By which keys the figure may have panels: those in which series differ, with few values."""
    found: dict[str, dict[str, list[str]]] = {key: {} for key in _PANELS_BY}
    for name, members in series.items():
        values = key_values(members[0])
        for key, groups in found.items():
            groups.setdefault(values[key], []).append(name)
    return {
        key: {value: groups[value] for value in sorted(groups, key=natural)}
        for key, groups in found.items()
        if 1 < len(groups) <= most
    }


def colours_by(series: Mapping[str, Sequence[CaseSummary]]) -> dict[str, Mapping[str, str]]:
    """The colour of each series, by the key that tells it, that of the page as it opens first: the
    sweep where there are several. By '' each series has its own."""
    found: dict[str, Mapping[str, str]] = {
        "": {name: colour_of(place) for place, name in enumerate(series)}
    }
    for key, groups in panels_by(series, len(COLOURS)).items():
        parts = enumerate(groups.values())
        colours = {name: colour_of(place) for place, names in parts for name in names}
        found = {key: colours, **found} if key == "sweep" else {**found, key: colours}
    return found


def first_colours(series: Mapping[str, Sequence[CaseSummary]]) -> Mapping[str, str]:
    """The colours of the figure as the page opens, and of pictures; by the series' names."""
    colours = next(iter(colours_by(series).values()))
    return {name: colours[name] for name in series}


def panels_at_first(series: Mapping[str, Sequence[CaseSummary]]) -> str:
    """The key of the panels, '' for none: where there are more than :data:`MOST_SERIES` series, the
    first key of which no panel has more, else that whose fullest panel has fewest."""
    if len(series) <= MOST_SERIES:
        return ""
    fullest = {key: max(map(len, of.values())) for key, of in panels_by(series).items()}
    enough = (key for key, most in fullest.items() if most <= MOST_SERIES)
    return next(enough, min(fullest, key=fullest.__getitem__, default=""))


def short_names(names: Sequence[str]) -> list[str]:
    """The parts of the names of series by which they are known apart, to stand beside lines: what
    most of them have in common is left out. Of names with unlike parts the common beginning is."""
    parts = [re.split("/| (?=of sweep )", name) for name in names]
    common = common_beginning(names)
    usual = [Counter(each).most_common(1)[0] for each in zip(*parts)]
    left_out = [part if count * 3 > len(names) * 2 else None for part, count in usual]
    short = ["/".join(a for a, b in zip(each, left_out) if a != b) for each in parts]
    short = [name.replace("/of sweep ", " ").removeprefix("of sweep ") for name in short]
    if len({*map(len, parts)}) == 1 and len({*filter(None, short)}) == len(names):
        return short
    return [name.removeprefix(common) for name in names]


# --- tables


def interval_cell(value: Interval | None, form: Callable[[float], str] = number) -> Cell | None:
    """From the lower end to the upper, with the coverage as the hint."""
    if value is None:
        return None
    return Cell(interval_text(value, form, TO), value.low, f"covers {percent(value.coverage)}")


def _speeds(unit: str, first: bool, rank: int = 1) -> list[Column[CaseSummary]]:
    """``rank`` is that of the median over all devices, where others are folded away."""

    def ends(summary: CaseSummary) -> Cell | None:
        sample = summary.samples.get(unit)
        return interval_cell(getattr(sample, "interval", None))

    about = "confidence interval of the median; its coverage is shown on each"
    rest = rank if first else FOLDED
    return [
        figures(unit, lambda s: s.median(unit), unit="all devices", meaning="median", rank=rank),
        figures("interval", ends, unit=unit, meaning=about, rank=rest),
        figures(unit, lambda s: s.per_device(unit), unit="per device", rank=rest),
    ]


_HEAD: Sequence[Column[CaseSummary]] = (
    words("series", "case.series"),
    words("sweep", "sweep", rank=1),
    case_column("topology", rank=0),
)
_SPEEDUP: Sequence[Column[CaseSummary]] = (
    case_column("efficiency", unit="", form=percent, quantity="efficiency"),
    case_column("speedup", unit="", form=two_digits, rank=0, quantity="speedup"),
)
_RUNS = figures("runs", RUNS.value, unit="count/all", meaning="runs that count, of all")
_REST: Sequence[Column[CaseSummary]] = (
    case_column("step_ms_p50", name="step time"),
    case_column("mfu", name="MFU", unit="", form=percent),
    case_column("memory_mb_max", name="memory", unit="MB, peak"),
    case_column("exposed_comm", name="exposed comm.", unit="of a step", form=percent),
    case_column("gpu_joules_per_sample", name="energy", unit="J/sample"),
    words("flags", lambda s: ", ".join(s.flags), rank=1, long=True),
    case_column("devices", rank=FOLDED),
    case_column("global_batch", name="global batch", rank=FOLDED),
    figures(
        "interval", lambda s: interval_cell(s.speedup_interval, two_digits),
        unit="of the speedup", rank=FOLDED, quantity="speedup_ends",
    ),
    case_column("tflops_per_device", name="TFLOPS", unit="per device", rank=FOLDED),
    case_column("rank_spread_max", name="rank spread", unit="largest", form=percent, rank=FOLDED),
    case_column("gpu_util", name="GPU util.", rank=FOLDED),
    case_column("allreduce_bus_gb_s", name="all-reduce", unit="GB/s, bus", rank=FOLDED),
    case_column("checkpoint_save_s", name="checkpoint save", rank=FOLDED),
)  # fmt: skip


def case_table(visible: VisibleReport) -> Table[CaseSummary]:
    """A row for each case. Other units are folded away where the first one tells of all cases."""
    cases, (first, *more) = visible.cases, visible.units or (SAMPLES_PER_S,)
    columns = [*_HEAD, *_SPEEDUP, *_speeds(first, first=True), _RUNS]
    every = all(first in case.samples for case in cases if case.samples)
    for unit in more:
        columns += _speeds(unit, first=False, rank=FOLDED if every else 1)
    columns += [*bought(cases, rank=1), *_REST]
    if len({case.case.series for case in cases}) == 1:
        columns = columns[1:]
    return Table(
        "Every case: medians of its runs", columns, cases, bad=lambda s: not s.ok, name="cases",
        items=range(len(cases)),
    ).without_empty()  # fmt: skip


def _repeat(row: RunRow) -> Cell:
    repeat, attempt = row.run.run.repeat, row.run.attempt
    again = f" ({attempt})" if attempt != 1 else ""
    return Cell(f"#{repeat}{again}", float(repeat), row.run.run.id)


def _status(row: RunRow) -> str:
    uncounted = row.run.status is Status.OK and not row.counts
    return "ok, not counted" if uncounted else row.run.status.value


def _p5_p95(row: RunRow) -> Cell | None:
    window = row.run.window
    if window is None:
        return None
    ends = f"{number(window.step_ms_p5)}{TO}{number(window.step_ms_p95)}"
    return Cell(ends, window.step_ms_p5)


_drift = value_at("run.window.drift", "run.external.drift")
_memory = value_at("run.window.memory_mb", "run.external.memory_mb")
_RUN_COLUMNS: Sequence[Column[RunRow]] = (
    words("series", lambda r: series_name(r.run.run.case, r.run.sweep)),
    words("topology", lambda r: str(r.run.run.case.topology)),
    words("run", _repeat, opens=True),
    words("status", _status),
    figures("throughput", lambda r: next(iter(r.run.rates.values()), None), unit="all devices"),
    words("unit", lambda r: next(iter(r.run.rates), ""), rank=1),
    figures("step time", "run.window.step_ms_p50", unit="ms, median", rank=1),
    figures(f"p5{TO}p95", _p5_p95, unit="ms", rank=FOLDED),
    figures("drift", _drift, unit="of the step time", form=percent, rank=1),
    figures("memory", _memory, unit="MB, peak", rank=FOLDED),
    words("nodes", lambda r: listed(hosts_in_order(r.run), 3), rank=1),
    words("job", "run.launch", rank=FOLDED),
    words("started", lambda r: r.run.started[:16].replace("T", " "), unit="UTC", rank=1),
    words("reason", "run.reason", long=True, rank=1),
    words("energy in doubt", lambda r: "; ".join(energy_doubts(r.run)), long=True, rank=1),
)


def hosts_in_order(run: RunResult) -> list[str]:
    """The nodes of a run, as its log tells them, in natural order."""
    return sorted(hosts_of(run), key=natural)


def run_table(runs: Sequence[RunRow]) -> Table[RunRow]:
    """A row for each run of the page."""
    one_series = len({series_name(row.run.run.case, row.run.sweep) for row in runs}) == 1
    return Table(
        "Every run, also those that do not count", _RUN_COLUMNS[one_series:], runs,
        bad=lambda row: not row.counts, name="runs", items=[row.item for row in runs], runs=True,
    ).without_empty()  # fmt: skip


_node = picked(NODE_COLUMNS)
_NODE_COLUMNS = (
    _node("node", rank=0),
    _node("slow", name="outcome", kind="text", form=lambda slow: "slow" * slow),
    _node("difference", unit="to runs without it", form=signed_percent),
    _node("errors", unit="of the difference", form="{:+.1f}".format),
    _node("p", unit="", form="{:.2g}".format),
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
        "Every node: what runs and devices tell of it", _NODE_COLUMNS, nodes,
        bad=lambda row: row.slow, name="nodes",
    ).without_empty()  # fmt: skip
