"""From a sweep file's tables to its cases: matrix, zip, overrides, exclude, in that order.

Values are checked where they stand (:func:`check_tables`); what can only be seen in a whole case
(a precision the back end lacks, a global batch that does not divide) is checked here on each.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dlperf_hpc.errors import Issue, SpecError
from dlperf_hpc.spec.case import Case, Optimizer, Topology, tag, with_tags
from dlperf_hpc.spec.declarations import Registry
from dlperf_hpc.spec.keys import KEYS, key_issue, value_issue

if TYPE_CHECKING:
    from dlperf_hpc.spec.sweepfile import SweepFile

# Parts of a run's name already; every other key that leaves its default becomes a tag.
_IN_THE_NAME = {"framework", "model", "precision", "batch_size", "topology"}
_TAG_NAMES = {
    "accumulation": "acc",
    "seq_len": "seq",
    "optimizer.name": "",
    "data": "",
    "device": "",
    "environment": "env",
    "processes_per_node": "ppn",
}


def flat(table: Mapping[str, Any]) -> dict[str, Any]:
    """A case table with ``optimizer`` tables as dotted keys."""
    result: dict[str, Any] = {}
    for key, value in table.items():
        if key == "optimizer" and isinstance(value, Mapping):
            result.update({f"optimizer.{name}": inner for name, inner in value.items()})
        else:
            result[key] = value
    return result


def _places(file: SweepFile) -> Iterator[tuple[str, str, Any]]:
    """Every (where, key, value) of the file's case tables."""
    for key, value in flat(file.case).items():
        yield f"case.{key}", key, value
    for key, values in flat(file.matrix).items():
        for i, value in enumerate(values):
            yield f"matrix.{key}[{i}]", key, value
    for b, block in enumerate(file.zip):
        for key, values in flat(block).items():
            for i, value in enumerate(values):
                yield f"zip[{b}].{key}[{i}]", key, value
    for b, table in enumerate(file.exclude):
        for key, value in flat(table).items():
            yield f"exclude[{b}].{key}", key, value
    for b, override in enumerate(file.override):
        for part in ("when", "set"):
            for key, value in flat(getattr(override, part)).items():
                yield f"override[{b}].{part}.{key}", key, value


def check_tables(file: SweepFile, registry: Registry) -> list[Issue]:
    """Unknown keys, wrong types, impossible values, each at its place."""
    issues: list[Issue] = []
    for where, key, value in _places(file):
        issue = key_issue(where, key, registry) or value_issue(where, key, value, registry)
        if issue is not None and issue not in issues:
            issues.append(issue)
        if key == "topology" and not where.startswith(("exclude", "override")):
            issues.append(Issue(where, "topologies are listed at the top: topologies = [...]"))
    given = set(flat(file.case))
    for table in (file.matrix, *file.zip):
        for key in flat(table):
            if key in given:
                issues.append(Issue(key, "is given twice: in [case], [matrix] or [[zip]]"))
            given.add(key)
    for b, block in enumerate(file.zip):
        lengths = {key: len(values) for key, values in flat(block).items()}
        if len(set(lengths.values())) > 1:
            issues.append(Issue(f"zip[{b}]", f"lists that advance together differ: {lengths}"))
    return issues


def _combinations(file: SweepFile) -> Iterator[dict[str, Any]]:
    """[case] with each point of [matrix] times each row of every [[zip]]."""
    axes: list[list[dict[str, Any]]] = [
        [{key: value} for value in values] for key, values in flat(file.matrix).items()
    ]
    for block in file.zip:
        columns = flat(block)
        rows = zip(*columns.values(), strict=True)
        axes.append([dict(zip(columns, row, strict=True)) for row in rows])
    for point in itertools.product(*axes):
        values = flat(file.case)
        for part in point:
            values.update(part)
        yield values


def _matches(values: Mapping[str, Any], pattern: Mapping[str, Any]) -> bool:
    defaults = {key: KEYS[key].default for key in pattern if key in KEYS}
    return all(values.get(key, defaults.get(key)) == wanted for key, wanted in pattern.items())


def _points(file: SweepFile, topologies: Sequence[Topology]) -> Iterator[dict[str, Any]]:
    for values in _combinations(file):
        for topology in topologies:
            point = {**values, "topology": str(topology)}
            for override in file.override:
                if _matches(point, flat(override.when)):
                    point.update(flat(override.set))
            if not any(_matches(point, flat(pattern)) for pattern in file.exclude):
                yield point


def expand(
    file: SweepFile, topologies: Sequence[Topology], registry: Registry, source: str
) -> list[Case]:
    """All cases of the sweep; SpecError with what no single value shows."""
    cases: dict[str, Case] = {}
    issues: dict[str, Issue] = {}
    for point in _points(file, topologies):
        found = _point_issues(point, registry)
        if not found:
            case = _case(point, registry)
            if case.id in cases:
                found = [
                    Issue("cases", f"{case.id} comes out twice; one would overwrite the other")
                ]
            cases[case.id] = case
        issues.update({str(issue): issue for issue in found})
    if not cases and not issues:
        issues["none"] = Issue("exclude", "leaves no case at all")
    if issues:
        raise SpecError(source, list(issues.values()))
    return list(cases.values())


def _point_issues(point: Mapping[str, Any], registry: Registry) -> list[Issue]:
    missing = [key for key in ("framework", "model", "batch_size") if key not in point]
    if missing:
        return [
            Issue(f"case.{key}", "is missing: give it in [case] or [matrix]") for key in missing
        ]
    backend = registry.backends[point["framework"]]
    workload = registry.workloads[point["model"]]
    issues = []

    def need(condition: bool, key: str, message: str) -> None:
        if not condition:
            issues.append(Issue(key, message))

    precision = point.get("precision", "fp32")
    optimizer = point.get("optimizer.name", "adamw")
    data = point.get("data", "synthetic")
    seq_len = point.get("seq_len", workload.default_seq_len)
    need(
        backend.library in workload.libraries,
        "model",
        f"{workload.name} is not written for {backend.library}, which {backend.name} needs",
    )
    for key, value, offered in (
        ("precision", precision, backend.precisions),
        ("optimizer.name", optimizer, backend.optimizers),
        ("data", data, backend.data_sources),
    ):
        need(value in offered, key, f"{backend.name} has no {value} (it has {', '.join(offered)})")
    need(
        seq_len <= workload.max_seq_len,
        "seq_len",
        f"{seq_len} is more than the {workload.max_seq_len} positions of {workload.name}",
    )
    need(
        point.get("processes_per_node") in (None, Topology.parse(point["topology"]).gpus_per_node),
        "processes_per_node",
        f"{backend.name} runs one process per GPU",
    )
    issues += _option_issues(point, registry)
    return issues + _batch_issues(point)


def _option_issues(point: Mapping[str, Any], registry: Registry) -> list[Issue]:
    framework, model = point["framework"], point["model"]
    own = {option.name for option in registry.options(framework, model)}
    return [
        Issue(key, f"is no option of {framework} or {model} (they have {', '.join(sorted(own))})")
        for key in point
        if key not in KEYS and key != "topology" and key not in own
    ]


def _batch_issues(point: Mapping[str, Any]) -> list[Issue]:
    if "global_batch" not in point:
        return []
    if "accumulation" in point:
        return [Issue("global_batch", "and accumulation are both given: one sets the other")]
    devices = Topology.parse(point["topology"]).devices
    per_iteration = point["batch_size"] * devices
    if point["global_batch"] % per_iteration == 0:
        return []
    return [
        Issue(
            "global_batch",
            f"{point['global_batch']} does not divide by {per_iteration}"
            f" = batch_size {point['batch_size']} x {devices} devices of {point['topology']}",
        )
    ]


def _case(point: Mapping[str, Any], registry: Registry) -> Case:
    topology = Topology.parse(point["topology"])
    values = {key: value for key, value in point.items() if key in KEYS}
    optimizer = {key[10:]: values.pop(key) for key in list(values) if key.startswith("optimizer.")}
    if "global_batch" in values:
        per_iteration = values["batch_size"] * topology.devices
        values["accumulation"] = values.pop("global_batch") // per_iteration
    workload = registry.workloads[values["model"]]
    options = {o.name: o.default for o in registry.options(values["framework"], values["model"])}
    options.update({key: value for key, value in point.items() if key in options})
    values.setdefault("seq_len", workload.default_seq_len)
    values.setdefault("precision", KEYS["precision"].default)
    case = Case(
        topology=topology,
        optimizer=Optimizer(**optimizer),
        options=tuple(sorted(options.items())),
        **values,
    )
    return with_tags(case, _tags(case, point, registry))


def _tags(case: Case, point: Mapping[str, Any], registry: Registry) -> list[str]:
    """What tells this case from its default variant, so that two variants never share a file."""
    defaults = {name: key.default for name, key in KEYS.items()}
    defaults["seq_len"] = registry.workloads[case.model].default_seq_len
    declared = registry.options(case.framework, case.model)
    defaults.update({option.name: option.default for option in declared})
    told = {key: value for key, value in point.items() if key not in _IN_THE_NAME}
    if "global_batch" in told:
        # The rule, not its outcome: accumulation differs along one speedup curve.
        told["gbs"] = told.pop("global_batch")
    tags = []
    for key in sorted(told):
        if told[key] != defaults.get(key):
            name = _TAG_NAMES.get(key, key.removeprefix("optimizer."))
            tags.append(tag(name, told[key]))
    return tags
