"""Nodes to be wary of: where runs died, or where the same case runs slower than elsewhere."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import median

from dlperf_hpc.engines.faults import any_fault, fault_hosts, several
from dlperf_hpc.records.collect import full_results
from dlperf_hpc.records.held import KINDS
from dlperf_hpc.records.layout import RunPaths
from dlperf_hpc.records.ledger import Ledger
from dlperf_hpc.records.record import read_record
from dlperf_hpc.records.results import RunResult
from dlperf_hpc.records.status import Status
from dlperf_hpc.records.store import failure_hosts

SLOW = 0.02
"""A node's runs must be slower than this, as a median over cases, to be called slow."""

MIN_RUNS = 3
_DEATHS = (Status.FAILED, Status.NODE_FAILED, Status.OUT_OF_MEMORY, Status.TIMEOUT)


def suspects(ledger: Ledger) -> dict[str, str]:
    """Nodes and why. A node is suspected of deaths if more of its runs died than ended ok; of
    being slow if in at least 3 runs the median of (samples/s / median of the case) is over 2 %
    below 1 (a one-way fit of node effects on ratios; Tukey's median polish without iteration). What
    an environment lacks is no node's fault, unless it was seen on this node alone and is not a
    module that is missing."""
    results = full_results(ledger.root).results
    ended: dict[str, Counter[bool]] = defaultdict(Counter)
    environments = _of_environments(ledger, results)
    for result in results:
        died = result.status in _DEATHS
        if (died and result.run.id not in environments) or result.status is Status.OK:
            for host in _culprits(ledger, result) if died else _hosts(result):
                ended[host][died] += 1
    found = {
        host: f"{counts[True]} of {sum(counts.values())} runs on it died"
        for host, counts in ended.items()
        if counts[True] > counts[False]
    }
    return {**_slow(results), **found}


def _of_environments(ledger: Ledger, results: Sequence[RunResult]) -> set[str]:
    """The ids of runs that died of their environment, whatever node they were on: of what only the
    environment can lack, and of what more than one node lacks."""
    found: dict[tuple[str, str], dict[str, set[str]]] = defaultdict(dict)
    environment = {run.id: run.case.environment for run in ledger.manifest.runs}
    for result in results:
        paths = RunPaths(ledger.root, result.run.id)
        record = read_record(paths.record, detail=False) if result.status in _DEATHS else None
        if record is not None and (kind := any_fault(record)):
            hosts = fault_hosts(record) or set(failure_hosts(paths, result.attempt))
            found[environment[result.run.id], kind][result.run.id] = hosts
    return {
        run
        for (_, kind), runs in found.items()
        if KINDS[kind].certain or several(set().union(*runs.values()))
        for run in runs
    }


def _hosts(result: RunResult) -> list[str]:
    world = result.facts.get("world", {})
    hosts = world.get("hosts", []) if isinstance(world, dict) else []
    return [str(host) for host in hosts]


def _culprits(ledger: Ledger, result: RunResult) -> list[str]:
    """Where ranks said that they failed, else every node of the run."""
    failed = failure_hosts(RunPaths(ledger.root, result.run.id), result.attempt)
    return failed or _hosts(result)


def _slow(results: tuple[RunResult, ...]) -> dict[str, str]:
    rates = defaultdict(list)
    for result in results:
        if result.samples_per_s is not None:
            rates[result.run.case.id].append(result.samples_per_s)
    shares = defaultdict(list)
    for result in results:
        if result.samples_per_s is not None:
            share = result.samples_per_s / median(rates[result.run.case.id])
            for host in _hosts(result):
                shares[host].append(share)
    slow = {host: median(each) for host, each in shares.items() if len(each) >= MIN_RUNS}
    return {
        host: f"its runs are {100 * (1 - share):.1f} % below the median of their cases"
        for host, share in slow.items()
        if share < 1 - SLOW
    }
