"""Finding a job whose answer was lost: sbatch was killed, or timed out after it was accepted.

Every array has a token, unique to it, which its job bears as comment; submissions are looked for
by it before anything is sent again. A job that squeue has forgotten has left its output file.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Collection, Iterable, Set
from pathlib import Path

from dlperf_hpc.errors import SiteError
from dlperf_hpc.launch.command import run
from dlperf_hpc.records import layout
from dlperf_hpc.records.task import ARRAY_MARK

_TOKEN = re.compile(r"dlperf-[0-9a-f]+")
_LOOKS = 4
_BETWEEN_S = 2.0  # slurmctld may still be working on a request whose sender is gone


def jobs_by_token(tokens: Iterable[str], root: Path, accounting: bool = True) -> dict[str, str]:
    """Job id of each of these arrays that the scheduler, or the directory, knows; by token.

    ``accounting`` is asked last, for what nobody else knows. SiteError if the scheduler cannot be
    asked: what is not known must not be submitted again.
    """
    wanted = set(tokens)
    found = {token: job for token, job in _queue().items() if token in wanted}
    if wanted - found.keys():
        found.update(_by_output(root, wanted - found.keys()))
    if accounting and wanted - found.keys():
        found.update(_accounted(wanted - found.keys()))
    return found


def surely_by_token(tokens: Collection[str], root: Path) -> dict[str, str]:
    """The same, looking again for a while: an absent job may be a late one."""
    for look in range(_LOOKS):
        if look:
            time.sleep(_BETWEEN_S)
        found = jobs_by_token(tokens, root, accounting=look == _LOOKS - 1)
        if len(found) == len(tokens):
            break
    return found


def _queue() -> dict[str, str]:
    done = run(["squeue", "--noheader", "--me", "--states=all", "--format=%F|%k"])
    if done.code != 0:
        raise SiteError(
            f"squeue: {(done.stderr.strip() or 'no answer').splitlines()[-1]}; nothing was"
            " submitted: what the scheduler has already must be known first"
        )
    found = {}
    for line in done.stdout.splitlines():
        job, _, comment = line.partition("|")
        # A site's plug-in may have added words of its own.
        found.update({token: job.strip() for token in _TOKEN.findall(comment)})
    return found


def _by_output(root: Path, tokens: Set[str]) -> dict[str, str]:
    """Where a task of the array has begun: the first lines of its output name its token."""
    found = {}
    for path in sorted((root / layout.JOBS).glob("*_*.out")):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                marked = re.search(rf"^{ARRAY_MARK} (\S+)$", file.read(4096), re.MULTILINE)
        except OSError:
            continue
        if marked and marked[1] in tokens:
            found[marked[1]] = path.name.partition("_")[0]
    return found


def _accounted(tokens: Set[str]) -> dict[str, str]:
    """What accounting knows, where it keeps comments (AccountingStoreFlags=job_comment)."""
    if shutil.which("sacct") is None:
        return {}
    argv = ["sacct", "--noheader", "--allocations", "--parsable2"]
    done = run([*argv, "--starttime=now-30days", "--format=JobID,Comment"])
    found = {}
    for line in done.stdout.splitlines() if done.code == 0 else []:
        job, _, comment = line.partition("|")
        for token in tokens & set(_TOKEN.findall(comment)):
            found[token] = job.partition("_")[0]
    return found
