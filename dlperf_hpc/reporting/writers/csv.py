"""``speedup.csv``, ``runs.csv``, ``nodes.csv``: RFC 4180, ``\\n`` at line ends (docs/csv.md)."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dlperf_hpc.reporting.columns import CASE_COLUMNS, RUN_COLUMNS, Column
from dlperf_hpc.reporting.nodes import NODE_COLUMNS, node_rows
from dlperf_hpc.reporting.report import Report
from dlperf_hpc.reporting.writers import Writer

_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def _text(value: str) -> str:
    """A spreadsheet would compute a log's ``=HYPERLINK(...)``; one that begins with ' is a text."""
    return f"'{value}" if value.startswith(_FORMULA) else value


# An integer among numbers is written as they are: 5 as 5.0.
_AS_TEXT: Mapping[str, Callable[[Any], Any]] = {
    "text": _text,
    "integer": int,
    "number": float,
    "boolean": {True: "true", False: "false"}.__getitem__,
}


def table(columns: Sequence[Column[Any]], rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Rows by column name as CSV: full precision, empty cells for None, true and false."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    names = [column.name for column in columns]
    kinds = [_AS_TEXT[column.kind] for column in columns]
    writer.writerow(names)
    for row in rows:
        cells = ((kind, row[name]) for kind, name in zip(kinds, names))
        writer.writerow(["" if cell is None else kind(cell) for kind, cell in cells])
    return stream.getvalue().encode()


def _nodes(report: Report) -> bytes | None:
    """Only where the runs were on several nodes, or tell the own times of their ranks."""
    found = report.nodes
    several = len({node for effect in found.effects for node in effect.nodes}) > 1
    return table(NODE_COLUMNS, node_rows(found)) if several or found.devices else None


WRITER = Writer(
    "csv",
    "tables with units and documented columns",
    {
        "speedup.csv": lambda report: table(CASE_COLUMNS, report.case_rows),
        "runs.csv": lambda report: table(RUN_COLUMNS, report.run_rows),
        "nodes.csv": _nodes,
    },
)
