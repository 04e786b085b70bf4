"""A sweep file as TOML and as a checked value: :func:`load_sweep` is the only way in.

All issues of a file are found in one go; nothing half-checked leaves this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import time
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dlperf_hpc.errors import MOST_LISTED, Issue, SpecError, nearest, toml_text
from dlperf_hpc.model.case import NAME, Case, Limits, Measure, Topology
from dlperf_hpc.sweepfile.declarations import Registry
from dlperf_hpc.sweepfile.expand import expand
from dlperf_hpc.sweepfile.keys import KEYS, topology_issue
from dlperf_hpc.sweepfile.overrides import apply_overrides, flat_case_tables
from dlperf_hpc.sweepfile.programs import UserProgram
from dlperf_hpc.sweepfile.programtables import read_program
from dlperf_hpc.sweepfile.tables import DEFAULT_TIME_LIMIT, SweepFile, read_tables
from dlperf_hpc.sweepfile.tomlfile import read_toml
from dlperf_hpc.sweepfile.validation import issues_of

MOST_RUNS = 100_000
PROGRAMS = "programs"
"""The folder in which programs have files of their own."""
_CLOCK = re.compile(
    r"(?:(?:(?P<d>[0-9]{1,3})-)?(?P<h>[0-9]{1,3}):)?(?P<m>[0-9]{1,4}):(?P<s>[0-5][0-9])"
)


@dataclass(frozen=True)
class Sweep:
    """A sweep that holds: every case in it can be asked of a scheduler.

    ``time_limit_s`` is by topology, in seconds, for one run. ``repeats_per_job`` divides
    ``repeats`` and counts on a cluster only. ``notes`` are odd in the file but may be meant.
    ``programs`` are those that its cases are of, by name.
    """

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
    programs: Mapping[str, UserProgram] = field(default_factory=dict)


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


def _read_file(tables: dict[str, Any]) -> tuple[SweepFile, list[Issue]]:
    """The file's tables as a model; what is invalid becomes an issue and takes its default."""
    try:
        return SweepFile.model_validate(tables), []
    except ValidationError as error:
        issues = issues_of(error, SweepFile, _elsewhere(tables))
        kept = {**tables} if len(issues) <= MOST_LISTED else {}
        for item in error.errors() if kept else ():
            kept = _without(kept, item["loc"])
        kept.setdefault("topologies", ["1n1g"])
        return SweepFile.model_validate(kept), issues


def _elsewhere(tables: Iterable[str]) -> dict[str, str]:
    """Where the keys belong that are none of the file's top: those of a case, and those that have
    another name or another file."""
    from dlperf_hpc.sweepfile.synonyms import key_hint

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


def _without(value: Any, loc: Sequence[int | str]) -> Any:
    """A copy without the innermost table's key on the way to ``loc``."""
    key, *rest = loc
    if isinstance(value, dict) and key not in value:
        return value
    if rest and _is_in(value[key], rest):
        inner = _without(value[key], rest)
        if isinstance(value, list):
            return [inner if i == key else each for i, each in enumerate(value)]
        return {**value, key: inner}
    return {name: each for name, each in value.items() if name != key}


def _is_in(value: Any, loc: Sequence[int | str]) -> bool:
    if isinstance(value, list):
        return len(loc) > 1 and _is_in(value[int(loc[0])], loc[1:])
    return isinstance(value, dict) and loc[0] in value


class _Reading:
    """Checks of one file that look at several of its keys; collects issues and notes.

    ``names`` are the topologies its keys may name; none where there is nothing to hold them to.
    """

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
            if issue is None and text in found:
                issue = Issue(f"topologies[{i}]", f"{text!r} is there twice", "leave one out")
            if issue is None:
                found[text] = Topology.parse(text)
            else:
                self.issues.append(issue)
        return list(found.values())

    def base(self) -> str | None:
        """The topology that speedup refers to, if there is one."""
        base = self.file.base
        if base is None:
            return "1n1g" if "1n1g" in self.file.topologies else None
        if self.names and base not in self.file.topologies:
            message = f"{base!r} is not among the topologies"
            here = [str(topology) for topology in self.topologies]
            hint = nearest(base, here) or f"there are: {', '.join(here)}"
            self.issues.append(Issue("base", message, hint))
        return base

    def repeats_per_job(self) -> int:
        """How many repeats of a case one job measures in turn."""
        repeats, per_job = self.file.repeats, self.file.repeats_per_job
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
                self._no_topology(f"time_limit.{key}", key)
            else:
                seconds[key] = self._clock(f"time_limit.{key}", text)
        left = [str(t) for t in self.topologies if str(t) not in seconds]
        if left and "default" not in seconds:
            told = f"time_limit has no default: {', '.join(left)} get {DEFAULT_TIME_LIMIT}"
            self.notes.append(told)
        fallback = seconds.get("default", clock_seconds(DEFAULT_TIME_LIMIT))
        return {t: seconds.get(str(t), fallback) for t in self.topologies}

    def _no_topology(self, where: str, name: str) -> None:
        hint = None
        if len(self.issues) < MOST_LISTED:  # to look for it takes long
            hint = nearest(name, [*self.names, "default"])
        self.issues.append(Issue(where, f"{name!r} is not among the topologies", hint))

    def _clock(self, where: str, text: Any) -> int:
        try:
            if isinstance(text, str):
                return clock_seconds(text)
            form = f'"{text}"' if isinstance(text, time) else '"00:30:00", which is 30 minutes'
            message, hint = f"{toml_text(text)} is invalid", f"write it in quotes: {form}"
            self.issues.append(Issue(where, message, hint))
        except ValueError as error:
            self.issues.append(Issue(where, str(error)))
        return 0


def _named_frameworks(file: SweepFile) -> Iterator[str]:
    """The values of ``framework`` that the file's cases may have."""
    singles = [file.case, *(each.set for each in file.override)]
    lists = [file.matrix, *file.zip]
    found = [table.get("framework") for table in singles]
    found += [value for table in lists for value in table.get("framework", ())]
    yield from dict.fromkeys(name for name in found if isinstance(name, str))


@dataclass(frozen=True)
class _Found:
    """A program's table. ``place`` is what stands before its keys in a message."""

    name: str
    place: str
    table: Any

    def told(self, issues: Iterable[Issue]) -> list[Issue]:
        """Issues whose key paths begin in the table, as paths from the file's top."""
        return [replace(each, where=f"{self.place}{each.where}".rstrip(".: ")) for each in issues]


def _programs(
    file: SweepFile,
    path: Path,
    folders: Sequence[Path],
    registry: Registry,
    formats: Iterable[str] | None,
) -> tuple[Registry, list[Issue]]:
    """The registry with the sweep's programs: its own tables, and for names that neither they nor
    a back end has, ``NAME.toml`` in the first of the folders that has it."""
    tables, issues = _program_tables(file, path, folders, registry)
    programs: dict[str, UserProgram] = {}
    known = list(formats) if tables and formats is not None else None
    for found in tables:
        name = found.name
        program, wrong = read_program(name, found.table, known)
        issues += found.told(wrong)
        if name in registry.backends:
            message = f"{name!r} is a back end of dlperf_hpc: two programs of one name"
            issues.append(Issue(f"program.{name}", message, "give yours another name"))
        elif program is not None:
            issues += found.told(_type_issues(program, replace(registry, programs=programs)))
            programs[name] = program
    return replace(registry, programs=programs), issues


def _program_tables(
    file: SweepFile, path: Path, folders: Sequence[Path], registry: Registry
) -> tuple[list[_Found], list[Issue]]:
    """The tables of the sweep's programs, and what is wrong with their names."""
    found = [_Found(name, f"program.{name}.", table) for name, table in file.program.items()]
    issues: list[Issue] = []
    for name in _named_frameworks(file):
        if name in registry.backends or not re.fullmatch(NAME, name):
            continue
        own, beside = name in file.program, path.parent / PROGRAMS / f"{name}.toml"
        there = [path for path in (each / f"{name}.toml" for each in folders) if path.exists()]
        if own:  # a file elsewhere gives way to the sweep's own table
            if beside.exists():
                message = f"stands here and in {beside}: two programs of one name"
                issues.append(Issue(f"program.{name}", message, "rename or remove one of them"))
        elif there:
            found.append(_Found(name, f"{there[0]}: ", read_toml(there[0])[1]))
        else:
            issues += _near_program(name, folders, registry)
    return found, issues


def _near_program(name: str, folders: Iterable[Path], registry: Registry) -> list[Issue]:
    """The issue of a framework that there is not where a program's file has nearly its name."""
    files = {path.stem for each in folders for path in each.glob("*.toml")}
    hint = nearest(name, sorted({*files, *registry.backends}))
    meant = next((each for each in files if hint and repr(each) in hint), None)
    return [Issue("framework", f"there is no framework {name!r}", hint)] if meant else []


def _type_issues(program: UserProgram, registry: Registry) -> list[Issue]:
    """Own keys that are of another type elsewhere: a value in [matrix] has one type."""
    options = [o for each in registry.programs.values() for o in each.options]
    options += [o for each in registry.backends.values() for o in each.options]
    options += [o for each in registry.workloads.values() for o in each.options]
    types = {option.name: type(option.default) for option in options}
    return [
        Issue(
            f"keys.{key}",
            f"{key} is a {types[key].__name__} elsewhere, and here {toml_text(default)}",
            "rename it, or give it a default of that type",
        )
        for key, default in program.keys.items()
        if types.get(key, type(default)) is not type(default)
    ]


def load_sweep(
    path: Path,
    registry: Registry,
    overrides: dict[str, Any] | None = None,
    formats: Iterable[str] | None = None,
    programs: Sequence[Path] | None = None,
) -> Sweep:
    """Read and check a sweep file. SpecError lists everything wrong with it.

    ``overrides`` are ``--set`` values by key: a top-level key, a dotted path, or a case key, which
    then takes the place of every other value the file gives it. ``formats`` are the log formats
    that a program's ``read.format`` may name; None: any. ``programs`` are the folders in which a
    program's file is sought, first to last; None: the one beside the sweep file.
    """
    text, tables = read_toml(path)
    if not tables:
        hint = "begin with a copy of a ready sweep: `dlperf init .` makes one"
        raise SpecError(str(path), [Issue("file", "is empty: it has no key", hint)])
    flat = flat_case_tables(tables)
    file, issues = _read_file(apply_overrides(flat, overrides or {}, SweepFile.model_fields))
    reading = _Reading(file, issues, tables.get("topologies"))
    base, limits, per_job = reading.base(), reading.time_limits(), reading.repeats_per_job()
    folders = [path.parent / PROGRAMS] if programs is None else programs
    registry, of_programs = _programs(file, path, folders, registry, formats)
    if of_programs:  # what follows would speak of programs that there are not
        raise SpecError(str(path), [*issues, *of_programs])
    read, more = read_tables(file, registry, reading.names)
    measure = Measure(**file.measure.model_dump())
    narrowed = bool(overrides)
    expansion = expand(read, reading.topologies, registry, narrowed=narrowed, measure=measure)
    issues += [*_measure_issues(measure), *more, *expansion.issues]
    issues += _count_issues(len(expansion.cases), file.repeats, issues)
    if issues:
        source = str(path)
        if overrides:
            source += f" (with {', '.join(overrides)} of the command line)"
        raise SpecError(source, list(dict.fromkeys(issues)))
    frameworks = dict.fromkeys(case.framework for case in expansion.cases)
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
        programs={
            name: registry.programs[name] for name in frameworks if name in registry.programs
        },
    )


def _measure_issues(measure: Measure) -> list[Issue]:
    if measure.keep_checkpoint and not measure.checkpoint:
        message = "there is none to keep: set measure.checkpoint = true too"
        return [Issue("measure.keep_checkpoint", message)]
    return []


def _count_issues(cases: int, repeats: int, others: Sequence[Issue]) -> list[Issue]:
    """A sweep of no case, where nothing else is wrong, or of too many runs."""
    if not cases and not others:
        return [Issue("exclude", "leaves no case at all")]
    if cases * repeats > MOST_RUNS:
        made = f"{cases * repeats} runs of {cases} cases x {repeats} repeats"
        return [Issue("repeats", f"makes {made}, above {MOST_RUNS}")]
    return []


def _name_of(path: Path) -> str:
    """The file's name as a sweep's."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", path.stem).lstrip("._-")[:64] or "sweep"
