"""What ``sweep`` and ``rerun`` say of the jobs before theirs (``--after``) and after them
(``--report``)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dlperf_hpc.cli.messages import usage_error
from dlperf_hpc.errors import printable, visible

if TYPE_CHECKING:
    from dlperf_hpc.engines.base import Engine
    from dlperf_hpc.engines.dependency import Reporting
    from dlperf_hpc.engines.site import Site
    from dlperf_hpc.engines.submit import SubmitResult


def after_others(names: Sequence[str], engine: Engine, site: Site, logs: Path) -> Site:
    """The profile with which jobs start after what ``--after`` names, and a line on stderr for each
    of these names. SpecError for a name of nothing, and where nothing can be waited for."""
    if not names:
        return site
    from dlperf_hpc.engines.dependency import awaited

    if not engine.detached:
        raise usage_error(
            f"--after {names[0]}",
            "runs on this machine start at once, in this process, and wait for no job",
            "type the two commands one after the other: first ; second",
        )
    found: dict[str, None] = {}
    for name in names:
        jobs, note = awaited(engine, name, logs)
        words = "nothing of it waits or runs, so that nothing is waited for"
        if jobs:
            ended = "jobs {} have ended" if len(jobs) > 1 else "job {} has ended"
            words = f"what is submitted now starts when {ended.format(', '.join(jobs))}"
        if note:
            words += f" ({note})"
        print(printable(f"after {name}: {words}"), file=sys.stderr)
        found.update(dict.fromkeys(jobs))
    later = engine.starting_after(site, list(found))
    if later is None:
        raise usage_error("--after", f"jobs of {engine.title} cannot wait for others")
    return later


def announce_report(arguments: argparse.Namespace, engine: Engine) -> None:
    """What ``--report`` would do besides, under a dry run's arrays."""
    if arguments.report and engine.detached and not arguments.json:
        print(
            "\n===== and one job of one task without GPUs, which runs `dlperf report` with the"
            " Python of this command when all of these have ended"
        )


def report_at_the_end(root: Path, site: Site, outcome: SubmitResult, quiet: bool) -> Reporting:
    """Submit the job that reports when all others have ended, if all others are submitted; say what
    came of it (``quiet``: only what went wrong)."""
    from dlperf_hpc.cli.messages import shortest
    from dlperf_hpc.engines import get_engine
    from dlperf_hpc.engines.dependency import Reporting, submit_report
    from dlperf_hpc.engines.submit import submit_lock
    from dlperf_hpc.errors import DlperfError
    from dlperf_hpc.records.ledger import read_ledger

    ledger = read_ledger(root)
    name = ledger.report_name
    found = Reporting(why_not="it is submitted after the last array", failed=True)
    if not outcome.waiting:
        try:
            with submit_lock(root, get_engine(ledger.manifest.engine).lock_patience_s):
                found = submit_report(read_ledger(root), site, outcome.stop_request)
        except DlperfError as error:
            found = Reporting(why_not=str(error), failed=True)
    if found.failed:
        again = "the same command again submits it; the sweep's own jobs stay as they are"
        why_not = f"no report job: {name}: {printable(found.why_not)}; {again}"
        print(visible(why_not), file=sys.stderr)
    elif found.job and not quiet:
        how = "submitted" if found.new else "there already"
        print(visible(f"{how}: job {found.job}  {name}  reports when the others have ended"))
    elif not quiet:
        now = f"`dlperf report {shortest(root)}` reports now"
        print(visible(f"no report job: {found.why_not}: {now}"))
    return found
