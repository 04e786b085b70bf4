"""What the ranks of doctor's job do with each other and with the login node: files to and from it
through the log directory, connections between the nodes, all-reduce (:mod:`.collective`).
"""

from __future__ import annotations

import contextlib
import glob
import os
import socket
import time
from typing import Any

from .collective import host_allreduce, torch_allreduce
from .own_gpus import share_out
from .protocol import Reporter

_PINGS = 3
_SLOW_S = 5.0  # a round trip that took longer is not repeated
_POLL_S = 0.01
_WAIT_S = 120.0  # for the other nodes
_LIMIT_S = 60.0
_GPU_LIMIT_S = 180.0  # importing torch and starting NCCL included


def exchange(directory: str, name: str, token: str, patience_s: float) -> dict[str, Any]:
    """What the log directory is like from here, and what this clock is against the other side's.

    The login node's token is read; then files are written for it, each of which it answers with
    its own time. Of each round trip the middle is set against the answer, as NTP does: ``offset_s``
    (this clock ahead) is right within ``within_s``.
    """
    facts: dict[str, Any] = {}
    begin = time.monotonic()
    try:
        found = _awaited(os.path.join(directory, "token"), patience_s)
    except OSError as error:
        return {"unread": error.strerror}
    if found is None or found.strip() != token:
        return {"unread": f"the login node's file does not show within {patience_s:g} s"}
    facts["read_s"] = time.monotonic() - begin
    for number in range(_PINGS):
        sent, since = time.time(), time.monotonic()
        try:
            _write(os.path.join(directory, f"ping-{name}-{number}"), repr(sent))
            answer = _awaited(os.path.join(directory, f"pong-{name}-{number}"), patience_s)
        except OSError as error:
            return {**facts, "unwritten": error.strerror}
        took = time.monotonic() - since
        if answer is None:
            facts.setdefault("unanswered", f"no answer within {patience_s:g} s")
            break
        if took / 2 < facts.get("within_s", float("inf")):
            facts["within_s"] = took / 2
            facts["offset_s"] = sent + took / 2 - float(answer)
        facts.setdefault("round_trip_s", took)
        if took > _SLOW_S:
            break
    return facts


def wait_for_nodes(directory: str, name: str | None, nodes: int) -> None:
    """Wait for the first rank of each node to have spoken, of which ``name`` is one: a rank that
    dies in MPI takes the others with it, and theirs is what explains it."""
    deadline = time.monotonic() + _WAIT_S
    with contextlib.suppress(OSError):
        if name is not None:
            _write(os.path.join(directory, f"told-{name}"), "")
        while time.monotonic() < deadline:
            names = os.listdir(directory)
            if sum(each.startswith("told-") and each[-1].isdigit() for each in names) >= nodes:
                return
            time.sleep(_POLL_S)


def _write(path: str, text: str) -> None:
    """Whole or not at all; the other side looks at names."""
    with open(path + ".tmp", "w") as file:
        file.write(text)
    os.replace(path + ".tmp", path)


def _awaited(path: str, patience_s: float) -> str | None:
    """A file's text once it is there; None if it does not come."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            with open(path) as file:
                return file.read()
        except FileNotFoundError:
            if time.monotonic() > deadline:
                return None
        time.sleep(_POLL_S)


def check_together(comm: Any, report: Reporter, use_torch: bool) -> dict[str, Any]:
    """What ranks of a world that is right do with each other."""
    report.enter("all-gather", _LIMIT_S)
    hosts = comm.allgather(socket.gethostname())
    facts: dict[str, Any] = {"hosts": hosts}
    report.enter("connections between the nodes", _LIMIT_S)
    facts["reach"] = reachable(comm, hosts)
    report.enter("all-reduce on host memory", _LIMIT_S)
    facts["rates"] = [host_allreduce(comm)]
    report.enter("all-reduce on GPUs", _GPU_LIMIT_S)
    own, why_not = own_gpu(comm, hosts, use_torch)
    if own is None:
        return {**facts, "gpu_skipped": why_not}
    host = hosts[0] if len(set(hosts)) > 1 else "127.0.0.1"
    try:
        facts["rates"] += torch_allreduce(comm, host, own, "cuda")
    except Exception as error:  # noqa: BLE001 - whatever it is, the user shall read it
        facts["gpu_error"] = f"{type(error).__name__}: {error}"[:500]
    return facts


def own_gpu(comm: Any, hosts: list[str], use_torch: bool) -> tuple[int | None, str]:
    """The number of this rank's GPU among those it sees; or None on all ranks, and why."""
    seen = comm.allgather(_gpus_of_torch() if use_torch else ([], "no case trains in PyTorch"))
    own, why_not = chosen_gpus(hosts, seen)
    return (None, why_not) if why_not else (own[comm.Get_rank()], "")


def chosen_gpus(hosts: list[str], seen: list[tuple[list[str], str]]) -> tuple[list[int], str]:
    """For each rank the number of its GPU among those it sees, as real ranks choose them; or why
    there is nothing to try. ``seen[r]`` are the UUIDs rank r sees, or why it sees none."""
    for rank, (uuids, why) in enumerate(seen):
        if not uuids:
            return [], f"rank {rank} on {hosts[rank]}: {why}"
    own = share_out(hosts, [uuids for uuids, _ in seen])
    for rank, mine in enumerate(own):
        if mine is None:
            return [], f"rank {rank} on {hosts[rank]} sees no GPU that no other rank takes"
    return [mine[0] for mine in own if mine], ""


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


def _gpus_of_torch() -> tuple[list[str], str]:
    """UUIDs of the GPUs that this process's PyTorch sees; or none, and why."""
    if not glob.glob("/dev/nvidia[0-9]*"):
        return [], "no NVIDIA device in /dev"  # without importing torch, which takes its time
    try:
        import torch

        count = torch.cuda.device_count()
        uuids = [str(torch.cuda.get_device_properties(i).uuid) for i in range(count)]
    except Exception as error:  # noqa: BLE001 - an old torch, a broken driver: told, not fatal
        return [], f"{type(error).__name__}: {error}"[:200]
    return uuids, "" if uuids else "PyTorch sees no GPU"
