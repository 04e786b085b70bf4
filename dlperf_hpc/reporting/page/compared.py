"""The page of a comparison: B over A, ordered by evidence, and in what the sides differ."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from dlperf_hpc.analysis.comparison import KEYS, Compared, Comparison, Subject
from dlperf_hpc.analysis.outcomes import Outcome, band, error_of
from dlperf_hpc.errors import number_of, printable
from dlperf_hpc.reporting.comparison import comparison_json, summary_lines
from dlperf_hpc.reporting.page import Figure, Page, Remark, Section, figure
from dlperf_hpc.reporting.page.limits import filters
from dlperf_hpc.reporting.page.static_chart import ratios_in_page
from dlperf_hpc.reporting.table import Cell, Column, Table, figures, words
from dlperf_hpc.reporting.tables import TO, interval_cell
from dlperf_hpc.reporting.text import percent

MOST_CASES = 1000
_MOST_DRAWN = 60  # by matplotlib; the scripts draw all

_VERDICTS: Mapping[Outcome, str] = {
    Outcome.SLOWER: "B is slower than A",
    Outcome.FASTER: "B is faster than A",
    Outcome.SAME: "B and A are the same within the tolerance",
    Outcome.UNDECIDED: "too much noise for this tolerance",
    Outcome.TOO_FEW: "too few runs to tell",
    Outcome.MISSING_IN_B: "only A has the case",
    Outcome.MISSING_IN_A: "only B has the case",
    Outcome.OTHER_UNIT: "A and B are in different units",
}
_ORDER = tuple(_VERDICTS)
_KINDS = {Outcome.SLOWER: "bad", Outcome.FASTER: "good"}


def page(
    comparison: Comparison, sides: Mapping[str, Sequence[str]], hints: Sequence[str] = ()
) -> Page:
    """The page; ``sides`` says what A and B were read from, ``hints`` what to do if nothing could
    be compared."""
    cases = sorted(comparison.cases, key=_evidence)
    visible = cases[:MOST_CASES]
    told = json.dumps(comparison_json(comparison, sides), indent=1, allow_nan=False)
    low, high = band(comparison.tolerance)
    return Page(
        kind="compare",
        title=" vs ".join(" + ".join(map(printable, places)) for places in sides.values()),
        subtitle="Comparison: B over A",
        facts=(
            *((name, printable(", ".join(places))) for name, places in sides.items()),
            ("Counts as the same", f"B / A from {low:.4g} to {high:.4g}"),
            ("An outcome may be wrong", f"{percent(comparison.risk)} of the time at most"),
            *((("Need not be equal", ", ".join(comparison.across)),) if comparison.across else ()),
        ),
        counts=tuple(
            (outcome.value, comparison.count(outcome), _KINDS.get(outcome, ""))
            for outcome in _ORDER
            if comparison.count(outcome)
        ),
        remarks=_remarks(visible),
        missing=_missing(comparison, hints, len(cases) - len(visible)),
        figure=_figure(visible, comparison.tolerance),
        sections=(
            Section("cases", "Cases, by evidence", (_ORDERED,), _table(visible)),
            *_differences(visible),
        ),
        filters=filters(map(_keys, visible)),
        data={"cases": [_data(case) for case in visible]},
        files={"compare.json": f"{told}\n".encode()},
        how_to_read=_HOW_TO_READ,
    )


_ORDERED = (
    "Slower cases first, then faster ones, then the others; among these, those whose interval lies "
    "farthest outside the band."
)


def _evidence(case: Compared) -> tuple[int, float]:
    """By outcome, then how far the nearer end of the interval lies from 1."""
    found = case.interval
    if found is None or found.low <= 0:
        return _ORDER.index(case.outcome), 0.0
    return _ORDER.index(case.outcome), -max(math.log(found.low), -math.log(found.high))


def _name(case: Compared) -> str:
    names = [f"{s.case.series} {s.case.topology}" for s in (case.a, case.b) if s]
    return printable(" > ".join(dict.fromkeys(names)))


def _remarks(cases: Sequence[Compared]) -> tuple[Remark, ...]:
    """The notes of the cases, and what is not alike, each once with its cases."""
    about: dict[str, list[str]] = {}
    for case in cases:
        lines = [f"A and B differ in {each.what}" for each in case.differences]
        for line in filter(None, [*lines, case.note]):
            about.setdefault(line[:1].upper() + line[1:], []).append(_name(case))
    compared = {_name(case) for case in cases if case.ratio is not None}
    return tuple(
        Remark(f"{printable(line)}.", () if {*names} == compared else tuple(names))
        for line, names in about.items()
    )


def _missing(comparison: Comparison, hints: Sequence[str], left_out: int) -> tuple[str, ...]:
    lines = [printable(hint) for hint in hints]
    if not comparison.cases:
        lines.append("There is no case to compare.")
    for outcome in (Outcome.MISSING_IN_B, Outcome.MISSING_IN_A, Outcome.TOO_FEW):
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


def _figure(cases: Sequence[Compared], tolerance: float) -> Figure:
    drawn = [case for case in cases if case.ratio is not None]
    if not drawn:
        return Figure("Ratios", "", empty="No case has a ratio, so that there is nothing to draw.")
    low, high = band(tolerance)
    ratios = [
        (_label(case), case.outcome.value, case.ratio or 0.0, case.interval)
        for case in drawn[:_MOST_DRAWN]
    ]
    left = len(drawn) - len(ratios)
    return Figure(
        "Ratios",
        "Marks are ratios of medians, bars their intervals; the grey band counts as the same. "
        "Left of it B is slower, right of it faster.",
        still=ratios_in_page(ratios, low, high),
        still_caption=f"{left} more cases are in the table." if left else "",
        specs={"ratios": figure.ratios(low, high)},
    )


def _table(cases: Sequence[Compared]) -> Table[Compared]:
    return Table(
        "Every case of both sides", _COLUMNS, cases, bad=lambda c: c.outcome is Outcome.SLOWER,
        name="cases", items=range(len(cases)),
    )  # fmt: skip


def _median(side: Subject | None, case: Compared) -> float | None:
    unlike = case.outcome is Outcome.OTHER_UNIT
    return None if side is None or unlike else side.median(case.unit)


def _error(case: Compared) -> float | None:
    return None if case.interval is None else error_of(case.interval)


def _verdict(case: Compared) -> str:
    return f"{case.outcome.value}: {_VERDICTS[case.outcome]}"


def _counts(case: Compared) -> str:
    return "/".join(_runs(side) for side in (case.a, case.b))


def _what_differs(case: Compared) -> str:
    return ", ".join(each.what for each in case.differences)


def _three(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _runs(side: Subject | None) -> str:
    if side is None:
        return "-"
    return "published" if side.published else str(side.counted)


_COLUMNS: tuple[Column[Compared], ...] = (
    words("case", lambda c: _name(c)),
    words("verdict", _verdict, long=True),
    figures("B / A", lambda c: c.ratio, form=_three),
    figures("interval", lambda c: interval_cell(c.interval, _three), unit="of B / A"),
    figures("error", _error, unit="at most", meaning="how often such an outcome is wrong",
            form=percent),
    figures("A", lambda c: _median(c.a, c), unit="median"),
    figures("B", lambda c: _median(c.b, c), unit="median"),
    words("unit", lambda c: "" if c.ratio is None else c.unit),
    figures("runs", _counts, unit="A/B"),
    words("what differs", _what_differs, long=True),
)  # fmt: skip


def _differences(cases: Sequence[Compared]) -> list[Section]:
    """Hardware, hosts and versions that are not alike, each pair of values once."""
    found: dict[tuple[str, str, str], int] = {}
    for case in cases:
        for each in case.differences:
            key = (each.what, " + ".join(each.a), " + ".join(each.b))
            found[key] = found.get(key, 0) + 1
    if not found:
        line = "A and B were made alike, as far as their logs tell."
        return [Section("differs", "Provenance: what differs", (line,))]
    rows = sorted(found.items(), key=lambda item: -item[1])
    table = Table("In what A and B differ", _DIFFERING, rows, name="differs")
    line = "Hardware, hosts and versions that are not alike: reasons to look at first."
    return [Section("differs", "Provenance: what differs", (line,), table)]


_DIFFERING: tuple[Column[tuple[tuple[str, str, str], int]], ...] = (
    words("what", lambda line: line[0][0]),
    words("A", lambda line: line[0][1], long=True),
    words("B", lambda line: line[0][2], long=True),
    figures("cases", lambda line: line[1], form=str),
)


def _keys(case: Compared) -> dict[str, str]:
    known = case.a or case.b
    told = {key.replace("_", " "): known.case.text(key) for key in KEYS} if known else {}
    return {"outcome": case.outcome.value} | {
        key: printable(value) or "(none)" for key, value in told.items()
    }


def _data(case: Compared) -> dict[str, Any]:
    found = case.interval
    ends = interval_cell(found, _three) or Cell("")
    told = [
        ["B / A", _three(case.ratio)],
        ["interval", ends.text],
        ["outcome", _verdict(case)],
        ["runs", _counts(case)],
        ["differ", _what_differs(case)],
    ]
    return {
        "name": _name(case),
        "label": _label(case),
        "keys": _keys(case),
        "outcome": case.outcome.value,
        "ratio": case.ratio,
        "low": None if found is None else found.low,
        "high": None if found is None else found.high,
        "told": [pair for pair in told if pair[1]],
    }


_HOW_TO_READ = (
    f"B / A above 1 means that B is faster. The interval comes from ranks: from the k-th smallest "
    f"to the k-th largest of all ratios of a run of B to a run of A (low{TO}high).",
    "Slower and faster: the whole interval lies outside the band; same: all of it lies within. "
    "Otherwise nothing is decided.",
)
