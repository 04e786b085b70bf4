"""The picture of a report, and that of a comparison, within the page: SVG for readers without
scripts, with a title for each mark.

The colours of text and lines are the page's own (``currentColor``), so that one picture does for
light, dark and paper.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dlperf_hpc.model.statistics import Interval
from dlperf_hpc.reporting.page.figure import OUTCOME_COLOURS
from dlperf_hpc.reporting.picture import SETTINGS, Runs, chart_of
from dlperf_hpc.reporting.report import Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    """B / A of each case (its name, outcome, ratio and interval) against the band that counts as
    the same, as SVG for the page."""
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
