"""Whether a login node lets us start more: half a pool of processes is worse than none."""

from __future__ import annotations

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
