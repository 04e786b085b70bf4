"""What ``--after`` names - another sweep, or a job - as jobs that have not ended yet."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from dlperf_hpc.engines import get_engine
from dlperf_hpc.engines.base import Engine
from dlperf_hpc.errors import Issue, SpecError
from dlperf_hpc.records import layout
from dlperf_hpc.records.collect import quick_results
from dlperf_hpc.records.ledger import Ledger, read_ledger

_JOB = re.compile(r"[0-9]{1,18}(?:_[0-9]{1,9})?", re.ASCII)
_OPTION = "--after"


@dataclass(frozen=True)
class Awaited:
    """Jobs that live; ``note`` is what else a user should know of what was named."""

    jobs: tuple[str, ...]
    note: str = ""


def awaited(engine: Engine, name: str, logs: Path) -> Awaited:
    """The living jobs of what a user names: a job, or a sweep by its directory or by its name below
    ``logs``.

    SpecError where there is nothing of that name, or where no job of this engine can wait for it;
    SiteError if the scheduler cannot be asked.
    """
    if _JOB.fullmatch(name):
        return _of_job(engine, name)
    ledger = read_ledger(_directory(name, logs))
    other = get_engine(ledger.manifest.engine)
    if other is not engine:
        return _of_another_engine(ledger, engine, other, name)
    jobs = tuple(engine.live_jobs(ledger.root, ledger.noted()))
    left = len(ledger.manifest.runs) - len(ledger.tasks())
    runs = f"{left} runs of it are" if left > 1 else "1 run of it is"
    return Awaited(jobs, f"{runs} not submitted yet, and nothing waits for that" if left else "")


def _of_job(engine: Engine, job: str) -> Awaited:
    alive = engine.lives(job)
    if alive is None:
        raise _refusal(
            job,
            f"{engine.title} knows no job {job}",
            "if it has ended long ago, leave the option out; a sweep whose name is a number is"
            " named by its directory, logs/NAME",
        )
    return Awaited((job,) if alive else ())


def _of_another_engine(ledger: Ledger, engine: Engine, other: Engine, name: str) -> Awaited:
    """A sweep that no job of this engine can wait for; it must have ended."""
    results = quick_results(ledger).results
    left = sum(not result.status.finished for result in results)
    if not left:
        return Awaited(())
    raise _refusal(
        name,
        f"{left} of its {len(results)} runs have not ended, and no job of {engine.title} can wait"
        f" for runs of {other.title}",
        "submit this sweep when that one has ended, or leave the option out",
    )


def _directory(name: str, logs: Path) -> Path:
    for path in (Path(name), logs / name):
        if (path / layout.MANIFEST).exists():
            return path.absolute()
    there = sorted(path.parent.name for path in logs.glob(f"*/{layout.MANIFEST}"))
    close = difflib.get_close_matches(name, there, n=1)
    known = f"there are {', '.join(there[:5])}{', ...' if len(there) > 5 else ''}"
    hint = f"did you mean {close[0]!r}?" if close else known if there else None
    message = f"is no job's id, and there is no sweep's directory {name} or {logs / name}"
    raise _refusal(name, message, hint)


def _refusal(name: str, message: str, hint: str | None) -> SpecError:
    return SpecError("command line", [Issue(f"{_OPTION} {name}", message, hint)])
