"""A program of the tests that finds its ranks by MPI, of which its launcher must tell it.

``mpi_steps.py STEPS BATCH [timer]``, with the last word under a Timer.
"""

from __future__ import annotations

import sys
import time

from mpi4py import MPI
from steps import line


def main() -> None:
    steps, batch = int(sys.argv[1]), int(sys.argv[2])
    world = MPI.COMM_WORLD
    timer = None
    if sys.argv[3:] == ["timer"]:
        from dlperf_hpc import Timer

        timer = Timer(batch_size=batch, model="mpi-toy", stop=False)
    print(f"rank {world.Get_rank()} of {world.Get_size()}", flush=True)
    for step in range(1, steps + 1):
        begun = time.perf_counter()
        time.sleep(0.01)
        total = world.allreduce(1)
        if world.Get_rank() == 0:
            ms = 1e3 * (time.perf_counter() - begun)
            print(line(step, steps, ms, batch * total, f"{9 - 0.01 * step:.6E}"), flush=True)
        if timer is not None:
            timer.step()


if __name__ == "__main__":
    main()
