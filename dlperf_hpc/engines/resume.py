"""What a verb does that submits: the lock, what is missing, waves under a site's limits."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dlperf_hpc.engines.local.queue import QUEUE
from dlperf_hpc.engines.lock import submitting
from dlperf_hpc.engines.plan import DEFAULT_BOUND, rerun_arrays
from dlperf_hpc.engines.site import Site
from dlperf_hpc.engines.slurm.query import max_array_size
from dlperf_hpc.engines.submit import Outcome, adopt, submit
from dlperf_hpc.errors import SiteError
from dlperf_hpc.records.collect import quick_results
from dlperf_hpc.records.ledger import Ledger, add_array, read_ledger
from dlperf_hpc.records.manifest import Array, Submission

_PATIENCE_S = 120.0  # sbatch itself may wait as long for a controller that is busy
_LOCAL_PATIENCE_S = 5.0


def array_bound(site: Site, engine: str) -> int:
    """The most tasks of one array: the profile's word, else the controller's, else Slurm's own.

    An array with more tasks than the site lets one submit would never be taken.
    """
    if engine != "slurm":
        return DEFAULT_BOUND
    bound = site.max_array_size or max_array_size() or DEFAULT_BOUND
    return min(bound, site.max_submit or bound)


@contextmanager
def alone(root: Path, engine: str) -> Iterator[None]:
    """Nobody else submits in ``root`` meanwhile, nor (on the local engine) runs anything."""
    patience = _PATIENCE_S if engine == "slurm" else _LOCAL_PATIENCE_S
    with submitting(root, patience, _tell_waiting) as descriptor:
        QUEUE.held = (descriptor,)
        try:
            yield
        finally:
            QUEUE.held = ()


def _tell_waiting() -> None:
    print("somebody else is submitting here: waiting for them", file=sys.stderr)


def missing_arrays(ledger: Ledger, new: bool) -> tuple[Array, ...]:
    """Arrays that have to be submitted so that every run has been, and every rerun that was asked
    for.

    An array whose runs have all been submitted again since, as others, is not missing. On the
    local engine a killed sweep leaves runs behind that were queued in its memory alone:
    they get new arrays. With the lock held nothing of an earlier sweep still runs.
    """
    if new:
        return ledger.arrays
    if ledger.manifest.engine == "slurm":
        tasks, kept_back = ledger.tasks(), {array.token for array in ledger.kept_back()}
        return tuple(
            array
            for array in ledger.arrays
            if array.token in kept_back
            or any(tasks[r.id].array is array if r.id in tasks else True for r in array.tasks)
        )
    left = [result.run.id for result in quick_results(ledger).results if not result.status.finished]
    runs = {run.id: run for run in ledger.manifest.runs}
    return keep(ledger, rerun_arrays(ledger, [runs[name] for name in left]))


def keep(ledger: Ledger, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
    """Write new arrays down, before any of them is submitted."""
    for array in arrays:
        add_array(ledger.root, array)
    return arrays


def in_waves(
    root: Path,
    site: Site,
    outcome: Outcome,
    tell: Callable[[Outcome, tuple[Submission, ...]], None],
) -> Outcome:
    """Submit what is kept back, again and again as the queue empties, until all is in."""
    while outcome.waiting:
        time.sleep(site.poll_s)
        try:
            with alone(root, "slurm"):
                ledger, adopted = adopt(read_ledger(root))
                again = submit(ledger, site, outcome.waiting)
        except SiteError as error:  # the controller is away: it will be back
            print(f"{error}: waiting", file=sys.stderr)
            continue
        if adopted or again.submitted or again.refused:
            tell(again, adopted)
        outcome = again
    return outcome
