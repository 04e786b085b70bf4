"""A program of the tests whose ranks do not wait for each other: ``apart.py STEPS MS BATCH WHAT``.

Rank 0 prints iterations in Megatron's form; the others print nothing, but for ``paced``: there all
print. What rank 1 does at its 8th iteration: plain and paced (nothing), none (ends with exit code
0), one (with 1), memory (prints that a device has no memory, and ends with 1), worker (prints what
PyTorch says of a data loader that was killed, and ends with 1), kill (SIGKILL), still and
paced-still (hangs); ``skips``: its steps fail, and it goes on.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from steps import line

NO_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
WORKER = (
    "RuntimeError: DataLoader worker (pid 77) is killed by signal: Killed. It is possible that"
    " dataloader's workers are out of shared memory."
)


def strike(what: str) -> None:
    """What rank 1 does at its 8th iteration."""
    if what == "none":
        raise SystemExit(0)
    if what == "one":
        raise SystemExit(1)
    if what in ("memory", "worker"):
        raise SystemExit({"memory": NO_MEMORY, "worker": WORKER}[what])
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what.endswith("still"):
        time.sleep(600)


def main() -> None:
    steps, ms, batch, what = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    rank = int(os.environ.get("RANK", "0"))
    for step in range(1, steps + 1):
        time.sleep(ms / 1e3)
        if rank == 1 and step == 8:
            strike(what)
        if rank == 1 and what == "skips":
            print(f"step {step} was left out: {NO_MEMORY}", flush=True)
        if rank == 0 or what.startswith("paced"):
            print(line(step, steps, ms, batch, f"{9 - 0.01 * step:.6E}"), flush=True)


if __name__ == "__main__":
    main()
