"""The log formats: ``formats.json`` says by which strings lines of each are found and what their
figures are, and a module here per family of programs reads the lines. ``pattern_formats.json`` says
the same of formats that need no module, and tells their lines by patterns.

A module is imported when a line is found that holds one of its formats' literals.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dlperf_hpc.logs.format import Format, LinePattern
from dlperf_hpc.logs.lineparts import COUNT, NUMBER, further, perhaps
from dlperf_hpc.logs.scanned import FACTS, Averaging, Counter, Evidence, Printed, Scope, Unit

_TABLES = ("formats.json", "pattern_formats.json")
_FIGURE = rf"{NUMBER}(?:,[0-9]{{3}})*(?:\.[0-9]+)?"
_COUNTS = {"iteration", "index", "epoch", "only_epoch", "length", *FACTS}


@functools.cache
def formats() -> tuple[Format, ...]:
    """Every format, by name."""
    rows: dict[str, Any] = {}
    for table in _TABLES:
        rows |= json.loads(Path(__file__).parent.with_name(table).read_text(encoding="utf-8"))
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


def _line(row: Mapping[str, Any]) -> LinePattern:
    """A form of line as a row tells it: ``{loss}`` stands for a number, as the group of that name.
    ``further`` and ``perhaps`` are what is looked for behind ``pattern`` (:mod:`..lineparts`)."""
    values = _values(row)
    keys = map(further, values.pop("further", ()))
    text = "".join([values.pop("pattern"), *keys, *map(perhaps, values.pop("perhaps", ()))])
    return LinePattern(re.sub(r"\{([a-z_]+)\}", _group, text), **values)


def _group(name: re.Match[str]) -> str:
    return rf"(?P<{name[1]}>{COUNT if name[1] in _COUNTS else _FIGURE})"


_KINDS: Mapping[str, Callable[[Any], Any]] = {
    "module": lambda name: f"{__name__}.{name}",
    **{"evidence": Evidence, "counter": Counter, "literals": tuple, "facts_literals": tuple},
    **{"unit": Unit, "scope": Scope, "averaging": Averaging},
    "printed": lambda row: Printed(**_values(row)),
    "own": lambda rows: tuple(map(_line, rows)),
}
