"""Every format there is: one module each in :mod:`dlperf_hpc.logs.formats`."""

from __future__ import annotations

import functools
import importlib
import pkgutil

from dlperf_hpc.logs import formats as package
from dlperf_hpc.logs.format import Format


@functools.cache
def formats() -> tuple[Format, ...]:
    """The formats by name; a module whose name begins with '_' is shared code, not a format."""
    found = [
        importlib.import_module(f"{package.__name__}.{module.name}").FORMAT
        for module in pkgutil.iter_modules(package.__path__)
        if not module.name.startswith("_")
    ]
    names = [each.name for each in found]
    if len(set(names)) < len(names):
        raise ValueError(f"two formats of one name: {sorted(names)}")
    return tuple(sorted(found, key=lambda each: each.name))
