"""What is wrong with a whole case of a back end, where no single value of its file shows it: what
the back end lacks, what the optimizer, the schedule or the data would pass over or need.
"""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Iterator

from dlperf_hpc.errors import Issue
from dlperf_hpc.model.case import NO_FP16, SCHEDULES, Topology
from dlperf_hpc.sweepfile.casetables import Values
from dlperf_hpc.sweepfile.declarations import BackendDeclaration, Registry, WorkloadDeclaration
from dlperf_hpc.sweepfile.keys import KEYS, no_such

SCHEDULE = "schedule."
_OPTIONAL = ("schedule.warmup", "schedule.power")  # of the settings that a schedule reads


def point_issues(point: Values, full: Values, registry: Registry) -> list[Issue]:
    """What is wrong with a case of a back end, by the keys that its file gives it and by all that
    hold for it; its batch, which programs have too, is left out."""
    if full["model"] not in registry.workloads:
        return [no_such("model", "model", full["model"], registry.workloads, registry)]
    backend, workload = registry.backends[full["framework"]], registry.workloads[full["model"]]
    found = [
        _backend_issues(full, backend, workload),
        _length_issues(full["seq_len"], workload),
        _process_issues(full, backend),
        _data_issues(full, workload),
        _optimizer_issues(point, full),
        _schedule_issues(point, full),
        option_issues(point, registry),
    ]
    return list(itertools.chain(*found))


def _backend_issues(
    full: Values, backend: BackendDeclaration, workload: WorkloadDeclaration
) -> Iterator[Issue]:
    if backend.library not in workload.libraries:
        needs = f"{backend.library}, which {backend.name} needs"
        yield Issue("model", f"{workload.name} is not written for {needs}")
    for key, offered in (
        ("precision", backend.precisions),
        ("optimizer.name", backend.optimizers),
        ("data", backend.data_sources),
    ):
        if full[key] not in offered:
            there = f"{backend.name} has no {full[key]!r} (it has {', '.join(offered)})"
            why = backend.refused.get(full[key])
            yield Issue(key, f"{there}: {why}" if why else there)
    if full["mode"] not in backend.modes:
        yield _no_mode(full["mode"], backend)
    if full["precision"] == "fp16" and full["device"] == "cpu":
        yield Issue("precision", NO_FP16)


def _length_issues(length: int, workload: WorkloadDeclaration) -> Iterator[Issue]:
    """Sequences of a length that the model has not; any length where its samples are none."""
    shortest, longest = workload.min_seq_len, workload.max_seq_len
    if longest and not shortest <= length <= longest:
        tokens = f"{shortest} to {longest} tokens of {workload.name}"
        yield Issue("seq_len", f"{length} is not within the {tokens}")
    elif length and not longest:
        yield Issue("seq_len", f"is given, but a sample of {workload.name} is no sequence")


def _process_issues(full: Values, backend: BackendDeclaration) -> Iterator[Issue]:
    gpus = Topology.parse(full["topology"]).gpus_per_node
    rule, possible = f"{backend.name} runs one process per GPU, {gpus} on each node", [None, gpus]
    if backend.one_per_node:
        rule, possible = f"{rule}, or a single one", [*possible, 1]
    if full["processes_per_node"] not in possible:
        message = f"{full['processes_per_node']} is invalid on {full['topology']}: {rule}"
        yield Issue("processes_per_node", message)


def _no_mode(mode: str, backend: BackendDeclaration) -> Issue:
    """A back end that cannot run a mode; what it has in its place."""
    message = f"{backend.name} has no {mode!r} (it has {', '.join(backend.modes)})"
    own = any(option.name == "xla" for option in backend.options)
    return Issue("mode", message, "its own compiler is xla = true" if own else None)


def _optimizer_issues(point: Values, full: Values) -> list[Issue]:
    """Settings that the optimizer would pass over, or cannot work with."""
    name, issues = full["optimizer.name"], []
    if name != "lamb-deepspeed":
        issues += [
            Issue(key, f"is given, but only lamb-deepspeed reads it, and this is {name}")
            for key in ("optimizer.min_coeff", "optimizer.max_coeff")
            if key in point
        ]
    elif full["optimizer.min_coeff"] > full["optimizer.max_coeff"]:
        bounds = f"{full['optimizer.min_coeff']} is above max_coeff {full['optimizer.max_coeff']}"
        issues.append(Issue("optimizer.min_coeff", bounds))
    if name == "sgd" and "optimizer.bias_correction" in point:
        issues.append(Issue("optimizer.bias_correction", "is given, but sgd has none"))
    if name == "lamb-nvidia" and not full["optimizer.grad_clip"]:
        rule = "lamb-nvidia divides gradients by max(1, global norm / grad_clip)"
        issues.append(Issue("optimizer.grad_clip", f"must not be 0: {rule}"))
    return issues


def _schedule_issues(point: Values, full: Values) -> Iterator[Issue]:
    """Settings that the schedule would pass over, or needs and was not given."""
    name = full["schedule.name"]
    read = [SCHEDULE + setting for setting in SCHEDULES[name]]
    known = [*read, "schedule.name", "schedule.offset"]
    for key in point:
        if key.startswith(SCHEDULE) and key not in known:
            reads = f"{name} reads {', '.join([*read, 'schedule.offset'])}"
            yield Issue(key, f"is given, but the schedule does not read it ({reads})")
    for key in read:
        if key not in _OPTIONAL and not _is_given(key, point):
            yield Issue(key, f"is missing: the schedule {name} needs it")


def _is_given(key: str, point: Values) -> bool:
    if key == "schedule.total":  # a schedule of 0 steps has no end
        return bool(point.get(key))
    return key in point


def _data_issues(full: Values, workload: WorkloadDeclaration) -> list[Issue]:
    path = full["data_path"]
    if full["data"] != "real":
        return [Issue("data_path", "is given, but data is not 'real'")] if path else []
    if workload.layout is None:
        return [Issue("data", f"{workload.name} has no real data: write data = 'synthetic'")]
    if not path:
        return [Issue("data_path", "is not given: data = 'real' needs a directory or a pattern")]
    # What a compute node alone can resolve ($TMPDIR, a relative path) is checked there.
    if not os.path.isabs(path) or "$" in path or glob.glob(path):
        return []
    hint = "if only compute nodes see it, write it with a variable of theirs, as $TMPDIR/data"
    return [Issue("data_path", f"{path!r} does not exist", hint)]


def option_issues(point: Values, registry: Registry) -> list[Issue]:
    """Keys that neither the back end nor the workload has, or that the program has not."""
    framework, model = point["framework"], point["model"]
    own = {option.name for option in registry.options(framework, model)}
    return [
        Issue(key, f"is no option of {framework} or {model} (they have {', '.join(sorted(own))})")
        for key in point
        if key not in KEYS and key != "topology" and key not in own
    ]
