"""What the figures look like: the marks of series, and Vega-Lite specifications as plain dicts.

The specifications name their data (``cases``, ``runs``, ``ideal`` ...), which the page's script
fills from what is chosen and filtered. ``currentColor`` is the page's own: light, dark or paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

COLOURS = (
    "#3b7dd8", "#d9730d", "#2f9650", "#d6409f", "#8f63d9", "#0f968a",
    "#b8860b", "#e5484d", "#6f8f14", "#2090c0", "#a0693f", "#7a8696",
)  # fmt: skip
"""Twelve, each with a contrast of 3 : 1 or more to white and to the dark page."""


class Mark(NamedTuple):
    """One shape: as a path within -1 to 1, and by matplotlib's name."""

    path: str
    marker: str


MARKS = (
    Mark("M-1,0A1,1,0,1,1,1,0A1,1,0,1,1,-1,0Z", "o"),
    Mark("M-.9,-.9H.9V.9H-.9Z", "s"),
    Mark("M0,-1.15L1.15,0L0,1.15L-1.15,0Z", "D"),
    Mark("M0,-1.1L1.1,.85H-1.1Z", "^"),
    Mark("M0,1.1L1.1,-.85H-1.1Z", "v"),
    Mark("M-.4,-1.1H.4V-.4H1.1V.4H.4V1.1H-.4V.4H-1.1V-.4H-.4Z", "P"),
    Mark("M-.5,-1.1H.5L1.1,-.5V.5L.5,1.1H-.5L-1.1,.5V-.5Z", "8"),
)


def colour_of(place: int) -> str:
    """The colour of a series by its place among all."""
    return COLOURS[place % len(COLOURS)]


def mark_of(place: int) -> Mark:
    """Its shape: no two of 84 series have both in common."""
    return MARKS[(place + place // len(COLOURS)) % len(MARKS)]


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


def scaling(series: int, devices: Sequence[int]) -> dict[str, Any]:
    """A quantity against devices: medians with their intervals, every run a dot, hollow where it
    does not count, and what the base would give if it scaled ideally."""
    numbers = list(range(series))
    colours = [colour_of(place) for place in numbers]
    shapes = [mark_of(place).path for place in numbers]
    by_series = {"field": "s", "type": "nominal", "legend": None}
    axis = {"title": "devices, over all nodes", "values": list(devices), "format": "d"}
    dashed = {"type": "line", "strokeDash": [5, 4], "strokeWidth": 1.2, "opacity": 0.6}
    cross = "M-.8,-.8L.8,.8M-.8,.8L.8,-.8"
    hollow = _points(filled=False, shape="circle", size=46, strokeWidth=1.4)
    without = _points(filled=False, shape=cross, size=70, strokeWidth=1.6)
    return {
        **_base(440),
        "encoding": {
            "x": _number("x", axis=axis, scale={"nice": False}),
            "y": _number("y", axis={}, scale={}),
            "color": {**by_series, "scale": {"domain": numbers, "range": colours}},
        },
        "layer": [
            _layer("ideal", {**dashed, "clip": True}, detail={"field": "s"}),
            _layer("runs", _points(shape="circle", size=22, opacity=0.75), y=_number("y")),
            _layer("hollow", hollow, y=_number("y")),
            _layer("without", without, y={"value": {"expr": "height - 7"}}),
            _layer("intervals", {"type": "rule", "strokeWidth": 2},
                   y=_number("low"), y2={"field": "high"}),
            _layer("cases", _points(size=95, opacity=1), y=_number("y"),
                   shape={**by_series, "scale": {"domain": numbers, "range": shapes}}),
        ],
    }  # fmt: skip


def trace() -> dict[str, Any]:
    """The iterations of one run: the slowest rank's time of each, p5 to p95 over the ranks."""
    from_data = {"zero": False}
    y = {"axis": {"title": "iteration, ms"}, "scale": from_data}
    axis = {"title": "iteration of the run", "format": "d", "tickMinStep": 1}
    area = {"type": "area", "opacity": 0.25, "color": COLOURS[0]}
    point = {"size": 14, "color": COLOURS[0]}
    line = {"type": "line", "strokeWidth": 1.5, "color": COLOURS[0], "point": point}
    return {
        **_base(220),
        "data": {"name": "trace", "values": []},
        "encoding": {"x": _number("n", scale={**from_data, "nice": False}, axis=axis)},
        "layer": [
            {"mark": area, "encoding": {"y": _number("low", **y), "y2": {"field": "high"}}},
            {"mark": line, "encoding": {"y": _number("slowest", **y)}},
        ],
    }


OUTCOME_COLOURS = {
    "slower": "#e5484d", "faster": "#2f9650", "same": "#7a8696", "undecided": "#d9730d",
}  # fmt: skip


def ratios(low: float, high: float) -> dict[str, Any]:
    """B / A of each case with its interval, against the band ``low`` to ``high`` that counts as the
    same."""
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
