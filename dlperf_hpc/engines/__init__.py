"""The engines there are, by the name that a manifest and ``--cluster`` call them.

Another scheduler is a folder here whose ``ENGINE`` keeps the contract of :mod:`.base`, and a name
in ``NAMES``. Its modules are loaded when it is first asked for: ``--help`` loads none of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from dlperf_hpc.errors import LedgerError

if TYPE_CHECKING:
    from dlperf_hpc.engines.base import Engine

NAMES = ("slurm", "local")
"""In the order in which ``auto`` asks whether they are present; the last one always is."""

AUTO = "auto"
CHOICES = (AUTO, *NAMES)


def get_engine(name: str) -> Engine:
    """The engine of that name; LedgerError if this version has none."""
    if name not in NAMES:
        raise LedgerError(
            f"engine {name!r}: this version has {', '.join(NAMES)}; use the version that planned"
            " the sweep"
        )
    engine: Engine = importlib.import_module(f"{__name__}.{name}").ENGINE
    return engine


def choose_engine(name: str | None) -> Engine:
    """The engine of that name; of ``auto`` or None the first that is present on this machine."""
    if name is not None and name != AUTO:
        return get_engine(name)
    return next(engine for engine in map(get_engine, NAMES) if engine.present())
