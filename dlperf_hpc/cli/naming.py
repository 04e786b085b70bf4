"""One run of a sweep, as a user names it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlperf_hpc.cli.messages import usage_error

if TYPE_CHECKING:
    from dlperf_hpc.records.ledger import Ledger
    from dlperf_hpc.sweepfile.case import Run

HELP = (
    "the run's id, a part of the id that no other run's id contains, the run's number in the sweep"
    " (counted from 1), or its task as the scheduler calls it (4711_3)"
)
_MOST = 20


def run_named(ledger: Ledger, text: str) -> Run:
    """The one run that a text names; SpecError that lists the runs otherwise."""
    runs = ledger.manifest.runs
    if text.isdecimal() and 1 <= int(text[:9]) <= len(runs):
        return runs[int(text[:9]) - 1]
    tasks = ledger.tasks()
    exact = [run for run in runs if text == run.id]
    exact = exact or [run for run in runs if run.id in tasks and tasks[run.id].name == text]
    found = exact or [run for run in runs if text in run.id]
    if len(found) == 1:
        return found[0]
    listed = "".join(f"\n  {run.id}" for run in (found or runs)[:_MOST])
    more = f"\n  ... {len(found or runs)} in all" if len(found or runs) > _MOST else ""
    what = f"{len(found)} runs have {text!r} in their id" if found else f"no run's id has {text!r}"
    raise usage_error("RUN", f"{what}; the ids are{listed}{more}")
