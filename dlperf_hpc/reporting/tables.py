"""What a table of cases shows to people: its columns, from the most asked to the least.

The terminal shows those that fit, Markdown all that have a figure. CSV and JSON have every column
there is (:mod:`.columns`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from dlperf_hpc.analysis.speedup import CaseSummary
from dlperf_hpc.records.results import SAMPLES_PER_S, TOKENS_PER_S
from dlperf_hpc.reporting.text import (
    common_beginning,
    interval_text,
    number,
    speed_heading,
    speed_text,
)

_BETWEEN = 2  # blanks between two columns; behind the last one there is one


@dataclass(frozen=True)
class Figure:
    """One column of a narrow table. ``rank`` says how much it is asked for: 0 is never left out."""

    heading: str
    rank: int
    text: Callable[[CaseSummary], str]


def figures(members: Sequence[CaseSummary]) -> list[Figure]:
    """The columns of a table of these cases, from left to right; those without a cell are left
    out, but for the throughput."""
    speed = speed_heading(summary.unit for summary in members if summary.samples)
    found = [
        Figure("case", 0, lambda s: str(s.case.topology)),
        Figure(speed, 0, lambda s: speed_text(s.speed, s.unit, speed)),
        Figure("CI", 3, lambda s: interval_text(None if s.sample is None else s.sample.interval)),
        Figure("speedup", 1, lambda s: "" if s.speedup is None else f"{s.speedup:.2f}"),
        Figure("eff. %", 2, lambda s: _hundredths(s.efficiency)),
        Figure("ms/it.", 4, lambda s: number(s.iteration_ms)),
        Figure("MFU %", 5, lambda s: _hundredths(s.mfu)),
        Figure("mem GB", 6, lambda s: "" if s.memory_mb is None else f"{s.memory_mb / 1000:.2f}"),
        *([Figure(TOKENS_PER_S, 7, _tokens)] if speed == SAMPLES_PER_S else []),
        Figure("runs", 0, lambda s: f"{s.ok}/{s.runs}"),
    ]
    return [each for each in found if each.rank == 0 or any(map(each.text, members))]


def _tokens(summary: CaseSummary) -> str:
    return number(summary.median(TOKENS_PER_S))


def _hundredths(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def fitting(
    columns: Sequence[Figure], members: Sequence[CaseSummary], room: int
) -> tuple[list[Figure], list[Figure]]:
    """The columns that fit in ``room`` characters, and those that are left out: the least asked
    first."""
    widths = {id(c): max(len(c.heading), *(len(c.text(s)) for s in members)) for c in columns}
    kept = list(columns)
    while sum(widths[id(c)] + _BETWEEN for c in kept) - 1 > room:
        least = max(kept, key=lambda c: c.rank)
        if least.rank == 0:
            break
        kept.remove(least)
    return kept, [each for each in columns if each not in kept]


@dataclass(frozen=True)
class Overview:
    """All series side by side: a row for each, a column for each topology.

    ``of`` says what the cells are, ``common`` the beginning that the names of all series share and
    the rows leave out.
    """

    of: str
    common: str
    topologies: tuple[str, ...]
    rows: Mapping[str, tuple[str, ...]]


def overview(series: Mapping[str, Sequence[CaseSummary]]) -> Overview | None:
    """None for fewer than two series, or where no topology has a figure. The cells are speedups
    where some series has any, else throughputs."""
    members = [summary for each in series.values() for summary in each]
    if len(series) < 2 or not any(summary.samples for summary in members):
        return None
    scaled = any(s.efficiency is not None and s.case.topology != s.base for s in members)
    bases = sorted({str(s.base) for s in members if s.base is not None})
    unit = speed_heading(summary.unit for summary in members if summary.samples)
    of = f"speedup over {', '.join(bases)}" if scaled else f"{unit}, median"
    found = {summary.case.topology for summary in members if summary.samples}
    topologies = sorted(found, key=lambda each: (each.devices, each))
    rows = {}
    for name, cases in series.items():
        by_topology = {summary.case.topology: summary for summary in cases}
        cells = [by_topology.get(topology) for topology in topologies]
        rows[name] = tuple("" if c is None else _cell(c, scaled, unit) for c in cells)
    common = common_beginning(list(series))
    return Overview(
        of,
        common,
        tuple(map(str, topologies)),
        {name.removeprefix(common): cells for name, cells in rows.items()},
    )


def _cell(summary: CaseSummary, scaled: bool, unit: str) -> str:
    if scaled:
        return "" if summary.speedup is None else f"{summary.speedup:.2f}"
    return speed_text(summary.speed, summary.unit, unit)


def remarks(members: Sequence[CaseSummary], without: Collection[str] = ()) -> list[str]:
    """What the flags of these cases say, but for those ``without``: name and sentence, each once
    with the topologies that it is about. Then why single cases have no speedup: why a whole series
    has none is not among them."""
    about: dict[str, list[str]] = {}
    for summary in members:
        names = {flag.note: flag.name for flag in reversed(summary.evidence)}
        for note in summary.notes:
            of_series = summary.base is None and note == f"no speedup: {summary.speedup_missing}"
            name = names.get(note, "")
            if not of_series and name not in without:
                told = f"{name}: {note}" if name else note
                about.setdefault(told, []).append(str(summary.case.topology))
    return [f"{', '.join(topologies)}: {told}" for told, topologies in about.items()]
