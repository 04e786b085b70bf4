"""The values of a sweep's own files as our writer makes them, and nothing else.

Whoever reads a sweep may read another's, and a file may be damaged: run ids and names of arrays are
paths, tokens and job ids are asked of a scheduler, node lists stand in batch scripts. The rules are
those of sweep files (:mod:`dlperf_hpc.sweepfile.keys`), as far as the standard library goes.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Collection, Mapping
from typing import Any, Callable

from dlperf_hpc.records.results import misfits
from dlperf_hpc.sweepfile.case import LINE, NAME, Case, Limits, Measure, Topology
from dlperf_hpc.sweepfile.programs import LAUNCHES, UserProgram, read_program

NODE_LIST = r"[A-Za-z0-9_.\[][A-Za-z0-9_.\[\],-]*"
"""Nodes as Slurm writes them: ``n1,n[3-5]``."""
TOKEN = r"dlperf-[0-9a-f]{1,64}"
"""What an array is known by to the scheduler, in its comment."""

_ARRAY = r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}"
_TAG = r"[A-Za-z0-9.+-]+"
_PART = r"[A-Za-z0-9][A-Za-z0-9._+-]*"
_JOB = r"[0-9][A-Za-z0-9.-]{0,63}"  # of Slurm digits alone; other engines have longer ones
_MOST = 2**53  # any count or time of ours is below
_LONGEST_POLL_S = 86400
_PLAIN = (bool, int, float)

Form = Callable[[Any], bool]


class Misfit(ValueError):
    """JSON that holds what our writer never writes; the message names the key and the value."""


def _text(pattern: str) -> Form:
    matches = re.compile(pattern, re.ASCII).fullmatch
    return lambda value: isinstance(value, str) and matches(value) is not None


def _whole(low: int) -> Form:
    return lambda value: type(value) is int and low <= value <= _MOST


def _is_a(kind: type[Any]) -> Form:
    return lambda value: isinstance(value, kind)


def _or_none(form: Form) -> Form:
    return lambda value: value is None or form(value)


def _each(form: Form) -> Form:
    return lambda value: isinstance(value, list) and all(map(form, value))


def _printable(value: Any) -> bool:
    """Text that can be printed: no half of a character that has two (a lone surrogate)."""
    try:
        return isinstance(value, str) and bool(value.encode() or True)
    except UnicodeEncodeError:
        return False


def _is_line(value: Any) -> bool:
    return _LINE(value) and _printable(value)


def _is_topology(value: Any) -> bool:
    try:
        return bool(Topology.parse(value))
    except (TypeError, ValueError):
        return False


_LINE = _text(LINE)
_NAME = _text(NAME)

_OF_MANIFEST: dict[str, Form] = {
    "sweep": _NAME,
    "engine": _NAME,
    "base": _or_none(_is_topology),
    "repeats": _whole(1),
    "measure": _is_a(dict),
    "limits": _is_a(dict),
    "site": _is_a(dict),
    "tool_version": _is_line,
    "created": _is_line,
    "source": _printable,
    "cases": _each(_is_a(dict)),
    "arrays": _each(_is_a(dict)),
}
_OF_ARRAY: dict[str, Form] = {
    "name": _text(_ARRAY),
    "token": _text(TOKEN),
    "topology": _is_topology,
    "environment": _NAME,
    "time_limit_s": _whole(1),
    "tasks": _is_a(list),
}
_OF_ARRAY_LATER: dict[str, Form] = {  # keys that a manifest may lack
    "exclude": _text(f"(?:{NODE_LIST})?"),
    "repeats_per_job": _whole(1),
    "piece_of": _text(f"(?:{TOKEN})?"),
}
_OF_CASE: dict[str, Form] = {
    **dict.fromkeys(("framework", "model", "precision"), _NAME),
    "topology": _is_topology,
    "batch_size": _whole(1),
    "seq_len": _whole(0),  # 0: of a user's program, that was given none
}
_OF_CASE_LATER: dict[str, Form] = {
    **dict.fromkeys(("data", "device", "environment"), _NAME),
    **dict.fromkeys(("accumulation", "threads"), _whole(1)),
    "seed": _whole(0),
    "processes_per_node": _or_none(_whole(1)),
    "data_path": _is_line,
    "tags": _each(_text(_TAG)),
    "launch": lambda value: value == "" or (isinstance(value, str) and value in LAUNCHES),
    "replicas": _or_none(_whole(1)),
    **dict.fromkeys(("optimizer", "schedule", "options"), _is_a(dict)),
}
_OF_SUBMISSION: dict[str, Form] = {"array": _text(_ARRAY), "token": _text(TOKEN)}
_OF_SUBMISSION_LATER: dict[str, Form] = {
    "job_id": _text(f"(?:{_JOB})?"),
    **dict.fromkeys(("error", "limit"), _printable),
    "time": _is_line,
}
_OF_STATE: dict[str, Form] = {
    "run": _text(f"{_PART}(?:/{_PART})*"),
    "status": _is_a(str),
    "reason": _printable,
}
_OF_STATE_LATER: dict[str, Form] = {
    "time": _is_line,
    "job": _text(f"(?:{_JOB}_[0-9]{{1,9}}|{TOKEN})?"),
}

_OF_HELD_BACK: dict[str, Form] = {
    "schema": _is_line,
    "environment": _NAME,
    "held": _each(_is_a(dict)),
}
_OF_ENTRY: dict[str, Form] = {
    "kind": _NAME,
    "framework": _NAME,
    "run": _text(f"{_PART}(?:/{_PART})*"),
    "reason": _printable,
}
_OF_ENTRY_LATER: dict[str, Form] = {"time": _is_line}


def printable(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row whose texts can be printed, halves of characters as ``\\udc80``: a scheduler's words
    may hold any byte."""
    return {
        name: value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value
        for name, value in row.items()
    }


def parse(data: bytes) -> Any:
    """JSON, as UTF-8; ValueError if it is none, Misfit for what our writer's JSON never is: NaN, or
    nested deeper than Python reads."""
    try:
        return _DECODER.decode(data.decode())
    except RecursionError:
        raise Misfit("it is nested too deeply") from None


def _no_number(name: str) -> float:
    raise Misfit(f"{name} is no number")


_DECODER = json.JSONDecoder(parse_constant=_no_number)


def _check(row: Any, needed: Mapping[str, Form], later: Mapping[str, Form] | None = None) -> None:
    """Misfit for a key of ``needed`` that is missing, and for any value of another form."""
    if not isinstance(row, dict):
        raise Misfit(f"{reprlib.repr(row)} is no table")
    for name, fits in needed.items():
        if name not in row:
            raise Misfit(f"{name} is missing")
        if not fits(row[name]):
            raise Misfit(f"{name} is {reprlib.repr(row[name])}")
    for name, fits in (later or {}).items():
        if name in row and not fits(row[name]):
            raise Misfit(f"{name} is {reprlib.repr(row[name])}")


def check_manifest(data: Any) -> None:
    """Misfit for a manifest whose own keys, without cases and arrays, are not our writer's."""
    _check(data, _OF_MANIFEST)
    poll_s = data["site"].get("poll_s", 30.0)
    if type(poll_s) not in (int, float) or not 0 < poll_s <= _LONGEST_POLL_S:
        raise Misfit(f"site.poll_s is {reprlib.repr(poll_s)}")


def check_array(row: Any) -> None:
    """Misfit for a row that is no array of ours; of its tasks only that they are a list."""
    _check(row, _OF_ARRAY, _OF_ARRAY_LATER)
    per_job = row.get("repeats_per_job", 1)
    if not row["tasks"] or len(row["tasks"]) % per_job:
        raise Misfit(f"tasks are {len(row['tasks'])}, and repeats_per_job is {per_job}")


def check_submission(row: Any) -> None:
    """Misfit for a row that is no submission of ours."""
    _check(row, _OF_SUBMISSION, _OF_SUBMISSION_LATER)


def check_final_state(row: Any) -> None:
    """Misfit for a row that is no final state of ours."""
    _check(row, _OF_STATE, _OF_STATE_LATER)


def check_held_back(row: Any, kinds: Collection[str]) -> None:
    """Misfit for a table that is no marker of ours, or has a kind of fault that is not known."""
    _check(row, _OF_HELD_BACK)
    for entry in row["held"]:
        _check(entry, _OF_ENTRY, _OF_ENTRY_LATER)
        if entry["kind"] not in kinds:
            raise Misfit(f"kind is {reprlib.repr(entry['kind'])}")


def case_of(row: Any) -> Case:
    """A case as it stands in a manifest; Misfit for what no sweep file could have asked for."""
    _check(row, _OF_CASE, _OF_CASE_LATER)
    case = Case.from_dict(row)
    for where, values in (("optimizer.", case.optimizer), ("schedule.", case.schedule)):
        _check_plain(values, where)
        if not _NAME(values.name):
            raise Misfit(f"{where}name is {reprlib.repr(values.name)}")
    for name, value in case.options:
        if not (_NAME(name) and (isinstance(value, _PLAIN) or _is_line(value))):
            raise Misfit(f"options.{reprlib.repr(name)} is {reprlib.repr(value)}")
    return case


def programs_of(tables: Any, cases: Collection[Case]) -> dict[str, UserProgram]:
    """The programs of a manifest; Misfit for a table that no sweep file could have had, and for a
    case whose program is missing, or is started in another way."""
    if not isinstance(tables, dict):
        raise Misfit(f"programs is {reprlib.repr(tables)}")
    found = {}
    for name, table in tables.items():
        program, issues = read_program(name, table)
        if program is None:
            raise Misfit(str(issues[0]))
        found[name] = program
    for case in cases:
        if case.launch and (program := found.get(case.framework)) is None:
            raise Misfit(f"programs: there is no {case.framework!r}, of which {case.id} is a case")
        if case.launch and program is not None and program.launch != case.launch:
            raise Misfit(f"programs: launch of {case.framework!r} is not that of {case.id}")
    return found


def measure_of(row: Mapping[str, Any]) -> Measure:
    """What is to be measured; Misfit for a negative figure, TypeError for keys of no version."""
    measure = Measure(**row)
    _check_plain(measure, "measure.")
    _check_sign(vars(measure), "measure.", least=0)
    return measure


def limits_of(row: Mapping[str, Any]) -> Limits:
    """How long nothing may happen; as :func:`measure_of`, and Misfit for 0 s."""
    limits = Limits(**row)
    _check_plain(limits, "limits.")
    _check_sign(vars(limits), "limits.", least=1e-9)
    return limits


def _check_plain(values: Any, where: str) -> None:
    for name, value in misfits(values):
        raise Misfit(f"{where}{name} is {reprlib.repr(value)}")


def _check_sign(values: Mapping[str, float], where: str, least: float) -> None:
    for name, value in values.items():
        if value < least:
            raise Misfit(f"{where}{name} is {reprlib.repr(value)}")
