"""Loading the form of a back end that imports its framework, on the compute node."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from dlperf_hpc.errors import RunError


def load(module: str, framework: str, cure: str) -> Any:
    """A module that is or imports ``framework``; RunError, with ``cure``, if it is not in this
    Python's environment or does not load there."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise RunError(
            f"{framework} cannot be imported by {sys.executable}: {error}\n"
            f"{cure}, or name an environment that has it: environment = ... in the sweep,"
            " [environment.<name>] in the site profile"
        ) from error
