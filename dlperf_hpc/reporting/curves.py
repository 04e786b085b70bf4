"""What a run has over time, in at most 60 points: its loss, and utilisation and clock of its GPUs.

Losses of another program's log were kept when it was read; all else is read from the run's own log,
which may be somebody else's: what does not fit is no curve. Of many runs the first repeats of all
cases have curves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from dlperf_hpc.model.checks import each, is_number, or_none
from dlperf_hpc.model.result import MOST_LOSSES, PROGRAM, RunResult
from dlperf_hpc.model.statistics import pieces

if TYPE_CHECKING:
    from dlperf_hpc.records.logfile import Timed

MOST_RUNS = 200
"""Of a report that have curves: page and ``report.json`` stay small, few logs are read twice."""

_MOST_SAMPLES = 1000  # of a device; a log of this version has 60
_MOST = 1e12  # of seconds, % and MHz: no sum of such is beyond a float
_VALUES = each(or_none(lambda value: is_number(value) and abs(value) <= _MOST))


@dataclass(frozen=True)
class Curve:
    """Values ``y`` at ``x`` (an iteration, or s since the window began); ``low`` and ``high`` are
    the ends over the devices, empty for one device."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True)
class CurveKind:
    """How people read a kind of curve: a title, its axes, and what a point is."""

    title: str
    x: str
    y: str
    about: str


_OF_GPUS = "Median of the devices' samples in a piece of the window; the area is the lowest to the"
KINDS: Mapping[str, CurveKind] = {
    "loss": CurveKind(
        "Loss", "iteration of the run", "loss",
        "Of more than 60 lines of the log's window, the last of each of 60 pieces.",
    ),
    "gpu_util": CurveKind(
        "Utilisation of the GPUs", "s since the window began", "time with a kernel running, %",
        f"{_OF_GPUS} highest of a device.",
    ),
    "gpu_sm_mhz": CurveKind(
        "Clock of the GPUs", "s since the window began", "SM clock, MHz",
        f"{_OF_GPUS} highest of a device.",
    ),
}  # fmt: skip
"""The curves that a run may have, by their names in ``report.json``."""


def runs_with_curves(runs: Sequence[RunResult]) -> list[RunResult]:
    """The runs that may have curves: of more than :data:`MOST_RUNS`, the first repeats."""
    return sorted(runs, key=lambda run: run.run.repeat)[:MOST_RUNS]


def curves_of(result: RunResult) -> dict[str, Curve]:
    """The curves of one run by the names of :data:`KINDS`; each has two points at least."""
    losses: Sequence[tuple[int, float]] = result.external.losses if result.external else ()
    timed, gpus = _timed(result), list[Mapping[str, Any]]()
    if timed is not None:
        gpus = [*timed.gpus]
        losses = losses or [part[-1] for part in pieces([*timed.losses.items()], MOST_LOSSES)]
    found = {
        "loss": Curve(tuple(n for n, _ in losses), tuple(digits(loss) for _, loss in losses)),
        "gpu_util": _over_devices(gpus, "util_at"),
        "gpu_sm_mhz": _over_devices(gpus, "sm_mhz_at"),
    }
    return {name: curve for name, curve in found.items() if len(curve.x) > 1}


def _timed(result: RunResult) -> Timed | None:
    """What the run's log has over time, if that is one of ours."""
    if not result.log or (result.window is None and PROGRAM not in result.facts):
        return None
    from dlperf_hpc.records.logfile import read_timed

    return read_timed(Path(result.log))


def _over_devices(gpus: Sequence[Mapping[str, Any]], name: str) -> Curve:
    """The devices' values in the order of their moments, in as many pieces as one device has."""
    devices = [points for gpu in gpus if (points := _points(gpu.get("at_s"), gpu.get(name)))]
    count = min(max(map(len, devices), default=1), MOST_LOSSES)
    parts = pieces(sorted(chain(*devices)), count)
    x = tuple(digits(fmean(at for at, _ in part)) for part in parts)
    ends = (min, max) if len(devices) > 1 else ()
    values = [[value for _, value in part] for part in parts]
    return Curve(x, *(tuple(digits(how(each)) for each in values) for how in (median, *ends)))


def _points(moments: Any, values: Any) -> list[tuple[float, float]]:
    """The points of a device's line that have a value; none if the lists do not fit."""
    fit = _VALUES(moments) and _VALUES(values) and len(moments) == len(values) <= _MOST_SAMPLES
    if not fit:
        return []
    return [(at, value) for at, value in zip(moments, values) if None not in (at, value)]


def digits(value: float, count: int = 5) -> float:
    """The value to so many significant digits."""
    return float(f"{value:.{count}g}")


def curves_json(
    runs: Sequence[RunResult], curves: Mapping[int, Mapping[str, Curve]]
) -> list[dict[str, Any]]:
    """The curves of the runs that have some, as plain JSON values."""
    return [
        {"run": run.run.id, "sweep": run.sweep or None, **{k: vars(c) for k, c in of.items()}}
        for run in runs
        if (of := curves.get(id(run)))
    ]
