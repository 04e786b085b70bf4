"""The case tables of a sweep file - [case], [matrix], [[zip]], [[exclude]], [[override]] - read.

Every value is checked where it stands and takes its type there. What is invalid becomes an issue
and is left out, so that the rest of the file is still checked and all issues are listed at once.

An [[exclude]] and the ``when`` of an [[override]] ask of a key one value, a list of which any will
do, or, where the key is a number, a range written as text: ``"2..8"``, ``">= 4"``.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, Field, ValidationInfo, model_validator

from dlperf_hpc.errors import MOST_LISTED, Issue, nearest, toml_text
from dlperf_hpc.model.case import FEWEST_REPEATS, LARGEST, Limits, Measure, Topology, Until
from dlperf_hpc.sweepfile.declarations import Registry
from dlperf_hpc.sweepfile.keys import COMPILE, key_issue, known_keys, read_value, renamed
from dlperf_hpc.sweepfile.validation import STRICT, Name, matching, refusal

DEFAULT_TIME_LIMIT = "00:30:00"
Values = dict[str, Any]
_Names = Callable[[str, Any], tuple[str, Any]]
_PLACES = 5  # of a key that are named
COUNTS = ("nodes", "gpus_per_node", "devices")
"""Keys of these tables alone: parts of a case's topology."""

_NUMBER = r"-?[0-9]{1,18}(?:\.[0-9]{1,18})?(?:[eE][+-]?[0-9]{1,3})?"
_BETWEEN = re.compile(rf"({_NUMBER})\s*\.\.\s*({_NUMBER})")
_COMPARED = re.compile(rf"(<=|>=|<|>)\s*({_NUMBER})")
_FORMS = 'write a number, or a range: "2..8" (both included), "> 4", ">= 4", "< 4" or "<= 4"'


class _SweepTable(BaseModel):
    model_config = STRICT


class _Measure(_SweepTable):
    warmup: Annotated[int, Field(ge=1, le=10**7)] = Measure.warmup
    iterations: Annotated[int, Field(ge=2, le=10**7)] = Measure.iterations
    min_seconds: Annotated[float, Field(ge=0, le=86400)] = Measure.min_seconds
    min_optimizer_steps: Annotated[int, Field(ge=0, le=10**7)] = Measure.min_optimizer_steps
    communication_steps: Annotated[int, Field(ge=0, le=10**7)] = Measure.communication_steps
    checkpoint: bool = Measure.checkpoint
    keep_checkpoint: bool = Measure.keep_checkpoint
    allreduce_probe: bool = Measure.allreduce_probe


Seconds = Annotated[float, Field(gt=0, le=10**7, allow_inf_nan=False)]


class _Limits(_SweepTable):
    startup_s: Seconds = Limits.startup_s
    iteration_s: Seconds = Limits.iteration_s
    shutdown_s: Seconds = Limits.shutdown_s


class Repeats(_SweepTable):
    """``repeats`` as a table: as many as it takes to know the median of a case."""

    min: Annotated[int, Field(ge=1, le=1000)] = FEWEST_REPEATS
    max: Annotated[int, Field(ge=1, le=1000)] = 25
    until: Annotated[
        str,
        matching(r"(?!0*\.?0*\s*%)[0-9]{1,2}(\.[0-9]{1,6})?\s*%", "a percentage"),
        Field(description='write a percentage above 0 and below 100 in quotes: until = "1%"'),
    ]

    @model_validator(mode="after")
    def _can_decide(self) -> Repeats:
        from dlperf_hpc.model.stopping import looks

        if self.min < FEWEST_REPEATS:
            message = (
                f"{self.min} is below {FEWEST_REPEATS}: the smallest and the largest of fewer runs"
            )
            message += " hold the median with less than 95 %, so that no interval can be stated"
            raise refusal(Issue("min", message, f"write {FEWEST_REPEATS} or more"))
        if self.max < self.min:
            raise refusal(Issue("max", f"{self.max} is below min, which is {self.min}"))
        if self.max > self.min and len(looks(self.min, self.max)) == 1:
            message = f"{self.max} runs give no narrower interval than {self.min}, which is min"
            raise refusal(Issue("max", message, "write twice as many as min"))
        return self

    @property
    def rule(self) -> Until:
        """The table in numbers."""
        return Until(self.min, self.max, float(self.until.rstrip("% ")) / 100)


class _Override(_SweepTable):
    when: dict[str, Any] = {}
    set: dict[str, Any] = {}


def _doubled(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, dict):
        hint = f"write [[{info.field_name}]], with two brackets"
        raise refusal(Issue("", "stands in single brackets", hint))
    return value


_Doubled = BeforeValidator(_doubled)
"""For a table that is written with double brackets."""


class SweepFile(_SweepTable):
    """The tables of a sweep file; ``docs/sweep-file.md`` explains each."""

    name: Name | None = None
    description: str = ""
    topologies: Annotated[
        list[Any],
        Field(min_length=1, description='write topologies = ["1n1g"] at the top of the file'),
    ]
    repeats: Annotated[int, Field(ge=1, le=1000)] = 7
    repeats_per_job: Annotated[int, Field(ge=1, le=1000)] | None = None
    together: Name | None = None
    budget_node_hours: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    base: str | None = None
    site: str | None = None
    cluster: Literal["auto", "slurm", "local"] = "auto"
    time_limit: Any = DEFAULT_TIME_LIMIT
    measure: _Measure = _Measure.model_construct()
    limits: _Limits = _Limits.model_construct()
    case: dict[str, Any] = {}
    matrix: dict[str, Annotated[list[Any], Field(min_length=1)]] = {}
    zip: Annotated[list[dict[str, Annotated[list[Any], Field(min_length=1)]]], _Doubled] = []
    exclude: Annotated[list[dict[str, Any]], _Doubled] = []
    override: Annotated[list[_Override], _Doubled] = []
    program: dict[str, Any] = {}


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, these included."""

    low: float = -math.inf
    high: float = math.inf

    def __contains__(self, value: object) -> bool:
        return isinstance(value, (int, float)) and self.low <= value <= self.high


@dataclass(frozen=True)
class Condition:
    """What a key's value must be: any of ``values``, or within any of ``ranges``."""

    values: frozenset[Any]
    ranges: tuple[Range, ...] = ()

    def holds(self, value: Any) -> bool:
        """Whether a case with this value of the key is meant."""
        return value in self.values or any(value in each for each in self.ranges)


@dataclass(frozen=True)
class CaseRule:
    """An [[exclude]] or [[override]]: where it stands, the cases it is for, what it sets there."""

    where: str
    when: Mapping[str, Condition]
    set: Mapping[str, Any]


@dataclass(frozen=True)
class Tables:
    """What the file says of its cases. ``axes`` are the matrix's lists and the zips' rows.
    ``named`` are the keys given to every case, also those whose value was refused."""

    case: Values
    axes: tuple[Sequence[Values], ...]
    exclude: tuple[CaseRule, ...]
    override: tuple[CaseRule, ...]
    named: frozenset[str]


class _Reader:
    def __init__(self, file: SweepFile, registry: Registry, topologies: Sequence[str]) -> None:
        self.registry = registry
        self.top_level = list(type(file).model_fields)
        self.topologies = topologies
        self.issues: list[Issue] = []
        # Where a program of the sweep has a key of one of these names, it is that key.
        own = {name for program in registry.programs.values() for name in program.keys}
        self.today: _Names = renamed
        if own & {COMPILE, "mode"}:
            self.today = lambda *given: given

    def known(self, where: str, key: str, more: Sequence[str] = ()) -> bool:
        """Whether this is a key; else an issue, with a name near it, also one of ``more``."""
        # A name near it is looked for only as long as it is shown: that takes its time.
        near = len(self.issues) < MOST_LISTED
        issue = key_issue(where, key, self.registry, [*self.top_level, *more], near)
        in_a_rule = where.startswith("exclude") or ".when." in where
        if issue is None and key == "topology" and not in_a_rule:
            issue = Issue(where, "topologies are listed at the top: topologies = [...]")
        self.refuse(issue)
        return issue is None

    def refuse(self, issue: Issue | None) -> None:
        if issue is not None:
            self.issues.append(issue)

    def table(self, where: str, given: Mapping[str, Any]) -> Values:
        read: Values = {}
        for key, value in given.items():
            if self.known(f"{where}.{key}", key):
                read.update(self.value(f"{where}.{key}", key, value))
        return read

    def value(self, where: str, key: str, value: Any) -> Values:
        """``{key: value}`` by today's names, or nothing if it is invalid."""
        read, issue = read_value(where, key, value, self.registry)
        if issue is None:
            return dict([self.today(key, read)])
        if isinstance(value, list) and where.startswith("case."):
            hint = "to measure each of these values, write the list under [matrix]"
            issue = Issue(
                where, f"{toml_text(value)} is a list, and [case] has single values", hint
            )
        self.refuse(issue)
        return {}

    def rows(self, where: str, columns: Mapping[str, Sequence[Any]]) -> list[Values]:
        """Lists that advance together, as rows, but for those with an invalid value."""
        lengths = {key: len(values) for key, values in columns.items()}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{key} has {length}" for key, length in lengths.items())
            message = f"lists that advance together differ in length: {listed}"
            self.refuse(Issue(where, message))
        known = [key for key in columns if self.known(f"{where}.{key}", key)]
        if not known:
            return [{}]
        read = [self.column(f"{where}.{key}", key, columns[key]) for key in known]
        rows = [dict(itertools.chain(*map(dict.items, row))) for row in zip(*read)]
        return [row for row in rows if len(row) == len(known)]

    def column(self, where: str, key: str, values: Iterable[Any]) -> list[Values]:
        """Each value of a list as :meth:`value` has it."""
        return [self.value(f"{where}[{i}]", key, value) for i, value in enumerate(values)]

    def axis(self, key: str, values: Sequence[Any]) -> list[Values]:
        """The rows of one list of [matrix], each value once."""
        rows = self.rows("matrix", {key: values})
        name, _ = self.today(key, None)
        counts = Counter(row[name] for row in rows if row)
        twice = [value for value, count in counts.items() if count > 1]
        if twice:
            message = f"has {toml_text(twice[0])} twice, which would measure one case twice"
            hint = "leave one out; `repeats` at the top of the file measures each case again"
            self.refuse(Issue(f"matrix.{key}", message, hint))
            return [{name: value} for value in counts]
        return rows

    def rule(
        self, where: str, when: Mapping[str, Any], setting: Mapping[str, Any] | None = None
    ) -> list[CaseRule]:
        """An exclude (``setting`` None) or an override; none if part of it is invalid."""
        before = len(self.issues)
        inside = where
        if setting is not None:
            inside = f"{where}.when"
        tables = {inside: when, f"{where}.set": setting or {}}
        if not when:
            self.refuse(Issue(inside, "is empty, so that it would apply to every case"))
        if setting == {}:
            self.refuse(Issue(f"{where}.set", "is empty, so that it would change nothing"))
        for table in tables.items():
            self.issues += _given_twice([table], self.today)
        rule = CaseRule(where, self.conditions(inside, when), self.table(*list(tables.items())[1]))
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
                self.named_topologies(place, condition.values)
        return found

    def named_topologies(self, where: str, names: Iterable[str]) -> None:
        """Refuse topologies that the sweep does not have."""
        for name in sorted(names):
            if self.topologies and name not in self.topologies:
                self.refuse(no_topology(where, name, self.topologies, len(self.issues)))


def no_topology(where: str, name: str, known: Sequence[str], issues: int) -> Issue:
    """The sweep has no topology of this name. The nearest that it has is looked for, which takes
    its time, only as long as so many ``issues`` are visible."""
    message = f"{name!r} is not among the topologies"
    if issues >= MOST_LISTED:
        return Issue(where, message)
    return Issue(where, message, nearest(name, known))


def counts_of(topology: str) -> Mapping[str, int]:
    """The values of :data:`COUNTS` for a topology."""
    found = Topology.parse(topology)
    return dict(zip(COUNTS, (found.nodes, found.gpus_per_node, found.devices)))


def read_condition(
    where: str, key: str, given: Any, registry: Registry
) -> tuple[Condition, list[Issue]]:
    """What is asked of a known key, or one of :data:`COUNTS`, and what is wrong with it."""
    if given == []:
        issue = Issue(where, "is empty, so that it would match no case")
        return Condition(frozenset()), [issue]
    items = {where: given}
    if isinstance(given, list):
        items = {f"{where}[{i}]": item for i, item in enumerate(given)}
    number = _number_type(key, registry)
    values: set[Any] = set()
    ranges: list[Range] = []
    issues: list[Issue] = []
    # A number of nodes is written as a size of a batch is.
    named = dict.fromkeys(COUNTS, "batch_size").get(key, key)
    for place, item in items.items():
        word = (key, item) == ("batch_size", LARGEST)
        if number is not None and isinstance(item, str) and not word:
            try:
                ranges.append(_range(item, number))
            except ValueError as error:
                issues.append(Issue(place, str(error), _FORMS))
            continue
        value, wrong = read_value(place, named, item, registry)
        if wrong is None:
            values.add(value)
        else:
            issues.append(wrong)
    return Condition(frozenset(values), tuple(ranges)), issues


def _number_type(key: str, registry: Registry) -> type[Any] | None:
    if key in COUNTS:
        return int
    base = known_keys(registry)[key]
    if get_origin(base) is Annotated:
        base = get_args(base)[0]
    return base if base in (int, float) else None


def _range(text: str, number: type[Any]) -> Range:
    """The range that a text writes; ValueError, with what is wrong, for any other text."""
    between, compared = _BETWEEN.fullmatch(text.strip()), _COMPARED.fullmatch(text.strip())
    if between:
        low, high = (_bound(text, word, number) for word in between.groups())
        if low > high:
            raise ValueError(f"{toml_text(text)} is empty: {low} is above {high}")
        return Range(low, high)
    if not compared:
        raise ValueError(f"{toml_text(text)} is no range")
    sign, bound = compared[1], _bound(text, compared[2], number)
    if sign == ">":
        return Range(low=math.nextafter(bound, math.inf))
    if sign == "<":
        return Range(high=math.nextafter(bound, -math.inf))
    return Range(low=bound) if sign == ">=" else Range(high=bound)


def _bound(text: str, word: str, number: type[Any]) -> float:
    try:
        value: float = number(word)
    except ValueError:
        raise ValueError(f"{toml_text(text)} is no range of whole numbers") from None
    if not math.isfinite(value):
        raise ValueError(f"{toml_text(text)} has a number that is too large")
    return value


def comparisons(conditions: Iterable[Condition]) -> int:
    """How many comparisons a case with these conditions takes, at most; a list of values is one."""
    return max(1, sum(len(condition.ranges) for condition in conditions))


def read_tables(
    file: SweepFile, registry: Registry, topologies: Sequence[str]
) -> tuple[Tables, list[Issue]]:
    """The file's case tables, and everything wrong with single values in them. ``topologies`` are
    the names a rule may use; none where they are not known."""
    reader = _Reader(file, registry, topologies)
    matrix = [reader.axis(key, values) for key, values in file.matrix.items()]
    zips = [reader.rows(f"zip[{i}]", block) for i, block in enumerate(file.zip)]
    case = reader.table("case", file.case)
    exclude = [reader.rule(f"exclude[{i}]", when) for i, when in enumerate(file.exclude)]
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
            where = f"{place} as {key}"
            places.setdefault(name, []).append(where.removesuffix(f" as {name}"))
    return [
        Issue(key, f"is given twice: in {' and '.join(where[:_PLACES])}", "keep one of them")
        for key, where in places.items()
        if len(where) > 1
    ]
