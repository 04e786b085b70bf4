"""The page's figures: Vega-Lite specifications as plain dicts, and for readers without scripts the
pictures of a report and of a comparison as SVG, with a title for each mark.

The specifications name their data (``cases``, ``runs``, ``ideal`` ...), which the page's script
fills from what is chosen and filtered. ``currentColor`` is the page's own: light, dark or paper.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dlperf_hpc.analysis.step_parts import PARTS
from dlperf_hpc.model.statistics import Interval
from dlperf_hpc.reporting.contents import Report
from dlperf_hpc.reporting.page import COLOURS, colour_of, dash_of, mark_of
from dlperf_hpc.reporting.picture import SETTINGS, Runs, chart_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _config() -> dict[str, Any]:
    faint = {"gridColor": "currentColor", "gridOpacity": 0.14, "domainOpacity": 0.45}
    return {
        "aria": False,  # the page names the whole, and its tables have every figure
        "background": None,
        "font": "system-ui, sans-serif",
        "view": {"stroke": None},
        "axis": {
            **faint, "labelColor": "currentColor", "titleColor": "currentColor",
            "tickColor": "currentColor", "domainColor": "currentColor", "tickOpacity": 0.45,
            "labelFontSize": 12, "titleFontSize": 13, "titleFontWeight": 600, "titlePadding": 10,
            "labelOverlap": True,
        },
    }  # fmt: skip


def _base(height: int) -> dict[str, Any]:
    return {
        "width": "container",
        "height": height,
        "autosize": {"type": "fit", "contains": "padding"},
        "padding": 4,
        "config": _config(),
    }


def _number(field: str, **look: Any) -> dict[str, Any]:
    return {"field": field, "type": "quantitative", **look}


def _layer(data: str, mark: Mapping[str, Any], **encoding: Any) -> dict[str, Any]:
    """One layer, whose data are filled in by the page's script."""
    return {"data": {"name": data, "values": []}, "mark": mark, "encoding": encoding}


def _points(**look: Any) -> dict[str, Any]:
    """Marks that tell something when a mouse rests on them or clicks."""
    hover = {"tooltip": {"signal": "datum"}, "cursor": "pointer"}
    return {"type": "point", "filled": True, **hover, **look}


_DOMAIN = (("domainMin", "low"), ("domainMax", "high"))


def scaling(series: int, devices: Sequence[int]) -> dict[str, Any]:
    """A quantity against devices: medians with their intervals, joined by thin lines, every run a
    dot, hollow where it does not count, the ideal in grey, and the names of series where their
    lines end. The script sets the ends of the axes (``xlow`` ...): it places these names."""
    colours, dashes, shapes = _looks(series)
    axis = {"title": "devices, over all nodes", "values": list(devices), "format": "d"}
    grey = {"type": "line", "color": "#8a929c", "strokeDash": [5, 4], "strokeWidth": 1.2}
    name = {"type": "text", "align": "left", "dx": 3, "fontSize": 11, "color": "currentColor"}
    aside = {"type": "rule", "strokeWidth": 1, "opacity": 0.45}
    cross = "M-.8,-.8L.8,.8M-.8,.8L.8,-.8"
    hollow = _points(filled=False, shape="circle", size=46, strokeWidth=1.4, clip=True)
    without = _points(filled=False, shape=cross, size=70, strokeWidth=1.6, clip=True)
    return {
        **_base(380),
        "params": [{"name": end, "value": 1} for end in ("xlow", "xhigh", "ylow", "yhigh")],
        "encoding": {
            "x": _number("x", axis=axis, scale=_ends("x")),
            "y": _number("y", axis={}, scale=_ends("y")),
            "color": colours,
        },
        "layer": [
            _layer("ideal", {**grey, "clip": True}, color=None),
            _layer("lines", {"type": "line", "strokeWidth": 1.3, "clip": True}, strokeDash=dashes),
            _layer("leaders", aside, x2={"field": "x2"}, y2={"field": "y2"}),
            _layer("labels", name, color=None, text={"field": "text"}),
            _layer("runs", _points(shape="circle", size=16, opacity=0.5, clip=True),
                   y=_number("y")),
            _layer("hollow", hollow, y=_number("y")),
            _layer("without", without, y={"value": {"expr": "height - 7"}}),
            _layer("intervals", {"type": "rule", "strokeWidth": 2, "clip": True},
                   y=_number("low"), y2={"field": "high"}),
            _layer("cases", _points(size=70, opacity=1, clip=True), y=_number("y"), shape=shapes),
        ],
    }  # fmt: skip


def _looks(series: int) -> list[dict[str, Any]]:
    """How so many series are told apart: the encodings of colours, of dashes and of shapes."""
    numbers = list(range(series))
    dashes = [list(dash_of(place)) or [1, 0] for place in numbers]
    looks = (list(map(colour_of, numbers)), dashes, [mark_of(place).path for place in numbers])
    by_series = {"field": "s", "type": "nominal", "legend": None}
    return [{**by_series, "scale": {"domain": numbers, "range": look}} for look in looks]


def _ends(axis: str) -> dict[str, Any]:
    ends = {name: {"expr": f"{axis}{end}"} for name, end in _DOMAIN}
    return {"nice": False, **ends}


def trace(x: str, y: str) -> dict[str, Any]:
    """What one run has over time, by the titles of the axes: a line in an area. Of iterations it is
    the slowest rank's time of each, and p5 to p95 over the ranks."""
    from_data = {"zero": False}
    value = {"axis": {"title": y}, "scale": from_data}
    axis: dict[str, Any] = {"title": x, "tickCount": {"expr": "width / 80"}}
    if x.startswith("iteration"):
        axis |= {"format": "d", "tickMinStep": 1}
    area = {"type": "area", "opacity": 0.25, "color": COLOURS[0]}
    point = {"size": 14, "color": COLOURS[0]}
    line = {"type": "line", "strokeWidth": 1.5, "color": COLOURS[0], "point": point}
    return {
        **_base(220),
        "data": {"name": "trace", "values": []},
        "encoding": {"x": _number("n", scale={**from_data, "nice": False}, axis=axis)},
        "layer": [
            {"mark": area, "encoding": {"y": _number("low", **value), "y2": {"field": "high"}}},
            {"mark": line, "encoding": {"y": _number("slowest", **value)}},
            {"mark": _points(size=170, opacity=0, cursor="default"),  # what a mouse finds
             "encoding": {"y": _number("slowest", **value)}},
        ],
    }  # fmt: skip


PART_COLOURS = dict(zip(PARTS.values(), (COLOURS[0], *COLOURS[1:4], COLOURS[-1])))


def parts() -> dict[str, Any]:
    """The step of each case as a bar of its parts, ms."""
    scale = {"domain": list(PART_COLOURS), "range": list(PART_COLOURS.values())}
    legend: dict[str, Any] = {"title": None, "orient": "top", "labelColor": "currentColor"}
    legend |= {"columns": {"expr": "width < 420 ? 1 : 5"}, "labelLimit": 260, "labelFontSize": 12}
    color = {"field": "part", "type": "nominal", "scale": scale, "legend": legend}
    labels = {"title": None, "labelLimit": {"expr": "width < 420 ? 130 : 300"}}
    bar = {"type": "bar", "tooltip": {"signal": "datum"}, "cursor": "pointer"}
    axis = {"title": "optimizer step, ms", "tickCount": {"expr": "width / 90"}}
    x = _number("ms", axis=axis, stack="zero")
    y = {"field": "label", "type": "nominal", "sort": None, "axis": labels}
    return {
        **_base(300),
        "layer": [_layer("parts", bar, x=x, y=y, color=color, order=_number("at"))],
    }  # fmt: skip


OUTCOME_COLOURS = {
    "slower": "#e5484d", "faster": "#2f9650", "same": "#7a8696", "undecided": "#d9730d",
    "spike": "#d9730d",
}  # fmt: skip
# Vega-Lite's word for the shape of a change, and matplotlib's.
_CHANGED = {
    "slower": ("triangle-down", "v"), "faster": ("triangle-up", "^"), "spike": ("cross", "x"),
}  # fmt: skip


def ratios(low: float, high: float) -> dict[str, Any]:
    """B / A of each case with its interval, against the band ``low`` to ``high`` of the same."""
    colours = {**OUTCOME_COLOURS, "too few runs": OUTCOME_COLOURS["same"]}
    scale = {"domain": list(colours), "range": list(colours.values())}
    outcome = {"field": "outcome", "type": "nominal", "legend": None, "scale": scale}
    labels = {"title": None, "labelLimit": 260, "grid": True}
    band = {"type": "rect", "color": "currentColor", "opacity": 0.09}
    one = {"type": "rule", "color": "currentColor", "opacity": 0.5}
    from_low = {"x": _number("low"), "x2": {"field": "high"}}
    alone = {"y": None, "color": None}
    axis = {"title": "B / A", "format": ".3~f"}
    return {
        **_base(300),
        "encoding": {
            "y": {"field": "label", "type": "nominal", "sort": None, "axis": labels},
            "color": outcome,
        },
        "layer": [
            {"data": {"values": [{"low": low, "high": high}]}, "mark": band,
             "encoding": {**from_low, **alone}},
            {"data": {"values": [{"one": 1}]}, "mark": one,
             "encoding": {"x": _number("one"), **alone}},
            _layer("intervals", {"type": "rule", "strokeWidth": 2.5}, **from_low),
            _layer("cases", _points(size=85, opacity=1),
                   x=_number("x", axis=axis, scale={"zero": False})),
        ],
    }  # fmt: skip


def trends(series: int, dated: bool) -> dict[str, Any]:
    """Cases over time, relative to what they were at first: medians of measurements joined by thin
    lines, their intervals, and triangles or crosses where something changed."""
    colours, dashes, shapes = _looks(series)
    axis = {"title": None} if dated else {"title": "measurement", "format": "d", "tickMinStep": 1}
    x = {"type": "temporal"} if dated else {"type": "quantitative"}
    changed = [
        _layer(
            name,
            _points(size=190, opacity=1, yOffset=-16, shape=shape, color=OUTCOME_COLOURS[name]),
            color=None,
        )
        for name, (shape, _) in _CHANGED.items()
    ]
    from_data = {"nice": False, **({} if dated else {"zero": False})}
    return {
        **_base(380),
        "encoding": {
            "x": {"field": "x", **x, "axis": axis, "scale": from_data},
            "y": _number("y", axis={"title": "throughput, over the first", "format": ".0~%"},
                         scale={"zero": False}),
            "color": colours,
        },
        "layer": [
            _layer("lines", {"type": "line", "strokeWidth": 1.3}, strokeDash=dashes),
            _layer("intervals", {"type": "rule", "strokeWidth": 1.6},
                   y=_number("low"), y2={"field": "high"}),
            _layer("cases", _points(size=46, opacity=1), shape=shapes),
            *changed,
        ],
    }  # fmt: skip


_INK = "#010203"  # stands for the page's colour of text
_IN_PAGE = {
    **SETTINGS,
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "text.color"), _INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), _INK),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
}
_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}
_USE = re.compile(r"<use [^>]*?/>")


def picture_in_page(report: Report, names: Sequence[str], runs: Runs) -> str:
    """The picture of these series with these runs, as SVG for the page; '' if there is no case."""
    titles: list[Sequence[str]] = []
    chart = chart_of(report, names, runs, titles)
    if not chart.series:
        return ""
    import matplotlib

    with matplotlib.rc_context(_IN_PAGE):
        label = "Throughput against devices, by series; the tables below have every figure"
        return _svg_in_page(chart.draw(), label, titles)


def ratios_in_page(
    cases: Sequence[tuple[str, str, float, Interval | None]], low: float, high: float
) -> str:
    """B / A of each case (name, outcome, ratio, interval) against the band of the same, as SVG."""
    import matplotlib
    from matplotlib.figure import Figure

    titles: list[Sequence[str]] = []
    with matplotlib.rc_context(_IN_PAGE):
        figure = Figure(figsize=(9, 1.0 + 0.26 * len(cases)), layout="constrained")
        axis = figure.subplots()
        axis.axvspan(low, high, color=_INK, alpha=0.08, linewidth=0)
        axis.axvline(1, color=_INK, linewidth=1, alpha=0.5)
        for place, (name, outcome, ratio, interval) in enumerate(cases):
            colour = OUTCOME_COLOURS.get(outcome, OUTCOME_COLOURS["same"])
            if interval is not None:
                ends = [interval.low, interval.high]
                axis.plot(ends, [place, place], color=colour, linewidth=2)
            mark = axis.scatter([ratio], [place], s=40, color=colour, linewidths=0, zorder=3)
            mark.set_gid(f"titled-{place}")
            titles.append([f"{name}: B/A {ratio:.3f}, {outcome}"])
        axis.set_yticks(range(len(cases)), [name for name, *_ in cases])
        axis.set_ylim(len(cases) - 0.4, -0.6)
        axis.set_xlabel("B / A")
        axis.grid(True, axis="x", color=_INK, linewidth=0.6, alpha=0.15)
        label = "B / A of each case with its interval; the table below has every figure"
        return _svg_in_page(figure, label, titles)


def trends_in_page(
    names: Sequence[str], lines: Sequence[Sequence[tuple[float, float, str]]], dated: bool
) -> str:
    """Cases over time as SVG: of each measurement when (ms since 1970, or its count), throughput
    over the first, and what changed there, '' for nothing."""
    from datetime import datetime, timezone

    import matplotlib
    from matplotlib.figure import Figure

    titles: list[Sequence[str]] = []
    with matplotlib.rc_context(_IN_PAGE):
        figure = Figure(figsize=(9, 4), layout="constrained")
        axis = figure.subplots()
        for place, (name, line) in enumerate(zip(names, lines)):
            x: list[Any] = [each[0] for each in line]
            if dated:
                x = [datetime.fromtimestamp(ms / 1e3, timezone.utc) for ms in x]
            colour, marker = colour_of(place), mark_of(place).marker
            percent = [100 * each[1] for each in line]
            axis.plot(x, percent, linewidth=1, color=colour, marker=marker, markersize=4)
            for count, (*_, change) in enumerate(line):
                if change:
                    look, at = _CHANGED[change][1], ([x[count]], [percent[count]])
                    (spot,) = axis.plot(*at, look, markersize=10, color=OUTCOME_COLOURS[change])
                    spot.set_gid(f"titled-{len(titles)}")
                    titles.append([f"{name}: {change}"])
        axis.set_ylabel("throughput, % of the first")
        axis.grid(True, color=_INK, linewidth=0.6, alpha=0.15)
        label = "Throughput of each case over time; the tables below have every change"
        return _svg_in_page(figure, label, titles)


def _svg_in_page(figure: Figure, label: str, titles: Sequence[Sequence[str]]) -> str:
    """The picture without the head of a file of its own, and in the page's colours."""
    figure.patch.set_alpha(0)
    for axis in figure.axes:
        axis.patch.set_alpha(0)
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata=_NO_METADATA)
    text = stream.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    head, _, rest = svg.partition(">")
    head = re.sub(r' (?:width|height)="[^"]*"', "", head)
    whole = f'{head} role="img" aria-label="{html.escape(label)}">{rest}'
    lines = (line.strip() for line in whole.replace(_INK, "currentColor").splitlines())
    groups = re.split(r'(?=<g id=")', "".join(f"{line}\n" for line in lines if line))
    return "".join(_with_titles(group, titles) for group in groups)


def _with_titles(part: str, titles: Sequence[Sequence[str]]) -> str:
    """A group of the SVG, with a title in each of its marks."""
    found = re.match(r'<g id="titled-(\d+)">', part)
    if found is None:
        return part
    waiting = iter(titles[int(found[1])])

    def with_title(match: re.Match[str]) -> str:
        title = html.escape(next(waiting, ""))
        return f"{match[0][:-2].rstrip()}><title>{title}</title></use>"

    return _USE.sub(with_title, part)
