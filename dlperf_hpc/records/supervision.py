"""A user's program: what its supervisors leave on disk, and how the epilogue ends the run.

There is no MPI between supervisors: the program may join PMI, and that can be joined once. So they
meet in a directory of the attempt. Rank 0's supervisor writes its program's lines into the run's
log as they come, the others into a file each; the epilogue, when all have gone, adds these to the
log and writes the end. A line of a program stands in the log as

    2026-11-22T12:00:00.123456Z 3| the line as the program printed it

with the moment of its arrival (UTC) and the rank of its supervisor; ``3+`` is a part of a line.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from dlperf_hpc.files import dump_json, open_append, open_regular, read_regular, write_once
from dlperf_hpc.model.case import Measure, known_fields
from dlperf_hpc.model.checks import misfits, parse
from dlperf_hpc.model.result import PROGRAM, Status, interruption
from dlperf_hpc.records.failures import LOSS, MUST, SIGNS, Verdict, found_in
from dlperf_hpc.records.failures import WINDOW as BY_WINDOW
from dlperf_hpc.records.lines import PROGRAM_END
from dlperf_hpc.records.store import Attempt, finish, log_event, read_failures
from dlperf_hpc.sweepfile.readtable import ReadTable

WINDOW, HANG, FAILED = "window", "hang", "failed"
ANEW = (
    "the numbers of its lines begin anew, with each epoch or because other lines (an evaluation)"
    " fit read.line too: give it a pattern that training's lines alone fit, with a group epoch"
)
"""Why a window is not whole of which the program may have printed each iteration."""
_ITERATION = "begun"  # the name of a file that earlier versions write too
_PACKAGES = "packages.json"
_PIECE = 1 << 20
_MOST_BYTES = 1 << 16  # of a file of these
_MOST_OF_PACKAGES = 1 << 20
_SILENT_S = 5.0
_Note = TypeVar("_Note", "Ending", "Stop", "Port")


@dataclass(frozen=True)
class Ending:
    """How one supervisor's child ended. ``code`` is its exit code, of a signal minus its number.

    ``by`` is ``itself`` or ``window`` (ended by us, behind the window). ``iteration`` is the last
    in its lines, ``first`` the first one, ``anew`` whether their numbers have begun again,
    ``format`` the log format that read it, or a total; ``bad_loss`` is the first iteration whose
    loss was not finite. ``stopped`` is when we ended it (UTC), ``left_out`` how many lines the log
    has no room for, ``timed`` that a Timer in the program printed its window, ``interrupted_s`` how
    long it stood still in the window. ``failed``, ``broken`` and ``met`` are those of
    :class:`dlperf_hpc.records.failures.Signs`, ``signs`` its count. ``opened`` and ``reached`` are
    when its lines told the window's begin and end, ``alive`` is its last sign of life, or its end
    if that was its own (s since 1970); ``stride`` is the most iterations that lay between two of
    its lines. ``timed_from`` and ``timed_until`` are when a Timer's window opened and ended (s
    since 1970)."""

    rank: int
    host: str
    code: int
    by: str = "itself"
    iteration: int | None = None
    format: str = ""
    bad_loss: int | None = None
    stopped: str = ""
    left_out: int = 0
    first: int | None = None
    anew: bool = False
    failed: str = ""
    failed_at: str = ""
    broken: str = ""
    broken_at: str = ""
    met: str = ""
    timed: bool = False
    interrupted_s: float | None = None
    signs: int = 0
    stride: int = 0
    opened: float | None = None
    reached: float | None = None
    alive: float | None = None
    timed_from: float | None = None
    timed_until: float | None = None

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"rank{self.rank}.end.json"


def lines_of(folder: Path, rank: int) -> Path:
    """Where the supervisor of a rank but 0 writes its program's lines."""
    return folder / f"rank{rank}.out"


def read_endings(folder: Path) -> list[Ending]:
    """All endings that can be read, by rank."""
    found = (_read(path, Ending) for path in folder.glob("rank*.end.json"))
    return sorted((each for each in found if each is not None), key=lambda each: each.rank)


def window_of(endings: Sequence[Ending]) -> tuple[float, float] | None:
    """When the window opened and ended (s since 1970): as a Timer tells, else as the lines of the
    first rank that prints iterations; None where nobody does."""
    for names in (("timed_from", "timed_until"), ("opened", "reached")):
        for each in endings:
            opened, ended = (getattr(each, name) for name in names)
            if opened is not None and ended is not None:
                return opened, ended
    return None


@dataclass(frozen=True)
class Stop:
    """A supervisor's request to all: end the program because of ``why``, from ``time`` (UTC) on."""

    file: ClassVar[str] = "stop.json"
    why: str
    rank: int
    time: str


@dataclass(frozen=True)
class Port:
    """A request to all to start their programs again, at the second try's port, named by the
    supervisor of ``rank``, of whose program, or on whose node, ``taken`` was: that of the first
    try."""

    file: ClassVar[str] = "port.json"
    port: int
    rank: int
    host: str
    taken: int


def leave(folder: Path, note: Ending | Stop | Port) -> None:
    """Leave a note in an attempt's directory for all supervisors and the epilogue; of each request,
    and of each rank's ending, the first one stays."""
    write_once(folder / note.file, dump_json(asdict(note)))


def read(folder: Path, kind: type[_Note]) -> _Note | None:
    """The first request of a kind (:class:`Stop` or :class:`Port`), None while there is none."""
    return _read(folder / str(kind.file), kind)


def note_iteration(folder: Path) -> None:
    """Note that some rank has seen an iteration."""
    write_once(folder / _ITERATION, "")


def has_iteration(folder: Path) -> bool:
    """Whether some rank has seen an iteration."""
    return (folder / _ITERATION).exists()


def _read(path: Path, kind: type[_Note]) -> _Note | None:
    """A value from JSON; None if there is none, or what is there is damaged."""
    try:
        row = parse(read_regular(path, _MOST_BYTES))
        value = kind(**known_fields(kind, row))
    except (OSError, AttributeError, TypeError, ValueError):
        return None
    return None if misfits(value) else value


def leave_packages(folder: Path, packages: Mapping[str, str]) -> None:
    """Keep for the record what is installed in the program's environment."""
    write_once(folder / _PACKAGES, dump_json(packages))


# --- after the last of them


def detail(attempt: Attempt) -> dict[str, Any]:
    """What a record has of a user's program, however it ended: the exit codes of all ranks (None
    where one is not known), and the packages of its environment."""
    folder = attempt.paths.supervised(attempt.number)
    codes: dict[int, int | None] = {each.rank: each.code for each in read_endings(folder)}
    codes.update({each.rank: each.code for each in read_failures(attempt) if each.code is not None})
    found: dict[str, Any] = {}
    if codes:
        ranks = range(attempt.run.case.ranks)
        found["program"] = {"codes": list(map(codes.get, ranks))}
    with contextlib.suppress(OSError, ValueError):
        packages = parse(read_regular(folder / _PACKAGES, _MOST_OF_PACKAGES))
        if isinstance(packages, dict):
            found["packages"] = packages
    return found


def gather_lines(attempt: Attempt) -> None:
    """Add the lines of ranks 1, 2, ... to the log, and remove the attempt's scratch directory.
    OSError if the log cannot be written; nothing is lost then."""
    _gather(attempt, attempt.number, attempt.paths.log)


def gather_earlier(attempt: Attempt) -> None:
    """Add the lines of earlier attempts whose epilogue was killed as well (scancel does so), and
    remove what their supervisors left; OSError as :func:`gather_lines`."""
    paths = attempt.paths
    for number in range(1, attempt.number):
        if paths.supervised(number).is_dir():
            log = paths.earlier(paths.log, number)
            if log.exists():
                _gather(attempt, number, log)
            shutil.rmtree(paths.supervised(number), ignore_errors=True)


def _gather(attempt: Attempt, number: int, log: Path) -> None:
    folder = attempt.paths.supervised(number)
    for rank in range(1, attempt.run.case.ranks):
        path = lines_of(folder, rank)
        with contextlib.suppress(FileNotFoundError), open_regular(path) as source:
            _append(log, source)
    shutil.rmtree(attempt.paths.scratch(number), ignore_errors=True)


def _append(log: Path, source: Any) -> None:
    with open_append(log) as target:
        rest = b""
        while piece := source.read(_PIECE):
            whole, newline, rest = (rest + piece).rpartition(b"\n")
            target.write(whole + newline)
        # A line that was torn by a kill stays what it is, on a line of its own.
        if rest:
            target.write(rest + b"\n")


def clear(attempt: Attempt) -> None:
    """Remove what the supervisors left, once the record is written. The directory above it stays:
    another run's supervisor may be about to make its own there."""
    shutil.rmtree(attempt.paths.supervised(attempt.number), ignore_errors=True)


def judged(endings: Sequence[Ending], measure: Measure, read: ReadTable) -> Verdict:
    """How a run ended all of whose processes ended without a failing exit code. What decides, in
    this order: a line of ``fail``; a loss that is not finite up to the window's end; a line of
    ``must`` that is missing; a window that is not whole, by a built-in sign if there is one; steps
    that failed; a rank that left before the window's end. ``read`` is the table of its program.
    What its lines state, and whether that is what was asked for, is looked at when they are read:
    :mod:`dlperf_hpc.logs.program_figures`."""
    last = measure.warmup + measure.iterations
    return (
        _by_failing_line(endings)
        or _by_loss(endings, last)
        or _by_missing_line(endings, read.must)
        or _by_window(endings, measure.warmup, last)
        or _by_failing_steps(endings)
        or _by_rank_that_left(endings, last)
        or _by_stop(endings)
        or Verdict(Status.OK)
    )


def _by_failing_line(endings: Sequence[Ending]) -> Verdict | None:
    failed = [e for e in endings if e.failed and _counts(e.failed_at, endings)]
    if not failed:
        return None
    first = min(failed, key=lambda each: each.failed_at)
    reason = f"a line of read.fail: rank {first.rank} on {first.host} printed {first.failed!r}"
    return Verdict(Status.FAILED, reason, SIGNS)


def _by_loss(endings: Sequence[Ending], last: int) -> Verdict | None:
    bad = [(e.bad_loss, e) for e in endings if e.bad_loss is not None and e.bad_loss <= last]
    if not bad:
        return None
    iteration, first = min(bad, key=lambda each: each[0])
    reason = (
        f"rank {first.rank} on {first.host}: the loss is not finite from iteration"
        f" {iteration} on: a run that does not train has no throughput"
    )
    return Verdict(Status.FAILED, reason, LOSS)


def _by_missing_line(endings: Sequence[Ending], must: Sequence[str]) -> Verdict | None:
    if any(each.by == WINDOW for each in endings):
        return None  # ended by us, it could not come to the end of which its lines speak
    met = {number for each in endings for number in each.met.split()}
    for number, text in enumerate(must):
        if str(number) not in met:
            return Verdict(Status.FAILED, f"no line is as read.must says: {text!r}", MUST)
    return None


def _by_window(endings: Sequence[Ending], warmup: int, last: int) -> Verdict | None:
    if _values(endings, "timed"):
        return None  # its Timer may have ended the loop before a line of the last iteration
    reached = max(_values(endings, "iteration"), default=None)
    lies = f"between {warmup} and {last}"
    if reached is not None and reached >= last:
        return _by_first_iteration(endings, last, lies)
    if reached is None and _values(endings, "format"):
        return None  # a total alone
    if broken := _by_what_broke(endings):
        return broken
    if reached is None:
        return None  # nothing is read: it ran, and has no figure
    reason = (
        f"the program ended with exit code 0 after iteration {reached}, and the window lies {lies}"
    )
    if _values(endings, "anew"):
        reason += f"; {ANEW}"
    return Verdict(Status.PARTIAL, reason, BY_WINDOW)


def _by_stop(endings: Sequence[Ending]) -> Verdict | None:
    if _values(endings, "timed") and not _values(endings, "iteration"):
        return None  # the Timer knows whether it was in the window
    still = max(_values(endings, "interrupted_s"), default=0.0)
    return Verdict(Status.PARTIAL, interruption(still), BY_WINDOW) if still else None


def _by_what_broke(endings: Sequence[Ending]) -> Verdict | None:
    for each in endings:
        row = found_in(each.broken)
        if row is not None and _counts(each.broken_at, endings):
            where = f"rank {each.rank} on {each.host}"
            reason = f"{where} printed {each.broken!r}, and the window is not whole"
            return Verdict(row.status, reason, SIGNS, row.cause, hosts=(each.host,))
    return None


def _by_failing_steps(endings: Sequence[Ending]) -> Verdict | None:
    """Where at least every second iteration has a line by which it failed."""
    reached = max(_values(endings, "iteration"), default=None)
    for each in endings:
        row = found_in(each.broken)
        often = reached is not None and 2 * each.signs >= reached
        if row is not None and often and _counts(each.broken_at, endings):
            reason = f"{_signs_of(each)}: its steps fail, and the program goes on"
            return Verdict(row.status, reason, SIGNS, row.cause, hosts=(each.host,))
    return None


def _signs_of(ending: Ending) -> str:
    where = f"rank {ending.rank} on {ending.host}"
    return f"{where} printed {ending.signs} lines that tell of a fault, as {ending.broken!r}"


def _by_rank_that_left(endings: Sequence[Ending], last: int) -> Verdict | None:
    """A program that ended by itself in the window, while others were ended by us behind it."""
    over = _least(endings, "reached")
    if over is None or all(each.by != WINDOW for each in endings):
        return None
    for each in endings:
        left_s = over - (each.alive or over)
        if each.by != WINDOW and left_s > 0 and (each.iteration or 0) < last:
            reason = (
                f"rank {each.rank} on {each.host} ended with exit code 0 {left_s:.3g} s before the"
                " window's end: samples of all ranks would be counted"
            )
            return Verdict(Status.PARTIAL, reason, BY_WINDOW)
    return None


def silent(endings: Sequence[Ending], measure: Measure) -> dict[int, str]:
    """The ranks whose last sign of life lies before the window's end, and what was seen of each.
    Without iterations a rank is silent that used no processor time for half of the window."""
    last, over = measure.warmup + measure.iterations, _least(endings, "reached")
    found: dict[int, str] = {}
    if over is None:
        return found
    long_s = max(_SILENT_S, 0.5 * (over - _least(endings, "opened")))
    for each in endings:
        done, still_s = each.iteration or 0, over - (each.alive or over)
        if 0 < each.stride < last - done and measure.warmup < done and not each.anew:
            found[each.rank] = f"iteration {done} is the last that it printed"
        elif done < last and still_s > long_s:
            found[each.rank] = f"no sign of life in the last {still_s:.3g} s of the window"
    return found


def _warn(attempt: Attempt, endings: Sequence[Ending], ranks: Mapping[int, str]) -> None:
    notes = []
    for each in endings:
        if each.signs and _counts(each.broken_at, endings):
            notes.append(f"{_signs_of(each)}: steps that failed are counted too")
        if each.rank in ranks:
            hung = f"rank {each.rank} on {each.host} may have hung: {ranks[each.rank]}"
            notes.append(f"{hung}; samples of all ranks are counted")
    for text in notes:
        log_event(attempt, "note", {"text": text})


def _by_first_iteration(endings: Sequence[Ending], last: int, lies: str) -> Verdict | None:
    first = _least(endings, "first")
    if first is None or first < last:
        return None
    reason = (
        f"the first iteration that the program told is {first}, behind the window, which lies"
        f" {lies}: a program that resumes from what it finds must write into {{scratch}}, which is"
        " new for each attempt"
    )
    return Verdict(Status.PARTIAL, reason, BY_WINDOW)


def _counts(moment: str, endings: Sequence[Ending]) -> bool:
    """Whether something came before the first program was ended by us, and so not of that."""
    return all(moment <= each.stopped for each in endings if each.stopped)


def _values(endings: Sequence[Ending], name: str) -> list[Any]:
    """What the endings have under a name, where they have something."""
    values = (getattr(each, name) for each in endings)
    return [value for value in values if not (value is None or value is False or value == "")]


def _least(endings: Sequence[Ending], name: str) -> Any:
    return min(_values(endings, name), default=None)


def end(attempt: Attempt, measure: Measure, read: ReadTable) -> None:
    """Write the end of a run; nothing unless all its supervisors have said that nothing failed."""
    endings = read_endings(attempt.paths.supervised(attempt.number))
    if [each.rank for each in endings] != list(range(attempt.run.case.ranks)):
        return
    verdict, ranks = judged(endings, measure, read), silent(endings, measure)
    program = _program_end(endings, ranks)
    if verdict.status is Status.OK:
        _warn(attempt, endings, ranks)
    log_event(attempt, PROGRAM_END, program)
    found = {**verdict.codes(), **detail(attempt), PROGRAM: program}
    finish(attempt, verdict.status, verdict.reason, detail=found)


def _program_end(endings: Sequence[Ending], ranks: Iterable[int]) -> dict[str, Any]:
    best = max(endings, key=lambda each: each.iteration or 0)
    by_us = any(each.by == WINDOW for each in endings)
    return {
        "ended": "by us after the window" if by_us else "by itself",
        "codes": [each.code for each in endings],
        "iteration": best.iteration,
        "first": _least(endings, "first"),
        "format": best.format or None,
        "timed": bool(_values(endings, "timed")) or None,
        "bad_loss": _least(endings, "bad_loss"),
        "stopped": _least(endings, "stopped"),
        "failed": next(iter(_values(endings, "failed")), None),
        "broken": next(iter(_values(endings, "broken")), None),
        "interrupted_s": max(_values(endings, "interrupted_s"), default=None),
        "left_out": sum(_values(endings, "left_out")) or None,
        "signs": sum(_values(endings, "signs")) or None,
        "silent": sorted(ranks) or None,
    }
