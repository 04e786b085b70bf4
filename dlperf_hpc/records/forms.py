"""The values of a sweep's own files as our writer makes them, and nothing else.

Run ids and names of arrays are paths, tokens and job ids are asked of a scheduler, node lists stand
in batch scripts. The rules are those of sweep files (:mod:`dlperf_hpc.sweepfile.keys`,
:mod:`dlperf_hpc.sweepfile.programtables`), as far as the standard library goes
(:mod:`dlperf_hpc.model.checks`).
"""

from __future__ import annotations

import keyword
import reprlib
from collections.abc import Collection, Mapping
from typing import Any

from dlperf_hpc.model.case import FEWEST_REPEATS, LARGEST, Case, Limits, Measure
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
    is_printable,
    is_topology,
    misfits,
    one_of,
    or_none,
    text,
    whole,
)
from dlperf_hpc.sweepfile import programs, readtable

NODE_LIST = r"[A-Za-z0-9_.\[][A-Za-z0-9_.\[\],-]*"
"""Nodes as Slurm writes them: ``n1,n[3-5]``."""
TOKEN = r"dlperf-[0-9a-f]{1,64}"
"""What an array is known by to the scheduler, in its comment."""

_PART = r"[A-Za-z0-9][A-Za-z0-9._+-]*"
_JOB = r"[0-9][A-Za-z0-9.-]{0,63}"  # of Slurm digits alone; other engines have longer ones
_LONGEST_POLL_S = 86400
_PLAIN = (bool, int, float)
_TEXT, _TABLE = is_a(str), is_a(dict)
_IS_KEY = text(programs.KEY)
_IS_ARRAY = text(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_IS_RUN = text(f"{_PART}(?:/{_PART})*")


def _is_unit(value: Any) -> bool:
    return isinstance(value, str) and readtable.is_unit(value)


def _is_own_key(value: Any) -> bool:
    return _IS_KEY(value) and not keyword.iskeyword(value)


def _is_default(value: Any) -> bool:
    return isinstance(value, _PLAIN) or is_line(value)


def _are_patterns(value: Any) -> bool:
    return each(_TEXT)(value) and len(value) <= readtable.MOST_PATTERNS


# Each pair: keys that a row must have, and keys that it may lack, as those of earlier versions do.
_MANIFEST: dict[str, Form] = {
    **dict.fromkeys(("sweep", "engine"), is_name),
    "base": or_none(is_topology),
    "repeats": whole(1),
    **dict.fromkeys(("measure", "limits", "site"), _TABLE),
    **dict.fromkeys(("tool_version", "created"), is_line),
    "source": is_printable,
    **dict.fromkeys(("cases", "arrays"), each(_TABLE)),
}
_MANIFEST_LATER: dict[str, Form] = {
    "budget_node_hours": or_none(lambda value: is_number(value) and value > 0),
    "until": or_none(_TABLE),
}
_UNTIL: dict[str, Form] = {
    **dict.fromkeys(("min", "max"), whole(FEWEST_REPEATS, 1000)),
    "half_width": lambda value: is_number(value) and 0 < value < 1,
}
_ARRAY: dict[str, Form] = {
    "name": _IS_ARRAY,
    "token": text(TOKEN),
    "topology": is_topology,
    "environment": is_name,
    "time_limit_s": whole(1),
    "tasks": is_a(list),
}
_ARRAY_LATER: dict[str, Form] = {
    "exclude": text(f"(?:{NODE_LIST})?"),
    "repeats_per_job": whole(1),
    "piece_of": text(f"(?:{TOKEN})?"),
}
_CASE: dict[str, Form] = {
    **dict.fromkeys(("framework", "model", "precision"), is_name),
    "topology": is_topology,
    "batch_size": lambda value: value == LARGEST or whole(1)(value),
    "seq_len": whole(0),  # 0: samples are no sequences, or a program was given none
}
_CASE_LATER: dict[str, Form] = {
    **dict.fromkeys(("data", "device", "environment"), is_name),
    **dict.fromkeys(("accumulation", "threads"), whole(1)),
    "seed": whole(0),
    **dict.fromkeys(("processes_per_node", "replicas"), or_none(whole(1))),
    "data_path": is_line,
    "tags": each(text(r"[A-Za-z0-9.+-]+")),
    "launch": _TEXT,
    "largest": is_a(bool),
    **dict.fromkeys(("optimizer", "schedule", "options"), _TABLE),
}
SUBMISSION: tuple[dict[str, Form], dict[str, Form]] = (
    {"array": _IS_ARRAY, "token": text(TOKEN)},
    {
        "job_id": text(f"(?:{_JOB})?"),
        **dict.fromkeys(("error", "limit"), is_printable),
        **dict.fromkeys(("time", "host"), is_line),
    },
)
FINAL_STATE: tuple[dict[str, Form], dict[str, Form]] = (
    {"run": _IS_RUN, "status": _TEXT, "reason": is_printable},
    {"time": is_line, "job": text(f"(?:{_JOB}_[0-9]{{1,9}}|{TOKEN})?")},
)
_MARKER: dict[str, Form] = {"schema": is_line, "environment": is_name, "held": each(_TABLE)}
_FAULT: dict[str, Form] = {"framework": is_name, "run": _IS_RUN, "reason": is_printable}
_PROGRAM: dict[str, Form] = {"launch": one_of(programs.LAUNCHES), "run": each(is_line, least=1)}
_PROGRAM_LATER: dict[str, Form] = {
    **dict.fromkeys(("workdir", "replicas"), is_line),
    "require": each(is_line),
    "env": each_key(text(programs.VARIABLE), is_line),
    "keys": each_key(_is_own_key, _is_default),
    "words": each_key(_TEXT, each_key(_TEXT, each(is_line))),
    "read": _TABLE,
    "stop": one_of(programs.STOPS),
    "local_rank": one_of(programs.LOCAL_RANKS),
}
_READ: dict[str, Form] = {
    **dict.fromkeys(("format", "line", "total"), _TEXT),
    "printed": or_none(_TABLE),
    "counts": one_of(readtable.COUNTS),
    "first": whole(0),
    "each": whole(1),
    "unit": _is_unit,
    **dict.fromkeys(("fail", "must"), _are_patterns),
}
_PRINTED: dict[str, Form] = {
    "scope": one_of(readtable.SCOPES),
    "averaging": one_of(readtable.AVERAGINGS),
    "scale": is_number,
}


def check_manifest(data: Any) -> None:
    """Misfit for a manifest whose own keys, without cases and arrays, are not our writer's."""
    check(data, _MANIFEST, _MANIFEST_LATER)
    if data.get("until"):
        check(data["until"], _UNTIL)
        if data["until"]["max"] < data["until"]["min"]:
            raise Misfit("until: max is below min")
    poll_s = data["site"].get("poll_s", 30.0)
    if type(poll_s) not in (int, float) or not 0 < poll_s <= _LONGEST_POLL_S:
        raise Misfit(f"site.poll_s is {reprlib.repr(poll_s)}")


def check_array(row: Any) -> None:
    """Misfit for a row that is no array of ours; of its tasks only that they are a list."""
    check(row, _ARRAY, _ARRAY_LATER)
    per_job = row.get("repeats_per_job", 1)
    if not row["tasks"] or len(row["tasks"]) % per_job:
        raise Misfit(f"tasks are {len(row['tasks'])}, and repeats_per_job is {per_job}")


def check_held_back(row: Any, kinds: Collection[str]) -> None:
    """Misfit for a table that is no marker of ours, or has a kind of fault that is not known."""
    check(row, _MARKER)
    for entry in row["held"]:
        check(entry, {"kind": one_of(kinds), **_FAULT}, {"time": is_line})


def case_of(row: Any) -> Case:
    """A case as it stands in a manifest; Misfit for what no sweep file could have asked for."""
    check(row, _CASE, _CASE_LATER)
    case = Case.from_dict(row)
    for where, values in (("optimizer.", case.optimizer), ("schedule.", case.schedule)):
        _check_plain(values, where)
        if not is_name(values.name):
            raise Misfit(f"{where}name is {reprlib.repr(values.name)}")
    for name, value in case.options:
        if not (is_name(name) and _is_default(value)):
            raise Misfit(f"options.{reprlib.repr(name)} is {reprlib.repr(value)}")
    return case


def measure_of(row: Mapping[str, Any]) -> Measure:
    """What is to be measured; Misfit for a negative figure, TypeError for keys of no version."""
    measure = Measure(**row)
    _check_plain(measure, "measure.", least=0)
    return measure


def limits_of(row: Mapping[str, Any]) -> Limits:
    """How long nothing may happen; as :func:`measure_of`, and Misfit for 0 s."""
    limits = Limits(**row)
    _check_plain(limits, "limits.", least=1e-9)
    return limits


def _check_plain(values: Any, where: str, least: float | None = None) -> None:
    wrong = misfits(values)
    if least is not None and not wrong:
        wrong = [(name, value) for name, value in vars(values).items() if value < least]
    for name, value in wrong:
        raise Misfit(f"{where}{name} is {reprlib.repr(value)}")


def programs_of(tables: Any, cases: Collection[Case]) -> dict[str, programs.UserProgram]:
    """The programs of a manifest; Misfit for a table that no sweep file could have had, and for a
    case whose program is missing, or is started in another way."""
    if not isinstance(tables, dict):
        raise Misfit(f"programs is {reprlib.repr(tables)}")
    found = {name: program_of(name, table) for name, table in tables.items()}
    for case in cases:
        if not case.launch:
            continue
        program = found.get(case.framework)
        if program is None:
            raise Misfit(f"programs: there is no {case.framework!r}, of which {case.id} is a case")
        if program.launch != case.launch:
            raise Misfit(f"programs: launch of {case.framework!r} is not that of {case.id}")
    return found


def program_of(name: str, table: Any) -> programs.UserProgram:
    """The program of a manifest's table; Misfit for one that no sweep file could have had."""
    if not is_name(name):
        raise Misfit(f"{reprlib.repr(name)} is no name")
    try:
        check(table, _PROGRAM, _PROGRAM_LATER, only=True)
        read = read_table_of(table.get("read", {}))
    except Misfit as error:
        raise Misfit(f"program.{name}.{error}") from None
    words = {
        key: {value: tuple(words) for value, words in words_of.items()}
        for key, words_of in table.get("words", {}).items()
    }
    lists = {key: tuple(table.get(key, ())) for key in ("run", "require")}
    program = programs.UserProgram(name, **{**table, **lists, "words": words, "read": read})
    for issue in programs.misuses(program):
        raise Misfit(f"program.{name}.{issue}")
    return program


def read_table_of(table: Any) -> readtable.ReadTable:
    """The table ``[program.NAME.read]`` of a manifest or a log, its patterns not compiled; Misfit
    for one that no sweep file could have had."""
    check(table, {}, _READ, only=True)
    values = {**table, **{key: tuple(table.get(key, ())) for key in ("fail", "must")}}
    if values.get("printed") is not None:
        values["printed"] = _printed_figure(values["printed"])
    return readtable.ReadTable(**values)


def _printed_figure(table: Mapping[str, Any]) -> readtable.PrintedFigure:
    try:
        check(table, {"unit": _is_unit}, _PRINTED, only=True)
    except Misfit as error:
        raise Misfit(f"printed.{error}") from None
    figure = readtable.PrintedFigure(**table)
    if figure.scale <= 0:
        raise Misfit(f"printed.scale is {figure.scale!r}")
    return figure
