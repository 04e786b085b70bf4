"""Processes that are started, recognised again later, and ended one by one.

A pid alone is no identity: the kernel gives it to somebody else once it is free. So a process is
known by its pid *and* the moment it started, and signalled through a pidfd, which never changes
hands.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from errors import Trouble

PR_SET_CHILD_SUBREAPER = 36
STARTED: list[subprocess.Popen[bytes]] = []  # kept, so that nobody waits for them by accident


class Process(NamedTuple):
    """One process, told apart from a later one with the same pid by its start time."""

    pid: int
    started: int


class Stat(NamedTuple):
    """The few fields of /proc/PID/stat that matter here."""

    pid: int
    state: str
    parent: int
    started: int


def parse_stat(text: str) -> Stat:
    """Read one line of /proc/PID/stat; the command's name in it may hold blanks and brackets."""
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    return Stat(int(head.split(" ", 1)[0]), fields[0], int(fields[1]), int(fields[19]))


def read_stat(pid: int | str) -> Stat | None:
    """The state of a process, or None when there is none with this pid."""
    try:
        return parse_stat(Path(f"/proc/{pid}/stat").read_text(errors="replace"))
    except (FileNotFoundError, ProcessLookupError):
        return None


def alive(process: Process) -> bool:
    """Whether this very process still runs; one that only waits to be collected does not."""
    stat = read_stat(process.pid)
    return stat is not None and stat.started == process.started and stat.state not in "ZX"


def spawn(directory: Path, name: str, argv: Iterable[str], env: Mapping[str, str]) -> Process:
    """Start a daemon that records *itself* in DIR/pid/NAME before it becomes the daemon.

    Were it recorded by us afterwards, a kill between the two would leave a process nobody knows.
    """
    record = directory / "pid" / name

    def write_record() -> None:
        record.write_text(Path("/proc/self/stat").read_text())

    with (directory / "log" / f"{name}.err").open("ab") as log:
        STARTED.append(
            subprocess.Popen(
                list(argv),
                env=dict(env),
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=write_record,
            )
        )
    return recorded(directory)[name]


def task(
    directory: Path, name: str, argv: Iterable[str], env: Mapping[str, str], seconds: float
) -> int:
    """Run a program to its end, recorded like a daemon meanwhile: it may be interrupted too."""
    process = spawn(directory, name, argv, env)
    try:
        code = STARTED[-1].wait(seconds)
    except subprocess.TimeoutExpired:
        kill_trees([process])
        code = 124
    (directory / "pid" / name).unlink(missing_ok=True)
    return code


def recorded(directory: Path) -> dict[str, Process]:
    """Every process ever recorded in DIR/pid, alive or not, by name."""
    found = {}
    for record in sorted((directory / "pid").glob("*")):
        with contextlib.suppress(ValueError, IndexError, FileNotFoundError):
            stat = parse_stat(record.read_text(errors="replace"))
            found[record.name] = Process(stat.pid, stat.started)
    return found


def descendants(roots: Iterable[Process]) -> set[Process]:
    """All living processes below these, as the process table shows them now."""
    children: dict[int, list[Process]] = {}
    for entry in os.listdir("/proc"):
        stat = read_stat(entry) if entry.isdigit() else None
        if stat is not None and stat.state not in "ZX":
            children.setdefault(stat.parent, []).append(Process(stat.pid, stat.started))
    found: set[Process] = set()
    todo = [root.pid for root in roots if alive(root)]
    while todo:
        below = set(children.get(todo.pop(), [])) - found
        found |= below
        todo += [process.pid for process in below]
    return found


def send(process: Process, signum: signal.Signals) -> None:
    """A signal to this very process; nothing happens when it is gone or its pid is another's."""
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(process.pid)
        try:
            if alive(process):
                signal.pidfd_send_signal(pidfd, signum)
        finally:
            os.close(pidfd)


def kill_trees(roots: Iterable[Process], seconds: float = 10.0) -> None:
    """End these processes and all below them, and return when they are gone.

    The roots go last: while a node's first process lives, the node's orphans stay below it.
    Nothing gets a chance to say goodbye: all are stopped before the first is killed, or a step's
    daemon that outlives its ranks by a moment would report their end, as no dead node does.
    """
    roots = [root for root in roots if root.pid != os.getpid()]
    seen: set[Process] = set()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        seen |= descendants(roots)
        left = [process for process in seen if alive(process)]
        left = left or [root for root in roots if alive(root)]
        if not left:
            return
        for signum in (signal.SIGSTOP, signal.SIGKILL):
            for process in left:
                send(process, signum)
        time.sleep(0.01)
    pids = ", ".join(str(process.pid) for process in left)
    raise Trouble(f"SIGKILL did not end these within {seconds:.0f} s: {pids}; see `ps -fp PID`")


def adopt_orphans() -> None:
    """Let processes whose parent died become ours, not init's, so that they stay findable."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise Trouble(f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(ctypes.get_errno())}")


def keep(argv: list[str]) -> int:
    """A node's first process where there is no pod: runs slurmd, collects all that is below it."""
    adopt_orphans()
    child = subprocess.Popen(argv)
    code = 0
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.wait()
            if pid == child.pid:
                code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def wait_for_end(pid: int) -> None:
    """Return once the process is gone; it need not be a child of ours."""
    process = read_stat(pid)
    while process is not None and alive(Process(pid, process.started)):
        time.sleep(0.3)


def command(argv: list[str], env: Mapping[str, str], seconds: float = 30.0) -> tuple[int, str]:
    """Run a command to its end; its exit code, and its output with the error output after it."""
    try:
        done = subprocess.run(
            argv, env=dict(env), timeout=seconds, capture_output=True, text=True, errors="replace"
        )
    except subprocess.TimeoutExpired:
        return 124, f"{argv[0]}: no answer within {seconds:.0f} s"
    return done.returncode, done.stdout + done.stderr


def wait_until(ready: Callable[[], bool], seconds: float, check: Callable[[], None]) -> bool:
    """Poll until `ready`, calling `check` (which may raise) in between; False when time is up."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if ready():
            return True
        check()
        time.sleep(0.05)
    return False


def say(text: str) -> None:
    """Progress goes to standard error: standard output belongs to what was asked for."""
    print(text, file=sys.stderr, flush=True)
