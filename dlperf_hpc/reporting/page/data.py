"""What the scripts of a report's page get: cases and runs with all that the page tells of each."""

from __future__ import annotations

from typing import Any

from dlperf_hpc.analysis.costs import energy_doubts
from dlperf_hpc.analysis.speedup import CaseSummary
from dlperf_hpc.errors import printable
from dlperf_hpc.records.results import RunResult
from dlperf_hpc.records.status import Status
from dlperf_hpc.reporting.page.drawn import measures_of_case, measures_of_run, quantities
from dlperf_hpc.reporting.page.shown import (
    MOST_NAMED,
    MOST_SERIES,
    Shown,
    key_values,
    name_of,
)
from dlperf_hpc.reporting.page.traces import trace_of
from dlperf_hpc.reporting.tables import nodes_of
from dlperf_hpc.reporting.text import listed, number, percent, span


def data_of(shown: Shown) -> dict[str, Any]:
    """Plain JSON values: quantities, series, cases and runs."""
    series = {name: place for place, name in enumerate(shown.series)}
    return {
        "quantities": {name: vars(each) for name, each in quantities(shown).items()},
        "series": [printable(name) for name in shown.series],
        "most": MOST_SERIES,
        "hover": HOVER,
        "cases": [_case_data(case, series[case.series]) for case in shown.cases],
        "runs": [_run_data(shown, place, run) for place, run in enumerate(shown.runs)],
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


def _run_data(shown: Shown, place: int, run: RunResult) -> dict[str, Any]:
    case = shown.place_of(run)
    trace = trace_of(run)
    return {
        "name": printable(run.run.id),
        "c": case,
        "repeat": run.run.repeat,
        "ok": place in shown.counted,
        "m": measures_of_run(run, shown.cases[case]),
        "told": [[name, printable(text)] for name, text in run_facts(run).items() if text],
        **({"trace": trace} if trace else {}),
    }


HOVER = ("status", "nodes", "job", "clocks", "drift", "exposed communication", "energy in doubt")
"""Of :func:`run_facts`, what is shown at once; the rest when the run is opened."""


def run_facts(run: RunResult) -> dict[str, str]:
    """What is told of one run, for people."""
    window, gpu = run.window, run.gpu
    why = f": {run.reason}" if run.reason else ""
    facts = {
        "status": f"{run.status.value}{why}" if run.status is not Status.OK or why else "ok",
        "nodes": listed(nodes_of(run), MOST_NAMED),
        "job": run.launch,
        "measured": span([when for when in (run.started, run.ended) if when]),
        "attempt": str(run.attempt) if run.attempt != 1 else "",
    }
    if window is not None:
        facts |= {
            "window": f"{window.iterations} iterations after {window.warmup} of warm-up, "
            f"{number(window.elapsed_s)} s",
            "step time": f"{number(window.step_ms_p50)} ms (p5 {number(window.step_ms_p5)}, "
            f"p95 {number(window.step_ms_p95)}, p99 {number(window.step_ms_p99)})",
            "drift": percent(window.drift) + ("" if window.steady is not False else ", not steady"),
            "exposed communication": percent(window.exposed_comm),
            "attention": window.attention or "",
            "graphs": ""
            if window.graphs is None
            else f"{window.graphs} ({window.graph_breaks} "
            f"breaks, {window.recompiles} made in the window)",
            "spread of ranks": percent(window.rank_spread),
            "waited for data": f"{number(window.data_wait_s)} s" if window.data_wait_s else "",
            "memory": f"{number(window.memory_mb)} MB" if window.memory_mb else "",
        }
    if run.external is not None:
        facts |= {
            "format": run.external.format,
            "rule": f"{run.external.rule}, by {run.external.basis}",
            "drift": percent(run.external.drift),
        }
    if gpu is not None:
        facts |= {
            "clocks": f"{number(gpu.sm_mhz)} MHz SM" if gpu.sm_mhz else "",
            "power": f"{number(gpu.watts)} W a device" if gpu.watts else "",
            "temperature": f"{number(gpu.celsius)} °C" if gpu.celsius else "",
            "throttle reasons": f"NVML bits {gpu.throttle:#x}" if gpu.throttle else "",
        }
    if doubts := energy_doubts(run):
        facts["energy in doubt"] = "; ".join(doubts)
    if run.warnings:
        facts["warnings"] = " | ".join(run.warnings[:MOST_NAMED])
    return facts | {"log": run.log}
