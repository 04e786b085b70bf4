"""The figure of a report's page: its quantities, what cases and runs measure of them, its menus,
and the picture for readers without scripts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dlperf_hpc.analysis.speedup import DEFAULT_BASE, CaseSummary
from dlperf_hpc.errors import printable
from dlperf_hpc.model.result import SAMPLES_PER_S, GpuUse, RunResult, Window, rates_of
from dlperf_hpc.model.statistics import Interval, Sample
from dlperf_hpc.reporting.page import Choice, Figure, Series, figure
from dlperf_hpc.reporting.page.limits import MOST_SERIES, VisibleReport
from dlperf_hpc.reporting.page.static_chart import picture_in_page
from dlperf_hpc.reporting.picture import Dot
from dlperf_hpc.reporting.text import number


@dataclass(frozen=True)
class Quantity:
    """``of`` is what cases and runs have; ``how`` the script makes a value of it. ``ideal``: a line
    through base and origin, a level, or none. ``form`` is d3's number format."""

    label: str
    axis: str
    of: str
    how: str
    ideal: str = ""
    form: str = ",.7~g"
    zero: bool = False


def quantities(visible: VisibleReport) -> dict[str, Quantity]:
    """What the menu offers, by name: what some case has."""
    found: dict[str, Quantity] = {}
    for unit in visible.units:
        found[unit] = Quantity(unit, f"{unit}, all devices", unit, "total", "line", zero=True)
    for unit in visible.units:
        label = f"{unit} per device"
        found[label] = Quantity(label, label, unit, "device", "flat")
    if any(case.base is not None for case in visible.cases) or len(visible.cases) > 1:
        speed = "speedup over the base"
        found["speedup"] = Quantity("speedup", speed, "", "speedup", "line", zero=True)
        found["efficiency"] = Quantity(
            "efficiency", "efficiency, share of ideal", "", "efficiency", "flat", ".1~%"
        )
    others = {
        "mfu": Quantity("MFU", "model FLOPS / peak of the device", "mfu", "total", form=".1~%"),
        "step": Quantity("step time", "median step time of a run, ms", "step", "total"),
        "joules": Quantity("J/sample", "J/sample, all devices", "joules", "total"),
        "memory": Quantity("memory", "peak memory of a device, MB", "memory", "total"),
    }
    for name, quantity in others.items():
        if any(name in measures_of_case(case) for case in visible.cases):
            found[name] = quantity
    return found


def measures_of_case(summary: CaseSummary) -> dict[str, tuple[float | None, ...]]:
    """By unit or name: median, and the ends of its interval where there is one."""
    found: dict[str, tuple[float | None, ...]] = {}
    for unit, sample in summary.samples.items():
        found[unit] = (sample.median, *_ends(sample.interval))
    rate = summary.samples.get(SAMPLES_PER_S)
    if summary.mfu is not None and rate is not None:
        low, high = _ends(rate.interval)
        found["mfu"] = (
            summary.mfu,
            _times(low, summary.mfu, rate),
            _times(high, summary.mfu, rate),
        )
    found["step"] = (summary.step_ms_p50, None, None)
    found["joules"] = (summary.joules_per_sample, None, None)
    found["memory"] = (summary.memory_mb, None, None)
    return {
        name: tuple(map(_short, values))
        for name, values in found.items()
        if values[0] is not None and math.isfinite(values[0])
    }


def _times(end: float | None, mfu: float, rate: Sample) -> float | None:
    """The MFU at an end of the interval of the throughput."""
    return None if end is None else mfu * end / rate.median


def _ends(interval: Interval | None) -> tuple[float | None, float | None]:
    return (None, None) if interval is None else (interval.low, interval.high)


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.7g}")


def measures_of_run(run: RunResult, summary: CaseSummary) -> dict[str, float]:
    """Those of one run, also of one that does not count but has a whole window."""
    found = {
        unit: rate for unit, rate in _rates_of(run).items() if math.isfinite(rate) and rate > 0
    }
    middle = summary.samples.get(SAMPLES_PER_S)
    if summary.mfu is not None and middle is not None and SAMPLES_PER_S in found:
        found["mfu"] = summary.mfu * found[SAMPLES_PER_S] / middle.median
    window = run.window or run.external
    if window is not None and window.memory_mb is not None:
        found["memory"] = window.memory_mb
    if run.window is not None:
        found |= _measures_of_window(run.window, run.gpu)
    return {name: float(f"{value:.7g}") for name, value in found.items() if math.isfinite(value)}


def _rates_of(run: RunResult) -> Mapping[str, float]:
    """Its throughputs, by unit; of a run that does not count those of its whole window."""
    if run.rates:
        return run.rates
    if run.window is not None and run.window.elapsed_s > 0:
        return rates_of(run.window.samples_per_s, run.run.case.seq_len)
    return {} if run.external is None else run.external.rates


def _measures_of_window(window: Window, gpu: GpuUse | None) -> dict[str, float]:
    found = {}
    if window.step_ms_p50 > 0:
        found["step"] = window.step_ms_p50
    if gpu is not None and gpu.joules is not None and window.samples:
        found["joules"] = gpu.joules / window.samples
    return found


def figure_of(visible: VisibleReport) -> Figure:
    """The figure with its menus; a sentence where no run counts."""
    report = visible.report
    title = "Scaling"
    if not report.counted:
        return Figure(title, "", empty="No run counts yet, so that there is nothing to draw.")
    devices = sorted({case.case.topology.devices for case in visible.cases})
    pairs = ((str(case.case.topology), case) for case in visible.cases if case.samples)
    topologies = dict(sorted(pairs, key=lambda pair: pair[1].case.topology.devices))
    bases = {name: name for name in topologies}
    if not visible.base:
        bases = {"": f"none ({report.base or DEFAULT_BASE} has no run)", **bases}
    axes = {"log": "log2", "linear": "linear"}
    labels = {name: each.label for name, each in quantities(visible).items()}
    linear = len(devices) < 2
    return Figure(
        title=title,
        caption="Large marks are medians, bars their confidence intervals, small dots single runs. "
        "Hollow dots are runs that do not count; a cross at the lower edge is a run without a "
        "number. Dashed: the base scaled ideally, through the origin.",
        still=_still(visible),
        still_caption=_still_caption(visible),
        specs={
            "scaling": figure.scaling(len(visible.series), devices),
            "trace": figure.trace(),
        },
        menus=(
            Choice("quantity", "Quantity", labels, next(iter(labels))),
            Choice("base", "Base", bases, visible.base),
            Choice("x", "Devices", axes, "linear" if linear else "log"),
            Choice("y", "Scale", axes, "linear" if linear else "log"),
        ),
        series=tuple(
            Series(printable(name), figure.colour_of(place), figure.mark_of(place).path)
            for place, name in enumerate(visible.series)
        ),
        most_series=MOST_SERIES,
    )


def _still(visible: VisibleReport) -> str:
    """The picture for readers without scripts: of the first series."""
    runs: dict[tuple[str, str], list[Dot]] = {}
    for place, run in enumerate(visible.runs):
        summary = visible.cases[visible.place_of(run)]
        speed = measures_of_run(run, summary).get(summary.unit)
        if speed is not None:
            counts = place in visible.counted
            dot = Dot(speed, _title(run, f"{number(speed)} {summary.unit}", counts), counts)
            runs.setdefault((run.sweep, run.run.case.id), []).append(dot)
    return picture_in_page(visible.report, visible.series[:MOST_SERIES], runs)


def _title(run: RunResult, speed: str, counts: bool) -> str:
    why = "counts"
    if not counts:
        why = f"does not count: {run.status.value} {run.reason}".strip()
    return printable(f"{run.run.id}: {speed} ({why})")


def _still_caption(visible: VisibleReport) -> str:
    left = len(visible.series) - MOST_SERIES
    if left <= 0:
        return ""
    return f"{MOST_SERIES} of {len(visible.series)} series are drawn; the tables have all."
