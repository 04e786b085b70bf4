"""What broke? One table of the lines by which a run has failed, for all who ask.

Order counts: where several patterns fit, the first one does. A cause is further up than what comes
of it: a GPU that broke before the memory that then could not be had, and both before a lost peer.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Flag, auto
from functools import cache
from typing import Any, NamedTuple

from dlperf_hpc.model.result import Status
from dlperf_hpc.records.layout import PMI2_CURE, PMI2_FAULT, REQUEUE_BOUND, SETUP_MARK

# Causes: the words that stand in records (key ``cause``).
DEVICE_MEMORY = "device_memory"
HOST_MEMORY = "host_memory"
HARDWARE = "hardware"
STORAGE = "storage"
NETWORK = "network"
CRASH = "crash"
KILLED = "killed"
ENVIRONMENT = "environment"
INTERRUPTED = "interrupted"
LAUNCHER = "launcher"
"""A fault of the launcher's own, which a start in the same environment may well repeat."""

# What decided: the words that stand in records (key ``decided_by``), and the rows of `--why`.
ATTEMPTS = "attempts"
SCHEDULER = "scheduler"
ENDED_BY = "ended by"
EXIT_CODES = "exit codes"
SIGNS = "signs"
LOSS = "loss"
MUST = "must"
WINDOW = "window"
SETTINGS = "settings"
READING = "reading"
LOG = "log"

_BY_STATUS = {
    Status.OUT_OF_MEMORY: SIGNS,
    Status.PARTIAL: READING,
    Status.FAILED: EXIT_CODES,
    Status.HELD_BACK: ATTEMPTS,
    Status.OK: READING,
}
_LONGEST = 300  # characters that are kept of a line


@dataclass(frozen=True)
class Verdict:
    """How a run ended. ``decided_by`` is what was looked at that decided, ``cause`` why, as far as
    that is known, ``fault`` what its environment lacks (a word of
    :data:`dlperf_hpc.records.quarantine.KINDS`), and ``hosts`` where fault or hardware showed."""

    status: Status
    reason: str = ""
    decided_by: str = ""
    cause: str = ""
    fault: str = ""
    hosts: tuple[str, ...] = ()

    def codes(self) -> dict[str, Any]:
        """What a record has of it, besides status and reason."""
        found: dict[str, Any] = {"decided_by": self.decided_by or decider(self.status)}
        if self.cause:
            found["cause"] = self.cause
        if self.fault:
            found.update(fault=self.fault, fault_hosts=list(self.hosts))
        elif self.cause == HARDWARE:
            found["cause_hosts"] = list(self.hosts)
        return found


def decider(status: Status) -> str:
    """What decides of most runs that end with a status."""
    return _BY_STATUS.get(status, ENDED_BY)


class Where(Flag):
    """Where a pattern is looked for."""

    PROGRAM = auto()
    """What a program prints, and the message of an exception."""
    LOG = auto()
    """Logs of other programs: nobody else has written down how such a job ended."""
    OUTPUT = auto()
    """A task's output: what ended the run from outside, or killed a rank."""
    ENDING = auto()
    """A task's output: what a launcher also prints when it ends the others after one has failed."""
    EXIT = auto()
    """A task's output: an exit code, of which the last words of a rank may say more."""
    BEHIND = auto()
    """A task's output: what is behind an exit code."""
    PEER = auto()
    """What a rank says when another one has gone: true, but not why the run ended."""
    LOADER = auto()
    """An OSError of a library that a framework loads by itself."""
    SLURM = auto()
    """A task's output: a fault of Slurm's own, whatever ranks and launcher say in consequence."""


class FailurePattern(NamedTuple):
    """One row: ``literals`` are texts of which each line has one that the pattern fits. ``say`` is
    the reason of which the pattern's groups are part; '' for the line as it is."""

    pattern: str
    status: Status
    cause: str
    fault: str
    where: Where
    say: str
    literals: tuple[str, ...]


def _rows(
    where: Where,
    status: Status,
    cause: str,
    *patterns: str | tuple[str, ...],
    fault: str = "",
    say: str = "",
) -> list[FailurePattern]:
    """Rows that differ in their patterns alone; behind a pattern stand its literals, where it is
    not the text itself."""
    rows = []
    for each in patterns:
        pattern, *literals = (each, each) if isinstance(each, str) else each
        pattern = f"(?am){pattern}"  # compiled when a line is first held against it
        rows.append(FailurePattern(pattern, status, cause, fault, where, say, tuple(literals)))
    return rows


_FAILED, _NO_MEMORY = Status.FAILED, Status.OUT_OF_MEMORY
_PROGRAM, _LOG, _OUTPUT, _ENDING = Where.PROGRAM, Where.LOG, Where.OUTPUT, Where.ENDING
_EXIT, _BEHIND = Where.EXIT, Where.BEHIND
_LINE = _PROGRAM | _LOG | _OUTPUT
_SAID = _PROGRAM | _LOG | _BEHIND
_LABEL = r"^(?:\d+: )?(?:\[\w+\]: ?)?"  # srun's of a rank, torchrun's
_TASKS = r"srun: error: (\S+): tasks? ([\d,-]+): "
_CANNOT_START = (
    r"(?:slurmstepd\S*: error: (?=execve)|(?=execvp))(exec(?:ve\(\): |vp error on file )"
)
_NO_PROGRAM = r"(?:No such file|Permission denied|Exec format)"
_GPU_SAYS = r"(?:(?i:CUDA|HIP|cuDNN|GPU).{0,80}|(?:Error|Exception): .{0,400})"

FAILURES: tuple[FailurePattern, ...] = (
    *_rows(
        Where.SLURM, _FAILED, LAUNCHER, PMI2_FAULT,
        say="Slurm's mpi/pmi2 cut a line of MPI's start (value not properly terminated): it reads"
        f" 1024 bytes, and MPICH wrote the address of a rank with more; {PMI2_CURE}",
    ),
    *_rows(_OUTPUT, _FAILED, "", r"AttemptError: (another attempt .*)$", say="{0}"),
    # What ended a job from outside.
    *_rows(_LOG | _OUTPUT, Status.TIMEOUT, "", "DUE TO TIME LIMIT"),
    *_rows(
        _OUTPUT, Status.TIMEOUT, "", rf"{_TASKS}User defined signal 2",
        say="rank {1} on {0}, still starting, ended by Slurm's notice before the time limit"
        " (SIGUSR2)",
    ),
    *_rows(_LOG | _OUTPUT, Status.PREEMPTED, "", "DUE TO PREEMPTION"),
    *_rows(_OUTPUT, Status.NODE_FAILED, "", "Node failure on"),
    *_rows(_LOG | _OUTPUT, Status.NODE_FAILED, "", "DUE TO NODE FAIL"),
    # A kill for memory: slurmstepd's and the kernel's words.
    *_rows(
        _LINE, _NO_MEMORY, HOST_MEMORY,
        (r"oom[-_]kill", "oom-kill", "oom_kill"),
        (r"[Oo]ut of memory: Kill(?:ed)? process", "ut of memory"),
    ),
    *_rows(
        _LOG | _OUTPUT, _NO_MEMORY, HOST_MEMORY,
        "Out Of Memory", (r"[Ee]xceeded (?:\w+ )?memory limit", "memory limit"),
    ),
    # Cancelled first, then ended; after a rank's end srun cancels the others with the same words.
    *_rows(
        _OUTPUT, Status.CANCELLED, "",
        r"\A(?:(?!srun: error: \S+: tasks? |.*EXIT CODE: ).*\n)*?(.*CANCELLED (?:AT|by).*)$",
        say="{0}",
    ),
    *_rows(
        _LOG, Status.CANCELLED, "",
        (r"slurmstepd: error: \*\*\* .* CANCELLED", "slurmstepd: error: *** "),
    ),
    # The last line of a traceback that no fault began: Ctrl-C, a hang-up, or a process was ended.
    *_rows(
        _LOG, Status.CANCELLED, INTERRUPTED,
        (rf"{_LABEL}KeyboardInterrupt\b", "KeyboardInterrupt"),
        (r"SignalException: Process \d+ got signal: (?:1|2|15)\b", "SignalException: "),
        "is killed by signal: Terminated",
    ),
    # A device that broke: its node is named, and `rerun` may leave it out.
    *_rows(
        _LINE, _FAILED, HARDWARE,
        (r"\bXid(?: \(PCI:[0-9A-Fa-f:.]+\))?(?: error)?[:=]? ?\d{1,3}\b", "Xid"),
        (r"[Uu]ncorrectable ECC error\b(?! count)", "ncorrectable ECC error"),
        "GPU has fallen off the bus",
        "HW Exception by GPU",
        (r"\bGPU Hang\b", "GPU Hang"),
    ),
    # Memory of a device. TensorFlow's allocator also tells of what "is not a failure"; gRPC says
    # RESOURCE_EXHAUSTED of a message that is too long.
    *_rows(
        _LINE, _NO_MEMORY, DEVICE_MEMORY,
        (rf"{_GPU_SAYS}[Oo]ut of memory(?!.*not a failure)", "ut of memory"),
        (
            r"RESOURCE_EXHAUSTED: .{0,80}(?:[Oo]ut of memory|[Ff]ailed to allocate)",
            *("ut of memory", "ailed to allocate"),
        ),
        "ResourceExhaustedError",
        "OOM when allocating",
        "STATUS_ALLOC_FAILED",  # of cuDNN, cuBLAS and hipBLAS: their workspace no longer fits
        "DEVICE_ALLOCATION_FAILED",  # of cuDNN 9: CUDNN_STATUS_INTERNAL_ERROR_...
        "OutOfMemoryError",
    ),
    *_rows(_PROGRAM | _OUTPUT, _NO_MEMORY, DEVICE_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"),
    # Memory of a node, as a program says it.
    *_rows(
        _LINE, _NO_MEMORY, HOST_MEMORY,
        "bad_alloc", "MemoryError", "DefaultCPUAllocator: ", "HOST_ALLOCATION_FAILED",
    ),
    *_rows(_PROGRAM | _LOG, _NO_MEMORY, HOST_MEMORY, "Cannot allocate memory"),
    # How a rank died. /dev/shm is full where it is a bus error.
    *_rows(
        _LOG | _OUTPUT, _FAILED, KILLED, (rf"{_TASKS}(Killed)", "srun: error: "),
        say="rank {1} on {0} died: {2}",
    ),
    *_rows(_OUTPUT, _FAILED, STORAGE, rf"{_TASKS}(Bus error)", say="rank {1} on {0} died: {2}"),
    *_rows(
        _OUTPUT, _FAILED, CRASH, rf"{_TASKS}(Segmentation fault|Aborted)",
        say="rank {1} on {0} died: {2}",
    ),
    *_rows(
        _OUTPUT, _FAILED, KILLED, r"EXIT STRING: (Killed \(signal \d+\))",
        say="mpiexec: a rank died: {0}",
    ),
    *_rows(
        _OUTPUT, _FAILED, CRASH, r"EXIT STRING: ((?:Segmentation fault|Aborted).* \(signal \d+\))",
        say="mpiexec: a rank died: {0}",
    ),
    *_rows(
        _OUTPUT, _FAILED, "", r"EXIT STRING: (.+ \(signal \d+\))",
        say="mpiexec: a rank died: {0}",
    ),
    *_rows(_PROGRAM | _LOG | _ENDING, _FAILED, STORAGE, "No space left on device"),
    *_rows(_SAID, _FAILED, STORAGE, (r"\b[Bb]us error\b", "us error")),
    # What an environment lacks.
    *_rows(
        _EXIT, _FAILED, "", rf"^{SETUP_MARK} (\d+): (.*{re.escape(REQUEUE_BOUND)}.*)$",
        say="setup failed with exit code {0}: {1}",
    ),
    *_rows(
        _EXIT, _FAILED, ENVIRONMENT, rf"^{SETUP_MARK} (\d+): (.*)$",
        fault="setup", say="setup failed with exit code {0}: {1}",
    ),
    *_rows(
        _ENDING, _FAILED, ENVIRONMENT, rf"{_CANNOT_START}.*{_NO_PROGRAM}.*)$",
        fault="interpreter", say="a rank cannot start: {0}",
    ),
    *_rows(_ENDING, _FAILED, "", rf"{_CANNOT_START}.*)$", say="a rank cannot start: {0}"),
    *_rows(
        _ENDING, _FAILED, ENVIRONMENT, r"^srun: error: .*\bmpi/([\w.+-]+)", fault="mpi_plugin",
        say="srun has no MPI plug-in {0}: choose one of `srun --mpi=list` as mpi in the site"
        " profile",
    ),
    # Anywhere in an output: srun cuts a traceback into pieces, of which any may come last.
    *_rows(
        _BEHIND, _FAILED, ENVIRONMENT, r"environment's Python must be 3\.9 or newer",
        fault="python",
    ),
    *_rows(_BEHIND, _FAILED, ENVIRONMENT, r"No module named '?dlperf_hpc\b", fault="package"),
    *_rows(_BEHIND, _FAILED, ENVIRONMENT, r"No module named '?mpi4py\b", fault="mpi"),
    *_rows(
        Where.LOADER, _FAILED, ENVIRONMENT, "cannot open shared object file", "undefined symbol",
        fault="library",
    ),
    *_rows(_SAID, _FAILED, CRASH, "Segmentation fault"),
    # As Python prints what nobody caught: programs also tell of modules that they do without.
    *_rows(
        _SAID, _FAILED, ENVIRONMENT,
        (rf"{_LABEL}(?:ModuleNotFoundError|ImportError)\b", "ModuleNotFoundError", "ImportError"),
    ),
    *_rows(
        _PROGRAM, _FAILED, "", "not enough slots available",
        say="Open MPI's mpirun counts one slot on a node here: give it"
        " --map-by ppr:{{ranks_per_node}}:node:OVERSUBSCRIBE",
    ),
    *_rows(
        _PROGRAM | _BEHIND, _FAILED, ENVIRONMENT,
        (rf"{_LABEL}\S*python[\d.]*: No module named ", "No module named"),
    ),
    *_rows(_SAID, _FAILED, NETWORK, "unhandled system error", "collective operation timeout"),
    *_rows(
        Where.PEER, _FAILED, NETWORK, "Connection closed", "Connection reset", "Broken pipe",
        "remote worker", "ncclRemoteError", "ncclSystemError",
    ),
    *_rows(_SAID, _FAILED, CRASH, "unhandled cuda error"),
    # SIGKILL of a data loader's worker, or of a shell's command: nothing above says by whom.
    *_rows(
        _SAID, _FAILED, KILLED, ("is killed by signal: Killed", "Killed"),
        (rf"{_LABEL}(?:.*: line \d+: +)?(?:\d+ +)?Killed\b", "Killed"),
    ),
    # A launcher's last words, and those of any Python.
    *_rows(
        _EXIT, _FAILED, "", rf"{_TASKS}Exited with exit code (\d+)",
        say="rank {1} on {0} left with exit code {2}",
    ),
    *_rows(
        _EXIT, _FAILED, "", r"EXIT CODE: (\d+)", say="mpiexec: a rank left with exit code {0}",
    ),
    *_rows(_ENDING, _FAILED, "", r"^(srun: (?:fatal|error): .*)$", say="{0}"),
    *_rows(
        _LOG, _FAILED, "", "srun: error: ", "mpirun noticed that process",
        (r"exited on signal \d", "exited on signal "),
        (r"Traceback \(most recent call last\)", "Traceback (most recent"),
    ),
)  # fmt: skip
_PLACE = {row: place for place, row in enumerate(FAILURES)}


@cache
def patterns(where: Where) -> tuple[FailurePattern, ...]:
    """The rows that are looked for in one of these places, the most decisive first."""
    return tuple(row for row in FAILURES if row.where & where)


def found_in(line: str, where: Where = Where.PROGRAM) -> FailurePattern | None:
    """The row that decides of a line, or of a text with several; None if none fits."""
    for row in patterns(where):
        if any(literal in line for literal in row.literals) and re.search(row.pattern, line):
            return row
    return None


def read_in(output: str, where: Where) -> Verdict | None:
    """What a task's output says of the run's end, by the row that decides."""
    for row in patterns(where):
        match = re.search(row.pattern, output)
        if match is None:
            continue
        said = row.say.format(*match.groups()) if row.say else _line_of(output, match)
        by_line = row.cause in _BY_LINES or row.where & Where.ENDING
        by = SIGNS if by_line else decider(row.status)
        return Verdict(row.status, said.strip(), by, row.cause, row.fault)
    return None


def _line_of(text: str, match: re.Match[str]) -> str:
    stop = text.find("\n", match.end())
    return text[text.rfind("\n", 0, match.start()) + 1 : len(text) if stop < 0 else stop]


_BY_LINES = (HARDWARE, DEVICE_MEMORY, HOST_MEMORY)


def of_error(error: BaseException) -> Verdict:
    """Status and cause of a run that an exception ended; it has no reason and no fault yet."""
    # All of the message: NCCL says why in its last line.
    row = found_in(f"{type(error).__name__}: {error}")
    if row is not None:
        return Verdict(row.status, "", SIGNS, row.cause)
    if isinstance(error, MemoryError):
        return Verdict(Status.OUT_OF_MEMORY, "", SIGNS, HOST_MEMORY)
    return Verdict(Status.FAILED, "", EXIT_CODES)


def with_fault(verdict: Verdict, fault: str) -> Verdict:
    """A verdict with what its environment lacks; '' for nothing."""
    return replace(verdict, cause=ENVIRONMENT, fault=fault) if fault else verdict


def is_of_lost_peer(text: str) -> bool:
    """Whether a rank says no more than that another one has gone."""
    return found_in(text, Where.PEER) is not None


class Signs:
    """What a program's lines say of its end. PatternError for a pattern that is none. ``failed`` is
    the first line that a pattern of ``fail`` fits, ``broken`` that with the most decisive row of
    :data:`FAILURES` (a program may get over it), and when they came; '' while there is none.
    ``count`` is how many such lines tell of more than an import, until the end is ``over`` (it is
    ours). ``met`` are the numbers of the patterns of ``must`` that some line fits."""

    def __init__(self, fail: Sequence[str] = (), must: Sequence[str] = ()) -> None:
        from dlperf_hpc.sweepfile.patterns import compiled

        self._fail = list(map(compiled, fail))
        self._must = {number: compiled(text) for number, text in enumerate(must)}
        self.failed = self.failed_at = self.broken = self.broken_at = ""
        self.met: set[int] = set()
        self.count, self.over = 0, False
        self._row: FailurePattern | None = None

    def take(self, line: str, moment: str) -> None:
        """Look at a line, which came at a ``moment``."""
        if not self.failed and any(pattern.fits(line) for pattern in self._fail):
            self.failed, self.failed_at = _short(line), moment
        row = found_in(line)
        if row is not None:
            self._note(row, line, moment)
        for number in [n for n, pattern in self._must.items() if pattern.fits(line)]:
            self.met.add(number)
            del self._must[number]

    def _note(self, row: FailurePattern, line: str, moment: str) -> None:
        self.count += row.cause not in ("", ENVIRONMENT) and not self.over
        if self._row is None or _PLACE[row] < _PLACE[self._row]:
            self._row, self.broken, self.broken_at = row, _short(line), moment


def _short(line: str) -> str:
    return " ".join(line.split())[:_LONGEST] or "(an empty line)"


# --- records


def recorded(record: Mapping[str, Any]) -> Verdict:
    """How a run ended, by its record; '' for a code that is not there, as in earlier versions'."""
    named = {name: record.get(name) for name in ("decided_by", "cause", "fault")}
    codes = {name: word for name, word in named.items() if isinstance(word, str)}
    lists = map(record.get, ("fault_hosts", "cause_hosts"))
    named_hosts = itertools.chain(*(each for each in lists if isinstance(each, list)))
    hosts = tuple(host for host in named_hosts if isinstance(host, str))
    status = Status(record["status"])
    return Verdict(status, str(record.get("reason", "")), **codes, hosts=hosts)


# By the sentences that earlier versions wrote as the reason: what decided.
_EARLIER = (
    ("a line of read.fail", SIGNS),
    ("is taken", SIGNS),
    ("no progress", ENDED_BY),
    ("made no progress", ENDED_BY),
    ("no iteration within", ENDED_BY),
    ("over its", ENDED_BY),
    ("ended from outside", ENDED_BY),
    ("the scheduler's notice", ENDED_BY),
    ("the program ended with exit code 0 after iteration", WINDOW),
    ("the first iteration that the program told", WINDOW),
    ("the program ended with", EXIT_CODES),
    ("the loss is not finite", LOSS),
    ("no line is as read.must", MUST),
    ("the window is not whole", SIGNS),
    ("no complete summary", WINDOW),
)
# What its environment lacked.
_EARLIER_FAULTS = (
    (r"srun has no MPI plug-in", "mpi_plugin"),
    (rf"a rank cannot start: exec.*{_NO_PROGRAM}", "interpreter"),
    (rf"setup failed with exit code \d+: (?!.*{re.escape(REQUEUE_BOUND)})", "setup"),
    (r"environment's Python must be 3\.9 or newer", "python"),
    (r"No module named '?dlperf_hpc\b", "package"),
    (r"No module named '?mpi4py\b", "mpi"),
    (r"No module named |cannot be imported by ", "framework"),
    (r"mpi4py cannot start MPI", "mpi"),
    (r"each believes it is alone", "mpi_alone"),
)


def with_codes(verdict: Verdict) -> Verdict:
    """A verdict with its codes. One that an earlier version wrote down has none: they are read in
    its sentence, here and nowhere else. Status and reason stay what they are."""
    if verdict.decided_by:
        return verdict
    reason, status = verdict.reason, verdict.status
    by = next((what for words, what in _EARLIER if words in reason), decider(status))
    row = found_in(reason, Where.PROGRAM | Where.OUTPUT)
    cause = row.cause if row is not None and row.status is status else ""
    fault = verdict.fault
    if status is Status.FAILED and not fault:
        faults = (kind for pattern, kind in _EARLIER_FAULTS if re.search(pattern, reason))
        fault = next(faults, "")
    return with_fault(replace(verdict, decided_by=by, cause=cause), fault)
