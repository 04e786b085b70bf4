"""After the last rank: the record of a run whose ranks could not write it themselves.

Run by the batch script, or the local queue, with the launcher's exit code. Ranks that were
killed, or never started, leave no record; what srun or mpiexec printed says why. (The exit code
alone does not: srun of Slurm 22.05 leaves with 0 when the only node of its step dies.)

``python -m dlperf_hpc.launch.epilogue <sweep directory> <array> <exit code>``
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from dlperf_hpc.records import layout
from dlperf_hpc.records.manifest import read_manifest
from dlperf_hpc.records.status import Status
from dlperf_hpc.records.store import Failure, finish, open_attempt, read_failures, read_record
from dlperf_hpc.records.task import launch_id, task_index, task_name

_TAIL_BYTES = 65536

# In order of belief: a rank's own death before what the launcher then did to the others.
_RULES: tuple[tuple[re.Pattern[str], Status, Callable[[re.Match[str]], str]], ...] = tuple(
    (re.compile(pattern, re.MULTILINE), status, say)
    for pattern, status, say in (
        (r"^.*DUE TO TIME LIMIT.*$", Status.TIMEOUT, lambda m: m[0]),
        (r"^.*DUE TO PREEMPTION.*$", Status.PREEMPTED, lambda m: m[0]),
        (r"^.*(?:DUE TO NODE FAIL|Node failure on).*$", Status.NODE_FAILED, lambda m: m[0]),
        (r"^.*(?:Out Of Memory|oom[-_]kill).*$", Status.OUT_OF_MEMORY, lambda m: m[0]),
        (
            r"srun: error: (\S+): tasks? ([\d,-]+): (Killed|Segmentation fault|Aborted|Bus error)",
            Status.FAILED,
            lambda m: f"rank {m[2]} on {m[1]} died: {m[3]}",
        ),
        (
            r"(?:EXIT CODE|KILLED BY SIGNAL).*?(\d+)(?:.*signal (\d+))?",
            Status.FAILED,
            lambda m: f"mpiexec: a rank died with exit code or signal {m[2] or m[1]}",
        ),
        (
            r"srun: error: (\S+): tasks? ([\d,-]+): Exited with exit code (\d+)",
            Status.FAILED,
            lambda m: f"rank {m[2]} on {m[1]} left with exit code {m[3]}",
        ),
        (r"^.*CANCELLED (?:AT|by).*$", Status.CANCELLED, lambda m: m[0]),
        (r"^srun: (?:fatal|error): (.*)$", Status.FAILED, lambda m: f"srun: {m[1]}"),
    )
)


def explain(code: int, output: str, failures: list[Failure]) -> tuple[Status, str]:
    """Status and reason of a run without a record, from all that is left of it."""
    for failure in failures:
        if not failure.consequence:
            return failure.status, failure.reason
    for pattern, status, say in _RULES:
        match = pattern.search(output)
        if match:
            return status, say(match).strip()
    if failures:
        return failures[0].status, failures[0].reason
    last = (output.strip().splitlines() or ["nothing printed"])[-1]
    if code == 0:
        return Status.FAILED, f"the ranks ended without a record; last output: {last}"
    if code > 128:
        return Status.FAILED, f"the launcher was ended by signal {code - 128}; last output: {last}"
    return Status.FAILED, f"the launcher left with exit code {code}; last output: {last}"


def _tail(path: Path) -> str:
    try:
        data = path.read_bytes()[-_TAIL_BYTES:]
    except OSError as error:
        return f"(its output {path} cannot be read: {error.strerror})"
    return data.decode("utf-8", errors="replace")


def close(root: Path, array: str, code: int) -> None:
    """Make the record of this task's run if no rank has."""
    manifest = read_manifest(root)
    run = manifest.array(array).tasks[task_index()]
    attempt = open_attempt(manifest.sweep, run, root, launch_id())
    if attempt is None or read_record(attempt.paths.record) is not None:
        return
    output = root / layout.JOBS / f"{task_name()}.out"
    status, reason = explain(code, _tail(output), read_failures(attempt))
    finish(attempt, status, reason)


if __name__ == "__main__":
    close(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
