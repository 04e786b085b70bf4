"""``report.md``: DLPerf's table per series, with error bars and nothing left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dlperf_hpc.analysis.option_pairs import OptionPair
from dlperf_hpc.analysis.speedup import CaseSummary
from dlperf_hpc.analysis.statistics import Interval, Sample
from dlperf_hpc.records.results import SAMPLES_PER_S, TOKENS_PER_S, RunResult, own_unit
from dlperf_hpc.records.status import Status
from dlperf_hpc.reporting.report import Report
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
from dlperf_hpc.reporting.writers.png import PICTURE, picture

_MOST_UNREAD = 100


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
        *(_series(name, members) for name, members in report.series.items()),
        _option_pairs(report.option_pairs),
        _not_ok(report.runs),
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
        *(f"- {name}: {escape(values)}" for name, values in report.machines.items()),
        f"- Window: {_windows(report.counted)}",
        "- samples/s: samples through forward and backward in the window, over all devices / the "
        "slowest rank's time",
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


def _series(name: str, members: Sequence[CaseSummary]) -> str:
    speed = speed_heading(summary.unit for summary in members if summary.samples)
    tokens = speed == SAMPLES_PER_S and any(TOKENS_PER_S in s.samples for s in members)
    headings = [
        *("node_num", "gpu_num", speed, "CI (coverage)", *([TOKENS_PER_S] if tokens else [])),
        *("speedup", "speedup CI", "efficiency", "runs", "flags"),
    ]
    lines = [
        f"## {escape(name)}",
        "",
        _base_line(members),
        "",
        f"| {' | '.join(headings)} |",
        f"| {' | '.join('-' * len(heading) for heading in headings)} |",
    ]
    lines += [_row(summary, speed, tokens) for summary in members]
    notes = _notes(members)
    return "\n".join(lines + ([""] + notes if notes else []))


def _notes(members: Sequence[CaseSummary]) -> list[str]:
    """Every note once, with the topologies it is about."""
    about: dict[str, list[str]] = {}
    for summary in members:
        for note in summary.notes:
            # why a whole series has no speedup stands in its base line
            if summary.base is not None or note != f"no speedup: {summary.speedup_missing}":
                about.setdefault(note, []).append(str(summary.case.topology))
    return [f"- {', '.join(names)}: {escape(note)}" for note, names in about.items()]


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


def _row(summary: CaseSummary, speed: str, tokens: bool) -> str:
    """``speed`` is the heading of the throughput, ``tokens``: tokens/s are shown beside it."""
    interval = None if summary.sample is None else summary.sample.interval
    cells = [
        str(summary.case.topology.nodes),
        str(summary.case.topology.devices),
        speed_text(summary.speed, summary.unit, speed),
        _with_coverage(interval),
        *([number(summary.median(TOKENS_PER_S))] if tokens else []),
        "" if summary.speedup is None else f"{summary.speedup:.2f}",
        interval_text(summary.speedup_interval),
        percent(summary.efficiency),
        f"{summary.ok}/{summary.runs}",
        ", ".join(summary.flags),
    ]
    return "| " + " | ".join(cells) + " |"


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
            f"| {code(result.run.id)} | {result.attempt} | {result.status.value} | {reason} |"
        )
    for why, count in held.items():  # one row for all: none of them has anything of its own to say
        runs = f"{count} run{'s' * (count > 1)}"
        lines.append(f"| {runs} | 0 | {Status.HELD_BACK.value} | {escape(why)} |")
    return "\n".join(lines)


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
