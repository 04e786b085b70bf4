"""From a sweep file's tables to its cases: matrix and zip, overrides, exclude, in that order.

Single values have been checked where they stand (:mod:`.casetables`); what can only be seen in a
whole case (a precision the back end lacks, a global batch that does not divide) is checked here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from dlperf_hpc.errors import Issue, number_of
from dlperf_hpc.model import case as cases
from dlperf_hpc.model.case import LARGEST, MODES, Case, Measure, Optimizer, Schedule, Topology
from dlperf_hpc.sweepfile import programs
from dlperf_hpc.sweepfile import together as pairs
from dlperf_hpc.sweepfile.case_issues import SCHEDULE, option_issues, point_issues
from dlperf_hpc.sweepfile.casetables import CaseRule, Tables, Values, comparisons, counts_of
from dlperf_hpc.sweepfile.declarations import Registry
from dlperf_hpc.sweepfile.expressions import ExpressionError
from dlperf_hpc.sweepfile.keys import KEYS
from dlperf_hpc.sweepfile.programs import RUN_NAMES, TASK_NAMES

MOST_CASES = 10_000  # a slip of the pen makes more, a sweep does not
MOST_COMPARISONS = 1_000_000  # of a case with an [[exclude]] or [[override]]
_MOST_ISSUES = 100
_MEASURE = Measure()
_REQUIRED = ("framework", "model", "batch_size")
# Parts of a run's name already; every other key that leaves its default becomes a tag.
_IN_THE_NAME = {"framework", "model", "precision", "batch_size", "topology"}
_MODE = "compile.mode"  # of a back end; a program may have keys of both names
_TAG_NAMES = {
    _MODE: "",
    "accumulation": "acc",
    "seq_len": "seq",
    "global_batch": "gbs",  # the rule, not its outcome: accumulation differs along one curve
    "optimizer.name": "",
    "optimizer.bias_correction": "bias",
    "schedule.name": "",
    "schedule.decay_rate": "decay",
    "schedule.decay_steps": "per",
    "data": "",
    "device": "",
    "environment": "env",
    "processes_per_node": "ppn",
}
# Values that a name cannot hold as they are; the schedules by the names bing_bert gives them.
_TAG_VALUES = {
    ("optimizer.name", "lamb-nvidia"): "lambnvidia",
    ("optimizer.name", "lamb-deepspeed"): "lambdeepspeed",
    ("schedule.name", "warmup_exp_decay_poly"): "EP",
    ("schedule.name", "warmup_linear_decay_exp"): "LE",
    ("schedule.name", "warmup_exp_decay_exp"): "EE",
}


@dataclass(frozen=True)
class Expansion:
    """The cases, what is wrong with some, and what is odd but may be meant. ``together`` has one
    value, by the case's id, for those that are run together."""

    cases: list[Case]
    issues: list[Issue]
    notes: list[str]
    together: Mapping[str, str] = field(default_factory=dict)


def expand(
    tables: Tables,
    topologies: Sequence[Topology],
    registry: Registry,
    measure: Measure = _MEASURE,
    narrowed: bool = False,
    together: str = "",
) -> Expansion:
    """All cases of the sweep, and every issue that no single value shows. ``narrowed``: values of
    the command line replace the file's, so that cases which differed in these may be one now.
    ``together``: the key in which cases that are run together differ; '' where none are."""
    if issue := _too_large(tables, len(topologies)):
        return Expansion([], [issue], [])
    found = _Cases(registry, _Commands(registry, measure), narrowed)
    used: set[str] = set()
    groups: dict[str, str] = {}
    apart, of_together = pairs.advancing(tables.axes, together) if together else (frozenset(), [])
    for point, full, given in _points(tables, topologies, registry, used):
        missing = set(_REQUIRED) - point.keys()
        case = None if missing else found.add(point, full)
        if case and apart:
            groups[case.id] = pairs.group_of(given, apart)
        for key in sorted(missing - tables.named, key=_REQUIRED.index):
            found.refuse([Issue(f"case.{key}", "is missing: give it in [case] or [matrix]")])
        if len(found.issues) > _MOST_ISSUES:
            message = "have more issues of this kind; the check stopped here"
            found.refuse([Issue("cases", message)])
            break
    rules = (*tables.exclude, *tables.override)
    notes = [f"{rule.where} matches no case" for rule in rules if rule.where not in used]
    notes += found.notes()
    if groups:
        notes += pairs.note_on(found.cases.values(), groups)
        of_together += pairs.issues_of(found.cases.values(), groups)
    return Expansion(list(found.cases.values()), [*found.issues, *of_together], notes, groups)


@dataclass
class _Cases:
    """The cases that hold, by id, and the issues of others. ``merged`` counts the cases that values
    of the command line made equal to another."""

    registry: Registry
    commands: _Commands
    narrowed: bool
    cases: dict[str, Case] = field(default_factory=dict)
    issues: dict[Issue, None] = field(default_factory=dict)
    merged: int = 0

    def refuse(self, issues: Iterable[Issue]) -> None:
        self.issues.update(dict.fromkeys(issues))

    def add(self, point: Values, full: Values) -> Case | None:
        """Take in the case of a point, unless a condition of its program leaves it out; the case,
        if one was made."""
        if self.commands.leaves_out(full):
            return None
        found, case = self._issues_before(point, full), None
        if not found:
            case = _case(point, full, self.registry)
            found = self._issues_of(case)
            self.cases[case.id] = case
        self.refuse(found)
        return case

    def _issues_before(self, point: Values, full: Values) -> list[Issue]:
        """What is wrong with the values of a case, of which no case can be made then."""
        if full["framework"] in self.registry.programs:
            return _program_issues(point, full, self.registry)
        found = point_issues(point, full, self.registry)
        if full["model"] in self.registry.workloads:
            found += _batch_issues(point, full, self.registry)
        return found

    def _issues_of(self, case: Case) -> list[Issue]:
        if case.id in self.cases:
            if self.narrowed and self.cases[case.id] == case:
                self.merged += 1
                return []
            return [Issue("cases", f"{case.id} comes out twice; one would overwrite the other")]
        if case.launch:
            return self.commands.issues(case)
        declared = (self.registry.backends[case.framework], self.registry.workloads[case.model])
        found = [each.check(case) for each in declared if each.check is not None]
        return list(itertools.starmap(Issue, itertools.chain(*found)))

    def notes(self) -> list[str]:
        """What is odd in the file but may be meant."""
        notes = self.commands.notes()
        if self.merged:
            left = f"{len(self.cases)} are left"
            notes.append(f"--set made {self.merged} cases equal to others: {left}")
        return notes


@dataclass
class _Commands:
    """The commands of programs' cases: each must come out, and no two cases may have the same.
    ``left_out`` has the topologies of cases without a command, by program and unmet condition."""

    registry: Registry
    measure: Measure
    left_out: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    _first: dict[tuple[Any, ...], str] = field(default_factory=dict)

    def leaves_out(self, full: Values) -> bool:
        """Whether a condition of its program leaves a case out. One that cannot be computed leaves
        none out: :func:`_program_issues` says so."""
        program = self.registry.programs.get(full["framework"])
        if program is None or not program.require:
            return False
        try:
            condition = programs.unmet(program, _named_values(full, self.registry))
        except ExpressionError:
            return False
        if condition:
            self.left_out.setdefault((program.name, condition), []).append(full["topology"])
        return bool(condition)

    def issues(self, case: Case) -> list[Issue]:
        program = self.registry.programs[case.framework]
        values = programs.plan_values(case, self.measure)
        try:
            made = programs.command(program, values, (*TASK_NAMES, *RUN_NAMES))
        except ExpressionError as error:
            return [_of_program(program.name, error, f"in case {case.id}")]
        place = (program.name, case.topology, case.environment, made.workdir)
        first = self._first.setdefault((*place, made.argv, *made.env.values()), case.id)
        if first == case.id:
            return []
        message = f"{case.id} and {first} start the same command: it would be measured twice"
        hint = "name what tells them apart as a placeholder in run, or leave one of them out"
        return [Issue(f"program.{program.name}.run", message, hint)]

    def notes(self) -> list[str]:
        """How many cases each condition leaves out, and where."""
        return [
            f"program.{name}.require: {condition} leaves out {number_of(len(where), 'case')}"
            f" ({', '.join(dict.fromkeys(where))})"
            for (name, condition), where in self.left_out.items()
        ]


def _of_program(name: str, error: ExpressionError, hint: str | None = None) -> Issue:
    """What is wrong in a program's table, which the error names with its key."""
    key, _, words = str(error).partition(": ")
    return Issue(f"program.{name}.{key}", words, hint)


def _too_large(tables: Tables, topologies: int) -> Issue | None:
    """Why the tables are not expanded: the product is counted before anything is made of it."""
    size = math.prod(map(len, tables.axes)) * topologies
    if size > MOST_CASES:
        number_text = "more than 10^18"  # it may have a million digits
        if size < 10**18:
            number_text = str(size)
        return Issue("matrix", f"makes {number_text} cases, above {MOST_CASES}")
    rules = [*tables.exclude, *tables.override]
    number = sum(comparisons(rule.when.values()) for rule in rules)
    if number * size > MOST_COMPARISONS:
        what = "of [[exclude]] and [[override]]"
        if number != len(rules):
            what = f"ranges and rules {what}"
        product = f"{number} {what} x {size} cases"
        return Issue(
            "exclude",
            f"{product} are {number * size} comparisons, above {MOST_COMPARISONS}",
            "one rule can be for many cases: name fewer keys in it, or take fewer cases",
        )
    return None


def _points(
    tables: Tables, topologies: Sequence[Topology], registry: Registry, used: set[str]
) -> Iterator[tuple[Values, Values, Values]]:
    """[case] with each point of the axes and each topology, changed by overrides, less excludes;
    all that holds for that case; and what it was before overrides. Notes in ``used`` where the
    rules that matched stand."""
    for parts in itertools.product(*tables.axes):
        values = dict(tables.case)
        for part in parts:
            values.update(part)
        for topology in topologies:
            given = {**values, "topology": str(topology)}
            point, full = dict(given), _full(given, registry)
            for rule in tables.override:
                if _matches(full, rule):
                    used.add(rule.where)
                    point.update(rule.set)
                    full = _full(point, registry)
            matching = [rule.where for rule in tables.exclude if _matches(full, rule)]
            used.update(matching)
            if not matching:
                yield point, full, given


def _full(point: Values, registry: Registry) -> Values:
    full = {**_defaults(point, registry), **point, **counts_of(point["topology"])}
    return {**full, **_accumulation(full, registry)}


def _matches(full: Values, rule: CaseRule) -> bool:
    return all(wanted.holds(full.get(key)) for key, wanted in rule.when.items())


_OPTIMIZER = "optimizer."
_TABLES = (_OPTIMIZER, SCHEDULE)
_PLAIN_KEYS = {key for key in KEYS if not key.startswith(_TABLES)} - {"global_batch"}
_TABLE_KEYS = {prefix: [key for key in KEYS if key.startswith(prefix)] for prefix in _TABLES}
_KEY_DEFAULTS = {name: key.default for name, key in KEYS.items()}


def _defaults(point: Values, registry: Registry) -> Values:
    framework = point.get("framework", "")
    if framework in registry.programs:
        return {**_KEY_DEFAULTS, **registry.programs[framework].keys}
    return dict(_declared(framework, point.get("model", ""), point.get("mode", MODES[0]), registry))


@lru_cache(maxsize=256)
def _declared(framework: str, model: str, mode: str, registry: Registry) -> Values:
    values = dict(_KEY_DEFAULTS)
    workload = registry.workloads.get(model)
    if workload is not None:
        values["seq_len"] = workload.default_seq_len
    for declaration in (registry.backends.get(framework), workload):
        if declaration is not None:
            for option in declaration.options:
                values[option.name] = option.default_in(mode)
    return values


def _accumulation(full: Values, registry: Registry) -> Values:
    if full.get("global_batch") is None or full.get("batch_size") in (None, LARGEST):
        return {}
    try:
        per_iteration = int(full["batch_size"]) * _replicas(full, registry)
        return {"accumulation": full["global_batch"] // per_iteration}
    except ExpressionError:
        return {}  # :func:`_replica_issues` says so


def _replicas(full: Values, registry: Registry) -> int:
    program = registry.programs.get(full["framework"])
    if program is None:
        return Topology.parse(full["topology"]).devices
    return programs.replicas_of(program, {**full, **_counts(full, registry)})


def _counts(full: Values, registry: Registry) -> Values:
    counts = counts_of(full["topology"])
    ranks = counts["devices"]
    if registry.programs[full["framework"]].launch == "node":
        ranks = counts["nodes"]
    return {**counts, "ranks": ranks, "ranks_per_node": ranks // counts["nodes"]}


def _named_values(full: Values, registry: Registry) -> Values:
    """What a condition of a program may name: ``replicas`` only where it comes out."""
    values = {**full, **_counts(full, registry)}
    try:
        return {**values, "replicas": _replicas(full, registry)}
    except ExpressionError:
        return values


def _program_issues(point: Values, full: Values, registry: Registry) -> list[Issue]:
    """What is wrong with a case of a user's program: its model and its data are its own."""
    name = point["framework"]
    issues = option_issues(point, registry)
    if "processes_per_node" in point:
        rule = f"is given, but launch of program.{name} says how many processes there are"
        issues.append(Issue("processes_per_node", rule))
    if "mode" in point and "mode" not in registry.programs[name].keys:
        issues.append(Issue("mode", f"is given, but program.{name} has no key of that name"))
    try:
        programs.unmet(registry.programs[name], _named_values(full, registry))
        return issues + _batch_issues(point, full, registry)
    except ExpressionError as error:
        return [*issues, _of_program(name, error)]


def _batch_issues(point: Values, full: Values, registry: Registry) -> list[Issue]:
    replicas = _replicas(full, registry)  # also where nothing divides: they must come out whole
    if point["batch_size"] == LARGEST:
        return list(_largest_issues(point, registry))
    if "global_batch" not in point:
        return []
    if "accumulation" in point:
        return [Issue("global_batch", "is given together with accumulation: give one of the two")]
    total, topology = point["global_batch"], point["topology"]
    if total and total % (point["batch_size"] * replicas) == 0:
        return []
    each = "replicas"
    if point["framework"] in registry.backends:
        each = "devices"
    product = f"batch_size {point['batch_size']} x {replicas} {each} of {topology}"
    message = f"{total} does not divide by {point['batch_size'] * replicas} = {product}"
    return [Issue("global_batch", message)]


def _largest_issues(point: Values, registry: Registry) -> Iterator[Issue]:
    """What cannot be together with a batch size that a run is to find."""
    if point["framework"] in registry.programs:
        yield Issue(
            "batch_size", f'"{LARGEST}" is for back ends: give {point["framework"]} a number'
        )
    if "global_batch" in point:
        rule = f'is given, but batch_size = "{LARGEST}" is not known before the runs'
        yield Issue("global_batch", rule, "give accumulation in its place")


def _case(point: Values, full: Values, registry: Registry) -> Case:
    options = registry.options(full["framework"], full["model"])
    own = tuple((name, full[name]) for name in sorted(option.name for option in options))
    topology = Topology.parse(full["topology"])
    values = {key: full[key] for key in _PLAIN_KEYS}
    if full["batch_size"] == LARGEST:
        values.update(batch_size=0, largest=True)
    program = registry.programs.get(full["framework"])
    if program is not None:
        values["processes_per_node"] = program.per_node(topology)
        values["seq_len"] = full["seq_len"] or 0
        values["mode"] = MODES[0]  # a key of that name is the program's own, among its options
        values["launch"] = program.launch
        values["replicas"] = _replicas(full, registry)
    return Case(
        **values,
        topology=topology,
        optimizer=Optimizer(**_table(_OPTIMIZER, full)),
        schedule=Schedule(**_table(SCHEDULE, full)),
        options=own,
        tags=cases.fitting(_tags(point, registry)),
    )


def _table(prefix: str, full: Values) -> Values:
    return {key.removeprefix(prefix): full[key] for key in _TABLE_KEYS[prefix]}


def _tags(point: Values, registry: Registry) -> list[str]:
    """What tells a case from its default variant, so that two variants never share a file."""
    defaults = _defaults(point, registry)
    # A value that is the default of one mode and not of this one is a tag.
    eager = dict(defaults)
    if point.get("mode", MODES[0]) != MODES[0]:
        eager = _defaults({**point, "mode": MODES[0]}, registry)
    if point["framework"] in registry.backends and "mode" in point:
        # Among the tags it stands where its earlier name stood.
        mode, defaults[_MODE], eager[_MODE] = point["mode"], MODES[0], MODES[0]
        point = {**{key: value for key, value in point.items() if key != "mode"}, _MODE: mode}
    return [
        cases.tag(_tag_name(key), _TAG_VALUES.get((key, value), value))
        for key, value in sorted(point.items())
        if key not in _IN_THE_NAME and not value == defaults[key] == eager[key]
    ]


def _tag_name(key: str) -> str:
    return _TAG_NAMES.get(key, key.removeprefix(_OPTIMIZER).removeprefix(SCHEDULE))
