"""Staying with a sweep until its last run has ended, with progress on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dlperf_hpc.launch.mpiexec import QUEUE
from dlperf_hpc.launch.watch import current
from dlperf_hpc.records.collect import Collection
from dlperf_hpc.records.results import RunResult
from dlperf_hpc.records.status import Status

if TYPE_CHECKING:
    from rich.progress import Progress

_LOCAL_POLL_S = 0.5


def follow(root: Path, engine: str, poll_s: float, quiet: bool = False) -> None:
    """Return when no run can change any more. Ctrl-C ends local runs; Slurm's go on."""
    try:
        with _progress(quiet) as progress:
            bar = progress.add_task("starting", total=None)
            told: set[str] = set()
            while True:
                # Asked before the disk is read: what ended in between shows next time round.
                idle = engine == "local" and QUEUE.idle()
                collection = current(root)
                for line in _news(collection, told):
                    progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
                done, text = _stand(collection)
                total = len(collection.results)
                progress.update(bar, total=total, completed=done, description=text)
                if done == total or idle:
                    return
                time.sleep(_LOCAL_POLL_S if engine == "local" else poll_s)
    except KeyboardInterrupt:
        if engine == "local":
            print("stopping the running run", file=sys.stderr)
            QUEUE.cancel()
        raise


def _progress(quiet: bool) -> Progress:
    from rich import progress as bars
    from rich.console import Console

    return bars.Progress(
        bars.MofNCompleteColumn(),
        bars.BarColumn(),
        bars.TimeElapsedColumn(),
        bars.TextColumn("{task.description}", markup=False),
        console=Console(stderr=True, quiet=quiet),
    )


def _stand(collection: Collection) -> tuple[int, str]:
    open_runs = [result for result in collection.results if not result.status.finished]
    now = next((result for result in open_runs if result.status is Status.RUNNING), None)
    text = f"running {now.run.id}" if now else "waiting" if open_runs else "done"
    return len(collection.results) - len(open_runs), text


def _news(collection: Collection, told: set[str]) -> Iterator[str]:
    for result in collection.results:
        if result.status.finished and result.run.id not in told:
            told.add(result.run.id)
            yield _line(result)


def _line(result: RunResult) -> str:
    reason = f": {result.reason}" if result.reason else ""
    return f"{result.status.value:8} {result.run.id}{reason}"
