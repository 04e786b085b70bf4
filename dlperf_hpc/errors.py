"""Every error that a user can correct, and how other people's words are printed.

DlperfError                      says what is wrong, where, and what to do
├── SpecError                    an invalid sweep file, site profile or command line: all issues
├── SiteError                    a site profile or a command of the site cannot be used
├── LedgerError                  a sweep's directory is missing, read-only, damaged or already used
├── LogError                     a job log or a record cannot be read
├── DataError                    text or training data cannot be used
└── RunError                     a run cannot go on, on its compute node
    ├── AttemptError             another attempt at the run lives
    ├── WorldError               the ranks do not form the topology of the case
    ├── DeviceError              the device is missing, or lacks the precision of the case
    ├── WeightsError             a file of initial weights does not fit the model
    └── MeasurementError         the window has ended, but its figure may not be reported

A verb that receives an error returns its ``exit_code``: 2 for an invalid request, 1 for what went
wrong although the request was valid.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def number_of(number: int, noun: str) -> str:
    """``1 run``, ``2 runs``."""
    return f"{number} {noun}{'s' * (number != 1)}"


def visible(text: str) -> str:
    """Other people's words (names, reasons, outputs) for a terminal or a file that people read.
    Colours go. What else a terminal would act upon, or what hides or reorders text, is escaped as
    in Python: control characters but for newlines and tabs, directions of writing, halves of
    surrogate pairs, which stand for bytes that are no UTF-8."""
    if text.isascii() and text.isprintable():  # nearly every name and path
        return text
    return _escaped(_COLOUR.sub("", text.replace("\r\n", "\n")))


def _escaped(text: str) -> str:
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode("ascii")
        for c in text
    )


def printable(text: str) -> str:
    """Other people's words on one line, as :func:`visible` shows them: blanks count as one, and
    ``/`` stands between the lines of the text."""
    if text.isascii() and text.isprintable():
        return " ".join(text.split())
    lines = (" ".join(line.split()) for line in _COLOUR.sub("", text).splitlines())
    return _escaped(" / ".join(line for line in lines if line))


def toml_text(value: Any) -> str:
    """A value as a TOML file writes it, shortened where it is long."""
    import json
    import reprlib

    if isinstance(value, (str, int, float)) and len(str(value)) <= 60:
        return json.dumps(value, ensure_ascii=False)
    if hasattr(value, "isoformat"):  # a date or a time
        return str(value)
    return reprlib.repr(value)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """``did you mean ...`` for a name that is close to a known one, else None."""
    import difflib

    close = difflib.get_close_matches(name[:200], list(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else None


class DlperfError(Exception):
    """The base of all these errors. Its message says what is wrong, where, and what to do."""

    exit_code = 2


@contextlib.contextmanager
def raising(kind: type[DlperfError], what: object) -> Iterator[None]:
    """Raise an OSError of the block as an error of this kind: ``what``, and the system's words."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror or error}") from error


@dataclass(frozen=True)
class Issue:
    """One thing that is wrong in a sweep file, a site profile or a command line. ``where`` is a key
    path (``matrix.seq_len[1]``), a position in the file or an option; ``hint`` says what to
    write instead."""

    where: str
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        return f"{printable(self.where)}: {self.message}{hint}"


MOST_LISTED = 100
"""Issues that a message lists; it counts the others."""


class SpecError(DlperfError):
    """An invalid request. It carries every issue found, so that one edit can correct them all."""

    def __init__(self, source: str, issues: Sequence[Issue]) -> None:
        self.source = source
        self.issues = tuple(issues)
        lines = [f"{printable(source)}: {number_of(len(self.issues), 'error')}"]
        lines += [f"  {issue}" for issue in self.issues[:MOST_LISTED]]
        if len(self.issues) > MOST_LISTED:
            lines.append(f"  and {len(self.issues) - MOST_LISTED} more")
        super().__init__("\n".join(lines))


class SiteError(DlperfError):
    """A site profile, or a command that it needs, cannot be used on this machine."""


class LedgerError(DlperfError):
    """A sweep's directory cannot be read, written, or used again."""


class LogError(DlperfError):
    """A job log or a record cannot be read; the message names file and line."""

    exit_code = 1


class DataError(DlperfError):
    """Text or training data cannot be used; the message says what was found and expected."""

    exit_code = 1


class RunError(DlperfError):
    """One run cannot go on, on its compute node; its record says why. ``fault`` is the word for
    what its environment lacks (a key of :data:`dlperf_hpc.records.quarantine.KINDS`), '' where the
    environment is not known to be why."""

    exit_code = 1

    def __init__(self, message: str, fault: str = "") -> None:
        self.fault = fault
        super().__init__(message)


class AttemptError(RunError):
    """Another task measures the run at this moment; what it writes must be left alone."""


class WorldError(RunError):
    """The ranks that started do not form the topology of the case."""


class DeviceError(RunError):
    """The device is missing, or lacks the precision of the case."""


class WeightsError(RunError):
    """A file of initial weights cannot be read, or was written for another model."""


class MeasurementError(RunError):
    """The window has ended, but its figure may not be reported as a throughput."""
