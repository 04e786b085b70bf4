"""The report of a sweep as files: two CSVs, JSON, Markdown and a plot, each written atomically."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlperf_hpc.analysis.dlperf_rule import dlperf_tables
from dlperf_hpc.analysis.flags import FLAGS
from dlperf_hpc.analysis.option_pairs import Switch, switches
from dlperf_hpc.analysis.speedup import CaseSummary, summarise
from dlperf_hpc.analysis.statistics import TARGET_COVERAGE
from dlperf_hpc.errors import LedgerError
from dlperf_hpc.records.files import write_atomically
from dlperf_hpc.records.results import RunResult
from dlperf_hpc.reporting.columns import CASE_COLUMNS, RUN_COLUMNS, rows
from dlperf_hpc.reporting.markdown import markdown_report
from dlperf_hpc.reporting.plot import speedup_png
from dlperf_hpc.reporting.tables import case_frame, csv_text, run_frame

if TYPE_CHECKING:
    from pandas import DataFrame

SCHEMA = "dlperf-report/1"
PICTURE = "speedup.png"


def write_report(
    directory: Path,
    sweep_name: str,
    results: Sequence[RunResult],
    base: str | None = None,
    source_note: str = "",
    *,
    accelerator: str | None = None,
    unread: Sequence[str] = (),
    unrecognised: Sequence[str] = (),
    parquet: bool = False,
    sqlite: bool = False,
) -> list[Path]:
    """Write speedup.csv, runs.csv, report.json, report.md and speedup.png; return their paths.

    With ``parquet`` and ``sqlite`` the two tables also as ``speedup.parquet`` and ``runs.parquet``,
    and as tables of ``report.sqlite``. ``unread`` goes into report.json and report.md,
    ``unrecognised`` (files in no known format) into report.json;
    ``accelerator`` names the accelerator where the logs do not.

    ``base`` is the topology that speedup refers to (None: 1n1g); ``source_note`` says in one line
    what the figures come from. The same results give the same bytes. With no run that counts there
    is no picture, report.md says so, and one left by an earlier report is removed. ValueError if
    ``base`` is no topology; LedgerError if the directory cannot be written.
    """
    summaries = summarise(results, base, accelerator)
    png = speedup_png(summaries, results, sweep_name)
    picture = PICTURE if png else None
    report = report_json(sweep_name, summaries, results, base, source_note)
    report.update(unread=list(unread), foreign=list(unrecognised))
    text = markdown_report(sweep_name, summaries, results, source_note, picture, unread)
    frames = {"speedup": case_frame(summaries), "runs": run_frame(results)}
    files = {
        **{f"{name}.csv": csv_text(frame).encode() for name, frame in frames.items()},
        "report.json": (json.dumps(report, indent=1, allow_nan=False) + "\n").encode(),
        "report.md": text.encode(),
    }
    if parquet:
        files.update({f"{name}.parquet": _parquet(frame) for name, frame in frames.items()})
    if sqlite:
        files["report.sqlite"] = _sqlite(frames)
    if png:
        files[PICTURE] = png
    else:
        _remove(directory / PICTURE)
    for name, data in files.items():
        write_atomic(directory / name, data)
    return [directory / name for name in files]


def _parquet(frame: DataFrame) -> bytes:
    if importlib.util.find_spec("pyarrow") is None:
        raise LedgerError("--parquet needs pyarrow, which is not installed: pip install pyarrow")
    return bytes(frame.to_parquet(index=False))


def _sqlite(frames: Mapping[str, DataFrame]) -> bytes:
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        for name, frame in frames.items():
            frame.to_sql(name, database, index=False)
        return database.serialize()


def report_json(
    sweep_name: str,
    summaries: Sequence[CaseSummary],
    results: Sequence[RunResult],
    base: str | None,
    source_note: str,
) -> dict[str, Any]:
    """The whole report as plain JSON values: null for what is not known, never NaN.

    Cases and runs have the names of the CSV columns; ``flags`` and ``notes`` are lists.
    ``switches`` are pairs of cases that differ in one option.
    ``dlperf`` holds, per series, the table as DLPerf's scripts round it, and what it lacks.
    """
    cases = rows(CASE_COLUMNS, summaries)
    for case, summary in zip(cases, summaries):
        case.update(flags=list(summary.flags), notes=list(summary.notes))
    used = {flag for summary in summaries for flag in summary.flags}
    return {
        "schema": SCHEMA,
        "sweep": sweep_name,
        "source": source_note,
        "base": base,
        "method": {
            "samples_per_s": "samples of the timed window / slowest rank's time, over all devices",
            "summary": "median of the runs that ended ok",
            "interval": "order statistics of the median, coverage stated",
            "target_coverage": TARGET_COVERAGE,
            "speedup": "ratio of medians to the base of the same series",
        },
        "flags": {flag: meaning for flag, meaning in FLAGS.items() if flag in used},
        "cases": cases,
        "runs": rows(RUN_COLUMNS, results),
        "switches": [_switch(switch) for switch in switches(summaries)],
        "dlperf": {
            series: {"result": table.to_dict(), "missing": list(table.reasons)}
            for series, table in dlperf_tables(results).items()
        },
    }


def _switch(switch: Switch) -> dict[str, Any]:
    ends = (switch.interval.low, switch.interval.high) if switch.interval else (None, None)
    return {
        "switch": switch.name,
        "off": switch.off.case.id,
        "on": switch.on.case.id,
        "ratio": switch.ratio,
        "ratio_low": ends[0],
        "ratio_high": ends[1],
        "memory_mb_change": switch.memory_mb,
        "gpu_util_off": switch.off.gpu_util,
        "gpu_util_on": switch.on.gpu_util,
    }


def write_atomic(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data`` in one step: a reader sees the old file or the new, whole.

    Creates the directory. LedgerError naming the path if it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)
    except OSError as error:
        raise LedgerError(f"{path}: cannot be written: {error.strerror}") from error


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise LedgerError(f"{path}: cannot be removed: {error.strerror}") from error
