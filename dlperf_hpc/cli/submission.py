"""What ``sweep`` and ``rerun`` say and do around a submission: the jobs before theirs (``--after``)
and behind them (``--report``), runs that are there already or held back or left alone, what has
been submitted, the waves under a limit, and following the runs to their end.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlperf_hpc.cli.messages import print_json, say, shortest, usage_error
from dlperf_hpc.errors import DlperfError, LedgerError, below, number_of, printable, visible

if TYPE_CHECKING:
    from dlperf_hpc.engines.base import Engine, Limit
    from dlperf_hpc.engines.dependency import Reporting
    from dlperf_hpc.engines.site import Site
    from dlperf_hpc.engines.submit import SubmitResult
    from dlperf_hpc.model.case import Case
    from dlperf_hpc.model.result import RunResult
    from dlperf_hpc.records.ledger import Ledger
    from dlperf_hpc.records.manifest import Array, Manifest, Submission

_WERE = ("cancelled", "rejected", "preempted")  # what others do to a run


def starting_after(names: Sequence[str], engine: Engine, site: Site, logs: Path) -> Site:
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
        say(f"after {name}: {words}")
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


def _submit_report(root: Path, site: Site, outcome: SubmitResult, quiet: bool) -> Reporting:
    """Submit the job that reports when all others have ended, if all others are submitted; say what
    came of it (``quiet``: only what went wrong)."""
    from dlperf_hpc.engines import get_engine
    from dlperf_hpc.engines.dependency import Reporting, submit_report
    from dlperf_hpc.engines.submit import submit_lock
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


@dataclass(frozen=True)
class UnresolvedRuns:
    """Runs that ended badly and that a command leaves alone: how many of ``runs``, by status; of
    ``unknown`` ones nobody knows yet how they ended. ``options`` are those with which ``dlperf
    rerun`` selects these ``runs`` among all of the sweep in ``root``."""

    counts: dict[str, int]
    unknown: int
    runs: int
    root: Path
    options: str = ""

    def tell(self, default: Collection[str]) -> None:
        """One line for each command that does something about them; ``default`` are the statuses
        that ``rerun`` takes where none are named."""
        groups: dict[str, list[str]] = {"": []}
        for name in self.counts:
            option = "" if name in default else f" --status {name}"
            groups.setdefault(option, []).append(name)
        where, runs = shortest(self.root), number_of(self.runs, "run")
        for option, names in groups.items():
            if number := sum(self.counts[name] for name in names):
                were, them = ("were", "them") if number > 1 else ("was", "it")
                became = f"ended as {' or '.join(names)}"
                if len(names) == 1 and names[0] in _WERE:
                    became = f"{were} {names[0]}"
                typed = f"`dlperf rerun {where}{option}{self.options}`"
                say(f"{number} of {runs} {became}: {typed} takes {them}")
        if self.unknown:
            why = f"`dlperf status {where}` says why, and what to do"
            say(f"of {self.unknown} of {runs} the end is not known: {why}")


def unresolved(
    results: Iterable[RunResult], root: Path, taken: Collection[str] = (), options: str = ""
) -> UnresolvedRuns:
    """Those of the results that are bad or unknown, and of no status in ``taken``."""
    from dlperf_hpc.model.result import Status

    found = Counter(result.status for result in results)
    left = {status: number for status, number in found.items() if status.value not in taken}
    counts = {status.value: left[status] for status in Status if status.bad and status in left}
    unknown = left.get(Status.UNKNOWN, 0)
    return UnresolvedRuns(counts, unknown, sum(found.values()), root, options)


def unresolved_in_sweep(root: Path, requested: Manifest) -> UnresolvedRuns:
    """Those of the requested runs that are bad or unknown; asks the scheduler once."""
    from dlperf_hpc.engines.states import current

    wanted = {run.id for run in requested.runs}
    results = current(root).results
    among = [result for result in results if result.run.id in wanted]
    options = ""
    if len(among) < len(results):
        topologies = dict.fromkeys(str(result.run.case.topology) for result in among)
        options = f" --only {','.join(topologies)}"
    return unresolved(among, root, options=options)


def compared(root: Path, planned: Manifest) -> dict[str, Any] | None:
    """How many runs of a plan the directory has, how many it does not, and what contradicts the
    sweep there; None if there is none, or none that can be read."""
    from dlperf_hpc.records import layout
    from dlperf_hpc.records.manifest import read_manifest

    if not os.path.exists(root / layout.MANIFEST):  # nor if nobody may look there
        return None
    from dlperf_hpc.engines.plan import differences

    try:
        there = read_manifest(root)
    except LedgerError as error:
        say(f"note: {error}")
        return None
    known = {run.id for run in there.runs}
    number = sum(run.id in known for run in planned.runs)
    added = len(planned.runs) - number
    return {"there": number, "added": added, "differences": differences(there, planned)}


def compared_text(found: dict[str, Any]) -> str:
    """:func:`compared` in a sentence for people."""
    if found["differences"]:
        listed = below(found["differences"], 10)
        return (
            "in that directory there is a sweep from which this one differs, so that without"
            f" --dry-run the command would be refused:{listed}"
        )
    there, added = found["there"], found["added"]
    if not added:
        return f"in that directory there are all of these {there} runs: nothing would be added"
    return (
        f"in that directory there is this sweep, with {there} of these {there + added} runs:"
        f" {added} would be added, as new arrays"
    )


def say_held_back(root: Path, cases: Iterable[Case]) -> None:
    """One note on stderr for each reason that holds runs of these cases back."""
    named: dict[str, list[Case]] = {}
    for case in cases:
        named.setdefault(case.environment, []).append(case)
    for environment, those in named.items():
        from dlperf_hpc.records.quarantine import is_end_of, read_entries, reason

        for entry in read_entries(root, environment):
            if any(is_end_of(entry.kind, entry.framework, case) for case in those):
                say(f"note: runs are held back: {reason(environment, entry)}")


def try_anew(root: Path, arrays: Iterable[Array]) -> None:
    """Take the environments of what is about to be submitted again as mended; LedgerError if that
    cannot be written down."""
    from dlperf_hpc.records import quarantine
    from dlperf_hpc.records.manifest import by_environment

    try:
        found = quarantine.let_go(root, by_environment(arrays))
    except OSError as error:
        raise LedgerError(
            f"{error.filename}: cannot be taken away: {error.strerror}; runs of its environment"
            " would be held back: remove it by hand, then type the same command again"
        ) from error
    for environment in found:
        say(f"note: environment {environment} is tried anew")


def say_refused(refused: Iterable[Submission]) -> None:
    """A line for each array that the scheduler did not take."""
    for row in refused:
        say(f"refused: {row.array}: {row.error}")


def _report_submission(
    arrays: Iterable[Array], outcome: SubmitResult, adopted: Iterable[Submission]
) -> None:
    tasks = {array.token: len(array.tasks) for array in arrays}
    say_refused(outcome.refused)
    for words, rows in (("submitted", outcome.submitted), ("found again", adopted)):
        for row in rows:
            if row.token in tasks:
                runs = number_of(tasks[row.token], "run")
                print(visible(f"{words}: job {row.job_id}  {row.array}  {runs}"))


def _report_waiting(outcome: SubmitResult, engine: Engine, site: Site) -> None:
    arrays, runs = outcome.waiting, sum(len(array.tasks) for array in outcome.waiting)
    why = "the jobs of this sweep were cancelled meanwhile"
    to_do = "the same command again submits the rest"
    if not outcome.stopped:
        limit = engine.limit_behind(outcome.limit, site)
        why = f"the site says {printable(outcome.limit)}"
        if limit.most is not None:
            why += f" ({limit.name} is {limit.most})"
        to_do = engine.out_of_reach(outcome.limit) or _way_past(arrays[0], limit)
    what = f"{number_of(len(arrays), 'array')} with {number_of(runs, 'run')}"
    print(visible(f"not yet submitted: {what}: {why}\n{to_do}"), file=sys.stderr)


def _way_past(array: Array, limit: Limit) -> str:
    from dlperf_hpc.engines.submit import never_fits

    if not never_fits(array, limit):
        return (
            "when some of your jobs have ended, type the same command again to submit the rest"
            " (with --wait the command does so by itself)"
        )
    tasks, value, means = f"{array.name} has {array.size} tasks", str(limit.most), ""
    known = f"{tasks}, more than may ever be in the queue at the same time"
    if limit.most is None:
        known = f"none of your jobs is in the queue, and yet {tasks} too many"
        value, means = "N", ", N being what the site allows,"
    return (
        f"{known}: write `max_submit = {value}` in the site profile{means} and type the same"
        " command again (rerun: with --site): what is not submitted yet is then submitted in"
        " smaller arrays"
    )


def _print_next(
    root: Path, engine: Engine, rows: Sequence[Submission], last: Reporting | None, nothing: str
) -> None:
    """What to type next; ``nothing`` is said first if nothing was submitted."""
    here = shortest(root)
    if not rows:
        print(f"{nothing}\nnext:\n  dlperf status {here}")
        return
    jobs = [row.job_id for row in rows if row.job_id]
    if last is not None and last.job:
        jobs.append(last.job)
    if not jobs:
        return
    queue = visible(" ".join(engine.queue_command(jobs)))
    print(f"\nnext:\n  {queue}\n  dlperf status {here}")
    print(f"  dlperf report {here}\n  dlperf cancel {here}")


def report_job_lines(words: str, directory: str) -> list[str]:
    """A line on the job that reports at the end, if there is one; ``directory`` as one types it."""
    return [printable(words.replace("DIR", directory))] if words else []


def wait_and_report(
    ledger: Ledger, site: Site, adopted: Sequence[Submission], outcome: SubmitResult, *,
    nothing: str, left: Callable[[], Mapping[str, int]], arguments: argparse.Namespace,
) -> int:  # fmt: skip
    """Report what was submitted, and with ``--wait`` follow it to the end; the exit code.
    ``nothing`` is what is said if there was nothing to submit. ``left`` is asked then: how many
    runs, by status, ended badly and are left alone. With ``--report`` the job that reports at the
    end is submitted when all arrays are."""
    from dlperf_hpc.engines import get_engine
    from dlperf_hpc.engines.submit import submit_in_waves

    root, as_json = ledger.root, arguments.json

    def report(more: SubmitResult, found: Sequence[Submission]) -> None:
        if not as_json:
            _report_submission(ledger.arrays, more, found)

    report(outcome, adopted)
    rows = (*outcome.submitted, *adopted, *outcome.refused)
    engine = get_engine(ledger.manifest.engine)
    if arguments.wait:
        outcome = submit_in_waves(root, site, outcome, report)
    last, failed = None, False
    if arguments.report and engine.detached:
        last = _submit_report(root, site, outcome, as_json)
        failed = last.failed
    if outcome.waiting:
        _report_waiting(outcome, engine, site)
    elif arguments.wait:
        return max(follow_and_report(root, site.poll_s, as_json), failed)
    left_alone: Mapping[str, int] = {}
    if not rows and not outcome.waiting:
        left_alone = left()
    if as_json:
        print_json(_as_json(root, rows, outcome, last, left_alone))
    elif not outcome.waiting:
        _print_next(root, engine, rows, last, nothing)
    return int(any((outcome.refused, outcome.waiting, failed, left_alone)))


def _as_json(
    root: Path, rows: Iterable[Submission], outcome: SubmitResult, last: Reporting | None,
    unresolved: Mapping[str, int],
) -> dict[str, Any]:  # fmt: skip
    """What was submitted, for scripts: the arrays with their jobs, and those that wait; the job
    that reports, and the runs that were left alone, where there are any."""
    values: dict[str, Any] = {
        "sweep": root.name,
        "root": str(root),
        "arrays": list(map(vars, rows)),
        "waiting": [array.name for array in outcome.waiting],
    }
    if last is not None:
        values["report_job"] = vars(last)
    if unresolved:
        values["untaken"] = unresolved
    return values


def follow_and_report(root: Path, poll_s: float, as_json: bool) -> int:
    """Follow the sweep until no run can change any more, then report; the exit code."""
    from dlperf_hpc.cli import report
    from dlperf_hpc.engines.states import follow

    follow(root, poll_s, quiet=as_json)
    return report.main([str(root), *["--json"] * as_json])


def turns_in_jobs(arrays: Sequence[Array]) -> Iterator[str]:
    """What the jobs of arrays measure in turn, where that is more than one run, and how long they
    may take together."""
    for array in arrays:
        if array.repeats_per_job > 1:
            job = [run.id for run in array.tasks[: array.repeats_per_job]]
            limit = f"time limit {array.job_limit_s / 60:g} min"
            each = f"each job measures {len(job)} runs in turn, {limit}"
            yield f"\n{array.name}: {each}; the first job:{below(job, 8)}"
