"""Something is built while something else runs: meanwhile.py BEHIND FRONT, a command each.

BEHIND has the lowest priority, and what it prints is shown only if it fails. If FRONT succeeds,
BEHIND is waited for. The exit code is that of whichever failed. However this ends, by a signal
too, it leaves no process of either.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time


def last_in_line() -> None:
    """This process and its children run when nobody else wants to."""
    os.nice(19)
    # Linux may share cores out among sessions before it looks at nice, and tests start sessions.
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as file:
        file.write("19")


def on_signal(signum: int, _: object) -> None:
    sys.exit(128 + signum)


def end(group: subprocess.Popen[bytes]) -> None:
    """A command and what it started: interrupted, asked to end, made to."""
    for signum, patience_s in ((signal.SIGINT, 30), (signal.SIGTERM, 10), (signal.SIGKILL, 10)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group.pid, signum)
        with contextlib.suppress(subprocess.TimeoutExpired):
            group.wait(patience_s)


def main(behind_command: str, front_command: str) -> int:
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, on_signal)
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(tempfile.TemporaryFile())
        behind = subprocess.Popen(
            shlex.split(behind_command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=last_in_line,
        )
        stack.callback(end, behind)
        front = subprocess.Popen(shlex.split(front_command), process_group=0)
        stack.callback(end, front)
        failed = front.wait()
        if failed:
            return failed
        front_s = time.monotonic() - began
        failed = behind.wait()
        waited_s = time.monotonic() - began - front_s
        if failed:
            log.seek(0)
            sys.stderr.write(log.read().decode(errors="replace"))
        said = "failed" if failed else "done"
        print(f"{behind_command}: {said}, waited for {waited_s:.0f} s", file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
