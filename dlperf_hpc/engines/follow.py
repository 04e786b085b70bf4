"""Staying with a sweep until its last run has ended, with progress on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dlperf_hpc.engines.local.queue import QUEUE
from dlperf_hpc.engines.watch import current
from dlperf_hpc.records.results import RunResult
from dlperf_hpc.records.status import Status

if TYPE_CHECKING:
    from rich.progress import Progress

_LOCAL_POLL_S = 0.5
_PATIENCE_S = 180.0


def follow(root: Path, engine: str, poll_s: float, quiet: bool = False) -> None:
    """Return when no run can change any more. Ctrl-C ends local runs; Slurm's go on.

    Runs of which neither disk nor scheduler says anything are waited for a few minutes only: their
    files may be slow to show, but they may also never come.
    """
    try:
        with _progress(quiet) as progress:
            _watch(root, engine, poll_s, progress)
    except KeyboardInterrupt:
        if engine == "local":
            print("stopping the running run", file=sys.stderr)
            QUEUE.cancel()
        raise


def _watch(root: Path, engine: str, poll_s: float, progress: Progress) -> None:
    bar = progress.add_task("starting", total=None)
    told: set[str] = set()
    heard = time.monotonic()
    while True:
        # Asked before the disk is read: what ended in between shows next time round.
        idle = engine == "local" and QUEUE.idle()
        results = current(root).results
        for line in _news(results, told):
            progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
        open_runs = [result for result in results if not result.status.finished]
        done = len(results) - len(open_runs)
        progress.update(bar, total=len(results), completed=done, description=_now(open_runs))
        if not all(result.status is Status.UNKNOWN for result in open_runs):
            heard = time.monotonic()
        if not open_runs or idle or time.monotonic() - heard > _PATIENCE_S:
            return
        time.sleep(_LOCAL_POLL_S if engine == "local" else poll_s)


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


def _now(open_runs: list[RunResult]) -> str:
    running = next((result for result in open_runs if result.status is Status.RUNNING), None)
    return f"running {running.run.id}" if running else "waiting" if open_runs else "done"


def _news(results: Iterable[RunResult], told: set[str]) -> Iterator[str]:
    for result in results:
        if result.status.finished and result.run.id not in told:
            told.add(result.run.id)
            yield _line(result)


def _line(result: RunResult) -> str:
    reason = f": {result.reason}" if result.reason else ""
    return f"{result.status.value:8} {result.run.id}{reason}"
