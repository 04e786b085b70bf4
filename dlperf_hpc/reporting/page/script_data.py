"""What the scripts of a report's page get: the figure with its quantities and menus, cases and runs
with what they measure and what people read of them, and the iterations of each run, thinned.

Iterations come from a run's record, else from its log. Both may be somebody else's, and of any size
and content: what does not fit is no trace.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlperf_hpc.analysis.costs import energy_doubts
from dlperf_hpc.analysis.speedup import DEFAULT_BASE, CaseSummary
from dlperf_hpc.analysis.step_parts import PARTS, StepParts
from dlperf_hpc.errors import LogError, listed, printable
from dlperf_hpc.model.case import value_at
from dlperf_hpc.model.result import SAMPLES_PER_S, RunResult, Window, rates_of
from dlperf_hpc.model.statistics import pieces
from dlperf_hpc.records.logfile import MOST_MS, MOST_TIMES, read_timed
from dlperf_hpc.records.record import read_record
from dlperf_hpc.reporting import table
from dlperf_hpc.reporting.curves import KINDS, CurveKind, digits
from dlperf_hpc.reporting.page import (
    Choice,
    PageFigure,
    Series,
    dash_of,
    figure,
    mark_of,
)
from dlperf_hpc.reporting.page.visible import (
    MOST_NAMED,
    MOST_SERIES,
    RunRow,
    VisibleReport,
    colours_by,
    first_colours,
    hosts_in_order,
    key_values,
    name_of,
    panels_at_first,
    panels_by,
    short_names,
)
from dlperf_hpc.reporting.picture import MOST_STILL, NEAR, Dot

MOST_POINTS = 60
"""Of a run; a point covers several iterations where the window has more."""


# --- what cases and runs measure


@dataclass(frozen=True)
class Quantity:
    """``of`` is what cases and runs have; ``how`` the script makes a value of it. ``ideal``: a line
    through base and origin, a level, or none; ``logs``: its axis may be logarithmic. ``form`` is
    d3's number format."""

    label: str
    axis: str
    of: str
    how: str
    ideal: str = ""
    form: str = ",.7~g"
    logs: bool = False


_SPEEDUPS = {
    "speedup": Quantity("speedup", "speedup over the base", "", "speedup", "line", logs=True),
    "efficiency": Quantity("efficiency", "efficiency", "", "efficiency", "flat", ".1~%"),
}
_MEASURES = {
    "mfu": Quantity("MFU", "model FLOPS / peak of the device", "mfu", "total", form=".1~%"),
    "step": Quantity("step time", "median step time of a run, ms", "step", "total", logs=True),
    "joules": Quantity("J/sample", "J/sample, all devices", "joules", "total", logs=True),
    "memory": Quantity("memory", "peak memory of a device, MB", "memory", "total", logs=True),
}


def quantities(visible: VisibleReport) -> dict[str, Quantity]:
    """What the menu offers, by name: what some case has."""
    found: dict[str, Quantity] = {}
    for unit in visible.units:
        found[unit] = Quantity(unit, f"{unit}, all devices", unit, "total", "line", logs=True)
    for unit in visible.units:
        label = f"{unit} per device"
        found[label] = Quantity(label, label, unit, "device", "flat")
    if visible.base or len(visible.cases) > 1:
        found |= _SPEEDUPS
    known = {name for case in visible.cases for name in measures_of_case(case)}
    return found | {name: quantity for name, quantity in _MEASURES.items() if name in known}


def measures_of_case(summary: CaseSummary) -> dict[str, tuple[float | None, ...]]:
    """By unit or name: median, and the ends of its interval where there is one."""
    found: dict[str, tuple[float | None, ...]] = {}
    for unit, sample in summary.samples.items():
        found[unit] = (sample.median, None, None)
        if sample.interval is not None:
            found[unit] = (sample.median, sample.interval.low, sample.interval.high)
    rates = found.get(SAMPLES_PER_S)
    if summary.mfu is not None and rates is not None:
        found["mfu"] = _in_proportion(summary.mfu, rates)
    found["step"] = (summary.step_ms_p50, None, None)
    found["joules"] = (summary.joules_per_sample, None, None)
    found["memory"] = (summary.memory_mb, None, None)
    return {
        name: tuple(value if value is None else digits(value, 7) for value in values)
        for name, values in found.items()
        if values[0] is not None and math.isfinite(values[0])
    }


def _in_proportion(value: float, rates: Sequence[float | None]) -> tuple[float | None, ...]:
    """A value that belongs to the first of these rates, with what the other rates make of it."""
    middle = rates[0] or 1.0
    return (value, *(rate if rate is None else value * rate / middle for rate in rates[1:]))


def measures_of_run(run: RunResult, summary: CaseSummary) -> dict[str, float]:
    """Those of one run, also of one that does not count but has a whole window."""
    found: dict[str, float | None] = {
        unit: rate for unit, rate in _rates_of(run).items() if rate > 0
    }
    middle, rate = summary.samples.get(SAMPLES_PER_S), found.get(SAMPLES_PER_S)
    if summary.mfu is not None and middle is not None and rate is not None:
        found["mfu"] = summary.mfu * rate / middle.median
    window = run.window
    found["memory"] = getattr(window or run.external, "memory_mb", None)
    if window is not None:
        found["step"] = window.step_ms_p50 if window.step_ms_p50 > 0 else None
        if run.gpu is not None and run.gpu.joules is not None and window.samples:
            found["joules"] = run.gpu.joules / window.samples
    known = {name: value for name, value in found.items() if value is not None}
    return {name: digits(value, 7) for name, value in known.items() if math.isfinite(value)}


def _rates_of(run: RunResult) -> Mapping[str, float]:
    """Its throughputs, by unit; of a run that does not count those of its whole window."""
    if run.rates:
        return run.rates
    if run.window is not None and run.window.elapsed_s > 0:
        return rates_of(run.window.samples_per_s, run.run.case.seq_len)
    return {} if run.external is None else run.external.rates


# --- the figure

_CAPTION = (
    "Large marks are medians, bars their confidence intervals, small dots single runs; lines only "
    "lead the eye, for between two topologies nothing was measured. Hollow dots are runs that do "
    "not count; a cross at the lower edge is a run without a number. Grey: ideal scaling."
)


def figure_of(visible: VisibleReport) -> PageFigure:
    """The figure with its menus; a sentence where no run counts."""
    if not visible.report.counted:
        return PageFigure(
            "Scaling", "", empty="No run counts yet, so that there is nothing to draw."
        )
    measured = dict.fromkeys(case.case.topology for case in visible.cases if case.samples)
    bases = {str(each): str(each) for each in sorted(measured, key=lambda each: each.devices)}
    base = visible.base
    if len({case.base for case in visible.cases if case.base is not None}) > 1:
        base = OWN
        bases = {OWN: "of each sweep its own", **bases}
    if not visible.base:
        bases = {"": f"none ({visible.report.base or DEFAULT_BASE} has no run)", **bases}
    labels = {name: each.label for name, each in quantities(visible).items()}
    devices = sorted({case.case.topology.devices for case in visible.cases})
    count, parts = len(visible.series), panels_by(visible.report.series)
    first, beside = _first_quantities(visible, len(devices))
    drawn, dots = _still(visible)
    return PageFigure(
        title="Scaling",
        caption=_CAPTION,
        still=drawn,
        still_caption=dots,
        specs={"scaling": figure.scaling(count, devices), "parts": figure.parts(),
               **{name: figure.trace(kind.x, kind.y) for name, kind in TRACES.items()}},
        folded=tuple((name, KINDS[name].title, KINDS[name].about) for name in KINDS
                     if any(name in curves for curves in visible.report.curves.values())),
        menus=(
            Choice("quantity", "Quantity", labels, first),
            Choice("beside", "Beside it", {"": "nothing", **labels}, beside),
            Choice("facet", "Panels by", {"": "nothing", **dict(zip(parts, parts))},
                   panels_at_first(visible.report.series)),
            Choice("base", "Base", bases, base),
            Choice("x", "Devices", {"log": "log2", "linear": "linear"},
                   "log" if len(devices) > 1 else "linear"),
            Choice("y", "Axis", _AXES, "fit"),
            *_colour_menu(visible),
        ),
        series=tuple(
            Series(printable(name), colour, mark_of(place).path, dash_of(place))
            for place, (name, colour) in enumerate(first_colours(visible.report.series).items())
        ),
        most_series=MOST_SERIES,
    )  # fmt: skip


TRACES = {"trace": CurveKind("Iterations", "iteration of the run", "iteration, ms", ""), **KINDS}
"""What is drawn of one run over time, by name."""

OWN = "own"
"""The base that each sweep has of its own, where these are not the same."""

_AXES = {"fit": "from 0 where that serves", "zero": "from 0", "log": "log2 where that serves"}


def _colour_menu(visible: VisibleReport) -> list[Choice]:
    """What tells the colours of several sweeps."""
    keys = {key: key or "series" for key in colours_by(visible.report.series)}
    return [Choice("colour", "Colour by", keys, "sweep")] if "sweep" in keys else []


def _first_quantities(visible: VisibleReport, counts: int) -> tuple[str, str]:
    """What the figure shows at first, and what beside it: how it scales, if it may scale."""
    unit = visible.units[0]
    return ("efficiency", f"{unit} per device") if visible.base and counts > 1 else (unit, "")


def _still(visible: VisibleReport) -> tuple[str, str]:
    """The picture for readers without scripts, and what it leaves out."""
    dots: dict[tuple[str, str], list[Dot]] = {}
    for row in visible.runs:
        run, summary = row.run, visible.cases[row.item]
        speed = measures_of_run(run, summary).get(summary.unit)
        if speed is not None:
            why = "counts"
            if not row.counts:
                why = f"does not count: {run.status.value} {run.reason}".strip()
            title = printable(f"{run.run.id}: {table.number(speed)} {summary.unit} ({why})")
            name = run.sweep, run.run.case.id
            dots.setdefault(name, []).append(Dot(speed, title, row.counts))
    count = len(visible.series)
    caption = f"{MOST_STILL} of {count} series are drawn, by name; the tables have all."
    drawn = figure.picture_in_page(visible.report, visible.series[:MOST_STILL], dots)
    return drawn, caption * (count > MOST_STILL)


# --- cases and runs


def data_of(visible: VisibleReport) -> dict[str, Any]:
    """Plain JSON values: quantities, series, cases and runs."""
    series = {name: place for place, name in enumerate(visible.series)}
    steps = {id(each.summary): each for each in sum(visible.report.step_parts.values(), ())}
    return {
        "quantities": {name: vars(each) for name, each in quantities(visible).items()},
        "series": list(map(printable, visible.series)),
        "short": list(map(printable, short_names(visible.series))),
        "most": MOST_SERIES,
        "near": NEAR,
        "hover": HOVER,
        "colours": colours_by(visible.report.series),
        "traces": {name: vars(each) for name, each in TRACES.items()},
        "cases": [_case_data(s, series[s.series], steps.get(id(s))) for s in visible.cases],
        "runs": [_run_data(row, visible) for row in visible.runs],
    }


_coverage = value_at("sample.interval.coverage")


def _case_data(summary: CaseSummary, series: int, step: StepParts | None) -> dict[str, Any]:
    facts = {
        "runs that count": f"{summary.ok} of {summary.runs}",
        "interval covers": table.percent(_coverage(summary)),
        "flags": ", ".join(summary.flags),
    }
    return {
        "name": name_of(summary),
        "s": series,
        "n": summary.case.topology.devices,
        "topology": str(summary.case.topology),
        "base": summary.base and str(summary.base),
        "keys": key_values(summary),
        "unit": summary.unit,
        "m": measures_of_case(summary),
        "told": [[name, text] for name, text in facts.items() if text],
        "parts": step and [(PARTS[name], digits(ms, 5)) for name, ms in step.parts.items()],
    }


def _run_data(row: RunRow, visible: VisibleReport) -> dict[str, Any]:
    trace, curves = trace_of(row.run), visible.report.curves.get(id(row.run))
    return {
        "name": printable(row.run.run.id),
        "c": row.item,
        "repeat": row.run.run.repeat,
        "ok": row.counts,
        "m": measures_of_run(row.run, visible.cases[row.item]),
        "told": [[name, text] for name, text in run_facts(row.run).items()],
        **({"trace": trace} if trace else {}),
        **({"curves": {name: vars(each) for name, each in curves.items()}} if curves else {}),
    }


HOVER = ("status", "nodes", "job", "clocks", "drift", "exposed communication", "energy in doubt")
"""Of :func:`run_facts`, what a hover shows; the rest when the run is opened."""


def run_facts(run: RunResult) -> dict[str, str]:
    """What people read of one run, by what it is; nothing of what is not known."""
    found = ((fact.name, fact.view(run).text) for fact in _FACTS)
    return {name: text for name, text in found if text}


def _status(run: RunResult) -> str:
    return f"{run.status.value}: {run.reason}" if run.reason else run.status.value


def _length(window: Window) -> str:
    seconds = table.number(window.elapsed_s)
    return f"{window.iterations} iterations after {window.warmup} of warm-up, {seconds} s"


def _step_time(window: Window) -> str:
    p5, p95, p99 = map(table.number, (window.step_ms_p5, window.step_ms_p95, window.step_ms_p99))
    return f"{table.number(window.step_ms_p50)} ms (p5 {p5}, p95 {p95}, p99 {p99})"


def _drift(run: RunResult) -> str:
    if run.external is not None:
        return table.percent(run.external.drift)
    if run.window is None:
        return ""
    return table.percent(run.window.drift) + ", not steady" * (run.window.steady is False)


def _graphs(window: Window) -> str | None:
    if window.graphs is None:
        return None
    made = f"{window.recompiles} made in the window"
    return f"{window.graphs} ({window.graph_breaks} breaks, {made})"


def _amount(name: str, path: str, text: str) -> table.Column[RunResult]:
    """A figure with its unit, unless it is 0: ``12.50 MB``."""
    return table.figures(
        name, path, form=lambda value: f"{table.number(value)} {text}" if value else ""
    )


_FACTS: tuple[table.Column[RunResult], ...] = (
    table.words("status", _status),
    table.words("nodes", lambda run: listed(hosts_in_order(run), MOST_NAMED)),
    table.words("job", "launch"),
    table.words("measured", lambda run: table.span([*filter(None, (run.started, run.ended))])),
    table.words("attempt", lambda run: str(run.attempt) * (run.attempt != 1)),
    table.words("window", lambda run: run.window and _length(run.window)),
    table.words("step time", lambda run: run.window and _step_time(run.window)),
    table.words("drift", _drift),
    table.figures("exposed communication", "window.exposed_comm", form=table.percent),
    _amount("all-reduce alone", "allreduces.total_bus_gb_s", "GB/s (bus)"),
    table.words("attention", "window.attention"),
    table.words("graphs", lambda run: run.window and _graphs(run.window)),
    table.figures("spread of ranks", "window.rank_spread", form=table.percent),
    _amount("waited for data", "window.data_wait_s", "s"),
    _amount("memory", "window.memory_mb", "MB"),
    table.words("format", "external.format"),
    table.words(
        "rule", lambda run: run.external and f"{run.external.rule}, by {run.external.basis}"
    ),
    _amount("clocks", "gpu.sm_mhz", "MHz SM"),
    _amount("power", "gpu.watts", "W a device"),
    _amount("temperature", "gpu.celsius", "\N{DEGREE SIGN}C"),
    table.figures(
        "throttle reasons", "gpu.throttle", form=lambda bits: f"NVML bits {bits:#x}" if bits else ""
    ),
    table.words("energy in doubt", lambda run: "; ".join(energy_doubts(run))),
    table.words("warnings", lambda run: " | ".join(run.warnings[:MOST_NAMED])),
    table.words("log", "log"),
)


# --- iterations


def trace_of(result: RunResult) -> dict[str, Any] | None:
    """What is drawn of a run's iterations, ms: of each point the last iteration that it covers, the
    slowest rank's longest time, and p5 and p95 over ranks and iterations. ``slowest`` names the
    rank that took longest over the window. None if neither record nor log beside it has times."""
    if not result.log or result.window is None:
        return None
    ranks = _of_record(result)
    if ranks is not None:
        first = result.window.warmup + 1
        points = _thinned(first, list(zip(*ranks)))
        return points | {"slowest": _slowest(result, ranks), "ranks": len(ranks)}
    times = read_timed(Path(result.log)).ms
    if not times:
        return None
    numbers = sorted(times)
    return _thinned(numbers[0], [(times[n],) for n in numbers]) | {"last": numbers[-1]}


def _of_record(result: RunResult) -> list[list[float]] | None:
    """The times of each rank's iterations."""
    if not result.log.endswith(".log"):
        return None
    try:
        record = read_record(Path(result.log).with_suffix(".json"))
    except (LogError, ValueError):
        return None
    if record is None or record.get("attempt") != result.attempt:
        return None
    detail = record.get("detail")
    ranks = detail.get("rank_step_ms") if isinstance(detail, Mapping) else None
    return ranks if _are_times(ranks) else None


def _are_times(ranks: Any) -> bool:
    """Whether these are as many times of each rank, of one at least, and not too many."""
    if not isinstance(ranks, list) or not all(isinstance(row, list) for row in ranks):
        return False
    lengths = {*map(len, ranks)}
    if len(lengths) != 1 or not 0 < sum(map(len, ranks)) <= MOST_TIMES:
        return False
    return all(map(_are_numbers, ranks))


def _are_numbers(row: Sequence[Any]) -> bool:
    """Whether all are times in ms; by functions in C, for there are many."""
    return {*map(type, row)} <= {int, float} and min(row) >= 0 and max(row) <= MOST_MS


def _thinned(first: int, columns: Sequence[Sequence[float]]) -> dict[str, Any]:
    parts = pieces(columns, MOST_POINTS)
    points: dict[str, list[float]] = {"slow": [], "low": [], "high": []}
    for part in parts:
        times = sorted(value for column in part for value in column)
        points["slow"].append(digits(times[-1], 4))
        points["low"].append(digits(_twentieth(times, 1), 4))
        points["high"].append(digits(_twentieth(times, 19), 4))
    return {"first": first, "last": first + len(columns) - 1, "width": len(parts[0]), **points}


def _twentieth(times: Sequence[float], count: int) -> float:
    """As :func:`statistics.quantiles` has it with ``n=20, method="inclusive"``: there are many."""
    if len(times) < 2:
        return times[0]
    place, rest = divmod(count * (len(times) - 1), 20)
    return (times[place] * (20 - rest) + times[place + 1] * rest) / 20


def _slowest(result: RunResult, ranks: Sequence[Sequence[float]]) -> str:
    """``rank 3 on n7``: the host stands there if the log names it."""
    if len(ranks) < 2:
        return ""
    slowest = max(range(len(ranks)), key=lambda rank: sum(ranks[rank]))
    lines = result.facts.get("ranks")
    for line in lines if isinstance(lines, list) else []:
        if isinstance(line, Mapping) and line.get("rank") == slowest and line.get("host"):
            return f"rank {slowest} on {line['host']}"
    return f"rank {slowest}"
