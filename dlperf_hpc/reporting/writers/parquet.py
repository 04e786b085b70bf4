"""``speedup.parquet`` and ``runs.parquet``: the tables of the CSVs with their types."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

from dlperf_hpc.errors import LedgerError
from dlperf_hpc.reporting.columns import CASE_COLUMNS, RUN_COLUMNS, Column, frame
from dlperf_hpc.reporting.writers import Writer


def _parquet(columns: Sequence[Column[Any]], rows: Sequence[Mapping[str, Any]]) -> bytes:
    if importlib.util.find_spec("pyarrow") is None:
        raise LedgerError(
            "Parquet files need pyarrow, which is not installed: pip install pyarrow, or leave"
            " --parquet out and remove the Parquet files of an earlier report"
        )
    return bytes(frame(columns, rows).to_parquet(index=False))


WRITER = Writer(
    "parquet",
    "the tables for dataframes; pyarrow is needed",
    {
        "speedup.parquet": lambda report: _parquet(CASE_COLUMNS, report.case_rows),
        "runs.parquet": lambda report: _parquet(RUN_COLUMNS, report.run_rows),
    },
)
