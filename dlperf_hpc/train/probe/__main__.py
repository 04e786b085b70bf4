"""``python -u -m dlperf_hpc.train.probe <directory> --token T ...``: one rank of it.

First the node, then MPI, then what ranks do together: files to and from the login node through the
log directory, connections between the nodes, all-reduce. A rank speaks in parts, each as soon as it
is known, for the next thing may end it: ``phase`` (what it sets out to do), ``node`` (the machine
and the Python), ``world`` (MPI), ``comm`` (what ranks do together), ``collectives0`` and on (each a
sweep of sizes), and ``steps`` (what a rank computes by itself).
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import glob
import json
import os
import platform
import socket
import sys
import time
import zlib
from typing import Any

from . import MARK
from .bandwidth import gpu_allreduce, host_allreduce, sweeps
from .node import (
    cannot_compile,
    cpus,
    gpus,
    imported,
    initialised_mpi,
    installed,
    launched,
    own_steps,
    ports,
    share_out,
)

# Writes of up to 4096 bytes to a pipe do not mix. Slurm takes what has come in pieces of 1024 bytes
# and ends a line behind each: a line may be cut anywhere. So it has its length and a sum.
_PIECE = 800
_PINGS = 3
_SLOW_S = 5.0  # a round trip that took longer is not repeated
_POLL_S = 0.01
_WAIT_S = 120.0  # for the other nodes
_LIMIT_S = 60.0
_GPU_LIMIT_S = 180.0  # importing torch and starting NCCL included
# Where files or modules are slow to show there are limits of their own within this one.
_NODE_LIMIT_S = 240.0


class Reporter:
    """Says what is found, part by part, and ends the process where it gets stuck."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def enter(self, phase: str, limit_s: float) -> None:
        """Say what comes next. After ``limit_s`` in it the process ends with its stack printed. Not
        by a thread of Python: MPI_Init, which is what hangs, lets none run."""
        self.say("phase", {"name": phase})
        faulthandler.dump_traceback_later(limit_s, exit=True)

    def say(self, part: str, facts: dict[str, Any]) -> None:
        """Print a part as lines that survive labels, cuts and other ranks' lines between them."""
        text = json.dumps(facts)
        pieces = [text[i : i + _PIECE] for i in range(0, len(text), _PIECE)]
        for i, piece in enumerate(pieces, 1):
            head = f"{MARK} {self.rank} {part} {i}/{len(pieces)}"
            line = f"{head} {len(piece)} {zlib.crc32(piece.encode()):08x} {piece}\n"
            os.write(1, line.encode("ascii"))


def main(argv: list[str] | None = None) -> None:
    """Say everything there is to say of this rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("--token", required=True)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--modules", default="")
    parser.add_argument("--patience", type=float, default=60.0)
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--steps", action="store_true")
    parser.add_argument("--collectives", type=float, default=0.0, metavar="S")
    parser.add_argument("--checkout", action="store_true")
    arguments = parser.parse_args(argv)
    # As real ranks have it: the working directory is looked into only if it is a checkout.
    sys.path[:1] = [os.getcwd()] if arguments.checkout else []
    report = Reporter(launched().rank or 0)
    report.enter("looking at the node", _NODE_LIMIT_S)
    facts = node_facts(arguments, report.rank)
    report.say("node", facts)
    report.enter("waiting for the other nodes", _NODE_LIMIT_S)
    name = str(report.rank) if "exchange" in facts else None
    wait_for_nodes(arguments.directory, name, arguments.nodes)
    world(report, arguments)


def node_facts(arguments: argparse.Namespace, rank: int) -> dict[str, Any]:
    """This process, its Python and the GPUs it is shown; of a node's first rank also the node."""
    started = launched()
    facts: dict[str, Any] = {
        "host": socket.gethostname(),
        "local_rank": started.local_rank,
        "told": started.size,
        "python": platform.python_version(),
        "executable": sys.executable,
        "cpus": cpus(),
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "omp": os.environ.get("OMP_NUM_THREADS"),
    }
    facts["gpus"] = gpus()  # of every rank: a site may show each of them its own only
    if arguments.collectives:
        facts["ports"] = ports()
    if started.local_rank:
        return facts
    name = str(rank)
    facts["exchange"] = exchange(arguments.directory, name, arguments.token, arguments.patience)
    names = filter(None, arguments.modules.split(","))
    facts["modules"] = {name: imported(name, arguments.checkout) for name in names}
    facts["installed"] = installed()
    facts["cannot_compile"] = cannot_compile()
    paths = os.path.join(arguments.directory, "paths")
    with contextlib.suppress(OSError, ValueError), open(paths, encoding="utf-8") as file:
        facts["lacking"] = [path for path in json.load(file) if not os.path.exists(path)]
    return facts


def world(report: Reporter, arguments: argparse.Namespace) -> None:
    """Start MPI, say how large the world is, and try it if it is the launcher's."""
    report.enter("starting MPI (MPI_Init)", _LIMIT_S)
    if os.environ.get("DLPERF_MPI") == "none" and (launched().size or 1) == 1:
        # Real ranks are started so too: dlperf_hpc.train.ranks.
        report.say("world", {"rank": 0, "size": 1, "library": "no MPI, as DLPERF_MPI=none asks"})
        return
    try:
        MPI = initialised_mpi()
    except (ImportError, RuntimeError) as error:
        report.say("world", {"error": f"{type(error).__name__}: {error}"[:500]})
        return
    comm = MPI.COMM_WORLD
    size = comm.Get_size()
    library = " ".join(MPI.Get_library_version().strip("\0").splitlines()[0].split())
    report.say("world", {"rank": comm.Get_rank(), "size": size, "library": library})
    if size > 1:
        _check_together(comm, report, arguments)
    if arguments.steps:
        report.enter("steps of its own", _GPU_LIMIT_S)
        own, _ = own_gpu(comm, comm.allgather(socket.gethostname()), arguments.torch)
        report.say("steps", own_steps(comm, own))
    report.enter("leaving MPI (MPI_Finalize)", _LIMIT_S)


def _check_together(comm: Any, report: Reporter, arguments: argparse.Namespace) -> None:
    facts = check_together(comm, report, arguments.torch)
    if comm.Get_rank() == 0 or "gpu_error" in facts:
        report.say("comm", facts)
    if "gpu_error" in facts:
        os._exit(1)  # no collective with what is left of the group
    if arguments.collectives:
        _collectives(comm, report, arguments)


def _collectives(comm: Any, report: Reporter, arguments: argparse.Namespace) -> None:
    """A part for each sweep of sizes, so that what came before a fault is there."""
    budget_s = arguments.collectives
    report.enter("collectives", 2 * budget_s + _GPU_LIMIT_S)
    hosts = comm.allgather(socket.gethostname())
    own, _ = own_gpu(comm, hosts, arguments.torch)
    host = _address(hosts)
    for i, found in enumerate(sweeps(comm, host, own, budget_s)):
        if comm.Get_rank() == 0:
            report.say(f"collectives{i}", found)


def exchange(directory: str, name: str, token: str, patience_s: float) -> dict[str, Any]:
    """What the log directory is like from here, and this clock against the login node's. Its token
    is read; then it answers each file that is written with its own time. The middle of a round trip
    is set against the answer, as NTP does: ``offset_s`` (this clock ahead), right ``within_s``."""
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
        with contextlib.suppress(FileNotFoundError), open(path) as file:
            return file.read()
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
    host = _address(hosts)
    try:
        facts["rates"].append(gpu_allreduce(comm, host, own))
    except Exception as error:  # noqa: BLE001 - whatever it is, the user shall read it
        facts["gpu_error"] = f"{type(error).__name__}: {error}"[:500]
    return facts


def _address(hosts: list[str]) -> str:
    """Where all ranks reach rank 0."""
    return hosts[0] if len(set(hosts)) > 1 else "127.0.0.1"


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
    rows = list(filter(None, comm.allgather(mine)))
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


if __name__ == "__main__":
    main()
