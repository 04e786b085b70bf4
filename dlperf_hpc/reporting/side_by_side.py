"""Several sweeps in one report: in what they differ, hardware first, and what they have in common.

A fact has a value for each sweep: what the logs of its runs that count tell (of all its runs where
none counts), and what its manifest says of where it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from dlperf_hpc.analysis.machines import HARDWARE_KINDS, VARIABLES, setup_of, variables_of
from dlperf_hpc.errors import at_most, listed, printable
from dlperf_hpc.model.result import RunResult, SweepSource
from dlperf_hpc.reporting.table import Column, Table, words

_MOST_VALUES = 4  # of one fact in one sweep
_MOST_FACTS = 200
NOT_KNOWN = "not known"


class SeveralSweeps(Protocol):
    """What is read of a report."""

    @property
    def runs(self) -> Sequence[RunResult]: ...
    @property
    def sweeps(self) -> Sequence[SweepSource]: ...


@dataclass(frozen=True)
class SweepFact:
    """``what`` a fact is of, and its ``values`` by sweep: empty where that tells none."""

    what: str
    values: Mapping[str, tuple[str, ...]]

    @property
    def differs(self) -> bool:
        """Whether not all sweeps have the same values of it."""
        return len({*self.values.values()}) > 1

    def text(self, sweep: str) -> str:
        """The values in a sweep, for people."""
        return listed(self.values[sweep], _MOST_VALUES, "; ") or NOT_KNOWN


def facts(report: SeveralSweeps) -> list[SweepFact]:
    """All facts that some sweep tells: hardware, versions, what manifests say, then variables."""
    setups = {each.name: _setup(report, each) for each in report.sweeps}
    names = dict.fromkeys((*HARDWARE_KINDS, *(what for each in setups.values() for what in each)))
    found = [
        SweepFact(what, {name: setup.get(what, ()) for name, setup in setups.items()})
        for what in names
        if what != VARIABLES
    ]
    found += [SweepFact(*each) for each in variables_of(setups).items()]
    return [fact for fact in found if any(fact.values.values())][:_MOST_FACTS]


def _setup(report: SeveralSweeps, sweep: SweepSource) -> dict[str, tuple[str, ...]]:
    runs = runs_of(report, sweep)
    return {**setup_of([run for run in runs if run.rates] or runs), **sweep.plan}


def runs_of(report: SeveralSweeps, sweep: SweepSource) -> list[RunResult]:
    """The runs of one of the report's sweeps."""
    return [run for run in report.runs if run.sweep == sweep.name]


def table(report: SeveralSweeps) -> Table[SweepFact]:
    """A row for each fact that differs, a column for each sweep; beneath it what all have in
    common, in one line."""
    columns: list[Column[SweepFact]] = [words("what", "what", rank=0)]
    for sweep in report.sweeps:
        value = partial(SweepFact.text, sweep=sweep.name)
        columns.append(words(printable(sweep.name), value, long=True, rank=0))
    found, first = facts(report), report.sweeps[0].name
    common = "; ".join(f"{each.what} {each.text(first)}" for each in found if not each.differs)
    beneath = [f"All sweeps have in common: {common}"] * bool(common)
    rows = [fact for fact in found if fact.differs]
    return Table("In what the sweeps differ", columns, rows, beneath, name="differs")


def first_lines(report: SeveralSweeps, most: int = 0) -> list[str]:
    """What must be known before any figure: different hardware, sweeps without a figure, and
    ``most`` lines on what else differs."""
    found = [fact for fact in facts(report) if len({*filter(None, fact.values.values())}) > 1]
    lines = [f"different {_in_words(each)}" for each in found if each.what in HARDWARE_KINDS]
    if lines:
        lines[-1] += "; no ratio between these sweeps is that of the software alone"
    for sweep in report.sweeps:
        runs = runs_of(report, sweep)
        if not any(run.rates for run in runs):
            lines.append(f"sweep {sweep.name}: no run of {len(runs)} counts: it has no figure")
    rest = [f"other {_in_words(each)}" for each in found if each.what not in HARDWARE_KINDS]
    return lines + at_most(rest, most, " facts differ: report.html has all") * bool(most)


def _in_words(fact: SweepFact) -> str:
    """``CPU: a AMD EPYC 9654, b AMD EPYC 7742``: sweeps with one value share it."""
    sweeps: dict[str, list[str]] = {}
    for name in fact.values:
        sweeps.setdefault(fact.text(name), []).append(name)
    values = (f"{listed(names, 4, ' and ')} {text}" for text, names in sweeps.items())
    return f"{fact.what}: {', '.join(values)}"


def sweeps_json(report: SeveralSweeps) -> dict[str, Any]:
    """Plain JSON values: the sweeps, in what they ``differ``, and what they have in ``common``."""
    found, read = facts(report), []
    for sweep in report.sweeps:
        runs = runs_of(report, sweep)
        counts = {"runs": len(runs), "runs_ok": sum(bool(run.rates) for run in runs)}
        read.append({"sweep": sweep.name, "path": sweep.path, "base": sweep.base, **counts})
    first = report.sweeps[0].name
    return {
        "read": read,
        "differ": [vars(fact) for fact in found if fact.differs],
        "common": {fact.what: fact.values[first] for fact in found if not fact.differs},
    }
