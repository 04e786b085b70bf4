"""DLPerf's own result table, number for number, so that its published reports can be compared.

The rule, as its ``extract_*_logs*.py`` scripts apply it since August 2020:

1. the speed of a run, in samples/s over all devices, is rounded to 2 digits;
2. ``average_speed`` is the sum of the rounded speeds over their number, rounded to 2 digits;
3. ``median_speed`` is the median of the rounded speeds (the mean of the middle two if their number
   is even), rounded to 2 digits;
4. ``speedup`` is median / median of ``1n1g``, both as rounded, rounded to 2 digits.

"Rounded to 2 digits" is NumPy's way everywhere: multiply by 100, round half to even, divide by 100.
Python's own ``round`` may differ by 0.01 in a half-way cell (23.645), and of the 13 such cells in
DLPerf's published tables 11 follow NumPy. A check against such a cell should allow 0.01.

One thing is not as in the scripts: with no ``1n1g`` they print speedup 1.0 and invent a 1n1g, and a
run without a number enters as 0 or NaN. Here the speedup is None with a reason, and a topology
without runs is absent.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dlperf_hpc.analysis.speedup import chosen, series_name
from dlperf_hpc.model.result import RunResult

BASE = "1n1g"


@dataclass(frozen=True)
class DlperfCell:
    """One topology of DLPerf's table; speeds in samples/s over all devices."""

    average_speed: float
    batch_size_per_device: int | None
    median_speed: float
    speedup: float | None


@dataclass(frozen=True)
class DlperfTable:
    """One model's table; ``reasons`` say what is missing from it and why."""

    model: str
    cells: Mapping[str, DlperfCell]
    reasons: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, dict[str, dict[str, Any]]]:
        """What DLPerf writes as ``<batch size>_result.json``, keys in its order."""
        return {self.model: {name: dict(vars(cell)) for name, cell in self.cells.items()}}


def round2(value: float) -> float:
    """To 2 digits as ``numpy.round`` does: x 100, half to even, / 100."""
    return round(value * 100) / 100


def dlperf_table(
    model: str,
    batch_size: int | None,
    speeds: Mapping[str, Mapping[int, float]],
    average_digits: int = 2,
) -> DlperfTable:
    """The table of ``{topology: {repeat: samples/s}}``; topologies in the order given. Some scripts
    round ``average_speed`` to other than 2 digits: ``average_digits``.

    ValueError for a speed that is not positive and finite (the scripts would average it in).
    """
    rounded = {name: _rounded(name, runs) for name, runs in speeds.items()}
    medians = {name: round2(statistics.median(v)) for name, v in rounded.items() if v}
    reasons = [f"{name}: no runs" for name, values in rounded.items() if not values]
    base = medians.get(BASE)
    if medians and base is None:
        reasons.append(f"no speedup: there is no {BASE}")
    elif base == 0:
        reasons.append(f"no speedup: the median of {BASE} rounds to 0")
    cells, shift = {}, 10.0**average_digits
    for name, median in medians.items():
        average = round(sum(rounded[name]) / len(rounded[name]) * shift) / shift
        speedup = round2(median / base) if base else None
        cells[name] = DlperfCell(average, batch_size, median, speedup)
    return DlperfTable(model, cells, tuple(reasons))


def _rounded(name: str, runs: Mapping[int, float]) -> list[float]:
    for repeat, speed in runs.items():
        if not (math.isfinite(speed) and speed > 0):
            raise ValueError(f"{name}, run {repeat}: {speed!r} is not a speed; leave the run out")
    return list(map(round2, runs.values()))


def dlperf_tables(results: Sequence[RunResult]) -> dict[str, DlperfTable]:
    """One table per series: DLPerf's JSON has no key for precision, batch size or options."""
    speeds: dict[str, dict[str, dict[int, float]]] = {}
    batch_sizes: dict[str, tuple[str, int | None]] = {}
    for result in chosen(results):
        case = result.run.case
        name = series_name(case, result.sweep)
        batch_sizes[name] = (case.model, case.batch_size)
        runs = speeds.setdefault(name, {}).setdefault(str(case.topology), {})
        value = result.samples_per_s
        if value is not None:
            runs[result.run.repeat] = value
    return {name: dlperf_table(*batch_sizes[name], speeds[name]) for name in speeds}
