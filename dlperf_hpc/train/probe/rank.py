"""The order of things: the node, then MPI, then what ranks do together."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import socket
import sys
from typing import Any

from .collective_checks import check_together, exchange, own_gpu, wait_for_nodes
from .collectives import sweeps
from .compute import own_steps
from .launchers import launched
from .node import cpus, gpus, imported, installed, ports
from .protocol import Reporter

# Seconds; where files or modules are slow to show there are limits of their own within them.
_NODE_LIMIT_S = 240.0
_MPI_LIMIT_S = 60.0
_STEPS_LIMIT_S = 180.0  # importing torch included


def main(argv: list[str] | None = None) -> None:
    """Tell everything there is to tell of this rank."""
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
    names = [name for name in arguments.modules.split(",") if name]
    facts["modules"] = {name: imported(name, arguments.checkout) for name in names}
    facts["installed"] = installed()
    paths = os.path.join(arguments.directory, "paths")
    with contextlib.suppress(OSError, ValueError), open(paths, encoding="utf-8") as file:
        facts["lacking"] = [path for path in json.load(file) if not os.path.exists(path)]
    return facts


def world(report: Reporter, arguments: argparse.Namespace) -> None:
    """Start MPI, say how large the world is, and try it if it is the launcher's."""
    report.enter("starting MPI (MPI_Init)", _MPI_LIMIT_S)
    if os.environ.get("DLPERF_MPI") == "none" and (launched().size or 1) == 1:
        # Real ranks are started so too: dlperf_hpc.train.ranks.
        report.say("world", {"rank": 0, "size": 1, "library": "no MPI, as DLPERF_MPI=none asks"})
        return
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        report.say("world", {"error": f"{type(error).__name__}: {error}"[:500]})
        return
    comm = MPI.COMM_WORLD
    size = comm.Get_size()
    library = " ".join(MPI.Get_library_version().strip("\0").splitlines()[0].split())
    report.say("world", {"rank": comm.Get_rank(), "size": size, "library": library})
    if size > 1:
        facts = check_together(comm, report, arguments.torch)
        if comm.Get_rank() == 0 or "gpu_error" in facts:
            report.say("comm", facts)
        if "gpu_error" in facts:
            os._exit(1)  # no collective with what is left of the group
    if arguments.collectives and size > 1:
        _collectives(comm, report, arguments)
    if arguments.steps:
        report.enter("steps of its own", _STEPS_LIMIT_S)
        own, _ = own_gpu(comm, comm.allgather(socket.gethostname()), arguments.torch)
        report.say("steps", own_steps(comm, own))
    report.enter("leaving MPI (MPI_Finalize)", _MPI_LIMIT_S)


def _collectives(comm: Any, report: Reporter, arguments: argparse.Namespace) -> None:
    """A part of what is told for each sweep of sizes, so that what came before a fault is there."""
    budget_s = arguments.collectives
    report.enter("collectives", 2 * budget_s + _STEPS_LIMIT_S)
    hosts = comm.allgather(socket.gethostname())
    own, _ = own_gpu(comm, hosts, arguments.torch)
    host = hosts[0] if len(set(hosts)) > 1 else "127.0.0.1"
    for i, found in enumerate(sweeps(comm, host, own, budget_s)):
        if comm.Get_rank() == 0:
            report.say(f"collectives{i}", found)
