"""What was submitted, as a person or a script wants to know it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dlperf_hpc.records.manifest import Array, Submission


def tell(
    arrays: Iterable[Array],
    submitted: Sequence[Submission],
    adopted: Sequence[Submission],
    refused: Sequence[Submission],
) -> None:
    """One line for each array that has a job now, or was refused."""
    tasks = {array.token: len(array.tasks) for array in arrays}
    for submission in refused:
        print(f"refused: {submission.array}: {submission.error}", file=sys.stderr)
    for words, rows in (("submitted", submitted), ("found again", adopted)):
        for row in rows:
            count = tasks[row.token]
            runs = f"{count} run" + "s" * (count != 1)
            print(f"{words}: job {row.job_id}  {row.array}  {runs}")


def tell_waiting(arrays: Sequence[Array], limit: str) -> None:
    """A limit of the site's keeps arrays back: what to do."""
    runs = sum(len(array.tasks) for array in arrays)
    print(
        f"not yet submitted: {len(arrays)} arrays with {runs} runs: the site says {limit}\n"
        "when some of your jobs have ended, the same command again submits the rest (with --wait"
        " it does so by itself)",
        file=sys.stderr,
    )


def tell_next(root: Path, jobs: Sequence[str]) -> None:
    """What to type next."""
    shown = shortest(root)
    if jobs:
        print(f"\nnext:\n  squeue -j {','.join(jobs)}\n  python -m dlperf_hpc.status {shown}")
        print(f"  python -m dlperf_hpc.report {shown}\n  python -m dlperf_hpc.cancel {shown}")


def shortest(path: Path) -> str:
    """A path as one would type it here."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def as_json(
    sweep: str, root: Path, rows: Iterable[Submission], waiting: Sequence[Array]
) -> dict[str, Any]:
    """The same for scripts."""
    return {
        "sweep": sweep,
        "root": str(root),
        "arrays": [vars(row) for row in rows],
        "waiting": [array.name for array in waiting],
    }
