"""The report as a value: made once from results, and all that a writer needs.

Each writer of :mod:`dlperf_hpc.reporting.writers` makes a file of it. What two writers need is
computed here, once; how a figure is shown is the writer's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dlperf_hpc.analysis.costs import Cost, Price, cost
from dlperf_hpc.analysis.dlperf_rule import DlperfTable, dlperf_tables
from dlperf_hpc.analysis.flags import FLAGS
from dlperf_hpc.analysis.machines import machine_of
from dlperf_hpc.analysis.slow_nodes import NodeFindings, hosts_of
from dlperf_hpc.analysis.slow_nodes import examine as examine_nodes
from dlperf_hpc.analysis.speedup import CaseSummary, OptionPair, option_pairs, summarise
from dlperf_hpc.errors import redacted
from dlperf_hpc.model.case import Topology, Until
from dlperf_hpc.model.result import RunResult, Status, SweepSource
from dlperf_hpc.model.statistics import TARGET_COVERAGE, Sample, describe
from dlperf_hpc.records.layout import shared_job
from dlperf_hpc.reporting.csv_columns import CASE_COLUMNS, RUN_COLUMNS
from dlperf_hpc.reporting.curves import Curve, curves_json, curves_of, runs_with_curves
from dlperf_hpc.reporting.table import by_devices, ends_json, natural, rows, span

if TYPE_CHECKING:  # most reports have neither several counts of nodes nor parts of steps
    from dlperf_hpc.analysis.prediction import Prediction
    from dlperf_hpc.analysis.step_parts import StepParts


@dataclass(frozen=True)
class FlagRow:
    """One flag over all cases, or why cases have no speedup (``flag`` is '' then). ``about`` has
    each sentence with its cases: those of the largest size first, else those of most cases.
    ``cases`` of ``of`` cases have it; ``largest`` is its largest size, a signed fraction, None for
    a flag without one."""

    name: str
    flag: str
    meaning: str
    cases: int
    of: int
    largest: float | None
    about: Mapping[str, Sequence[CaseSummary]]


def flag_rows(cases: Sequence[CaseSummary]) -> tuple[FlagRow, ...]:
    """A row for each flag that some case has: that of most cases first, of as many the gravest."""
    about: dict[str, dict[str, list[CaseSummary]]] = {}
    for summary in cases:
        names = {each.note: each.name for each in reversed(summary.evidence)}
        for note in dict.fromkeys((*names, *summary.notes)):
            other = "no speedup" if note == summary.speedup_note else "skipped steps"
            about.setdefault(names.get(note, other), {}).setdefault(note, []).append(summary)
    order = [*FLAGS, *about]
    made = [_flag_row(name, about[name], len(cases)) for name in sorted(about, key=order.index)]
    return tuple(sorted(made, key=lambda row: -row.cases))


def _flag_row(name: str, about: Mapping[str, Sequence[CaseSummary]], of: int) -> FlagRow:
    found = (flag for members in about.values() for s in members for flag in s.evidence)
    sizes = {flag.note: flag.size for flag in found if flag.size is not None and flag.name == name}
    notes = sorted(about, key=lambda note: (-abs(sizes.get(note, 0.0)), -len(about[note])))
    ids = {id(summary) for members in about.values() for summary in members}
    known = name in FLAGS
    return FlagRow(
        name=name,
        flag=name * known,
        meaning=FLAGS.get(name, ""),
        cases=len(ids),
        of=of,
        largest=sizes.get(notes[0]),
        about={note: about[note] for note in notes},
    )


@dataclass(frozen=True)
class Report:
    """What is reported of one sweep, or of the logs below some paths. ``name`` is the sweep's, or
    the directory's. ``runs`` are all results, in the order in which they were found. ``base`` is
    the topology that speedup refers to as the user wrote it (None: 1n1g). ``source`` says in one
    line what the figures come from, ``site`` where the sweep ran, '' if that is not known;
    ``unread`` says what could not be read, and why; ``unrecognised`` are files in no known format.
    ``accelerator`` is the user's word for the device of logs that name none. ``limits_s`` are the
    time limits of runs, by run id, as far as they are known, and ``budget`` the node-hours that the
    sweep may use, None without a bound. ``until`` is the rule by which the number of repeats was
    decided, None where it was not. ``sweeps`` are the sweeps of a report of several, in the order
    in which they were given. ``price`` is a node-hour's, None where it is not known."""

    name: str
    runs: Sequence[RunResult]
    base: str | None = None
    source: str = ""
    unread: Sequence[str] = ()
    unrecognised: Sequence[str] = ()
    accelerator: str | None = None
    limits_s: Mapping[str, int] = field(default_factory=dict)
    site: str = ""
    budget: float | None = None
    until: Until | None = None
    sweeps: Sequence[SweepSource] = ()
    price: Price | None = None

    @cached_property
    def cases(self) -> Sequence[CaseSummary]:
        """What the runs of each case say together. ValueError if ``base`` is no topology."""
        bases = {sweep.name: sweep.base for sweep in self.sweeps}
        found = summarise(self.runs, self.base, self.accelerator, self._described, bases)
        return [replace(case, price=self.price) for case in found] if self.price else found

    def _described(self, values: Sequence[float]) -> Sample | None:
        """What is said of one case's repeats; the rule that decided their number widens it."""
        if self.until is None:
            return describe(values)
        from dlperf_hpc.model import stopping

        return stopping.describe(values, self.until)

    @cached_property
    def case_rows(self) -> list[dict[str, Any]]:
        """A row for each case: its cells by the names of ``CASE_COLUMNS``, None where unknown."""
        return rows(CASE_COLUMNS, self.cases)

    @cached_property
    def run_rows(self) -> list[dict[str, Any]]:
        """A row for each run: its cells by the names of ``RUN_COLUMNS``, None where unknown. A run
        that failed is a row too; figures are there only of a run that counts."""
        return rows(RUN_COLUMNS, self.runs)

    def compute(self) -> None:
        """Compute what most files tell."""
        _ = self.case_rows, self.run_rows, self.nodes, self.machines, self.option_pairs
        _ = self.predictions, self.step_parts, self.curves

    @cached_property
    def series(self) -> Mapping[str, tuple[CaseSummary, ...]]:
        """The cases of each speedup curve, from few devices to many, by the series' name; the
        series stand in natural order, bz2 before bz16."""
        found: dict[str, list[CaseSummary]] = {}
        for summary in self.cases:
            found.setdefault(summary.series, []).append(summary)
        for members in found.values():
            members.sort(key=lambda summary: by_devices(summary.case.topology))
        return {name: tuple(found[name]) for name in sorted(found, key=natural)}

    @cached_property
    def topologies(self) -> tuple[Topology, ...]:
        """All topologies, from few devices to many."""
        return tuple(sorted({summary.case.topology for summary in self.cases}, key=by_devices))

    @cached_property
    def option_pairs(self) -> tuple[OptionPair, ...]:
        """Cases that differ in one option, side by side; in pairs where one job measured both."""
        found = option_pairs(self.cases)
        if any(shared_job(run.launch) for run in self.runs):
            from dlperf_hpc.analysis.comparison import in_pairs

            return tuple(in_pairs(found, self.runs))
        return tuple(found)

    @cached_property
    def dlperf(self) -> Mapping[str, DlperfTable]:
        """DLPerf's own table of each series, by the series' name."""
        return dlperf_tables(self.runs)

    @cached_property
    def flags(self) -> Mapping[str, str]:
        """The flags that some case has, each with its meaning."""
        used = {flag for summary in self.cases for flag in summary.flags}
        return {flag: meaning for flag, meaning in FLAGS.items() if flag in used}

    @cached_property
    def flag_rows(self) -> tuple[FlagRow, ...]:
        """What is odd about cases, a row for each flag: see :func:`flag_rows`."""
        return flag_rows(self.cases)

    @cached_property
    def counted(self) -> tuple[RunResult, ...]:
        """The runs that count: they ended ok, with a throughput."""
        return tuple(result for result in self.runs if result.rates)

    @cached_property
    def cost(self) -> Cost | None:
        """What the runs took, in node-hours; None where no log tells it."""
        return cost(self.runs, self.limits_s)

    @cached_property
    def nodes(self) -> NodeFindings:
        """What the runs tell of their nodes."""
        return examine_nodes([self.runs])

    @cached_property
    def predictions(self) -> tuple[Prediction, ...]:
        """What the series with several counts of full nodes say of more nodes."""
        if len({summary.case.topology.nodes for summary in self.cases}) < 2:
            return ()
        from dlperf_hpc.analysis.prediction import predictions

        found = predictions(self.series, self.runs)
        return tuple(each for each in found if len(each.steps) > 1)

    @cached_property
    def step_parts(self) -> Mapping[str, tuple[StepParts, ...]]:
        """What the steps of the cases of each series are made of, where runs tell of it."""
        if not (len(self.cases) > len(self.series) or any(run.window for run in self.runs)):
            return {}
        from dlperf_hpc.analysis.step_parts import step_parts

        return step_parts(self.series, self.runs)

    @cached_property
    def curves(self) -> Mapping[int, Mapping[str, Curve]]:
        """What runs have over time, by ``id`` of the run: see :func:`.curves.runs_with_curves`."""
        found = ((id(run), curves_of(run)) for run in runs_with_curves(self.runs))
        return {run: curves for run, curves in found if curves}

    @cached_property
    def troubles(self) -> tuple[RunResult, ...]:
        """The runs that ended without a number, or of which nothing on disk says how: a cut log."""
        return tuple(r for r in self.runs if r.status.bad or r.status is Status.UNKNOWN)

    @cached_property
    def warnings(self) -> Mapping[str, Sequence[RunResult]]:
        """What logs warn of, each sentence once, with the runs that it is about."""
        if not any(run.warnings for run in self.runs):
            return {}
        from dlperf_hpc.reporting.run_states import warnings_of

        return warnings_of(self.runs)

    @cached_property
    def repeats(self) -> str:
        """By which rule the number of repeats was decided; '' where it was not."""
        if self.until is None:
            return ""
        from dlperf_hpc.model.stopping import label

        return label(self.until)

    @cached_property
    def measured(self) -> str:
        """When the runs that count were measured: the first start and the last end, in UTC to the
        minute; '' where no log tells it."""
        starts = sorted(result.started for result in self.counted if result.started)
        ends = sorted(result.ended for result in self.counted if result.ended)
        return span([*starts[:1], *ends[-1:]])

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """The hosts on which the runs that count were measured, in natural order."""
        found = {host for result in self.counted for host in hosts_of(result)}
        return tuple(sorted(found, key=natural))

    @cached_property
    def machines(self) -> Mapping[str, str]:
        """Hardware and software as the logs of the counted runs tell them, by what they are.
        Several values of one fact stand side by side: two devices in one table must show."""
        seen: dict[str, dict[str, None]] = {}
        for result in self.counted:
            for what, text in machine_of(result).items():
                seen.setdefault(what, {})[text] = None
        joined = ((what, "; ".join(filter(None, texts))) for what, texts in seen.items())
        return {what: text for what, text in joined if text}


# --- JSON

SCHEMA = "dlperf-report/1"
_METHOD = {
    "samples_per_s": "samples of the timed window / slowest rank's time, over all devices",
    "tokens_per_s": "samples_per_s x seq_len, so that padding counts; where seq_len is not known, "
    "as the program prints it",
    "figure": "of programs that print neither, in figure_unit: their own figure of the whole run, "
    "or of the window's lines, over all devices",
    "summary": "median of the runs that ended ok",
    "interval": "order statistics of the median, coverage stated",
    "target_coverage": TARGET_COVERAGE,
    "speedup": "ratio of medians to the base of the same series",
}


def as_json(report: Report) -> dict[str, Any]:
    """Plain JSON values: null for what is not known, never NaN. Cases and runs have the names of
    the CSV columns; ``flags`` and ``notes`` of a case are lists. ``flag_counts`` has how many cases
    have each flag, and its largest size, a signed fraction. ``switches`` are pairs of cases
    that differ in one option. ``dlperf`` holds, per series, the table as DLPerf's scripts round it,
    and what it lacks. ``nodes`` and ``predictions`` are what ``dlperf nodes --json`` and
    ``dlperf predict --json`` print, null without any. ``step_parts`` has what the step of each case
    is made of, in ms. ``sweeps`` has the sweeps of a report of several, in what they differ and
    what they have in common; null for one. ``curves`` has what runs have over time."""
    lists = ({"flags": list(case.flags), "notes": list(case.notes)} for case in report.cases)
    return {
        "schema": SCHEMA,
        "sweep": report.name,
        "source": report.source,
        "base": report.base,
        "method": _METHOD,
        "flags": dict(report.flags),
        "flag_counts": [
            {"flag": row.flag, "cases": row.cases, "of": row.of, "largest": row.largest}
            for row in report.flag_rows
            if row.flag
        ],
        "cases": [{**row, **as_lists} for row, as_lists in zip(report.case_rows, lists)],
        "runs": report.run_rows,
        "switches": list(map(_pair, report.option_pairs)),
        "dlperf": {
            series: {"result": table.to_dict(), "missing": list(table.reasons)}
            for series, table in report.dlperf.items()
        },
        "cost": report.cost and _cost(report.cost, report.budget, report.price),
        **_optional_parts(report),
        "curves": curves_json(report.runs, report.curves),
        "unread": list(report.unread),
        "foreign": list(report.unrecognised),
    }


def _optional_parts(report: Report) -> dict[str, Any]:
    """What many reports do not have; the modules that write it are loaded for those that do."""
    found: dict[str, Any] = {"nodes": None, "predictions": None, "step_parts": [], "sweeps": None}
    if report.nodes.something:
        from dlperf_hpc.reporting.node_tables import nodes_json

        found["nodes"] = nodes_json(report.nodes)
    if report.predictions:
        from dlperf_hpc.reporting.prediction_tables import predictions_json

        found["predictions"] = predictions_json(report.predictions)
    if report.step_parts:
        from dlperf_hpc.reporting.step_tables import step_parts_json

        found["step_parts"] = step_parts_json(report.step_parts)
    if report.sweeps:
        from dlperf_hpc.reporting.side_by_side import sweeps_json

        found["sweeps"] = sweeps_json(report)
    return found


def _cost(found: Cost, budget: float | None, price: Price | None) -> dict[str, Any]:
    known: dict[str, Any] = {} if budget is None else {"node_hours_budget": budget}
    if price is not None:
        known |= {"node_hour_price": price.node_hour, "currency": price.currency}
        known["price_of_used"] = price.of(found.used)
    return {
        **known,
        "runs": found.runs,
        "runs_unknown": found.unknown,
        "node_hours_asked": found.requested,
        "node_hours_used": found.used,
        "node_hours_window": found.window,
        "samples": found.samples,
        "samples_per_node_hour": found.samples_per_node_hour,
    }


def _pair(pair: OptionPair) -> dict[str, Any]:
    return {
        "switch": pair.name,
        "off": pair.off.case.id,
        "on": pair.on.case.id,
        "unit": pair.unit,
        "ratio": pair.ratio,
        **ends_json("ratio", pair.interval),
        "pairs": pair.pairs or None,
        "memory_mb_change": pair.memory_mb,
        "gpu_util_off": pair.off.gpu_util,
        "gpu_util_on": pair.on.gpu_util,
    }


_ROW = json.JSONEncoder(separators=(",\n   ", ": "), allow_nan=False)
"""Writes a flat row as ``indent=1`` would in a list; without ``indent`` json does so in C."""
_LINE = json.JSONEncoder(allow_nan=False)
"""Writes a row of many numbers as one line."""


def json_text(report: Report) -> str:
    """``report.json``: the whole report as plain JSON values."""
    values = as_json(report)
    runs = [f"  {{\n   {_ROW.encode(row)[1:-1]}\n  }}" for row in values["runs"]]
    curves = [f"  {_LINE.encode(row)}" for row in values["curves"]]
    without = {**values, "runs": [], "curves": []}
    whole = redacted(json.dumps(without, indent=1, allow_nan=False)) + "\n"
    for name, lines in (("runs", runs), ("curves", curves)):
        if lines:
            text = ",\n".join(lines)
            whole = whole.replace(f'\n "{name}": []', f'\n "{name}": [\n{text}\n ]', 1)
    return whole
