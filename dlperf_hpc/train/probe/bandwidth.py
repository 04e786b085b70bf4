"""All-reduce, reduce-scatter and all-gather, checked and timed: over a sweep of sizes, or one
all-reduce between the ranks of any short job.

A size is counted as nccl-tests do (PERFORMANCE.md): the whole buffer of an all-reduce, and of the
others what all ranks hold together. The time of an iteration is that of its slowest rank, and a row
has the median of its iterations. ``comm`` is mpi4py's communicator of all ranks. Nothing here needs
more than the standard library and mpi4py; torch is imported where GPUs are to be joined.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Callable

from .node import kernel_value

KINDS = ("all-reduce", "reduce-scatter", "all-gather")
SIZES = (*(8 * 4**power for power in range(14)), 1 << 30)  # bytes
HOST_BYTES, GPU_BYTES = 16 << 20, 256 << 20  # of the one all-reduce of every short job
_FEWEST, _MOST = 3, 200  # iterations
_ABOUT_S = 0.2  # of iterations
# Copies of a buffer that a rank may hold at one time: what it sends, what it receives, spare.
_COPIES = {"all-reduce": 2, "reduce-scatter": 4, "all-gather": 4}
_CHUNK = 1 << 16  # floats

Prepared = tuple[Callable[[], None], Callable[[], bool]]
"""An operation, and whether what its first call left is right on this rank."""


def bus_factor(kind: str, ranks: int) -> float:
    """Bus over algorithm bandwidth, as nccl-tests count it (PERFORMANCE.md)."""
    return (2 if kind == "all-reduce" else 1) * (ranks - 1) / ranks


def sizes_of(kind: str, size: int, ranks: int) -> tuple[int, int, int]:
    """Floats that a rank sends and receives, and bytes as nccl-tests count them."""
    if kind == "all-reduce":
        return size // 4, size // 4, size
    part = max(1, size // 4 // ranks)
    whole = part * ranks
    return (whole, part, 4 * whole) if kind == "reduce-scatter" else (part, whole, 4 * whole)


def _sums(kind: str, ranks: int) -> list[float]:
    """One value for each equal part that a rank receives, where rank r sends r + 1 everywhere."""
    if kind == "all-gather":
        return [rank + 1.0 for rank in range(ranks)]
    return [ranks * (ranks + 1) / 2]


def by_mpi(comm: Any, kind: str, size: int) -> Prepared:
    """MPI on host memory."""
    from mpi4py import MPI

    rank, ranks = comm.Get_rank(), comm.Get_size()
    sends, receives, _ = sizes_of(kind, size, ranks)
    sent, got = array("f", [rank + 1.0]) * sends, array("f", [0.0]) * receives
    call = (comm.Allreduce, comm.Reduce_scatter_block, comm.Allgather)[KINDS.index(kind)]
    pair = [sent, MPI.FLOAT], [got, MPI.FLOAT]

    def operation() -> None:
        call(*pair)

    def right() -> bool:
        sums = _sums(kind, ranks)
        part = receives // len(sums)
        return all(_filled(got, i * part, part, value) for i, value in enumerate(sums))

    return operation, right


def _filled(values: array[float], begin: int, count: int, value: float) -> bool:
    """Whether ``count`` values from ``begin`` on are all the same; numpy may not be there."""
    view, piece = memoryview(values), array("f", [value]) * min(count, _CHUNK)
    ends = range(begin, begin + count, _CHUNK)
    return all(view[i : min(i + _CHUNK, begin + count)] == piece[: begin + count - i] for i in ends)


def by_torch(device: Any) -> Callable[[Any, str, int], Prepared]:
    """torch.distributed in the process group that was joined; the host waits for the device."""
    import torch
    import torch.distributed as dist

    # Newer names for the same, from torch 2.13 on.
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

    def prepare(comm: Any, kind: str, size: int) -> Prepared:
        rank, ranks = comm.Get_rank(), comm.Get_size()
        sends, receives, _ = sizes_of(kind, size, ranks)
        sent = torch.full((sends,), rank + 1.0, device=device)
        got = sent if kind == "all-reduce" else torch.zeros(receives, device=device)

        def operation() -> None:
            if kind == "all-reduce":
                dist.all_reduce(got)
            else:
                {"reduce-scatter": scatter, "all-gather": gather}[kind](got, sent)
            if device.type == "cuda":
                torch.cuda.synchronize(device)

        def right() -> bool:
            sums = torch.tensor(_sums(kind, ranks), device=device)
            return bool((got.view(len(sums), -1) == sums[:, None]).all())

        return operation, right

    return prepare


def host_allreduce(comm: Any) -> dict[str, Any]:
    """MPI's all-reduce in host memory, of one size; ``gb_per_s`` is bus bandwidth."""
    return _rate("MPI, host memory", comm, by_mpi, HOST_BYTES)


def gpu_allreduce(comm: Any, host: str, gpu: int) -> dict[str, Any]:
    """NCCL's by torch.distributed; ``gpu`` is this rank's GPU, ``host`` where rank 0 is reached."""
    with joined(comm, host, gpu, "cuda") as device:
        return _rate("torch.distributed, nccl", comm, by_torch(device), GPU_BYTES)


def _rate(what: str, comm: Any, prepare: Callable[..., Prepared], size: int) -> dict[str, Any]:
    row = _row(comm, prepare, "all-reduce", size, _ABOUT_S)
    seconds, rate = row["us"] / 1e6, row["bus_gb_per_s"]
    return {"what": what, "bytes": size, "seconds": seconds, "gb_per_s": rate}


@contextlib.contextmanager
def joined(comm: Any, host: str, index: int, kind: str) -> Iterator[Any]:
    """A process group of all ranks of ``comm``, and this rank's device in it; ``index`` is that of
    its GPU. A group in which something failed is left as it is: its other ranks may be stuck."""
    import torch
    import torch.distributed as dist

    device = torch.device(kind)
    if kind == "cuda":
        device = torch.device(kind, index)
        torch.cuda.set_device(device)
    join(comm, host, device)
    yield device
    dist.destroy_process_group()


def join(comm: Any, host: str, device: Any, **timeout: Any) -> None:
    """Form a process group of all ranks of ``comm``; ``host`` is where rank 0 is reached. Rank 0's
    store binds a port the system picks, and MPI hands it on: a port that was tested by binding can
    never be another job's. With a ``timeout``, NCCL is started at once on the device."""
    import torch.distributed as dist

    rank, size = comm.Get_rank(), comm.Get_size()
    store = None
    if rank == 0:
        store = store_of(host, 0, size, True, wait_for_workers=False, **timeout)
    port = comm.bcast(store.port if store else None)
    if store is None:
        store = store_of(host, port, size, False, **timeout)
    more = dict(timeout)
    if device.type == "cuda" and timeout:
        more["device_id"] = device
    backend = {"cuda": "nccl"}.get(device.type, "gloo")
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, **more)


def store_of(*place: Any, **settings: Any) -> Any:
    """torch's TCPStore, without libuv where USE_LIBUV is 0, or where torch was built without."""
    from torch.distributed import TCPStore

    if os.environ.get("USE_LIBUV", "1") == "1":
        try:
            return TCPStore(*place, **settings)
        except RuntimeError as error:
            if "without libuv" not in str(error):
                raise
    settings["use_libuv"] = False
    return TCPStore(*place, **settings)


def sweeps(comm: Any, host: str, gpu: int | None, budget_s: float) -> Iterator[dict[str, Any]]:
    """Each collective by MPI in half of the budget, then by torch.distributed in the other half,
    where every rank's Python has torch; ``gpu`` is this rank's GPU, ``host`` where rank 0 is
    reached. A dictionary for each: ``by``, ``kind``, ``rows``; where larger sizes are not there,
    ``left_out`` says why, and ``from`` of how many bytes on."""
    yield from _of_each("MPI, host memory", by_mpi, comm, budget_s / 2)
    lacks = list(filter(None, comm.allgather(_lacks_torch())))
    if lacks:
        yield {"by": "torch.distributed", "kind": "", "rows": [], "left_out": lacks[0]}
        return
    with joined(comm, host, gpu or 0, "cpu" if gpu is None else "cuda") as device:
        by = f"torch.distributed, {'gloo' if gpu is None else 'nccl'}"
        yield from _of_each(by, by_torch(device), comm, budget_s / 2, device)


def _of_each(
    by: str, prepare: Callable[..., Prepared], comm: Any, budget_s: float, device: Any = None
) -> Iterator[dict[str, Any]]:
    end = time.monotonic() + budget_s
    for i, kind in enumerate(KINDS):
        share_s = max(0.0, end - time.monotonic()) / (len(KINDS) - i)
        yield {"by": by, "kind": kind, **timed_sizes(comm, prepare, kind, share_s, device)}


def timed_sizes(
    comm: Any,
    prepare: Callable[..., Prepared],
    kind: str,
    budget_s: float,
    device: Any = None,
    sizes: Sequence[int] = SIZES,
) -> dict[str, Any]:
    """``rows`` of one collective for ``sizes`` (bytes), in this order, while ``budget_s`` lasts,
    which the first may exceed; why others are ``left_out``, ``from`` which on. All ranks do it."""
    deadline = time.monotonic() + budget_s
    about_s = min(_ABOUT_S, budget_s / len(sizes) / 2)
    rows: list[dict[str, Any]] = []
    for size in sizes:
        next_s = 0.0
        if rows:  # the time grows as the size does, if it is the link that takes the time
            next_s = about_s + (_FEWEST + 2) * size / rows[-1]["bytes"] * rows[-1]["us"] / 1e6
        why = _why_not(comm, _COPIES[kind] * size, time.monotonic() + next_s > deadline, device)
        if why:
            return {"rows": rows, "left_out": why, "from": size}
        rows.append(_row(comm, prepare, kind, size, about_s))
        if not rows[-1]["right"]:
            return {"rows": rows, "left_out": "a result was wrong"}
    return {"rows": rows}


def _why_not(comm: Any, needed: int, late: bool, device: Any) -> str:
    """Why a size of which a rank needs so many bytes is left out, or "", alike on all ranks: one
    that went on would wait for ever."""
    from mpi4py import MPI

    if comm.bcast(late):
        return "the budget is spent"
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    here = node.Get_size()
    node.Free()
    free = kernel_value("/proc/meminfo", "MemAvailable").split()  # kB; none where Linux is silent
    enough = not free or needed * here < int(free[0]) * 1024
    if device is not None and device.type == "cuda":
        import torch

        enough = needed < torch.cuda.mem_get_info(device)[0]
    return "" if comm.allreduce(int(enough), op=MPI.MIN) else "too little free memory"


def _row(
    comm: Any, prepare: Callable[..., Prepared], kind: str, size: int, about_s: float
) -> dict[str, Any]:
    from mpi4py import MPI

    operation, right = prepare(comm, kind, size)
    operation()
    well = bool(comm.allreduce(int(right()), op=MPI.MIN))

    def timed(times: int) -> list[array[float]]:
        took = array("d")
        for _ in range(times):
            comm.Barrier()
            begin = time.perf_counter()
            operation()
            took.append(time.perf_counter() - begin)
        return comm.allgather(took)  # type: ignore[no-any-return]  # mpi4py has no types

    estimate = max(each[0] for each in timed(1))
    each = timed(comm.bcast(max(_FEWEST, min(_MOST, int(about_s / max(estimate, 1e-6))))))
    seconds = statistics.median(map(max, zip(*each)))
    _, _, counted = sizes_of(kind, size, comm.Get_size())
    means = list(map(sum, each))
    rate = counted / seconds / 1e9
    return {
        "bytes": counted,
        "us": 1e6 * seconds,
        "algorithm_gb_per_s": rate,
        "bus_gb_per_s": rate * bus_factor(kind, comm.Get_size()),
        "slowest_rank": means.index(max(means)),
        "iterations": len(each[0]),
        "right": well,
    }


def _lacks_torch() -> str:
    try:
        import torch.distributed as dist
    except ImportError as error:
        return f"this Python has no torch: {error}"
    return "" if dist.is_available() else "this torch is built without torch.distributed"
