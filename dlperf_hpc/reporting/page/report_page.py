"""The page of a report, put together: its head, the figure with its data (:mod:`.script_data`), and
the tables.

:data:`SECTIONS` are the parts behind the figure, in order: a function from what is visible to
sections, none where there is nothing to show. Another table of the report is one more of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from textwrap import shorten
from typing import Any

from dlperf_hpc.analysis.machines import facts_of
from dlperf_hpc.analysis.speedup import DEFAULT_BASE, series_name
from dlperf_hpc.errors import at_most, listed, number_of, printable
from dlperf_hpc.model.case import Topology
from dlperf_hpc.model.result import TOKENS_PER_S, Status
from dlperf_hpc.reporting.contents import FlagRow, Report, json_text
from dlperf_hpc.reporting.csv_columns import CASE_COLUMNS, RUN_COLUMNS
from dlperf_hpc.reporting.curves import MOST_RUNS
from dlperf_hpc.reporting.node_tables import nodes_of, sentences
from dlperf_hpc.reporting.page import Page, Remark, Section
from dlperf_hpc.reporting.page.script_data import data_of, figure_of
from dlperf_hpc.reporting.page.visible import (
    MOST_BYTES,
    MOST_NAMED,
    NONE,
    VisibleReport,
    case_table,
    filters,
    key_values,
    keys,
    name_of,
    node_table,
    run_table,
    sentence,
)
from dlperf_hpc.reporting.prediction_tables import page_table
from dlperf_hpc.reporting.report_tables import cost_text, flag_count, switch_table
from dlperf_hpc.reporting.step_tables import step_table
from dlperf_hpc.reporting.table import (
    Column,
    Table,
    by_devices,
    csv_table,
    figures,
    natural,
    words,
)

MOST_NODES = 1000
"""Nodes that the page shows, the slow ones first; ``nodes.csv`` has all."""

_LONGEST_SENTENCE = 500  # characters, on nodes, of which it may name hundreds
_WORDS = ("slow: ", "no node ", "no rank", "to be sure", "to leave out")  # else a node's name
_MOST_LISTED = 100
_MOST_LOSSES = 4  # sentences, of the series that lose most
_MOST_NAMES = 50  # of cases, behind one sentence
_MOST_VALUES = 8
_FOLLOWS = ("ranks", "nodes")  # from the topology
_MOST_KEYS = 500
_LONGEST_VALUE = 300

HOW_TO_READ = (
    "samples/s are samples through forward and backward in the timed window, over all devices, by "
    "the slowest rank's time.",
    "A figure of a case is the median of its runs that count. The confidence interval is of the "
    "median, by order statistics; its coverage is the true one, aimed at 95 %, which needs 6 runs.",
    "Speedup is a ratio of medians to the base of the same series; its interval goes from low / "
    "base high to high / base low. Efficiency is speedup / (devices / devices of the base).",
)
_TOKENS = "tokens/s are samples/s times the length of a sequence, so that padding counts."


def page(report: Report) -> Page:
    """The page of one sweep, or of logs below some paths."""
    visible = VisibleReport(report)
    files = {
        "speedup.csv": csv_table(CASE_COLUMNS, report.case_rows),
        "runs.csv": csv_table(RUN_COLUMNS, report.run_rows),
        "report.json": json_text(report).encode(),
    }
    large = [name for name, content in files.items() if len(content) > MOST_BYTES]
    statuses = Counter(run.status for run in report.runs)
    return Page(
        kind="report",
        title=printable(report.name),
        subtitle="Throughput and scaling",
        facts=_facts(visible),
        counts=tuple(
            (each.value, statuses[each], _kind(each)) for each in Status if statuses[each]
        ),
        remarks=_remarks(report),
        missing=_missing(visible, large),
        figure=figure_of(visible),
        sections=tuple(made for make in SECTIONS for made in make(visible)),
        filters=filters(map(key_values, visible.cases)),
        data=data_of(visible),
        files={name: content for name, content in files.items() if name not in large},
        how_to_read=(*HOW_TO_READ, *[_TOKENS] * (TOKENS_PER_S in visible.units)),
    )


# --- the head


def _facts(visible: VisibleReport) -> tuple[tuple[str, str], ...]:
    """What was measured, where and on what, as names with texts."""
    report = visible.report
    values = keys(map(key_values, report.cases))
    alike = (
        f"{key} {each[0]}" for key, each in values.items() if len(each) == 1 and each[0] != NONE
    )
    bases = dict.fromkeys(str(case.base) for case in visible.cases if case.base is not None)
    found = {
        **report.machines,
        "Base of speedup": ", ".join(bases) or f"none: {report.base or DEFAULT_BASE} has no run",
        "Measured": report.measured,
        "Site": report.site,
        "Node-hours": cost_text(report).partition(": ")[2].strip(),
        "Repeats": report.repeats,
        "Nodes": listed(report.hosts, MOST_NAMED),
        "Alike in all cases": "; ".join(alike),
        "Source": report.source,
    }
    return tuple((name, printable(text)) for name, text in found.items() if text)


def _kind(status: Status) -> str:
    if status is Status.OK:
        return "good"
    return "bad" * (status.bad or status is Status.UNKNOWN)


def _remarks(report: Report) -> tuple[Remark, ...]:
    """What must be known first: a row for each flag, with its sentences and their cases."""
    flags = map(_remark, report.flag_rows)
    if not report.sweeps:
        return tuple(flags)
    from dlperf_hpc.reporting.side_by_side import first_lines

    return (*(Remark(sentence(line)) for line in first_lines(report)), *flags)


def _remark(row: FlagRow) -> Remark:
    lines = []
    for note, cases in row.about.items():
        names = sorted(map(name_of, cases), key=natural)
        lines.append((sentence(note), listed(names, _MOST_NAMES)))
    if len(lines) > _MOST_LISTED:
        more = f"{len(lines) - _MOST_LISTED} more sentences: report.json has all."
        lines = [*lines[:_MOST_LISTED], (more, "")]
    return Remark(flag_count(row), (), row.name, row.meaning, tuple(lines))


def _missing(visible: VisibleReport, large: Iterable[str]) -> tuple[str, ...]:
    """What a reader may expect and does not find, a sentence each."""
    report = visible.report
    lines = [*_without_number(report), *_troubles(report), *_holes(report)]
    lines += [f"Not read: {line}" for line in report.unread[:_MOST_LISTED]]
    if len(report.unread) > _MOST_LISTED:
        lines.append(f"Not read: {len(report.unread) - _MOST_LISTED} more (report.json has all).")
    if report.unrecognised:
        lines.append(
            f"In no known format: {number_of(len(report.unrecognised), 'file')}, among them "
            f"{', '.join(report.unrecognised[:MOST_NAMED])}."
        )
    if len(visible.cases) < len(report.cases):
        lines.append(
            f"This page shows {len(visible.cases)} of {len(report.cases)} cases; "
            "the files for download have all of them."
        )
    if len(visible.runs) < len(report.runs):
        lines.append(
            f"This page shows {len(visible.runs)} of {len(report.runs)} runs one by one: those "
            "that do not count, and the first of each case. Medians and intervals are of all "
            "runs, and the files for download have all of them."
        )
    if len(report.runs) > MOST_RUNS and report.curves:
        lines.append(
            f"Loss and GPUs over time are on this page, and in report.json, of {MOST_RUNS} of "
            f"{len(report.runs)} runs: the first repeats."
        )
    lines += [f"{name} is too large for this page: it lies beside it." for name in large]
    return tuple(map(printable, lines))


def _without_number(report: Report) -> list[str]:
    if not report.runs:
        return ["No run is known yet."]
    if not report.counted:
        return ["No run counts, so that there is no number yet."]
    if len(report.counted) == 1:
        return ["A single run counts: nothing tells how much another run would differ."]
    return []


def _troubles(report: Report) -> list[str]:
    """Runs without a number, those of one status and reason in one sentence."""
    groups: dict[tuple[Status, str], list[str]] = {}
    for run in report.runs:
        if not run.rates:
            case = run.run.case
            name = f"{series_name(case, run.sweep)} {case.topology} #{run.run.repeat}"
            groups.setdefault((run.status, run.reason), []).append(name)
    lines = []
    for (status, reason), names in groups.items():
        why = f"{status.value}: {reason}" if reason else status.value
        lines.append(f"{number_of(len(names), 'run')} {why} ({listed(names, MOST_NAMED)})")
    return at_most(lines, _MOST_LISTED, " reasons: see the runs below")


def _holes(report: Report) -> list[str]:
    """Series that lack a topology which others have."""
    series: dict[str, list[str]] = {}
    for name, members in report.series.items():
        here = {member.case.topology for member in members}
        if lacks := [str(each) for each in report.topologies if each not in here]:
            series.setdefault(", ".join(lacks), []).append(name)
    return [
        f"No case of {topologies}, which other series have: {_first(names, MOST_NAMED)}."
        for topologies, names in series.items()
    ]


def _first(names: Iterable[str], most: int, between: str = ", ") -> str:
    return listed(sorted(names, key=natural), most, between)


# --- the parts behind the figure


def _cases(visible: VisibleReport) -> list[Section]:
    if not visible.cases:
        return []
    lines = [f"All cases are of the series {printable(name)}." for name in visible.series]
    return [Section("cases", "Cases", tuple(lines[: len(lines) == 1]), case_table(visible))]


def _runs(visible: VisibleReport) -> list[Section]:
    if not visible.runs:
        return []
    line = "The button of a run opens its iterations and what its log tells."
    return [Section("runs", "Runs", (line,), run_table(visible.runs))]


def _options(visible: VisibleReport) -> list[Section]:
    if not visible.report.option_pairs:
        return []
    line = "Cases that differ in one option, side by side: what the option changes."
    table = switch_table(visible.report.option_pairs)
    return [Section("options", "One option switched on", (line,), table)]


def _nodes(visible: VisibleReport) -> list[Section]:
    """Where there are several nodes, or ranks tell their own times, as in ``nodes.csv``."""
    found = visible.report.nodes
    if not found.several:
        return []
    lines = [shorten(printable(line), _LONGEST_SENTENCE) for line in sentences(found)]
    lines = [sentence(line) if line.startswith(_WORDS) else line for line in lines]
    rows = nodes_of(found)
    if len(rows) > MOST_NODES:
        lines.append(f"This page shows {MOST_NODES} nodes at most; nodes.csv has all.")
    return [Section("nodes", "Nodes", tuple(lines), node_table(rows[:MOST_NODES]))]


def _predictions(visible: VisibleReport) -> list[Section]:
    """Where a series was measured on several counts of full nodes."""
    if not visible.report.predictions:
        return []
    table = page_table(visible.report.predictions)
    lines = tuple(sentence(printable(line)) for line in table.beneath[:_MOST_LISTED])
    return [Section("predictions", "More nodes, predicted", lines, table)]


Line = tuple[str, str, int, str]
"""What differs, a value of it, the runs that have it, and their topologies."""

_DIFFERING: tuple[Column[Line], ...] = (
    words("what", lambda line: line[0]),
    words("value", lambda line: line[1], long=True),
    figures("runs", lambda line: line[2], form=str),
    words("topologies", lambda line: line[3]),
)
_ALL: tuple[Column[tuple[str, str]], ...] = (
    words("what", lambda line: line[0]),
    words("value", lambda line: line[1], long=True),
)

Facts = Mapping[str, list[Topology]]
"""The values of one fact, with the topologies of the runs that have each."""


def _step_parts(visible: VisibleReport) -> list[Section]:
    """Where some part of a step was measured."""
    table = step_table(visible.report.step_parts, _MOST_LOSSES)
    if not table.rows:
        return []
    lines = tuple(sentence(printable(line)) for line in table.beneath)
    places = visible.places
    rows = [row for row in table.rows if (row.summary.case.id, row.summary.sweep) in places]
    items = [places[row.summary.case.id, row.summary.sweep] for row in rows]
    lines += ("The figure has the first 24 cases that are not filtered.",) * (len(rows) > 24)
    drawn = replace(table, rows=rows, items=items)
    return [Section("time", "Where the time goes", lines, drawn, draws="parts")]


def _provenance(visible: VisibleReport) -> list[Section]:
    """What runs were made on and with: first in what they differ, then all that they tell."""
    values: dict[str, dict[str, list[Topology]]] = {}
    for run in visible.report.counted or visible.report.runs:
        for name, value in facts_of(run).items():
            if name in values or len(values) < _MOST_KEYS:
                runs = values.setdefault(name, {}).setdefault(_text(value), [])
                runs.append(run.run.case.topology)
    if not values:
        return []
    lines = [(name, _first(facts, _MOST_VALUES, "; ")) for name, facts in values.items()]
    everything = Table("All that the logs tell", _ALL, lines, name="provenance")
    whole = Section("provenance", "Provenance: all of it", (), everything, folded=True)
    if visible.report.sweeps:
        return [whole]
    rows: list[Line] = []
    for name, facts in values.items():
        if name not in _FOLLOWS and len(facts) > 1:
            rows += _differing_rows(name, facts)
    line, table = "All runs were made alike, as far as their logs tell.", None
    if rows:
        line = "Machine, software and settings in which the runs are not alike."
        table = Table("In what the runs differ", _DIFFERING, rows, name="differs")
    return [Section("differs", "Provenance: what differs", (line,), table), whole]


def _sweeps(visible: VisibleReport) -> list[Section]:
    """Several sweeps: a row for each fact in which they differ, in place of what runs differ in."""
    if not visible.report.sweeps:
        return []
    from dlperf_hpc.reporting.side_by_side import table

    made = table(visible.report)
    lines = [sentence(line) for line in made.beneath]
    if not made.rows:
        lines.insert(0, "All sweeps were made alike, as far as they tell.")
    return [Section("differs", "What differs between the sweeps", tuple(lines),
                    made if made.rows else None)]  # fmt: skip


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        value = ", ".join(dict.fromkeys(map(str, value)))
    text = printable(str(value))
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def _differing_rows(name: str, facts: Facts) -> list[Line]:
    """A row for each value; where nearly every run has its own, one row."""
    if len(facts) > _MOST_VALUES:
        some = ", ".join(sorted(facts, key=natural)[:2])
        text = f"{number_of(len(facts), 'value')}: {some} ..."
        return [(name, text, sum(map(len, facts.values())), "")]
    rows: list[Line] = []
    for value, runs in sorted(facts.items(), key=lambda item: (-len(item[1]), natural(item[0]))):
        names = list(map(str, sorted({*runs}, key=by_devices)))
        rows.append((name, value or "(empty)", len(runs), listed(names, MOST_NAMED)))
    return rows


SECTIONS: tuple[Callable[[VisibleReport], list[Section]], ...] = (
    _sweeps, _cases, _step_parts, _runs, _options, _predictions, _nodes, _provenance,
)  # fmt: skip
"""The parts behind the figure, in order."""
