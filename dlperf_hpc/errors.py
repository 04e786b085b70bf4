"""Every error that this package raises for something that a user can correct.

DlperfError                      says what is wrong, where, and what to do
├── SpecError                    an invalid sweep file, site profile or command line: all issues
├── SiteError                    a site profile or a command of the site cannot be used
├── LedgerError                  a sweep's directory is missing, read-only, damaged or already used
├── LogError                     a job log or a record cannot be read
├── DataError                    text or training data cannot be used
└── RunError                     a run cannot go on, on its compute node
    ├── WorldError               the ranks do not form the topology of the case
    ├── DeviceError              the device is missing, or lacks the precision of the case
    ├── WeightsError             a file of initial weights does not fit the model
    └── MeasurementError         the window has ended, but its figure may not be reported

A verb that receives an error returns its ``exit_code``: 2 for an invalid request, 1 for what went
wrong although the request was valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class DlperfError(Exception):
    """The base of all these errors. Its message says what is wrong, where, and what to do."""

    exit_code = 2


@dataclass(frozen=True)
class Issue:
    """One thing that is wrong in a sweep file, a site profile or a command line.

    ``where`` is a key path (``matrix.batch_size[1]``), a position in the file or an option;
    ``hint`` says what to write instead.
    """

    where: str
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.where}: {self.message}{hint}"


class SpecError(DlperfError):
    """An invalid request. It carries every issue found, so that one edit can correct them all."""

    def __init__(self, source: str, issues: Sequence[Issue]) -> None:
        self.source = source
        self.issues = tuple(issues)
        noun = "error" if len(self.issues) == 1 else "errors"
        lines = [f"{source}: {len(self.issues)} {noun}"]
        super().__init__("\n".join(lines + [f"  {issue}" for issue in self.issues]))


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
    """One run cannot go on, on its compute node; its record says why."""

    exit_code = 1


class WorldError(RunError):
    """The ranks that started do not form the topology of the case."""


class DeviceError(RunError):
    """The device is missing, or lacks the precision of the case."""


class WeightsError(RunError):
    """A file of initial weights cannot be read, or was written for another model."""


class MeasurementError(RunError):
    """The window has ended, but its figure may not be reported as a throughput."""
