"""The picture of a report: how each series scales, against devices.

At the left is efficiency, at the right throughput per device, in samples/s, tokens/s or both; where
nothing scales, throughput. Every run is a dot, every median a marker with its interval, and the
ideal is one grey line. Thin lines join the medians of a series only to lead the eye: between two
topologies nothing was measured (Hoefler & Belli, SC'15, rules 11 and 12). Axes are linear, and
begin at 0 unless all values lie close together. Where lines end stand the names of their series,
moved apart where they would touch. Many series are parted into rows of panels by one key.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from dlperf_hpc.analysis.speedup import CaseSummary, chosen
from dlperf_hpc.errors import printable
from dlperf_hpc.model.case import value_at
from dlperf_hpc.model.statistics import Interval
from dlperf_hpc.reporting.contents import Report
from dlperf_hpc.reporting.page import dash_of, grouped, mark_of
from dlperf_hpc.reporting.page.visible import (
    Panels,
    first_colours,
    panels_at_first,
    panels_by,
    short_names,
)
from dlperf_hpc.reporting.table import common_beginning, interval_text, number, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Dot:
    """A run by its throughput, with the title of its mark; hollow where it does not count."""

    speed: float
    title: str = ""
    counts: bool = True


Runs = Mapping[tuple[str, str], Sequence[Dot]]
"""Runs by sweep and case."""

MOST_STILL = 48
"""Series in one picture."""
NEAR = 0.6
"""Where all values are above this share of the largest, an axis does not begin at 0."""
_LONGEST = 40  # characters of the devices' name
_POINT_WIDTH = 16.0  # points (1/72 inch) that all series' markers at one device count share
_MARKER_SIZE, _CAP_SIZE, _SPOT_SIZE = 5, 5, 2.5  # points
_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 12.0, 0.95, 0.12, 0.62, 0.55  # inches
_GAP_ACROSS, _GAP_DOWN = 0.85, 0.42  # inches between panels
_ALONE, _IN_ROWS = 4.83, 2.9  # inches: the height of a panel
_LETTER, _LINE = 0.056, 0.13  # inches that a letter and a line of a label take
_BESIDE, _MOST_ROOM = 0.35, 0.45  # inches before labels; share of a panel for them
_LEAST_SPAN = 0.1  # of the largest value, that a fitted axis covers

# names come from logs: a $ in one is a dollar, not mathematics
SETTINGS = {"text.parse_math": False, "svg.hashsalt": "dlperf", "svg.fonttype": "none"}


def from_zero(values: Sequence[float]) -> bool:
    """Whether an axis with these values begins at 0: not where that would hide how they differ."""
    return not values or min(values) < NEAR * max(values)


@dataclass(frozen=True)
class _Style:
    """How one series looks; ``shift`` (points) keeps the series at one device count apart."""

    label: str
    colour: str
    marker: str
    dash: tuple[float, ...]
    shift: float


@dataclass(frozen=True)
class _Panel:
    """One quantity, of which people read ``form``. ``unit`` is throughput per 1 of it; ``ideal`` is
    what all series would have, None where each has its own."""

    label: str
    value: Callable[[CaseSummary], float | None]
    interval: Callable[[CaseSummary], Interval | None]
    unit: Callable[[CaseSummary], float]
    form: Callable[[float], str] = number
    ideal: float | None = None


def _per_device(summary: CaseSummary, unit: str) -> Interval | None:
    interval, devices = summary.samples[unit].interval, summary.case.topology.devices
    if interval is None:
        return None
    return Interval(interval.low / devices, interval.high / devices, interval.coverage)


def _throughput(unit: str, scaled: bool) -> _Panel:
    """Of the cases whose throughput is in that unit: per device where some series scales."""
    if not scaled:
        return _Panel(
            label=f"{unit}, all devices",
            value=lambda s: s.speed if s.unit == unit else None,
            interval=value_at("sample.interval"),
            unit=lambda s: 1.0,
        )
    return _Panel(
        label=f"{unit} per device",
        value=lambda s: s.per_device(unit) if s.unit == unit else None,
        interval=lambda s: _per_device(s, unit),
        unit=lambda s: s.case.topology.devices,
    )


def _linear(summary: CaseSummary) -> float:
    """What the base would give on the devices of a case if it scaled ideally."""
    base, median = summary.base, getattr(summary.base_sample, "median", math.nan)
    return median * summary.case.topology.devices / getattr(base, "devices", math.nan)


_EFFICIENCY = _Panel(
    label="efficiency",
    value=lambda s: s.efficiency,
    interval=lambda s: s.efficiency_interval,
    unit=_linear,
    form=percent,
    ideal=1.0,
)


@dataclass(frozen=True)
class Chart:
    """What is drawn: ``groups`` are series by rows of panels. ``titles`` are None but within the
    page: then the titles of marks, by the number of the group that matplotlib writes in an SVG for
    the marks of one kind."""

    series: Mapping[str, Sequence[CaseSummary]]
    groups: Panels
    runs: Runs
    title: str
    along: str
    styles: Mapping[str, _Style]
    titles: list[Sequence[str]] | None = None

    @property
    def devices(self) -> list[int]:
        """All device counts, rising."""
        return sorted({s.case.topology.devices for s in chain(*self.series.values())})

    def name(self, artist: Any, titles: Iterable[str]) -> None:
        """Each mark of ``artist``, in order, gets a title."""
        if self.titles is not None:
            artist.set_gid(f"titled-{len(self.titles)}")
            self.titles.append(list(titles))

    def draw(self) -> Figure:
        """A row of panels for each group, a column for each quantity, with one axis in a column."""
        members = [*chain(*self.series.values())]
        scaled = any(s.efficiency is not None and s.case.topology != s.base for s in members)
        units = dict.fromkeys(summary.unit for summary in members)
        columns = [_EFFICIENCY] * scaled + [_throughput(unit, scaled) for unit in units]
        across, down = len(columns), len(self.groups)
        tall = max(_ALONE if down == 1 else _IN_ROWS, _LINE * max(map(len, self.groups.values())))
        wide = (_WIDTH - _LEFT - _RIGHT - (across - 1) * _GAP_ACROSS) / across
        figure, height = _blank(
            self, scaled, down * (tall + _GAP_DOWN) - _GAP_DOWN + _TOP + _BOTTOM
        )
        for column, panel in enumerate(columns):
            axes = [figure.add_subplot(down, across, row * across + column + 1)
                    for row in range(down)]  # fmt: skip
            heights: list[float] = []
            for axis, (group, names) in zip(axes, self.groups.items()):
                axis.set_title(group, fontsize=9, pad=3, loc="left")
                found = [*chain(*(_draw(self, axis, panel, name) for name in names))]
                axis.set_visible(bool(found))
                heights += found
            for axis, names in zip(axes, self.groups.values()):
                _scales(axis, panel, self.devices)
                _limits(axis, panel, heights)
                _name_lines(self, axis, panel, names, (wide, tall))
        figure.supxlabel(self.along, fontsize=10, y=0.1 / height)
        figure.subplots_adjust(
            left=_LEFT / _WIDTH, right=1 - _RIGHT / _WIDTH, wspace=_GAP_ACROSS / wide,
            bottom=_BOTTOM / height, top=1 - _TOP / height, hspace=_GAP_DOWN / tall,
        )  # fmt: skip
        return figure


def chart_of(
    report: Report, names: Sequence[str], runs: Runs, titles: list[Sequence[str]] | None = None
) -> Chart:
    """The picture of these series with these runs; of series without a median there is nothing."""
    measured = {name: [s for s in report.series[name] if s.sample is not None] for name in names}
    series = {name: members for name, members in measured.items() if members}
    title, along = printable(report.name), _axis_of_devices(report)
    if len(names) < len(report.series):
        title += f" ({len(names)} of {len(report.series)} series)"
    key, shared = panels_at_first(series), common_beginning(list(series))
    heading = next(iter(series), "") if len(series) == 1 else f"{shared}..." * bool(shared)
    parts: Panels = panels_by(series)[key] if key else {"": list(series)}
    groups = {printable(f"{heading} {key} {part}".strip()): names for part, names in parts.items()}
    styles = _styles(report.series, list(series), groups)
    return Chart(series, groups, runs, title, along, styles, titles)


def picture(report: Report, file_format: str = "png") -> bytes | None:
    """The picture, at least 1200 x 600 pixels; None if no run counts, for there is nothing to show.
    ``file_format`` may be ``svg``. A picture of one topology, or of series without a base, has no
    panel for efficiency."""
    chart = chart_of(report, list(report.series)[:MOST_STILL], _runs_of(report))
    if not chart.series:
        return None
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with matplotlib.rc_context(SETTINGS):
        figure = chart.draw()
        stream = io.BytesIO()
        if file_format == "svg":  # no date: the same results give the same picture
            figure.savefig(stream, format=file_format, metadata={"Date": None})
        else:  # savefig would draw twice: first to see what a cut to the drawing leaves
            FigureCanvasAgg(figure).print_png(stream, pil_kwargs={"compress_level": 3})
    return stream.getvalue()


def _runs_of(report: Report) -> Runs:
    """The runs that count, by case, in the unit of its case."""
    units = {(s.sweep, s.case.id): s.unit for s in report.cases}
    found: dict[tuple[str, str], list[Dot]] = {}
    for result in chosen(report.runs):
        name = result.sweep, result.run.case.id
        value = result.rates.get(units[name])
        if value is not None:
            found.setdefault(name, []).append(Dot(value))
    return found


def _axis_of_devices(report: Report) -> str:
    """``devices (NVIDIA H200), weak scaling``: what they are, and what grows with them."""
    kinds = report.machines.get("Device", "")
    if kinds == "cpu":
        kinds = f"CPU processes, {report.machines.get('CPU', 'unknown CPU')}"
    if len(kinds) > _LONGEST:
        kinds = f"{kinds[:_LONGEST]}..."
    modes = sorted({summary.scaling for summary in report.cases if summary.scaling})
    label = f"devices ({printable(kinds)})" if kinds else "devices"
    return f"{label}, {' and '.join(modes)} scaling" if modes else label


def _blank(chart: Chart, scaled: bool, height: float) -> tuple[Figure, float]:
    """An empty figure and its height, inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, round(height, 2)), dpi=100)
    FigureCanvasAgg(figure)
    if chart.titles is None:  # the page has the name
        title = f"{chart.title}: medians with their intervals, and every run"
        title += "; grey: linear from the base" * scaled
        figure.suptitle(title, y=1 - 0.09 / height, va="top")
    return figure, height


def _styles(
    everything: Mapping[str, Sequence[CaseSummary]], names: Sequence[str], groups: Panels
) -> Mapping[str, _Style]:
    """How series look that are drawn, by their places among all series and in their panel."""
    places = {name: place for place, name in enumerate(everything)}
    colours = first_colours(everything)
    labels = dict(zip(names, short_names(names)))
    return {
        name: _Style(
            label=printable(labels[name]),
            colour=colours[name],
            marker=mark_of(places[name]).marker,
            dash=dash_of(places[name]),
            shift=_POINT_WIDTH * (place + 0.5 - len(group) / 2) / max(len(group), 4),
        )
        for group in groups.values()
        for place, name in enumerate(group)
    }


class _Point(NamedTuple):
    """A median as it is drawn; ``low`` and ``high`` are the median's own without an interval."""

    summary: CaseSummary
    devices: int
    value: float
    low: float
    high: float


def _points(panel: _Panel, members: Sequence[CaseSummary]) -> list[_Point]:
    found = []
    for summary in members:
        value = panel.value(summary)
        if value is not None:
            interval = panel.interval(summary)
            ends = (getattr(interval, end, value) for end in ("low", "high"))
            found.append(_Point(summary, summary.case.topology.devices, value, *ends))
    return found


def _draw(chart: Chart, axis: Axes, panel: _Panel, name: str) -> list[float]:
    """Draw one series; return the heights of all that was drawn."""
    style = chart.styles[name]
    points = _points(panel, chart.series[name])
    if not points:
        return []
    moved, colour = _moved(axis, style.shift), {"color": style.colour}
    _, x, y, low, high = zip(*points)
    dashes = {"linestyle": (0, style.dash) if style.dash else "-", "linewidth": 0.9}
    _line(axis, x, y, transform=moved, zorder=1.8, **dashes, **colour)
    # the gap between two intervals is no number
    at = [*chain(*([point.devices] * 3 for point in points))]
    ends = [*chain(*((point.low, point.high, math.nan) for point in points))]
    caps = {"marker": "_", "markersize": _CAP_SIZE, "zorder": 1.9}  # below all markers
    _line(axis, at, ends, transform=moved, **caps, **colour)
    marker = {"marker": style.marker, "markersize": _MARKER_SIZE, "linestyle": "none"}
    medians = _line(axis, x, y, transform=moved, **marker, **colour)
    chart.name(medians, (_title(panel, point) for point in points))
    heights = _draw_runs(chart, axis, panel, [point.summary for point in points], style)
    return [*heights, *low, *high]


def _title(panel: _Panel, point: _Point) -> str:
    """Of a median's mark: the case, the figure, and what its interval covers."""
    unit = panel.label.partition(",")[0]
    name = f"{printable(point.summary.series)} {point.summary.case.topology}"
    text = f"{name}: {panel.form(point.value)} {unit}"
    interval = panel.interval(point.summary)
    if interval is None:
        return text
    ends = interval_text(interval, panel.form)
    return f"{text}, interval {ends} (covers {percent(interval.coverage)})"


def _draw_runs(
    chart: Chart, axis: Axes, panel: _Panel, members: Sequence[CaseSummary], style: _Style
) -> list[float]:
    """Draw the runs of a series beside its medians; return their heights."""
    moved = _moved(axis, style.shift + _MARKER_SIZE)
    filled = {"marker": ".", "markersize": _SPOT_SIZE}
    hollow = {"marker": "o", "markersize": _MARKER_SIZE, "markerfacecolor": "none"}
    heights: list[float] = []
    for counts, look in ((True, filled), (False, hollow)):
        spots = [
            (summary.case.topology.devices, dot.speed / panel.unit(summary), dot.title)
            for summary in members
            for dot in chart.runs.get((summary.sweep, summary.case.id), ())
            if dot.counts is counts
        ]
        if not spots:
            continue
        x, y, titles = zip(*spots)
        dots = _line(axis, x, y, transform=moved, linestyle="none", color=style.colour, **look)
        chart.name(dots, titles)
        heights += y
    return heights


def _line(axis: Axes, x: Sequence[float], y: Sequence[float], **look: Any) -> Any:
    """Draw a line as it is: ``plot`` would look for limits, which are set here anyway."""
    from matplotlib.lines import Line2D

    return axis.add_artist(Line2D(x, y, **look))


def _limits(axis: Axes, panel: _Panel, heights: Sequence[float]) -> None:
    """The ends of the axis, and the ideal, where all series have one."""
    # matplotlib's own limits pass over what is drawn with a transform
    values = [*heights, *([] if panel.ideal is None else [panel.ideal])]
    low, high = min(values), max(values)
    span = max(high - low, _LEAST_SPAN * high)
    axis.set_ylim(0 if from_zero(values) else high - 1.08 * span, high + 0.06 * span)
    if panel.ideal is not None:
        axis.axhline(panel.ideal, linestyle="--", linewidth=1, color="0.6", zorder=1)


def _moved(axis: Axes, points: float) -> Any:
    from matplotlib.transforms import ScaledTranslation

    return axis.transData + ScaledTranslation(points / 72, 0, axis.figure.dpi_scale_trans)


def _scales(axis: Axes, panel: _Panel, devices: Sequence[int]) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_xscale("log", base=2)
    axis.set_xlim(devices[0] / 1.3, devices[-1] * 1.3)
    axis.set_xticks(devices, list(map(str, devices)))
    axis.set_ylabel(panel.label)
    if panel is _EFFICIENCY:
        axis.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:.4g} %"))
    else:
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: grouped(f"{value:.7g}")))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.grid(True, which="major", linewidth=0.5, alpha=0.4)


def _name_lines(
    chart: Chart, axis: Axes, panel: _Panel, names: Sequence[str], size: tuple[float, float]
) -> None:
    """The names of series where their lines end, from the highest to the lowest; ``size`` of the
    panel is in inches. A thin line leads to a name that had to move."""
    ends = {name: points[-1] for name in names if (points := _points(panel, chart.series[name]))}
    longest = max((len(chart.styles[name].label) for name in ends), default=0)
    if len(chart.series) < 2 or not longest:
        return
    first, last = axis.get_xlim()
    room = min(longest * _LETTER + _BESIDE, size[0] * _MOST_ROOM)
    letters = round((room - _BESIDE) / _LETTER)
    axis.set_xlim(first, last * (last / first) ** (room / (size[0] - room)))
    last *= (last / first) ** ((_BESIDE - 0.1) / (size[0] - room))
    low, high = axis.get_ylim()
    inch = (high - low) / size[1]
    ordered = sorted(ends, key=lambda name: -ends[name].value)
    heights = apart([ends[name].value / inch for name in ordered], low / inch, high / inch)
    for name, height in zip(ordered, heights):
        style, end = chart.styles[name], ends[name]
        axis.annotate(
            style.label[:letters], (end.devices, end.value), (last, height * inch),
            fontsize=7.5, va="center",
            arrowprops={"arrowstyle": "-", "color": style.colour, "linewidth": 0.6, "alpha": 0.6,
                        "shrinkA": 0, "shrinkB": 2},
        )  # fmt: skip


def apart(heights: Sequence[float], low: float, high: float, least: float = _LINE) -> list[float]:
    """Falling heights, moved so that ``least`` lies between any two and all lie from ``low`` to
    ``high``, as far as there is room."""
    least = min(least, (high - low) / max(len(heights), 1))
    found: list[float] = []
    for place, height in enumerate(heights):
        ceiling = found[-1] - least if found else high - least / 2
        floor = low + (len(heights) - place - 0.5) * least
        found.append(max(min(height, ceiling), floor))
    return found
