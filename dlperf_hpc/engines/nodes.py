"""Nodes to be wary of: where runs died, or where the same case runs slower than elsewhere."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from statistics import median

from dlperf_hpc.model.result import RunResult, Status
from dlperf_hpc.records.collect import full_results
from dlperf_hpc.records.failures import HARDWARE, Verdict, recorded, with_codes
from dlperf_hpc.records.layout import RunPaths
from dlperf_hpc.records.ledger import Ledger
from dlperf_hpc.records.quarantine import KINDS, several
from dlperf_hpc.records.record import read_record
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
    module that is missing. Where a device broke, one run is enough."""
    results = full_results(ledger.root).results
    ended: dict[str, Counter[bool]] = defaultdict(Counter)
    verdicts = {result.run.id: _verdict(ledger, result) for result in results}
    environments = _of_environments(ledger, verdicts)
    for result in results:
        died = result.status in _DEATHS
        if (died and result.run.id not in environments) or result.status is Status.OK:
            culprits = verdicts[result.run.id].hosts if died else ()
            for host in culprits or _hosts(result):
                ended[host][died] += 1
    found = {
        host: f"{counts[True]} of {sum(counts.values())} runs on it died"
        for host, counts in ended.items()
        if counts[True] > counts[False]
    }
    return {**_slow(results), **found, **_broken(verdicts)}


def _verdict(ledger: Ledger, result: RunResult) -> Verdict:
    """How a run ended by its record, and where: where ranks said that they failed, if that does not
    say it."""
    if result.status not in _DEATHS:
        return Verdict(result.status)
    paths = RunPaths(ledger.root, result.run.id)
    record = read_record(paths.record, detail=False)
    verdict = Verdict(result.status) if record is None else with_codes(recorded(record))
    return replace(verdict, hosts=verdict.hosts or tuple(failure_hosts(paths, result.attempt)))


def _broken(verdicts: Mapping[str, Verdict]) -> dict[str, str]:
    """Nodes on which a device broke, and what was said of it."""
    return {
        host: f"a device broke: {verdict.reason}"
        for verdict in verdicts.values()
        if verdict.cause == HARDWARE
        for host in verdict.hosts
    }


def _of_environments(ledger: Ledger, verdicts: Mapping[str, Verdict]) -> set[str]:
    """The ids of runs that died of their environment, whatever node they were on: of what only the
    environment can lack, and of what more than one node lacks."""
    found: dict[tuple[str, str], dict[str, set[str]]] = defaultdict(dict)
    environment = {run.id: run.case.environment for run in ledger.manifest.runs}
    for run, verdict in verdicts.items():
        if verdict.status is Status.FAILED and verdict.fault in KINDS:
            found[environment[run], verdict.fault][run] = set(verdict.hosts)
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
