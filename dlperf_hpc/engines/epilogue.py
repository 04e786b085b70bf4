"""``python -m dlperf_hpc.engines.epilogue <sweep directory> <array> <exit code>``: after the last
rank, the record of a run whose ranks could not write it themselves.

Ranks that were killed, or never started, leave no record; what srun or mpiexec printed says why.
(The exit code alone does not: srun of Slurm 22.05 leaves with 0 when the only node of its step
dies.)
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from dlperf_hpc.engines.postmortem import explain, rank_of, tail
from dlperf_hpc.engines.suspects import hosts_of_launch, learn
from dlperf_hpc.errors import AttemptError, DlperfError, LogError
from dlperf_hpc.model.result import Status
from dlperf_hpc.records import layout, store, supervision
from dlperf_hpc.records.failures import HARDWARE, LAUNCHER, Verdict, recorded
from dlperf_hpc.records.ledger import bound_array
from dlperf_hpc.records.logfile import read_log
from dlperf_hpc.records.record import Record, read_record


def close(root: Path, array: str, code: int) -> Verdict:
    """Make the record of this task's run if no rank has; what the record says of its end."""
    manifest, found = bound_array(root, array)
    run = found.run_of(layout.task_index(), layout.repeat_in_job())
    store.complete_log(layout.RunPaths(root, run.id))
    try:
        attempt = store.open_attempt(manifest.sweep, run, root, layout.launch_id())
    except AttemptError as error:  # as each rank has said: there is nothing to write down
        print(f"dlperf_hpc: AttemptError: {error}")
        return Verdict(Status.FAILED, str(error))
    if attempt is None:
        return Verdict(Status.OK)
    if run.case.launch:
        supervision.gather_lines(attempt)
        supervision.end(attempt, manifest.measure, manifest.programs[run.case.framework].read)
    record = read_record(attempt.paths.record, detail=False)
    if record is None:
        output = tail(root / layout.JOBS / f"{layout.task_name()}.out", layout.launch_id())
        record = _explained(attempt, code, output)
    if run.case.launch:
        supervision.clear(attempt)
    try:
        learn(root, manifest, run, record)
    except (DlperfError, OSError) as error:
        print(f"dlperf_hpc: no run is held back: {error}", file=sys.stderr)
    return recorded(record)


def _explained(attempt: store.Attempt, code: int, output: str) -> Record:
    """Write the record of an attempt by what is left of it; what it says of the end."""
    failures = store.read_failures(attempt)
    verdict = explain(code, output, failures, attempt.run.case.ranks)
    if not verdict.hosts:
        verdict = replace(verdict, hosts=_hosts(attempt, verdict, output))
    if verdict.cause == HARDWARE and verdict.hosts:
        verdict = replace(verdict, reason=f"{verdict.reason} (on {', '.join(verdict.hosts)})")
    detail: Record = verdict.codes()
    if attempt.run.case.launch:
        detail.update(supervision.detail(attempt))
    store.finish(attempt, verdict.status, verdict.reason, detail=detail)
    return {"status": verdict.status.value, "reason": verdict.reason, **detail}


def _hosts(attempt: store.Attempt, verdict: Verdict, output: str) -> tuple[str, ...]:
    """Where a fault, or a device that broke, was seen of which no rank has given an account."""
    if verdict.cause == HARDWARE:
        hosts, ranks, rank = _nodes(attempt), attempt.run.case.ranks, rank_of(verdict.reason)
        if hosts and rank is not None and rank < ranks:
            return (str(hosts[rank * len(hosts) // ranks]),)
    elif not verdict.fault:
        return ()
    return tuple(hosts_of_launch(verdict.fault, output))


def _nodes(attempt: store.Attempt) -> list[Any]:
    """The nodes of the run in the order of its ranks; none if its log does not tell them."""
    try:
        world = read_log(attempt.paths.log, iterations=False).tables.get("world", {})
    except LogError:
        return []
    hosts = world.get("hosts")
    return hosts if isinstance(hosts, list) else []


def main(argv: list[str]) -> int:
    """Write the record of ``argv``: sweep directory, array, exit code of the ranks. The exit code
    tells the batch script what follows: REQUEUE, JOB_ENDS, or 0 for neither."""
    try:
        ended = close(Path(argv[0]), argv[1], int(argv[2]))
    except DlperfError as error:
        print(f"dlperf_hpc: no record: {error}", file=sys.stderr)
        return 1
    # What mpi/pmi2 cuts hangs on what lies behind an address in memory too: one more start may fit.
    # Of a job of several runs the next ones go on instead.
    first = os.environ.get("SLURM_RESTART_COUNT", "0") == "0"
    again = first and not os.environ.get(layout.REPEAT)
    if ended.status is Status.PREEMPTED or (again and ended.cause == LAUNCHER):
        return layout.REQUEUE
    return layout.JOB_ENDS if ended.status in (Status.CANCELLED, Status.NODE_FAILED) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
