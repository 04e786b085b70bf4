"""``report.sqlite``: the tables ``speedup`` and ``runs`` of one SQLite database."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from pathlib import Path

from dlperf_hpc.reporting.columns import CASE_COLUMNS, RUN_COLUMNS, frame
from dlperf_hpc.reporting.report import Report
from dlperf_hpc.reporting.writers import Writer


def database(report: Report) -> bytes:
    """The file's content."""
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


WRITER = Writer("sqlite", "the tables for SQL", {"report.sqlite": database})
