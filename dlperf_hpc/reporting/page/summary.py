"""The head of a report's page: what was measured where, what must be known before any figure, and
what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from dlperf_hpc.analysis.flags import FLAGS
from dlperf_hpc.analysis.speedup import DEFAULT_BASE, series_name
from dlperf_hpc.errors import number_of, printable
from dlperf_hpc.model.result import RunResult, Status
from dlperf_hpc.reporting.nodes import cost_text
from dlperf_hpc.reporting.page import Remark
from dlperf_hpc.reporting.page.limits import (
    MOST_FILES,
    MOST_NAMED,
    NONE,
    VisibleReport,
    key_values,
    keys,
    name_of,
    sentence,
)
from dlperf_hpc.reporting.report import Report
from dlperf_hpc.reporting.text import at_most, listed, natural, span

_MOST_LISTED = 100


def facts(visible: VisibleReport) -> tuple[tuple[str, str], ...]:
    """What was measured, where and on what, as names with texts."""
    report = visible.report
    began = sorted(run.started for run in report.runs if run.started)
    ended = sorted(run.ended for run in report.runs if run.ended)
    found = {
        "Measured": span([*began[:1], *ended[-1:]]),
        "Site": report.site,
        "Node-hours": cost_text(report.cost).partition(": ")[2].strip(),
        "Nodes": listed(report.hosts, MOST_NAMED),
        **report.machines,
        "Base of speedup": visible.base or f"none: {report.base or DEFAULT_BASE} has no run",
        "Alike in all cases": "; ".join(
            f"{key} {values[0]}"
            for key, values in keys(map(key_values, report.cases)).items()
            if len(values) == 1 and values[0] != NONE
        ),
        "Source": report.source,
    }
    return tuple((name, printable(text)) for name, text in found.items() if text)


def counts(report: Report) -> tuple[tuple[str, int, str], ...]:
    """Runs by status: (status, runs, ``good``, ``bad`` or '')."""
    found = Counter(run.status for run in report.runs)
    return tuple((status.value, found[status], _kind(status)) for status in Status if found[status])


def _kind(status: Status) -> str:
    if status is Status.OK:
        return "good"
    return "bad" if status.bad or status is Status.UNKNOWN else ""


# --- what must be known first


def remarks(report: Report) -> tuple[Remark, ...]:
    """Every flag as a sentence, with the cases that it is about; the gravest first."""
    about: dict[tuple[str, str], list[str]] = {}
    for summary in report.cases:
        named = [(flag.name, flag.note) for flag in summary.evidence]
        told = {note for _, note in named}
        named += [("", note) for note in summary.notes if note not in told]
        for each in named:
            about.setdefault(each, []).append(name_of(summary))
    order = {flag: place for place, flag in enumerate(FLAGS)}
    return tuple(
        Remark(
            sentence=sentence(note),
            cases=tuple(sorted(cases, key=natural)),
            flag=flag,
            meaning=FLAGS.get(flag, ""),
        )
        for (flag, note), cases in sorted(
            about.items(), key=lambda item: order.get(item[0][0], len(order))
        )
    )


def missing(visible: VisibleReport, files: Mapping[str, bytes]) -> tuple[str, ...]:
    """What a reader may expect and does not find, a sentence each."""
    report = visible.report
    lines = [*_without_number(report), *_troubles(report), *_holes(report)]
    lines += [f"Not read: {line}" for line in report.unread[:_MOST_LISTED]]
    if len(report.unread) > _MOST_LISTED:
        lines.append(f"Not read: {len(report.unread) - _MOST_LISTED} more (report.json has all).")
    if report.unrecognised:
        lines.append(
            f"In no known format: {number_of(len(report.unrecognised), 'file')}, among them "
            f"{listed(report.unrecognised[:MOST_NAMED], MOST_NAMED)}."
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
    lines += [
        f"{name} is too large for this page: it lies beside it."
        for name, content in files.items()
        if len(content) > MOST_FILES * 8
    ]
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
    groups: dict[tuple[Status, str], list[RunResult]] = {}
    for run in report.runs:
        if not run.rates:
            groups.setdefault((run.status, run.reason), []).append(run)
    lines = []
    for (status, reason), runs in groups.items():
        names = listed(
            [
                f"{series_name(r.run.case, r.sweep)} {r.run.case.topology} #{r.run.repeat}"
                for r in runs
            ],
            MOST_NAMED,
        )
        why = f": {reason}" if reason else ""
        lines.append(f"{number_of(len(runs), 'run')} {status.value}{why} ({names})")
    return at_most(lines, _MOST_LISTED, " reasons: see the runs below")


def _holes(report: Report) -> list[str]:
    """Series that lack a topology which others have."""
    everywhere = {case.case.topology for case in report.cases}
    lines: dict[str, list[str]] = {}
    for name, members in report.series.items():
        here = {member.case.topology for member in members}
        if lacks := sorted(everywhere - here, key=lambda t: (t.devices, t)):
            lines.setdefault(", ".join(map(str, lacks)), []).append(name)
    return [
        f"No case of {topologies}, which other series have: {_in_short(names)}."
        for topologies, names in lines.items()
    ]


def _in_short(names: Sequence[str]) -> str:
    return listed(sorted(names, key=natural), MOST_NAMED)
