"""One node of a one-machine Slurm is made slow: its jobs' processes are stopped most of the time.

SIGSTOP and SIGCONT need no right but the user's own, and no control group.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fixtures_slurm import Onebox, call

_RUNS_S = 0.004
_MOST_REST_S = 0.2  # a run that stands still for a second or more is an interrupted one
_DAEMONS = ("slurmd", "slurmstepd")


@contextmanager
def slowed(
    onebox: Onebox, node: str, which: Callable[[Sequence[str]], bool], times: float = 8.0
) -> Iterator[None]:
    """While the block lasts, processes of the node's jobs of ``which`` (by their command lines)
    have at most one part of the time in ``times``, from when that is true of them. Slurm's daemons
    run on: a slow node still answers."""
    root = json.loads(call(["status", str(onebox.dir), "--json"]).stdout)[node]["pid"]
    done = threading.Event()
    thread = threading.Thread(target=_duty, args=(root, which, times, done))
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _duty(
    root: int, which: Callable[[Sequence[str]], bool], times: float, done: threading.Event
) -> None:
    held: dict[int, int] = {}  # pid to pidfd: a signal never reaches another process of that pid
    try:
        while not done.is_set():
            _look(root, which, held)
            # As they ran, so they rest: where this thread is late, both become longer.
            ran = _between(held, signal.SIGCONT, _RUNS_S)
            _between(held, signal.SIGSTOP, min((times - 1) * ran, _MOST_REST_S))
    finally:
        _send(held, signal.SIGCONT)
        for pidfd in held.values():
            os.close(pidfd)


def _between(held: dict[int, int], number: signal.Signals, seconds: float) -> float:
    begin = time.monotonic()
    _send(held, number)
    time.sleep(seconds)
    return time.monotonic() - begin


def _send(held: dict[int, int], number: signal.Signals) -> None:
    for pid, pidfd in list(held.items()):
        try:
            signal.pidfd_send_signal(pidfd, number)
        except ProcessLookupError:
            os.close(held.pop(pid))


def _look(root: int, which: Callable[[Sequence[str]], bool], held: dict[int, int]) -> None:
    """Take the processes that are new into ``held``."""
    for pid in _below(root):
        with contextlib.suppress(OSError):  # it has ended
            argv = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
            daemon = os.path.basename(argv[0]).startswith(_DAEMONS)
            if pid not in held and not daemon and which(argv):
                held[pid] = os.pidfd_open(pid)


def _below(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield int(child)
                yield from _below(int(child))
