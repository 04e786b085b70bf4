"""``report.md``: DLPerf's table per series, with error bars and nothing left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from dlperf_hpc.analysis.option_pairs import OptionPair
from dlperf_hpc.analysis.speedup import CaseSummary
from dlperf_hpc.errors import number_of
from dlperf_hpc.model.result import TOKENS_PER_S, RunResult, Status, own_unit
from dlperf_hpc.model.statistics import Sample
from dlperf_hpc.reporting.report import Report
from dlperf_hpc.reporting.table import markdown_lines, markdown_row, markdown_table
from dlperf_hpc.reporting.tables import (
    Overview,
    overview,
    remarks,
    switch_table,
    wide_table,
    with_coverage,
)
from dlperf_hpc.reporting.text import at_most, code, escape, number
from dlperf_hpc.reporting.writers import Writer

PICTURE = "speedup.png"

_MOST_UNREAD = 100
_MOST_HOSTS = 32


def markdown(report: Report) -> str:
    """The report as GitHub-flavoured Markdown. Text from logs is escaped.

    It shows the picture beside it, if some run counts.
    """
    parts = [
        f"# {escape(report.name)}: throughput and speedup",
        _method(report),
        f"![throughput and speedup against devices]({PICTURE})"
        if report.counted
        else "No plot: no run counts yet.",
        _overview(overview(report.series)),
        *(_series(name, members) for name, members in report.series.items()),
        _option_pairs(report.option_pairs),
        _not_ok(report.runs),
        _warnings(report.warnings),
        _unread(report.unread),
        _legend(report),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _method(report: Report) -> str:
    repeats = sorted({summary.runs for summary in report.cases})
    ok = sum(summary.ok for summary in report.cases)
    runs = sum(summary.runs for summary in report.cases)
    lines = [
        "## How it was measured",
        f"- Source: {escape(report.source)}" if report.source else "",
        f"- When: {report.measured}" if report.measured else "",
        f"- Hosts: {len(report.hosts)} ({escape(_listed(report.hosts))})" if report.hosts else "",
        *(f"- {name}: {escape(values)}" for name, values in report.machines.items()),
        f"- Window: {_windows(report.counted)}",
        "- samples/s: samples through forward and backward in the window, over all devices / the "
        "slowest rank's time",
        "- ms/iteration: time of the window / its iterations, median of the runs. MFU: model FLOPS "
        "/ dense peak of the accelerator. memory_mb: largest peak of a device",
        _tokens(report.cases),
        *_own_figures(report.cases),
        f"- Runs: {_span(repeats)} per case; {ok} of {runs} count (status ok)",
        "- Summary: the median of the runs that count. CI: its order-statistics interval, with the "
        "coverage it truly has, aimed at 95 % (needs 6 runs)",
        "- Speedup: ratio of medians to the base of the same series; its interval is [low / base "
        "high, high / base low]. Efficiency: speedup / (devices / devices of the base)",
    ]
    return "\n".join([lines[0], ""] + [line for line in lines[1:] if line])


def _tokens(cases: Sequence[CaseSummary]) -> str:
    if not any(TOKENS_PER_S in summary.samples for summary in cases):
        return ""
    return (
        "- tokens/s: samples/s x tokens of a sequence, so that padding counts; of logs whose "
        "sequence length is not known, as the program prints it"
    )


def _own_figures(cases: Sequence[CaseSummary]) -> list[str]:
    units = dict.fromkeys(own_unit(summary.samples) for summary in cases)
    told = "the program's own figure, over all devices; samples/s do not follow from it"
    return [f"- {escape(unit)}: {told}" for unit in units if unit]


def _span(counts: Sequence[int]) -> str:
    if not counts:
        return "0"
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _windows(counted: Sequence[RunResult]) -> str:
    seen = {(r.window.warmup, r.window.iterations) for r in counted if r.window}
    rules = dict.fromkeys(r.external.rule for r in counted if r.external)
    if not seen and not rules:
        return "no run has a complete one"
    shapes = [f"{timed} timed iterations after {warm} of warm-up" for warm, timed in sorted(seen)]
    if len(shapes) > 3:
        shapes = [*shapes[:3], f"and {len(shapes) - 3} other lengths (runs.csv has each)"]
    shapes += [f"{rule} of other programs' logs" for rule in rules]
    return "; ".join(shapes)


def _overview(across: Overview | None) -> str:
    """All series side by side: a row for each, a column for each topology."""
    if across is None:
        return ""
    parts = [f"## {across.table.title[:1].upper()}{across.table.title[1:]}"]
    if across.common:
        parts.append(f"All names begin with {code(across.common)}.")
    return "\n\n".join([*parts, markdown_table(across.table)])


def _series(name: str, members: Sequence[CaseSummary]) -> str:
    parts = [f"## {escape(name)}", _base_line(members), markdown_table(wide_table(members))]
    return "\n\n".join(filter(None, [*parts, markdown_lines(remarks(members))]))


def _base_line(members: Sequence[CaseSummary]) -> str:
    first = members[0]
    scaling = {
        "weak": " Weak scaling: the global batch grows with the devices.",
        "strong": f" Strong scaling: the global batch is {first.global_batch} throughout.",
        "mixed": " The global batch is neither fixed nor proportional to the devices.",
    }.get(first.scaling or "", "")
    if first.base is None:
        return f"Base: none; {escape(first.speedup_missing)}.{scaling}"
    found = next((s for s in members if s.base_sample is not None), first)
    if found.base_sample is None:
        return f"Base: {first.base}, of which no run counts.{scaling}"
    return f"Base: {first.base}, {_sample_text(found.base_sample, found.unit)}.{scaling}"


def _sample_text(sample: Sample, unit: str) -> str:
    interval = f", CI {with_coverage(sample.interval)}" if sample.interval else ", no CI"
    runs = "1 run" if sample.n == 1 else f"{sample.n} runs"
    return f"{number(sample.median)} {unit} ({runs}{interval})"


def _option_pairs(found: Sequence[OptionPair]) -> str:
    if not found:
        return ""
    about = "Cases that differ in one option, side by side: the change it makes."
    return f"## One option switched on\n\n{about}\n\n{markdown_table(switch_table(found))}"


def _not_ok(results: Sequence[RunResult]) -> str:
    other = [result for result in results if result.status is not Status.OK]
    if not other:
        return ""
    rows = [
        (code(result.title), str(result.attempt), result.status.value, escape(result.reason))
        for result in other
        if result.status is not Status.HELD_BACK
    ]
    held = Counter(r.reason for r in other if r.status is Status.HELD_BACK)
    for why, count in held.items():  # one row for all: none of them has anything of its own to say
        rows.append((number_of(count, "run"), "0", Status.HELD_BACK.value, escape(why)))
    lines = [("run", "attempt", "status", "reason"), ("-",) * 4, *rows]
    return "\n".join(["## Runs that do not count", "", *map(markdown_row, lines)])


def _warnings(warnings: Mapping[str, Sequence[RunResult]]) -> str:
    """What logs warn of, each sentence once."""
    if not warnings:
        return ""
    lines = []
    for text, runs in warnings.items():
        others = f" and {number_of(len(runs) - 1, 'other')}" if len(runs) > 1 else ""
        lines.append(f"{code(runs[0].title)}{others}: {escape(text)}")
    shown = at_most(lines, _MOST_UNREAD, " (runs.csv has them all)")
    return "\n".join(["## Warnings of runs", "", *(f"- {line}" for line in shown)])


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_HOSTS]) + ", ..." * (len(names) > _MOST_HOSTS)


def _unread(lines: Sequence[str]) -> str:
    if not lines:
        return ""
    shown = at_most(lines, _MOST_UNREAD, " (report.json has them all)")
    return f"## Not read\n\n{markdown_lines(shown)}"


def _legend(report: Report) -> str:
    lines = markdown_lines(f"{flag}: {meaning}" for flag, meaning in report.flags.items())
    return f"## Flags\n\n{lines}" if lines else ""


def picture(report: Report) -> bytes | None:
    """The picture that the tables stand with; None if no run counts."""
    from dlperf_hpc.reporting.picture import picture as drawn

    return drawn(report)


WRITERS = (
    Writer(
        "md",
        "tables for people, and the picture that they show",
        {"report.md": lambda report: markdown(report).encode(), PICTURE: picture},
    ),
)
