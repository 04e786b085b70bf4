"""``dlperf logs DIR [RUN]``: show a run's log, and follow it."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dlperf_hpc.cli import common
from dlperf_hpc.errors import Issue, SpecError

if TYPE_CHECKING:
    from dlperf_hpc.records.ledger import Ledger
    from dlperf_hpc.records.status import Status
    from dlperf_hpc.sweepfile.case import Run

_POLL_S = 0.5
_PATIENCE_S = 30.0
_MOST = 20


def _parser() -> argparse.ArgumentParser:
    made = common.parser("logs", "Show the log of a run, or with --output what its ranks printed.")
    made.add_argument("directory", type=Path, help="the sweep's directory, logs/<sweep>")
    made.add_argument("run", nargs="?", default="", help="a run's id, or a part that names one")
    made.add_argument("-f", "--follow", action="store_true", help="go on until the run has ended")
    made.add_argument("-o", "--output", action="store_true", help="what srun or mpiexec printed")
    made.add_argument("--path", action="store_true", help="print the path, not the content")
    return made


def _run(ledger: Ledger, text: str) -> Run:
    """The one run that is meant; SpecError that lists them if there are more, or none."""
    runs = ledger.manifest.runs
    exact = [run for run in runs if run.id == text]
    found = exact or [run for run in runs if text in run.id]
    if len(found) == 1:
        return found[0]
    listed = "".join(f"\n  {run.id}" for run in (found or runs)[:_MOST])
    more = f"\n  ... {len(found or runs)} in all" if len(found or runs) > _MOST else ""
    what = f"{text!r} names {len(found)} runs" if found else f"no run is called {text!r}"
    raise SpecError("command line", [Issue("RUN", f"{what}; there are{listed}{more}")])


def _path(ledger: Ledger, run: Run, output: bool) -> Path:
    from dlperf_hpc.records import layout
    from dlperf_hpc.records.layout import RunPaths

    if not output:
        return RunPaths(ledger.root, run.id).log
    task = ledger.tasks().get(run.id)
    name = f"{task.name}.out" if task else "not-submitted.out"
    return ledger.root / layout.JOBS / name


def _logs(arguments: argparse.Namespace) -> int:
    from dlperf_hpc.records.ledger import read_ledger

    ledger = read_ledger(arguments.directory.absolute())
    run = _run(ledger, arguments.run)
    path = _path(ledger, run, arguments.output)
    if arguments.path:
        print(path)
        return 0
    if not path.exists() and not arguments.follow:
        print(f"{path}: not there yet: the run has not begun", file=sys.stderr)
        return 1
    _show(path, ledger, run, arguments.follow)
    return 0


def _show(path: Path, ledger: Ledger, run: Run, follow: bool) -> None:
    """Copy the file to standard output, from its beginning; control characters made visible."""
    position, announced, bad = 0, False, False
    poll_s = float(ledger.manifest.site.get("poll_s", _PATIENCE_S))
    asked = time.monotonic()
    while True:
        status = _on_disk(ledger, run)
        ended = not follow or status.value == "ok"
        # A run that was killed leaves no end, and one that ended badly may have been requeued.
        if not ended and (status.bad > bad or time.monotonic() - asked > poll_s):
            asked = time.monotonic()
            ended = _is_over(ledger.root, run, status.bad)
        bad = status.bad
        position = _copy(path, position)
        if ended:
            return
        if position == 0 and not announced:
            print("waiting for the run to begin", file=sys.stderr)
            announced = True
        time.sleep(_POLL_S)


def _copy(path: Path, position: int) -> int:
    from dlperf_hpc.reporting.text import visible

    try:
        with open(path, "rb") as file:
            # A shorter file is another one: the run has begun again.
            file.seek(position if path.stat().st_size >= position else 0)
            data = file.read()
            position = file.tell()
    except FileNotFoundError:
        return 0
    lines = data.decode("utf-8", errors="replace").split("\n")
    sys.stdout.write("\n".join(map(visible, lines)))
    sys.stdout.flush()
    return position


def _on_disk(ledger: Ledger, run: Run) -> Status:
    from dlperf_hpc.records.collect import quick_result

    task = ledger.tasks().get(run.id)
    return quick_result(run, ledger.root, None, float("inf"), task).status


def _is_over(root: Path, run: Run, ended_badly: bool) -> bool:
    """Whether the scheduler agrees that nothing more will come."""
    from dlperf_hpc.engines.watch import current

    (now,) = (result.status for result in current(root).results if result.run.id == run.id)
    return now.finished or (ended_badly and now.value == "running")


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    return common.run(_logs, _parser(), argv)


if __name__ == "__main__":
    sys.exit(main())
