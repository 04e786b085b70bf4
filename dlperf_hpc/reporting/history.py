"""A history for people (terminal, Markdown), for machines (JSON) and for CI servers (JUnit)."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dlperf_hpc.analysis.changes import Drift
from dlperf_hpc.analysis.history import Cause, Change, History, Measurement, Trend, cause
from dlperf_hpc.analysis.setups import Difference
from dlperf_hpc.errors import number_of
from dlperf_hpc.reporting.comparison import ends_json, identity_json, outcome_style, values_in_short
from dlperf_hpc.reporting.table import (
    Column,
    Entry,
    Table,
    figures,
    junit,
    markdown_tables,
    print_tables,
    words,
)
from dlperf_hpc.reporting.text import signed_percent

SCHEMA = "dlperf-history/1"
_BARS = "▁▂▃▄▅▆▇█"
_MOST_BARS = 24


def print_history(found: History) -> None:
    """Print the tables, the changes and the remarks to standard output."""
    print_tables(history_tables(found), _remarks(found), style="")


def history_tables(found: History) -> list[Table[Trend]]:
    """One table per series, its changes in sentences beneath; fits 80 columns."""
    return [
        Table(f"{series}, {unit}", _COLUMNS, trends, _all_sentences(trends))
        for (series, unit), trends in _by_series(found).items()
    ]


def _all_sentences(trends: Sequence[Trend]) -> list[str]:
    return [line for trend in trends for line in sentences(trend)]


def _by_series(found: History) -> Mapping[tuple[str, str], list[Trend]]:
    """By series and unit, each from few devices to many."""
    groups: dict[tuple[str, str], list[Trend]] = {}
    for trend in found.trends:
        groups.setdefault((trend.case.series, trend.unit), []).append(trend)
    for members in groups.values():
        members.sort(key=lambda trend: (trend.case.topology.devices, trend.case.topology.nodes))
    return groups


def sparkline(levels: Sequence[float]) -> str:
    """The last levels as bars, the lowest of them the smallest; all alike where they differ by less
    than a thousandth."""
    shown = levels[-_MOST_BARS:]
    low, high = min(shown), max(shown)
    if high - low < 1e-3 * high:
        return _BARS[3] * len(shown)
    steps = [(level - low) / (high - low) * (len(_BARS) - 1) for level in shown]
    return "".join(_BARS[round(step)] for step in steps)


def _trend(trend: Trend) -> str:
    return sparkline([each.level(trend.unit) for each in trend.measurements])


_COLUMNS: tuple[Column[Trend], ...] = (
    words("case", lambda trend: str(trend.case.topology)),
    figures("n", lambda trend: str(len(trend.measurements))),
    words("first", lambda trend: trend.measurements[0].day or "?"),
    words("last", lambda trend: trend.measurements[-1].day or "?"),
    figures("latest", lambda trend: trend.measurements[-1].level(trend.unit)),
    words("trend", _trend, long=True),
    words("outcome", lambda trend: ", ".join(trend.verdicts), long=True, style=outcome_style),
)


def sentences(trend: Trend) -> list[str]:
    """What changed, each with its cause as far as the logs tell one, in the order of time."""
    found: list[tuple[int, str]] = []
    for change in trend.changes:
        found.append((change.step.at, _change_text(trend, change)))
    for drift in trend.drifts:
        found.append((drift.last, _drift_text(trend, drift)))
    for place in trend.spikes:
        found.append((place, _spike_text(trend, place)))
    topology = trend.case.topology
    return [f"{topology}: {text}" for _, text in sorted(found)]


def _change_text(trend: Trend, change: Change) -> str:
    step = change.step
    before, after = trend.measurements[step.at - 1], trend.measurements[step.at]
    size = f"{_percent(step.ratio)}{_range(step.interval)} {_from(after)}"
    causes = _cause_text(change.cause, _where(before))
    if not step.suspected:
        return f"{size}; {causes}"
    sides = min(step.at, len(trend.measurements) - step.at)
    return (
        f"suspected, {size}: {number_of(sides, 'measurement')} on one side cannot tell it from"
        f" chance, measure again; {causes}"
    )


def _range(interval: Any) -> str:
    if interval is None:
        return ""
    ends = f"{_percent(interval.low)} to {_percent(interval.high)}"
    return f" ({ends}, covers {100 * interval.coverage:.3g} %)"


def _drift_text(trend: Trend, drift: Drift) -> str:
    first, last = trend.measurements[drift.first], trend.measurements[drift.last]
    return (
        f"drift of {_percent(drift.ratio)} from {_where(first)} to {_where(last)}: bit by bit, so"
        " that no single moment is the cause"
    )


def _spike_text(trend: Trend, place: int) -> str:
    odd, before = trend.measurements[place], trend.measurements[place - 1]
    ratio = odd.level(trend.unit) / before.level(trend.unit)
    return (
        f"spike of {_percent(ratio)} on {_where(odd)} alone;"
        f" {_cause_text(cause(before, odd), _where(before))}"
    )


def _cause_text(found: Cause, before: str) -> str:
    told = [_difference(each) for each in (*found.settings, *found.differences)]
    what = ", ".join(told) or "nothing that the logs tell of"
    nodes = ""
    if found.nodes is not None:
        same, of = found.nodes
        nodes = f"; nodes: {'the same' if same == of else f'{same} of {of} are the same'}"
    return f"changed since {before}: {what}{nodes}"


def _difference(each: Difference) -> str:
    return f"{each.what} {values_in_short(each.a)} -> {values_in_short(each.b)}"


def _percent(ratio: float) -> str:
    return signed_percent(ratio - 1)


def _where(each: Measurement) -> str:
    return f"{each.day} ({each.place})" if each.day else each.place


def _from(each: Measurement) -> str:
    return f"from {_where(each)} on"


def _remarks(found: History) -> list[str]:
    tolerance, risk = (f"{100 * value:.4g} %" for value in (found.tolerance, found.risk))
    lines = [
        f"a change counts beyond {tolerance}; in all cases together one may be found by chance"
        f" {risk} of the time at most"
    ]
    if not found.dated:
        lines.append("no log tells its date: the measurements stand in the order of the command")
    return [*lines, *found.remarks]


def history_markdown(found: History) -> str:
    """The tables of :func:`history_tables` as GitHub-flavoured Markdown."""
    return markdown_tables("History", history_tables(found), _remarks(found))


def history_junit(found: History, bad: Collection[str]) -> bytes:
    """A test for each case: it failed if one of its outcomes is among ``bad``."""
    entries = []
    for trend in found.trends:
        told = "\n".join(sentences(trend))
        wrong = [verdict for verdict in trend.verdicts if verdict in bad]
        entries.append(
            Entry(
                group=trend.case.series,
                name=str(trend.case.topology),
                failure=f"{', '.join(wrong)}: {told}" if wrong else "",
                skipped="too few measurements" if len(trend.measurements) < 2 else "",
                output=told,
            )
        )
    return junit("dlperf history", entries)


def history_json(found: History) -> dict[str, Any]:
    """Plain JSON values, null for what is not known."""
    return {
        "schema": SCHEMA,
        "tolerance": found.tolerance,
        "risk": found.risk,
        "dated": found.dated,
        "remarks": list(found.remarks),
        "cases": [_trend_json(trend) for trend in found.trends],
    }


def _trend_json(trend: Trend) -> dict[str, Any]:
    return {
        **identity_json(trend.case),
        "unit": trend.unit,
        "outcomes": list(trend.verdicts),
        "measurements": [_measurement_json(each, trend.unit) for each in trend.measurements],
        "changes": [_change_json(change) for change in trend.changes],
        "drifts": [
            {"first": each.first, "last": each.last, "ratio": each.ratio, "error": each.error}
            for each in trend.drifts
        ],
        "spikes": list(trend.spikes),
        "sentences": sentences(trend),
    }


def _measurement_json(each: Measurement, unit: str) -> dict[str, Any]:
    return {
        "place": each.place,
        "began": each.began or None,
        "level": each.level(unit),
        **ends_json("level", each.interval(unit)),
        "runs": each.subject.counted,
        "setup": {w: [v for v in values if v] for w, values in each.subject.setup.items()},
        "settings": dict(each.settings),
    }


def _change_json(change: Change) -> dict[str, Any]:
    step = change.step
    known = [*change.cause.settings, *change.cause.differences]
    return {
        "at": step.at,
        "ratio": step.ratio,
        **ends_json("ratio", step.interval),
        "error": step.error if math.isfinite(step.error) else None,
        "suspected": step.suspected,
        "changed": [{"what": e.what, "before": list(e.a), "after": list(e.b)} for e in known],
        "nodes_same": change.cause.nodes[0] if change.cause.nodes else None,
        "nodes_in_all": change.cause.nodes[1] if change.cause.nodes else None,
    }
