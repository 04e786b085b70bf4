"""Every file but JSON and Markdown: tables for programs (CSV, Parquet, SQLite, JUnit), the page and
the picture. What page and picture take is imported only when they are made."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

from dlperf_hpc.analysis.speedup import series_name
from dlperf_hpc.errors import LedgerError
from dlperf_hpc.model.result import RunResult, Status
from dlperf_hpc.reporting.columns import CASE_COLUMNS, RUN_COLUMNS
from dlperf_hpc.reporting.nodes import NODE_COLUMNS, node_rows
from dlperf_hpc.reporting.report import Report
from dlperf_hpc.reporting.table import Column, Entry, csv_table, frame, junit
from dlperf_hpc.reporting.text import number
from dlperf_hpc.reporting.writers import Writer
from dlperf_hpc.reporting.writers.markdown import PICTURE, picture

PAGE = "report.html"
VECTORS = "speedup.svg"


def page(report: Report) -> bytes:
    """The report as one page."""
    from dlperf_hpc.reporting.page import render
    from dlperf_hpc.reporting.page.sweep import page as page_of

    return render(page_of(report))


def vectors(report: Report) -> bytes | None:
    """The picture in lines and letters, for papers and slides; None if no run counts."""
    from dlperf_hpc.reporting.picture import picture

    return picture(report, "svg")


def _nodes(report: Report) -> bytes | None:
    """Only where the runs were on several nodes, or tell the own times of their ranks."""
    found = report.nodes
    several = len({node for effect in found.effects for node in effect.nodes}) > 1
    return csv_table(NODE_COLUMNS, node_rows(found)) if several or found.devices else None


def _parquet(columns: Sequence[Column[Any]], rows: Sequence[Mapping[str, Any]]) -> bytes:
    if importlib.util.find_spec("pyarrow") is None:
        raise LedgerError(
            "Parquet files need pyarrow, which is not installed: pip install pyarrow, or leave"
            " --parquet out and remove the Parquet files of an earlier report"
        )
    return bytes(frame(columns, rows).to_parquet(index=False))


def database(report: Report) -> bytes:
    """The tables ``speedup`` and ``runs`` of one SQLite database."""
    import contextlib
    import sqlite3
    import tempfile
    from pathlib import Path

    tables = {
        "speedup": frame(CASE_COLUMNS, report.case_rows),
        "runs": frame(RUN_COLUMNS, report.run_rows),
    }
    # A file, not memory: Connection.serialize is not there on Python 3.10.
    with tempfile.TemporaryDirectory(prefix="dlperf-") as scratch:
        file = Path(scratch, "report.sqlite")
        with contextlib.closing(sqlite3.connect(file)) as made:
            for name, table in tables.items():
                table.to_sql(name, made, index=False)
        return file.read_bytes()


def tests(report: Report) -> bytes:
    """A test for each run: one that is ok passes, one that has not ended is skipped."""
    return junit(report.name, [_entry(result) for result in report.runs])


def _entry(result: RunResult) -> Entry:
    text = f"{result.status.value}: {result.reason}" if result.reason else result.status.value
    failed = result.status.finished and result.status is not Status.OK
    speed = result.samples_per_s
    return Entry(
        group=series_name(result.run.case, result.sweep),
        name=f"{result.run.case.topology} repeat {result.run.repeat} attempt {result.attempt}",
        failure=text if failed else "",
        skipped="" if result.status.finished else text,
        output="" if speed is None else f"{number(speed)} samples/s",
    )


WRITERS = (
    Writer(
        "csv",
        "tables with units and documented columns",
        {
            "speedup.csv": lambda report: csv_table(CASE_COLUMNS, report.case_rows),
            "runs.csv": lambda report: csv_table(RUN_COLUMNS, report.run_rows),
            "nodes.csv": _nodes,
        },
    ),
    Writer(
        "parquet",
        "the tables for dataframes; pyarrow is needed",
        {
            "speedup.parquet": lambda report: _parquet(CASE_COLUMNS, report.case_rows),
            "runs.parquet": lambda report: _parquet(RUN_COLUMNS, report.run_rows),
        },
    ),
    Writer("sqlite", "the tables for SQL", {"report.sqlite": database}),
    Writer("junit", "a test for each run, for CI servers", {"junit.xml": tests}),
    Writer("html", "a page to look at, offline", {PAGE: page}, frozenset({PAGE})),
    Writer(
        "png", "one picture of speedup and efficiency", {PICTURE: picture}, frozenset({PICTURE})
    ),
    Writer("svg", "the same picture in vectors", {VECTORS: vectors}, frozenset({VECTORS})),
)
