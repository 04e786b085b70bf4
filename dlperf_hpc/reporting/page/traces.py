"""The iterations of a run for the page, thinned: from its record, else from its log.

Both may be somebody else's, and of any size and content: what does not fit is no trace.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any

from dlperf_hpc.errors import LogError
from dlperf_hpc.model.result import RunResult
from dlperf_hpc.records.logfile import read_log
from dlperf_hpc.records.record import read_record

MOST_POINTS = 60
"""Of a run; a point covers several iterations where the window has more."""

_MOST_TIMES = 5_000_000


def trace_of(result: RunResult) -> dict[str, Any] | None:
    """What is drawn of a run's iterations, ms: of each point the last iteration that it covers,
    the slowest rank's longest time, and p5 and p95 over ranks and iterations. ``slowest`` names the
    rank that took longest over the window. None if neither record nor log beside it has times.
    """
    if not result.log or result.window is None:
        return None
    ranks = _of_record(result)
    if ranks is not None:
        columns = list(zip(*ranks))
        first = result.window.warmup + 1
        return _thinned(first, columns) | {"slowest": _slowest(result, ranks), "ranks": len(ranks)}
    times = _of_log(result)
    if not times:
        return None
    numbers = sorted(times)
    return _thinned(numbers[0], [(times[n],) for n in numbers]) | {"last": numbers[-1]}


def _of_record(result: RunResult) -> list[list[float]] | None:
    """The times of each rank's iterations."""
    if not result.log.endswith(".log"):
        return None
    try:
        record = read_record(Path(result.log).with_suffix(".json"))
    except (LogError, ValueError):
        return None
    if record is None or record.get("attempt") != result.attempt:
        return None
    detail = record.get("detail")
    ranks = detail.get("rank_step_ms") if isinstance(detail, Mapping) else None
    if not isinstance(ranks, list) or not ranks or not all(map(_is_row, ranks)):
        return None
    if len({len(row) for row in ranks}) != 1 or len(ranks) * len(ranks[0]) > _MOST_TIMES:
        return None
    return ranks


def _is_row(row: Any) -> bool:
    return isinstance(row, list) and bool(row) and all(map(_is_time, row))


def _is_time(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value) and value >= 0


def _of_log(result: RunResult) -> dict[int, float]:
    """The slowest rank's times, by the numbers of the iterations that the log has."""
    try:
        lines = read_log(Path(result.log)).iterations
    except (LogError, ValueError):
        return {}
    told = ((line.get("n"), line.get("ms")) for line in lines[:_MOST_TIMES])
    return {n: ms for n, ms in told if type(n) is int and ms is not None and _is_time(ms)}


def _thinned(first: int, columns: Sequence[Sequence[float]]) -> dict[str, Any]:
    width = math.ceil(len(columns) / MOST_POINTS)
    parts = [columns[at : at + width] for at in range(0, len(columns), width)]
    points: dict[str, list[float]] = {"slow": [], "low": [], "high": []}
    for part in parts:
        times = sorted(value for column in part for value in column)
        low, high = _p5_p95(times)
        for name, value in (("slow", times[-1]), ("low", low), ("high", high)):
            points[name].append(_four_digits(value))
    return {"first": first, "last": first + len(columns) - 1, "width": width, **points}


def _p5_p95(times: Sequence[float]) -> tuple[float, float]:
    if len(times) < 2:
        return times[0], times[0]
    cuts = quantiles(times, n=20, method="inclusive")
    return cuts[0], cuts[-1]


def _four_digits(value: float) -> float:
    return float(f"{value:.4g}")


def _slowest(result: RunResult, ranks: Sequence[Sequence[float]]) -> str:
    """``rank 3 on n7``: the host stands there if the log names it."""
    if len(ranks) < 2:
        return ""
    slowest = max(range(len(ranks)), key=lambda rank: sum(ranks[rank]))
    lines = result.facts.get("ranks")
    hosts = [
        line.get("host")
        for line in (lines if isinstance(lines, list) else [])
        if isinstance(line, Mapping) and line.get("rank") == slowest
    ]
    return f"rank {slowest}" + (f" on {hosts[0]}" if hosts and hosts[0] else "")
