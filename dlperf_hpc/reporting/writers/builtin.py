"""Every file but Markdown: for programs (CSV, JSON, Parquet, SQLite, JUnit), the page, the picture.
What page and picture take is imported only when they are made."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dlperf_hpc.analysis.speedup import series_name
from dlperf_hpc.errors import LedgerError
from dlperf_hpc.model.result import RunResult, Status
from dlperf_hpc.reporting.contents import Report, json_text
from dlperf_hpc.reporting.csv_columns import CASE_COLUMNS, RUN_COLUMNS
from dlperf_hpc.reporting.table import Column, JunitCase, csv_table, frame, junit, number, rows
from dlperf_hpc.reporting.writers import Writer
from dlperf_hpc.reporting.writers.markdown import PICTURE, picture

PAGE = "report.html"
VECTORS = "speedup.svg"


def page(report: Report) -> bytes:
    """The report as one page."""
    from dlperf_hpc.reporting.page import render
    from dlperf_hpc.reporting.page.report_page import page as page_of

    return render(page_of(report))


def vectors(report: Report) -> bytes | None:
    """The picture in lines and letters, for papers and slides; None if no run counts."""
    from dlperf_hpc.reporting.picture import picture

    return picture(report, "svg")


def _nodes(report: Report) -> bytes | None:
    found = report.nodes
    if not found.several:
        return None
    from dlperf_hpc.reporting.node_tables import NODE_COLUMNS, nodes_of

    return csv_table(NODE_COLUMNS, rows(NODE_COLUMNS, nodes_of(found)))


def _parquet(columns: Sequence[Column[Any]], made: Sequence[Mapping[str, Any]]) -> bytes:
    if importlib.util.find_spec("pyarrow") is None:
        raise LedgerError(
            "Parquet files need pyarrow, which is not installed: pip install pyarrow, or leave"
            " --parquet out and remove the Parquet files of an earlier report"
        )
    return bytes(frame(columns, made).to_parquet(index=False))


def database(report: Report) -> bytes:
    """The tables ``speedup`` and ``runs`` of one SQLite database."""
    import sqlite3
    import tempfile

    # A file, not memory: SQLite before 3.36 serializes only where it was built so.
    with tempfile.TemporaryDirectory(prefix="dlperf-") as scratch:
        file = Path(scratch, "report.sqlite")
        with contextlib.closing(sqlite3.connect(file)) as made:
            frame(CASE_COLUMNS, report.case_rows).to_sql("speedup", made, index=False)
            frame(RUN_COLUMNS, report.run_rows).to_sql("runs", made, index=False)
        return file.read_bytes()


def tests(report: Report) -> bytes:
    """A test for each run: one that is ok passes, one that has not ended is skipped."""
    return junit(report.name, list(map(_test, report.runs)))


def _test(result: RunResult) -> JunitCase:
    text = result.status.value
    if result.reason:
        text += f": {result.reason}"
    failed = result.status.finished and result.status is not Status.OK
    speed = result.samples_per_s
    return JunitCase(
        group=series_name(result.run.case, result.sweep),
        name=f"{result.run.case.topology} repeat {result.run.repeat} attempt {result.attempt}",
        failure=text * failed,
        skipped=text * (not result.status.finished),
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
        "json",
        "the whole report for programs",
        {"report.json": lambda report: json_text(report).encode()},
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
