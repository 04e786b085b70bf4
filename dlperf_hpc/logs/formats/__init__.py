"""The log formats: ``formats.json`` says by which strings lines of each are found and what their
figures are, and a module here per family of programs reads the lines.

A module is imported when a line is found that holds one of its formats' literals.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dlperf_hpc.logs.format import Format
from dlperf_hpc.logs.scanned import Averaging, Counter, Evidence, Printed, Scope, Unit

_TABLE = Path(__file__).parent.with_suffix(".json")


@functools.cache
def formats() -> tuple[Format, ...]:
    """Every format, by name."""
    rows = json.loads(_TABLE.read_text(encoding="utf-8"))
    return tuple(Format(name=name, **_values(rows[name])) for name in sorted(rows))


def format_named(name: str) -> Format:
    """The format of that name; StopIteration if there is none."""
    return next(each for each in formats() if each.name == name)


def _values(row: Mapping[str, Any]) -> dict[str, Any]:
    """What a row says, as a format's fields; ValueError for a word that a field does not know."""
    values = dict(row)
    for key in values.keys() & _KINDS.keys():
        values[key] = _KINDS[key](values[key])
    return values


_KINDS: Mapping[str, Callable[[Any], Any]] = {
    "module": lambda name: f"{__name__}.{name}",
    **{"evidence": Evidence, "counter": Counter, "literals": tuple, "facts_literals": tuple},
    **{"unit": Unit, "scope": Scope, "averaging": Averaging},
    "printed": lambda row: Printed(**_values(row)),
}
