"""Attempts of a run on disk: begun, failed, finished; nothing is ever overwritten.

Every process of one launch (one start of srun or mpiexec) carries the same launch id, so ranks
that fail together, even ranks that each believe they are alone, agree on which attempt they are.

Rank 0 holds a file beside its log while it lives, by a lock of the kernel's (flock), which costs
nothing inside the timed window; and the log itself, for who may only read. A file server may keep
the lock of a node that died, so it counts for no longer than the attempt may take. Where there are
no locks nobody is kept from measuring.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dlperf_hpc import files
from dlperf_hpc.errors import AttemptError, LedgerError, LogError, raising, redacted
from dlperf_hpc.model.case import ObservedRun, Run, known_fields
from dlperf_hpc.model.checks import misfits, parse
from dlperf_hpc.model.result import RunResult, Status
from dlperf_hpc.records.failures import Verdict
from dlperf_hpc.records.layout import RECORD_SCHEMA, RunPaths, life_of
from dlperf_hpc.records.lines import read_line, utc, write_line
from dlperf_hpc.records.logfile import FORMAT, read_end, result_of_log
from dlperf_hpc.records.record import read_record, with_record

_ATTEMPT = re.compile(r"\.attempt(\d+)\.")
_LONGEST_REASON = 1000
_LONGEST_LINE = 1 << 16  # of a log's first; it has 300 bytes
_BUSY = "another attempt at this run lives: {0}; this one ends and leaves that one's files alone"


@dataclass(frozen=True)
class AnyAttempt:
    """One try at a run, of a sweep or of a timed loop; its processes alone have its ``launch``."""

    sweep: str
    run: Run | ObservedRun
    paths: RunPaths
    number: int
    launch: str


@dataclass(frozen=True)
class Attempt(AnyAttempt):
    """One try at a run of a sweep."""

    run: Run


@dataclass(frozen=True)
class Failure:
    """What one rank left when it failed. ``consequence``: of another's end (a signal, a lost
    connection), so it cannot say why the run ended. ``place``: where a rank stood that made no
    progress, as ``file.py:12 function``. Of a user's program ``code`` is its exit code, of a signal
    minus its number, and ``why`` a word for what ended it. ``fault``, ``decided_by`` and ``cause``
    are those of :class:`dlperf_hpc.records.failures.Verdict`."""

    rank: int
    host: str
    status: Status
    reason: str
    time: str
    traceback: str = ""
    consequence: bool = False
    place: str = ""
    fault: str = ""
    code: int | None = None
    why: str = ""
    decided_by: str = ""
    cause: str = ""

    @property
    def verdict(self) -> Verdict:
        """How the run ended by this account."""
        return Verdict(
            *(self.status, self.reason, self.decided_by, self.cause, self.fault), (self.host,)
        )


def _maker(path: Path) -> tuple[str, int] | None:
    """Launch and attempt that made a log, record or failure file; None if there is no such file.
    What cannot be read as ours is of no launch, and attempt 0. OSError if nothing can be read."""
    try:
        if path.suffix == ".log":
            with files.open_regular(path) as file:
                first = file.readline(_LONGEST_LINE).decode("utf-8", errors="replace")
            line = read_line(first.rstrip("\n"))
            values = line.values if line and line.event == "begin" else {}
        else:
            values = parse(files.read_regular(path))
        return str(values["launch"]), int(values["attempt"])
    except FileNotFoundError:
        return None
    except (KeyError, OverflowError, TypeError, ValueError):
        return "", 0


def launch_of(paths: RunPaths) -> str | None:
    """The launch that made a run's record, or else its log; None if neither says. LogError for a
    file that cannot be read."""
    for path in (paths.record, paths.log):
        with raising(LogError, f"{path}: cannot be read"):
            made = _maker(path)
        if made is not None and made[0]:
            return made[0]
    return None


def _move_aside(path: Path, paths: RunPaths, launch: str) -> None:
    """Move what another launch left to ``attempts/``, over nothing; many ranks do so at once."""
    made = _maker(path)
    if made is None or made[0] == launch:
        return
    files.make_directories(paths.attempts)
    number = made[1]
    target = paths.earlier(path, number)
    held = target.with_name(f"{target.stem}.{os.urandom(16).hex()}{path.suffix}")
    try:
        os.rename(path, held)
    except FileNotFoundError:
        return  # another rank was quicker
    if _maker(held) != made:  # ... and has begun anew since
        files.move_once(held, path)
        return
    while not files.move_once(held, target):
        number += 1
        target = paths.earlier(path, number)


def _number(paths: RunPaths, launch: str) -> int:
    """The attempt's number: the one that another process of this launch took, or the next."""
    # Before the log is looked at: what a rank that begins it meanwhile leaves is this attempt's.
    found = list(paths.attempts.glob(f"{paths.log.stem}.attempt*"))
    for path in (paths.record, paths.log):
        made = _maker(path)
        if made is not None and made[0] == launch:
            return made[1]
    last = max((int(m[1]) for path in found if (m := _ATTEMPT.search(path.name))), default=0)
    mine = any(_maker(path) == (launch, last) for path in paths.failures(last)[:1])
    return last if mine else last + 1


def ended_ok(paths: RunPaths) -> bool:
    """Whether a run ended ok, and has a log to prove it."""
    try:
        result = with_record(result_of_log(paths.log), read_record(paths.record, detail=False))
    except LogError:
        return False
    return result.run.id == paths.run_id and result.status is Status.OK


def open_attempt(sweep: str, run: Run, root: Path, launch: str) -> Attempt | None:
    """Make room for an attempt of ``run``; None if the run already ended ok, and its log proves it.
    What an earlier launch left moves to ``attempts/``; what this launch left stays. LedgerError
    where the directory cannot be written, AttemptError where another task measures the run now."""
    paths = RunPaths(root, run.id)
    if ended_ok(paths):
        return None
    if who := other_attempt(paths.log, launch):
        raise AttemptError(_BUSY.format(who))
    try:
        files.make_directories(paths.log.parent)
        if not os.access(paths.log.parent, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        for path in (paths.log, paths.record):
            _move_aside(path, paths, launch)
        number = _number(paths, launch)
    except OSError as error:
        raise LedgerError(
            f"{paths.log.parent}: cannot be written: {error.strerror}; a sweep's directory must be"
            " on a file system that the compute nodes can write: sweep with another --logs"
        ) from error
    return Attempt(sweep, run, paths, number, launch)


def take_log(attempt: Attempt, limit_s: float) -> str:
    """Begin the log and hold it, for rank 0 of an attempt that may take ``limit_s``; '' if done,
    else why not, in words: another attempt has begun one since this one was opened."""
    begin_log(attempt, limit_s)
    made = _maker(attempt.paths.log)
    if made is not None and made[0] != attempt.launch:
        return _BUSY.format(f"launch {made[0]} has begun {attempt.paths.log}")
    hold(attempt.paths.log)
    return ""


def begin_log(attempt: AnyAttempt, limit_s: float | None = None) -> bool:
    """Write the log's first lines, once: the run and its case. False if there is a log already."""
    run = attempt.run
    begin = {
        "format": FORMAT,
        "sweep": attempt.sweep,
        "run": run.id,
        "repeat": run.repeat,
        "attempt": attempt.number,
        "launch": attempt.launch,
        "limit_s": limit_s,
    }
    lines = [write_line("begin", begin), write_line("case", run.case.to_dict()), ""]
    return files.write_once(attempt.paths.log, "\n".join(lines))


def log_event(
    attempt: AnyAttempt, event: str, values: Mapping[str, Any], nulls: bool = False
) -> None:
    """Append one line to the run's log, as :func:`dlperf_hpc.records.lines.write_line` makes it."""
    files.append_line(attempt.paths.log, redacted(write_line(event, values, nulls=nulls)))


def leave_failure(attempt: Attempt, failure: Failure) -> None:
    """One rank's own account of its end, whoever writes the record; its first one stays."""
    files.make_directories(attempt.paths.attempts)
    row = {"launch": attempt.launch, "attempt": attempt.number, **vars(failure)}
    text = files.dump_json({**row, "status": failure.status.value})
    files.write_once(attempt.paths.failure(attempt.number, failure.rank), redacted(text))


def read_failures(attempt: Attempt) -> list[Failure]:
    """All accounts of an attempt that can be read, causes before consequences, then by time."""
    return failures_of(attempt.paths, attempt.number, attempt.launch)


def failures_of(paths: RunPaths, attempt: int, launch: str = "") -> list[Failure]:
    """As :func:`read_failures`, of whatever launch the attempt was, or of one that is named."""
    found = (_failure(path, launch) for path in paths.failures(attempt))
    return sorted(filter(None, found), key=lambda failure: (failure.consequence, failure.time))


def _failure(path: Path, launch: str) -> Failure | None:
    """What one rank left; None if another launch did, or if it is damaged: the rank was dying."""
    try:
        row = parse(files.read_regular(path))
        if launch and row.get("launch", launch) != launch:
            return None
        failure = Failure(**{**known_fields(Failure, row), "status": Status(row["status"])})
    except (OSError, AttributeError, KeyError, TypeError, ValueError):
        return None
    return None if misfits(failure) else failure


def failure_hosts(paths: RunPaths, attempt: int) -> list[str]:
    """Hosts of the ranks that failed by themselves in an attempt, each once."""
    own = (failure for failure in failures_of(paths, attempt) if not failure.consequence)
    return list(dict.fromkeys(failure.host for failure in own))


def finish(
    attempt: AnyAttempt,
    status: Status,
    reason: str = "",
    trace: str = "",
    detail: Mapping[str, Any] | None = None,
) -> bool:
    """End an attempt: the record, once, then the log's ``end`` line; True for the one that did.
    ``detail`` is what the record holds beyond the log (per-step, per-rank columns)."""
    begin_log(attempt)
    reason = redacted(reason)[:_LONGEST_REASON]
    if not _write_record(attempt, status, reason, detail or {}):
        return False
    _add_end(attempt.paths, status.value, reason, redacted(trace))
    return True


def _write_record(
    attempt: AnyAttempt, status: Status, reason: str, detail: Mapping[str, Any]
) -> bool:
    record = {
        "schema": RECORD_SCHEMA,
        "sweep": attempt.sweep,
        "run": attempt.run.id,
        "repeat": attempt.run.repeat,
        "attempt": attempt.number,
        "launch": attempt.launch,
        "status": status.value,
        "reason": reason,
        "ended": utc(),
        "case": attempt.run.case.to_dict(),
        **detail,
    }
    return files.write_once(attempt.paths.record, files.dump_json(record))


def leave_undone(sweep: str, run: Run, root: Path, launch: str, reason: str) -> bool:
    """Write down that a launch held a run back: a record without a log, since nothing was tried,
    and so of attempt 0. False if the run ended ok before, or if this launch has already begun it.
    Raises as :func:`open_attempt`, which moves what an earlier launch left."""
    attempt = open_attempt(sweep, run, root, launch)
    if attempt is None or attempt.paths.log.exists():
        return False
    undone = replace(attempt, number=0)
    verdict = Verdict(Status.HELD_BACK, redacted(reason)[:_LONGEST_REASON])
    return _write_record(undone, verdict.status, verdict.reason, verdict.codes())


def complete_log(paths: RunPaths) -> None:
    """Add the ``end`` line that the writer of the record was killed before it could write, once the
    launch's last process has gone. A log of somebody else's job stays as it is."""
    record = read_record(paths.record)
    if record is not None and _maker(paths.log) == _maker(paths.record):
        with contextlib.suppress(PermissionError):
            _add_end(paths, record["status"], str(record.get("reason", "")))


def _add_end(paths: RunPaths, status: str, reason: str, trace: str = "") -> None:
    if read_end(paths.log) is None:
        end = write_line("end", {"status": status, "reason": reason or None})
        files.append_line(paths.log, "".join(f"| {line}\n" for line in trace.splitlines()) + end)
    life_of(paths.log).unlink(missing_ok=True)


def describe(error: BaseException) -> str:
    """An exception in one line, as a reason: its type and the first line of its message."""
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def format_trace(error: BaseException) -> str:
    """The full traceback as text."""
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


# --- does somebody measure a run now?


_MARGIN_S = 600.0  # beyond the attempt's own limit: Slurm's grace, clocks that differ
_TRIES = 20  # somebody may look at the very moment at which the log is to be held
_BETWEEN_S = 0.1
_held: list[int] = []


def hold(log: Path) -> None:
    """Show that the attempt whose log this is lives, until this process ends."""
    with contextlib.suppress(OSError):
        descriptor = os.open(log, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        _held.append(descriptor)
        files.lock(descriptor)
        for _ in range(_TRIES):
            held = files.open_locked(life_of(log), files.group_of(os.stat(log.parent)))
            if held is not None:
                _held.append(held)
                break
            time.sleep(_BETWEEN_S)


def _is_held(log: Path) -> bool:
    """Whether a process holds a log; OSError where there are no locks. The log's own lock, which
    everybody can have who reads it, counts only for attempts of earlier versions and of others."""
    for path in (life_of(log), log):
        with (
            contextlib.suppress(FileNotFoundError, PermissionError),
            files.open_regular(path) as file,
        ):
            return not files.lock(file.fileno(), fcntl.LOCK_SH)
    return False


def other_attempt(log: Path, launch: str) -> str:
    """Who measures the run, in words, if it is another task than that of ``launch``; else ''. Of
    one task two launches never live at once: the scheduler ends it before it starts it again."""
    try:
        with files.open_regular(log) as file:
            begin = read_line(file.read(4096).decode(errors="replace").partition("\n")[0])
            if begin is None or begin.event != "begin":
                return ""
            theirs, limit_s = str(begin.values["launch"]), float(begin.values["limit_s"])
            silent_s = time.time() - os.fstat(file.fileno()).st_mtime
            if _task(theirs) == _task(launch) or silent_s > limit_s + _MARGIN_S:
                return ""
            if read_end(log) is not None or not _is_held(log):
                return ""
    except (OSError, KeyError, TypeError, ValueError):
        return ""
    return f"launch {theirs} has measured it since {begin.time} and still holds {log}"


def with_life(result: RunResult, log: Path) -> RunResult:
    """A run whose log has no end runs, if somebody holds the log; else the log was cut."""
    if result.status is not Status.UNKNOWN or result.ended or not other_attempt(log, ""):
        return result
    return replace(result, status=Status.RUNNING, reason="its log has no end yet")


def _task(launch: str) -> str:
    """``4711_3`` of ``4711_3.0``."""
    return launch.partition(".")[0]


def _let_go() -> None:
    """In a forked child (a data loader's), which may outlive the rank."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go)
