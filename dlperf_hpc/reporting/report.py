"""The report as a value: made once from results, and all that a writer needs.

Each writer of :mod:`dlperf_hpc.reporting.writers` makes a file of it. What two writers need is
computed here, once; how a figure is shown is the writer's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dlperf_hpc.analysis.costs import Cost, cost
from dlperf_hpc.analysis.dlperf_rule import DlperfTable, dlperf_tables
from dlperf_hpc.analysis.flags import FLAGS
from dlperf_hpc.analysis.nodes import NodeFindings, hosts_of
from dlperf_hpc.analysis.nodes import examine as examine_nodes
from dlperf_hpc.analysis.option_pairs import OptionPair, option_pairs
from dlperf_hpc.analysis.setups import machine_of
from dlperf_hpc.analysis.speedup import CaseSummary, summarise
from dlperf_hpc.model.case import Topology
from dlperf_hpc.model.result import RunResult, Status
from dlperf_hpc.reporting.columns import CASE_COLUMNS, RUN_COLUMNS
from dlperf_hpc.reporting.status import warnings_of
from dlperf_hpc.reporting.table import rows
from dlperf_hpc.reporting.text import natural, span


@dataclass(frozen=True)
class Report:
    """What is reported of one sweep, or of the logs below some paths.

    ``name`` is the sweep's, or the directory's. ``runs`` are all results, in the order in which
    they were found. ``base`` is the topology that speedup refers to as it was asked for (None:
    1n1g). ``source`` says in one line what the
    figures come from; ``unread`` says what could not be read, and why; ``unrecognised`` are files
    in no known format. ``accelerator`` is the user's word for the device of logs that name none.
    ``limits_s`` are the time limits of runs, by run id, as far as they are known.
    ``site`` says in one line where the sweep ran, '' if that is not known.
    """

    name: str
    runs: Sequence[RunResult]
    base: str | None = None
    source: str = ""
    unread: Sequence[str] = ()
    unrecognised: Sequence[str] = ()
    accelerator: str | None = None
    limits_s: Mapping[str, int] = field(default_factory=dict)
    site: str = ""

    @cached_property
    def cases(self) -> Sequence[CaseSummary]:
        """What the runs of each case say together. ValueError if ``base`` is no topology."""
        return summarise(self.runs, self.base, self.accelerator)

    @cached_property
    def case_rows(self) -> list[dict[str, Any]]:
        """A row for each case: its cells by the names of ``CASE_COLUMNS``, None where unknown."""
        return rows(CASE_COLUMNS, self.cases)

    @cached_property
    def run_rows(self) -> list[dict[str, Any]]:
        """A row for each run: its cells by the names of ``RUN_COLUMNS``, None where unknown.

        A run that failed is a row too; figures are there only of a run that counts.
        """
        return rows(RUN_COLUMNS, self.runs)

    @cached_property
    def series(self) -> Mapping[str, tuple[CaseSummary, ...]]:
        """The cases of each speedup curve, from few devices to many, by the series' name; the
        series stand in natural order, bz2 before bz16."""
        found: dict[str, list[CaseSummary]] = {}
        for summary in self.cases:
            found.setdefault(summary.series, []).append(summary)
        names = sorted(found, key=natural)
        return {name: tuple(sorted(found[name], key=_size)) for name in names}

    @cached_property
    def topologies(self) -> tuple[Topology, ...]:
        """All topologies, from few devices to many."""
        found = {summary.case.topology for summary in self.cases}
        return tuple(sorted(found, key=lambda each: (each.devices, each)))

    @cached_property
    def option_pairs(self) -> tuple[OptionPair, ...]:
        """Cases that differ in one option, side by side."""
        return tuple(option_pairs(self.cases))

    @cached_property
    def dlperf(self) -> Mapping[str, DlperfTable]:
        """DLPerf's own table of each series, by the series' name."""
        return dlperf_tables(self.runs)

    @cached_property
    def flags(self) -> Mapping[str, str]:
        """The flags that some case has, each with its meaning."""
        used = {flag for summary in self.cases for flag in summary.flags}
        return {flag: meaning for flag, meaning in FLAGS.items() if flag in used}

    @cached_property
    def counted(self) -> tuple[RunResult, ...]:
        """The runs that count: they ended ok, with a throughput."""
        return tuple(result for result in self.runs if result.rates)

    @cached_property
    def cost(self) -> Cost | None:
        """What the runs took, in node-hours; None where no log tells it."""
        return cost(self.runs, self.limits_s)

    @cached_property
    def nodes(self) -> NodeFindings:
        """What the runs tell of their nodes."""
        return examine_nodes([self.runs])

    @cached_property
    def troubles(self) -> tuple[RunResult, ...]:
        """The runs that ended without a number, and those of which nothing on disk says how they
        ended: a log that was cut."""
        return tuple(r for r in self.runs if r.status.bad or r.status is Status.UNKNOWN)

    @cached_property
    def warnings(self) -> Mapping[str, Sequence[RunResult]]:
        """What logs warn of, each sentence once, with the runs that it is about."""
        return warnings_of(self.runs)

    @cached_property
    def measured(self) -> str:
        """When the runs that count were measured: the first start and the last end, in UTC to the
        minute; '' where no log tells it."""
        starts = sorted(result.started for result in self.counted if result.started)
        ends = sorted(result.ended for result in self.counted if result.ended)
        return span([*starts[:1], *ends[-1:]])

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """The hosts on which the runs that count were measured, in natural order."""
        found = {host for result in self.counted for host in hosts_of(result)}
        return tuple(sorted(found, key=natural))

    @cached_property
    def machines(self) -> Mapping[str, str]:
        """Hardware and software as the logs of the counted runs tell them, by what they are.

        Several values of one fact stand side by side: two devices in one table must show.
        """
        seen: dict[str, dict[str, None]] = {}
        for result in self.counted:
            for what, text in machine_of(result).items():
                seen.setdefault(what, {}).setdefault(text)
        joined = {what: "; ".join(filter(None, texts)) for what, texts in seen.items()}
        return {what: text for what, text in joined.items() if text}


def _size(summary: CaseSummary) -> tuple[int, Any]:
    return summary.case.topology.devices, summary.case.topology
