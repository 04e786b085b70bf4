"""``report.json``: the whole report as plain JSON values, schema ``dlperf-report/1``."""

from __future__ import annotations

import json
from typing import Any

from dlperf_hpc.analysis.costs import Cost
from dlperf_hpc.analysis.option_pairs import OptionPair
from dlperf_hpc.model.statistics import TARGET_COVERAGE
from dlperf_hpc.reporting.nodes import nodes_json
from dlperf_hpc.reporting.report import Report
from dlperf_hpc.reporting.writers import Writer

SCHEMA = "dlperf-report/1"


def as_json(report: Report) -> dict[str, Any]:
    """Plain JSON values: null for what is not known, never NaN.

    Cases and runs have the names of the CSV columns; ``flags`` and ``notes`` of a case are lists.
    ``switches`` are pairs of cases that differ in one option. ``dlperf`` holds, per series, the
    table as DLPerf's scripts round it, and what it lacks. ``nodes`` is what ``dlperf nodes --json``
    prints; null where no run tells its nodes.
    """
    lists = ({"flags": list(case.flags), "notes": list(case.notes)} for case in report.cases)
    return {
        "schema": SCHEMA,
        "sweep": report.name,
        "source": report.source,
        "base": report.base,
        "method": {
            "samples_per_s": "samples of the timed window / slowest rank's time, over all devices",
            "tokens_per_s": "samples_per_s x seq_len, so that padding counts; where seq_len is not "
            "known, as the program prints it",
            "figure": "of programs that print neither, in figure_unit: their own figure of the "
            "whole run, or of the window's lines, over all devices",
            "summary": "median of the runs that ended ok",
            "interval": "order statistics of the median, coverage stated",
            "target_coverage": TARGET_COVERAGE,
            "speedup": "ratio of medians to the base of the same series",
        },
        "flags": dict(report.flags),
        "cases": [{**row, **as_lists} for row, as_lists in zip(report.case_rows, lists)],
        "runs": report.run_rows,
        "switches": [_pair(pair) for pair in report.option_pairs],
        "dlperf": {
            series: {"result": table.to_dict(), "missing": list(table.reasons)}
            for series, table in report.dlperf.items()
        },
        "cost": _cost(report.cost),
        "nodes": nodes_json(report.nodes) if report.nodes.something else None,
        "unread": list(report.unread),
        "foreign": list(report.unrecognised),
    }


def _cost(found: Cost | None) -> dict[str, Any] | None:
    """Node-hours, and what they gave."""
    if found is None:
        return None
    return {
        "runs": found.runs,
        "runs_unknown": found.unknown,
        "node_hours_asked": found.asked,
        "node_hours_used": found.used,
        "node_hours_window": found.window,
        "samples": found.samples,
        "samples_per_node_hour": found.samples_per_node_hour,
    }


def _pair(pair: OptionPair) -> dict[str, Any]:
    ends = (pair.interval.low, pair.interval.high) if pair.interval else (None, None)
    return {
        "switch": pair.name,
        "off": pair.off.case.id,
        "on": pair.on.case.id,
        "unit": pair.unit,
        "ratio": pair.ratio,
        "ratio_low": ends[0],
        "ratio_high": ends[1],
        "memory_mb_change": pair.memory_mb,
        "gpu_util_off": pair.off.gpu_util,
        "gpu_util_on": pair.on.gpu_util,
    }


_ROW = json.JSONEncoder(separators=(",\n   ", ": "), allow_nan=False)
"""Writes a flat row as ``indent=1`` would in a list; without ``indent`` json does so in C."""


def text(report: Report) -> str:
    """The file's content."""
    told = as_json(report)
    runs = ",\n".join(f"  {{\n   {_ROW.encode(row)[1:-1]}\n  }}" for row in told["runs"])
    whole = json.dumps({**told, "runs": []}, indent=1, allow_nan=False) + "\n"
    return whole.replace('\n "runs": []', f'\n "runs": [\n{runs}\n ]', 1) if runs else whole


WRITERS = (
    Writer(
        "json",
        "the whole report for programs",
        {"report.json": lambda report: text(report).encode()},
    ),
)
