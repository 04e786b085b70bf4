"""Whether an error says that the environment lacks something, and not that the run went wrong."""

from __future__ import annotations

from collections.abc import Collection

from dlperf_hpc.errors import RunError
from dlperf_hpc.records.failures import Where, found_in


def fault_of(error: BaseException, modules: Collection[str]) -> str:
    """What an error before the first step shows the environment to lack, as a word of
    :data:`dlperf_hpc.records.quarantine.KINDS`; '' where it shows nothing of the kind.

    ``modules`` are those that the case's back end cannot do without. A module beside them that is
    missing (a reader of real data, say) is no fault of the environment's: other cases do without.
    """
    if isinstance(error, RunError):
        return error.fault
    if isinstance(error, ImportError):
        if (error.name or "").partition(".")[0] not in modules:
            return ""
        return fault_of_import(error)
    # Libraries that a framework loads by itself, before Python looks for its modules.
    row = found_in(str(error), Where.LOADER) if isinstance(error, OSError) else None
    return "" if row is None else row.fault


def fault_of_import(error: ImportError) -> str:
    """The word for a framework that is missing, or that is there and does not load."""
    return "framework" if isinstance(error, ModuleNotFoundError) else "library"
