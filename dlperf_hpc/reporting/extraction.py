"""Results as DLPerf's extraction scripts show them: a line per log, a table per model, notes.

The tables are :mod:`dlperf_hpc.analysis.dlperf_rule`'s. Their JSON has one key per model and none
for precision, batch size or options: runs that differ in these make a table each, with a label.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dlperf_hpc.analysis.dlperf_rule import DlperfTable, dlperf_table, round2
from dlperf_hpc.analysis.flags import FLAGS
from dlperf_hpc.analysis.speedup import chosen, summarise
from dlperf_hpc.errors import listed
from dlperf_hpc.model.case import CaseFacts
from dlperf_hpc.model.result import TOKENS_PER_S, RunResult, Status

AVERAGE_DIGITS: Mapping[str, int] = {
    name: 4 for name in ("deepspeed-time", "ngc-tf-bert-logs", "ngc-tf-bert-time")
}
"""Rules of which DLPerf's script rounds ``average_speed`` to other than 2 digits."""

_DOUBTS = (
    *("over-peak", "super-linear", "no-optimizer-step", "all-steps-skipped", "bimodal"),
    *("unsteady", "mixed-settings", "clock-and-print-differ", "total-and-lines-differ"),
)
_UNSAFE = re.compile(r"[^A-Za-z0-9.+-]+")

Show = Callable[[str], str]
"""A log's path as it is shown."""


@dataclass(frozen=True)
class Extract:
    """What goes to one result file; ``label`` tells it from others, '' if it is the only one.
    ``lines`` are the screen's, a log each; ``table`` is the file's content; ``missing`` says what
    is not in it and why."""

    label: str
    lines: tuple[str, ...]
    table: Mapping[str, Any]
    missing: tuple[str, ...] = ()


SCHEMA = "dlperf-extract/1"


def as_json(
    log_dir: str, rule: str, written: Iterable[tuple[str, Extract]], notes: Sequence[str]
) -> dict[str, Any]:
    """What was written, as plain JSON values: ``files`` with their paths, and the notes."""
    files = [
        {
            "path": path,
            "label": made.label,
            "logs": list(made.lines),
            "result": made.table,
            "missing": list(made.missing),
        }
        for path, made in written
    ]
    about = {"schema": SCHEMA, "log_dir": log_dir, "rule": rule}
    return {**about, "files": files, "notes": list(notes)}


def extracts(results: Sequence[RunResult], show: Show, average_digits: int = 2) -> list[Extract]:
    """One per result file; logs in the order of topology and repeat, whatever theirs was."""
    groups: dict[str, list[RunResult]] = {}
    for result in sorted(chosen(results), key=lambda r: (r.run.case.topology, r.run.repeat)):
        groups.setdefault(result.run.case.series, []).append(result)
    groups = {name: groups[name] for name in sorted(groups)}
    labels = _labels({name: group[0].run.case for name, group in groups.items()})
    found: dict[str, Extract] = {}
    for name, group in groups.items():
        lines, table = _table(group, show, average_digits)
        before = found.get(labels[name], Extract("", (), {}))
        where = f"{name}: " * (len(groups) > 1)
        found[labels[name]] = Extract(
            labels[name],
            (*before.lines, *lines),
            {**before.table, **table.to_dict()},
            (*before.missing, *(where + reason for reason in table.reasons)),
        )
    return list(found.values())


def _table(
    group: Sequence[RunResult], show: Show, average_digits: int
) -> tuple[list[str], DlperfTable]:
    speeds: dict[str, dict[int, float]] = {}
    lines = []
    for result in group:
        name, value = str(result.run.case.topology), result.samples_per_s
        runs = speeds.setdefault(name, {})
        if value is not None:
            runs[result.run.repeat] = value
            rounded = {repeat: round2(each) for repeat, each in runs.items()}
            lines.append(f"{show(_log(result))} {rounded}")
    case = group[0].run.case
    return lines, dlperf_table(case.model or "unknown", case.batch_size, speeds, average_digits)


def _labels(cases: Mapping[str, CaseFacts]) -> dict[str, str]:
    """A label per series: what of its settings not all have, '' where the model says it all."""
    if len({case.model for case in cases.values()}) == len(cases):
        return dict.fromkeys(cases, "")
    parts = {name: _parts(case) for name, case in cases.items()}
    differing = [i for i, values in enumerate(zip(*parts.values())) if len(set(values)) > 1]
    labels: dict[str, str] = {}
    taken: set[tuple[str, str]] = set()
    for name, values in parts.items():
        plain = label = "_".join(_UNSAFE.sub("-", values[i]).strip("-") for i in differing)
        numbers = itertools.count(2)
        while (cases[name].model, label) in taken:  # two that only odd characters told apart
            label = f"{plain}-{next(numbers)}"
        taken.add((cases[name].model, label))
        labels[name] = label
    return labels


def _parts(case: CaseFacts) -> tuple[str, str, str]:
    variant = "-".join([case.precision or "unknown", *case.tags])
    return case.framework, f"bz{case.batch_size or 'unknown'}", variant


def counted_logs(results: Sequence[RunResult]) -> set[str]:
    """Logs that a number was taken from."""
    return {_log(result) for result in chosen(results) if result.samples_per_s is not None}


def left_out(results: Sequence[RunResult], show: Show) -> list[str]:
    """Each log without a number in a table, and why."""
    counted = counted_logs(results)
    owners = {r.run.id: _log(r) for r in chosen(results) if r.samples_per_s is not None}
    reasons: dict[str, str] = {}
    for result in results:
        if _log(result) in counted:
            continue
        if result.samples_per_s is not None:
            run = f"run {result.run.repeat} of {result.run.case.topology}"
            reason = f"{show(owners[result.run.id])} is {run} as well, and counts"
        else:
            status = "" if result.status is Status.OK else f"{result.status.value}: "
            reason = f"{status}{result.reason or _without_samples(result)}"
        reasons[_log(result)] = reason
    return [f"left out: {show(log)}: {reason}" for log, reason in reasons.items()]


def _without_samples(result: RunResult) -> str:
    if not result.rates:
        return "it has no speed"
    lacking = "--seq-len" if TOKENS_PER_S in result.rates else "--batch-size"
    return f"it gives {' and '.join(result.rates)}, DLPerf's tables are in samples/s ({lacking})"


def warnings(results: Sequence[RunResult], show: Show) -> list[str]:
    """What is odd about single logs; the same of several is said once."""
    logs: dict[str, dict[str, None]] = {}
    for result in results:
        for warning in result.warnings:
            logs.setdefault(warning, {})[_log(result)] = None
    return [f"{listed([*map(show, of)], 1)}: {warning}" for warning, of in logs.items()]


def other_batch_size(results: Sequence[RunResult], configured: int) -> list[str]:
    """Where a batch size given on the command line is not that of the logs."""
    sizes = Counter(result.run.case.batch_size for result in results)
    return [
        f"--batch_size_per_device={configured} is not believed of {count} of {len(results)} runs: "
        f"their logs or names say {value}"
        for value, count in sorted(sizes.items(), key=str)
        if value not in (None, configured)
    ]


def bases(results: Sequence[RunResult], rule: str) -> list[str]:
    """What the figures rest on, unless all do on this rule."""
    used = Counter(
        result.external.rule if result.external else "the timed window of our own logs"
        for result in chosen(results)
        if result.samples_per_s is not None
    )
    if set(used) <= {rule}:
        return []
    total = sum(used.values())
    bases = ", ".join(f"{each} ({count} of {total} runs)" for each, count in used.items())
    return [f"the figures do not all rest on {rule}, but on {bases}"]


def doubts(results: Sequence[RunResult], accelerator: str | None = None) -> list[str]:
    """Flags of the report that make a speed or a speedup doubtful."""
    summaries = summarise(results, accelerator=accelerator)
    several = len({summary.case.series for summary in summaries}) > 1
    hits: dict[str, list[str]] = {}
    for summary in sorted(summaries, key=lambda s: (s.case.series, s.case.topology)):
        where = f"{summary.case.series} " if several else ""
        for flag in summary.flags:
            hits.setdefault(flag, []).append(f"{where}{summary.case.topology}")
    return [f"{flag} at {', '.join(hits[flag])}: {FLAGS[flag]}" for flag in _DOUBTS if flag in hits]


def _log(result: RunResult) -> str:
    return result.log or result.run.id
