"""``report.md``: DLPerf's table per series, with error bars and nothing left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from dlperf_hpc.analysis.option_pairs import OptionPair
from dlperf_hpc.analysis.speedup import CaseSummary
from dlperf_hpc.analysis.statistics import Interval, Sample
from dlperf_hpc.errors import number_of
from dlperf_hpc.records.results import SAMPLES_PER_S, TOKENS_PER_S, RunResult, own_unit
from dlperf_hpc.records.status import Status
from dlperf_hpc.reporting.picture import PICTURE, picture
from dlperf_hpc.reporting.report import Report
from dlperf_hpc.reporting.tables import Overview, overview, remarks
from dlperf_hpc.reporting.text import (
    code,
    escape,
    interval_text,
    number,
    percent,
    speed_heading,
    speed_text,
)
from dlperf_hpc.reporting.writers import Writer

_MOST_UNREAD = 100
_MOST_HOSTS = 32
_EVEN_IF_EMPTY = ("CI (coverage)", "speedup", "speedup CI", "efficiency", "flags")


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
    headings = ["series", *across.topologies]
    lines = [
        f"## All series: {across.of}",
        "",
        f"All names begin with {code(across.common)}.\n" if across.common else "",
        f"| {' | '.join(headings)} |",
        f"| {' | '.join('-' * len(heading) for heading in headings)} |",
        *(f"| {escape(name)} | {' | '.join(cells)} |" for name, cells in across.rows.items()),
    ]
    return "\n".join(line for i, line in enumerate(lines) if line or i == 1)


def _series(name: str, members: Sequence[CaseSummary]) -> str:
    columns = _columns(members)
    lines = [
        f"## {escape(name)}",
        "",
        _base_line(members),
        "",
        f"| {' | '.join(columns)} |",
        f"| {' | '.join('-' * len(heading) for heading in columns)} |",
    ]
    for summary in members:
        lines.append(f"| {' | '.join(text(summary) for text in columns.values())} |")
    notes = [f"- {escape(told)}" for told in remarks(members)]
    return "\n".join(lines + ([""] + notes if notes else []))


def _columns(members: Sequence[CaseSummary]) -> dict[str, Callable[[CaseSummary], str]]:
    """By heading: DLPerf's columns and its order, each figure with its interval. What no case of
    the series has has no column."""
    speed = speed_heading(summary.unit for summary in members if summary.samples)
    found: dict[str, Callable[[CaseSummary], str]] = {
        "node_num": lambda s: str(s.case.topology.nodes),
        "gpu_num": lambda s: str(s.case.topology.devices),
        speed: lambda s: speed_text(s.speed, s.unit, speed),
        "CI (coverage)": lambda s: _with_coverage(s.sample.interval if s.sample else None),
        "tokens/s": lambda s: number(s.median(TOKENS_PER_S)) if speed == SAMPLES_PER_S else "",
        "speedup": lambda s: "" if s.speedup is None else f"{s.speedup:.2f}",
        "speedup CI": lambda s: interval_text(s.speedup_interval),
        "efficiency": lambda s: percent(s.efficiency),
        "ms/iteration": lambda s: number(s.iteration_ms),
        "MFU": lambda s: percent(s.mfu),
        "memory_mb": lambda s: "" if s.memory_mb is None else f"{s.memory_mb:.0f}",
        "exposed_comm": lambda s: percent(s.exposed_comm),
        "runs": lambda s: f"{s.ok}/{s.runs}",
        "flags": lambda s: ", ".join(s.flags),
    }
    if speed == TOKENS_PER_S:
        found[speed] = lambda s: speed_text(s.speed, s.unit, speed)
    kept = {*_EVEN_IF_EMPTY, speed}
    return {
        heading: text
        for heading, text in found.items()
        if heading in kept or any(map(text, members))
    }


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
    interval = f", CI {_with_coverage(sample.interval)}" if sample.interval else ", no CI"
    runs = "1 run" if sample.n == 1 else f"{sample.n} runs"
    return f"{number(sample.median)} {unit} ({runs}{interval})"


def _with_coverage(interval: Interval | None) -> str:
    return "" if interval is None else f"{interval_text(interval)} ({percent(interval.coverage)})"


def _option_pairs(found: Sequence[OptionPair]) -> str:
    if not found:
        return ""
    speed = speed_heading(pair.unit for pair in found)
    headings = ("batch", "precision", "topology", "switched on", f"{speed} off", "on", "change",
                "ratio CI", "memory_mb off", "on", "change", "gpu_util off", "on")  # fmt: skip
    lines = [
        "## One option switched on",
        "",
        "Cases that differ in one option, side by side: the change it makes.",
        "",
        f"| {' | '.join(headings)} |",
        f"| {' | '.join('-' * len(heading) for heading in headings)} |",
        *(_pair_row(pair, speed) for pair in found),
    ]
    return "\n".join(lines)


def _pair_row(pair: OptionPair, speed: str) -> str:
    off, on, case = pair.off, pair.on, pair.on.case
    memory = ["", "", ""]
    if pair.memory_mb is not None and off.memory_mb:
        share = f"{100 * pair.memory_mb / off.memory_mb:+.1f} %"
        memory = [number(off.memory_mb), number(on.memory_mb), f"{pair.memory_mb:+.0f} ({share})"]
    cells = [
        str(case.batch_size or ""),
        escape(case.precision),
        str(case.topology),
        code(f"{case.framework}/{case.model} {pair.name}"),
        speed_text(off.median(pair.unit), pair.unit, speed),
        speed_text(on.median(pair.unit), pair.unit, speed),
        f"{100 * (pair.ratio - 1):+.1f} %",
        interval_text(pair.interval),
        *memory,
        number(off.gpu_util),
        number(on.gpu_util),
    ]
    return "| " + " | ".join(cells) + " |"


def _not_ok(results: Sequence[RunResult]) -> str:
    other = [result for result in results if result.status is not Status.OK]
    if not other:
        return ""
    lines = [
        "## Runs that do not count",
        "",
        "| run | attempt | status | reason |",
        "| - | - | - | - |",
    ]
    held = Counter(r.reason for r in other if r.status is Status.HELD_BACK)
    for result in other:
        if result.status is Status.HELD_BACK:
            continue
        reason = escape(result.reason)
        lines.append(
            f"| {code(result.title)} | {result.attempt} | {result.status.value} | {reason} |"
        )
    for why, count in held.items():  # one row for all: none of them has anything of its own to say
        runs = f"{count} run{'s' * (count > 1)}"
        lines.append(f"| {runs} | 0 | {Status.HELD_BACK.value} | {escape(why)} |")
    return "\n".join(lines)


def _warnings(warnings: Mapping[str, Sequence[RunResult]]) -> str:
    """What logs warn of, each sentence once."""
    if not warnings:
        return ""
    shown = []
    for text, runs in [*warnings.items()][:_MOST_UNREAD]:
        others = f" and {number_of(len(runs) - 1, 'other')}" if len(runs) > 1 else ""
        shown.append(f"- {code(runs[0].title)}{others}: {escape(text)}")
    if len(warnings) > _MOST_UNREAD:
        shown.append(f"- and {len(warnings) - _MOST_UNREAD} more (runs.csv has them all)")
    return "\n".join(["## Warnings of runs", "", *shown])


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_HOSTS]) + ", ..." * (len(names) > _MOST_HOSTS)


def _unread(lines: Sequence[str]) -> str:
    if not lines:
        return ""
    shown = [f"- {escape(line)}" for line in lines[:_MOST_UNREAD]]
    if len(lines) > _MOST_UNREAD:
        shown.append(f"- and {len(lines) - _MOST_UNREAD} more (report.json has them all)")
    return "\n".join(["## Not read", "", *shown])


def _legend(report: Report) -> str:
    lines = [f"- {flag}: {escape(meaning)}" for flag, meaning in report.flags.items()]
    return "\n".join(["## Flags", "", *lines]) if lines else ""


WRITER = Writer(
    "md",
    "tables for people, and the picture that they show",
    {"report.md": lambda report: markdown(report).encode(), PICTURE: picture},
)
