"""A program of the tests that needs nothing: iterations of a few milliseconds, in Megatron's form.

``steps.py STEPS MS BATCH [WHAT [DIRECTORY]]``; ``WHAT``: hang, nan, fork, lazy (ends without
training), fail, deaf (does not heed SIGTERM), buffer (prints many lines at once), resume (as from a
checkpoint), port and busy (the port at which ranks meet is taken: at the first try, always), timer
(its iterations go through a Timer, and it prints none), nested (leaves a process of another session
that does not heed SIGTERM), bar (draws a progress bar, which no newline
ends).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path


def line(step: int, steps: int, ms: float, batch: int, loss: str) -> str:
    return (
        f" iteration {step:8d}/{steps:8d} | consumed samples: {step * batch:12d} |"
        f" elapsed time per iteration (ms): {ms:.1f} | learning rate: 1.000E-04 |"
        f" global batch size: {batch:5d} | lm loss: {loss} | loss scale: 1.0 |"
    )


def listen(tries: Path) -> None:
    """Listen at the port at which ranks meet; twice, which fails, unless this is the second try."""
    held = [socket.create_server(("", int(os.environ["MASTER_PORT"])))]
    if not tries.exists():
        tries.touch()
        held.append(socket.create_server(("", int(os.environ["MASTER_PORT"]))))


def under_timer(steps: int, ms: float, batch: int) -> None:
    from dlperf_hpc import Timer

    timer = Timer(global_batch=batch, stop=False, quiet=True)
    for step in range(1, steps + 1):
        time.sleep(ms / 1e3)
        if timer.step(9 - 0.01 * step) and steps < 9999:
            break


def draw(steps: int, ms: float) -> None:
    """Draw the bar of an epoch: each state behind a carriage return."""
    for step in range(1, steps + 1):
        time.sleep(ms / 1e3)
        bar = f"Epoch 0:   1%|#   | {step}/{steps} [00:00<00:01, 10.00it/s, v_num=0]"
        print(f"\r{bar}", end="", flush=True)


def main() -> None:
    steps, ms, batch = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    what = sys.argv[4] if len(sys.argv) > 4 else ""
    rank = int(os.environ.get("RANK", os.environ.get("PMI_RANK", "0")))
    if what == "lazy":
        print("there is nothing to do")
        return
    if what == "fork":
        subprocess.Popen(["sleep", "4711"], start_new_session=True)
        subprocess.Popen(["sh", "-c", "sleep 4712 & sleep 4713"])
    if what in ("deaf", "nested"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if what == "nested":
        subprocess.Popen(["sleep", "600"], start_new_session=True)
    if what in ("port", "busy") and rank == 0:
        listen(Path(sys.argv[5], what if what == "port" else f"{time.time()}"))
    if what == "timer":
        under_timer(steps, ms, batch)
        return
    if what == "bar":
        draw(steps, ms)
        return
    printed: list[str] = []
    first = 120 if what == "resume" else 1
    for step in range(first, first + steps):
        time.sleep(ms / 1e3)
        if what == "fail" and step == 5 and rank == 1:
            raise ValueError("no such layer")
        if what in ("hang", "fail") and step == 5:
            time.sleep(600)  # as one that waits for another rank
        loss = "nan" if what == "nan" and step > 4 else f"{9 - 0.01 * step:.6E}"
        printed.append(line(step, steps, ms, batch, loss))
        if rank == 0 and len(printed) >= (20 if what == "buffer" else 1):
            print("\n".join(printed), flush=True)
            printed.clear()


if __name__ == "__main__":
    main()
