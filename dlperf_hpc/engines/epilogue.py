"""After the last rank: the record of a run whose ranks could not write it themselves.

Run by the batch script, or the local queue, with the launcher's exit code. Ranks that were
killed, or never started, leave no record; what srun or mpiexec printed says why. (The exit code
alone does not: srun of Slurm 22.05 leaves with 0 when the only node of its step dies.)

``python -m dlperf_hpc.engines.epilogue <sweep directory> <array> <exit code>``
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from dlperf_hpc.engines.faults import printed_fault
from dlperf_hpc.engines.holding import hosts_of_launch, learn
from dlperf_hpc.engines.output import explain, is_slurms_fault, tail
from dlperf_hpc.errors import AttemptError, DlperfError
from dlperf_hpc.records import layout, supervised
from dlperf_hpc.records.layout import RunPaths
from dlperf_hpc.records.ledger import find_array
from dlperf_hpc.records.manifest import read_manifest
from dlperf_hpc.records.record import Record, read_record
from dlperf_hpc.records.status import Status
from dlperf_hpc.records.store import (
    Attempt,
    complete_log,
    finish,
    open_attempt,
    read_failures,
)
from dlperf_hpc.records.task import (
    JOB_ENDS,
    REPEAT,
    REQUEUE,
    launch_id,
    repeat_in_job,
    task_index,
    task_name,
)


def close(root: Path, array: str, code: int) -> tuple[Status, str]:
    """Make the record of this task's run if no rank has; status and reason of the record."""
    manifest = read_manifest(root)
    run = find_array(root, manifest, array).run_of(task_index(), repeat_in_job())
    complete_log(RunPaths(root, run.id))
    try:
        attempt = open_attempt(manifest.sweep, run, root, launch_id())
    except AttemptError as error:  # as each rank has said: there is nothing to write down
        print(f"dlperf_hpc: AttemptError: {error}")
        return Status.FAILED, str(error)
    if attempt is None:
        return Status.OK, ""
    if run.case.launch:
        supervised.gather_lines(attempt)
        supervised.end(attempt, manifest.measure, manifest.programs[run.case.framework].read)
    record = read_record(attempt.paths.record, detail=False)
    if record is None:
        output = tail(root / layout.JOBS / f"{task_name()}.out", launch_id())
        record = _explained(attempt, code, output)
    if run.case.launch:
        supervised.clear(attempt)
    try:
        learn(root, manifest, run, record)
    except (DlperfError, OSError) as error:
        print(f"dlperf_hpc: no run is held back: {error}", file=sys.stderr)
    return Status(record["status"]), str(record.get("reason", ""))


def _explained(attempt: Attempt, code: int, output: str) -> Record:
    """Write the record of an attempt by what is left of it; what it says of the end."""
    failures = read_failures(attempt)
    status, reason = explain(code, output, failures, attempt.run.case.ranks)
    own = [failure for failure in failures if not failure.consequence]
    fault, hosts = (own[0].fault, [own[0].host]) if own else (printed_fault(reason, output), [])
    hosts = hosts or hosts_of_launch(fault, output)
    detail: Record = {"fault": fault, "fault_hosts": hosts} if fault else {}
    if attempt.run.case.launch:
        detail.update(supervised.detail(attempt))
    finish(attempt, status, reason, detail=detail)
    return {"status": status.value, "reason": reason, **detail}


def main(argv: list[str]) -> int:
    """Write the record of ``argv``: sweep directory, array, exit code of the ranks.

    The exit code tells the batch script what follows: REQUEUE, JOB_ENDS, or 0 for neither.
    """
    try:
        ended, reason = close(Path(argv[0]), argv[1], int(argv[2]))
    except DlperfError as error:
        print(f"dlperf_hpc: no record: {error}", file=sys.stderr)
        return 1
    # Of a job of several runs the next ones go on instead.
    alone = not os.environ.get(REPEAT)
    if ended is Status.PREEMPTED or (alone and is_slurms_fault(reason)):
        return REQUEUE
    return JOB_ENDS if ended in (Status.CANCELLED, Status.NODE_FAILED) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
