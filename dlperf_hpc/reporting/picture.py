"""The picture of a report: throughput, speedup and efficiency against devices.

Every run is a dot, every median a marker with its interval, and what the base would give if it
scaled linearly is a dashed line. Medians are not joined: between two topologies nothing was
measured (Hoefler & Belli, SC'15, rules 11 and 12). Throughput and speedup are drawn log-log, where
linear scaling is a straight line; there a few per cent are less than a marker, so efficiency has a
panel of its own, with a linear axis. Throughputs in samples/s and in tokens/s have a panel each.

More than a few series in one panel hide each other, and a legend of so many is not read. Then each
series has a small panel of its own, all with the same axes, and says its efficiency in words.
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
from dlperf_hpc.model.statistics import Interval
from dlperf_hpc.reporting.contents import Report
from dlperf_hpc.reporting.page import colour_of, mark_of
from dlperf_hpc.reporting.table import common_beginning, number, percent, value_at

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

_LEGEND_INSIDE = 3
_TOGETHER = 4  # series in one panel
_ACROSS = 4  # small panels in a row
_PANEL = 2.1  # inches from one row of small panels to the next
_LONGEST = 40  # characters of a line of a small panel's title, and of the devices' name
_POINT_WIDTH = 24.0  # points (1/72 inch) that all series' markers at one device count share
_MARKER_SIZE, _CAP_SIZE, _SPOT_SIZE = 5, 6, 3  # points
_LEFT, _RIGHT, _TOP, _BOTTOM = 0.95, 0.12, 0.38, 0.5  # inches around all panels
_GAP_ACROSS, _GAP_DOWN = 0.95, 0.55  # and between them
_ROWS_APART = 0.25  # between two panels of throughput, of a panel's height

# names come from logs: a $ in one is a dollar, not mathematics
SETTINGS = {"text.parse_math": False, "svg.hashsalt": "dlperf", "svg.fonttype": "none"}


@dataclass(frozen=True)
class _Style:
    """How one series looks; ``shift`` (points) keeps the series at one device count apart."""

    label: str
    colour: str
    marker: str
    shift: float
    room: float


@dataclass(frozen=True)
class _Panel:
    """One quantity, of which people read ``form``. ``unit`` is throughput per 1 of it; ``linear``
    what the base promises."""

    label: str
    value: Callable[[CaseSummary], float | None]
    interval: Callable[[CaseSummary], Interval | None]
    unit: Callable[[CaseSummary], float]
    linear: Callable[[CaseSummary, int], float]
    form: Callable[[float], str] = number


def _base_median(summary: CaseSummary) -> float:
    return getattr(summary.base_sample, "median", math.nan)


def _growth(summary: CaseSummary, devices: int) -> float:
    return devices / getattr(summary.base, "devices", math.nan)


def _throughput(unit: str) -> _Panel:
    """Of the cases whose throughput is in that unit."""
    return _Panel(
        label=f"{unit}, all devices",
        value=lambda s: s.speed if s.unit == unit else None,
        interval=value_at("sample.interval"),
        unit=lambda s: 1.0,
        linear=lambda s, devices: _base_median(s) * _growth(s, devices),
    )


_SPEEDUP = _Panel(
    label="speedup",
    value=lambda s: s.speedup,
    interval=lambda s: s.speedup_interval,
    unit=_base_median,
    linear=_growth,
)
_EFFICIENCY = _Panel(
    label="efficiency",
    value=lambda s: s.efficiency,
    interval=lambda s: s.efficiency_interval,
    unit=lambda s: _base_median(s) * _growth(s, s.case.topology.devices),
    linear=lambda s, devices: 1.0,
    form=percent,
)


@dataclass(frozen=True)
class Chart:
    """What is drawn. ``titles`` are None but within the page: then the titles of marks, by the
    number of the group that matplotlib writes in an SVG for the marks of one kind."""

    series: Mapping[str, Sequence[CaseSummary]]
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
        """Few series in common panels, more in a small panel each."""
        return _panels(self) if len(self.series) <= _TOGETHER else _small_panels(self)


def chart_of(
    report: Report, names: Sequence[str], runs: Runs, titles: list[Sequence[str]] | None = None
) -> Chart:
    """The picture of these series with these runs; of series without a median there is nothing."""
    measured = {name: [s for s in report.series[name] if s.sample is not None] for name in names}
    series = {name: members for name, members in measured.items() if members}
    title, along = printable(report.name), _axis_of_devices(report)
    return Chart(series, runs, title, along, _styles(list(report.series), list(series)), titles)


def picture(report: Report, file_format: str = "png") -> bytes | None:
    """The picture, at least 1200 x 600 pixels; None if no run counts, for there is nothing to show.
    ``file_format`` may be ``svg``. A picture of one topology, or of series without a base, has no
    panels for speedup and efficiency."""
    chart = chart_of(report, list(report.series), _runs_of(report))
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


def _blank(chart: Chart, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, height), dpi=100)
    FigureCanvasAgg(figure)
    if chart.titles is None:  # the page has the name and the legend
        title = f"{chart.title}: medians with their intervals, and every run"
        figure.suptitle(title, y=1 - 0.09 / height, va="top")
    return figure


def _small_panels(chart: Chart) -> Figure:
    """A panel for each series, of its throughput, all with the same axes, in rows of four."""
    rows = -(-len(chart.series) // _ACROSS)
    height = _TOP + 0.4 + rows * _PANEL + _BOTTOM
    figure = _blank(chart, height)
    devices = chart.devices
    common = common_beginning(list(chart.series))
    heights: dict[str, list[float]] = {}
    drawn: list[tuple[Axes, _Panel, str]] = []
    first: Axes | None = None
    for place, (name, members) in enumerate(chart.series.items()):
        unit = members[0].unit
        panel = _throughput(unit)
        axis = figure.add_subplot(rows, _ACROSS, place + 1, sharex=first)
        first = first or axis
        _scales(axis, panel, devices, "")
        heights.setdefault(unit, []).extend(_draw(chart, axis, panel, name))
        drawn.append((axis, panel, unit))
        axis.set_title(_fold(printable(name.removeprefix(common))), fontsize=8, pad=3)
        _write_efficiency(axis, members)
        axis.tick_params(labelsize=7)
        axis.set_ylabel(unit if place % _ACROSS == 0 else "", fontsize=8)
    for axis, panel, unit in drawn:
        _limits(axis, panel, heights[unit])
    figure.supxlabel(f"{chart.along}; dashed: linear from the base", fontsize=9, y=0.06 / height)
    if common:
        line = f"all series: {printable(common)}..."
        figure.text(0.01, 1 - 0.36 / height, line, fontsize=8, va="top")
    figure.subplots_adjust(
        left=0.08, right=0.985, wspace=0.22, bottom=(_BOTTOM + 0.1) / height,
        top=1 - (_TOP + 0.4) / height, hspace=0.4,
    )  # fmt: skip
    return figure


def _write_efficiency(axis: Axes, members: Sequence[CaseSummary]) -> None:
    """In a corner of the panel, of the most devices: a few per cent are less than a marker."""
    last = members[-1]
    if last.efficiency is not None and last.case.topology != last.base:
        text = f"{percent(last.efficiency)} of linear on {last.case.topology}"
        axis.text(0.97, 0.05, text, transform=axis.transAxes, fontsize=7, ha="right")


def _fold(name: str) -> str:
    """In lines that a small panel has room for, three at most."""
    lines = [name[start : start + _LONGEST] for start in range(0, len(name), _LONGEST)]
    return "\n".join([*lines[:2], f"{lines[2][:-3]}..."] if len(lines) > 3 else lines)


def _panels(chart: Chart) -> Figure:
    """Throughputs at the left; speedup and efficiency at the right, where some series has them."""
    figure = _blank(chart, 6.0)
    grid = figure.add_gridspec(2, 2)
    members = [*chain(*chart.series.values())]
    scaled = any(s.speedup is not None and s.case.topology != s.base for s in members)
    units = [*dict.fromkeys(summary.unit for summary in members)]
    rows = (grid[:, 0] if scaled else grid[:, :]).subgridspec(len(units), 1, hspace=_ROWS_APART)
    left = [figure.add_subplot(rows[row]) for row in range(len(units))]
    panels = [*zip(left, map(_throughput, units))]
    for place, panel in enumerate((_SPEEDUP, _EFFICIENCY) if scaled else ()):
        panels.append((figure.add_subplot(grid[place, 1], sharex=left[0]), panel))
    for axis, panel in panels:
        _scales(axis, panel, chart.devices, chart.along)
        _limits(axis, panel, [*chain(*(_draw(chart, axis, panel, each) for each in chart.series))])
    legend = 0.0
    if chart.titles is None:
        legend = _legend(figure, left, len(chart.series))
    _place(figure, legend)
    return figure


def _place(figure: Figure, beside: float) -> None:
    """Margins of the panels, ``beside`` inches of which the legend takes. They are known
    beforehand: to measure all labels would take as long as to draw them."""
    width, height = figure.get_size_inches()
    right = max(width - _RIGHT - beside, width / 2)
    panel = (right - _LEFT - _GAP_ACROSS) / 2, (height - _BOTTOM - _TOP - _GAP_DOWN) / 2
    figure.subplots_adjust(
        left=_LEFT / width, right=right / width, wspace=_GAP_ACROSS / panel[0],
        bottom=_BOTTOM / height, top=1 - _TOP / height, hspace=_GAP_DOWN / panel[1],
    )  # fmt: skip


def _styles(all_names: Sequence[str], names: Sequence[str]) -> Mapping[str, _Style]:
    """How series look that are drawn, by their places among all series."""
    room = min(_POINT_WIDTH / max(len(names), 1), _POINT_WIDTH / 2)
    places = {name: place for place, name in enumerate(all_names)}
    return {
        name: _Style(
            label=printable(name),
            colour=colour_of(places[name]),
            marker=mark_of(places[name]).marker,
            shift=room * (i - (len(names) - 1) / 2),
            room=room,
        )
        for i, name in enumerate(names)
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
        value, interval = panel.value(summary), panel.interval(summary)
        if value is not None:
            ends = (getattr(interval, end, value) for end in ("low", "high"))
            found.append(_Point(summary, summary.case.topology.devices, value, *ends))
    return found


def _draw(chart: Chart, axis: Axes, panel: _Panel, name: str) -> list[float]:
    """Draw one series; return the heights of all that was drawn."""
    style = chart.styles[name]
    points = _points(panel, chart.series[name])
    if not points:
        return []
    members = [point.summary for point in points]
    # beside a sloping line a shifted point would seem to lie above or below it
    shift = 0.0 if axis.get_yscale() == "log" else style.shift
    moved, colour = _moved(axis, shift), {"color": style.colour}
    # the gap between two intervals is no number
    at = [*chain(*([point.devices] * 3 for point in points))]
    ends = [*chain(*((point.low, point.high, math.nan) for point in points))]
    caps = {"marker": "_", "markersize": _CAP_SIZE, "zorder": 1.9}  # below all markers
    _line(axis, at, ends, transform=moved, **caps, **colour)
    marker = {"marker": style.marker, "markersize": _MARKER_SIZE, "linestyle": "none"}
    _, x, y, low, high = zip(*points)
    medians = _line(axis, x, y, transform=moved, label=style.label, **marker, **colour)
    chart.name(medians, (_title(panel, point) for point in points))
    heights = _draw_runs(chart, axis, panel, members, style, shift)
    return [*heights, *_promised(axis, panel, style, members), *low, *high]


def _title(panel: _Panel, point: _Point) -> str:
    """Of a median's mark: the case, the figure, and what its interval covers."""
    unit = panel.label.partition(",")[0]
    name = f"{printable(point.summary.series)} {point.summary.case.topology}"
    text = f"{name}: {panel.form(point.value)} {unit}"
    interval = panel.interval(point.summary)
    if interval is None:
        return text
    ends = f"{panel.form(interval.low)}-{panel.form(interval.high)}"
    return f"{text}, interval {ends} (covers {percent(interval.coverage)})"


def _draw_runs(
    chart: Chart, axis: Axes, panel: _Panel, members: Sequence[CaseSummary], style: _Style,
    shift: float,
) -> list[float]:  # fmt: skip
    """Draw the runs of a series beside its medians; return their heights."""
    moved = _moved(axis, shift + max(style.room / 2, _MARKER_SIZE))
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


def _promised(
    axis: Axes, panel: _Panel, style: _Style, members: Sequence[CaseSummary]
) -> list[float]:
    """The dashed line of what the base would give if it scaled linearly; its heights."""
    devices = sorted({summary.case.topology.devices for summary in members})
    if members[0].base_sample is None or len(devices) < 2:
        return []
    ends = [devices[0], devices[-1]]
    line = [panel.linear(members[0], n) for n in ends]
    colour = "0.5" if panel in (_SPEEDUP, _EFFICIENCY) else style.colour
    _line(axis, ends, line, linestyle="--", linewidth=1, color=colour, alpha=0.6, zorder=1)
    return line


def _limits(axis: Axes, panel: _Panel, heights: Sequence[float]) -> None:
    from matplotlib.ticker import LogLocator

    # matplotlib's own limits pass over what is drawn with a transform
    low, high = min(heights), max(heights)
    if axis.get_yscale() != "log":
        margin = 0.07 * (high - low) or 0.05 * high
        axis.set_ylim(low - margin, high + margin)
        return
    axis.set_ylim(low / 1.2, high * 1.2)
    if panel is not _SPEEDUP:
        steps = (1.0, 2.0, 5.0) if high > 8 * low else (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0)
        axis.yaxis.set_major_locator(LogLocator(10.0, subs=steps))


def _moved(axis: Axes, points: float) -> Any:
    from matplotlib.transforms import ScaledTranslation

    return axis.transData + ScaledTranslation(points / 72, 0, axis.figure.dpi_scale_trans)


def _scales(axis: Axes, panel: _Panel, devices: Sequence[int], along: str) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_xscale("log", base=2)
    axis.set_xlim(devices[0] / 1.5, devices[-1] * 1.5)
    axis.set_xticks(devices, list(map(str, devices)))
    axis.set_xlabel(along)
    axis.set_ylabel(panel.label)
    if panel is _EFFICIENCY:
        axis.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:.4g} %"))
    elif len(devices) > 1:
        axis.set_yscale("log", base=2 if panel is _SPEEDUP else 10)
        if panel is _SPEEDUP:
            axis.yaxis.set_major_locator(LogLocator(2.0))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.7g}"))
        axis.yaxis.set_minor_formatter(NullFormatter())
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.grid(True, which="major", linewidth=0.5, alpha=0.4)


def _legend(figure: Figure, panels: Sequence[Axes], count: int) -> float:
    """Draw the legend, inside a panel if it is short; the inches that it takes beside them."""
    from matplotlib.lines import Line2D

    handles: dict[str, Any] = {}
    for axis in panels:
        handles.update(zip(*reversed(axis.get_legend_handles_labels())))
    dot = Line2D([], [], linestyle="none", marker=".", markersize=_SPOT_SIZE, color="0.4")
    handles["one run"] = dot
    if any(line.get_linestyle() == "--" for axis in panels for line in axis.get_lines()):
        handles["linear from the base"] = Line2D([], [], linestyle="--", color="0.5", linewidth=1)
    if count <= _LEGEND_INSIDE:
        panels[0].legend(handles.values(), handles, loc="upper left", fontsize=9)
        return 0.0
    made = figure.legend(handles.values(), handles, loc="upper right", fontsize=7)
    return float(made.get_window_extent().width / figure.dpi) + _RIGHT
