"""An environment that failed once fails every run: the rest of its runs is held back.

Who writes a run's record asks :func:`learn` whether the run died of its environment; then a marker
lies in the sweep's directory (:mod:`dlperf_hpc.records.held`). A task that starts while one lies
there runs this module before anything else:

``python -m dlperf_hpc.engines.holding <sweep directory> <array>``

which ends with 0 if it held the run back, and with 1 if the run is to begin.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dlperf_hpc.engines import get_engine
from dlperf_hpc.engines.faults import fault_hosts, printed_hosts, recorded_fault, several
from dlperf_hpc.errors import DlperfError, printable
from dlperf_hpc.records.collect import Files
from dlperf_hpc.records.held import KINDS, Entry, entry_for, hold_back, is_end_of, reason
from dlperf_hpc.records.layout import RunPaths
from dlperf_hpc.records.ledger import find_array
from dlperf_hpc.records.manifest import Manifest, read_manifest
from dlperf_hpc.records.record import read_record
from dlperf_hpc.records.status import Status
from dlperf_hpc.records.store import leave_undone
from dlperf_hpc.records.task import launch_id, repeat_in_job, task_index
from dlperf_hpc.sweepfile.case import Run

_LONGEST = 400  # of a reason that every run held back repeats


def learn(root: Path, manifest: Manifest, run: Run, record: Mapping[str, Any]) -> None:
    """Leave a marker if the record of this run shows that its environment cannot run.

    What only the environment can lack is believed of one run, as long as none of the runs that it
    would be the end of has ended ok; what a single broken node may lack, when it was seen on a
    second one, or where there is only one. OSError if the marker cannot be written.
    """
    kind = recorded_fault(record)
    if not kind:
        return
    single = get_engine(manifest.engine).max_nodes == 1
    ok, hosts = False, fault_hosts(record)
    for other in _others(root, manifest, run, kind):
        ok |= other.get("status") == Status.OK.value
        if recorded_fault(other) == kind:
            hosts |= fault_hosts(other)
    if several(hosts) or (not ok and (single or KINDS[kind].certain)):
        words = printable(str(record.get("reason", "")))[:_LONGEST]
        entry = Entry(kind, run.case.framework, run.id, words)
        hold_back(root, run.case.environment, entry)
        print(f"dlperf_hpc: other runs are held back: {reason(run.case.environment, entry)}")


def _others(root: Path, manifest: Manifest, run: Run, kind: str) -> Iterator[Mapping[str, Any]]:
    """Records of the runs that this fault would be the end of."""
    files = Files(root)
    for other in manifest.runs:
        same = other.case.environment == run.case.environment and other.id != run.id
        if same and is_end_of(kind, run.case.framework, other.case) and files.may_have(other):
            record = read_record(RunPaths(root, other.id).record, detail=False)
            if record is not None:
                yield record


def hosts_of_launch(kind: str, output: str, env: Mapping[str, str] = os.environ) -> list[str]:
    """Where a fault was seen of which no rank could tell: on this node, where the batch script
    runs, or on those that srun names."""
    here = env.get("SLURMD_NODENAME") or socket.gethostname()
    if kind == "setup":
        return [here]
    alone = env.get("SLURM_JOB_NUM_NODES", "1") == "1"
    return printed_hosts(output) or ([here] if alone else [])


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
    print(f"dlperf_hpc: {Status.HELD_BACK.value}: {run.id}: {why}")
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
