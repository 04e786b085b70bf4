"""What a task's output says of its end: what srun or mpiexec printed, and the ranks themselves.

Read by the epilogue when the ranks have left no record, and by whoever looks at a run later of
which neither disk nor scheduler knows the end any more.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from dlperf_hpc.files import open_regular
from dlperf_hpc.records import layout
from dlperf_hpc.records.status import Status
from dlperf_hpc.records.store import Failure
from dlperf_hpc.records.task import LAUNCH_MARK, PMI2_FAULT, SETUP_MARK

_TAIL_BYTES = 65536
_LONGEST = 300  # of a line that is quoted
# Lines that are the launcher's own, with or without srun's --label.
_LAUNCHER = re.compile(
    r"(?:\d+:\s*)?(?:$|srun: |slurmstepd\S*: |=|\[(?:proxy|mpiexec)|YOUR APPLICATION|This typically"
    rf" refers|Please see the FAQ|{SETUP_MARK})"
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

# A rank's own words as its watchdog prints them; on a full disk they may be all that is left.
_PRINTED = re.compile(r"^(?:\d+: )?dlperf_hpc: ([a-z_]+): (rank \d+ on \S+: .*)$", re.MULTILINE)
# faulthandler's words in each rank that waited in MPI_Init (Watchdog.in_native_code).
_WAITED = re.compile(r"^(?:(\d+): )?Timeout \(([\d:.]+)\)!$", re.MULTILINE)
_MOST_RANKS = 8  # that a reason names
_NOT_INSTALLED = (
    "install dlperf_hpc in this environment too, or name the Python that has it: python or venv in"
    " the site profile"
)
_TOLD = {status.value for status in Status if status.finished}

_Rule = tuple[re.Pattern[str], Status, str]


def _rules(*rows: tuple[str, Status, str]) -> tuple[_Rule, ...]:
    return tuple((re.compile(pattern, re.MULTILINE), status, say) for pattern, status, say in rows)


# A fault of Slurm's own, whatever ranks and launcher say in consequence.
_SLURMS_FAULTS = _rules(
    (
        PMI2_FAULT,
        Status.FAILED,
        "Slurm's PMI-2 plug-in misread a request of a rank that was starting (value not properly"
        " terminated), as it does now and then under load: start the run again",
    ),
)
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
    (r"^(.*No space left on device.*)$", Status.FAILED, "{0}"),
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


def is_slurms_fault(reason: str) -> bool:
    """Whether a reason is a fault of Slurm's own: the same run started again may well end ok."""
    return any(reason == say for _, _, say in _SLURMS_FAULTS)


def explain(
    code: int, output: str, failures: Sequence[Failure], ranks: int = 0
) -> tuple[Status, str]:
    """Status and reason of a run without a record, from all that is left of it; ``ranks`` is how
    many there should have been.

    In order of belief: a fault of Slurm's own; a rank's own account of its own error; who did not
    come where the others waited; what the launcher says killed it; a rank's account of another's
    end (a lost connection before a signal); other words; the exit code.
    """
    if found := _first(_SLURMS_FAULTS, output):
        return found
    lost = [failure for failure in failures if failure.status is not Status.CANCELLED]
    own = [failure for failure in failures if not failure.consequence]
    for failure in own[:1]:
        return failure.status, failure.reason
    found = _who_did_not_come(output, failures, ranks) or _first(_CAUSES, output)
    if found is None and lost:
        found = lost[0].status, lost[0].reason
    found = found or _printed(output) or _with_last_words(_first(_ENDINGS, output), output)
    if found is None and failures:
        found = failures[0].status, failures[0].reason
    return found or _by_exit_code(code, output)


def _first(rules: tuple[_Rule, ...], output: str) -> tuple[Status, str] | None:
    for pattern, status, say in rules:
        match = pattern.search(output)
        if match:
            return status, say.format(*match.groups()).strip()
    return None


def _printed(output: str) -> tuple[Status, str] | None:
    """The first account that a rank printed of an end that did not come from outside."""
    for match in _PRINTED.finditer(output):
        if match[1] in _TOLD and match[1] != Status.CANCELLED.value:
            return Status(match[1]), match[2].strip()
    return None


def _who_did_not_come(
    output: str, failures: Sequence[Failure], ranks: int
) -> tuple[Status, str] | None:
    """Where ranks waited in vain for MPI to start: which they were, and which were not there."""
    waited = list(_WAITED.finditer(output))
    if not waited:
        return None
    there = sorted({int(match[1]) for match in waited if match[1]})
    lost = sorted(set(range(ranks)) - set(there) - {failure.rank for failure in failures})
    who = _numbered(there) if there else f"{len(waited)}{f' of {ranks}' if ranks else ''} ranks"
    words = f"{who} waited {waited[0][2]} for MPI to start"
    if there and lost:
        why = f"{_numbered(lost)} did not come: it hung or died before it reached MPI"
    elif there and ranks:
        why = "all ranks were there and did not find each other: see mpi in the site profile"
    else:
        why = "the others did not come, or the ranks did not find each other"
    return Status.FAILED, f"{words}; {why}"


def _numbered(ranks: Sequence[int]) -> str:
    """``rank 3``, or ``ranks 0,1,2 and 5 more``."""
    more = f" and {len(ranks) - _MOST_RANKS} more" if len(ranks) > _MOST_RANKS else ""
    return f"rank{'s' * (len(ranks) > 1)} {','.join(map(str, ranks[:_MOST_RANKS]))}{more}"


def _last_words(output: str) -> str | None:
    """The last line that a rank printed: a missing module, a library that cannot be loaded."""
    lines = (_COLOUR.sub("", line).strip() for line in reversed(output.splitlines()))
    return next((line for line in lines if not _LAUNCHER.match(line)), None)


def _with_last_words(found: tuple[Status, str] | None, output: str) -> tuple[Status, str] | None:
    words = _last_words(output)
    if found is None or words is None or "exit code" not in found[1]:
        return found
    cure = f"; {_NOT_INSTALLED}" if "No module named dlperf_hpc" in words else ""
    return found[0], f"{found[1]}; last output: {words[:_LONGEST]}{cure}"


def _by_exit_code(code: int, output: str) -> tuple[Status, str]:
    last = (output.strip().splitlines() or ["nothing printed"])[-1][:_LONGEST]
    if code == 0:
        return Status.FAILED, f"the ranks ended without a record; last output: {last}"
    if code > 128:
        return Status.FAILED, f"the launcher was ended by signal {code - 128}; last output: {last}"
    return Status.FAILED, f"the launcher left with exit code {code}; last output: {last}"


def tail(path: Path, launch: str = "") -> str:
    """The end of a task's output, from where this launch began; by default the last one. Where it
    cannot be read, words that say so."""
    try:
        return _tail(path, launch)
    except OSError as error:
        return f"(its output {path} cannot be read: {error.strerror})"


def _tail(path: Path, launch: str) -> str:
    with open_regular(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
        text = file.read(_TAIL_BYTES).decode("utf-8", errors="replace")
    return re.split(rf"{LAUNCH_MARK} {re.escape(launch) or '.*'}\n", text)[-1]


def told_by_output(root: Path, task: str) -> tuple[Status, str] | None:
    """Why a task ended of which nobody else knows it; None if its output does not say so."""
    try:
        output = _tail(root / layout.JOBS / f"{task}.out", "")
    except OSError:
        return None
    found = _first(_SLURMS_FAULTS, output) or _first(_CAUSES, output) or _printed(output)
    return found or _with_last_words(_first(_ENDINGS, output), output)
