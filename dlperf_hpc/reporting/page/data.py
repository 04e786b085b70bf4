"""What the scripts of a report's page get: cases and runs with all that the page tells of each."""

from __future__ import annotations

from typing import Any

from dlperf_hpc.analysis.costs import energy_doubts
from dlperf_hpc.analysis.speedup import CaseSummary
from dlperf_hpc.errors import printable
from dlperf_hpc.model.result import ExternalWindow, GpuUse, RunResult, Window
from dlperf_hpc.reporting.page.chart_data import measures_of_case, measures_of_run, quantities
from dlperf_hpc.reporting.page.limits import (
    MOST_NAMED,
    MOST_SERIES,
    VisibleReport,
    key_values,
    name_of,
)
from dlperf_hpc.reporting.page.traces import trace_of
from dlperf_hpc.reporting.table import Column, PartOf, figures, part, words
from dlperf_hpc.reporting.tables import nodes_of
from dlperf_hpc.reporting.text import listed, number, percent, span, with_unit


def data_of(visible: VisibleReport) -> dict[str, Any]:
    """Plain JSON values: quantities, series, cases and runs."""
    series = {name: place for place, name in enumerate(visible.series)}
    return {
        "quantities": {name: vars(each) for name, each in quantities(visible).items()},
        "series": [printable(name) for name in visible.series],
        "most": MOST_SERIES,
        "hover": HOVER,
        "cases": [_case_data(case, series[case.series]) for case in visible.cases],
        "runs": [_run_data(visible, place, run) for place, run in enumerate(visible.runs)],
    }


def _case_data(summary: CaseSummary, series: int) -> dict[str, Any]:
    sample = summary.sample
    covered = sample.interval.coverage if sample is not None and sample.interval else None
    return {
        "name": name_of(summary),
        "s": series,
        "n": summary.case.topology.devices,
        "topology": str(summary.case.topology),
        "keys": {key: value for key, value in key_values(summary).items()},
        "unit": summary.unit,
        "m": measures_of_case(summary),
        "told": [
            ["runs that count", f"{summary.ok} of {summary.runs}"],
            *([["interval covers", percent(covered)]] if covered else []),
            *([["flags", ", ".join(summary.flags)]] if summary.flags else []),
        ],
    }


def _run_data(visible: VisibleReport, place: int, run: RunResult) -> dict[str, Any]:
    case = visible.place_of(run)
    trace = trace_of(run)
    return {
        "name": printable(run.run.id),
        "c": case,
        "repeat": run.run.repeat,
        "ok": place in visible.counted,
        "m": measures_of_run(run, visible.cases[case]),
        "told": [[name, text] for name, text in run_facts(run).items()],
        **({"trace": trace} if trace else {}),
    }


HOVER = ("status", "nodes", "job", "clocks", "drift", "exposed communication", "energy in doubt")
"""Of :func:`run_facts`, what is shown at once; the rest when the run is opened."""


def run_facts(run: RunResult) -> dict[str, str]:
    """What people read of one run, by what it is; nothing of what is not known."""
    found = {fact.name: fact.view(run).text for fact in _FACTS}
    return {name: text for name, text in found.items() if text}


_window: PartOf[Window, RunResult] = part(lambda run: run.window)
_external: PartOf[ExternalWindow, RunResult] = part(lambda run: run.external)
_gpu: PartOf[GpuUse, RunResult] = part(lambda run: run.gpu)


def _status(run: RunResult) -> str:
    return f"{run.status.value}: {run.reason}" if run.reason else run.status.value


def _length(window: Window) -> str:
    seconds = number(window.elapsed_s)
    return f"{window.iterations} iterations after {window.warmup} of warm-up, {seconds} s"


def _step_time(window: Window) -> str:
    p5, p95, p99 = map(number, (window.step_ms_p5, window.step_ms_p95, window.step_ms_p99))
    return f"{number(window.step_ms_p50)} ms (p5 {p5}, p95 {p95}, p99 {p99})"


def _drift(run: RunResult) -> str:
    if run.external is not None:
        return percent(run.external.drift)
    if run.window is None:
        return ""
    unsteady = ", not steady" if run.window.steady is False else ""
    return f"{percent(run.window.drift)}{unsteady}"


def _graphs(window: Window) -> str | None:
    if window.graphs is None:
        return None
    made = f"{window.recompiles} made in the window"
    return f"{window.graphs} ({window.graph_breaks} breaks, {made})"


_FACTS: tuple[Column[RunResult], ...] = (
    words("status", _status),
    words("nodes", lambda run: listed(nodes_of(run), MOST_NAMED)),
    words("job", lambda run: run.launch),
    words("measured", lambda run: span([*filter(None, (run.started, run.ended))])),
    words("attempt", lambda run: str(run.attempt) if run.attempt != 1 else ""),
    words("window", _window(_length)),
    words("step time", _window(_step_time)),
    words("drift", _drift),
    figures("exposed communication", _window(lambda w: w.exposed_comm), form=percent),
    words("attention", _window(lambda w: w.attention)),
    words("graphs", _window(_graphs)),
    figures("spread of ranks", _window(lambda w: w.rank_spread), form=percent),
    figures("waited for data", _window(lambda w: w.data_wait_s or None), form=with_unit("s")),
    figures("memory", _window(lambda w: w.memory_mb or None), form=with_unit("MB")),
    words("format", _external(lambda w: w.format)),
    words("rule", _external(lambda w: f"{w.rule}, by {w.basis}")),
    figures("clocks", _gpu(lambda g: g.sm_mhz or None), form=with_unit("MHz SM")),
    figures("power", _gpu(lambda g: g.watts or None), form=with_unit("W a device")),
    figures("temperature", _gpu(lambda g: g.celsius or None), form=with_unit("\N{DEGREE SIGN}C")),
    figures(
        "throttle reasons",
        _gpu(lambda g: g.throttle or None),
        form=lambda bits: f"NVML bits {bits:#x}",
    ),
    words("energy in doubt", lambda run: "; ".join(energy_doubts(run))),
    words("warnings", lambda run: " | ".join(run.warnings[:MOST_NAMED])),
    words("log", lambda run: run.log),
)
