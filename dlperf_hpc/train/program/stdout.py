"""What a program prints: cut into lines and states of a bar, stamped as they arrive, written down,
and read on the way for how far the program is, and at its end for why it ended."""

from __future__ import annotations

import contextlib
import math
import re
import signal
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlperf_hpc.files import open_append
from dlperf_hpc.logs.format import Format, Line, ReadingBuilder
from dlperf_hpc.logs.tableformat import wanted_formats
from dlperf_hpc.model.result import Status
from dlperf_hpc.records import failures
from dlperf_hpc.records.lines import read_timed, utc
from dlperf_hpc.sweepfile.readtable import ReadTable

_PORT_TAKEN = ("Address already in use", "EADDRINUSE", "address already in use")
LONGEST_LINE = 1 << 16
MOST_BYTES = 1 << 28  # of all ranks' lines; behind them only those that a format knows
_BY_CONTENT = ReadTable()
_KEPT = 200  # last lines, to say why it ended
_PREFIX = re.compile(r"(?:\x1b\[[0-9;]*[A-Za-z]|\[(?:rank|default)([0-9]{1,9})\]: ?)")
_ERROR = re.compile(r"[\w.]{0,200}(?:Error|Exception|Interrupt)\b", re.ASCII)
_NOT_WHY = "ChildFailedError"  # of torchrun
_LONGEST_WORDS = 300
_NUMBER = re.compile(r"[0-9]{1,18}")  # of an iteration


class _Watched(ReadingBuilder):
    """A builder that knows how far the iterations are, beyond its room too, and a bad loss.
    ``moves`` is how many lines had another number than the one before, ``anew`` whether the numbers
    have begun again."""

    def __init__(self, declared: Format) -> None:
        super().__init__(declared)
        self.iteration: int | None = None
        self.first: int | None = None
        self.stride = 0
        self.bad_loss: int | None = None
        self.moves, self.anew = 0, False
        self._latest = -1

    def later_epoch(self, line: Line, epoch: str) -> bool:
        later = super().later_epoch(line, epoch)
        self.moves += later
        self.anew = self.anew or later
        return later

    def step(self, line: Line, iteration: int | str, **values: Any) -> None:
        super().step(line, iteration, **values)
        if not _NUMBER.fullmatch(str(iteration)):
            return
        done = int(iteration)
        if self.first is None or self.iteration is None:
            self.first = self.iteration = done
        self.stride = max(done - self.iteration, self.stride)
        self.iteration = max(done, self.iteration)
        self.moves += done != self._latest
        self.anew = self.anew or 2 * done <= self.iteration
        self._latest = done
        if self.bad_loss is None and _is_not_finite(values.get("loss")):
            self.bad_loss = done


def _is_not_finite(loss: Any) -> bool:
    try:
        return loss is not None and not math.isfinite(float(loss))
    except (OverflowError, ValueError):
        return False


class Progress:
    """How far a program is, by its lines; of several formats the one that is furthest. ``timed``: a
    Timer in it has reported its window, which was open between two moments, ``timer_window`` (s
    since 1970). PatternError for a table with a pattern that is none."""

    def __init__(self, table: ReadTable = _BY_CONTENT, name: str = "") -> None:
        self._formats = wanted_formats(table, name)
        self._drafts: dict[str, _Watched] = {}
        self._number = 0
        self.timed = False
        self.timer_window: tuple[float, float] | None = None

    @property
    def best(self) -> _Watched | None:
        """What is known by the format that has got furthest; None without an iteration."""
        found = [builder for builder in self._drafts.values() if builder.iteration is not None]
        return max(found, key=lambda builder: builder.iteration or 0, default=None)

    @property
    def iteration(self) -> int | None:
        """The last iteration that was reported."""
        return getattr(self.best, "iteration", None)

    @property
    def moves(self) -> int:
        """How often the number of the iteration has changed, to a lower one too."""
        return getattr(self.best, "moves", 0)

    @property
    def format(self) -> str:
        """The format that found an iteration, else one that found a total; '' if none did."""
        if self.best:
            return self.best.format.name
        return next((name for name, builder in self._drafts.items() if builder.totals), "")

    def take(self, text: str) -> bool:
        """Read a line; whether some format knows it, or it is a Timer's."""
        self._number += 1
        timed = read_timed(text)
        if timed is not None:
            self.timed = self.timed or timed.status is Status.OK
            if timed.window is not None and timed.opened is not None:
                self.timer_window = timed.opened, timed.opened + timed.window.elapsed_s
            return True
        rank = next((int(found[1]) for found in _PREFIX.finditer(text) if found[1]), None)
        known, line = False, Line(self._number, _PREFIX.sub("", text), rank)
        for each in self._formats:
            literals = (*each.literals, *each.facts_literals)
            if any(literal in text for literal in literals):
                builder = self._drafts.setdefault(each.name, _Watched(each))
                each.read(line, builder)
                known = True
        return known


class ProgramOutput:
    """Writes a program's lines, stamped, to a file. ``left_out`` counts those without room."""

    def __init__(
        self,
        path: Path,
        rank: int,
        progress: Progress,
        ranks: int = 1,
        signs: failures.Signs | None = None,
    ) -> None:
        self._file = open_append(path)
        self._most = MOST_BYTES // ranks
        self.rank = rank
        self.progress = progress
        self.signs = signs or failures.Signs()
        self._rest = b""
        self._came = ""  # when the rest's last byte did
        self._returned = False  # the last byte that was read is a carriage return
        self._written = 0
        self.left_out = 0
        self.count = 0
        self.last: deque[str] = deque(maxlen=_KEPT)

    def take(self, data: bytes) -> None:
        """Add what was just read from the program. OSError if the file takes no more. A carriage
        return ends a line too: a progress bar draws each state behind one. A state has the moment
        at which it came, not that of the carriage return behind it, which begins the next state."""
        now = utc()
        if self._returned and data.startswith(b"\n"):
            data = data[1:]  # the second byte of an end of line
        self._returned = data.endswith(b"\r")
        made: list[bytes] = []
        for piece in data.splitlines(keepends=True):
            text = piece.rstrip(b"\r\n")
            if text:
                self._rest, self._came = self._rest + text, now
            if len(text) < len(piece):
                made += self._end_line(piece.endswith(b"\r"), now)
        if len(self._rest) > LONGEST_LINE:
            made.append(self._row(self._rest, now, "+"))
            self._rest = b""
        self._write(made)

    def end(self) -> None:
        """Add what came without a line's end: it may be part of a line."""
        if self._rest:
            self._write([self._row(self._rest, self._came, "+")])
            self.last.append(self._rest.decode(errors="replace"))
            self._rest = b""

    def forget(self, signs: failures.Signs) -> None:
        """Forget the last lines and what they were signs of: another child is started."""
        self.last.clear()
        self.signs = signs

    def words(self) -> str:
        """Why it ended, as it may have said itself: its first error, else its last line."""
        said = (each.replace("\0", " ") for each in self.last)
        lines = [" ".join(_PREFIX.sub("", each).split()) for each in said if each.strip()]
        errors = [each for each in lines if _ERROR.match(each) and _NOT_WHY not in each]
        return (errors[:1] or lines[-1:] or [""])[0][:_LONGEST_WORDS]

    def text(self) -> str:
        """The program's last lines."""
        return "\n".join(self.last)

    def _end_line(self, returned: bool, now: str) -> Sequence[bytes]:
        """The rows of the line that has just ended. Blanks that wipe out a bar are no line."""
        line, self._rest = self._rest, b""
        if returned and not line.strip():
            return ()
        if line:
            now = self._came
        text = line.decode("utf-8", errors="replace")
        self.count += 1
        self.last.append(text[:LONGEST_LINE])
        known, mark = False, "+"
        if len(line) <= LONGEST_LINE:
            known, mark = self.progress.take(text), "|"
            self.signs.take(_PREFIX.sub("", text), now)
        if self._written > self._most and not known:
            self.left_out += 1
            return ()
        return [self._row(line, now, mark)]

    def _row(self, line: bytes, now: str, mark: str) -> bytes:
        return f"{now} {self.rank}{mark} ".encode() + line[:LONGEST_LINE] + b"\n"

    def _write(self, rows: Sequence[bytes]) -> None:
        data = b"".join(rows)
        self._written += len(data)
        while data:
            data = data[self._file.write(data) :]


@dataclass(frozen=True)
class End:
    """How the child ended: ``status`` is None where nothing failed; ``died`` is when (s since
    1970)."""

    code: int
    why: str = ""
    status: Status | None = None
    reason: str = ""
    consequence: bool = False
    stopped: str = ""
    decided_by: str = failures.ENDED_BY
    cause: str = ""
    died: float = 0.0


def ended_badly(code: int, output: ProgramOutput, port: int | None = None) -> End:
    """The end of a program with a failing exit code, by its last lines; ``port`` of a second
    try."""
    text, words = output.text(), output.words()
    row, port_is_taken = failures.found_in(text), names_taken_port(text)
    if row is not None and row.say:
        words = row.say.format()
    reason = f"the program {_code_in_words(code, port_is_taken, port)}"
    if words:
        reason += f": {words}"
    status, cause, decided_by = Status.FAILED, "", failures.EXIT_CODES
    if row is not None:
        status, cause = row.status, row.cause
    if row is not None or port_is_taken:
        decided_by = failures.SIGNS
    if not cause and code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        cause = failures.KILLED
    lost_peer = cause in ("", failures.NETWORK) and failures.is_of_lost_peer(text)
    return End(code, "", status, reason, lost_peer, decided_by=decided_by, cause=cause)


def names_taken_port(text: str) -> bool:
    """Whether a program says that a port was taken."""
    return any(sign in text for sign in _PORT_TAKEN)


def _code_in_words(code: int, port_is_taken: bool, port: int | None) -> str:
    words = f"ended with exit code {code}"
    if code <= 0:
        words = f"signal {-code}"
        with contextlib.suppress(ValueError):
            words = signal.Signals(-code).name
        words = f"was killed by {words}"
    if not port_is_taken:
        return words
    again = "" if port is None else f", and at a second try, with {port}, too"
    return f"{words}: a port that it was to listen at is taken{again}"
