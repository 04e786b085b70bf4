"""All-reduce between the ranks of a job, timed: how fast the nodes of a pair, or of any world, are
together, for buffers of the sizes that are asked for.

Nothing here needs more than the standard library and mpi4py; torch is imported where GPUs are to be
joined. ``comm`` is always mpi4py's communicator of all ranks.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Callable

HOST_BYTES = 16 << 20
GPU_BYTES = 256 << 20
_MOST_REPETITIONS = 20
_ABOUT_S = 0.5  # of repetitions


def repeated(comm: Any, operation: Callable[[], None]) -> float:
    """Seconds that a collective takes, on its slowest rank: once to warm up, then some times."""
    from mpi4py import MPI

    def timed(times: int) -> float:
        comm.Barrier()
        begin = time.perf_counter()
        for _ in range(times):
            operation()
        took: float = comm.allreduce(time.perf_counter() - begin, op=MPI.MAX)
        return took / times

    operation()
    estimate = timed(1)
    return timed(max(1, min(_MOST_REPETITIONS, int(_ABOUT_S / max(estimate, 1e-6)))))


def bus_bandwidth(size: int, seconds: float, ranks: int) -> float:
    """GB/s as nccl-tests count it: bytes / time * 2 (n - 1) / n, comparable with a link's speed."""
    return size / seconds * 2 * (ranks - 1) / ranks / 1e9


def host_allreduce(comm: Any, size: int = HOST_BYTES) -> dict[str, Any]:
    """MPI's all-reduce of ``size`` bytes of float32 in host memory."""
    from mpi4py import MPI

    buffer = array("f", bytes(size))
    seconds = repeated(comm, lambda: comm.Allreduce(MPI.IN_PLACE, [buffer, MPI.FLOAT]))
    return _rate("MPI, host memory", size, seconds, comm.Get_size())


def _rate(what: str, size: int, seconds: float, ranks: int) -> dict[str, Any]:
    gb_per_s = bus_bandwidth(size, seconds, ranks)
    return {"what": what, "bytes": size, "seconds": seconds, "gb_per_s": gb_per_s}


def torch_allreduce(
    comm: Any, host: str, index: int, kind: str, sizes: Sequence[int] = ()
) -> list[dict[str, Any]]:
    """torch.distributed's all-reduce on GPUs (``cuda``: NCCL), or on CPUs (``cpu``: gloo), of each
    of ``sizes`` (bytes of float32; without one the usual one), in one process group. ``host`` is
    where rank 0 is reached."""
    import torch
    import torch.distributed as dist

    size = comm.Get_size()
    usual = GPU_BYTES if kind == "cuda" else HOST_BYTES
    rates = []
    with joined(comm, host, index, kind) as device:
        for asked in sizes or (usual,):
            buffer = torch.zeros(asked // 4, device=device)

            def operation(buffer: Any = buffer, device: Any = device) -> None:
                dist.all_reduce(buffer)
                if kind == "cuda":
                    torch.cuda.synchronize(device)

            seconds = repeated(comm, operation)
            what = f"torch.distributed, {'nccl' if kind == 'cuda' else 'gloo'}"
            rates.append(_rate(what, asked // 4 * 4, seconds, size))
    return rates


@contextmanager
def joined(comm: Any, host: str, index: int, kind: str) -> Iterator[Any]:
    """A process group of all ranks of ``comm``, and this rank's device in it; ``index`` is that of
    its GPU. A group in which something failed is left as it is: its other ranks may be stuck."""
    import torch
    import torch.distributed as dist

    rank, size = comm.Get_rank(), comm.Get_size()
    device = torch.device(kind, index) if kind == "cuda" else torch.device(kind)
    store = dist.TCPStore(host, 0, size, True, wait_for_workers=False) if rank == 0 else None
    port = comm.bcast(store.port if store else None)
    if store is None:
        store = dist.TCPStore(host, port, size, False)
    if kind == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if kind == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    yield device
    dist.destroy_process_group()
