"""The page of a report: what stands in its head, its figure's data, its tables.

:data:`SECTIONS` are the parts behind the figure, in order: a function from the report to a section,
or to None where there is nothing to show. Another table of the report is one more of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dlperf_hpc.analysis.flags import FLAGS
from dlperf_hpc.analysis.speedup import DEFAULT_BASE, CaseSummary, chosen, series_name
from dlperf_hpc.analysis.statistics import Interval
from dlperf_hpc.errors import number_of, printable
from dlperf_hpc.records.results import SAMPLES_PER_S, TOKENS_PER_S, RunResult, rates_of
from dlperf_hpc.records.status import Status
from dlperf_hpc.reporting.columns import CASE_COLUMNS, RUN_COLUMNS
from dlperf_hpc.reporting.page import Choice, Figure, Page, Remark, Section, Series, figure
from dlperf_hpc.reporting.page.provenance import provenance_sections
from dlperf_hpc.reporting.page.still import Dot, StillCase, still
from dlperf_hpc.reporting.page.tables import case_table, option_table, run_table
from dlperf_hpc.reporting.page.traces import trace_of
from dlperf_hpc.reporting.report import Report
from dlperf_hpc.reporting.text import natural, number, percent

MOST_RUNS = 1000
"""Runs that the page shows one by one; the files for download have all."""
MOST_CASES = 1000
MOST_SERIES = 12
"""Drawn at first; the others on request."""
_MOST_FILES = 3_000_000  # bytes, packed: a larger file lies beside the page
_MOST_LISTED = 100
_MOST_NAMED = 6


@dataclass(frozen=True)
class Shown:
    """A report as far as the page shows it: ``cases`` in natural order, of ``runs`` all where there
    are few enough."""

    report: Report

    @cached_property
    def series(self) -> tuple[str, ...]:
        """All series, in natural order."""
        return tuple(sorted(self.report.series, key=natural))

    @cached_property
    def cases(self) -> tuple[CaseSummary, ...]:
        """By series, then from few devices to many."""
        ordered = (case for name in self.series for case in self.report.series[name])
        return tuple(ordered)[:MOST_CASES]

    @cached_property
    def places(self) -> Mapping[tuple[str, str], int]:
        """The number of a case, by its id and by the sweep, if several have measured it."""
        return {(summary.case.id, summary.sweep): n for n, summary in enumerate(self.cases)}

    def place_of(self, run: RunResult) -> int:
        """The number of a run's case; KeyError if that is not shown."""
        return self.places[run.run.case.id, run.sweep]

    @cached_property
    def runs(self) -> tuple[RunResult, ...]:
        """By case and repeat. Of too many, those that do not count and the first of each case."""
        runs = [r for r in self.report.runs if (r.run.case.id, r.sweep) in self.places]
        runs.sort(key=lambda r: (self.place_of(r), r.run.repeat, r.attempt))
        if len(runs) <= MOST_RUNS:
            return tuple(runs)
        odd = [run for run in runs if not run.rates][: MOST_RUNS // 2]
        share = max(1, (MOST_RUNS - len(odd)) // len(self.places))
        taken: Counter[int] = Counter()
        kept = {id(run) for run in odd}
        for run in runs:
            if run.rates and taken[self.place_of(run)] < share and len(kept) < MOST_RUNS:
                taken[self.place_of(run)] += 1
                kept.add(id(run))
        return tuple(run for run in runs if id(run) in kept)

    @cached_property
    def counted(self) -> frozenset[int]:
        """Places in ``runs`` of those that are in the medians."""
        taken = {id(run) for run in chosen(self.report.runs) if run.rates}
        return frozenset(place for place, run in enumerate(self.runs) if id(run) in taken)

    @cached_property
    def base(self) -> str:
        """The topology that speedup refers to at first; '' if no case has one."""
        found = next((case.base for case in self.cases if case.base is not None), None)
        return "" if found is None else str(found)

    @cached_property
    def units(self) -> tuple[str, ...]:
        """Throughputs that some case has: samples/s, tokens/s, then others."""
        known = dict.fromkeys(unit for case in self.cases for unit in case.samples)
        order = [unit for unit in (SAMPLES_PER_S, TOKENS_PER_S) if unit in known]
        return (*order, *(unit for unit in known if unit not in order))


def page(report: Report) -> Page:
    """The page of one sweep, or of logs below some paths."""
    shown = Shown(report)
    files = _files(report)
    return Page(
        kind="report",
        title=printable(report.name),
        subtitle="Throughput and scaling",
        facts=_facts(shown),
        counts=_counts(report),
        remarks=remarks(report),
        missing=_missing(shown, files),
        figure=_figure(shown),
        sections=tuple(made for make in SECTIONS for made in make(shown)),
        filters=_filters(shown.cases),
        data=_data(shown),
        files={name: content for name, content in files.items() if len(content) <= _MOST_FILES * 8},
        how_to_read=HOW_TO_READ,
    )


# --- the head


def _facts(shown: Shown) -> tuple[tuple[str, str], ...]:
    report = shown.report
    began = sorted(run.started for run in report.runs if run.started)
    ended = sorted(run.ended for run in report.runs if run.ended)
    hosts = sorted({host for run in report.counted for host in hosts_of(run)}, key=natural)
    facts = {
        "Measured": _span(began, ended),
        "Site": report.site,
        "Nodes": _listed(hosts),
        **report.machines,
        "Base of speedup": shown.base or f"none: {report.base or DEFAULT_BASE} has no run",
        "Alike in all cases": "; ".join(
            f"{key} {values[0]}"
            for key, values in _keys(report.cases).items()
            if len(values) == 1 and values[0] != NONE
        ),
        "Source": report.source,
    }
    return tuple((name, printable(text)) for name, text in facts.items() if text)


def _span(began: Sequence[str], ended: Sequence[str]) -> str:
    """``2026-11-21 14:53 to 16:10 UTC``."""
    if not began:
        return ""
    first, last = began[0][:16].replace("T", " "), (ended or began)[-1][:16].replace("T", " ")
    same = first[:10] == last[:10]
    return f"{first} to {last[11:] if same else last} UTC"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def hosts_of(run: RunResult) -> list[str]:
    """The hosts that a run's log names."""
    world = run.facts.get("world")
    hosts = world.get("hosts") if isinstance(world, Mapping) else None
    return list(dict.fromkeys(map(str, hosts))) if isinstance(hosts, list) else []


def _counts(report: Report) -> tuple[tuple[str, int, str], ...]:
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
            sentence=_sentence(note),
            cases=tuple(sorted(cases, key=natural)),
            flag=flag,
            meaning=FLAGS.get(flag, ""),
        )
        for (flag, note), cases in sorted(
            about.items(), key=lambda item: order.get(item[0][0], len(order))
        )
    )


def _sentence(text: str) -> str:
    text = printable(text)
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")


def name_of(summary: CaseSummary) -> str:
    """``ddp/bert-base/bz32/fp32 2n8g``: a case as the page calls it."""
    return printable(f"{summary.series} {summary.case.topology}")


def _missing(shown: Shown, files: Mapping[str, bytes]) -> tuple[str, ...]:
    """What a reader may expect and does not find, a sentence each."""
    report = shown.report
    lines = [*_without_number(report), *_troubles(report), *_holes(report)]
    lines += [f"Not read: {line}" for line in report.unread[:_MOST_LISTED]]
    if len(report.unread) > _MOST_LISTED:
        lines.append(f"Not read: {len(report.unread) - _MOST_LISTED} more (report.json has all).")
    if report.unrecognised:
        lines.append(
            f"In no known format: {number_of(len(report.unrecognised), 'file')}, among them "
            f"{_listed(report.unrecognised[:_MOST_NAMED])}."
        )
    if len(shown.cases) < len(report.cases):
        lines.append(
            f"This page shows {len(shown.cases)} of {len(report.cases)} cases; "
            "the files for download have all of them."
        )
    if len(shown.runs) < len(report.runs):
        lines.append(
            f"This page shows {len(shown.runs)} of {len(report.runs)} runs one by one: those that "
            "do not count, and the first of each case. Medians and intervals are of all runs, and "
            "the files for download have all of them."
        )
    lines += [
        f"{name} is too large for this page: it lies beside it."
        for name, content in files.items()
        if len(content) > _MOST_FILES * 8
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
        names = _listed(
            [
                f"{series_name(r.run.case, r.sweep)} {r.run.case.topology} #{r.run.repeat}"
                for r in runs
            ]
        )
        why = f": {reason}" if reason else ""
        lines.append(f"{number_of(len(runs), 'run')} {status.value}{why} ({names})")
    if len(lines) > _MOST_LISTED:
        lines[_MOST_LISTED:] = [f"and {len(lines) - _MOST_LISTED} more reasons: see the runs below"]
    return lines


def _holes(report: Report) -> list[str]:
    """Series that lack a topology which others have."""
    everywhere = {case.case.topology for case in report.cases}
    lines: dict[str, list[str]] = {}
    for name, members in report.series.items():
        here = {member.case.topology for member in members}
        if lacks := sorted(everywhere - here, key=lambda t: (t.devices, t)):
            lines.setdefault(", ".join(map(str, lacks)), []).append(name)
    return [
        f"No case of {topologies}, which other series have: {_listed(sorted(names, key=natural))}."
        for topologies, names in lines.items()
    ]


# --- filters

NONE = "(none)"

_KEYS: Mapping[str, Callable[[CaseSummary], Any]] = {
    "framework": lambda s: s.case.framework,
    "model": lambda s: s.case.model,
    "precision": lambda s: s.case.precision,
    "batch size": lambda s: s.case.batch_size,
    "sequence length": lambda s: s.case.seq_len,
    "tags": lambda s: "-".join(s.case.tags),
    "accumulation": lambda s: s.accumulation,
    "global batch": lambda s: s.global_batch if s.scaling != "weak" else None,
    "scaling": lambda s: s.scaling,
    "device": lambda s: ", ".join(sorted(s.devices)),
    "topology": lambda s: str(s.case.topology),
}


def _key_values(summary: CaseSummary) -> dict[str, str]:
    told = {key: of(summary) for key, of in _KEYS.items()}
    return {key: printable(str(value)) if value else NONE for key, value in told.items()}


def _keys(cases: Iterable[CaseSummary]) -> dict[str, list[str]]:
    found: dict[str, set[str]] = {key: set() for key in _KEYS}
    for summary in cases:
        for key, value in _key_values(summary).items():
            found[key].add(value)
    return {key: sorted(values, key=natural) for key, values in found.items() if values}


def _filters(cases: Sequence[CaseSummary]) -> dict[str, Sequence[str]]:
    """Keys in which cases differ, but for those that say the same as another."""
    return {key: values for key, values in _keys(cases).items() if len(values) > 1}


# --- the figure


@dataclass(frozen=True)
class _Quantity:
    """``of`` is what cases and runs have; ``how`` the script makes a value of it. ``ideal``: a line
    through base and origin, a level, or none. ``form`` is d3's number format."""

    label: str
    axis: str
    of: str
    how: str
    ideal: str = ""
    form: str = ",.7~g"
    zero: bool = False


def _quantities(shown: Shown) -> dict[str, _Quantity]:
    found: dict[str, _Quantity] = {}
    for unit in shown.units:
        found[unit] = _Quantity(unit, f"{unit}, all devices", unit, "total", "line", zero=True)
    for unit in shown.units:
        label = f"{unit} per device"
        found[label] = _Quantity(label, label, unit, "device", "flat")
    if any(case.base is not None for case in shown.cases) or len(shown.cases) > 1:
        speed = "speedup over the base"
        found["speedup"] = _Quantity("speedup", speed, "", "speedup", "line", zero=True)
        found["efficiency"] = _Quantity(
            "efficiency", "efficiency, share of ideal", "", "efficiency", "flat", ".1~%"
        )
    others = {
        "mfu": _Quantity("MFU", "model FLOPS / peak of the device", "mfu", "total", form=".1~%"),
        "joules": _Quantity("J/sample", "J/sample, all devices", "joules", "total"),
        "memory": _Quantity("memory", "peak memory of a device, MB", "memory", "total"),
    }
    for name, quantity in others.items():
        if any(name in measures_of_case(case) for case in shown.cases):
            found[name] = quantity
    return found


def measures_of_case(summary: CaseSummary) -> dict[str, tuple[float | None, ...]]:
    """By unit or name: median, and the ends of its interval where there is one."""
    found: dict[str, tuple[float | None, ...]] = {
        unit: (sample.median, *_ends(sample.interval)) for unit, sample in summary.samples.items()
    }
    rate = summary.samples.get(SAMPLES_PER_S)
    if summary.mfu is not None and rate is not None:
        ends = (None if e is None else summary.mfu * e / rate.median for e in _ends(rate.interval))
        found["mfu"] = (summary.mfu, *ends)
    if summary.joules_per_sample is not None:
        found["joules"] = (summary.joules_per_sample, None, None)
    if summary.memory_mb is not None:
        found["memory"] = (summary.memory_mb, None, None)
    return {
        name: tuple(None if v is None else _short(v) for v in values)
        for name, values in found.items()
        if values[0] is not None and math.isfinite(values[0])
    }


def _ends(interval: Interval | None) -> tuple[float | None, float | None]:
    return (None, None) if interval is None else (interval.low, interval.high)


def _short(value: float) -> float:
    return float(f"{value:.7g}")


def measures_of_run(run: RunResult, summary: CaseSummary) -> dict[str, float]:
    """Those of one run, also of one that does not count but has a whole window."""
    rates = dict(run.rates)
    if not rates and run.window is not None and run.window.elapsed_s > 0:
        rates = dict(rates_of(run.window.samples_per_s, run.run.case.seq_len))
    elif not rates and run.external is not None:
        rates = dict(run.external.rates)
    found = {unit: value for unit, value in rates.items() if math.isfinite(value) and value > 0}
    middle = summary.samples.get(SAMPLES_PER_S)
    if summary.mfu is not None and middle is not None and SAMPLES_PER_S in found:
        found["mfu"] = summary.mfu * found[SAMPLES_PER_S] / middle.median
    window = run.window or run.external
    if window is not None and window.memory_mb is not None:
        found["memory"] = window.memory_mb
    if run.window is not None and run.gpu is not None and run.gpu.joules is not None:
        found["joules"] = run.gpu.joules / run.window.samples if run.window.samples else 0.0
    return {name: _short(value) for name, value in found.items() if math.isfinite(value)}


def _figure(shown: Shown) -> Figure:
    report = shown.report
    title = "Scaling"
    if not report.counted:
        return Figure(title, "", empty="No run counts yet, so that there is nothing to draw.")
    devices = sorted({case.case.topology.devices for case in shown.cases})
    pairs = ((str(case.case.topology), case) for case in shown.cases if case.samples)
    topologies = dict(sorted(pairs, key=lambda pair: pair[1].case.topology.devices))
    bases = {name: name for name in topologies}
    if not shown.base:
        bases = {"": f"none ({report.base or DEFAULT_BASE} has no run)", **bases}
    axes = {"log": "log2", "linear": "linear"}
    quantities = {name: each.label for name, each in _quantities(shown).items()}
    linear = len(devices) < 2
    return Figure(
        title=title,
        caption="Large marks are medians, bars their confidence intervals, small dots single runs. "
        "Hollow dots are runs that do not count; a cross at the lower edge is a run without a "
        "number. Dashed: the base scaled ideally, through the origin.",
        still=_still(shown),
        still_caption=_still_caption(shown),
        specs={
            "scaling": figure.scaling(len(shown.series), devices),
            "trace": figure.trace(),
        },
        menus=(
            Choice("quantity", "Quantity", quantities, next(iter(quantities))),
            Choice("base", "Base", bases, shown.base),
            Choice("x", "Devices", axes, "linear" if linear else "log"),
            Choice("y", "Scale", axes, "linear" if linear else "log"),
        ),
        series=tuple(
            Series(printable(name), figure.colour_of(place), figure.mark_of(place).path)
            for place, name in enumerate(shown.series)
        ),
        most_series=MOST_SERIES,
    )


def _still(shown: Shown) -> str:
    """The picture for readers without scripts: of the first series."""
    unit = shown.units[0]
    places = {name: place for place, name in enumerate(shown.series[:MOST_SERIES])}
    cases = [
        StillCase(
            series=places[case.series],
            name=name_of(case),
            devices=case.case.topology.devices,
            speed=case.samples[unit].median,
            interval=case.samples[unit].interval,
            efficiency=case.efficiency,
            efficiency_interval=case.efficiency_interval,
            is_base=case.case.topology == case.base,
        )
        for case in shown.cases
        if case.series in places and unit in case.samples
    ]
    dots = [
        Dot(
            series=places[series_name(run.run.case, run.sweep)],
            name=printable(run.run.id),
            devices=run.run.case.topology.devices,
            speed=found[unit],
            counts=place in shown.counted,
            told=printable(f"{run.status.value} {run.reason}".strip()),
        )
        for place, run in enumerate(shown.runs)
        if series_name(run.run.case, run.sweep) in places
        and unit in (found := measures_of_run(run, shown.cases[shown.place_of(run)]))
    ]
    return still(unit, [printable(name) for name in places], cases, dots)


def _still_caption(shown: Shown) -> str:
    left = len(shown.series) - MOST_SERIES
    if left <= 0:
        return ""
    return f"{MOST_SERIES} of {len(shown.series)} series are drawn; the tables have all."


# --- the data of the scripts


def _data(shown: Shown) -> dict[str, Any]:
    series = {name: place for place, name in enumerate(shown.series)}
    return {
        "quantities": {name: vars(each) for name, each in _quantities(shown).items()},
        "series": [printable(name) for name in shown.series],
        "most": MOST_SERIES,
        "hover": HOVER,
        "cases": [_case_data(case, series[case.series]) for case in shown.cases],
        "runs": [_run_data(shown, place, run) for place, run in enumerate(shown.runs)],
    }


def _case_data(summary: CaseSummary, series: int) -> dict[str, Any]:
    sample = summary.sample
    covered = sample.interval.coverage if sample is not None and sample.interval else None
    return {
        "name": name_of(summary),
        "s": series,
        "n": summary.case.topology.devices,
        "topology": str(summary.case.topology),
        "keys": {key: value for key, value in _key_values(summary).items()},
        "unit": summary.unit,
        "m": measures_of_case(summary),
        "told": [
            ["runs that count", f"{summary.ok} of {summary.runs}"],
            *([["interval covers", percent(covered)]] if covered else []),
            *([["flags", ", ".join(summary.flags)]] if summary.flags else []),
        ],
    }


def _run_data(shown: Shown, place: int, run: RunResult) -> dict[str, Any]:
    case = shown.place_of(run)
    trace = trace_of(run)
    return {
        "name": printable(run.run.id),
        "c": case,
        "repeat": run.run.repeat,
        "ok": place in shown.counted,
        "m": measures_of_run(run, shown.cases[case]),
        "told": [[name, printable(text)] for name, text in run_facts(run).items() if text],
        **({"trace": trace} if trace else {}),
    }


HOVER = ("status", "nodes", "job", "clocks", "drift", "exposed communication")
"""Of :func:`run_facts`, what is shown at once; the rest when the run is opened."""


def run_facts(run: RunResult) -> dict[str, str]:
    """What is told of one run, for people."""
    window, gpu = run.window, run.gpu
    why = f": {run.reason}" if run.reason else ""
    facts = {
        "status": f"{run.status.value}{why}" if run.status is not Status.OK or why else "ok",
        "nodes": _listed(hosts_of(run)),
        "job": run.launch,
        "measured": _span([run.started] if run.started else [], [run.ended] if run.ended else []),
        "attempt": str(run.attempt) if run.attempt != 1 else "",
    }
    if window is not None:
        facts |= {
            "window": f"{window.iterations} iterations after {window.warmup} of warm-up, "
            f"{number(window.elapsed_s)} s",
            "step time": f"{number(window.step_ms_p50)} ms (p5 {number(window.step_ms_p5)}, "
            f"p95 {number(window.step_ms_p95)}, p99 {number(window.step_ms_p99)})",
            "drift": percent(window.drift) + ("" if window.steady is not False else ", not steady"),
            "exposed communication": percent(window.exposed_comm),
            "spread of ranks": percent(window.rank_spread),
            "waited for data": f"{number(window.data_wait_s)} s" if window.data_wait_s else "",
            "memory": f"{number(window.memory_mb)} MB" if window.memory_mb else "",
        }
    if run.external is not None:
        facts |= {
            "format": run.external.format,
            "rule": f"{run.external.rule}, by {run.external.basis}",
            "drift": percent(run.external.drift),
        }
    if gpu is not None:
        facts |= {
            "clocks": f"{number(gpu.sm_mhz)} MHz SM" if gpu.sm_mhz else "",
            "power": f"{number(gpu.watts)} W a device" if gpu.watts else "",
            "temperature": f"{number(gpu.celsius)} °C" if gpu.celsius else "",
            "throttle reasons": f"NVML bits {gpu.throttle:#x}" if gpu.throttle else "",
        }
    if run.warnings:
        facts["warnings"] = " | ".join(run.warnings[:_MOST_NAMED])
    return facts | {"log": run.log}


# --- the parts behind the figure


def _cases(shown: Shown) -> list[Section]:
    if not shown.cases:
        return []
    table, left_out = case_table(shown.cases)
    lines = [f"Not measured in any case: {', '.join(left_out)}."] if left_out else []
    if len(shown.series) == 1:
        lines.insert(0, f"All cases are of the series {printable(shown.series[0])}.")
    return [Section("cases", "Cases", tuple(lines), table)]


def _runs(shown: Shown) -> list[Section]:
    if not shown.runs:
        return []
    rows = [
        (run, shown.place_of(run), place in shown.counted) for place, run in enumerate(shown.runs)
    ]
    line = "The button of a run opens its iterations and what its log tells."
    return [Section("runs", "Runs", (line,), run_table(rows))]


def _options(shown: Shown) -> list[Section]:
    if not shown.report.option_pairs:
        return []
    line = "Cases that differ in one option, side by side: what the option changes."
    table = option_table(shown.report.option_pairs)
    return [Section("options", "One option switched on", (line,), table)]


def _provenance(shown: Shown) -> list[Section]:
    return provenance_sections(shown.report.counted or shown.report.runs)


SECTIONS: tuple[Callable[[Shown], list[Section]], ...] = (_cases, _runs, _options, _provenance)
"""The parts behind the figure, in order."""


def _files(report: Report) -> dict[str, bytes]:
    from dlperf_hpc.reporting.writers.csv import table
    from dlperf_hpc.reporting.writers.json import text

    return {
        "speedup.csv": table(CASE_COLUMNS, report.case_rows),
        "runs.csv": table(RUN_COLUMNS, report.run_rows),
        "report.json": text(report).encode(),
    }


HOW_TO_READ = (
    "samples/s are samples through forward and backward in the timed window, over all devices, by "
    "the slowest rank's time; tokens/s are samples/s times the length of a sequence, so that "
    "padding counts.",
    "A figure of a case is the median of its runs that count. The confidence interval is of the "
    "median, by order statistics; its coverage is the true one, aimed at 95 %, which needs 6 runs.",
    "Speedup is a ratio of medians to the base of the same series; its interval goes from low / "
    "base high to high / base low. Efficiency is speedup / (devices / devices of the base).",
)
