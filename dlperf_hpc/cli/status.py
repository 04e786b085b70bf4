"""``dlperf status DIR``: how many runs of a sweep wait, run, ended well or failed."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlperf_hpc.cli import messages, options, selection
from dlperf_hpc.cli.submission import report_job_lines, say_held_back
from dlperf_hpc.errors import printable

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
    add = made.add_argument
    options.add_directory(made, also=", or its archive")
    add("--offline", action="store_true", help="do not ask the scheduler")
    why = (
        "tell of one run what was looked at, in order, and what decided how it ended; RUN is"
        f" {options.RUN_HELP}. Nothing is written then"
    )
    add("--why", metavar="RUN", help=why)
    options.add_json(made, "every run with its status, or with --why what was looked at")
    return made


def _as_json(collection: Collection) -> dict[str, Any]:
    return {
        "root": str(collection.root),
        "sweep": collection.manifest.sweep,
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
    values: dict[str, Any] = dict.fromkeys(("job", "nodes", "elapsed_s", "left_s", "starts"))
    if job is not None:
        known = {name: value for name, value in vars(job).items() if value != ""}
        values = {name: known.get(name) for name in values}
    return values


def _say_held(collection: Collection) -> None:
    """Of runs that wait, which will not begin. (Of those whose turn has come, the table tells.)"""
    from dlperf_hpc.model.case import Case
    from dlperf_hpc.model.result import Status

    waiting = [r.run.case for r in collection.results if r.status is Status.PENDING]
    say_held_back(collection.root, [case for case in waiting if isinstance(case, Case)])


def _why(arguments: argparse.Namespace, root: Path, ask_scheduler: bool) -> int:
    from dlperf_hpc.cli.why import why
    from dlperf_hpc.model.result import Status
    from dlperf_hpc.records.ledger import read_ledger
    from dlperf_hpc.reporting.run_states import text_of

    ledger = read_ledger(root.absolute())
    found = why(ledger, options.resolve_run(ledger, arguments.why), ask_scheduler)
    if arguments.json:
        messages.print_json(found.to_dict())
    else:
        print(text_of(found))
    return int(found.status.bad or found.status is Status.UNKNOWN)


def _status(arguments: argparse.Namespace) -> int:
    from dlperf_hpc.engines.states import current
    from dlperf_hpc.model.result import Status
    from dlperf_hpc.records import ownership, unpacked

    with unpacked(arguments.directory) as root:
        archived = root != arguments.directory
        ask_scheduler = not (arguments.offline or archived)
        if words := ownership.whose_else(root):
            messages.say(f"note: {words}: what it says of runs and jobs is that user's word")
        if arguments.why is not None:
            return _why(arguments, root, ask_scheduler)
        collection = current(root, ask_scheduler=ask_scheduler)
        lines, values = selection.standing_of(root, collection)
    if archived:
        collection = collection.as_named(arguments.directory)
    for line in collection.unreadable:
        messages.say(f"not read: {line}")
    if arguments.json:
        messages.print_json({**_as_json(collection), **values})
    else:
        _print(collection, arguments.directory, lines)
    if not archived:
        _say_held(collection)
    statuses = {result.status for result in collection.results}
    return int(any(status.bad or status is Status.UNKNOWN for status in statuses))


def _print(collection: Collection, directory: Path, lines: Sequence[str]) -> None:
    """The table of a sweep's runs, a line on the job that reports at its end, and further ones."""
    from dlperf_hpc.reporting.run_states import print_status

    name = messages.shortest(directory)
    print_status(collection, name)
    for line in report_job_lines(collection.report_job, name):
        print(f"\n{line}")
    print("".join(f"{printable(line)}\n" for line in ["", *lines] if lines), end="")


main = messages.entry(_status, _parser)
