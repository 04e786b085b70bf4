"""Figures for readers without scripts: matplotlib's SVG, inline, with a title for each mark.

The colours of text and lines are the page's own (``currentColor``), so that one picture does for
light, dark and paper.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dlperf_hpc.analysis.statistics import Interval
from dlperf_hpc.reporting.page.figure import OUTCOME_COLOURS, colour_of, mark_of
from dlperf_hpc.reporting.text import interval_text, number, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK = "#010203"  # stands for the page's colour of text
_SETTINGS = {
    "text.parse_math": False,  # names come from logs: a $ in one is a dollar
    "svg.hashsalt": "dlperf",
    "svg.fonttype": "none",
    "font.size": 10,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "text.color": _INK,
}
_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}
_USE = re.compile(r"<use [^>]*?/>")


@dataclass(frozen=True)
class StillCase:
    """A case as it is drawn: its median in one unit, over all devices."""

    series: int
    name: str
    devices: int
    speed: float
    interval: Interval | None
    efficiency: float | None
    efficiency_interval: Interval | None
    is_base: bool


@dataclass(frozen=True)
class Dot:
    """A run as it is drawn; ``told`` says what became of it."""

    series: int
    name: str
    devices: int
    speed: float
    counts: bool
    told: str


def still(unit: str, names: Sequence[str], cases: Sequence[StillCase], dots: Sequence[Dot]) -> str:
    """Throughput against devices, and efficiency where there is one; '' if there is no case."""
    if not cases:
        return ""
    import matplotlib
    from matplotlib.figure import Figure

    scaled = any(case.efficiency is not None and not case.is_base for case in cases)
    titles = _Titles()
    with matplotlib.rc_context(_SETTINGS):
        drawn = Figure(figsize=(10.5 if scaled else 7, 4.4), layout="constrained")
        axes = drawn.subplots(1, 2 if scaled else 1, squeeze=False)[0]
        _throughput(axes[0], unit, cases, dots, titles)
        if scaled:
            _efficiency(axes[1], len(names), cases, titles)
        text = _svg(drawn)
    label = f"{unit} against devices, by series; the tables below have every figure"
    return titles.put_into(_as_part_of_page(text, label))


class _Titles:
    """Titles of marks, by the group that matplotlib writes for the marks of one kind."""

    def __init__(self) -> None:
        self._groups: list[list[str]] = []

    def name(self, artist: Any, titles: list[str]) -> None:
        """Each mark of ``artist``, in order, gets one."""
        artist.set_gid(f"titled-{len(self._groups)}")
        self._groups.append(titles)

    def put_into(self, svg: str) -> str:
        """The SVG with the titles in their marks."""
        parts = re.split(r'(?=<g id=")', svg)
        return "".join(map(self._titled, parts))

    def _titled(self, part: str) -> str:
        found = re.match(r'<g id="titled-(\d+)">', part)
        if found is None:
            return part
        waiting = iter(self._groups[int(found[1])])

        def with_title(match: re.Match[str]) -> str:
            title = next(waiting, None)
            if title is None:
                return match[0]
            return f"{match[0][:-2].rstrip()}><title>{html.escape(title)}</title></use>"

        return _USE.sub(with_title, part)


def _throughput(
    axis: Axes, unit: str, cases: Sequence[StillCase], dots: Sequence[Dot], titles: _Titles
) -> None:
    devices = sorted({case.devices for case in cases})
    _devices_axis(axis, devices)
    axis.set_ylabel(f"{unit}, all devices")
    if len(devices) > 1:
        axis.set_yscale("log", base=2)
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
        axis.yaxis.set_minor_formatter(lambda *_: "")
    for series in sorted({case.series for case in cases}):
        mine = [case for case in cases if case.series == series]
        _ideal(axis, mine, series)
        _marks(axis, mine, series, [case.speed for case in mine],
               [case.interval for case in mine], titles, unit)  # fmt: skip
        for counts in (True, False):
            found = [dot for dot in dots if dot.series == series and dot.counts is counts]
            if found:
                _dots(axis, found, series, counts, titles, unit)


def _ideal(axis: Axes, mine: Sequence[StillCase], series: int) -> None:
    base = next((case for case in mine if case.is_base), None)
    if base is None or len(mine) < 2:
        return
    ends = [min(case.devices for case in mine), max(case.devices for case in mine)]
    line = [base.speed * n / base.devices for n in ends]
    axis.plot(ends, line, "--", color=colour_of(series), linewidth=1, alpha=0.6, zorder=1)


def _dots(
    axis: Axes, dots: Sequence[Dot], series: int, counts: bool, titles: _Titles, unit: str
) -> None:
    colour = colour_of(series)
    look: dict[str, Any] = {"s": 7, "color": colour, "linewidths": 0}
    if not counts:
        look = {"s": 26, "facecolors": "none", "edgecolors": colour, "linewidths": 1}
    x = [dot.devices * 2**0.06 for dot in dots]
    drawn = axis.scatter(x, [dot.speed for dot in dots], zorder=2, **look)
    why = [" (counts)" if counts else f" (does not count: {dot.told})" for dot in dots]
    named = zip(dots, why)
    titles.name(drawn, [f"{dot.name}: {number(dot.speed)} {unit}{tail}" for dot, tail in named])


def _marks(
    axis: Axes, cases: Sequence[StillCase], series: int, values: Sequence[float],
    intervals: Sequence[Interval | None], titles: _Titles, unit: str, shift: float = 1.0,
) -> None:  # fmt: skip
    colour = colour_of(series)
    for case, found in zip(cases, intervals):
        if found is not None:
            x = [case.devices * shift] * 2
            axis.plot(x, [found.low, found.high], color=colour, linewidth=1.8, zorder=2.5)
    drawn = axis.scatter(
        [case.devices * shift for case in cases], values,
        s=42, marker=mark_of(series).marker, color=colour, linewidths=0, zorder=3,
    )  # fmt: skip
    form = percent if unit == "efficiency" else number
    told = [
        f"{case.name}: {form(value)} {'' if unit == 'efficiency' else unit}".rstrip()
        + (_interval_told(found, unit) if found else "")
        for case, value, found in zip(cases, values, intervals)
    ]
    titles.name(drawn, told)


def _interval_told(found: Interval, unit: str) -> str:
    ends = (
        f"{percent(found.low)}-{percent(found.high)}"
        if unit == "efficiency"
        else interval_text(found)
    )
    return f", interval {ends} (covers {percent(found.coverage)})"


def _efficiency(axis: Axes, count: int, cases: Sequence[StillCase], titles: _Titles) -> None:
    known = [case for case in cases if case.efficiency is not None]
    _devices_axis(axis, sorted({case.devices for case in known}))
    axis.set_ylabel("efficiency, share of ideal")
    axis.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.4g} %")
    axis.axhline(1, color=_INK, linestyle="--", linewidth=1, alpha=0.5)
    for series in sorted({case.series for case in known}):
        mine = [case for case in known if case.series == series]
        shift = 2 ** (0.045 * (series - (count - 1) / 2))
        values = [case.efficiency or 0.0 for case in mine]
        ends = [case.efficiency_interval for case in mine]
        _marks(axis, mine, series, values, ends, titles, "efficiency", shift)


def _devices_axis(axis: Axes, devices: Sequence[int]) -> None:
    axis.set_xscale("log", base=2)
    axis.set_xlim(devices[0] / 1.4, devices[-1] * 1.4)
    axis.set_xticks(devices, [str(n) for n in devices])
    axis.xaxis.set_minor_formatter(lambda *_: "")
    axis.set_xlabel("devices, over all nodes")
    axis.grid(True, which="major", color=_INK, linewidth=0.6, alpha=0.15)
    axis.set_axisbelow(True)


@dataclass(frozen=True)
class StillRatio:
    """A case of a comparison as it is drawn."""

    label: str
    outcome: str
    ratio: float
    interval: Interval | None


def still_ratios(cases: Sequence[StillRatio], low: float, high: float) -> str:
    """B / A of each case against the band that counts as the same; '' if there is no ratio."""
    if not cases:
        return ""
    import matplotlib
    from matplotlib.figure import Figure

    titles = _Titles()
    with matplotlib.rc_context(_SETTINGS):
        drawn = Figure(figsize=(9, 1.0 + 0.26 * len(cases)), layout="constrained")
        axis = drawn.subplots()
        axis.axvspan(low, high, color=_INK, alpha=0.08, linewidth=0)
        axis.axvline(1, color=_INK, linewidth=1, alpha=0.5)
        for place, case in enumerate(cases):
            colour = OUTCOME_COLOURS.get(case.outcome, OUTCOME_COLOURS["same"])
            if case.interval is not None:
                ends = [case.interval.low, case.interval.high]
                axis.plot(ends, [place, place], color=colour, linewidth=2)
            mark = axis.scatter([case.ratio], [place], s=40, color=colour, linewidths=0, zorder=3)
            titles.name(mark, [f"{case.label}: B/A {case.ratio:.3f}, {case.outcome}"])
        axis.set_yticks(range(len(cases)), [case.label for case in cases])
        axis.set_ylim(len(cases) - 0.4, -0.6)
        axis.set_xlabel("B / A")
        axis.grid(True, axis="x", color=_INK, linewidth=0.6, alpha=0.15)
        text = _svg(drawn)
    label = "B / A of each case with its interval; the table below has every figure"
    return titles.put_into(_as_part_of_page(text, label))


def _svg(drawn: Figure) -> str:
    stream = io.StringIO()
    drawn.patch.set_alpha(0)
    for axis in drawn.axes:
        axis.patch.set_alpha(0)
    drawn.savefig(stream, format="svg", metadata=_NO_METADATA)
    return stream.getvalue()


def _as_part_of_page(text: str, label: str) -> str:
    """The picture without the head of a file of its own, and in the page's colours."""
    svg = text[text.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    head, _, rest = svg.partition(">")
    head = re.sub(r' (?:width|height)="[^"]*"', "", head)
    head += f' role="img" aria-label="{html.escape(label)}"'
    return "".join(_lines(f"{head}>{rest}".replace(_INK, "currentColor")))


def _lines(svg: str) -> Iterator[str]:
    for line in svg.splitlines():
        if line.strip():
            yield f"{line.strip()}\n"
