"""A program of the tests that needs nothing: iterations of a few milliseconds, in Megatron's form.

``steps.py STEPS MS BATCH [WHAT]``; ``WHAT``: hang, nan, fork, lazy (ends without training), fail,
slow (the same to the end, and does not heed SIGTERM).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time


def line(step: int, steps: int, ms: float, batch: int, loss: str) -> str:
    return (
        f" iteration {step:8d}/{steps:8d} | consumed samples: {step * batch:12d} |"
        f" elapsed time per iteration (ms): {ms:.1f} | learning rate: 1.000E-04 |"
        f" global batch size: {batch:5d} | lm loss: {loss} | loss scale: 1.0 |"
    )


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
    if what == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for step in range(1, steps + 1):
        time.sleep(ms / 1e3)
        if what == "fail" and step == 5 and rank == 1:
            raise ValueError("no such layer")
        if what in ("hang", "fail") and step == 5:
            time.sleep(600)  # as one that waits for another rank
        loss = "nan" if what == "nan" and step > 4 else f"{9 - 0.01 * step:.6E}"
        if rank == 0:
            print(line(step, steps, ms, batch, loss), flush=True)


if __name__ == "__main__":
    main()
