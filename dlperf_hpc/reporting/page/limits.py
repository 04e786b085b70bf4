"""A report as far as its page shows it, and what the parts of the page call things."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dlperf_hpc.analysis.speedup import CaseSummary, chosen
from dlperf_hpc.errors import printable
from dlperf_hpc.model.result import RunResult
from dlperf_hpc.reporting.report import Report
from dlperf_hpc.reporting.tables import units_of
from dlperf_hpc.reporting.text import natural

MOST_RUNS = 1000
"""Runs that the page shows one by one; the files for download have all."""
MOST_CASES = 1000
MOST_SERIES = 12
"""Drawn at first; the others on request."""
MOST_FILES = 3_000_000  # bytes, packed: a larger file lies beside the page
MOST_NAMED = 6


@dataclass(frozen=True)
class VisibleReport:
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
        """The number of a run's case; KeyError if that is not visible."""
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
        return units_of(self.cases)


def name_of(summary: CaseSummary) -> str:
    """``ddp/bert-base/bz32/fp32 2n8g``: a case as the page calls it."""
    return printable(f"{summary.series} {summary.case.topology}")


def sentence(text: str) -> str:
    """The text with a stop at its end, and a capital at its beginning where that is a word and not
    the name of a run or of a file."""
    text = printable(text)
    if text.partition(" ")[0].rstrip(":,").isalpha():
        text = text[:1].upper() + text[1:]
    return text + ("" if text.endswith((".", "?", "!")) else ".")


# --- keys of cases, which are filters

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


def key_values(summary: CaseSummary) -> dict[str, str]:
    """The keys of a case with their values as text, :data:`NONE` where there is none."""
    told = {key: of(summary) for key, of in _KEYS.items()}
    return {key: printable(str(value)) if value else NONE for key, value in told.items()}


def keys(cases: Iterable[Mapping[str, str]]) -> dict[str, Sequence[str]]:
    """Every key of cases with the values that some case has, in natural order."""
    found: dict[str, set[str]] = {}
    for values in cases:
        for key, value in values.items():
            found.setdefault(key, set()).add(value)
    return {key: sorted(values, key=natural) for key, values in found.items()}


def filters(cases: Iterable[Mapping[str, str]]) -> dict[str, Sequence[str]]:
    """Keys in which cases differ, with their values."""
    return {key: values for key, values in keys(cases).items() if len(values) > 1}
