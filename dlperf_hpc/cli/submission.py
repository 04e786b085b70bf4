"""What ``sweep`` and ``rerun`` do after they have submitted: report it, submit what a limit kept
back, follow the runs to their end; and what they say of environments whose runs are held back.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlperf_hpc.cli.messages import shortest
from dlperf_hpc.errors import LedgerError, number_of, printable, visible
from dlperf_hpc.records.manifest import Array, Submission

if TYPE_CHECKING:
    from dlperf_hpc.engines.base import Engine, Limit
    from dlperf_hpc.engines.dependency import Reporting
    from dlperf_hpc.engines.site import Site
    from dlperf_hpc.engines.submit import SubmitResult
    from dlperf_hpc.model.case import Case
    from dlperf_hpc.records.ledger import Ledger


def report_submission(
    arrays: Iterable[Array],
    submitted: Sequence[Submission],
    adopted: Sequence[Submission],
    refused: Sequence[Submission],
) -> None:
    """One line for each array that has a job now, or was refused."""
    tasks = {array.token: len(array.tasks) for array in arrays}
    for submission in refused:
        print(printable(f"refused: {submission.array}: {submission.error}"), file=sys.stderr)
    for words, rows in (("submitted", submitted), ("found again", adopted)):
        for row in rows:
            count = tasks[row.token]
            runs = f"{count} run" + "s" * (count != 1)
            print(visible(f"{words}: job {row.job_id}  {row.array}  {runs}"))


def report_waiting(outcome: SubmitResult, engine: Engine, site: Site) -> None:
    """Which arrays were not submitted, why, and what to do."""
    arrays, runs = outcome.waiting, sum(len(array.tasks) for array in outcome.waiting)
    why = "the jobs of this sweep were cancelled meanwhile"
    to_do = "the same command again submits the rest"
    if not outcome.stopped:
        limit = engine.limit_behind(outcome.limit, site)
        value = f" ({limit.name} is {limit.most})" if limit.most is not None else ""
        why = f"the site says {printable(outcome.limit)}{value}"
        to_do = engine.out_of_reach(outcome.limit) or _way_past(arrays[0], limit)
    what = f"{number_of(len(arrays), 'array')} with {number_of(runs, 'run')}"
    told = f"not yet submitted: {what}: {why}\n{to_do}"
    print(visible(told), file=sys.stderr)


def _way_past(array: Array, limit: Limit) -> str:
    from dlperf_hpc.engines.submit import never_fits

    if not never_fits(array, limit):
        return (
            "when some of your jobs have ended, type the same command again to submit the rest"
            " (with --wait the command does so by itself)"
        )
    tasks = f"{array.name} has {array.size} tasks"
    value = limit.most
    known = f"{tasks}, more than may ever be in the queue at the same time"
    if value is None:
        known = f"none of your jobs is in the queue, and yet {tasks} too many"
    return (
        f"{known}: write `max_submit = {'N' if value is None else value}` in the site profile"
        f"{', N being what the site allows,' if value is None else ''} and type the same command"
        " again (rerun: with --site): what is not submitted yet is then submitted in smaller arrays"
    )


def print_next(
    root: Path, engine: Engine, rows: Sequence[Submission], last: Reporting | None, nothing: str
) -> None:
    """What to type next; ``nothing`` is said first if nothing was submitted."""
    shown = shortest(root)
    if not rows:
        print(f"{nothing}\nnext:\n  dlperf status {shown}")
        return
    jobs = [row.job_id for row in rows if row.job_id]
    if last is not None and last.job:
        jobs.append(last.job)
    if jobs:
        queue = visible(" ".join(engine.queue_command(jobs)))
        print(f"\nnext:\n  {queue}\n  dlperf status {shown}")
        print(f"  dlperf report {shown}\n  dlperf cancel {shown}")


def of_report_job(words: str, shown: str) -> list[str]:
    """A line on the job that reports at the end, if there is one; ``shown`` is the sweep's
    directory as one types it."""
    return [printable(words.replace("DIR", shown))] if words else []


def wait_and_report(
    ledger: Ledger, site: Site, adopted: Sequence[Submission], outcome: SubmitResult, *,
    nothing: str, left: Callable[[], Mapping[str, int]], wait: bool, report_job: bool,
    as_json: bool,
) -> int:  # fmt: skip
    """Report what was submitted, and with ``wait`` follow it to the end; the exit code.

    ``nothing`` is what is said if there was nothing to submit. ``left`` is asked then: how many
    runs, by status, ended badly and are left alone. With ``report_job`` the job that reports at the
    end is submitted when all arrays are.
    """
    from dlperf_hpc.cli.dependencies import report_at_the_end
    from dlperf_hpc.engines import get_engine
    from dlperf_hpc.engines.submit import submit_in_waves

    root = ledger.root
    known = {array.token for array in ledger.arrays}

    def report(more: SubmitResult, found: Sequence[Submission]) -> None:
        if not as_json:
            ours = [row for row in found if row.token in known]
            report_submission(ledger.arrays, more.submitted, ours, more.refused)

    report(outcome, adopted)
    rows = (*outcome.submitted, *adopted, *outcome.refused)
    engine = get_engine(ledger.manifest.engine)
    if wait:
        outcome = submit_in_waves(root, site, outcome, report)
    last: Reporting | None = None
    if report_job and engine.detached:
        last = report_at_the_end(root, site, outcome, as_json)
    failed = last is not None and last.failed
    if wait and not outcome.waiting:
        return max(follow_and_report(root, site.poll_s, as_json), failed)
    if outcome.waiting:
        report_waiting(outcome, engine, site)
    unresolved: dict[str, int] = {}
    if not (rows or outcome.waiting):
        unresolved.update(left())
    if as_json:
        print(json.dumps(_as_json(root, rows, outcome, last, unresolved), indent=1))
    elif not outcome.waiting:
        print_next(root, engine, rows, last, nothing)
    return int(any((outcome.refused, outcome.waiting, failed, unresolved)))


def _as_json(
    root: Path, rows: Iterable[Submission], outcome: SubmitResult, last: Reporting | None,
    unresolved: Mapping[str, int],
) -> dict[str, Any]:  # fmt: skip
    """What was submitted, for scripts: the arrays with their jobs, and those that wait; the job
    that reports, and the runs that were left alone, where there are any."""
    told: dict[str, Any] = {
        "sweep": root.name,
        "root": str(root),
        "arrays": [vars(row) for row in rows],
        "waiting": [array.name for array in outcome.waiting],
    }
    if last is not None:
        told["report_job"] = vars(last)
    if unresolved:
        told["untaken"] = unresolved
    return told


def follow_and_report(root: Path, poll_s: float, as_json: bool) -> int:
    """Follow the sweep until no run can change any more, then report; the exit code."""
    from dlperf_hpc.cli import report
    from dlperf_hpc.engines.states import follow

    follow(root, poll_s, quiet=as_json)
    return report.main([str(root), *(["--json"] if as_json else [])])


def say_held_back(root: Path, cases: Iterable[Case]) -> None:
    """One note on stderr for each reason that holds runs of these cases back."""
    from dlperf_hpc.records.quarantine import is_end_of, read_entries, reason

    named: dict[str, list[Case]] = {}
    for case in cases:
        named.setdefault(case.environment, []).append(case)
    for environment, those in named.items():
        for entry in read_entries(root, environment):
            if any(is_end_of(entry.kind, entry.framework, case) for case in those):
                words = f"note: runs are held back: {reason(environment, entry)}"
                print(printable(words), file=sys.stderr)


def try_anew(root: Path, arrays: Iterable[Array]) -> None:
    """Take the environments of what is about to be submitted again as mended; LedgerError if that
    cannot be written down."""
    from dlperf_hpc.records import quarantine

    try:
        found = quarantine.let_go(root, (array.environment for array in arrays))
    except OSError as error:
        raise LedgerError(
            f"{error.filename}: cannot be taken away: {error.strerror}; runs of its environment"
            " would be held back: remove it by hand, then type the same command again"
        ) from error
    for environment in found:
        print(f"note: environment {environment} is tried anew", file=sys.stderr)
