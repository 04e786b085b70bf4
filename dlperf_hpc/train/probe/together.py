"""What ranks do with each other: find each other, reach each other, reduce."""

from __future__ import annotations

import glob
import socket
import time
from array import array
from typing import Any, Callable

from .speech import Reporter

_LIMIT_S = 60.0
_GPU_LIMIT_S = 180.0  # importing torch and starting NCCL included
_BYTES = 16 << 20  # of the all-reduce on host buffers
_GPU_BYTES = 256 << 20
_MOST_REPETITIONS = 20
_ABOUT_S = 0.5  # of repetitions


def together(comm: Any, report: Reporter, use_torch: bool) -> dict[str, Any]:
    """What ranks of a world that is right do with each other."""
    report.enter("all-gather", _LIMIT_S)
    hosts = comm.allgather(socket.gethostname())
    facts: dict[str, Any] = {"hosts": hosts}
    report.enter("connections between the nodes", _LIMIT_S)
    facts["reach"] = reachable(comm, hosts)
    report.enter("all-reduce on host memory", _LIMIT_S)
    facts["rates"] = [host_allreduce(comm)]
    report.enter("all-reduce on GPUs", _GPU_LIMIT_S)
    rank = comm.Get_rank()
    local = hosts[:rank].count(hosts[rank])
    if all(comm.allgather(use_torch and _has_gpu(local))):
        host = hosts[0] if len(set(hosts)) > 1 else "127.0.0.1"
        try:
            facts["rates"].append(torch_allreduce(comm, host, local, "cuda"))
        except Exception as error:  # noqa: BLE001 - whatever it is, the user shall read it
            facts["gpu_error"] = f"{type(error).__name__}: {error}"[:500]
    return facts


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


def host_allreduce(comm: Any) -> dict[str, Any]:
    """MPI's all-reduce on host memory."""
    from mpi4py import MPI

    buffer = array("f", bytes(_BYTES))
    seconds = repeated(comm, lambda: comm.Allreduce(MPI.IN_PLACE, [buffer, MPI.FLOAT]))
    return _rate("MPI, host memory", _BYTES, seconds, comm.Get_size())


def _rate(what: str, size: int, seconds: float, ranks: int) -> dict[str, Any]:
    gb_per_s = bus_bandwidth(size, seconds, ranks)
    return {"what": what, "bytes": size, "seconds": seconds, "gb_per_s": gb_per_s}


def torch_allreduce(comm: Any, host: str, local_rank: int, kind: str) -> dict[str, Any]:
    """torch.distributed's all-reduce on GPUs (``cuda``: NCCL), or on CPUs (``cpu``: gloo)."""
    import torch
    import torch.distributed as dist

    rank, size = comm.Get_rank(), comm.Get_size()
    device = torch.device(kind, local_rank) if kind == "cuda" else torch.device(kind)
    store = dist.TCPStore(host, 0, size, True, wait_for_workers=False) if rank == 0 else None
    port = comm.bcast(store.port if store else None)
    if store is None:
        store = dist.TCPStore(host, port, size, False)
    if kind == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if kind == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    count = (_GPU_BYTES if kind == "cuda" else _BYTES) // 4
    buffer = torch.zeros(count, device=device)

    def operation() -> None:
        dist.all_reduce(buffer)
        if kind == "cuda":
            torch.cuda.synchronize(device)

    seconds = repeated(comm, operation)
    dist.destroy_process_group()
    return _rate(f"torch.distributed, {backend}", count * 4, seconds, size)


def reachable(comm: Any, hosts: list[str]) -> list[dict[str, Any]]:
    """Whether each node finds rank 0's by its name, and gets through: what a rendezvous needs."""
    rank = comm.Get_rank()
    server = None
    if rank == 0:
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        server = socket.create_server(("", 0), family=family, dualstack_ipv6=dual)
    port = comm.bcast(server.getsockname()[1] if server else None)
    mine = None
    if hosts.index(hosts[rank]) == rank != 0:
        mine = {"host": hosts[rank], **_connected(hosts[0], port)}
    rows = [row for row in comm.allgather(mine) if row]
    if server:
        server.close()
    return rows


def _connected(host: str, port: int) -> dict[str, Any]:
    try:
        rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        return {"error": f"cannot find the name {host}: {error.strerror or error}"}
    addresses = list(dict.fromkeys(str(row[4][0]) for row in rows))
    try:
        socket.create_connection((host, port), timeout=10).close()
    except OSError as error:
        why = error.strerror or str(error)
        return {"error": f"{host} ({', '.join(addresses)}): {why}", "addresses": addresses}
    return {"addresses": addresses}


def _has_gpu(local: int) -> bool:
    if not glob.glob("/dev/nvidia[0-9]*"):
        return False  # without importing torch, which takes its time
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.device_count() > local)
