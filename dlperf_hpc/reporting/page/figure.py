"""What the figures look like: Vega-Lite specifications as plain dicts.

The specifications name their data (``cases``, ``runs``, ``ideal`` ...), which the page's script
fills from what is chosen and filtered. ``currentColor`` is the page's own: light, dark or paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlperf_hpc.reporting.picture import COLOURS, colour_of, mark_of


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


def scaling(series: int, devices: Sequence[int]) -> dict[str, Any]:
    """A quantity against devices: medians with their intervals, every run a dot, hollow where it
    does not count, and what the base would give if it scaled ideally."""
    numbers = list(range(series))
    colour = {
        "field": "s", "type": "nominal", "legend": None,
        "scale": {"domain": numbers, "range": [colour_of(place) for place in numbers]},
    }  # fmt: skip
    shape = {
        "field": "s", "type": "nominal", "legend": None,
        "scale": {"domain": numbers, "range": [mark_of(place).path for place in numbers]},
    }  # fmt: skip
    hover = {"tooltip": {"signal": "datum"}, "cursor": "pointer"}
    y = {"field": "y", "type": "quantitative"}
    return {
        **_base(440),
        "encoding": {
            "x": {
                "field": "x", "type": "quantitative",
                "axis": {"title": "devices, over all nodes", "values": list(devices),
                         "format": "d"},
                "scale": {"nice": False},
            },
            "y": {"field": "y", "type": "quantitative", "axis": {}, "scale": {}},
            "color": colour,
        },
        "layer": [
            {
                "data": {"name": "ideal", "values": []},
                "mark": {"type": "line", "strokeDash": [5, 4], "strokeWidth": 1.2, "opacity": 0.6,
                         "clip": True},
                "encoding": {"detail": {"field": "s"}},
            },
            {
                "data": {"name": "runs", "values": []},
                "mark": {"type": "point", "filled": True, "shape": "circle", "size": 22,
                         "opacity": 0.75, **hover},
                "encoding": {"y": y},
            },
            {
                "data": {"name": "hollow", "values": []},
                "mark": {"type": "point", "filled": False, "shape": "circle", "size": 46,
                         "strokeWidth": 1.4, **hover},
                "encoding": {"y": y},
            },
            {
                "data": {"name": "without", "values": []},
                "mark": {"type": "point", "filled": False, "shape": "M-.8,-.8L.8,.8M-.8,.8L.8,-.8",
                         "size": 70, "strokeWidth": 1.6, **hover},
                "encoding": {"y": {"value": {"expr": "height - 7"}}},
            },
            {
                "data": {"name": "intervals", "values": []},
                "mark": {"type": "rule", "strokeWidth": 2},
                "encoding": {"y": {"field": "low", "type": "quantitative"},
                             "y2": {"field": "high"}},
            },
            {
                "data": {"name": "cases", "values": []},
                "mark": {"type": "point", "filled": True, "size": 95, "opacity": 1, **hover},
                "encoding": {"y": y, "shape": shape},
            },
        ],
    }  # fmt: skip


def trace() -> dict[str, Any]:
    """The iterations of one run: the slowest rank's time of each, p5 to p95 over the ranks."""
    y = {"type": "quantitative", "axis": {"title": "iteration, ms"},
         "scale": {"zero": False}}  # fmt: skip
    return {
        **_base(220),
        "data": {"name": "trace", "values": []},
        "encoding": {
            "x": {"field": "n", "type": "quantitative", "scale": {"zero": False, "nice": False},
                  "axis": {"title": "iteration of the run", "format": "d", "tickMinStep": 1}},
        },
        "layer": [
            {"mark": {"type": "area", "opacity": 0.25, "color": COLOURS[0]},
             "encoding": {"y": {"field": "low", **y}, "y2": {"field": "high"}}},
            {"mark": {"type": "line", "strokeWidth": 1.5, "color": COLOURS[0],
                      "point": {"size": 14, "color": COLOURS[0]}},
             "encoding": {"y": {"field": "slowest", **y}}},
        ],
    }  # fmt: skip


OUTCOME_COLOURS = {
    "slower": "#e5484d", "faster": "#2f9650", "same": "#7a8696", "undecided": "#d9730d",
}  # fmt: skip


def ratios(low: float, high: float) -> dict[str, Any]:
    """B / A of each case with its interval, against the band ``low`` to ``high`` that counts as the
    same."""
    hover = {"tooltip": {"signal": "datum"}, "cursor": "pointer"}
    names, colours = list(OUTCOME_COLOURS), list(OUTCOME_COLOURS.values())
    x = {"field": "x", "type": "quantitative"}
    return {
        **_base(300),
        "encoding": {
            "y": {"field": "label", "type": "nominal", "sort": None,
                  "axis": {"title": None, "labelLimit": 260, "grid": True}},
            "color": {"field": "outcome", "type": "nominal", "legend": None,
                      "scale": {"domain": [*names, "too few runs"],
                                "range": [*colours, "#7a8696"]}},
        },
        "layer": [
            {"data": {"values": [{"low": low, "high": high}]},
             "mark": {"type": "rect", "color": "currentColor", "opacity": 0.09},
             "encoding": {"x": {"field": "low", "type": "quantitative"}, "x2": {"field": "high"},
                          "y": None, "color": None}},
            {"data": {"values": [{"one": 1}]},
             "mark": {"type": "rule", "color": "currentColor", "opacity": 0.5},
             "encoding": {"x": {"field": "one", "type": "quantitative"}, "y": None,
                          "color": None}},
            {"data": {"name": "intervals", "values": []},
             "mark": {"type": "rule", "strokeWidth": 2.5},
             "encoding": {"x": {"field": "low", "type": "quantitative"}, "x2": {"field": "high"}}},
            {"data": {"name": "cases", "values": []},
             "mark": {"type": "point", "filled": True, "size": 85, "opacity": 1, **hover},
             "encoding": {"x": {**x, "axis": {"title": "B / A", "format": ".3~f"},
                                "scale": {"zero": False}}}},
        ],
    }  # fmt: skip
