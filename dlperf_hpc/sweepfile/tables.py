"""The case tables of a sweep file - [case], [matrix], [[zip]], [[exclude]], [[override]] - read.

Every value is checked where it stands and takes its type there. What is invalid becomes an issue
and is left out, so that the rest of the file can still be checked and all issues told at once.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, ValidationInfo

from dlperf_hpc.errors import MOST_LISTED, Issue, nearest, toml_text
from dlperf_hpc.model.case import Limits, Measure
from dlperf_hpc.sweepfile.conditions import COUNTS, Condition, read_condition
from dlperf_hpc.sweepfile.declarations import Registry
from dlperf_hpc.sweepfile.keys import COMPILE, key_issue, read_value, renamed
from dlperf_hpc.sweepfile.validation import STRICT, Name, refusal

DEFAULT_TIME_LIMIT = "00:30:00"
Values = dict[str, Any]
_Names = Callable[[str, Any], tuple[str, Any]]
_PLACES = 5  # of a key that are named


class _Table(BaseModel):
    model_config = STRICT


class _Measure(_Table):
    warmup: Annotated[int, Field(ge=1, le=10**7)] = Measure.warmup
    iterations: Annotated[int, Field(ge=2, le=10**7)] = Measure.iterations
    min_seconds: Annotated[float, Field(ge=0, le=86400)] = Measure.min_seconds
    min_optimizer_steps: Annotated[int, Field(ge=0, le=10**7)] = Measure.min_optimizer_steps
    communication_steps: Annotated[int, Field(ge=0, le=10**7)] = Measure.communication_steps
    checkpoint: bool = Measure.checkpoint
    keep_checkpoint: bool = Measure.keep_checkpoint


Seconds = Annotated[float, Field(gt=0, le=10**7, allow_inf_nan=False)]


class _Limits(_Table):
    startup_s: Seconds = Limits.startup_s
    iteration_s: Seconds = Limits.iteration_s
    shutdown_s: Seconds = Limits.shutdown_s


class _Override(_Table):
    when: dict[str, Any] = {}
    set: dict[str, Any] = {}


def _doubled(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, dict):
        hint = f"write [[{info.field_name}]], with two brackets"
        raise refusal(Issue("", "stands in single brackets", hint))
    return value


_Doubled = BeforeValidator(_doubled)
"""For a table that is written with double brackets."""


class SweepFile(_Table):
    """The tables of a sweep file; ``docs/sweep-file.md`` explains each."""

    name: Name | None = None
    description: str = ""
    topologies: Annotated[
        list[Any],
        Field(min_length=1, description='write topologies = ["1n1g"] at the top of the file'),
    ]
    repeats: Annotated[int, Field(ge=1, le=1000)] = 7
    repeats_per_job: Annotated[int, Field(ge=1, le=1000)] = 1
    base: str | None = None
    site: str | None = None
    cluster: Literal["auto", "slurm", "local"] = "auto"
    time_limit: Any = DEFAULT_TIME_LIMIT
    measure: _Measure = _Measure()
    limits: _Limits = _Limits()
    case: dict[str, Any] = {}
    matrix: dict[str, Annotated[list[Any], Field(min_length=1)]] = {}
    zip: Annotated[list[dict[str, Annotated[list[Any], Field(min_length=1)]]], _Doubled] = []
    exclude: Annotated[list[dict[str, Any]], _Doubled] = []
    override: Annotated[list[_Override], _Doubled] = []
    program: dict[str, Any] = {}


@dataclass(frozen=True)
class Rule:
    """An [[exclude]] or [[override]]: where it stands, the cases it is for, what it sets there."""

    where: str
    when: Mapping[str, Condition]
    set: Mapping[str, Any]


@dataclass(frozen=True)
class Tables:
    """What the file says of its cases. ``axes`` are the matrix's lists and the zips' rows.

    ``named`` are the keys given to every case, also those whose value was refused.
    """

    case: Values
    axes: tuple[Sequence[Values], ...]
    exclude: tuple[Rule, ...]
    override: tuple[Rule, ...]
    named: frozenset[str]


class _Reader:
    def __init__(self, file: SweepFile, registry: Registry, topologies: Sequence[str]) -> None:
        self.registry = registry
        self.top_level = list(type(file).model_fields)
        self.topologies = topologies
        self.issues: list[Issue] = []
        # Where a program of the sweep has a key of one of these names, it is that key.
        own = {name for program in registry.programs.values() for name in program.keys}
        self.today: _Names = (lambda *given: given) if own & {COMPILE, "mode"} else renamed

    def known(self, where: str, key: str, more: Sequence[str] = ()) -> bool:
        """Whether this is a key; else an issue, with a name near it, also one of ``more``."""
        # A name near it is looked for only as long as it is shown: that takes its time.
        near = len(self.issues) < MOST_LISTED
        issue = key_issue(where, key, self.registry, [*self.top_level, *more], near)
        if issue is None and key == "topology" and not _may_name_topology(where):
            issue = Issue(where, "topologies are listed at the top: topologies = [...]")
        self.issues += [issue] if issue else []
        return issue is None

    def table(self, where: str, given: Mapping[str, Any]) -> Values:
        """The table's values that will do."""
        read: Values = {}
        for key, value in given.items():
            if self.known(f"{where}.{key}", key):
                read.update(self.value(f"{where}.{key}", key, value))
        return read

    def value(self, where: str, key: str, value: Any) -> Values:
        """``{key: value}`` by today's names, or nothing if it is invalid."""
        given, listed = value, isinstance(value, list) and where.startswith("case.")
        value, issue = read_value(where, key, value, self.registry)
        if issue and listed:
            hint = "to measure each of these values, write the list under [matrix]"
            issue = Issue(
                where, f"{toml_text(given)} is a list, and [case] has single values", hint
            )
        self.issues += [issue] if issue else []
        return {} if issue else dict([self.today(key, value)])

    def rows(self, where: str, columns: Mapping[str, Sequence[Any]]) -> list[Values]:
        """Lists that advance together, as rows, but for those with an invalid value."""
        lengths = {key: len(values) for key, values in columns.items()}
        self.check_lengths(where, lengths)
        known = [key for key in columns if self.known(f"{where}.{key}", key)]
        rows: list[Values] = [{} for _ in range(min(lengths.values(), default=0))]
        for key in known:
            for i, value in enumerate(columns[key]):
                read = self.value(f"{where}.{key}[{i}]", key, value)
                if i < len(rows):
                    rows[i].update(read)
        return [row for row in rows if len(row) == len(known)]

    def check_lengths(self, where: str, lengths: Mapping[str, int]) -> None:
        """Refuse lists of different lengths that advance together."""
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{key} has {length}" for key, length in lengths.items())
            message = f"lists that advance together differ in length: {told}"
            self.issues.append(Issue(where, message))

    def axis(self, key: str, values: Sequence[Any]) -> list[Values]:
        """The rows of one list of [matrix], each value once."""
        rows = self.rows("matrix", {key: values})
        name, _ = self.today(key, None)
        counts = Counter(row[name] for row in rows if row)
        twice = [value for value, count in counts.items() if count > 1]
        if twice:
            message = f"has {toml_text(twice[0])} twice, which would measure one case twice"
            hint = "leave one out; `repeats` at the top of the file measures each case again"
            self.issues.append(Issue(f"matrix.{key}", message, hint))
        return [{name: value} for value in counts] if twice else rows

    def rule(
        self, where: str, when: Mapping[str, Any], setting: Mapping[str, Any] | None
    ) -> list[Rule]:
        """An exclude (``setting`` None) or an override; none if part of it is invalid."""
        before = len(self.issues)
        inside = where if setting is None else f"{where}.when"
        if not when:
            self.issues.append(Issue(inside, "is empty, so that it would apply to every case"))
        if setting == {}:
            self.issues.append(Issue(f"{where}.set", "is empty, so that it would change nothing"))
        for place, table in ((inside, when), (f"{where}.set", setting or {})):
            self.issues += _given_twice([(place, table)], self.today)
        rule = Rule(where, self.conditions(inside, when), self.table(f"{where}.set", setting or {}))
        return [rule] if len(self.issues) == before else []

    def conditions(self, where: str, given: Mapping[str, Any]) -> dict[str, Condition]:
        """What a rule asks of a case, without what is invalid."""
        found: dict[str, Condition] = {}
        for key, value in given.items():
            place = f"{where}.{key}"
            if key not in COUNTS and not self.known(place, key, COUNTS):
                continue
            condition, issues = read_condition(place, key, value, self.registry)
            self.issues += issues
            name, _ = self.today(key, None)
            values = frozenset(self.today(key, each)[1] for each in condition.values)
            found[name] = Condition(values, condition.ranges)
            if key == "topology" and not issues:
                self.named_topologies(place, value if isinstance(value, list) else [value])
        return found

    def named_topologies(self, where: str, names: Sequence[str]) -> None:
        """Refuse topologies that the sweep does not have."""
        for name in dict.fromkeys(names) if self.topologies else ():
            if name not in self.topologies:
                near = len(self.issues) < MOST_LISTED
                hint = nearest(name, self.topologies) if near else None
                self.issues.append(Issue(where, f"{name!r} is not among the topologies", hint))


def _may_name_topology(where: str) -> bool:
    return where.startswith("exclude") or ".when." in where


def read_tables(
    file: SweepFile, registry: Registry, topologies: Sequence[str]
) -> tuple[Tables, list[Issue]]:
    """The file's case tables, and everything wrong with single values in them.

    ``topologies`` are the names a rule may use; none where they are not known.
    """
    reader = _Reader(file, registry, topologies)
    matrix = [reader.axis(key, values) for key, values in file.matrix.items()]
    zips = [reader.rows(f"zip[{i}]", block) for i, block in enumerate(file.zip)]
    case = reader.table("case", file.case)
    exclude = [reader.rule(f"exclude[{i}]", when, None) for i, when in enumerate(file.exclude)]
    override = [
        reader.rule(f"override[{i}]", each.when, each.set) for i, each in enumerate(file.override)
    ]
    tables = Tables(
        case=case,
        axes=(*matrix, *zips),
        exclude=tuple(itertools.chain(*exclude)),
        override=tuple(itertools.chain(*override)),
        named=frozenset([*file.case, *file.matrix, *itertools.chain(*file.zip)]),
    )
    named = [("[case]", file.case), ("[matrix]", file.matrix)]
    named += [(f"zip[{i}]", block) for i, block in enumerate(file.zip)]
    return tables, reader.issues + _given_twice(named, reader.today)


def _given_twice(tables: Iterable[tuple[str, Mapping[str, Any]]], today: _Names) -> list[Issue]:
    """Keys that stand in several of the tables, or in one by both their names."""
    places: dict[str, list[str]] = {}
    for place, table in tables:
        for key in table:
            name, _ = today(key, None)
            places.setdefault(name, []).append(place if name == key else f"{place} as {key}")
    return [
        Issue(key, f"is given twice: in {' and '.join(where[:_PLACES])}", "keep one of them")
        for key, where in places.items()
        if len(where) > 1
    ]
