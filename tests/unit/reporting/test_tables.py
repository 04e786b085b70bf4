"""SQLite and Parquet hold what the CSVs hold, with types: read back by sqlite3 and by pandas."""

from __future__ import annotations

import contextlib
import csv
import math
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import pytest
from report_samples import bad, case, ok, oks, tokens

from dlperf_hpc.model.result import Checkpoint, RunResult, Status
from dlperf_hpc.reporting.contents import Report
from dlperf_hpc.reporting.csv_columns import CASE_COLUMNS, RUN_COLUMNS
from dlperf_hpc.reporting.table import Column
from dlperf_hpc.reporting.writers import write_report

TABLES: dict[str, tuple[Column[Any], ...]] = {"speedup": CASE_COLUMNS, "runs": RUN_COLUMNS}
ODD = "=1+1; \"quoted\", 'single', \N{SNOWMAN} and\ta tab; DROP TABLE runs"
SQL_TYPES = {"text": "TEXT", "integer": "INTEGER", "number": "REAL", "boolean": "INTEGER"}
PANDAS_TYPES = {"integer": "Int64", "number": "Float64", "boolean": "boolean"}


def results() -> list[RunResult]:
    """Cells of every kind and none: whole numbers beside empty cells, true, false and neither,
    figures of many digits, text that means something elsewhere."""
    few, many = case("1n1g"), case("2n8g", tags=("compile",), precision="bf16")
    measured = replace(ok(few, 4, 100 / 3), checkpoint=Checkpoint(2.5, 0.7, 106_400_123, 2))
    return [
        *oks(few, 147.81, 143.61, 1e-7),
        measured,
        ok(many, 1, 2**40 / 3, steady=False),
        ok(many, 2, 900.0, loss_last=float("nan"), skipped_steps=3),
        bad(many, 3, Status.FAILED, ODD),
        bad(case("4n8g"), 1, Status.TIMEOUT),
        *tokens("1n8g", 81_920.25, 2**50 / 3),
    ]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    report = Report("odd", results(), None)
    paths = write_report(tmp_path, report, ["csv", "sqlite", "parquet"])
    assert {path.name for path in paths} == {
        *("speedup.csv", "runs.csv", "report.sqlite", "speedup.parquet", "runs.parquet"),
    }
    return tmp_path


def expected(directory: Path, name: str) -> tuple[list[str], list[list[Any]]]:
    """The CSV's columns, and its cells as values of their kinds."""
    with open(directory / f"{name}.csv", newline="", encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    kinds = [column.kind for column in TABLES[name]]
    assert head == [column.name for column in TABLES[name]] and len(rows) > 2
    return head, [[_value(cell, kind) for cell, kind in zip(row, kinds)] for row in rows]


def _value(cell: str, kind: str) -> Any:
    if kind == "text":
        return cell.removeprefix("'")  # which keeps spreadsheets from computing it
    if cell == "":
        return None
    if kind == "boolean":
        return {"true": True, "false": False}[cell]
    return int(cell) if kind == "integer" else float(cell)


def same(found: Sequence[Sequence[Any]], rows: list[list[Any]], name: str) -> None:
    """Cell by cell, types too; an empty text is as good as none, as in the CSV."""
    assert len(found) == len(rows)
    for there, row in zip(found, rows):
        for column, cell, value in zip(TABLES[name], there, row):
            missing = cell is None or cell is pandas.NA
            ours = None if missing else cell
            if column.kind == "text":
                assert (ours or "") == value, column.name
            else:
                assert ours == value, (column.name, ours, value)
                assert ours is None or (isinstance(ours, (int, float)) and math.isfinite(ours))


@pytest.mark.parametrize("name", TABLES)
def test_sqlite(written: Path, name: str) -> None:
    head, rows = expected(written, name)
    with contextlib.closing(sqlite3.connect(written / "report.sqlite")) as database:
        columns = database.execute(f"PRAGMA table_info({name})").fetchall()
        found = database.execute(f"SELECT * FROM {name}").fetchall()
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        kinds = {
            column.name: database.execute(
                f'SELECT DISTINCT typeof("{column.name}") FROM {name}'
            ).fetchall()
            for column in TABLES[name]
        }
    assert [(column[1], column[2]) for column in columns] == [
        (column.name, SQL_TYPES[column.kind]) for column in TABLES[name]
    ]
    assert [column[1] for column in columns] == head
    same(found, rows, name)
    for column in TABLES[name]:
        stored = {kind for (kind,) in kinds[column.name]} - {"null"}
        assert stored <= {SQL_TYPES[column.kind].lower()}, column.name


@pytest.mark.parametrize("name", TABLES)
def test_parquet(written: Path, name: str) -> None:
    head, rows = expected(written, name)
    table = pandas.read_parquet(written / f"{name}.parquet")
    assert list(table.columns) == head
    for column in TABLES[name]:
        if column.kind == "text":
            assert pandas.api.types.is_string_dtype(table[column.name]), column.name
        else:
            assert str(table[column.name].dtype) == PANDAS_TYPES[column.kind], column.name
    cells = table.astype(object).where(table.notna(), None)
    same(cells.to_numpy().tolist(), rows, name)


def test_what_was_odd_is_in_all_of_them(written: Path) -> None:
    with contextlib.closing(sqlite3.connect(written / "report.sqlite")) as database:
        ((reason,),) = database.execute(
            "SELECT reason FROM runs WHERE status = 'failed'"
        ).fetchall()
    table = pandas.read_parquet(written / "runs.parquet")
    (again,) = table[table["status"] == "failed"]["reason"]
    assert reason == again and "DROP TABLE runs" in reason and reason.startswith("=1+1")
    steady = list(table["steady"].astype(object).where(table["steady"].notna(), None))
    assert {True, False, None} == set(steady)
    assert table["checkpoint_save_s"].notna().sum() == 1
