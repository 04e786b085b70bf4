"""What a task's output says of its end: what srun or mpiexec printed, and the ranks themselves.

Read by the epilogue when the ranks have left no record, and by whoever looks at a run later of
which neither disk nor scheduler knows the end any more.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dlperf_hpc.errors import numbered
from dlperf_hpc.files import open_regular
from dlperf_hpc.model.result import Status
from dlperf_hpc.records import layout
from dlperf_hpc.records.failures import (
    ENDED_BY,
    EXIT_CODES,
    KILLED,
    SIGNS,
    Verdict,
    Where,
    read_in,
    with_codes,
)
from dlperf_hpc.records.layout import LAUNCH_MARK, SETUP_MARK
from dlperf_hpc.records.store import Failure

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
_NOT_INSTALLED = (
    "install dlperf_hpc in this environment too, or name the Python that has it: python or venv in"
    " the site profile"
)
_ENDS = {status.value for status in Status if status.finished} - {Status.CANCELLED.value}


def explain(code: int, output: str, failures: Sequence[Failure], ranks: int = 0) -> Verdict:
    """How a run without a record ended, by all that is left of it; ``ranks`` is how many there
    should have been. In order of belief: a fault of Slurm's own; a rank's own account of its own
    error; an interrupt of the sweep; who did not come where the others waited; what ended the run
    from outside or killed a rank, as launcher and kernel print it; a rank's account of another's
    end (a lost connection before a signal); other words; the exit code."""
    if found := read_in(output, Where.SLURM):
        return found
    own = [failure for failure in failures if not failure.consequence]
    for failure in own[:1]:
        return _who_killed(failure, output) or failure.verdict
    if code == layout.INTERRUPTED:
        return Verdict(Status.CANCELLED, "interrupted", ENDED_BY)
    if found := _who_did_not_come(output, failures, ranks) or read_in(output, Where.OUTPUT):
        return found
    lost = [failure for failure in failures if failure.status is not Status.CANCELLED]
    for failure in lost[:1]:
        return failure.verdict
    found = _by_last_words(output) or next((failure.verdict for failure in failures), None)
    return found or _with_what_is_behind(_by_exit_code(code, output), output)


def _who_killed(failure: Failure, output: str) -> Verdict | None:
    """Who killed a process: its supervisor does not know it, slurmstepd and the kernel say it."""
    found = read_in(output, Where.OUTPUT) if failure.cause == KILLED else None
    return found if found is not None and found.decided_by == SIGNS else None


def _printed(output: str) -> Verdict | None:
    """The first account that a rank printed of an end that did not come from outside."""
    for match in _PRINTED.finditer(output):
        if match[1] in _ENDS:
            return with_codes(Verdict(Status(match[1]), match[2].strip()))
    return None


def _by_last_words(output: str) -> Verdict | None:
    """What a rank printed of its end, else what a launcher printed when a rank had failed."""
    if found := _printed(output):
        return found
    found = read_in(output, Where.ENDING | Where.EXIT)
    if found is None or found.decided_by != EXIT_CODES:
        return found
    return _with_what_is_behind(_with_last_words(found, output), output)


def _with_what_is_behind(verdict: Verdict, output: str) -> Verdict:
    """An exit code with the cause that the output shows."""
    behind = None if verdict.cause else read_in(output, Where.BEHIND)
    if behind is None:
        return verdict
    return replace(verdict, cause=behind.cause, fault=behind.fault)


def _who_did_not_come(output: str, failures: Sequence[Failure], ranks: int) -> Verdict | None:
    """Where ranks waited in vain for MPI to start: which they were, and which were not there."""
    waited = list(_WAITED.finditer(output))
    if not waited:
        return None
    there = sorted({int(match[1]) for match in waited if match[1]})
    lost = sorted(set(range(ranks)) - set(there) - {failure.rank for failure in failures})
    who = f"{len(waited)}{f' of {ranks}' * (ranks > 0)} ranks"
    why = "the others did not come, or the ranks did not find each other"
    if there:
        who = numbered(there)
        if lost:
            why = f"{numbered(lost)} did not come: it hung or died before it reached MPI"
        elif ranks:
            why = "all ranks were there and did not find each other: see mpi in the site profile"
    return Verdict(Status.FAILED, f"{who} waited {waited[0][2]} for MPI to start; {why}", ENDED_BY)


def rank_of(line: str) -> int | None:
    """The rank that has printed a line, by srun's label; None without one."""
    label = re.match(r"([0-9]{1,9}): ", line)
    return int(label[1]) if label else None


def _with_last_words(verdict: Verdict, output: str) -> Verdict:
    """With the last line that a rank printed: a missing module, a library that cannot be loaded."""
    lines = (_COLOUR.sub("", line).strip() for line in reversed(output.splitlines()))
    words = next((line for line in lines if not _LAUNCHER.match(line)), None)
    if words is None:
        return verdict
    cure = f"; {_NOT_INSTALLED}" if "No module named dlperf_hpc" in words else ""
    return replace(verdict, reason=f"{verdict.reason}; last output: {words[:_LONGEST]}{cure}")


def _by_exit_code(code: int, output: str) -> Verdict:
    last = (output.strip().splitlines() or ["nothing printed"])[-1][:_LONGEST]
    how = f"the launcher left with exit code {code}"
    if code == 0:
        how = "the ranks ended without a record"
    elif code > 128:
        how = f"the launcher was ended by signal {code - 128}"
    cause = KILLED if code == 128 + signal.SIGKILL else ""
    return Verdict(Status.FAILED, f"{how}; last output: {last}", EXIT_CODES, cause)


def tail(path: Path, launch: str = "") -> str:
    """The end of a task's output, from where this launch began; by default the last one. NULs,
    which a node that died leaves, are no words. Where it cannot be read, words that say so."""
    try:
        return _tail(path, launch)
    except OSError as error:
        return f"(its output {path} cannot be read: {error.strerror})"


def _tail(path: Path, launch: str) -> str:
    with open_regular(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
        text = file.read(_TAIL_BYTES).decode("utf-8", errors="replace").replace("\0", "")
    return re.split(rf"{LAUNCH_MARK} {re.escape(launch) or '.*'}\n", text)[-1]


def verdict_of_output(root: Path, task: str) -> Verdict | None:
    """Why a task ended of which nobody else knows it; None if its output does not say so."""
    try:
        output = _tail(root / layout.JOBS / f"{task}.out", "")
    except OSError:
        return None
    found = read_in(output, Where.SLURM) or read_in(output, Where.OUTPUT)
    return found or _by_last_words(output)
