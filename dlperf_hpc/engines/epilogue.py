"""After the last rank: the record of a run whose ranks could not write it themselves.

Run by the batch script, or the local queue, with the launcher's exit code. Ranks that were
killed, or never started, leave no record; what srun or mpiexec printed says why. (The exit code
alone does not: srun of Slurm 22.05 leaves with 0 when the only node of its step dies.)

``python -m dlperf_hpc.engines.epilogue <sweep directory> <array> <exit code>``
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from dlperf_hpc.errors import AttemptError, DlperfError
from dlperf_hpc.files import open_regular
from dlperf_hpc.records import layout
from dlperf_hpc.records.layout import RunPaths
from dlperf_hpc.records.ledger import find_array
from dlperf_hpc.records.manifest import read_manifest
from dlperf_hpc.records.record import read_record
from dlperf_hpc.records.status import Status
from dlperf_hpc.records.store import (
    Failure,
    complete_log,
    finish,
    open_attempt,
    read_failures,
)
from dlperf_hpc.records.task import (
    JOB_ENDS,
    LAUNCH_MARK,
    REQUEUE,
    SETUP_MARK,
    launch_id,
    repeat_in_job,
    task_index,
    task_name,
)

_TAIL_BYTES = 65536
_LONGEST = 300  # of a line that is quoted
# Lines that are the launcher's own, with or without srun's --label.
_LAUNCHER = re.compile(
    r"(?:\d+: )?(?:srun: |slurmstepd\S*: |=|\[(?:proxy|mpiexec)|YOUR APPLICATION|This typically"
    rf" refers|Please see the FAQ|{SETUP_MARK})"
)

_Rule = tuple[re.Pattern[str], Status, str]


def _rules(*rows: tuple[str, Status, str]) -> tuple[_Rule, ...]:
    return tuple((re.compile(pattern, re.MULTILINE), status, say) for pattern, status, say in rows)


# What ended a run from outside, or killed a rank. ``say`` is filled with the match's groups.
_CAUSES = _rules(
    (r"AttemptError: (another attempt .*)$", Status.FAILED, "{0}"),
    (r"^(.*DUE TO TIME LIMIT.*)$", Status.TIMEOUT, "{0}"),
    (
        r"srun: error: (\S+): tasks? ([\d,-]+): User defined signal 2",
        Status.TIMEOUT,
        "rank {1} on {0}, still starting, ended by Slurm's notice before the time limit (SIGUSR2)",
    ),
    (r"^(.*DUE TO PREEMPTION.*)$", Status.PREEMPTED, "{0}"),
    (r"^(.*(?:DUE TO NODE FAIL|Node failure on).*)$", Status.NODE_FAILED, "{0}"),
    (
        r"^(.*(?:Out Of Memory|oom[-_]kill|[Ee]xceeded (?:\w+ )?memory limit).*)$",
        Status.OUT_OF_MEMORY,
        "{0}",
    ),
    # Cancelled first, then ended; after a rank's end srun cancels the others with the same words.
    (
        r"\A(?:(?!srun: error: \S+: tasks? |.*EXIT CODE: ).*\n)*?(.*CANCELLED (?:AT|by).*)$",
        Status.CANCELLED,
        "{0}",
    ),
    (
        r"srun: error: (\S+): tasks? ([\d,-]+): (Killed|Segmentation fault|Aborted|Bus error)",
        Status.FAILED,
        "rank {1} on {0} died: {2}",
    ),
    (r"EXIT STRING: (.+ \(signal \d+\))", Status.FAILED, "mpiexec: a rank died: {0}"),
)
# What a launcher also prints when it ends the others after one has failed.
_ENDINGS = _rules(
    (rf"^{SETUP_MARK} (\d+): (.*)$", Status.FAILED, "setup failed with exit code {0}: {1}"),
    (r"slurmstepd\S*: error: (execve\(\): .*)$", Status.FAILED, "a rank cannot start: {0}"),
    (r"(execvp error on file .*)$", Status.FAILED, "a rank cannot start: {0}"),
    (
        r"^srun: error: .*\bmpi/([\w.+-]+)",
        Status.FAILED,
        "srun has no MPI plug-in {0}: choose one of `srun --mpi=list` as mpi in the site profile",
    ),
    (
        r"srun: error: (\S+): tasks? ([\d,-]+): Exited with exit code (\d+)",
        Status.FAILED,
        "rank {1} on {0} left with exit code {2}",
    ),
    (r"EXIT CODE: (\d+)", Status.FAILED, "mpiexec: a rank left with exit code {0}"),
    (r"^(srun: (?:fatal|error): .*)$", Status.FAILED, "{0}"),
)


def explain(code: int, output: str, failures: list[Failure]) -> tuple[Status, str]:
    """Status and reason of a run without a record, from all that is left of it.

    In order of belief: a rank's own account of its own error; what the launcher says killed it; a
    rank's account of another's end (a lost connection before a signal); other words; the exit code.
    """
    lost = [failure for failure in failures if failure.status is not Status.CANCELLED]
    own = [failure for failure in failures if not failure.consequence]
    for failure in own[:1]:
        return failure.status, failure.reason
    found = _first(_CAUSES, output)
    if found is None and lost:
        found = lost[0].status, lost[0].reason
    found = found or _with_last_words(_first(_ENDINGS, output), output)
    if found is None and failures:
        found = failures[0].status, failures[0].reason
    return found or _by_exit_code(code, output)


def _first(rules: tuple[_Rule, ...], output: str) -> tuple[Status, str] | None:
    for pattern, status, say in rules:
        match = pattern.search(output)
        if match:
            return status, say.format(*match.groups()).strip()
    return None


def _last_words(output: str) -> str | None:
    """The last line that a rank printed: a missing module, a library that cannot be loaded."""
    lines = (line.strip() for line in reversed(output.splitlines()))
    return next((line for line in lines if line and not _LAUNCHER.match(line)), None)


def _with_last_words(found: tuple[Status, str] | None, output: str) -> tuple[Status, str] | None:
    words = _last_words(output)
    if found is None or words is None or "exit code" not in found[1]:
        return found
    return found[0], f"{found[1]}; last output: {words[:_LONGEST]}"


def _by_exit_code(code: int, output: str) -> tuple[Status, str]:
    last = (output.strip().splitlines() or ["nothing printed"])[-1][:_LONGEST]
    if code == 0:
        return Status.FAILED, f"the ranks ended without a record; last output: {last}"
    if code > 128:
        return Status.FAILED, f"the launcher was ended by signal {code - 128}; last output: {last}"
    return Status.FAILED, f"the launcher left with exit code {code}; last output: {last}"


def _tail(path: Path) -> str:
    try:
        with open_regular(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            data = file.read(_TAIL_BYTES)
    except OSError as error:
        return f"(its output {path} cannot be read: {error.strerror})"
    text = data.decode("utf-8", errors="replace")
    return text.rpartition(f"{LAUNCH_MARK} {launch_id()}\n")[2]


def close(root: Path, array: str, code: int) -> Status:
    """Make the record of this task's run if no rank has; the status of the record."""
    manifest = read_manifest(root)
    run = find_array(root, manifest, array).run_of(task_index(), repeat_in_job())
    complete_log(RunPaths(root, run.id))
    try:
        attempt = open_attempt(manifest.sweep, run, root, launch_id())
    except AttemptError as error:  # as each rank has said: there is nothing to write down
        print(f"dlperf_hpc: AttemptError: {error}")
        return Status.FAILED
    if attempt is None:
        return Status.OK
    record = read_record(attempt.paths.record)
    if record is not None:
        return Status(record["status"])
    output = root / layout.JOBS / f"{task_name()}.out"
    status, reason = explain(code, _tail(output), read_failures(attempt))
    finish(attempt, status, reason)
    return status


def main(argv: list[str]) -> int:
    """Write the record of ``argv``: sweep directory, array, exit code of the ranks.

    The exit code tells the batch script what follows: REQUEUE, JOB_ENDS, or 0 for neither.
    """
    try:
        ended = close(Path(argv[0]), argv[1], int(argv[2]))
    except DlperfError as error:
        print(f"dlperf_hpc: no record: {error}", file=sys.stderr)
        return 1
    job_ends = ended in (Status.CANCELLED, Status.NODE_FAILED)
    return REQUEUE if ended is Status.PREEMPTED else JOB_ENDS if job_ends else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
