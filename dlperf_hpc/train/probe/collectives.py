"""All-reduce, reduce-scatter and all-gather over a sweep of sizes, checked and timed.

The size is that of nccl-tests (PERFORMANCE.md): the whole buffer of an all-reduce, and of the
others what all ranks hold together. The time of an iteration is that of its slowest rank; a row has
the median of all iterations.
"""

from __future__ import annotations

import statistics
import time
from array import array
from typing import Any, Callable, Iterator, Optional

from .collective import joined

KINDS = ("all-reduce", "reduce-scatter", "all-gather")
SIZES = (*(8 * 4**power for power in range(14)), 1 << 30)
_ABOUT_S = 0.2  # of iterations
_MOST_ITERATIONS = 200
_COPIES = 6  # of a buffer, that a rank may hold at one time: sent, received, expected, compared
_MEMINFO = "/proc/meminfo"

Prepared = tuple[Callable[[], None], Callable[[], bool]]
"""An operation, and whether what it left is right on this rank."""


def bus_factor(kind: str, ranks: int) -> float:
    """Bus over algorithm bandwidth, as nccl-tests count it (PERFORMANCE.md)."""
    return (2 if kind == "all-reduce" else 1) * (ranks - 1) / ranks


def sizes_of(kind: str, size: int, ranks: int) -> tuple[int, int, int]:
    """Floats that a rank sends and receives, and bytes as nccl-tests count them: of ``size``, as
    far as it can be dealt to the ranks."""
    if kind == "all-reduce":
        return size // 4, size // 4, size
    part = max(1, size // 4 // ranks)
    whole = part * ranks
    return (whole, part, 4 * whole) if kind == "reduce-scatter" else (part, whole, 4 * whole)


def expected(kind: str, part: int, ranks: int) -> array[float]:
    """What a rank receives where rank r sends r + 1 everywhere: exact in float32."""
    if kind != "all-gather":
        return array("f", [ranks * (ranks + 1) / 2]) * part
    whole = array("f")
    for rank in range(ranks):
        whole.extend(array("f", [rank + 1.0]) * (part // ranks))
    return whole


def mpi(comm: Any, kind: str, size: int) -> Prepared:
    """MPI on host memory."""
    from mpi4py import MPI

    rank, ranks = comm.Get_rank(), comm.Get_size()
    sends, receives, _ = sizes_of(kind, size, ranks)
    sent, got = array("f", [rank + 1.0]) * sends, array("f", [0.0]) * receives
    pair = [sent, MPI.FLOAT], [got, MPI.FLOAT]
    operation = {
        "all-reduce": lambda: comm.Allreduce(*pair),
        "reduce-scatter": lambda: comm.Reduce_scatter_block(*pair),
        "all-gather": lambda: comm.Allgather(*pair),
    }[kind]
    return operation, lambda: got.tobytes() == expected(kind, receives, ranks).tobytes()


def of_torch(device: Any) -> Callable[[Any, str, int], Prepared]:
    """torch.distributed in the process group that has been joined."""
    import torch
    import torch.distributed as dist

    def prepare(comm: Any, kind: str, size: int) -> Prepared:
        sends, receives, _ = sizes_of(kind, size, comm.Get_size())
        sent = torch.full((sends,), comm.Get_rank() + 1.0, device=device)
        got = torch.zeros(receives, device=device)

        def operation() -> None:
            if kind == "all-reduce":
                got.copy_(sent)
                dist.all_reduce(got)
            elif kind == "reduce-scatter":
                dist.reduce_scatter_tensor(got, sent)
            else:
                dist.all_gather_into_tensor(got, sent)
            if device.type == "cuda":
                torch.cuda.synchronize(device)

        def right() -> bool:
            told = torch.frombuffer(expected(kind, receives, comm.Get_size()), dtype=torch.float32)
            return bool(torch.equal(got.cpu(), told))

        return operation, right

    return prepare


def sweep(
    comm: Any, prepare: Callable[[Any, str, int], Prepared], kind: str, deadline: float, most: int
) -> dict[str, Any]:
    """Rows of one collective, sizes rising; ``left_out`` says why larger ones than these are not
    there. ``deadline`` is rank 0's time.monotonic; ``most`` the largest size asked for, in bytes.
    """
    rows: list[dict[str, Any]] = []
    cost = 0.0
    for size in [size for size in SIZES if size <= most]:
        why = _why_not(comm, size, cost, deadline)
        if why:
            return {"rows": rows, "left_out": f"{size} bytes and more: {why}"}
        begin = time.monotonic()
        rows.append(_row(comm, prepare, kind, size))
        cost = time.monotonic() - begin
        if not rows[-1]["right"]:
            return {"rows": rows, "left_out": "larger sizes: a result was wrong"}
    return {"rows": rows}


def _why_not(comm: Any, size: int, cost: float, deadline: float) -> str:
    """The same on all ranks: a rank that went on alone would wait for ever."""
    from mpi4py import MPI

    short = comm.bcast(time.monotonic() + 4 * cost > deadline if comm.Get_rank() == 0 else None)
    if short:
        return "the budget is spent"
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    here, free = node.Get_size(), _free_bytes()
    node.Free()
    enough = free is None or _COPIES * size * here < free
    return "" if comm.allreduce(int(enough), op=MPI.MIN) else "too little free memory"


def _free_bytes() -> Optional[int]:
    try:
        with open(_MEMINFO) as file:
            found = [line.split()[1] for line in file if line.startswith("MemAvailable:")]
    except OSError:
        return None
    return int(found[0]) * 1024 if found else None


def _row(comm: Any, prepare: Callable[..., Prepared], kind: str, size: int) -> dict[str, Any]:
    from mpi4py import MPI

    operation, right = prepare(comm, kind, size)
    operation()
    well = bool(comm.allreduce(int(right()), op=MPI.MIN))

    def timed(times: int) -> list[list[float]]:
        took = array("d")
        for _ in range(times):
            comm.Barrier()
            begin = time.perf_counter()
            operation()
            took.append(time.perf_counter() - begin)
        return comm.allgather(list(took))  # type: ignore[no-any-return]

    estimate = max(each[0] for each in timed(1))
    times = max(3, min(_MOST_ITERATIONS, int(_ABOUT_S / max(estimate, 1e-6))))
    each = timed(comm.bcast(times))
    seconds = statistics.median(max(of) for of in zip(*each))
    _, _, counted = sizes_of(kind, size, comm.Get_size())
    means = [sum(of) for of in each]
    return {
        "bytes": counted,
        "us": 1e6 * seconds,
        "alg_gb_per_s": counted / seconds / 1e9,
        "bus_gb_per_s": counted / seconds / 1e9 * bus_factor(kind, comm.Get_size()),
        "slowest_rank": means.index(max(means)),
        "iterations": len(each[0]),
        "right": well,
    }


def sweeps(
    comm: Any, host: str, gpu: Optional[int], budget_s: float, most: int
) -> Iterator[dict[str, Any]]:
    """Each collective by MPI, then by torch.distributed where this Python has torch; ``gpu`` is
    this rank's GPU. An equal part of the time that is left for each."""
    end = time.monotonic() + budget_s

    def deadline(left: int) -> float:
        now = time.monotonic()
        return now + (end - now) / left

    for i, kind in enumerate(KINDS):
        found = sweep(comm, mpi, kind, deadline(2 * len(KINDS) - i), most)
        yield {"by": "MPI, host memory", "kind": kind, **found}
    lacks = comm.allgather(_lacks_torch())
    if any(lacks):
        yield {
            "by": "torch.distributed",
            "kind": "",
            "rows": [],
            "left_out": next(filter(None, lacks)),
        }
        return
    with joined(comm, host, gpu or 0, "cpu" if gpu is None else "cuda") as device:
        by = f"torch.distributed, {'gloo' if gpu is None else 'nccl'}"
        for i, kind in enumerate(KINDS):
            found = sweep(comm, of_torch(device), kind, deadline(len(KINDS) - i), most)
            yield {"by": by, "kind": kind, **found}


def _lacks_torch() -> str:
    try:
        import torch.distributed as dist
    except ImportError as error:
        return f"this Python has no torch: {error}"
    return "" if dist.is_available() else "this torch is built without torch.distributed"
