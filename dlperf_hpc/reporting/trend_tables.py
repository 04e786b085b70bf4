"""A history for people (terminal, Markdown), for machines (JSON) and for CI servers (JUnit)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Sequence
from typing import Any

from dlperf_hpc.analysis.outcomes import Drift
from dlperf_hpc.analysis.trends import Cause, Change, History, Measurement, Trend, cause
from dlperf_hpc.errors import number_of
from dlperf_hpc.model.statistics import Interval
from dlperf_hpc.reporting import table
from dlperf_hpc.reporting.comparison_tables import identity_json, outcome_style, values_in_short

SCHEMA = "dlperf-history/1"
_BARS = "▁▂▃▄▅▆▇█"
_MOST_BARS = 20


def print_history(found: History) -> None:
    """Print the tables, the changes and the remarks to standard output."""
    table.print_tables(history_tables(found), _remarks(found), style="")


def history_tables(found: History) -> list[table.Table[Trend]]:
    """One table per series, its changes in sentences beneath; fits 80 columns."""
    groups: dict[tuple[str, str], list[Trend]] = {}
    for trend in found.trends:
        groups.setdefault((trend.case.series, trend.unit), []).append(trend)
    tables = []
    for (series, unit), trends in groups.items():
        trends.sort(key=lambda trend: table.by_devices(trend.case.topology))
        lines = [line for trend in trends for line in sentences(trend)]
        tables.append(table.Table(f"{series}, {unit}", _COLUMNS, trends, lines))
    return tables


def sparkline(levels: Sequence[float]) -> str:
    """All levels as bars, the lowest the smallest; alike if they differ by less than 0.1 %. Of many
    the newest have a bar each, and as many of the older ones share one as must: their median."""
    shared = len(levels) - _MOST_BARS // 2 if len(levels) > _MOST_BARS else 0
    bars = _MOST_BARS - (len(levels) - shared)
    ends = [shared * place // bars for place in range(bars + 1)] if shared else [0]
    last = [statistics.median(levels[a:b]) for a, b in zip(ends, ends[1:])] + [*levels[shared:]]
    low, high = min(last), max(last)
    if high - low < 1e-3 * high:
        return _BARS[3] * len(last)
    return "".join(_BARS[round((level - low) / (high - low) * (len(_BARS) - 1))] for level in last)


_COLUMNS: tuple[table.Column[Trend], ...] = (
    table.words("case", lambda trend: str(trend.case.topology)),
    table.figures("n", lambda trend: str(len(trend.measurements))),
    table.words("first", lambda trend: trend.measurements[0].day or "?"),
    table.words("last", lambda trend: trend.measurements[-1].day or "?"),
    table.figures("latest", lambda trend: trend.levels[-1]),
    table.words("trend", lambda trend: sparkline(trend.levels)),
    table.words("outcome", lambda trend: ", ".join(trend.verdicts), long=True, style=outcome_style),
)


def sentences(trend: Trend) -> list[str]:
    """What changed, each with its cause as far as the logs tell one, in the order of time."""
    return [f"{trend.case.topology}: {text}" for _, text in marked(trend)]


def marked(trend: Trend) -> list[tuple[int, str]]:
    """What changed, in the order of time: the place of the measurement, and a sentence."""
    found = [(change.step.at, _change_text(trend, change)) for change in trend.changes]
    found += [(each.step.at, _noise_text(trend, each)) for each in trend.noises]
    found += [(drift.last, _drift_text(trend, drift)) for drift in trend.drifts]
    found += [(place, _spike_text(trend, place)) for place in trend.spikes]
    return sorted(found)


def _change_text(trend: Trend, change: Change) -> str:
    step = change.step
    after = trend.measurements[step.at]
    size = f"{_percent(step.ratio)}{_range(step.interval)} from {_where(after)} on"
    causes = causes_text(trend, change)
    if not step.suspected:
        return f"{size}; {causes}"
    sides = min(step.at, len(trend.measurements) - step.at)
    return (
        f"suspected, {size}: {number_of(sides, 'measurement')} on one side cannot tell it from"
        f" chance, measure again; {causes}"
    )


def _noise_text(trend: Trend, change: Change) -> str:
    ratio, where = change.step.ratio, _where(trend.measurements[change.step.at])
    return (
        f"noise: runs {ratio:.2g} times as far apart from {where} on; {causes_text(trend, change)}"
    )


def causes_text(trend: Trend, change: Change) -> str:
    """What else changed with a step, and at the other places at which it may be."""
    before = _where(trend.measurements[change.step.at - 1])
    near = (
        f"; near, for it may have begun with {_where(trend.measurements[place])}: "
        + _cause_text(found, _where(trend.measurements[place - 1]))
        for place, found in change.near.items()
    )
    return _cause_text(change.cause, before) + "".join(near)


def _range(interval: Interval | None) -> str:
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
    ratio = trend.levels[place] / trend.levels[place - 1]
    why = _cause_text(cause(before, odd), _where(before))
    return f"spike of {_percent(ratio)} on {_where(odd)} alone; {why}"


def _cause_text(found: Cause, before: str) -> str:
    changed = (
        f"{each.what} {values_in_short(each.a)} -> {values_in_short(each.b)}"
        for each in (*found.settings, *found.differences)
    )
    text = f"changed since {before}: {', '.join(changed) or 'nothing that the logs tell of'}"
    if found.nodes is None:
        return text
    same, of = found.nodes
    return f"{text}; nodes: {'the same' if same == of else f'{same} of {of} are the same'}"


def _percent(ratio: float) -> str:
    return table.signed_percent(ratio - 1)


def _where(each: Measurement) -> str:
    return f"{each.day} ({each.place})" if each.day else each.place


def _remarks(found: History) -> list[str]:
    tolerance, risk = (f"{100 * value:.4g} %" for value in (found.tolerance, found.risk))
    lines = [
        f"a change counts beyond {tolerance}; in all cases together one may be found by chance"
        f" {risk} of the time at most, and as often a change of noise"
    ]
    if not found.dated:
        lines.append("no log tells its date: the measurements stand in the order of the command")
    return [*lines, *found.remarks]


def history_markdown(found: History) -> str:
    """The tables of :func:`history_tables` as GitHub-flavoured Markdown."""
    return table.markdown_tables("History", history_tables(found), _remarks(found))


def history_junit(found: History, bad: Collection[str]) -> bytes:
    """A test for each case: it failed if one of its outcomes is among ``bad``."""
    return table.junit("dlperf history", [_test(trend, bad) for trend in found.trends])


def _test(trend: Trend, bad: Collection[str]) -> table.JunitCase:
    text = "\n".join(sentences(trend))
    wrong = ", ".join(verdict for verdict in trend.verdicts if verdict in bad)
    return table.JunitCase(
        group=trend.case.series,
        name=str(trend.case.topology),
        failure=wrong and f"{wrong}: {text}",
        skipped="too few measurements" * (len(trend.measurements) < 2),
        output=text,
    )


def history_json(found: History) -> dict[str, Any]:
    """Plain JSON values, null for what is not known."""
    return {
        "schema": SCHEMA,
        "tolerance": found.tolerance,
        "risk": found.risk,
        "dated": found.dated,
        "remarks": list(found.remarks),
        "cases": list(map(_trend_json, found.trends)),
    }


def _trend_json(trend: Trend) -> dict[str, Any]:
    return {
        **identity_json(trend.case),
        "unit": trend.unit,
        "outcomes": list(trend.verdicts),
        "measurements": [_measurement_json(each, trend.unit) for each in trend.measurements],
        "changes": list(map(_change_json, trend.changes)),
        "drifts": [dict(vars(each)) for each in trend.drifts],
        "spikes": list(trend.spikes),
        "noises": list(map(_change_json, trend.noises)),
        "sentences": sentences(trend),
    }


def _measurement_json(each: Measurement, unit: str) -> dict[str, Any]:
    return {
        "place": each.place,
        "began": each.began or None,
        "level": each.level(unit),
        **table.ends_json("level", each.interval(unit)),
        "runs": each.subject.counted,
        "setup": {w: [v for v in values if v] for w, values in each.subject.setup.items()},
        "settings": dict(each.settings),
    }


def _change_json(change: Change) -> dict[str, Any]:
    step = change.step
    same, nodes = change.cause.nodes or (None, None)
    return {
        "at": step.at,
        "ratio": step.ratio,
        **table.ends_json("ratio", step.interval),
        "error": step.error if math.isfinite(step.error) else None,
        "suspected": step.suspected,
        "changed": _changed(change.cause),
        "near": [{"at": at, "changed": _changed(found)} for at, found in change.near.items()],
        "nodes_same": same,
        "nodes_in_all": nodes,
    }


def _changed(found: Cause) -> list[dict[str, Any]]:
    known = (*found.settings, *found.differences)
    return [{"what": each.what, "before": list(each.a), "after": list(each.b)} for each in known]
