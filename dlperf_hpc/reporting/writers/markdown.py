"""``report.md``: DLPerf's table per series, with error bars and nothing left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from dlperf_hpc.analysis.speedup import CaseSummary, OptionPair
from dlperf_hpc.errors import at_most, listed, number_of
from dlperf_hpc.model.result import TOKENS_PER_S, RunResult, Status, own_unit
from dlperf_hpc.model.statistics import Sample
from dlperf_hpc.reporting.contents import Report
from dlperf_hpc.reporting.report_tables import (
    case_names,
    flag_count,
    overview,
    switch_table,
    wide_table,
    with_coverage,
)
from dlperf_hpc.reporting.table import code, escape, markdown_lines, markdown_table, number
from dlperf_hpc.reporting.writers import Writer

PICTURE = "speedup.png"

_MOST_LISTED = 100
_MOST_HOSTS = 32


def markdown(report: Report) -> str:
    """The report as GitHub-flavoured Markdown, text from logs escaped, beside its picture."""
    plot = "No plot: no run counts yet."
    if report.counted:
        plot = f"![throughput and speedup against devices]({PICTURE})"
    parts = [
        f"# {escape(report.name)}: throughput and speedup",
        _method(report),
        _sweeps(report),
        plot,
        _overview(report),
        _flags(report),
        *(_series(name, members) for name, members in report.series.items()),
        _option_pairs(report.option_pairs),
        _predictions(report),
        _step_parts(report),
        _not_ok(report.runs),
        _warnings(report),
        _listed("Not read", report.unread, "report.json"),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


_TOKENS = (
    "tokens/s: samples/s x tokens of a sequence, so that padding counts; of logs whose sequence "
    "length is not known, as the program prints it"
)
_OWN_FIGURE = "the program's own figure, over all devices; samples/s do not follow from it"


def _method(report: Report) -> str:
    cases = report.cases
    repeats = sorted({summary.runs for summary in cases})
    ok, runs = sum(summary.ok for summary in cases), sum(summary.runs for summary in cases)
    facts = {
        "Source": escape(report.source),
        "When": report.measured,
        "Hosts": report.hosts
        and f"{len(report.hosts)} ({escape(listed(report.hosts, _MOST_HOSTS))})",
        **{name: escape(values) for name, values in report.machines.items()},
        "Window": _windows(report.counted),
    }
    lines = [f"{name}: {text}" for name, text in facts.items() if text]
    lines += [
        "samples/s: samples through forward and backward in the window, over all devices / the "
        "slowest rank's time",
        "ms/iteration: time of the window / its iterations, median of the runs. MFU: model FLOPS "
        "/ dense peak of the accelerator. memory_mb: largest peak of a device",
    ]
    if any(TOKENS_PER_S in summary.samples for summary in cases):
        lines.append(_TOKENS)
    units = dict.fromkeys(own_unit(summary.samples) for summary in cases)
    lines += [f"{escape(unit)}: {_OWN_FIGURE}" for unit in units if unit]
    lines += [
        f"Runs: {_span(repeats)} per case; {ok} of {runs} count (status ok)",
        "Summary: the median of the runs that count. CI: its order-statistics interval, with the "
        "coverage it truly has, aimed at 95 % (needs 6 runs)",
        "Speedup: ratio of medians to the base of the same series; its interval is [low / base "
        "high, high / base low]. Efficiency: speedup / (devices / devices of the base)",
    ]
    lines += [f"Repeats: {report.repeats}"] if report.repeats else []
    return _section("How it was measured", (f"- {line}" for line in lines))


def _section(title: str, lines: Iterable[str]) -> str:
    return "\n".join([f"## {title}", "", *lines])


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


def _overview(report: Report) -> str:
    """All series side by side: a row for each, a column for each topology."""
    across = overview(report)
    if across is None:
        return ""
    return _section(across.title[:1].upper() + across.title[1:], [markdown_table(across)])


def _sweeps(report: Report) -> str:
    """Several sweeps: what must be known first, and in what they differ."""
    if not report.sweeps:
        return ""
    from dlperf_hpc.reporting.side_by_side import first_lines, table

    made = table(report)
    parts = [markdown_lines([*first_lines(report), *made.beneath]), "", markdown_table(made)]
    return _section(made.title, parts)


def _series(name: str, members: Sequence[CaseSummary]) -> str:
    parts = [f"## {escape(name)}", _base_line(members), markdown_table(wide_table(members))]
    return "\n\n".join(filter(None, parts))


_SCALING = {
    "weak": " Weak scaling: the global batch grows with the devices.",
    "strong": " Strong scaling: the global batch is {} throughout.",
    "mixed": " The global batch is neither fixed nor proportional to the devices.",
}


def _base_line(members: Sequence[CaseSummary]) -> str:
    first = members[0]
    scaling = _SCALING.get(first.scaling or "", "").format(first.global_batch)
    if first.base is None:
        return f"Base: none; {escape(first.speedup_missing)}.{scaling}"
    found = next((s for s in members if s.base_sample is not None), first)
    if found.base_sample is None:
        return f"Base: {first.base}, of which no run counts.{scaling}"
    return f"Base: {first.base}, {_sample_text(found.base_sample, found.unit)}.{scaling}"


def _sample_text(sample: Sample, unit: str) -> str:
    interval = f"CI {with_coverage(sample.interval)}" if sample.interval else "no CI"
    return f"{number(sample.median)} {unit} ({number_of(sample.n, 'run')}, {interval})"


def _option_pairs(found: Sequence[OptionPair]) -> str:
    if not found:
        return ""
    about = "Cases that differ in one option, side by side: the change it makes."
    return _section("One option switched on", [f"{about}\n", markdown_table(switch_table(found))])


def _predictions(report: Report) -> str:
    if not report.predictions:
        return ""
    from dlperf_hpc.reporting.prediction_tables import page_table

    table = page_table(report.predictions)
    parts = [markdown_table(table), "", markdown_lines(table.beneath)]
    return _section("More nodes, predicted", parts)


def _step_parts(report: Report) -> str:
    if not report.step_parts:
        return ""
    from dlperf_hpc.reporting.step_tables import step_table

    table = step_table(report.step_parts)
    lines = [markdown_table(table), "", markdown_lines(table.beneath)]
    return _section("Where the time goes", lines)


def _not_ok(results: Sequence[RunResult]) -> str:
    held: Counter[str] = Counter()
    rows = []
    for each in results:
        if each.status is Status.HELD_BACK:
            held[each.reason] += 1
        elif each.status is not Status.OK:
            row = (code(each.title), str(each.attempt), each.status.value, escape(each.reason))
            rows.append(row)
    for why, count in held.items():  # one row for all: none of them has anything of its own to say
        rows.append((number_of(count, "run"), "0", Status.HELD_BACK.value, escape(why)))
    if not rows:
        return ""
    lines = [("run", "attempt", "status", "reason"), ("-",) * 4, *rows]
    return _section("Runs that do not count", (f"| {' | '.join(line)} |" for line in lines))


def _warnings(report: Report) -> str:
    if not report.warnings:
        return ""
    from dlperf_hpc.reporting.run_states import warning_lines

    return _listed("Warnings of runs", warning_lines(report.warnings), "runs.csv")


def _listed(title: str, lines: Sequence[str], file: str) -> str:
    most = at_most(lines, _MOST_LISTED, f" ({file} has them all)")
    return _section(title, [markdown_lines(most)]) if lines else ""


def _flags(report: Report) -> str:
    """A line for each flag; its sentences with their cases are folded."""
    parts = []
    for row in report.flag_rows:
        # why a whole series has no speedup stands with its base
        about = [(n, of) for n, of in row.about.items() if row.flag or of[0].base is not None]
        if not about:
            continue
        parts.append(f"<details><summary>{row.name}: {flag_count(row)}</summary>")
        lines = [f"{', '.join(case_names(cases))}: {note}" for note, cases in about]
        meaning = f"{row.name}: {row.meaning}." * bool(row.meaning)
        parts += [*filter(None, [escape(meaning), markdown_lines(lines)]), "</details>"]
    return _section("Flags", ["\n\n".join(parts)]) if parts else ""


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
