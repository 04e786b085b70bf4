"""``dlperf status DIR``: how many runs of a sweep wait, run, ended well or failed.

With ``--watch`` the same screen is drawn anew after each look, until every run has ended. Where
standard output is no terminal there is no screen: a line for each look that saw a change, and the
tables once, at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlperf_hpc.cli import messages, options, selection
from dlperf_hpc.cli.submission import report_job_lines, say_held_back
from dlperf_hpc.errors import number_of, printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from dlperf_hpc.model.result import RunResult
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
    add("--watch", action="store_true", help="a live screen until every run has ended")
    every = "with --watch: seconds between two looks (default: the site profile's `poll_s`, 30)"
    add("--every", type=options.seconds, metavar="S", help=every)
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

    if arguments.watch:
        raise messages.usage_error("--why", "tells of one run, once", "leave out --watch")
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
        if not arguments.watch:
            collection = current(root, ask_scheduler=ask_scheduler)
        elif archived:
            raise messages.usage_error("--watch", "the runs of an archive do not change any more")
        else:
            collection = _watch(arguments)
        lines, values = selection.standing_of(root, collection)
    if archived:
        collection = collection.as_named(arguments.directory)
    for line in collection.unreadable:
        messages.say(f"not read: {line}")
    if arguments.json:
        messages.print_json({**_as_json(collection), **values})
    elif not arguments.watch:
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


@dataclass
class _Pace:
    every_s: float
    began: float = field(default_factory=time.time)
    ended_before: int | None = None

    def sentence(self, results: Sequence[RunResult]) -> str:
        """``0.8 runs/min since 15:10:02, the rest takes about 16 min``; '' until one has ended."""
        ended = sum(result.status.finished for result in results)
        if self.ended_before is None:
            self.ended_before = ended
        minutes, new = (time.time() - self.began) / 60, ended - self.ended_before
        if new <= 0 or minutes <= 0:
            return ""
        left = (len(results) - ended) * minutes / new
        rest = f", the rest takes about {left:.0f} min" if left >= 1 else ""
        return f"{new / minutes:.3g} runs/min since {_clock(self.began)}{rest}"


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def _counts(results: Sequence[RunResult]) -> str:
    """``12 of 25 runs have ended (48 %): 11 ok, 1 failed, 3 running, 10 pending``."""
    ended = sum(result.status.finished for result in results)
    statuses = Counter(result.status.value for result in results)
    listed = ", ".join(f"{count} {status}" for status, count in statuses.most_common())
    share = f" ({100 * ended / len(results):.0f} %)" if results else ""
    return f"{ended} of {number_of(len(results), 'run')} ended{share}: {listed or 'none'}"


def _watch(arguments: argparse.Namespace) -> Collection:
    """Look again and again until every run has ended; the last state. Each look is one squeue, and
    at most one sacct. Whoever leaves by Ctrl-C keeps the last screen."""
    from rich.console import Console

    from dlperf_hpc.engines.states import current
    from dlperf_hpc.records.manifest import read_manifest

    directory = arguments.directory
    kept = read_manifest(directory).site.get("poll_s", 30.0)
    pace = _Pace(max(1.0, arguments.every or float(kept)))
    with _screen(Console(highlight=False, stderr=arguments.json)) as show:
        while True:
            collection = current(directory, ask_scheduler=not arguments.offline)
            over = all(result.status.finished for result in collection.results)
            show(_head(collection, pace, over), _parts(collection, directory))
            if over:
                return collection
            time.sleep(pace.every_s)


def _head(collection: Collection, pace: _Pace, over: bool) -> list[str]:
    now = time.time()
    lines = [_counts(collection.results), pace.sentence(collection.results)]
    if not over:
        then = f"next look at {_clock(now + pace.every_s)}, every {pace.every_s:g} s; Ctrl-C leaves"
        lines.append(f"{_clock(now)}, {then}")
    return [printable(line) for line in lines if line]


@contextlib.contextmanager
def _screen(console: Console) -> Iterator[Callable[[list[str], list[RenderableType]], None]]:
    """What shows each look, its head and its tables: a screen that is drawn anew; for a file or a
    pipe a line for each look that saw a change, and the tables at the end."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    heads = [""]
    last: list[RenderableType] = []

    def draw(head: list[str], parts: list[RenderableType]) -> None:
        live.update(Group(*map(Text, [*head, ""]), *parts), refresh=True)

    def note(head: list[str], parts: list[RenderableType]) -> None:
        last[:] = parts
        if head[0] != heads[-1]:
            heads.append(head[0])
            console.print(f"{_clock(time.time())}  {head[0]}", markup=False, soft_wrap=True)

    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            yield draw
        return
    try:
        yield note
    finally:
        for part in last:
            console.print(part)


def _parts(collection: Collection, directory: Path) -> list[RenderableType]:
    from rich.text import Text

    from dlperf_hpc.reporting.run_states import status_parts

    name = messages.shortest(directory)
    lines = report_job_lines(collection.report_job, name)
    return [*status_parts(collection, name), *map(Text, lines)]


main = messages.entry(_status, _parser)
