"""Ranks whose heap was used before MPI starts (blocks without a zero in them, half of them freed):
rank 0 prints where each rank is, and how many are there."""

from __future__ import annotations

import os
import random
import socket

from dlperf_hpc.train.probe.node import initialised_mpi

sizes = random.choices((64, 200, 500, 900, 2000, 4000, 9000, 20000), k=20_000)
blocks = [os.urandom(size).replace(b"\0", b"x") for size in sizes]
random.shuffle(blocks)
del blocks[::2]
MPI = initialised_mpi()
world = MPI.COMM_WORLD
neighbours = world.Split_type(MPI.COMM_TYPE_SHARED).size
places = world.gather((socket.gethostname(), neighbours))
if world.rank == 0:
    print(places)
