"""``--set`` values put into a sweep file's tables before these are checked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any


def flat(table: Any) -> Any:
    """A case table with its ``optimizer`` and ``schedule`` tables as dotted keys."""
    if not isinstance(table, Mapping):
        return table
    result: dict[str, Any] = {}
    for key, value in table.items():
        if key in ("optimizer", "schedule") and isinstance(value, Mapping):
            result.update({f"{key}.{name}": inner for name, inner in value.items()})
        else:
            result[key] = value
    return result


def flat_case_tables(tables: Mapping[str, Any]) -> dict[str, Any]:
    """The file's tables, each case table in them :func:`flat`."""
    return _each_case_table(tables, lambda table: flat(table))


def _each_case_table(
    tables: Mapping[str, Any], change: Callable[[Any], Any], rules: bool = True
) -> dict[str, Any]:
    """A copy with ``change`` made to [case], [matrix], [[zip]] and what an [[override]] sets.

    With ``rules`` also to what an [[exclude]] and an [[override]] match.
    """
    result = dict(tables)
    for name in ("case", "matrix"):
        if name in result:
            result[name] = change(result[name])
    lists, parts = ["zip"], ["set"]
    if rules:
        lists.append("exclude")
        parts.append("when")
    for name in lists:
        if isinstance(result.get(name), list):
            result[name] = [change(block) for block in result[name]]
    if isinstance(result.get("override"), list):
        result["override"] = [_with_parts(block, parts, change) for block in result["override"]]
    return result


def _with_parts(block: Any, parts: Collection[str], change: Callable[[Any], Any]) -> Any:
    """An [[override]] with ``change`` made to these of its tables."""
    if not isinstance(block, Mapping):
        return block
    return {**block, **{key: change(block[key]) for key in parts if key in block}}


def apply_overrides(
    tables: Mapping[str, Any], overrides: Mapping[str, Any], top_level: Collection[str]
) -> dict[str, Any]:
    """The file's tables (flat) with ``--set`` values in place."""
    result = dict(tables)
    for key, value in overrides.items():
        head, _, rest = key.partition(".")
        of_a_case = rest if head in ("case", "matrix") and rest else key
        if of_a_case == key and head in top_level:
            _put_top_level(result, head, rest, value)
            continue
        for name, inner in flat({of_a_case: value}).items():
            result = _with_case_key(result, name, inner)
    return result


def _put_top_level(tables: dict[str, Any], head: str, rest: str, value: Any) -> None:
    if head == "topologies" and isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
    if not rest:
        tables[head] = value
        return
    table = tables.get(head, {})
    if head == "time_limit" and isinstance(table, str):
        table = {"default": table}
    tables[head] = {**table, rest: value} if isinstance(table, Mapping) else {rest: value}


def _with_case_key(tables: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """In place of every value the file gives the key; a list becomes one of the matrix."""

    def without(table: Any) -> Any:
        return {k: v for k, v in table.items() if k != key} if isinstance(table, Mapping) else table

    result = _each_case_table(tables, without, rules=False)
    if isinstance(result.get("zip"), list):
        result["zip"] = [block for block in result["zip"] if block != {}]
    place = "matrix" if isinstance(value, list) else "case"
    table = result.get(place, {})
    result[place] = {**table, key: value} if isinstance(table, Mapping) else table
    return result
