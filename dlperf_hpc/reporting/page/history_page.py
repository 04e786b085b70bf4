"""The page of a history: every case over time, where it changed, and what else changed then."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from dlperf_hpc.analysis.comparison import KEYS
from dlperf_hpc.analysis.trends import Change, History, Measurement, Trend, moment
from dlperf_hpc.errors import printable, redacted
from dlperf_hpc.reporting.page import (
    Page,
    PageFigure,
    Remark,
    Section,
    Series,
    colour_of,
    dash_of,
    figure,
    mark_of,
)
from dlperf_hpc.reporting.page.visible import MOST_CASES, MOST_SERIES, NONE, filters
from dlperf_hpc.reporting.table import Cell, Column, Table, figures, number, signed_percent, words
from dlperf_hpc.reporting.trend_tables import causes_text, history_json, marked

ORDER = (
    "slower", "suspected", "drift", "noisier", "faster", "spike", "quieter", "steady",
    "too few measurements",
)  # fmt: skip
"""All outcomes of a case, the worst first."""
_KINDS = {"slower": "bad", "faster": "good"}
_HOW_TO_READ = (
    "A point is a measurement: the median of what one sweep's runs of a case gave, with its"
    " interval. 100 % is the median up to the first change of the case.",
    "A triangle stands where the speed changed from there on, a cross where it was odd once; what"
    " else changed then may be the cause, and need not.",
)


class _Event(NamedTuple):
    """A change of a case, which is a row of the first table; ``item`` is the case's number."""

    item: int
    trend: Trend
    change: Change


def page(found: History, source: str) -> Page:
    """The page; ``source`` says what was read. Cases that became slower come first."""
    trends = sorted(found.trends, key=_evidence)[:MOST_CASES]
    numbered = enumerate(trends)
    events = [_Event(item, trend, change) for item, trend in numbered for change in trend.changes]
    events.sort(key=lambda event: event.change.step.ratio)
    values = redacted(json.dumps(history_json(found), indent=1, allow_nan=False))
    left_out = len(found.trends) - len(trends)
    changed = f"{len(events) or 'No'} changes by a step, the largest loss first."
    return Page(
        kind="history",
        title=printable(source),
        subtitle="History",
        facts=_head(found),
        counts=_counts(found),
        remarks=tuple(Remark(f"{printable(line)}.") for line in found.remarks),
        missing=(f"history.json, below, has {left_out} cases more.",) * (left_out > 0),
        figure=_figure(trends, found.dated),
        sections=(
            Section("changes", "What changed", (changed,), _changes(events) if events else None),
            Section("cases", "Cases", (), _cases(trends)),
        ),
        filters=filters(map(_keys, trends)),
        data={
            "cases": [_data(*each, found.dated) for each in enumerate(trends)],
            "series": list(map(_name, trends)),
            "most": MOST_SERIES,
        },
        files={"history.json": f"{values}\n".encode()},
        how_to_read=_HOW_TO_READ,
    )


def _head(found: History) -> tuple[tuple[str, str], ...]:
    tolerance, risk = (f"{100 * value:.4g} %" for value in (found.tolerance, found.risk))
    days = sorted(filter(None, (m.day for trend in found.trends for m in trend.measurements)))
    measured = " to ".join(dict.fromkeys((*days[:1], *days[-1:])))
    facts = {"Measured": measured, "A change counts beyond": tolerance}
    facts["One may be found by chance"] = f"{risk} of the time at most"
    return tuple(each for each in facts.items() if each[1])


def _counts(found: History) -> tuple[tuple[str, int, str], ...]:
    of = Counter(word for trend in found.trends for word in trend.verdicts)
    return tuple((word, of[word], _KINDS.get(word, "")) for word in ORDER if of[word])


def _evidence(trend: Trend) -> tuple[int, float]:
    """By the worst of its outcomes, then by the size of its largest step."""
    sizes = [abs(math.log(change.step.ratio)) for change in trend.changes]
    return min(map(ORDER.index, trend.verdicts)), -max(sizes, default=0.0)


def _name(trend: Trend) -> str:
    return printable(f"{trend.case.series} {trend.case.topology}")


def _whole(trend: Trend) -> float:
    """The level that is 100 %."""
    first = min((change.step.at for change in trend.changes), default=len(trend.levels))
    return median(trend.levels[:first])


def _figure(trends: Sequence[Trend], dated: bool) -> PageFigure:
    drawn = trends[:MOST_SERIES]
    lines = [[(p["x"], p["y"], p["change"]) for p in _points(trend, dated)] for trend in drawn]
    series = tuple(
        Series(_name(trend), colour_of(item), mark_of(item).path, dash_of(item))
        for item, trend in enumerate(trends)
    )
    axis = "when the first run began" if dated else "measurements, in the order of the command"
    return PageFigure(
        "Throughput over time",
        f"Each case relative to what it was at first; {axis}.",
        still=figure.trends_in_page(list(map(_name, drawn)), lines, dated),
        still_caption=f"{len(trends) - len(drawn)} more cases are in the table."
        * (len(trends) > len(drawn)),
        specs={"trends": figure.trends(len(trends), dated)},
        series=series,
    )


def _points(trend: Trend, dated: bool) -> list[dict[str, Any]]:
    """Its measurements for script and picture; x is in ms since 1970, or counts them."""
    whole = _whole(trend)
    texts: dict[int, list[str]] = defaultdict(list)
    for at, text in marked(trend):
        texts[at].append(text)
    found = []
    outcomes = {change.step.at: _outcome(change) for change in trend.changes}
    outcomes.update(dict.fromkeys(trend.spikes, "spike"))
    for count, each in enumerate(trend.measurements):
        ends, level = each.interval(trend.unit), each.level(trend.unit)
        point = {
            "x": 1e3 * moment(each.began).timestamp() if dated else count + 1,
            "y": level / whole,
            "low": ends and ends.low / whole,
            "high": ends and ends.high / whole,
            "change": outcomes.get(count, ""),
            "told": _facts(each, trend.unit, "; ".join(texts[count])),
        }
        found.append(point)
    return found


def _facts(each: Measurement, unit: str, change: str) -> list[list[str]]:
    """What stands beside a point on request."""
    facts = {
        unit: number(each.level(unit)),
        "runs": str(each.subject.counted),
        "in": each.place,
        "began": each.began[:16].replace("T", " "),
        "change": change,
    }
    return [[name, printable(text)] for name, text in facts.items() if text]


def _outcome(change: Change) -> str:
    return "slower" if change.step.ratio < 1 else "faster"


def _data(item: int, trend: Trend, dated: bool) -> dict[str, Any]:
    points = _points(trend, dated)
    return {"name": _name(trend), "s": item, "keys": _keys(trend), "points": points}


def _keys(trend: Trend) -> dict[str, str]:
    values = {key.replace("_", " "): printable(trend.case.text(key)) or NONE for key in KEYS}
    return {"outcome": trend.verdicts[0], **values}


def _since(event: _Event) -> Cell:
    after = event.trend.measurements[event.change.step.at]
    return Cell(printable(f"{after.day} {after.place}".strip()), None)


_EVENTS: tuple[Column[_Event], ...] = (
    words("case", lambda e: _name(e.trend)),
    words("outcome", lambda e: "suspected" if e.change.step.suspected else _outcome(e.change)),
    figures("change", lambda e: e.change.step.ratio - 1, form=signed_percent),
    words("since", _since),
    words("what else changed", lambda e: printable(causes_text(e.trend, e.change)), long=True),
)


def _changes(events: Sequence[_Event]) -> Table[_Event]:
    return Table(
        "Every change of a case", _EVENTS, events, name="changes",
        bad=lambda e: _outcome(e.change) == "slower", items=[e.item for e in events],
    )  # fmt: skip


def _of_last(trend: Trend) -> float:
    return trend.levels[-1] / _whole(trend) - 1


_CASES: tuple[Column[Trend], ...] = (
    words("case", _name),
    words("outcome", lambda t: ", ".join(t.verdicts)),
    figures("latest", lambda t: t.levels[-1], unit="all devices"),
    words("unit", "unit"),
    figures("change", _of_last, unit="since the first", form=signed_percent),
    figures("measurements", lambda t: len(t.measurements), form=str),
    words("first", lambda t: t.measurements[0].day),
    words("last", lambda t: t.measurements[-1].day),
    words(
        "what happened", lambda t: printable("; ".join(text for _, text in marked(t))), long=True
    ),
)


def _cases(trends: Sequence[Trend]) -> Table[Trend]:
    return Table(
        "Every case", _CASES, trends, name="cases", items=range(len(trends)),
        bad=lambda t: "slower" in t.verdicts,
    )  # fmt: skip
