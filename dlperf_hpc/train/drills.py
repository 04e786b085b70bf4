"""Faults on purpose: what a rank does where ``DLPERF_FAULT`` says so."""

from __future__ import annotations

import mmap
import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

from dlperf_hpc.errors import RunError
from dlperf_hpc.model.case import Case


def drill(rank: int, case: Case) -> None:
    """Let a chosen rank fail on purpose, to see that a site ends and reports it: do what
    ``DLPERF_FAULT=raise@1`` (or ``oom``, ``kill``, ``hang``, ``stop``; ``@rank``) says, if it names
    this rank. It strikes in the warm-up: the window pays nothing. ``memory:512:3000@1`` leaves the
    rank 3000 MiB of address space, of which each sample holds 512: which batches fit is known."""
    kind, _, where = os.environ.get("DLPERF_FAULT", "").partition("@")
    if not kind or rank != int(where or 0):
        return
    if kind == "raise":
        raise RunError(f"fault drill: rank {rank} raises")
    if kind == "oom":
        raise MemoryError(f"fault drill: rank {rank} is out of memory")
    if kind.startswith("memory:"):
        of_a_sample, room = map(int, kind.split(":")[1:])
        _hold(of_a_sample, room, case)
        return
    if kind not in _DRILLS:
        raise RunError(f"DLPERF_FAULT={kind!r} is none of raise, oom, kill, hang, stop, memory")
    _DRILLS[kind]()


def _hold(of_a_sample: int, room: int, case: Case) -> None:
    """OSError where the samples of one rank, MiB each, need more than there is room for."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (room << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    _held.append(mmap.mmap(-1, case.micro_batch // case.ranks * of_a_sample << 20))


def _hang() -> None:
    while True:
        time.sleep(60)


_held: list[mmap.mmap] = []
_DRILLS: dict[str, Callable[[], None]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),  # as on a node that no longer answers
    "hang": _hang,
}
