"""Users' programs as manifests and logs hold their tables: the forms that the tables may have, and
the plain values that become of them. :mod:`dlperf_hpc.sweepfile.programtables` has the rules for
what a user writes; what comes out of it is what is read here.
"""

from __future__ import annotations

import keyword
import reprlib
from collections.abc import Mapping
from typing import Any

from dlperf_hpc.model.checks import (
    Form,
    Misfit,
    check,
    each,
    each_key,
    is_a,
    is_line,
    is_name,
    is_number,
    one_of,
    or_none,
    text,
    whole,
)
from dlperf_hpc.sweepfile.programs import KEY, LAUNCHES, STOPS, VARIABLE, UserProgram, misuses
from dlperf_hpc.sweepfile.readtable import (
    AVERAGINGS,
    COUNTS,
    MOST_PATTERNS,
    SCOPES,
    PrintedFigure,
    ReadTable,
    is_unit,
)

_TEXT = is_a(str)
_IS_KEY = text(KEY)


def _is_unit(value: Any) -> bool:
    return isinstance(value, str) and is_unit(value)


def _is_own_key(value: Any) -> bool:
    return _IS_KEY(value) and not keyword.iskeyword(value)


def _is_default(value: Any) -> bool:
    return isinstance(value, (bool, int, float)) or is_line(value)


def _are_patterns(value: Any) -> bool:
    return each(_TEXT)(value) and len(value) <= MOST_PATTERNS


_OF_PROGRAM: dict[str, Form] = {"launch": one_of(LAUNCHES), "run": each(is_line, least=1)}
_OF_PROGRAM_LATER: dict[str, Form] = {
    "workdir": is_line,
    "replicas": is_line,
    "require": each(is_line),
    "env": each_key(text(VARIABLE), is_line),
    "keys": each_key(_is_own_key, _is_default),
    "words": each_key(_TEXT, each_key(_TEXT, each(is_line))),
    "read": is_a(dict),
    "stop": one_of(STOPS),
}
_OF_READ: dict[str, Form] = {
    **dict.fromkeys(("format", "line", "total"), _TEXT),
    "printed": or_none(is_a(dict)),
    "counts": one_of(COUNTS),
    "first": whole(0),
    "each": whole(1),
    "unit": _is_unit,
    "fail": _are_patterns,
    "must": _are_patterns,
}
_OF_PRINTED: dict[str, Form] = {"unit": _is_unit}
_OF_PRINTED_LATER: dict[str, Form] = {
    "scope": one_of(SCOPES),
    "averaging": one_of(AVERAGINGS),
    "scale": is_number,
}


def program_of(name: str, table: Any) -> UserProgram:
    """The program of a manifest's table; Misfit for one that no sweep file could have had."""
    if not is_name(name):
        raise Misfit(f"{reprlib.repr(name)} is no name")
    try:
        check(table, _OF_PROGRAM, _OF_PROGRAM_LATER, only=True)
        values: dict[str, Any] = {
            **table,
            "run": tuple(table["run"]),
            "require": tuple(table.get("require", ())),
            "words": {
                key: {value: tuple(words) for value, words in words_of.items()}
                for key, words_of in table.get("words", {}).items()
            },
        }
        values["read"] = read_table_of(table.get("read", {}))
    except Misfit as error:
        raise Misfit(f"program.{name}.{error}") from None
    program = UserProgram(name, **values)
    for issue in misuses(program):
        raise Misfit(f"program.{name}.{issue}")
    return program


def read_table_of(table: Any) -> ReadTable:
    """The table ``[program.NAME.read]`` of a manifest or a log, its patterns not compiled; Misfit
    for one that no sweep file could have had."""
    check(table, {}, _OF_READ, only=True)
    values = {**table, **{key: tuple(table.get(key, ())) for key in ("fail", "must")}}
    if values.get("printed") is not None:
        values["printed"] = _printed_figure(values["printed"])
    return ReadTable(**values)


def _printed_figure(table: Mapping[str, Any]) -> PrintedFigure:
    try:
        check(table, _OF_PRINTED, _OF_PRINTED_LATER, only=True)
    except Misfit as error:
        raise Misfit(f"printed.{error}") from None
    figure = PrintedFigure(**table)
    if figure.scale <= 0:
        raise Misfit(f"printed.scale is {figure.scale!r}")
    return figure
