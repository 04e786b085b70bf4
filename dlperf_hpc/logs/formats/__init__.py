"""The log formats: a module per family of programs, which lists its formats in ``FORMATS``."""

from __future__ import annotations

import functools
import importlib
import pkgutil

from dlperf_hpc.logs.format import Format


@functools.cache
def formats() -> tuple[Format, ...]:
    """Every format of every module here, by name; ValueError if two have one name.

    A module whose name begins with '_' is what several of them share, and has no format.
    """
    modules = [
        importlib.import_module(f"{__name__}.{module.name}")
        for module in pkgutil.iter_modules(__path__)
        if not module.name.startswith("_")
    ]
    found = sorted((each for module in modules for each in module.FORMATS), key=lambda f: f.name)
    for one, other in zip(found, found[1:]):
        if one.name == other.name:
            raise ValueError(
                f"two formats have the name {one.name!r}: {one.source}; {other.source}"
            )
    return tuple(found)
