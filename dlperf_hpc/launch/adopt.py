"""Finding a job whose answer was lost: sbatch was killed, or timed out after it was accepted.

Every array has a token, unique to it, which its job bears as comment; submissions are looked for
by it before anything is sent again. A job that squeue has forgotten has left its output file.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from dlperf_hpc.errors import SiteError
from dlperf_hpc.launch.command import run
from dlperf_hpc.records import layout
from dlperf_hpc.records.manifest import Array
from dlperf_hpc.records.task import ARRAY_MARK

_LOOKS = 4
_BETWEEN_S = 2.0  # slurmctld may still be working on a request whose sender is gone


def jobs_by_token(arrays: Iterable[Array], root: Path) -> dict[str, str]:
    """Job id of each of these arrays that the scheduler, or the directory, knows; by token.

    SiteError if the scheduler cannot be asked: what is not known must not be submitted again.
    """
    wanted = {array.token: array for array in arrays}
    found = {token: job for token, job in _queue().items() if token in wanted}
    for token in wanted.keys() - found.keys():
        job = _by_script(root, token)
        if job:
            found[token] = job
    if wanted.keys() - found.keys():
        found.update(_accounted(wanted.keys() - found.keys()))
    return found


def surely_by_token(arrays: list[Array], root: Path) -> Mapping[str, str]:
    """The same, looking again for a while: an absent job may be a late one."""
    found: dict[str, str] = {}
    for look in range(_LOOKS):
        if look:
            time.sleep(_BETWEEN_S)
        found = jobs_by_token(arrays, root)
        if len(found) == len(arrays):
            break
    return found


def _queue() -> dict[str, str]:
    done = run(["squeue", "--noheader", "--me", "--states=all", "--format=%F|%k"])
    if done.code != 0:
        raise SiteError(
            f"squeue: {(done.stderr.strip() or 'no answer').splitlines()[-1]}; nothing was"
            " submitted: what the scheduler has already must be known first"
        )
    rows = (line.partition("|") for line in done.stdout.splitlines())
    return {token.strip(): job.strip() for job, _, token in rows}


def _by_script(root: Path, token: str) -> str | None:
    """A task of the array has begun: the first line of its output names its token."""
    mark = f"{ARRAY_MARK} {token}"
    for path in sorted((root / layout.JOBS).glob("*_*.out")):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                head = file.read(4096)
        except OSError:
            continue
        if mark in head:
            return path.name.partition("_")[0]
    return None


def _accounted(tokens: Iterable[str]) -> dict[str, str]:
    """What accounting knows, where it keeps comments (AccountingStoreFlags=job_comment)."""
    if shutil.which("sacct") is None:
        return {}
    wanted = set(tokens)
    argv = ["sacct", "--noheader", "--allocations", "--parsable2", "--array"]
    done = run([*argv, "--starttime=now-30days", "--format=JobID,Comment"])
    found = {}
    for line in done.stdout.splitlines() if done.code == 0 else []:
        job, _, token = line.partition("|")
        if token in wanted:
            found[token] = job.partition("_")[0]
    return found
