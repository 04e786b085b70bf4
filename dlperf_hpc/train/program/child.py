"""One child process with everything that it starts: begun, told to end, and none of it left behind.

A program's own launcher gives its workers process groups of their own (torchrun does), so a signal
to the child's group does not reach them. The kernel makes this process the parent of whatever loses
its parent below it (``PR_SET_CHILD_SUBREAPER``), so that all descendants can be found in /proc; and
it kills the child when this process dies (``PR_SET_PDEATHSIG``).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_GONE_WITHIN_S = 5.0
_PMI = ("PMI_FD", "PMI_RANK_FD")  # descriptors through which a child of MPI joins its launcher


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # another libc: then signals must do
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _die_with_parent() -> None:
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)


class Child:
    """The program. ``output`` is the descriptor from which its stdout and stderr are read."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], workdir: str) -> None:
        """Start it; OSError if it cannot be started. No thread may run here yet."""
        _prctl(_SET_CHILD_SUBREAPER, 1)
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        try:
            self._process = subprocess.Popen(
                list(argv),
                env=dict(env),
                cwd=workdir or None,
                stdin=subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                pass_fds=_descriptors(env),
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        except OSError:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        self.output = reader

    def poll(self) -> int | None:
        """Its exit code, minus the number of a signal; None while it runs. Reaps orphans too."""
        while self._process.returncode is None:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if found is None:
                break
            if found.si_pid == self._process.pid:
                return self._process.wait()
            _reap(found.si_pid)
        return self._process.returncode

    def tell(self, number: int) -> None:
        """Send a signal to the child's process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def tell_all(self, number: int) -> None:
        """Send a signal to every descendant."""
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def clear(self) -> int:
        """Kill what is left of it, and wait until it is gone; how many processes there were."""
        seen: set[int] = set()
        deadline = time.monotonic() + _GONE_WITHIN_S
        while (left := self._left()) and time.monotonic() < deadline:
            seen.update(left)
            self.tell_all(signal.SIGKILL)
            time.sleep(0.02)
        return len(seen)

    def _left(self) -> list[int]:
        """Descendants that live; those that ended are reaped."""
        self.poll()
        if self._process.returncode is not None:
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
        return descendants(os.getpid())


def _descriptors(env: Mapping[str, str]) -> list[int]:
    """Descriptors that the launcher gave this process for the program."""
    found = []
    for name in _PMI:
        if env.get(name, "").isdigit():
            with contextlib.suppress(OSError):
                os.fstat(int(env[name]))
                found.append(int(env[name]))
    return found


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def descendants(root: int) -> list[int]:
    """Processes below one, those that have ended but were not waited for left out."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The name, in brackets, may hold anything: what follows the last bracket counts.
            told = (entry / "stat").read_text(errors="replace").rpartition(")")[2]
            state, parent = told.split()[:2]
        except (OSError, ValueError):
            continue
        if state != "Z":
            children.setdefault(int(parent), []).append(int(entry.name))
    found: list[int] = []
    left = [root]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found
