"""Summaries and runs as pandas tables with the columns of :mod:`.columns`, and as CSV."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from dlperf_hpc.analysis.speedup import CaseSummary
from dlperf_hpc.records.results import RunResult
from dlperf_hpc.reporting.columns import CASE_COLUMNS, RUN_COLUMNS, Column, rows

if TYPE_CHECKING:
    from pandas import DataFrame

Row = TypeVar("Row")

# the nullable types: an empty cell among integers must not turn 5 into 5.0, nor false into 0
_DTYPES = {"text": "string", "integer": "Int64", "number": "Float64", "boolean": "boolean"}


def case_frame(summaries: Sequence[CaseSummary]) -> DataFrame:
    """One row per case with the columns ``CASE_COLUMNS``, in the order given; NA where unknown."""
    return _frame(CASE_COLUMNS, summaries)


def run_frame(results: Sequence[RunResult]) -> DataFrame:
    """One row per result with the columns ``RUN_COLUMNS``; runs that failed are rows too.

    Figures are NA unless the run counts: status ok, with a positive finite throughput.
    """
    return _frame(RUN_COLUMNS, results)


def _frame(columns: Sequence[Column[Row]], items: Sequence[Row]) -> DataFrame:
    import pandas as pd

    names = [column.name for column in columns]
    # by way of object: from None and 5 pandas would otherwise make 5.0
    frame = pd.DataFrame(rows(columns, items), columns=names, dtype=object)
    return frame.astype({column.name: _DTYPES[column.kind] for column in columns})


def csv_text(frame: DataFrame) -> str:
    """RFC 4180 with ``\\n`` line ends; full precision, empty cells for NA, true/false."""
    frame = frame.copy()
    for name in frame.columns:
        if str(frame[name].dtype) == "boolean":
            frame[name] = frame[name].map({True: "true", False: "false"}).astype("string")
    return str(frame.to_csv(index=False, lineterminator="\n"))


def write_csv(frame: DataFrame, path: Path) -> None:
    """Write ``frame`` atomically; LedgerError naming the path if it cannot be written."""
    from dlperf_hpc.reporting.write import write_atomic

    write_atomic(path, csv_text(frame).encode())
