"""What `sweep` and `rerun` do after they have submitted: tell, wait for what is kept back, stay."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlperf_hpc.launch.site import Site
    from dlperf_hpc.launch.submit import Outcome
    from dlperf_hpc.records.ledger import Ledger
    from dlperf_hpc.records.manifest import Submission


def told(
    ledger: Ledger, site: Site, adopted: Sequence[Submission], outcome: Outcome, *,
    nothing: str, wait: bool, as_json: bool,
) -> int:  # fmt: skip
    """Tell what was submitted to Slurm, and with ``wait`` stay to the end; the exit code.

    ``nothing`` is what is said if there was nothing to submit.
    """
    from dlperf_hpc.launch.resume import in_waves
    from dlperf_hpc.reporting import submission

    root = ledger.root
    known = {array.token for array in ledger.arrays}

    def tell(more: Outcome, found: Sequence[Submission]) -> None:
        if not as_json:
            ours = [row for row in found if row.token in known]
            submission.tell(ledger.arrays, more.submitted, ours, more.refused)

    tell(outcome, adopted)
    rows = (*outcome.submitted, *adopted, *outcome.refused)
    if wait:
        in_waves(root, site, outcome, tell)
        return stay(root, "slurm", site.poll_s, as_json)
    if as_json:
        print(json.dumps(submission.as_json(root.name, root, rows, outcome.waiting), indent=1))
    elif outcome.waiting:
        submission.tell_waiting(outcome.waiting, outcome.limit)
    elif rows:
        submission.tell_next(root, [row.job_id for row in rows if row.job_id])
    else:
        print(f"{nothing}\nnext:\n  python -m dlperf_hpc.status {submission.shortest(root)}")
    return 1 if outcome.refused or outcome.waiting else 0


def stay(root: Path, engine: str, poll_s: float, as_json: bool) -> int:
    """Follow the sweep until no run can change any more, then report."""
    from dlperf_hpc import report
    from dlperf_hpc.launch.follow import follow

    follow(root, engine, poll_s, quiet=as_json)
    return report.main([str(root), *(["--json"] if as_json else [])])
