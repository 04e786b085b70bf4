"""Steps that a rank computes by itself: how fast its device is, whatever the others do."""

from __future__ import annotations

import hashlib
import time
from typing import Any, Callable

_ABOUT_S = 0.5  # of steps
_MOST_STEPS = 1000
_HOST_BYTES = 16 << 20
_PRODUCTS, _WIDTH = 10, 4096


def own_steps(comm: Any, gpu: int | None) -> dict[str, Any]:
    """``ms``, the mean time of steps of fixed work, after a barrier of all ranks: products of
    matrices on the device ``gpu``, else SHA-256 of a buffer on the CPU.

    The mean, not the median: a device that is throttled now and then is as slow as its mean.
    """
    what, step = ("SHA-256", _hashing()) if gpu is None else ("matrix products", _products(gpu))
    step()
    begin = time.perf_counter()
    step()
    estimate = time.perf_counter() - begin
    count = max(2, min(_MOST_STEPS, int(_ABOUT_S / max(estimate, 1e-6))))
    comm.Barrier()
    begin = time.perf_counter()
    for _ in range(count):
        step()
    took = time.perf_counter() - begin
    return {"what": what, "steps": count, "ms": 1e3 * took / count}


def _hashing() -> Callable[[], None]:
    buffer = bytes(_HOST_BYTES)

    def step() -> None:
        hashlib.sha256(buffer).digest()

    return step


def _products(gpu: int) -> Callable[[], None]:
    import torch

    device = torch.device("cuda", gpu)
    torch.cuda.set_device(device)
    matrix = torch.ones(_WIDTH, _WIDTH, device=device) / _WIDTH

    def step() -> None:
        for _ in range(_PRODUCTS):
            torch.matmul(matrix, matrix)
        torch.cuda.synchronize(device)

    return step
