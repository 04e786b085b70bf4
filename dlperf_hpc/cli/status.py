"""``dlperf status DIR``: how many runs of a sweep wait, run, ended well or failed."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlperf_hpc.cli import messages, options

if TYPE_CHECKING:
    from dlperf_hpc.records.collect import Collection, RunJob

SUMMARY = "show how many runs of a sweep wait, run, ended well or failed"


def _parser() -> argparse.ArgumentParser:
    made = options.parser(
        "status",
        "How many runs of each topology are in each status; of cases with runs that wait or run,\n"
        "the jobs, their nodes and times. The files of the sweep decide; the scheduler is asked\n"
        "about runs of which the files do not tell the end.",
    )
    options.add_directory(made, also=", or its archive")
    made.add_argument("--offline", action="store_true", help="do not ask the scheduler")
    made.add_argument(
        "--watch", action="store_true", help="a live screen until every run has ended"
    )
    every = "with --watch: seconds between two looks (default: the site profile's `poll_s`, 30)"
    made.add_argument("--every", type=options.seconds, metavar="S", help=every)
    told = (
        "tell of one run what was looked at, in order, and what decided how it ended; RUN is"
        f" {options.RUN_HELP}. Nothing is written then"
    )
    made.add_argument("--why", metavar="RUN", help=told)
    options.add_json(made, "every run with its status, or with --why what was looked at")
    return made


def _as_json(collection: Collection) -> dict[str, Any]:
    return {
        "root": str(collection.root),
        "sweep": collection.manifest.sweep if collection.manifest else None,
        "not_submitted": len(collection.unsubmitted),
        "counts": dict(Counter(result.status.value for result in collection.results)),
        "runs": [
            {
                "run": result.run.id,
                "topology": str(result.run.case.topology),
                "status": result.status.value,
                "reason": result.reason,
                "source": result.source,
                "submitted": result.run.id not in collection.unsubmitted,
                "to_do": result.to_do,
                "case": result.run.case.id,
                "warnings": list(result.warnings),
                **_job_json(collection.jobs.get(result.run.id)),
            }
            for result in collection.results
        ],
        "report_job": collection.report_job,
    }


def _job_json(job: RunJob | None) -> dict[str, Any]:
    """What is known of a run's job; null for what is not."""
    known = vars(job) if job else {}
    names = ("job", "nodes", "elapsed_s", "left_s", "starts")
    return {name: known.get(name) if known.get(name) != "" else None for name in names}


def _watched(arguments: argparse.Namespace) -> Collection:
    """Look again and again until every run has ended; the last state."""
    from dlperf_hpc.cli.watching import watch
    from dlperf_hpc.records.manifest import read_manifest

    kept = read_manifest(arguments.directory).site.get("poll_s", 30.0)
    every_s = max(1.0, arguments.every or float(kept))
    return watch(arguments.directory, every_s, not arguments.offline, on_stderr=arguments.json)


def _say_held(collection: Collection) -> None:
    """Of runs that wait, which will not begin. (Of those whose turn has come, the table tells.)"""
    from dlperf_hpc.cli.submission import say_held_back
    from dlperf_hpc.model.case import Case
    from dlperf_hpc.model.result import Status

    waiting = [r.run.case for r in collection.results if r.status is Status.PENDING]
    say_held_back(collection.root, [case for case in waiting if isinstance(case, Case)])


def _why(arguments: argparse.Namespace, root: Path) -> int:
    """Print what is known of one run's end."""
    from dlperf_hpc.cli.why import why
    from dlperf_hpc.model.result import Status
    from dlperf_hpc.records.ledger import read_ledger
    from dlperf_hpc.reporting.why import text_of

    if arguments.watch:
        raise messages.usage_error("--why", "tells of one run, once", "leave out --watch")
    ledger = read_ledger(root.absolute())
    archived = root != arguments.directory
    told = why(
        ledger,
        options.resolve_run(ledger, arguments.why),
        ask_scheduler=not (arguments.offline or archived),
    )
    if arguments.json:
        messages.print_json(told.to_dict())
    else:
        print(text_of(told))
    return 1 if told.status.bad or told.status is Status.UNKNOWN else 0


def _status(arguments: argparse.Namespace) -> int:
    from dlperf_hpc.engines.states import current
    from dlperf_hpc.model.result import Status
    from dlperf_hpc.records.archives import unpacked

    with unpacked(arguments.directory) as root:
        archived = root != arguments.directory
        if arguments.why is not None:
            return _why(arguments, root)
        if arguments.watch and archived:
            raise messages.usage_error("--watch", "the runs of an archive do not change any more")
        if arguments.watch:
            collection = _watched(arguments)
        else:
            collection = current(root, ask_scheduler=not (arguments.offline or archived))
    if archived:
        collection = collection.as_named(arguments.directory)
    for line in collection.unreadable:
        messages.say(f"not read: {line}")
    if arguments.json:
        messages.print_json(_as_json(collection))
    elif not arguments.watch:
        _print(collection, arguments.directory)
    if not archived:
        _say_held(collection)
    statuses = {result.status for result in collection.results}
    return int(any(status.bad or status is Status.UNKNOWN for status in statuses))


def _print(collection: Collection, directory: Path) -> None:
    """The table of a sweep's runs, and a line on the job that reports at its end."""
    from dlperf_hpc.cli.messages import shortest
    from dlperf_hpc.cli.submission import report_job_lines
    from dlperf_hpc.reporting.status import print_status

    shown = shortest(directory)
    print_status(collection, shown)
    for line in report_job_lines(collection.report_job, shown):
        print(f"\n{line}")


main = messages.entry(_status, _parser)
