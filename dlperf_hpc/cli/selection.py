"""Which runs of a sweep are submitted now, where a budget of node-hours, or what was measured,
decides that; and what is said of the others."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlperf_hpc.cli.messages import say
from dlperf_hpc.errors import LedgerError, at_most, number_of

if TYPE_CHECKING:
    from dlperf_hpc.engines.budget import Fit, Usage
    from dlperf_hpc.model.case import Until
    from dlperf_hpc.model.result import RunResult
    from dlperf_hpc.records.collect import Collection as RunCollection
    from dlperf_hpc.records.ledger import Ledger
    from dlperf_hpc.records.manifest import Array, Manifest
    from dlperf_hpc.sweepfile.load import Sweep

_MOST_LINES = 10


@dataclass(frozen=True)
class Selection:
    """A plan of the runs that are there or submitted now. ``lines`` say how the budget stands and
    what is left out; ``values`` say that to scripts."""

    manifest: Manifest
    lines: Sequence[str] = ()
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def nothing(self) -> str:
        """What is said where nothing is submitted."""
        if self.values.get("left_out"):
            return "nothing is submitted: what is missing does not fit in the rest of the budget"
        return "nothing is missing: every run that is asked for has been submitted"


def select(planned: Manifest, root: Path, insist: bool = True) -> Selection:
    """The runs of a plan that fit in the sweep's budget beside what ``root`` holds of it. SpecError
    for a budget that no part of the plan fits in; with ``insist`` SiteError if the scheduler cannot
    be asked, and LedgerError if the directory cannot be read."""
    from dlperf_hpc.records import layout
    from dlperf_hpc.records.ledger import read_ledger

    ledger = None
    with contextlib.suppress(*([] if insist else [LedgerError, OSError])):
        ledger = read_ledger(root) if (root / layout.MANIFEST).exists() else None
    budget = planned.budget_node_hours or (ledger and ledger.manifest.budget_node_hours)
    if not budget:
        return Selection(planned)
    from dlperf_hpc.engines.budget import Usage, usage
    from dlperf_hpc.engines.plan import with_runs
    from dlperf_hpc.engines.states import standing

    used, there = Usage(), set[str]()
    if ledger is not None:
        used = usage(ledger, standing(ledger, insist))
        there = {run.id for run in ledger.manifest.runs} - used.open
    missing = {run.id for run in planned.runs} - there
    where = "" if there else planned.source
    choice, lines = _chosen(planned.arrays, missing, used, budget, where)
    values = {**_values(used, budget), "now": choice.hours, "left_out": choice.left_out}
    arrays = with_runs(planned.arrays, choice.runs | there)
    return Selection(replace(planned, arrays=arrays), lines, values)


def select_again(
    ledger: Ledger, collection: RunCollection, arrays: Sequence[Array], budget: float | None
) -> tuple[Array, ...]:
    """What of arrays that measure runs again fits in ``budget``, by default the sweep's. SpecError
    if nothing does."""
    budget = budget or ledger.manifest.budget_node_hours
    if not (budget and arrays):
        return tuple(arrays)
    from dlperf_hpc.engines.budget import usage
    from dlperf_hpc.engines.plan import with_runs

    used, wanted = usage(ledger, collection), {run.id for array in arrays for run in array.tasks}
    choice, lines = _chosen(arrays, wanted, used, budget, str(ledger.root))
    tell(lines)
    return with_runs(arrays, choice.runs)


def _chosen(
    arrays: Sequence[Array], ids: Collection[str], used: Usage, budget: float, where: str
) -> tuple[Fit, list[str]]:
    """What is submitted now, and lines on it. With ``where`` a SpecError if that is nothing."""
    from dlperf_hpc.engines.budget import RULE, choose, too_small

    choice = choose(arrays, ids, used, budget - used.used - used.reserved)
    if where and not choice.runs:
        raise too_small(where, budget, choice, used)
    now = f"; what is submitted now may take {choice.hours:.3g}" if choice.runs else ""
    lines = [f"budget: {used.text(budget)}{now}"]
    if choice.left_out:
        lines.append(f"left out, because it does not fit ({RULE}):")
        lines += [f"  {group}" for group in at_most(choice.left_out, _MOST_LINES)]
        lines.append("when runs have ended, the same command submits what fits then")
    return choice, lines


def tell(lines: Sequence[str]) -> None:
    """Say the lines on stderr, as notes."""
    for line in lines:
        say(f"note: {line}")


def _values(used: Usage, budget: float) -> dict[str, Any]:
    return {"node_hours": budget, "used": used.used, "reserved": used.reserved}


# --- repeats = { min, max, until }


@dataclass(frozen=True)
class Need:
    """How a case, by its id, stands: its ``runs`` in the sweep, how many ``further`` ones it needs
    now and ``why``, and the half-width of its median's interval at the latest look, a fraction."""

    case: str
    runs: int
    further: int
    why: str
    half_width: float | None
    met: bool


def needs_in(root: Path, until: Until) -> list[Need]:
    """How each case of the sweep in ``root`` stands by what lies on disk; none without a sweep."""
    from dlperf_hpc.logs.gather import gather
    from dlperf_hpc.logs.interpret.rules import rule
    from dlperf_hpc.logs.scan.search import ScanCache, default_path
    from dlperf_hpc.records import layout

    cases: dict[str, list[RunResult]] = {}
    cache, leave_out = ScanCache(default_path()), [root / layout.REPORT]
    with contextlib.suppress(LedgerError):  # who reads the directory next says what is wrong
        if (root / layout.MANIFEST).exists():
            for result in gather([root], rule("default"), {}, cache, leave_out=leave_out).results:
                cases.setdefault(result.run.case.id, []).append(result)
    return [need_of(results, until) for results in cases.values()]


def need_of(results: Sequence[RunResult], until: Until) -> Need:
    """How a case stands by its results. Runs that wait, or failed, decide nothing: a look has all
    repeats up to it."""
    from dlperf_hpc.analysis.speedup import of_one_unit
    from dlperf_hpc.model.stopping import decide

    counted, units = of_one_unit(sorted(results, key=lambda each: each.run.repeat))
    found = decide([each.rates[units[0]] for each in counted], until)
    runs, further = len(results), 0
    if waiting := sum(not each.status.finished for each in results):
        why = f"{number_of(waiting, 'run')} of it must end first"
    elif bad := runs - len(counted):
        why = f"{number_of(bad, 'run')} of it did not count: `dlperf rerun` first"
    elif found.met or found.repeats <= runs:
        why = "known" if found.met else "not known, but it has as many runs as it may"
    else:
        further = found.repeats - runs
        why = f"{further} more"
    return Need(results[0].run.case.id, runs, further, why, found.half_width, found.met)


def _standing(needs: Sequence[Need], until: Until) -> list[str]:
    from dlperf_hpc.model.stopping import label

    known, unknown = sum(need.met for need in needs), list[str]()
    for need in needs:
        width = "" if need.half_width is None else f", +-{100 * need.half_width:.2g} %"
        line = f"  {need.case}: {number_of(need.runs, 'run')}{width}: {need.why}"
        unknown += [line] * (not need.met)
    head = f"repeats: {label(until)}" + f"; {known} of {len(needs)} cases known" * bool(needs)
    return [head, *at_most(unknown, _MOST_LINES)]


def grown(sweep: Sweep, root: Path, plan: Callable[[Sweep], Manifest]) -> Manifest:
    """The plan of a sweep with as many repeats of each case as it needs by now; says how the cases
    stand on stderr."""
    if sweep.until is None:
        return plan(sweep)
    from dlperf_hpc.engines.plan import with_runs

    needs, first = needs_in(root, sweep.until), sweep.until.min
    tell(_standing(needs, sweep.until))
    most = {need.case: max(first, need.runs + need.further) for need in needs}
    whole = plan(replace(sweep, repeats=max([first, *most.values()])))
    wanted = {run.id for run in whole.runs if run.repeat <= most.get(run.case.id, first)}
    return replace(whole, arrays=with_runs(whole.arrays, wanted))


# --- what status says


def standing_of(root: Path, collection: RunCollection) -> tuple[list[str], dict[str, Any]]:
    """How a sweep's budget stands, and its cases where what is measured decides on their repeats:
    lines for people, with the command that submits further ones, and values for scripts."""
    from dlperf_hpc.records.ledger import read_ledger

    manifest, lines, values = collection.manifest, list[str](), dict[str, Any]()
    if manifest.budget_node_hours:
        from dlperf_hpc.engines.budget import usage

        used, budget = usage(read_ledger(root, []), collection), manifest.budget_node_hours
        lines, values = [f"budget: {used.text(budget)}"], {"budget": _values(used, budget)}
    if manifest.until:
        needs = needs_in(root, manifest.until)
        lines += [*_standing(needs, manifest.until), *_next(needs, manifest)]
        values["repeats"] = list(map(vars, needs))
    return lines, values


def _next(needs: Sequence[Need], manifest: Manifest) -> list[str]:
    """A line on the further runs, if there are any, with their node-hours and the command."""
    hours = {
        run.case.id: run.case.topology.nodes * array.time_limit_s / 3600
        for array in manifest.arrays
        for run in array.tasks
    }
    runs = sum(need.further for need in needs)
    most = sum(need.further * hours.get(need.case, 0.0) for need in needs)
    command = f"`dlperf sweep {shlex.quote(manifest.source)}` submits them"
    line = f"{number_of(runs, 'further run')}, at most {most:.3g} node-hours: {command}"
    return [line] * bool(runs)
