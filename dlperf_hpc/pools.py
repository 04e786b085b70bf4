"""Pools of processes on a login node: whether one can be had there, and that it does not stay."""

from __future__ import annotations

import ctypes
import os
import signal
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from threading import Event, Thread
from typing import Literal

POOL = 3
"""What a pool needs beside its processes: two threads, and a tracker where they are spawned."""


def has_room(count: int) -> bool:
    """Whether so many processes and threads can be started. RLIMIT_NPROC and pids.max count both as
    one; a pool that gets only some of what it asks for waits for ever."""
    gate, threads = Event(), list[Thread]()
    try:
        for _ in range(count):
            thread = Thread(target=gate.wait, daemon=True)
            thread.start()
            threads.append(thread)
    except RuntimeError:
        return False
    finally:
        gate.set()
        for thread in threads:
            thread.join()
    return True


def pool(workers: int, method: Literal["fork", "spawn"]) -> ProcessPoolExecutor:
    """A pool of processes that end when this process does. OSError if this machine starts none. The
    method is always named: Python's own choice has changed (3.14: a server that forks), and a
    worker must be a child of the process that it is to end with."""
    context = get_context(method)
    return ProcessPoolExecutor(workers, context, initializer=end_with, initargs=(os.getpid(),))


def end_with(parent: int) -> None:
    """Of a child process: end when the process ``parent`` does, however that is (prctl(2); Linux
    only). Without it what one that was killed had started goes on, or waits for ever for a task."""
    prctl, set_death_signal = getattr(ctypes.CDLL(None), "prctl", None), 1
    if prctl:
        prctl(set_death_signal, signal.SIGKILL)
        if os.getppid() != parent:  # it was too quick
            os.kill(os.getpid(), signal.SIGKILL)
