"""``dlperf rerun DIR``: new job arrays of just the runs that failed."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dlperf_hpc.cli import messages, options, selection, submission
from dlperf_hpc.cli.messages import usage_error
from dlperf_hpc.errors import Issue, LedgerError, SiteError, SpecError, listed, number_of, visible

if TYPE_CHECKING:
    from dlperf_hpc.engines.base import Engine
    from dlperf_hpc.engines.site import Site
    from dlperf_hpc.model.result import RunResult
    from dlperf_hpc.records.ledger import Ledger
    from dlperf_hpc.records.manifest import Array

SUMMARY = "submit the runs that failed again, as new arrays"

_WORDS = {"lost": "unknown", "oom": "out_of_memory", "held_back": "held-back"}
_DEFAULT = "failed,partial,timeout,out_of_memory,preempted,node_failed,held-back,lost"
_EPILOG = f"""\
By default, rerun submits the runs with these statuses:
  {_DEFAULT.replace(",", " ")}
of a sweep on this machine also cancelled ones (interrupted: by Ctrl-C, or killed with their sweep).
lost means that neither disk nor scheduler knows what became of a run. Runs that are ok, waiting or
running are never submitted again; of a run with status rejected, a job that still waits is
cancelled first. A run keeps its id and its earlier attempts. held-back means that another run of
the same environment died of the environment: rerun takes it as mended, and tries it anew.
"""


def _parser() -> argparse.ArgumentParser:
    made = options.parser(
        "rerun", "Submit the runs that failed again, as new arrays of just those runs.", _EPILOG
    )
    add = made.add_argument
    options.add_directory(made)
    status = "statuses of the runs to submit again: cancelled, failed, timeout... (default: below)"
    add("--status", metavar="S,...", help=status)
    only = "select the runs of these topologies"
    add("--only", action="append", default=[], metavar="TOPOLOGY,...", help=only)
    part = "select the runs whose id contains this text"
    add("--run", action="append", default=[], metavar="TEXT", help=part)
    nodes = "do not use these nodes; auto: the nodes on which runs died or were slow"
    add("--exclude-nodes", default="", metavar="NODES|auto", help=nodes)
    limit = "time limit of a run: x2 for twice the earlier limit, or hh:mm:ss"
    add("--time", metavar="xF|LIMIT", help=limit)
    add("--site", help="site profile (default: the profile with which the sweep was submitted)")
    options.add_budget(made)
    add("--dry-run", action="store_true", help="print batch scripts or commands, submit nothing")
    add("--wait", action="store_true", help="follow the runs to their end, then report")
    options.add_order_options(made)
    options.add_json(made, "the plan, the submission or the report")
    return made


def _statuses(text: str) -> set[str]:
    from dlperf_hpc.model.result import Status

    never = {Status.OK, Status.PENDING, Status.RUNNING}
    known = [status.value for status in Status if status not in never]
    wanted = {_WORDS.get(word, word) for word in text.replace("-", "_").split(",") if word}
    strange = sorted(wanted - set(known))
    if strange or not wanted:
        message = f"runs with status {', '.join(strange) or 'nothing'} cannot be rerun"
        raise usage_error("--status", message, f"there are {', '.join(known)}, lost")
    return wanted


def taken_by_default(engine: Engine) -> set[str]:
    """The statuses whose runs are submitted again where none are named: of an engine whose queue
    ends with a process, runs that ended with it are among them."""
    return _statuses(_DEFAULT + ",cancelled" * (not engine.detached))


def _not_taken(
    arguments: argparse.Namespace, results: Sequence[RunResult], root: Path
) -> submission.UnresolvedRuns:
    typed = [("--only", text) for text in arguments.only] + [("--run", t) for t in arguments.run]
    options = "".join(f" {option} {shlex.quote(text)}" for option, text in typed)
    selected = _selected(arguments, results)
    return submission.unresolved(selected, root, arguments.statuses, options)


def _stretch(text: str | None) -> Callable[[int], int]:
    """``x2`` or a time limit as in a sweep file -> from the earlier limit (s) to the new one."""
    from dlperf_hpc.sweepfile.load import clock_seconds

    if text is None:
        return lambda before: before
    factor = re.fullmatch(r"x([0-9]+(?:\.[0-9]+)?)", text)
    if factor and 0 < float(factor[1]) <= 1000:
        return lambda before: max(1, round(before * float(factor[1])))
    try:
        limit = clock_seconds(text)
    except ValueError as error:
        raise usage_error("--time", f"{text!r}: {error}", "write x2 or hh:mm:ss") from error
    return lambda _: limit


def _selected(arguments: argparse.Namespace, results: Sequence[RunResult]) -> list[RunResult]:
    there = {str(result.run.case.topology) for result in results}
    topologies = {name.strip() for item in arguments.only for name in item.split(",")} or there
    if unknown := ", ".join(sorted(topologies - there)):
        hint = f"there are {', '.join(sorted(there))}"
        raise usage_error("--only", f"the sweep has no topology {unknown}", hint)
    parts = arguments.run or [""]
    among = [result for result in results if str(result.run.case.topology) in topologies]
    return [result for result in among if any(part in result.run.id for part in parts)]


def _site(arguments: argparse.Namespace, ledger: Ledger) -> Site:
    from pydantic import ValidationError

    from dlperf_hpc.engines.site import Site, load_site
    from dlperf_hpc.records import layout
    from dlperf_hpc.sweepfile.validation import issues_of

    if arguments.site:
        return load_site(arguments.site)
    try:
        return Site.model_validate({**ledger.manifest.site, "group": None})
    except ValidationError as error:  # of another version
        hint = Issue("site", "this version cannot use the site profile of the sweep", "give --site")
        source = str(ledger.root / layout.MANIFEST)
        raise SpecError(source, [hint, *issues_of(error, Site)]) from error


def _rerun(arguments: argparse.Namespace) -> int:
    from dlperf_hpc.engines import get_engine
    from dlperf_hpc.engines.site import sharing_group
    from dlperf_hpc.records import ownership
    from dlperf_hpc.records.ledger import read_ledger

    root = arguments.directory.absolute()
    _stretch(arguments.time)  # what is invalid must be refused before any job is cancelled
    options.check_nodes("--exclude-nodes", arguments.exclude_nodes)
    ledger = read_ledger(root)
    engine, site = get_engine(ledger.manifest.engine), _site(arguments, ledger)
    arguments.statuses = taken_by_default(engine)
    if arguments.status is not None:
        arguments.statuses = _statuses(arguments.status)
    site = submission.starting_after(arguments.after, engine, site, root.parent)
    if arguments.dry_run:
        arrays, _ = _arrays(arguments, ledger, site)
        code = _dry_run(ledger, engine, site, arrays, arguments.json)
        submission.announce_report(arguments, engine)
        return code
    with ownership.sharing(sharing_group(arguments.site)):
        _check_trust(root, arguments.site)
        return _submit_again(arguments, root, ledger, engine, site)


def _check_trust(root: Path, site: str | None) -> None:
    """LedgerError for a directory that is not this user's, and, unless a site profile is given, for
    one whose manifest somebody else may have written: jobs are made of the profile in it."""
    from dlperf_hpc.records import layout, ownership

    ownership.refuse_foreign(root)
    words = ownership.ownership_warning(root)
    if words and not site:
        raise LedgerError(
            f"{words}; a rerun would run the `setup` lines and the Python that"
            f" {root / layout.MANIFEST} names, as you. Give the site profile to run with (--site),"
            " or, when you have read what `dlperf rerun --dry-run` prints, take these rights away"
            " (chmod go-w)"
        )
    if words:
        note = f"note: {words}; the site profile {site} counts, not the sweep's"
        messages.say(note)


def _submit_again(
    arguments: argparse.Namespace, root: Path, ledger: Ledger, engine: Engine, site: Site
) -> int:
    from dlperf_hpc.engines.submit import adopt, save_arrays, split_arrays, submit, submit_lock
    from dlperf_hpc.records.ledger import read_ledger

    engine.check(ledger.manifest, site, root)
    with submit_lock(root, engine.lock_patience_s):
        ledger, adopted = adopt(read_ledger(root))
        ledger, kept_back = split_arrays(ledger, site, ledger.kept_back())
        more, left = _arrays(arguments, ledger, site, kept_back)
        arrays = (*kept_back, *save_arrays(ledger, more))
        ledger = read_ledger(root)
        submission.try_anew(root, arrays)
        outcome = submit(ledger, site, arrays)
        if arrays and not engine.detached:
            return submission.follow_and_report(root, site.poll_s, arguments.json)
    return submission.wait_and_report(
        ledger, site, adopted, outcome, nothing="nothing to rerun", left=lambda: left.counts,
        arguments=arguments,
    )  # fmt: skip


def _arrays(
    arguments: argparse.Namespace, ledger: Ledger, site: Site, kept_back: Sequence[Array] = ()
) -> tuple[tuple[Array, ...], submission.UnresolvedRuns]:
    """New arrays of the runs asked for, not yet on disk; not of those that are kept back. And the
    runs that ended badly and stay as they are."""
    from dlperf_hpc.engines import get_engine
    from dlperf_hpc.engines.plan import rerun_arrays
    from dlperf_hpc.engines.states import state_of

    waiting = {run.id for array in kept_back for run in array.tasks}
    collection = state_of(ledger, insist=not arguments.dry_run)
    results = collection.results
    left = _not_taken(arguments, results, ledger.root)
    left.tell(taken_by_default(get_engine(ledger.manifest.engine)))
    wanted = arguments.statuses
    taken = [each for each in _selected(arguments, results) if each.status.value in wanted]
    names = [each.run.id for each in taken if each.run.id not in waiting]
    names = _without_jobs(arguments, ledger, names)
    if not names:
        return (), left
    runs = {run.id: run for run in ledger.manifest.runs}
    arrays = rerun_arrays(
        ledger,
        [runs[name] for name in names],
        bound=get_engine(ledger.manifest.engine).array_bound(site),
        exclude=_excluded(arguments, ledger),
        stretch=_stretch(arguments.time),
    )
    return selection.select_again(ledger, collection, arrays, arguments.budget), left


def _excluded(arguments: argparse.Namespace, ledger: Ledger) -> str:
    """The nodes that are left out; says why, where they are found by the runs."""
    from dlperf_hpc.analysis.slow_nodes import examine
    from dlperf_hpc.engines.suspects import suspect_nodes
    from dlperf_hpc.records.collect import full_results

    if arguments.exclude_nodes != "auto":
        return str(arguments.exclude_nodes)
    results = full_results(ledger.root).results
    slow = f"its runs are slow: see `dlperf nodes {messages.shortest(ledger.root)}`"
    found = dict.fromkeys(examine([results]).slow_nodes, slow)
    found |= suspect_nodes(ledger, results)
    for name, why in sorted(found.items()):
        messages.say(f"leaving out {name}: {why}")
    return ",".join(sorted(found))


def _without_jobs(arguments: argparse.Namespace, ledger: Ledger, names: Sequence[str]) -> list[str]:
    """The runs that nothing measures now; those of their jobs that wait are cancelled first."""
    from dlperf_hpc.engines import get_engine
    from dlperf_hpc.engines.submit import ActiveJobs, active_jobs, cancel_waiting

    engine = get_engine(ledger.manifest.engine)
    try:
        jobs = active_jobs(ledger, engine, names)
    except SiteError:
        if not arguments.dry_run:
            raise
        jobs = ActiveJobs()
    for run, task in jobs.running.items():
        messages.say(f"not submitted again: {run}: job {task} measures it now")
    done = "would be cancelled first"
    if not arguments.dry_run:
        done = "cancelled"
        cancel_waiting(ledger, engine, jobs)
    groups: dict[str, list[str]] = {}
    for task, state in jobs.waiting.items():
        groups.setdefault(str(state), []).append(task)
    for why, tasks in groups.items():
        messages.say(f"{done}: {listed(tasks, 3)}, which waited: {why}")
    return [name for name in names if name not in jobs.running]


def _dry_run(
    ledger: Ledger, engine: Engine, site: Site, arrays: Sequence[Array], as_json: bool
) -> int:
    from dlperf_hpc.records.ledger import bound_to

    root, manifest = ledger.root, ledger.manifest
    rows = [
        {"array": array.name, "runs": [run.id for run in array.tasks],
         "script": engine.script(root, array, site, bound_to(root, manifest, array)),
         "commands": list(engine.commands(root, array, site))}
        for array in arrays
    ]  # fmt: skip
    if as_json:
        messages.print_json({"root": str(root), "arrays": rows})
        return 0
    would = f"{len(arrays)} arrays would be submitted"
    if not engine.detached:
        runs = number_of(sum(len(array.tasks) for array in arrays), "run")
        would = f"{runs} would start on this machine, one after another"
    print(would if arrays else "nothing to rerun")
    for array, row in zip(arrays, rows):
        text = row["script"] or "".join(f"{line}\n" for line in row["commands"] or ())
        print(visible(f"\n===== {array.name}: {number_of(len(array.tasks), 'run')}\n{text}"))
    return 0


main = messages.entry(_rerun, _parser)
