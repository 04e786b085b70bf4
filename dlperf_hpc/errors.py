"""Every error this package raises for something a user can mend.

DlperfError                      what went wrong, where, and what to do
├── SpecError                    the sweep file or a command-line override (all issues at once)
├── SiteError                    a site profile, or a command the site lacks
├── LedgerError                  a sweep's directory: absent, foreign, read-only, already used
├── LogError                     a job log or record that cannot be read as one
├── DataError                    text or training data that is not what it should be
└── RunError                     on a compute node, inside one run
    ├── WorldError               the ranks are not the topology asked for
    ├── DeviceError              no such device, or a precision it lacks
    ├── WeightsError             a file of initial weights that is not the model's
    └── MeasurementError         the window ran, but its number may not be reported

``exit_code`` is what a verb returns when the error reaches it: 2 for usage and spec errors,
1 for what went wrong although the request was sound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class DlperfError(Exception):
    """Base of the tree. The message says what, where, and what to do."""

    exit_code = 2


@dataclass(frozen=True)
class Issue:
    """One thing wrong in a sweep file.

    ``where`` is the key path (``matrix.batch_size[1]``) or a position in the file.
    """

    where: str
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.where}: {self.message}{hint}"


class SpecError(DlperfError):
    """A sweep that cannot be: carries every issue found, so that one edit mends them all."""

    def __init__(self, source: str, issues: Sequence[Issue]) -> None:
        self.source = source
        self.issues = tuple(issues)
        noun = "error" if len(self.issues) == 1 else "errors"
        lines = [f"{source}: {len(self.issues)} {noun}"]
        super().__init__("\n".join(lines + [f"  {issue}" for issue in self.issues]))


class SiteError(DlperfError):
    """A site profile that cannot be used here."""


class LedgerError(DlperfError):
    """A sweep's directory that cannot be read, written, or used again."""


class LogError(DlperfError):
    """A log that is not what it should be; names file and line."""

    exit_code = 1


class DataError(DlperfError):
    """Text to prepare, or prepared data, that cannot be used: names file, found and expected."""

    exit_code = 1


class RunError(DlperfError):
    """Something that ends one run, on the compute node, with a record of why."""

    exit_code = 1


class WorldError(RunError):
    """The ranks that started are not the topology that was asked for."""


class DeviceError(RunError):
    """The device, or a precision it would need, is not there."""


class WeightsError(RunError):
    """A file of initial weights that cannot be read, or was written for another model."""


class MeasurementError(RunError):
    """The window ran, but what it gave may not be reported as a throughput."""
