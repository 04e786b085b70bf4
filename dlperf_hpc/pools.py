"""Pools of processes on a login node: whether one can be had there, and that it does not stay."""

from __future__ import annotations

import ctypes
import os
import signal
from threading import Event, Thread

POOL = 3
"""What a pool needs beside its processes: two threads, and a tracker where they are spawned."""


def has_room(count: int) -> bool:
    """Whether so many processes and threads can be started. RLIMIT_NPROC and pids.max count both as
    one; a pool that gets only some of what it asks for waits for ever."""
    gate, begun = Event(), list[Thread]()
    try:
        for _ in range(count):
            thread = Thread(target=gate.wait, daemon=True)
            thread.start()
            begun.append(thread)
    except RuntimeError:
        return False
    finally:
        gate.set()
        for thread in begun:
            thread.join()
    return True


def end_with(parent: int) -> None:
    """Of a pool's process: end when the process ``parent`` does, however that is (prctl(2); Linux
    only). Without it the processes of one that was killed wait for ever for another task."""
    prctl, set_death_signal = getattr(ctypes.CDLL(None), "prctl", None), 1
    if prctl:
        prctl(set_death_signal, signal.SIGKILL)
        if os.getppid() != parent:  # it was too quick
            os.kill(os.getpid(), signal.SIGKILL)
