"""The interface that the timed loop has to a framework, the same for every back end; and how a back
end's session module, which imports the framework, is loaded on the compute node."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Protocol

from dlperf_hpc.errors import RunError
from dlperf_hpc.records.failures import Where, found_in

TORCH_CURE = f"install it there: {sys.executable} -m pip install torch numpy"


def load(module: str, framework: str, cure: str) -> Any:
    """A module that is or imports ``framework``; RunError, with ``cure``, if it is not in this
    Python's environment or does not load there."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise RunError(
            f"{framework} cannot be imported by {sys.executable}: {error}\n"
            f"{cure}, or name an environment that has it: environment = ... in the sweep,"
            " [environment.<name>] in the site profile",
            fault=_fault_of_import(error),
        ) from error


def opener(module: str, session: str, framework: str, cure: str) -> Callable[..., Any]:
    """The ``open_session`` of a back end whose ``session`` is a class of ``module``, which imports
    ``framework``: made of a case, a world and a workload, on this rank's device."""

    def open_session(*arguments: Any) -> Any:
        return getattr(load(f"dlperf_hpc.train.{module}", framework, cure), session)(*arguments)

    return open_session


def fault_of(error: BaseException, modules: Collection[str]) -> str:
    """What an error before the first step shows the environment to lack, a word of
    :data:`dlperf_hpc.records.quarantine.KINDS`, or ''. Only a module of ``modules``, without which
    the case's back end cannot do, is the environment's fault: other cases do without the rest."""
    if isinstance(error, RunError):
        return error.fault
    if isinstance(error, ImportError):
        if (error.name or "").partition(".")[0] not in modules:
            return ""
        return _fault_of_import(error)
    # Libraries that a framework loads by itself, before Python looks for its modules.
    row = found_in(str(error), Where.LOADER) if isinstance(error, OSError) else None
    return row.fault if row else ""


def _fault_of_import(error: ImportError) -> str:
    """The word for a framework that is missing, or that is there and does not load."""
    return "framework" if isinstance(error, ModuleNotFoundError) else "library"


class Session(Protocol):
    """A model, its data and its optimizer, ready to train on this rank. Nothing but
    :meth:`synchronize` and what says so may wait for the device: the loop calls :meth:`iterate` and
    :meth:`mark` inside the timed window. One whose library can all-reduce any number of bytes also
    has ``gradient_buckets`` and ``timed_all_reduces``, as :class:`.TorchSession` has them."""

    def iterate(self) -> None:
        """One micro-batch forward and backward; every k-th call ends in an optimizer step."""

    def set_all_reduce(self, on: bool) -> bool:
        """From the next optimizer step on average gradients over the ranks, or leave that out and
        step on this rank's own; False, and nothing changes, if the back end cannot. A session whose
        ranks wait for each other in a step without all-reduce, too, says why in a text
        ``meets_without_all_reduce``: a rank's time is not its own then."""

    def synchronize(self) -> None:
        """Wait until the device has done everything so far."""

    def open_window(self, iterations: int) -> None:
        """Make room for 1 + ``iterations`` marks; forget earlier ones; zero the counters."""

    def mark(self) -> None:
        """Note the time and the latest loss, without waiting: first, and after each iteration."""

    def step_times(self) -> list[float]:
        """Seconds from mark to mark on this rank's device. Waits for the device."""

    def losses(self) -> list[float]:
        """This rank's loss of each iteration of the window. Waits for the device."""

    def counts(self) -> tuple[int, int]:
        """(optimizer steps, those of them skipped for overflow) in the window. Waits."""

    def fingerprint(self) -> float:
        """A number that changes when the parameters do. Waits for the device."""

    def data_wait_s(self) -> float:
        """Seconds the window waited for data on this rank."""

    def memory_mb(self) -> float:
        """Peak memory so far, MiB: the allocator's on a GPU, the resident set on a CPU."""

    def facts(self) -> dict[str, Any]:
        """Device, versions and flags as observed, for the log."""

    def save(self, directory: Path) -> None:
        """Write what training goes on from into a new directory; all ranks take part. Parameters,
        optimizer, loss scale, how many steps were done (by which the schedule and the place in real
        data go), and each rank's random numbers for dropout. RunError between two optimizer steps,
        and if it cannot be written; a directory of that name is whole."""

    def load(self, directory: Path) -> None:
        """Go on from what :meth:`save` wrote; open a window behind it. All ranks take part.
        RunError if there is no checkpoint, or one of another case or number of ranks."""

    def close(self) -> None:
        """Leave the process group; only on the way of success."""
