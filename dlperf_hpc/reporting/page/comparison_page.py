"""The page of a comparison: B over A, ordered by evidence, and in what the sides differ."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dlperf_hpc.analysis.comparison import KEYS, Compared, Comparison
from dlperf_hpc.analysis.machines import HARDWARE_KINDS
from dlperf_hpc.analysis.outcomes import RatioOutcome, band
from dlperf_hpc.errors import number_of, printable, redacted
from dlperf_hpc.reporting import table
from dlperf_hpc.reporting.comparison_tables import (
    COLUMNS,
    comparison_json,
    counts,
    deciding,
    other_hardware,
    ratio_text,
    summary_lines,
)
from dlperf_hpc.reporting.page import Page, PageFigure, Remark, Section, figure
from dlperf_hpc.reporting.page.visible import NONE, TO, filters, interval_cell, sentence

MOST_CASES = 1000
_MOST_DRAWN = 60  # by matplotlib; the scripts draw all

_VERDICTS: Mapping[RatioOutcome, str] = {
    RatioOutcome.SLOWER: "B is slower than A",
    RatioOutcome.FASTER: "B is faster than A",
    RatioOutcome.SAME: "B and A are the same within the tolerance",
    RatioOutcome.UNDECIDED: "too much noise for this tolerance",
    RatioOutcome.TOO_FEW: "too few runs to tell",
    RatioOutcome.MISSING_IN_B: "only A has the case",
    RatioOutcome.MISSING_IN_A: "only B has the case",
    RatioOutcome.OTHER_UNIT: "A and B are in different units",
}
_ORDER = tuple(_VERDICTS)
_KINDS = {RatioOutcome.SLOWER: "bad", RatioOutcome.FASTER: "good"}
_ORDERED = (
    "Slower cases first, then faster ones, then the others; among these, those whose interval lies "
    "farthest outside the band."
)
_HOW_TO_READ = (
    f"B / A above 1 means that B is faster. The interval comes from ranks: from the k-th smallest "
    f"to the k-th largest of all ratios of a run of B to a run of A (low{TO}high).",
    "In pairs: where one job measured both cases in turn, the ratio and its interval are those of "
    "the median of the pairs' ratios.",
    "Slower and faster: the whole interval lies outside the band; same: all of it lies within. "
    "Otherwise nothing is decided.",
)


def page(
    comparison: Comparison, sides: Mapping[str, Sequence[str]], hints: Sequence[str] = ()
) -> Page:
    """The page; ``sides`` says what A and B were read from, ``hints`` what to do if nothing could
    be compared."""
    cases = sorted(comparison.cases, key=_evidence)
    visible = cases[:MOST_CASES]
    values = redacted(json.dumps(comparison_json(comparison, sides), indent=1, allow_nan=False))
    low, high = band(comparison.tolerance)
    facts = {
        **{name: ", ".join(places) for name, places in sides.items()},
        "Counts as the same": f"B / A from {low:.6g} to {high:.6g}",
        "An outcome may be wrong": f"{table.percent(comparison.risk)} of the time at most",
        "Need not be equal": ", ".join(comparison.across),
    }
    of_outcome = ((outcome, comparison.count(outcome)) for outcome in _ORDER)
    return Page(
        kind="compare",
        title=" vs ".join(" + ".join(map(printable, places)) for places in sides.values()),
        subtitle="Comparison: B over A",
        facts=tuple((name, printable(text)) for name, text in facts.items() if text),
        counts=tuple((each.value, n, _KINDS.get(each, "")) for each, n in of_outcome if n),
        remarks=_remarks(visible),
        missing=_missing(comparison, hints, len(cases) - len(visible)),
        figure=_figure(visible, comparison.tolerance),
        sections=(
            Section("cases", "Cases, by evidence", (_ORDERED,), _table(visible)),
            _differences(visible),
        ),
        filters=filters(map(_keys, visible)),
        data={"cases": list(map(_data, visible))},
        files={"compare.json": f"{values}\n".encode()},
        how_to_read=_HOW_TO_READ,
    )


def _evidence(case: Compared) -> tuple[int, float]:
    """By outcome, then how far the nearer end of the interval lies from 1."""
    found, place = case.interval, _ORDER.index(case.outcome)
    if found is None or found.low <= 0:
        return place, 0.0
    return place, -max(math.log(found.low), -math.log(found.high))


def _name(case: Compared) -> str:
    names = (f"{side.case.series} {side.case.topology}" for side in case.sides.values())
    return printable(" > ".join(dict.fromkeys(names)))


def _remarks(cases: Sequence[Compared]) -> tuple[Remark, ...]:
    """Different machines, before any ratio; then the notes of the cases, and what else is not
    alike, each once with its cases."""
    about: dict[str, list[str]] = {}
    for case in cases:
        rest = [each.what for each in case.differences if each.what not in HARDWARE_KINDS]
        lines = [f"A and B differ in {what}" for what in rest]
        for line in filter(None, [*lines, case.note]):
            about.setdefault(line[:1].upper() + line[1:], []).append(_name(case))
    compared = {_name(case) for case in cases if case.ratio is not None}
    machines = [Remark(sentence(line)) for line in other_hardware(cases)]
    return (*machines, *(
        Remark(f"{printable(line)}.", tuple(names) * ({*names} != compared))
        for line, names in about.items()
    ))  # fmt: skip


def _missing(comparison: Comparison, hints: Sequence[str], left_out: int) -> tuple[str, ...]:
    lines = list(map(printable, hints))
    if not comparison.cases:
        lines.append("There is no case to compare.")
    for outcome in (RatioOutcome.MISSING_IN_B, RatioOutcome.MISSING_IN_A, RatioOutcome.TOO_FEW):
        if count := comparison.count(outcome):
            lines.append(f"{number_of(count, 'case')}: {_VERDICTS[outcome]}.")
    if comparison.unmatched_published:
        lines.append(summary_lines(comparison)[-1])
    if left_out:
        lines.append(
            f"This page shows {MOST_CASES} cases; compare.json, below, has {left_out} more."
        )
    return tuple(lines)


def _label(case: Compared) -> str:
    name = _name(case)
    return name if len(name) <= 60 else f"{name[:28]} ... {name[-28:]}"


def _figure(cases: Sequence[Compared], tolerance: float) -> PageFigure:
    drawn = [case for case in cases if case.ratio is not None]
    if not drawn:
        return PageFigure(
            "Ratios", "", empty="No case has a ratio, so that there is nothing to draw."
        )
    low, high = band(tolerance)
    ratios = [
        (_label(case), case.outcome.value, case.ratio or 0.0, case.interval)
        for case in drawn[:_MOST_DRAWN]
    ]
    left = len(drawn) - len(ratios)
    return PageFigure(
        "Ratios",
        "Marks are ratios of medians, bars their intervals; the grey band counts as the same. "
        "Left of it B is slower, right of it faster.",
        still=figure.ratios_in_page(ratios, low, high),
        still_caption=f"{left} more cases are in the table." * (left > 0),
        specs={"ratios": figure.ratios(low, high)},
    )


def _table(cases: Sequence[Compared]) -> table.Table[Compared]:
    return table.Table(
        "Every case of both sides", _COLUMNS, cases, bad=lambda c: c.outcome is RatioOutcome.SLOWER,
        name="cases", items=range(len(cases)),
    )  # fmt: skip


def _verdict(case: Compared) -> str:
    return f"{case.outcome.value}: {_VERDICTS[case.outcome]}"


def _interval(case: Compared) -> table.Cell | None:
    return interval_cell(case.interval, lambda end: deciding(end, case.tolerance))


def _counts(case: Compared) -> str:
    return counts(case, "published") + f" in {case.pairs} pairs" * bool(case.pairs)


def _what_differs(case: Compared) -> str:
    return ", ".join(each.what for each in case.differences)


_picked = table.picked(COLUMNS)
_COLUMNS: tuple[table.Column[Compared], ...] = (
    table.words("case", lambda c: _name(c)),
    table.words("verdict", _verdict, long=True),
    _picked("B/A", name="B / A", rank=0),
    table.figures("interval", _interval, unit="of B / A"),
    table.figures("error", "error", unit="at most", meaning="how often such an outcome is wrong",
            form=table.percent),
    _picked("A", unit="median", rank=0),
    _picked("B", unit="median", rank=0),
    table.words("unit", lambda c: "" if c.ratio is None else c.unit),
    table.figures("runs", _counts, unit="A/B"),
    table.words("what differs", _what_differs, long=True),
)  # fmt: skip

_DIFFERING: tuple[table.Column[tuple[tuple[str, str, str], int]], ...] = (
    table.words("what", lambda line: line[0][0]),
    table.words("A", lambda line: line[0][1], long=True),
    table.words("B", lambda line: line[0][2], long=True),
    table.figures("cases", lambda line: line[1], form=str),
)


def _differences(cases: Sequence[Compared]) -> Section:
    """Hardware, hosts and versions that are not alike, each pair of values once."""
    found = Counter(
        (each.what, " + ".join(each.a), " + ".join(each.b))
        for case in cases
        for each in case.differences
    )
    line = "A and B were made alike, as far as their logs tell."
    if found:
        line = "Hardware, hosts and versions that are not alike: reasons to look at first."
    made = table.Table("In what A and B differ", _DIFFERING, found.most_common(), name="differs")
    return Section("differs", "Provenance: what differs", (line,), made if found else None)


def _keys(case: Compared) -> dict[str, str]:
    known = next(iter(case.sides.values())).case
    values = {key.replace("_", " "): printable(known.text(key)) or NONE for key in KEYS}
    return {"outcome": case.outcome.value, **values}


def _data(case: Compared) -> dict[str, Any]:
    facts = {
        "B / A": _picked("B/A").view(case).text,
        "interval": table.interval_text(case.interval, ratio_text, TO),
        "outcome": _verdict(case),
        "runs": _counts(case),
        "differ": _what_differs(case),
    }
    return {
        "name": _name(case),
        "label": _label(case),
        "keys": _keys(case),
        "outcome": case.outcome.value,
        "ratio": case.ratio,
        "low": case.interval and case.interval.low,
        "high": case.interval and case.interval.high,
        "told": [[name, text] for name, text in facts.items() if text],
    }
