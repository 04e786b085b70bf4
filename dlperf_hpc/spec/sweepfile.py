"""A sweep file as TOML and as a checked value: :func:`load_sweep` is the only way in.

All issues of a file are found in one go; nothing half-checked leaves this module.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tomllib
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dlperf_hpc.errors import Issue, SpecError
from dlperf_hpc.spec.case import Case, Limits, Measure, Topology
from dlperf_hpc.spec.declarations import Registry
from dlperf_hpc.spec.expand import check_tables, expand
from dlperf_hpc.spec.keys import KEYS, Name, nearest, topology_issue

_CLOCK = re.compile(r"(?:(?P<d>\d+)-)?(?:(?P<h>\d{1,2}):)?(?P<m>\d{1,4}):(?P<s>\d{2})")


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Measure(_Table):
    warmup: Annotated[int, Field(ge=1)] = Measure.warmup
    iterations: Annotated[int, Field(ge=2)] = Measure.iterations
    min_seconds: Annotated[float, Field(ge=0, le=86400)] = Measure.min_seconds
    min_optimizer_steps: Annotated[int, Field(ge=0)] = Measure.min_optimizer_steps


class _Limits(_Table):
    startup_s: Annotated[float, Field(gt=0)] = Limits.startup_s
    iteration_s: Annotated[float, Field(gt=0)] = Limits.iteration_s
    shutdown_s: Annotated[float, Field(gt=0)] = Limits.shutdown_s


class _Override(_Table):
    when: dict[str, Any]
    set: dict[str, Any]


class SweepFile(_Table):
    """The tables of a sweep file; ``docs/sweep-file.md`` explains each."""

    name: Name | None = None
    description: str = ""
    topologies: Annotated[list[str], Field(min_length=1)]
    repeats: Annotated[int, Field(ge=1, le=1000)] = 7
    base: str | None = None
    site: str | None = None
    cluster: Literal["auto", "slurm", "local"] = "auto"
    time_limit: str | dict[str, str] = "00:30:00"
    measure: _Measure = _Measure()
    limits: _Limits = _Limits()
    case: dict[str, Any] = {}
    matrix: dict[str, Annotated[list[Any], Field(min_length=1)]] = {}
    zip: list[dict[str, Annotated[list[Any], Field(min_length=1)]]] = []
    exclude: list[dict[str, Any]] = []
    override: list[_Override] = []


@dataclass(frozen=True)
class Sweep:
    """A sweep that holds: every case in it can be asked of a scheduler.

    ``time_limit_s`` is by topology, in seconds, for one run.
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


def clock_seconds(text: str) -> int:
    """Slurm's time formats with a colon (MM:SS, HH:MM:SS, D-HH:MM:SS) in seconds; ValueError."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a time: write HH:MM:SS")
    parts = {key: int(value or 0) for key, value in match.groupdict().items()}
    seconds = ((parts["d"] * 24 + parts["h"]) * 60 + parts["m"]) * 60 + parts["s"]
    if seconds == 0:
        raise ValueError("a time limit of 0 ends a run before it starts")
    return seconds


def read_toml(path: Path) -> tuple[str, dict[str, Any]]:
    """The file's text and its tables; SpecError with the line for a syntax error."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SpecError(str(path), [Issue("file", "there is no such file")]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(str(path), [Issue("file", f"cannot be read: {error}")]) from error
    try:
        return text, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(str(path), [Issue("TOML syntax", str(error))]) from error


def pydantic_issues(error: ValidationError, known: type[BaseModel]) -> list[Issue]:
    """A model's complaints as issues with key paths and nearest names."""
    issues = []
    for item in error.errors():
        where = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in item["loc"])[1:]
        if item["type"] == "extra_forbidden":
            name = str(item["loc"][-1])
            names = _names_of(known, item["loc"][:-1])
            hint = nearest(name, names)
            if hint is None and name in KEYS:
                hint = f"{name} is a key of a case: put it under [case] or [matrix]"
            issues.append(Issue(where, f"unknown key {name!r}", hint))
        elif item["type"] == "missing":
            issues.append(Issue(where, "is missing"))
        else:
            issues.append(Issue(where, f"{item['input']!r} will not do: {item['msg'].lower()}"))
    return issues


def _names_of(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    for part in loc:
        field = model.model_fields.get(str(part))
        inner = field.annotation if field else None
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            model = inner
    return list(model.model_fields)


def _time_limits(file: SweepFile, issues: list[Issue]) -> dict[Topology, int]:
    given = file.time_limit if isinstance(file.time_limit, dict) else {"default": file.time_limit}
    seconds: dict[str, int] = {}
    for key, text in given.items():
        where = f"time_limit.{key}" if isinstance(file.time_limit, dict) else "time_limit"
        if key != "default" and key not in file.topologies:
            hint = nearest(key, [*file.topologies, "default"])
            issues.append(Issue(where, f"{key!r} is not among the topologies", hint))
            continue
        try:
            seconds[key] = clock_seconds(text)
        except ValueError as error:
            issues.append(Issue(where, str(error)))
    fallback = seconds.get("default", clock_seconds("00:30:00"))
    topologies = [t for t in file.topologies if topology_issue("", t) is None]
    return {Topology.parse(t): seconds.get(t, fallback) for t in topologies}


def _top_level(file: SweepFile) -> list[Issue]:
    found = [topology_issue(f"topologies[{i}]", text) for i, text in enumerate(file.topologies)]
    issues = [issue for issue in found if issue is not None]
    for i, text in enumerate(file.topologies):
        if text in file.topologies[:i]:
            issues.append(Issue(f"topologies[{i}]", f"{text!r} is there twice"))
    if file.base is not None and file.base not in file.topologies:
        issues.append(Issue("base", f"{file.base!r} is not among the topologies {file.topologies}"))
    return issues


def load_sweep(path: Path, registry: Registry, overrides: dict[str, Any] | None = None) -> Sweep:
    """Read and check a sweep file. SpecError lists everything wrong with it.

    ``overrides`` are ``--set`` values by key: a top-level key, a dotted path, or a case key, which
    then takes the place of every other value the file gives it.
    """
    text, tables = read_toml(path)
    tables = apply_overrides(tables, overrides or {})
    try:
        file = SweepFile.model_validate(tables)
    except ValidationError as error:
        raise SpecError(str(path), pydantic_issues(error, SweepFile)) from error
    issues = _top_level(file)
    limits = _time_limits(file, issues)
    issues += check_tables(file, registry)
    if issues:
        raise SpecError(str(path), issues)
    cases = expand(file, [Topology.parse(t) for t in file.topologies], registry, str(path))
    return Sweep(
        name=file.name or re.sub(r"[^A-Za-z0-9._-]", "_", path.stem),
        source=path,
        text=text,
        topologies=tuple(limits),
        repeats=file.repeats,
        base=file.base or ("1n1g" if "1n1g" in file.topologies else None),
        site=file.site,
        cluster=file.cluster,
        time_limit_s=limits,
        measure=Measure(**file.measure.model_dump()),
        limits=Limits(**file.limits.model_dump()),
        cases=tuple(cases),
    )


def apply_overrides(tables: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """The file's tables with ``--set`` values in place."""
    result = dict(tables)
    for key, value in overrides.items():
        head = key.split(".")[0]
        if head in SweepFile.model_fields:
            _put(result, key.split("."), value)
        else:
            _put_case_key(result, key, value)
    return result


def _put(table: dict[str, Any], path: list[str], value: Any) -> None:
    for part in path[:-1]:
        inner = table.get(part)
        table[part] = dict(inner) if isinstance(inner, dict) else {}
        table = table[part]
    table[path[-1]] = value


def _put_case_key(tables: dict[str, Any], key: str, value: Any) -> None:
    def without(table: Any) -> Any:
        return {k: v for k, v in table.items() if k != key} if isinstance(table, dict) else table

    for name in ("case", "matrix"):
        if name in tables:
            tables[name] = without(tables[name])
    if isinstance(tables.get("zip"), list):
        tables["zip"] = [block for block in map(without, tables["zip"]) if block]
    _put(tables, ["case", *key.split(".")], value)
