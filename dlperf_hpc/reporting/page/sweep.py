"""The page of a report, put together: head (:mod:`.head`), figure (:mod:`.drawn`) with its data
(:mod:`.data`), and the tables.

:data:`SECTIONS` are the parts behind the figure, in order: a function from what is shown to
sections, none where there is nothing to show. Another table of the report is one more of them.
"""

from __future__ import annotations

from collections.abc import Callable
from textwrap import shorten

from dlperf_hpc.errors import printable
from dlperf_hpc.reporting.columns import CASE_COLUMNS, RUN_COLUMNS
from dlperf_hpc.reporting.nodes import nodes_of, sentences
from dlperf_hpc.reporting.page import Page, Section
from dlperf_hpc.reporting.page.data import data_of
from dlperf_hpc.reporting.page.drawn import figure_of
from dlperf_hpc.reporting.page.head import counts, facts, missing, remarks
from dlperf_hpc.reporting.page.provenance import provenance_sections
from dlperf_hpc.reporting.page.shown import MOST_FILES, Shown, filters, key_values, sentence
from dlperf_hpc.reporting.report import Report
from dlperf_hpc.reporting.table import csv_table
from dlperf_hpc.reporting.tables import RunRow, case_table, node_table, option_table, run_table

MOST_NODES = 1000
"""Nodes that the page shows, the slow ones first; ``nodes.csv`` has all."""

_LONGEST = 500  # characters of a sentence on nodes, which may name hundreds
_WORDS = ("slow: ", "no node ", "no rank", "to be sure", "to leave out")  # else a node's name


def page(report: Report) -> Page:
    """The page of one sweep, or of logs below some paths."""
    shown = Shown(report)
    files = _files(report)
    return Page(
        kind="report",
        title=printable(report.name),
        subtitle="Throughput and scaling",
        facts=facts(shown),
        counts=counts(report),
        remarks=remarks(report),
        missing=missing(shown, files),
        figure=figure_of(shown),
        sections=tuple(made for make in SECTIONS for made in make(shown)),
        filters=filters(map(key_values, shown.cases)),
        data=data_of(shown),
        files={name: content for name, content in files.items() if len(content) <= MOST_FILES * 8},
        how_to_read=HOW_TO_READ,
    )


def _cases(shown: Shown) -> list[Section]:
    if not shown.cases:
        return []
    table, left_out = case_table(shown.cases)
    lines = [f"Not measured in any case: {', '.join(left_out)}."] if left_out else []
    if len(shown.series) == 1:
        lines.insert(0, f"All cases are of the series {printable(shown.series[0])}.")
    return [Section("cases", "Cases", tuple(lines), table)]


def _runs(shown: Shown) -> list[Section]:
    if not shown.runs:
        return []
    rows = [
        RunRow(run, shown.place_of(run), place in shown.counted)
        for place, run in enumerate(shown.runs)
    ]
    line = "The button of a run opens its iterations and what its log tells."
    return [Section("runs", "Runs", (line,), run_table(rows))]


def _options(shown: Shown) -> list[Section]:
    if not shown.report.option_pairs:
        return []
    line = "Cases that differ in one option, side by side: what the option changes."
    table = option_table(shown.report.option_pairs)
    return [Section("options", "One option switched on", (line,), table)]


def _nodes(shown: Shown) -> list[Section]:
    """Where there are several nodes, or ranks tell their own times, as in ``nodes.csv``."""
    found = shown.report.nodes
    nodes = {node for effect in found.effects for node in effect.nodes}
    if len(nodes) < 2 and not found.devices:
        return []
    lines = [shorten(printable(line), _LONGEST) for line in sentences(found)]
    lines = [sentence(line) if line.startswith(_WORDS) else line for line in lines]
    rows = nodes_of(found)
    if len(rows) > MOST_NODES:
        lines.append(f"This page shows {MOST_NODES} nodes at most; nodes.csv has all.")
    return [Section("nodes", "Nodes", tuple(lines), node_table(rows[:MOST_NODES]))]


def _provenance(shown: Shown) -> list[Section]:
    return provenance_sections(shown.report.counted or shown.report.runs)


SECTIONS: tuple[Callable[[Shown], list[Section]], ...] = (
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
