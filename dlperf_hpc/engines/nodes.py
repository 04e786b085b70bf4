"""Nodes to be wary of: where runs died, or where the same case runs slower than elsewhere."""

from __future__ import annotations

from collections import Counter, defaultdict
from statistics import median

from dlperf_hpc.records.collect import full_results
from dlperf_hpc.records.layout import RunPaths
from dlperf_hpc.records.ledger import Ledger
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
    below 1 (a one-way fit of node effects on ratios; Tukey's median polish without iteration)."""
    results = full_results(ledger.root).results
    ended: dict[str, Counter[bool]] = defaultdict(Counter)
    for result in results:
        died = result.status in _DEATHS
        if died or result.status is Status.OK:
            for host in _culprits(ledger, result) if died else _hosts(result):
                ended[host][died] += 1
    found = {
        host: f"{counts[True]} of {sum(counts.values())} runs on it died"
        for host, counts in ended.items()
        if counts[True] > counts[False]
    }
    return {**_slow(results), **found}


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
