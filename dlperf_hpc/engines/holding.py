"""An environment that failed once fails every run: the rest of its runs is held back.

Who writes a run's record asks :func:`learn` whether the run died of its environment; then a marker
lies in the sweep's directory (:mod:`dlperf_hpc.records.quarantine`). A task that starts while one
lies there runs this module before anything else:

``python -m dlperf_hpc.engines.holding <sweep directory> <array>``

which ends with 0 if it held the run back, and with 1 if the run is to begin.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dlperf_hpc.engines import get_engine
from dlperf_hpc.errors import DlperfError, printable
from dlperf_hpc.files import open_regular
from dlperf_hpc.model.case import Run
from dlperf_hpc.model.result import Status
from dlperf_hpc.records.collect import Files
from dlperf_hpc.records.failures import recorded
from dlperf_hpc.records.layout import RunPaths, launch_id, repeat_in_job, task_index
from dlperf_hpc.records.ledger import find_array
from dlperf_hpc.records.manifest import Manifest, read_manifest
from dlperf_hpc.records.quarantine import (
    KINDS,
    EnvironmentFault,
    entry_for,
    hold_back,
    is_end_of,
    reason,
    several,
)
from dlperf_hpc.records.record import read_record
from dlperf_hpc.records.store import leave_undone

_RUNS_ON_ONE_NODE = 10  # more than a node commonly takes at once: others had the time to begin
_WORLD = re.compile(rb"^dlperf \S+ world ", re.MULTILINE)  # an event once the session is made
_HEAD_BYTES = 1 << 16
_SAID_BY_SRUN = re.compile(r"srun: error: ([A-Za-z0-9_.-]+(?:\[[0-9,-]+\])?): tasks? ")
_LONGEST = 400  # of a reason that every run held back repeats


def learn(root: Path, manifest: Manifest, run: Run, record: Mapping[str, Any]) -> None:
    """Leave a marker if the record of this run shows that its environment cannot run.

    What only the environment can lack is believed of one run, as long as none of the runs that it
    would be the end of has got further. What a single broken node may lack is believed when it was
    seen on a second one, or in ten runs of which none has got further; of one run where there is
    only one node. OSError if the marker cannot be written.
    """
    verdict = recorded(record)
    kind = verdict.fault
    if kind not in KINDS:
        return
    needed = _RUNS_ON_ONE_NODE
    if KINDS[kind].certain or get_engine(manifest.engine).max_nodes == 1:
        needed = 1
    further, seen, hosts = False, 1, set(verdict.hosts)
    for paths, other in _others(root, manifest, run, kind):
        if other is not None and recorded(other).fault == kind:
            seen += 1
            hosts |= set(recorded(other).hosts)
        else:
            further = further or _got_further(paths, other)
    if several(hosts) or (seen >= needed and not further):
        words = printable(verdict.reason)[:_LONGEST]
        entry = EnvironmentFault(kind, run.case.framework, run.id, words)
        hold_back(root, run.case.environment, entry)
        print(f"dlperf_hpc: other runs are held back: {reason(run.case.environment, entry)}")


def _others(
    root: Path, manifest: Manifest, run: Run, kind: str
) -> Iterator[tuple[RunPaths, Mapping[str, Any] | None]]:
    """The other runs that this fault would be the end of, those that have begun, with their
    records."""
    files = Files(root)
    for other in manifest.runs:
        same = other.case.environment == run.case.environment and other.id != run.id
        if same and is_end_of(kind, run.case.framework, other.case) and files.may_have(other):
            paths = RunPaths(root, other.id)
            yield paths, read_record(paths.record, detail=False)


def _got_further(paths: RunPaths, record: Mapping[str, Any] | None) -> bool:
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
    return named or ([here] if alone else [])


def held(root: Path, array_name: str) -> bool:
    """Whether this task's run is held back; its record then says so."""
    manifest = read_manifest(root)
    run = find_array(root, manifest, array_name).run_of(task_index(), repeat_in_job())
    entry = entry_for(root, run.case)
    if entry is None:
        return False
    why = reason(run.case.environment, entry)
    if not leave_undone(manifest.sweep, run, root, launch_id(), why):
        return False
    print(printable(f"dlperf_hpc: {Status.HELD_BACK.value}: {run.id}: {why}"))
    return True


def main(argv: list[str]) -> int:
    """Hold back the run of ``argv``: sweep directory and array. Where anything about that fails,
    the run begins, and says itself what is wrong."""
    try:
        return 0 if held(Path(argv[0]), argv[1]) else 1
    except (DlperfError, OSError) as error:
        print(f"dlperf_hpc: not held back: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
