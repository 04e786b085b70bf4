"""``dlperf logs DIR [RUN]``: show or follow the log of a run, or tell where it is."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dlperf_hpc.cli import messages, options
from dlperf_hpc.errors import LogError, visible

if TYPE_CHECKING:
    from dlperf_hpc.model.case import Run
    from dlperf_hpc.model.result import RunResult
    from dlperf_hpc.records.ledger import Ledger


SUMMARY = "show or follow the log of a run"

_POLL_S = 0.5
_PATIENCE_S = 30.0
_PIECE = 1 << 20  # bytes of a log in memory


def _parser() -> argparse.ArgumentParser:
    made = options.parser("logs", "Show the log of a run, or with --output what its ranks printed.")
    options.add_directory(made)
    run = f"{options.RUN_HELP} (not needed if the sweep has one run)"
    made.add_argument("run", nargs="?", default="", help=run)
    output = "show what srun or mpiexec and the ranks printed, in place of the log"
    made.add_argument("-o", "--output", action="store_true", help=output)
    instead = made.add_mutually_exclusive_group()
    follow = "show new lines until the run has ended"
    instead.add_argument("-f", "--follow", action="store_true", help=follow)
    instead.add_argument("--path", action="store_true", help="print the path, not the content")
    options.add_json(instead, "the run's id, attempt, status and the paths of its files")
    return made


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
    run = options.resolve_run(ledger, arguments.run)
    path = _path(ledger, run, arguments.output)
    if arguments.json:
        messages.print_json(_as_json(ledger, run))
        return 0
    if arguments.path:
        print(visible(str(path)))
        return 0
    if not path.exists() and not arguments.follow:
        why = "not there yet: the run has not begun; `dlperf status` tells what it waits for"
        messages.say(f"{visible(str(path))}: {why}")
        return 1
    _show(path, ledger, run, arguments.follow)
    return 0


def _as_json(ledger: Ledger, run: Run) -> dict[str, object]:
    """The run as the sweep's files tell it, null for a missing file. LogError for a cut log."""
    from dlperf_hpc.records.layout import RunPaths
    from dlperf_hpc.records.logfile import result_of_log

    result, paths = _on_disk(ledger, run), RunPaths(ledger.root, run.id)
    log, output = (_path(ledger, run, output) for output in (False, True))
    earlier = sorted(paths.attempts.glob(f"{paths.log.stem}.attempt*{paths.log.suffix}"))
    return {
        "run": run.id,
        "attempt": result_of_log(log).attempt if log.exists() else None,
        "status": result.status.value,
        "reason": result.reason,
        "log": str(log) if log.exists() else None,
        "output": str(output) if output.exists() else None,
        "earlier_logs": list(map(str, earlier)),
    }


def _show(path: Path, ledger: Ledger, run: Run, follow: bool) -> None:
    position, announced, bad = 0, False, False
    poll_s = float(ledger.manifest.site.get("poll_s", _PATIENCE_S))
    checked = time.monotonic()  # when the scheduler was asked last
    while True:
        status = _on_disk(ledger, run).status
        ended = not follow or status.value == "ok"
        # A run that was killed leaves no end, and one that ended badly may have been requeued.
        if not ended and (status.bad > bad or time.monotonic() - checked > poll_s):
            checked = time.monotonic()
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
    from dlperf_hpc.files import open_regular

    try:
        with open_regular(path) as file:
            # A shorter file is another one: the run has begun again.
            size = os.fstat(file.fileno()).st_size
            file.seek(position if size >= position else 0)
            while data := file.read(_PIECE):
                if len(data) == _PIECE:  # up to a line's end
                    cut = data.rfind(b"\n") + 1 or _PIECE
                    file.seek(cut - _PIECE, os.SEEK_CUR)
                    data = data[:cut]
                sys.stdout.write(visible(data.decode("utf-8", errors="replace")))
            position = file.tell()
    except FileNotFoundError:
        return 0
    except BrokenPipeError:  # whoever reads our output has gone: see messages.run
        raise
    except OSError as error:
        raise LogError(f"{path}: cannot be read: {error.strerror}") from error
    sys.stdout.flush()
    return position


def _on_disk(ledger: Ledger, run: Run) -> RunResult:
    from dlperf_hpc.records.collect import quick_result

    task = ledger.tasks().get(run.id)
    return quick_result(run, ledger.root, None, float("inf"), task)


def _is_over(root: Path, run: Run, ended_badly: bool) -> bool:
    """Whether the scheduler agrees that nothing more will come."""
    from dlperf_hpc.engines.states import current

    (now,) = (result.status for result in current(root).results if result.run.id == run.id)
    return now.finished or (ended_badly and now.value == "running")


main = messages.entry(_logs, _parser)
