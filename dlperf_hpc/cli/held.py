"""What the verbs say and do about environments whose runs are held back."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from dlperf_hpc.errors import LedgerError, printable

if TYPE_CHECKING:
    from dlperf_hpc.records.manifest import Array
    from dlperf_hpc.sweepfile.case import Case


def say(root: Path, cases: Iterable[Case]) -> None:
    """One note on stderr for each reason that holds runs of these cases back."""
    from dlperf_hpc.records.held import is_end_of, read_entries, reason

    named: dict[str, list[Case]] = {}
    for case in cases:
        named.setdefault(case.environment, []).append(case)
    for environment, those in named.items():
        for entry in read_entries(root, environment):
            if any(is_end_of(entry.kind, entry.framework, case) for case in those):
                words = f"note: runs are held back: {reason(environment, entry)}"
                print(printable(words), file=sys.stderr)


def let_go(root: Path, arrays: Iterable[Array]) -> None:
    """Take the environments of what is about to be submitted again as mended; LedgerError if that
    cannot be written down."""
    from dlperf_hpc.records import held

    try:
        found = held.let_go(root, (array.environment for array in arrays))
    except OSError as error:
        raise LedgerError(
            f"{error.filename}: cannot be taken away: {error.strerror}; runs of its environment"
            " would be held back: remove it by hand, then type the same command again"
        ) from error
    for environment in found:
        print(f"note: environment {environment} is tried anew", file=sys.stderr)
