"""The values of a sweep's own files as our writer makes them, and nothing else.

Run ids and names of arrays are paths, tokens and job ids are asked of a scheduler, node lists stand
in batch scripts. The rules are those of sweep files (:mod:`dlperf_hpc.sweepfile.keys`), as far as
the standard library goes (:mod:`dlperf_hpc.model.checks`).
"""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from dlperf_hpc.model.case import Case, Limits, Measure
from dlperf_hpc.model.checks import (
    Form,
    Misfit,
    check,
    each,
    is_a,
    is_line,
    is_name,
    is_printable,
    is_topology,
    misfits,
    or_none,
    text,
    whole,
)

if TYPE_CHECKING:
    from dlperf_hpc.sweepfile.programs import UserProgram

NODE_LIST = r"[A-Za-z0-9_.\[][A-Za-z0-9_.\[\],-]*"
"""Nodes as Slurm writes them: ``n1,n[3-5]``."""
TOKEN = r"dlperf-[0-9a-f]{1,64}"
"""What an array is known by to the scheduler, in its comment."""

_ARRAY = r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}"
_TAG = r"[A-Za-z0-9.+-]+"
_PART = r"[A-Za-z0-9][A-Za-z0-9._+-]*"
_JOB = r"[0-9][A-Za-z0-9.-]{0,63}"  # of Slurm digits alone; other engines have longer ones
_LONGEST_POLL_S = 86400
_PLAIN = (bool, int, float)

_OF_MANIFEST: dict[str, Form] = {
    "sweep": is_name,
    "engine": is_name,
    "base": or_none(is_topology),
    "repeats": whole(1),
    "measure": is_a(dict),
    "limits": is_a(dict),
    "site": is_a(dict),
    "tool_version": is_line,
    "created": is_line,
    "source": is_printable,
    "cases": each(is_a(dict)),
    "arrays": each(is_a(dict)),
}
_OF_ARRAY: dict[str, Form] = {
    "name": text(_ARRAY),
    "token": text(TOKEN),
    "topology": is_topology,
    "environment": is_name,
    "time_limit_s": whole(1),
    "tasks": is_a(list),
}
_OF_ARRAY_LATER: dict[str, Form] = {  # keys that a manifest may lack
    "exclude": text(f"(?:{NODE_LIST})?"),
    "repeats_per_job": whole(1),
    "piece_of": text(f"(?:{TOKEN})?"),
}
_OF_CASE: dict[str, Form] = {
    **dict.fromkeys(("framework", "model", "precision"), is_name),
    "topology": is_topology,
    "batch_size": whole(1),
    "seq_len": whole(0),  # 0: of a user's program, that was given none
}
_OF_CASE_LATER: dict[str, Form] = {
    **dict.fromkeys(("data", "device", "environment"), is_name),
    **dict.fromkeys(("accumulation", "threads"), whole(1)),
    "seed": whole(0),
    "processes_per_node": or_none(whole(1)),
    "data_path": is_line,
    "tags": each(text(_TAG)),
    "launch": is_a(str),
    "replicas": or_none(whole(1)),
    **dict.fromkeys(("optimizer", "schedule", "options"), is_a(dict)),
}
_OF_SUBMISSION: dict[str, Form] = {"array": text(_ARRAY), "token": text(TOKEN)}
_OF_SUBMISSION_LATER: dict[str, Form] = {
    "job_id": text(f"(?:{_JOB})?"),
    **dict.fromkeys(("error", "limit"), is_printable),
    "time": is_line,
}
_OF_STATE: dict[str, Form] = {
    "run": text(f"{_PART}(?:/{_PART})*"),
    "status": is_a(str),
    "reason": is_printable,
}
_OF_STATE_LATER: dict[str, Form] = {
    "time": is_line,
    "job": text(f"(?:{_JOB}_[0-9]{{1,9}}|{TOKEN})?"),
}

_OF_HELD_BACK: dict[str, Form] = {
    "schema": is_line,
    "environment": is_name,
    "held": each(is_a(dict)),
}
_OF_ENTRY: dict[str, Form] = {
    "kind": is_name,
    "framework": is_name,
    "run": text(f"{_PART}(?:/{_PART})*"),
    "reason": is_printable,
}
_OF_ENTRY_LATER: dict[str, Form] = {"time": is_line}


def check_manifest(data: Any) -> None:
    """Misfit for a manifest whose own keys, without cases and arrays, are not our writer's."""
    check(data, _OF_MANIFEST)
    poll_s = data["site"].get("poll_s", 30.0)
    if type(poll_s) not in (int, float) or not 0 < poll_s <= _LONGEST_POLL_S:
        raise Misfit(f"site.poll_s is {reprlib.repr(poll_s)}")


def check_array(row: Any) -> None:
    """Misfit for a row that is no array of ours; of its tasks only that they are a list."""
    check(row, _OF_ARRAY, _OF_ARRAY_LATER)
    per_job = row.get("repeats_per_job", 1)
    if not row["tasks"] or len(row["tasks"]) % per_job:
        raise Misfit(f"tasks are {len(row['tasks'])}, and repeats_per_job is {per_job}")


def check_submission(row: Any) -> None:
    """Misfit for a row that is no submission of ours."""
    check(row, _OF_SUBMISSION, _OF_SUBMISSION_LATER)


def check_final_state(row: Any) -> None:
    """Misfit for a row that is no final state of ours."""
    check(row, _OF_STATE, _OF_STATE_LATER)


def check_held_back(row: Any, kinds: Collection[str]) -> None:
    """Misfit for a table that is no marker of ours, or has a kind of fault that is not known."""
    check(row, _OF_HELD_BACK)
    for entry in row["held"]:
        check(entry, _OF_ENTRY, _OF_ENTRY_LATER)
        if entry["kind"] not in kinds:
            raise Misfit(f"kind is {reprlib.repr(entry['kind'])}")


def case_of(row: Any) -> Case:
    """A case as it stands in a manifest; Misfit for what no sweep file could have asked for."""
    check(row, _OF_CASE, _OF_CASE_LATER)
    case = Case.from_dict(row)
    for where, values in (("optimizer.", case.optimizer), ("schedule.", case.schedule)):
        _check_plain(values, where)
        if not is_name(values.name):
            raise Misfit(f"{where}name is {reprlib.repr(values.name)}")
    for name, value in case.options:
        if not (is_name(name) and (isinstance(value, _PLAIN) or is_line(value))):
            raise Misfit(f"options.{reprlib.repr(name)} is {reprlib.repr(value)}")
    return case


def programs_of(tables: Any, cases: Collection[Case]) -> dict[str, UserProgram]:
    """The programs of a manifest; Misfit for a table that no sweep file could have had, and for a
    case whose program is missing, or is started in another way."""
    if not isinstance(tables, dict):
        raise Misfit(f"programs is {reprlib.repr(tables)}")
    found = {}
    if tables:
        from dlperf_hpc.records.program_forms import program_of

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
