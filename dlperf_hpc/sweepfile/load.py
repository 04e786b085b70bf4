"""A sweep file as TOML and as a checked value: :func:`load_sweep` is the only way in.

All issues of a file are found in one go; nothing half-checked leaves this module.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import time
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dlperf_hpc.errors import MOST_LISTED, Issue, SpecError, nearest, toml_text
from dlperf_hpc.model.case import Case, Limits, Measure, Topology, Until
from dlperf_hpc.sweepfile.casetables import (
    DEFAULT_TIME_LIMIT,
    Repeats,
    SweepFile,
    no_topology,
    read_tables,
)
from dlperf_hpc.sweepfile.declarations import Registry
from dlperf_hpc.sweepfile.expand import expand
from dlperf_hpc.sweepfile.keys import KEYS, key_hint, topology_issue
from dlperf_hpc.sweepfile.programs import UserProgram
from dlperf_hpc.sweepfile.programtables import with_programs
from dlperf_hpc.sweepfile.tomlfile import read_toml
from dlperf_hpc.sweepfile.validation import issues_of

MOST_RUNS = 100_000
_CLOCK = re.compile(
    r"(?:(?:(?P<d>[0-9]{1,3})-)?(?P<h>[0-9]{1,3}):)?(?P<m>[0-9]{1,4}):(?P<s>[0-5][0-9])"
)


@dataclass(frozen=True)
class Sweep:
    """A sweep that holds: every case in it can be asked of a scheduler. ``time_limit_s`` is of one
    run, by topology. ``repeats_per_job`` divides ``repeats`` and counts on a cluster only, but
    for cases that are run ``together``, which have one value there, by the case's id. With
    ``until`` there are ``repeats`` of each case at first, and what is measured decides on more.
    ``notes`` are odd in the file but may be meant. ``programs`` are those of its cases, by name."""

    name: str
    source: Path
    text: str
    topologies: tuple[Topology, ...]
    repeats: int
    base: str | None
    site: str | None
    cluster: str
    time_limit_s: dict[Topology, int]
    measure: Measure
    limits: Limits
    cases: tuple[Case, ...]
    notes: tuple[str, ...] = ()
    repeats_per_job: int = 1
    budget_node_hours: float | None = None
    until: Until | None = None
    programs: Mapping[str, UserProgram] = field(default_factory=dict)
    together: Mapping[str, str] = field(default_factory=dict)

    @property
    def groups(self) -> list[tuple[Case, ...]]:
        """The cases that a job measures in turn: those that are run together, every other alone."""
        found: dict[str, list[Case]] = {}
        for case in self.cases:
            found.setdefault(self.together.get(case.id, case.id), []).append(case)
        return list(map(tuple, found.values()))


def clock_seconds(text: str) -> int:
    """Slurm's time formats with a colon (MM:SS, HH:MM:SS, D-HH:MM:SS) in seconds; ValueError."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is not a time: write MM:SS, HH:MM:SS or D-HH:MM:SS; 1 hour is 01:00:00"
        )
    parts = {key: int(value or 0) for key, value in match.groupdict().items()}
    seconds = ((parts["d"] * 24 + parts["h"]) * 60 + parts["m"]) * 60 + parts["s"]
    if seconds == 0:
        raise ValueError("a time limit of 0 ends a run before it starts")
    return seconds


# Values of --set are put into the file's tables before these are checked.


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
    return _each_case_table(tables, flat)


def _each_case_table(
    tables: Mapping[str, Any], change: Callable[[Any], Any], rules: bool = True
) -> dict[str, Any]:
    """A copy with ``change`` made to [case], [matrix], [[zip]] and what an [[override]] sets. With
    ``rules`` also to what an [[exclude]] and an [[override]] match."""
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
            result[name] = list(map(change, result[name]))
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
        value = list(map(str.strip, value.split(",")))
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


def _read_file(tables: dict[str, Any]) -> tuple[SweepFile, list[Issue]]:
    """The file's tables as a model; what is invalid becomes an issue and takes its default."""
    try:
        return SweepFile.model_validate(tables), []
    except ValidationError as error:
        issues = issues_of(error, SweepFile, _elsewhere(tables))
        kept: dict[str, Any] = {}
        if len(issues) <= MOST_LISTED:
            kept = copy.deepcopy(tables)
            for item in error.errors():
                _remove(kept, item["loc"])
        kept.setdefault("topologies", ["1n1g"])
        return SweepFile.model_validate(kept), issues


def _read_repeats(tables: dict[str, Any]) -> tuple[dict[str, Any], Until | None, list[Issue]]:
    """The tables with the fewest repeats in place of a table of repeats, and what it says."""
    given = tables.get("repeats")
    if not isinstance(given, dict):
        return tables, None, []
    try:
        until = Repeats.model_validate(given).rule
    except ValidationError as error:
        found = issues_of(error, Repeats)
        issues = [replace(each, where=f"repeats.{each.where}".strip(".")) for each in found]
        return {**tables, "repeats": 1}, None, issues
    message = "repeats of one job share their nodes, and do not decide how many it takes"
    issues = [
        Issue(key, message, "leave it out, or write repeats = N")
        for key in ("repeats_per_job", "together")
        if tables.get(key, 1) != 1
    ]
    left = {key: value for key, value in tables.items() if not issues or key != "repeats_per_job"}
    return {**left, "repeats": until.min}, until, issues


def _elsewhere(tables: Iterable[str]) -> dict[str, str]:
    """Where keys belong that are none of the file's top: a case's, renamed ones, another file's."""
    hints = {
        key: f"{key} is a key of a case: put it under [case] or [matrix]"
        for key in KEYS
        if "." not in key
    }
    unknown = [key for key in tables if key not in hints and key not in SweepFile.model_fields]
    for key in unknown[:MOST_LISTED]:
        if hint := key_hint(key, KEYS):
            hints[key] = hint
    return hints


def _remove(tables: dict[str, Any], loc: Iterable[int | str]) -> None:
    here: Any = tables
    table, key = tables, ""
    for part in loc:
        if isinstance(here, dict) and part in here:
            table, key = here, str(part)
        elif not isinstance(here, list):
            break
        here = here[part]
    table.pop(key, None)


class _Reading:
    """Checks of one file that look at several of its keys; collects issues and notes. ``names`` are
    the topologies its keys may name; none where there is nothing to hold them to."""

    def __init__(self, file: SweepFile, issues: list[Issue], narrowed_from: Any) -> None:
        self.file = file
        self.issues = issues
        self.notes: list[str] = []
        self.topologies: list[Topology] = []
        self.names: list[str] = []
        if any(issue.where == "topologies" for issue in issues):
            return
        self.topologies = self._topologies()
        # What --set topologies=... leaves out may still be named by the file's other keys.
        before = narrowed_from if isinstance(narrowed_from, list) else []
        self.names = [name for name in [*file.topologies, *before] if isinstance(name, str)]

    def _topologies(self) -> list[Topology]:
        found: dict[str, Topology] = {}
        for i, text in enumerate(self.file.topologies):
            issue = topology_issue(f"topologies[{i}]", text)
            if issue is not None:
                self.issues.append(issue)
            elif text in found:
                message = f"{text!r} is there twice"
                self.issues.append(Issue(f"topologies[{i}]", message, "leave one out"))
            else:
                found[text] = Topology.parse(text)
        return list(found.values())

    def base(self) -> str | None:
        base = self.file.base
        if base is None and "1n1g" in self.file.topologies:
            return "1n1g"
        if base is not None and self.names and base not in self.file.topologies:
            message = f"{base!r} is not among the topologies"
            here = list(map(str, self.topologies))
            hint = nearest(base, here) or f"there are: {', '.join(here)}"
            self.issues.append(Issue("base", message, hint))
        return base

    def repeats_per_job(self) -> int:
        repeats, per_job = self.file.repeats, self.file.repeats_per_job
        if per_job is None:
            return repeats if self.file.together else 1
        if repeats % per_job:
            fitting = ", ".join(str(n) for n in range(1, repeats + 1) if repeats % n == 0)
            message = f"{per_job} does not divide the {repeats} repeats"
            self.issues.append(Issue("repeats_per_job", message, f"what does: {fitting}"))
        return per_job

    def time_limits(self) -> dict[Topology, int]:
        """Seconds for one run, by topology."""
        given = self.file.time_limit
        seconds: dict[str, int] = {}
        if not isinstance(given, dict):
            seconds["default"] = self._clock("time_limit", given)
            given = {}
        for key, text in given.items():
            if self.names and key not in (*self.names, "default"):
                known = [*self.names, "default"]
                self.issues.append(no_topology(f"time_limit.{key}", key, known, len(self.issues)))
            else:
                seconds[key] = self._clock(f"time_limit.{key}", text)
        left = [str(t) for t in self.topologies if str(t) not in seconds]
        if left and "default" not in seconds:
            note = f"time_limit has no default: {', '.join(left)} get {DEFAULT_TIME_LIMIT}"
            self.notes.append(note)
        fallback = seconds.get("default", clock_seconds(DEFAULT_TIME_LIMIT))
        return {t: seconds.get(str(t), fallback) for t in self.topologies}

    def _clock(self, where: str, text: Any) -> int:
        try:
            if isinstance(text, str):
                return clock_seconds(text)
            form = '"00:30:00", which is 30 minutes'
            if isinstance(text, time):
                form = f'"{text}"'
            message, hint = f"{toml_text(text)} is invalid", f"write it in quotes: {form}"
            self.issues.append(Issue(where, message, hint))
        except ValueError as error:
            self.issues.append(Issue(where, str(error)))
        return 0


def load_sweep(
    path: Path,
    registry: Registry,
    overrides: dict[str, Any] | None = None,
    formats: Iterable[str] | None = None,
    programs: Sequence[Path] | None = None,
) -> Sweep:
    """Read and check a sweep file. SpecError lists everything wrong with it. ``overrides`` are
    ``--set`` values by key: a top-level key, a dotted path, or a case key, which then takes the
    place of every other value the file gives it. ``formats`` are the log formats that a program's
    ``read.format`` may name; None: any. ``programs`` are the folders in which a program's file is
    sought, first to last; None: the one beside the sweep file."""
    text, tables = read_toml(path)
    if not tables:
        hint = "begin with a copy of a ready sweep: `dlperf init .` makes one"
        raise SpecError(str(path), [Issue("file", "is empty: it has no key", hint)])
    flat = flat_case_tables(tables)
    given = apply_overrides(flat, overrides or {}, SweepFile.model_fields)
    given, until, of_repeats = _read_repeats(given)
    file, issues = _read_file(given)
    issues += of_repeats
    reading = _Reading(file, issues, tables.get("topologies"))
    base, limits, per_job = reading.base(), reading.time_limits(), reading.repeats_per_job()
    registry, of_programs = with_programs(file, path, programs, registry, formats)
    if of_programs:  # what follows would speak of programs that there are not
        raise SpecError(str(path), [*issues, *of_programs])
    read, more = read_tables(file, registry, reading.names)
    measure = Measure(**file.measure.model_dump())
    expansion = expand(
        read, reading.topologies, registry, measure, bool(overrides), file.together or ""
    )
    issues += [*_measure_issues(measure), *more, *expansion.issues]
    issues += _count_issues(len(expansion.cases), file.repeats, issues)
    if issues:
        source = str(path)
        if overrides:
            source += f" (with {', '.join(overrides)} of the command line)"
        raise SpecError(source, list(dict.fromkeys(issues)))
    frameworks = dict.fromkeys(case.framework for case in expansion.cases)
    own = registry.programs
    return Sweep(
        name=file.name or _name_of(path),
        source=path,
        text=text,
        topologies=tuple(limits),
        repeats=file.repeats,
        base=base,
        site=file.site,
        cluster=file.cluster,
        time_limit_s=limits,
        measure=measure,
        limits=Limits(**file.limits.model_dump()),
        cases=tuple(expansion.cases),
        notes=(*reading.notes, *expansion.notes),
        repeats_per_job=per_job,
        budget_node_hours=file.budget_node_hours,
        until=until,
        programs={name: own[name] for name in frameworks if name in own},
        together=expansion.together,
    )


def _measure_issues(measure: Measure) -> list[Issue]:
    if measure.keep_checkpoint and not measure.checkpoint:
        message = "there is none to keep: set measure.checkpoint = true too"
        return [Issue("measure.keep_checkpoint", message)]
    return []


def _count_issues(cases: int, repeats: int, found: Sequence[Issue]) -> list[Issue]:
    """A sweep of no case, where nothing else is wrong, or of too many runs."""
    if not cases and not found:
        return [Issue("exclude", "leaves no case at all")]
    if cases * repeats > MOST_RUNS:
        made = f"{cases * repeats} runs of {cases} cases x {repeats} repeats"
        return [Issue("repeats", f"makes {made}, above {MOST_RUNS}")]
    return []


def _name_of(path: Path) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", path.stem).lstrip("._-")[:64] or "sweep"
