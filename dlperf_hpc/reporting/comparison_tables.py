"""A comparison for people (terminal, Markdown) and for machines (JSON)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from dlperf_hpc.analysis.comparison import KEYS, Compared, Comparison, Identity, Subject
from dlperf_hpc.analysis.machines import HARDWARE_KINDS, Difference
from dlperf_hpc.analysis.outcomes import RatioOutcome, band, error_of
from dlperf_hpc.errors import listed
from dlperf_hpc.model.result import SAMPLES_PER_S, TOKENS_PER_S, own_unit
from dlperf_hpc.model.statistics import Interval, median_interval
from dlperf_hpc.reporting import table

SCHEMA = "dlperf-compare/1"
_MOST_LISTED = 3

_STYLES = {
    **{"slower": "bold red", "faster": "green", "too few measurements": "dim"},
    **{"same": "", "steady": ""},
}


def comparison_json(comparison: Comparison, sides: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Plain JSON values, null for what is not known; ``sides`` says what A and B were read from."""
    return {
        "schema": SCHEMA,
        "sides": {name: list(places) for name, places in sides.items()},
        "tolerance": comparison.tolerance,
        "same": list(band(comparison.tolerance)),
        "risk": comparison.risk,
        "across": list(comparison.across),
        "verdicts": {outcome.value: comparison.count(outcome) for outcome in RatioOutcome},
        "unmatched_published": comparison.unmatched_published,
        "cases": list(map(_case_json, comparison.cases)),
    }


def _case_json(case: Compared) -> dict[str, Any]:
    return {
        "verdict": case.outcome.value,
        "ratio": case.ratio,
        **_ends("ratio", case.interval),
        "error": case.error,
        **_ends("of_medians", case.of_medians),
        "pairs": case.pairs or None,
        "unit": case.unit if case.outcome is not RatioOutcome.OTHER_UNIT else None,
        "note": case.note,
        "differences": [
            {"what": each.what, "a": list(each.a), "b": list(each.b)} for each in case.differences
        ],
        "a": _subject_json(case.a),
        "b": _subject_json(case.b),
    }


def _ends(name: str, interval: Interval | None) -> dict[str, float | None]:
    return {
        **table.ends_json(name, interval),
        f"{name}_coverage": getattr(interval, "coverage", None),
    }


def identity_json(case: Identity) -> dict[str, Any]:
    """What a case is, null for what is not known."""
    values = {key: getattr(case, key) or None for key in KEYS}
    return {**values, "topology": str(case.topology), "tags": list(case.tags)}


def _subject_json(subject: Subject | None) -> dict[str, Any] | None:
    if subject is None:
        return None
    row, own = subject.published, own_unit(subject.speeds)
    return {
        **identity_json(subject.case),
        "runs": None if row else subject.runs,
        "runs_ok": None if row else subject.counted,
        **_speed_json(subject, "samples_per_s", SAMPLES_PER_S),
        **_speed_json(subject, "tokens_per_s", TOKENS_PER_S),
        **_speed_json(subject, "figure", own),
        "figure_unit": own or None,
        "published": row and row.source,
        "hardware": row and row.hardware,
    }


def _speed_json(subject: Subject, name: str, unit: str) -> dict[str, float | None]:
    without = subject.published or unit not in subject.speeds
    interval = None if without else median_interval(subject.speeds[unit])
    return {name: subject.median(unit), **_ends(name, interval)}


def print_comparison(comparison: Comparison, hints: Sequence[str] = ()) -> None:
    """Print the tables, the count of outcomes and ``hints`` to standard output."""
    table.print_tables([], first_lines(comparison))
    table.print_tables(comparison_tables(comparison), [*summary_lines(comparison), *hints])


def comparison_tables(comparison: Comparison) -> list[table.Table[Compared]]:
    """One table per pair of series and source, what it rests on beneath; fits 80 columns."""
    return [
        table.Table(title, COLUMNS, cases, [*sources, *_beneath(cases)])
        for (title, *sources), cases in _by_series(comparison.cases).items()
    ]


def first_lines(comparison: Comparison) -> list[str]:
    """What comes before the tables: in what A and B were not measured alike, hardware first."""
    lines = other_hardware(comparison.cases)
    found = dict.fromkeys(each.what for case in comparison.cases for each in case.differences)
    if found:
        lines.append(f"A and B were not measured alike: {', '.join(found)} differ, see below")
    return lines


def other_hardware(cases: Iterable[Compared]) -> list[str]:
    """In what the machines of A and B differ, a line for each kind of it, to stand before any
    ratio: accelerators, their memory, CPUs, ways between ranks."""
    found: dict[str, dict[str, None]] = {}
    for case in cases:
        for each in case.differences:
            found.setdefault(each.what, {})[_values(each)] = None
    kinds = [kind for kind in HARDWARE_KINDS if kind in found]
    lines = [f"different {kind}: {listed([*found[kind]], _MOST_LISTED, '; ')}" for kind in kinds]
    return [f"{line}; no outcome is that of the software alone" for line in lines[:1]] + lines[1:]


def summary_lines(comparison: Comparison) -> list[str]:
    """The count of every outcome, the rule that gave it, and what is not in the tables."""
    counts = [f"{v.value} {comparison.count(v)}" for v in RatioOutcome if comparison.count(v)]
    low, high = band(comparison.tolerance)
    lines = [
        ", ".join(counts) or "no cases",
        f"same: B/A from {low:.6g} to {high:.6g} (tolerance {_percent(comparison.tolerance)}); "
        f"an outcome may be wrong {_percent(comparison.risk)} of the time at most",
    ]
    if comparison.unmatched_published:
        lines.append(f"{comparison.unmatched_published} published figures have no like here")
    return lines


def _by_series(cases: Iterable[Compared]) -> dict[tuple[str, ...], list[Compared]]:
    """By title and published sources, each from few devices to many."""
    groups: dict[tuple[str, ...], list[Compared]] = {}
    for case in cases:
        groups.setdefault((_title(case), *_sources(case)), []).append(case)
    for members in groups.values():
        members.sort(
            key=lambda case: table.by_devices(next(iter(case.sides.values())).case.topology)
        )
    return groups


def _title(case: Compared) -> str:
    return " -> ".join(dict.fromkeys(side.case.series for side in case.sides.values()))


def _sources(case: Compared) -> list[str]:
    rows = {name: side.published for name, side in case.sides.items()}
    return [
        f"{name}: published, {row.repository} {row.path} ({row.ref}), {row.hardware}"
        for name, row in rows.items()
        if row
    ]


def _name(case: Compared) -> str:
    return ">".join(dict.fromkeys(side.case.text("topology") for side in case.sides.values()))


def counts(case: Compared, published: str = "pub") -> str:
    """``5/6``: how many runs of A and of B count; ``-`` for a side that lacks the case."""
    return "/".join(_runs(side, published) for side in (case.a, case.b))


def _runs(side: Subject | None, published: str) -> str:
    if side is None:
        return "-"
    return published if side.published else str(side.counted)


def deciding(value: float, tolerance: float) -> str:
    """With as many digits as show on which side of 1, and of an end of the band, the value lies."""
    for form in (ratio_text, "{:.4f}".format, "{:.5f}".format, "{:.6f}".format):
        text = form(value)
        ends = (*band(tolerance), 1.0)
        if all(
            (float(text) < end, float(text) > end) == (value < end, value > end) for end in ends
        ):
            break
    return text


def _median(side: Subject | None, case: Compared) -> table.Cell | None:
    if side is None or not side.speeds:
        return None
    unit = heading = case.unit
    if case.outcome is RatioOutcome.OTHER_UNIT:
        unit, heading = next(iter(side.speeds)), ""
    return table.speed_cell(side.median(unit), unit, heading)


def ratio_text(value: float) -> str:
    """Three digits after the point, so that 0.2 % shows; fewer where the number is long."""
    return f"{value:.3f}" if value < 100 else f"{value:.4g}"


def outcome_style(outcome: str) -> str:
    """The style of rich's in which a terminal shows an outcome."""
    return _STYLES.get(outcome, "yellow")


COLUMNS: tuple[table.Column[Compared], ...] = (
    table.words("case", _name),
    table.figures("A", lambda case: _median(case.a, case)),
    table.figures("B", lambda case: _median(case.b, case)),
    table.figures("B/A", "ratio", form=ratio_text),
    table.figures(
        "CI", lambda c: table.interval_text(c.interval, lambda end: deciding(end, c.tolerance))
    ),
    table.figures("runs", counts),
    table.words("outcome", "outcome.value", style=outcome_style),
)
"""The columns of a terminal, of which the page picks some."""


def _percent(value: float) -> str:
    return f"{100 * value:.4g} %"


def _beneath(cases: Sequence[Compared]) -> list[str]:
    """What intervals and outcomes are worth, once for each pair of counts; then the notes."""
    worth: dict[str, str] = {}
    notes: dict[str, list[str]] = {}
    for case in cases:
        if case.interval is not None:
            pairs = f", in {case.pairs} pairs" * bool(case.pairs)
            worth[f"{counts(case)} runs{pairs}"] = (
                f"the CI covers {_percent(case.interval.coverage)}, "
                f"an outcome is wrong {_percent(error_of(case.interval))} of the time at most"
            )
        if case.note:
            notes.setdefault(case.note, []).append(_name(case))
    lines = _other_than_samples(cases)
    lines += [f"{runs}: {text}" for runs, text in sorted(worth.items())]
    lines += _differing(cases)
    return lines + [f"{', '.join(names)}: {note}" for note, names in notes.items()]


def _other_than_samples(cases: Sequence[Compared]) -> list[str]:
    """What A and B are medians of, where that is not samples/s; with the cases if not all are."""
    found: dict[str, list[str]] = {}
    for case in cases:
        if case.outcome is not RatioOutcome.OTHER_UNIT and case.unit != SAMPLES_PER_S:
            found.setdefault(case.unit, []).append(_name(case))
    return [f"{_unless_all(names, cases)}A and B in {unit}" for unit, names in found.items()]


def _unless_all(names: Sequence[str], cases: Sequence[Compared]) -> str:
    return f"{', '.join(names)}: " * (len(names) != len(cases))


def values_in_short(values: Sequence[str]) -> str:
    """What a side had of one thing: ``a + b + c and 2 more``."""
    return listed(values, _MOST_LISTED, " + ")


def _values(difference: Difference) -> str:
    return f"A {values_in_short(difference.a)}, B {values_in_short(difference.b)}"


def _differing(cases: Sequence[Compared]) -> list[str]:
    """In what A and B are not alike, each once, with the cases if it is not all of them."""
    found: dict[tuple[str, str], list[str]] = {}
    for case in cases:
        for each in case.differences:
            found.setdefault((each.what, _values(each)), []).append(_name(case))
    compared = [case for case in cases if case.ratio is not None]
    return [
        f"{_unless_all(names, compared)}other {what}: {text}"
        for (what, text), names in found.items()
    ]


def comparison_markdown(
    comparison: Comparison, sides: Mapping[str, Sequence[str]], hints: Sequence[str] = ()
) -> str:
    """The tables of :func:`comparison_tables` as GitHub-flavoured Markdown."""
    first = [f"{name}: {', '.join(places)}" for name, places in sides.items()]
    first += first_lines(comparison)
    lines = [*summary_lines(comparison), *hints]
    return table.markdown_tables(
        "Comparison: B over A", comparison_tables(comparison), lines, first
    )


def comparison_junit(comparison: Comparison, bad: Collection[str]) -> bytes:
    """A test for each case: failed if its outcome is among ``bad``, skipped if it has no ratio."""
    tests = [_test(case, case.outcome.value in bad) for case in comparison.cases]
    return table.junit("dlperf compare", tests)


def _test(case: Compared, failed: bool) -> table.JunitCase:
    cells = [(column.name, column.view(case).text) for column in COLUMNS[1:]]
    row = "; ".join(f"{name} {text}" for name, text in cells if text.strip())
    undecided = not failed and case.ratio is None
    return table.JunitCase(
        group=_title(case),
        name=_name(case),
        failure=row * failed,
        skipped=case.outcome.value * undecided,
        output="\n".join([row, *_beneath([case])]),
    )
