"""What runs are kept from: environments that cannot run them, and nodes on which they died.

An environment that failed once fails every run: the rest of its runs is held back. Who writes a
run's record asks :func:`learn` whether the run died of its environment; then a marker lies in the
sweep's directory (:mod:`dlperf_hpc.records.quarantine`). A task that starts while one lies there
runs :func:`main` before anything else (``python -m dlperf_hpc.engines.holding``).
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dlperf_hpc.engines import get_engine
from dlperf_hpc.errors import DlperfError, printable
from dlperf_hpc.files import open_regular
from dlperf_hpc.model.case import Run
from dlperf_hpc.model.result import RunResult, Status
from dlperf_hpc.records import layout, quarantine
from dlperf_hpc.records.collect import Files
from dlperf_hpc.records.failures import HARDWARE, LAUNCHER, Verdict, recorded, with_codes
from dlperf_hpc.records.ledger import Ledger, bound_array
from dlperf_hpc.records.manifest import Manifest
from dlperf_hpc.records.record import read_record
from dlperf_hpc.records.store import failure_hosts, leave_undone

_RUNS_ON_ONE_NODE = 10  # more than a node commonly takes at once: others had the time to begin
_WORLD = re.compile(rb"^dlperf \S+ world ", re.MULTILINE)  # an event once the session is made
_HEAD_BYTES = 1 << 16
_SAID_BY_SRUN = re.compile(r"srun: error: ([A-Za-z0-9_.-]+(?:\[[0-9,-]+\])?): tasks? ")
_LONGEST = 400  # of a reason that every run held back repeats
_DEATHS = (Status.FAILED, Status.NODE_FAILED, Status.OUT_OF_MEMORY, Status.TIMEOUT)


def learn(root: Path, manifest: Manifest, run: Run, record: Mapping[str, Any]) -> None:
    """Leave a marker if the record of this run shows that its environment cannot run. What only the
    environment can lack is believed of one run, as long as none of the runs that it would be the
    end of has got further. What a single broken node may lack is believed when it was seen on a
    second one, or in ten runs of which none has got further; of one run where there is only one
    node. OSError if the marker cannot be written."""
    verdict = recorded(record)
    kind = verdict.fault
    if kind not in quarantine.KINDS:
        return
    needed = _RUNS_ON_ONE_NODE
    if quarantine.KINDS[kind].certain or get_engine(manifest.engine).max_nodes == 1:
        needed = 1
    same, further = [verdict], False
    for paths, found in _started_runs(root, manifest, run, kind):
        if found is not None and recorded(found).fault == kind:
            same.append(recorded(found))
        else:
            further = further or _got_further(paths, found)
    everywhere = quarantine.several({host for each in same for host in each.hosts})
    if everywhere or (len(same) >= needed and not further):
        words = printable(verdict.reason)[:_LONGEST]
        entry = quarantine.EnvironmentFault(kind, run.case.framework, run.id, words)
        quarantine.hold_back(root, run.case.environment, entry)
        why = quarantine.reason(run.case.environment, entry)
        print(f"dlperf_hpc: other runs are held back: {why}")


def _started_runs(
    root: Path, manifest: Manifest, run: Run, kind: str
) -> Iterator[tuple[layout.RunPaths, Mapping[str, Any] | None]]:
    files = Files(root)
    for each in manifest.runs:
        same = each.case.environment == run.case.environment and each.id != run.id
        its_end = same and quarantine.is_end_of(kind, run.case.framework, each.case)
        if its_end and files.may_have(each):
            paths = layout.RunPaths(root, each.id)
            yield paths, read_record(paths.record, detail=False)


def _got_further(paths: layout.RunPaths, record: Mapping[str, Any] | None) -> bool:
    """Whether a run has had its ranks, its framework and its devices."""
    if record is not None and record["status"] == Status.OK.value:
        return True
    try:
        with open_regular(paths.log) as file:
            return _WORLD.search(file.read(_HEAD_BYTES)) is not None
    except OSError:
        return False


def hosts_of_launch(kind: str, output: str, env: Mapping[str, str] = os.environ) -> list[str]:
    """Where a fault was seen of which no rank could tell: on this node, where the batch script
    runs, or on those that srun names."""
    here = env.get("SLURMD_NODENAME") or socket.gethostname()
    if kind == "setup":
        return [here]
    alone = env.get("SLURM_JOB_NUM_NODES", "1") == "1"
    named = list(dict.fromkeys(_SAID_BY_SRUN.findall(output)))
    return named or [here] * alone


def held(root: Path, array_name: str) -> bool:
    """Whether this task's run is held back; its record then says so."""
    manifest, array = bound_array(root, array_name)
    run = array.run_of(layout.task_index(), layout.repeat_in_job())
    entry = quarantine.entry_for(root, run.case)
    if entry is None:
        return False
    why = quarantine.reason(run.case.environment, entry)
    if not leave_undone(manifest.sweep, run, root, layout.launch_id(), why):
        return False
    print(printable(f"dlperf_hpc: {Status.HELD_BACK.value}: {run.id}: {why}"))
    return True


def main(argv: list[str]) -> int:
    """Hold back the run of ``argv``: sweep directory and array; 0 if that was done, 1 if the run is
    to begin. Where anything about it fails, the run begins, and says itself what is wrong."""
    try:
        return 0 if held(Path(argv[0]), argv[1]) else 1
    except (DlperfError, OSError) as error:
        print(f"dlperf_hpc: not held back: {error}", file=sys.stderr)
        return 1


def suspect_nodes(ledger: Ledger, results: Iterable[RunResult]) -> dict[str, str]:
    """Nodes and why, by how all runs of the sweep ended. A node is suspected if more of its runs
    died than ended ok. What an environment lacks is no node's fault, unless it was seen on this
    node alone and is not a module that is missing. Where a device broke, one run is enough."""
    ended = [(each, _verdict(ledger, each)) for each in results]
    broken = {
        host: f"a device broke: {verdict.reason}"
        for _, verdict in ended
        if verdict.cause == HARDWARE
        for host in verdict.hosts
    }
    return {**_deadly(ledger, ended), **broken}


def _verdict(ledger: Ledger, result: RunResult) -> Verdict:
    """How a run ended by its record, and where; if that does not say it, where ranks failed."""
    if result.status not in _DEATHS:
        return Verdict(result.status)
    paths = layout.RunPaths(ledger.root, result.run.id)
    record = read_record(paths.record, detail=False)
    verdict = Verdict(result.status) if record is None else with_codes(recorded(record))
    return replace(verdict, hosts=verdict.hosts or tuple(failure_hosts(paths, result.attempt)))


def _deadly(ledger: Ledger, ended: Iterable[tuple[RunResult, Verdict]]) -> dict[str, str]:
    """Nodes on which more runs died than ended ok."""
    runs, excused = defaultdict[str, Counter[bool]](Counter), _of_environments(ledger, ended)
    for result, verdict in ended:
        hosts: Iterable[str] = ()
        died = result.status in _DEATHS and verdict.cause != LAUNCHER
        if died and result.run.id not in excused:
            hosts = verdict.hosts or _hosts(result)
        elif result.status is Status.OK:
            hosts = _hosts(result)
        for host in hosts:
            runs[host][died] += 1
    return {
        host: f"{counts[True]} of {sum(counts.values())} runs on it died"
        for host, counts in runs.items()
        if counts[True] > counts[False]
    }


def _of_environments(ledger: Ledger, ended: Iterable[tuple[RunResult, Verdict]]) -> set[str]:
    """The ids of runs that died of their environment, whatever node they were on: of what only the
    environment can lack, and of what more than one node lacks."""
    found = defaultdict[tuple[str, str], list[tuple[str, set[str]]]](list)
    environment = {run.id: run.case.environment for run in ledger.manifest.runs}
    for result, verdict in ended:
        run = result.run.id
        if verdict.status is Status.FAILED and verdict.fault in quarantine.KINDS:
            found[environment[run], verdict.fault].append((run, {*verdict.hosts}))
    return {
        run
        for (_, kind), runs in found.items()
        if quarantine.KINDS[kind].certain
        or quarantine.several(set().union(*(hosts for _, hosts in runs)))
        for run, _ in runs
    }


def _hosts(result: RunResult) -> list[str]:
    world = result.facts.get("world", {})
    hosts = world.get("hosts", []) if isinstance(world, dict) else []
    return list(map(str, hosts))
