"""What the short job's ranks told, as findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dlperf_hpc.launch.checks.ending import ended_well, listed
from dlperf_hpc.launch.checks.finding import Finding
from dlperf_hpc.launch.checks.gpus import gpu_findings
from dlperf_hpc.launch.checks.modules import environment
from dlperf_hpc.launch.checks.mpi import placement, world
from dlperf_hpc.launch.checks.trial import Trial

_CLOCK_S = 1.0  # a clock that is off by more is worth a word

Facts = Mapping[str, Any]


def judge(trial: Trial, engine: str) -> Iterator[Finding]:
    """All that is to be said of one job."""
    yield ended_well(trial)
    if trial.parts:
        yield from _of_ranks(trial, engine)


def _of_ranks(trial: Trial, engine: str) -> Iterator[Finding]:
    nodes = [part["node"] for _, part in sorted(trial.parts.items()) if "node" in part]
    firsts = [node for node in nodes if "exchange" in node]
    if len(firsts) < trial.target.topology.nodes:
        seen = f"{len(firsts)} of {trial.target.topology.nodes} nodes told what they are like"
        yield trial.found("FAIL", "nodes of the job", seen, "see what the job printed")
    if firsts:
        yield _log_directory(trial, firsts)
        yield from environment(trial, firsts)
        yield from gpu_findings(trial, firsts)
        yield _cpus(trial, nodes)
        if engine == "slurm":
            yield _clock(trial, firsts)
    yield world(trial, engine)
    comm = next((part["comm"] for _, part in sorted(trial.parts.items()) if "comm" in part), None)
    if comm:
        yield placement(trial, comm["hosts"])
    if engine == "slurm":
        yield from _names(trial, comm)
    yield from _rates(trial, comm)


_EXCHANGE_FAULTS = {
    "unread": "cannot read what the login node wrote",
    "unwritten": "cannot write",
    "unanswered": "what it wrote does not show on the login node",
}


def _log_directory(trial: Trial, firsts: Sequence[Facts]) -> Finding:
    """Both sides see each other's files, and how soon."""
    bad = [
        f"{node['host']}: {fault}: {node['exchange'][key]}"
        for node in firsts
        for key, fault in _EXCHANGE_FAULTS.items()
        if key in node["exchange"]
    ]
    if bad:
        to_do = "give a directory that login and compute nodes share and can write with --logs"
        return trial.found("FAIL", "log directory", f"{trial.logs}: {'; '.join(bad)}", to_do)
    slowest = max(node["exchange"]["round_trip_s"] for node in firsts)
    hosts = listed(node["host"] for node in firsts)
    seen = f"{trial.logs}: read and written on {hosts}; there and back in {slowest:.2g} s"
    return trial.found("ok", "log directory", seen)


def _cpus(trial: Trial, nodes: Sequence[Facts]) -> Finding:
    """Cores that a rank may use, against what was asked and what its neighbours use."""
    fewest = min((len(node["cpus"]) for node in nodes), default=0)
    ranks = Counter(node["host"] for node in nodes)
    cores = {host: set[int]() for host in ranks}
    for node in nodes:
        cores[node["host"]].update(node["cpus"])
    threads = sorted({str(node["omp"]) for node in nodes})
    omp = f"OMP_NUM_THREADS {threads[0]}" if threads != ["None"] else "OMP_NUM_THREADS not set"
    seen = f"{fewest} for each rank at least; {omp}"
    asked = trial.site.cpus_per_task
    crowded = [host for host in ranks if ranks[host] > len(cores[host])]
    if crowded:
        host = crowded[0]
        seen = f"{ranks[host]} ranks of {host} share {len(cores[host])} cores; {omp}"
        to_do = "set cpus_per_task in the site profile, or ask for fewer ranks per node"
        return trial.found("warn", "cpus", seen, to_do)
    if asked and fewest < asked:
        to_do = f"the site profile asks for {asked}: is srun's --cpus-per-task heard here?"
        return trial.found("warn", "cpus", seen, to_do)
    return trial.found("ok", "cpus", seen)


def _clock(trial: Trial, firsts: Sequence[Facts]) -> Finding:
    """How far the nodes' clocks are from the login node's, as well as files can tell."""
    measured = {
        node["host"]: (node["exchange"]["offset_s"], node["exchange"]["within_s"])
        for node in firsts
        if "offset_s" in node["exchange"]
    }
    if not measured:
        return trial.found("skipped", "clock", "no file came back to measure it by")
    text = listed(f"{h} {1e3 * o:+.0f} +- {1e3 * w:.0f} ms" for h, (o, w) in measured.items())
    seen = f"against the login node's: {text}"
    if any(abs(offset) - within > _CLOCK_S for offset, within in measured.values()):
        to_do = "times in logs will not fit: ask the administrators to look at NTP on these nodes"
        return trial.found("warn", "clock", seen, to_do)
    return trial.found("ok", "clock", seen)


def _names(trial: Trial, comm: Facts | None) -> Iterator[Finding]:
    """The nodes find rank 0's by name and get through to it."""
    if trial.target.topology.nodes == 1:
        return
    if not comm:
        yield trial.found("skipped", "names", "no right MPI world to try it in")
        return
    bad = [f"{row['host']}: {row['error']}" for row in comm["reach"] if "error" in row]
    first = comm["hosts"][0]
    if bad:
        to_do = "each node must reach the others by their hostname: /etc/hosts, DNS, firewall"
        yield trial.found("FAIL", "names", "; ".join(bad), to_do)
        return
    addresses = listed(dict.fromkeys(a for row in comm["reach"] for a in row["addresses"]))
    hosts = listed(row["host"] for row in comm["reach"])
    yield trial.found("ok", "names", f"{hosts} reach {first} ({addresses})")


def _rates(trial: Trial, comm: Facts | None) -> Iterator[Finding]:
    """Bandwidths, as information, and what NCCL says if it fails."""
    for part in trial.parts.values():
        if "gpu_error" in part.get("comm", {}):
            to_do = "see NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME in env of the site profile"
            yield trial.found("FAIL", "all-reduce on GPUs", part["comm"]["gpu_error"], to_do)
            break
    for rate in comm["rates"] if comm else []:
        size = f"{rate['bytes'] >> 20} MiB in {1e3 * rate['seconds']:.3g} ms"
        bus = f"{rate['gb_per_s']:.3g} GB/s bus bandwidth"
        yield trial.found("ok", "all-reduce", f"{rate['what']}: {size}, {bus}")
