"""Fault drills: let a chosen rank fail on purpose, to see that a site ends and reports it.

``DLPERF_FAULT=raise@1`` (or ``oom``, ``kill``, ``hang``, ``stop``; ``@rank``) in the environment of
a run, for instance in a site profile's ``env``. Strikes in the warm-up: the window pays nothing.
"""

from __future__ import annotations

import os
import signal
import time

from dlperf_hpc.errors import RunError


def drill(rank: int) -> None:
    """Do what ``DLPERF_FAULT`` says, if it names this rank."""
    kind, _, where = os.environ.get("DLPERF_FAULT", "").partition("@")
    if not kind or rank != int(where or 0):
        return
    if kind == "raise":
        raise RunError(f"fault drill: rank {rank} raises")
    if kind == "oom":
        raise MemoryError(f"fault drill: rank {rank} is out of memory")
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "stop":  # as a rank on a node that no longer answers
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    if kind == "hang":
        while True:
            time.sleep(60)
    raise RunError(f"DLPERF_FAULT={kind!r} is none of raise, oom, kill, hang, stop")
