"""Whether somebody measures a run now: rank 0 holds its log for as long as it lives.

The sign is a lock of the kernel's (flock) on the log, which costs nothing inside the timed window
and is gone with the process. A file server may keep the lock of a node that died, so it counts for
no longer than the attempt may take. Where the file system has no locks nothing is known, and
nobody is kept from measuring.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from dataclasses import replace
from pathlib import Path

from dlperf_hpc.files import open_regular
from dlperf_hpc.model.result import RunResult
from dlperf_hpc.model.status import Status
from dlperf_hpc.records.lines import read_line
from dlperf_hpc.records.logfile import read_end

_HELD = (errno.EWOULDBLOCK, errno.EACCES)
_MARGIN_S = 600.0  # beyond the attempt's own limit: Slurm's grace, clocks that differ
_TRIES = 20  # somebody may look at the very moment at which the log is to be held
_BETWEEN_S = 0.1
_held: list[int] = []


def hold(log: Path) -> None:
    """Show that the attempt whose log this is lives, until this process ends."""
    with contextlib.suppress(OSError):
        descriptor = os.open(log, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        _held.append(descriptor)
        for _ in range(_TRIES):
            if _locked(descriptor, fcntl.LOCK_EX):
                break
            time.sleep(_BETWEEN_S)


def other_attempt(log: Path, launch: str) -> str:
    """Who measures the run, in words, if it is another task than that of ``launch``; else ''.

    Of one task two launches never live at once: the scheduler ends it before it starts it again.
    """
    try:
        with open_regular(log) as file:
            begin = read_line(file.read(4096).decode(errors="replace").partition("\n")[0])
            if begin is None or begin.event != "begin":
                return ""
            theirs, limit_s = str(begin.values["launch"]), float(begin.values["limit_s"])
            silent_s = time.time() - os.fstat(file.fileno()).st_mtime
            if _task(theirs) == _task(launch) or silent_s > limit_s + _MARGIN_S:
                return ""
            if read_end(log) is not None or _locked(file.fileno(), fcntl.LOCK_SH):
                return ""
    except (OSError, KeyError, TypeError, ValueError):
        return ""
    return f"launch {theirs} has measured it since {begin.time} and still holds {log}"


def with_life(result: RunResult, log: Path) -> RunResult:
    """A run whose log has no end runs, if somebody holds the log; else the log was cut."""
    if result.status is not Status.UNKNOWN or result.ended or not other_attempt(log, ""):
        return result
    return replace(result, status=Status.RUNNING, reason="its log has no end yet")


def _task(launch: str) -> str:
    """``4711_3`` of ``4711_3.0``."""
    return launch.partition(".")[0]


def _locked(descriptor: int, kind: int) -> bool:
    """Whether the lock was to be had; OSError where there are no locks."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            return False
        raise
    return True


def _let_go() -> None:
    """In a forked child (a data loader's), which may outlive the rank."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go)
