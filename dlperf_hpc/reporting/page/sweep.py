"""The page of a report, put together: its head (:mod:`.summary`), the figure (:mod:`.chart_data`)
with its data (:mod:`.data`), and the tables.

:data:`SECTIONS` are the parts behind the figure, in order: a function from what is visible to
sections, none where there is nothing to show. Another table of the report is one more of them.
"""

from __future__ import annotations

from collections.abc import Callable
from textwrap import shorten

from dlperf_hpc.errors import printable
from dlperf_hpc.reporting.columns import CASE_COLUMNS, RUN_COLUMNS
from dlperf_hpc.reporting.nodes import nodes_of, sentences
from dlperf_hpc.reporting.page import Page, Section
from dlperf_hpc.reporting.page.chart_data import figure_of
from dlperf_hpc.reporting.page.data import data_of
from dlperf_hpc.reporting.page.limits import (
    MOST_FILES,
    VisibleReport,
    filters,
    key_values,
    sentence,
)
from dlperf_hpc.reporting.page.provenance import provenance_sections
from dlperf_hpc.reporting.page.summary import counts, facts, missing, remarks
from dlperf_hpc.reporting.report import Report
from dlperf_hpc.reporting.table import csv_table
from dlperf_hpc.reporting.tables import RunRow, case_table, node_table, option_table, run_table

MOST_NODES = 1000
"""Nodes that the page shows, the slow ones first; ``nodes.csv`` has all."""

_LONGEST = 500  # characters of a sentence on nodes, which may name hundreds
_WORDS = ("slow: ", "no node ", "no rank", "to be sure", "to leave out")  # else a node's name


def page(report: Report) -> Page:
    """The page of one sweep, or of logs below some paths."""
    visible = VisibleReport(report)
    files = _files(report)
    return Page(
        kind="report",
        title=printable(report.name),
        subtitle="Throughput and scaling",
        facts=facts(visible),
        counts=counts(report),
        remarks=remarks(report),
        missing=missing(visible, files),
        figure=figure_of(visible),
        sections=tuple(made for make in SECTIONS for made in make(visible)),
        filters=filters(map(key_values, visible.cases)),
        data=data_of(visible),
        files={name: content for name, content in files.items() if len(content) <= MOST_FILES * 8},
        how_to_read=HOW_TO_READ,
    )


def _cases(visible: VisibleReport) -> list[Section]:
    if not visible.cases:
        return []
    table, left_out = case_table(visible.cases)
    lines = [f"Not measured in any case: {', '.join(left_out)}."] if left_out else []
    if len(visible.series) == 1:
        lines.insert(0, f"All cases are of the series {printable(visible.series[0])}.")
    return [Section("cases", "Cases", tuple(lines), table)]


def _runs(visible: VisibleReport) -> list[Section]:
    if not visible.runs:
        return []
    rows = [
        RunRow(run, visible.place_of(run), place in visible.counted)
        for place, run in enumerate(visible.runs)
    ]
    line = "The button of a run opens its iterations and what its log tells."
    return [Section("runs", "Runs", (line,), run_table(rows))]


def _options(visible: VisibleReport) -> list[Section]:
    if not visible.report.option_pairs:
        return []
    line = "Cases that differ in one option, side by side: what the option changes."
    table = option_table(visible.report.option_pairs)
    return [Section("options", "One option switched on", (line,), table)]


def _nodes(visible: VisibleReport) -> list[Section]:
    """Where there are several nodes, or ranks tell their own times, as in ``nodes.csv``."""
    found = visible.report.nodes
    nodes = {node for effect in found.effects for node in effect.nodes}
    if len(nodes) < 2 and not found.devices:
        return []
    lines = [shorten(printable(line), _LONGEST) for line in sentences(found)]
    lines = [sentence(line) if line.startswith(_WORDS) else line for line in lines]
    rows = nodes_of(found)
    if len(rows) > MOST_NODES:
        lines.append(f"This page shows {MOST_NODES} nodes at most; nodes.csv has all.")
    return [Section("nodes", "Nodes", tuple(lines), node_table(rows[:MOST_NODES]))]


def _provenance(visible: VisibleReport) -> list[Section]:
    return provenance_sections(visible.report.counted or visible.report.runs)


SECTIONS: tuple[Callable[[VisibleReport], list[Section]], ...] = (
    _cases, _runs, _options, _nodes, _provenance,
)  # fmt: skip
"""The parts behind the figure, in order."""


def _files(report: Report) -> dict[str, bytes]:
    from dlperf_hpc.reporting.writers.json import text

    return {
        "speedup.csv": csv_table(CASE_COLUMNS, report.case_rows),
        "runs.csv": csv_table(RUN_COLUMNS, report.run_rows),
        "report.json": text(report).encode(),
    }


HOW_TO_READ = (
    "samples/s are samples through forward and backward in the timed window, over all devices, by "
    "the slowest rank's time; tokens/s are samples/s times the length of a sequence, so that "
    "padding counts.",
    "A figure of a case is the median of its runs that count. The confidence interval is of the "
    "median, by order statistics; its coverage is the true one, aimed at 95 %, which needs 6 runs.",
    "Speedup is a ratio of medians to the base of the same series; its interval goes from low / "
    "base high to high / base low. Efficiency is speedup / (devices / devices of the base).",
)
