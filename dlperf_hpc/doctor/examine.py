"""All checks in order, each result as soon as it is there."""

from __future__ import annotations

import secrets
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from dlperf_hpc.doctor import job, measurements
from dlperf_hpc.doctor.diagnosis import interpret
from dlperf_hpc.doctor.job import (
    LIMIT_S,
    Question,
    Target,
    Trial,
    on_so_many_nodes,
    targets_of,
    targets_of_site,
)
from dlperf_hpc.doctor.preflight import examine_programs, grade_of, needed_paths
from dlperf_hpc.engines.base import Capacity, CheckResult
from dlperf_hpc.errors import DlperfError, SiteError, number_of
from dlperf_hpc.files import make_output_directory
from dlperf_hpc.model.case import Topology
from dlperf_hpc.records.manifest import Manifest, by_environment
from dlperf_hpc.sweepfile.programs import LOCAL_RANKS

_RANKS = 2  # per node, where no sweep says how many


def examine(question: Question, rows: measurements.Rows) -> Iterator[CheckResult]:
    """Every result there is; adds to ``rows`` one for each node where nodes are measured one by
    one, or for each size where collectives are. Nothing of the short jobs is left behind, unless
    one failed."""
    engine, manifest = question.engine, question.manifest
    capacity = yield from engine.examine(question.site, question.arrays, question.root)
    if manifest is not None:
        graded = partial(grade_of, engine, question.root)
        yield from examine_programs(manifest, question.site, graded)
    targets = _targets(question, capacity) if capacity else []
    if not capacity or not targets:
        return
    torch = ("torch",) * (capacity.gpus > 0)  # is imported where there are GPUs
    if question.collectives_s:
        limit_s = min(LIMIT_S, capacity.limit_s or LIMIT_S)
        targets = [each for t in targets for each in _with_collectives(question, t, torch, limit_s)]
    if question.collectives_s or not (question.pairs or question.all_nodes):
        yield from _in_directory(question, partial(_tried, question, targets, rows))
        return
    try:
        nodes = engine.nodes(question.site, question.among)
    except SiteError as error:
        yield CheckResult("FAIL", "nodes to measure", str(error))
        return
    if nodes is None:
        seen = f"{engine.title} has one machine: there are no nodes to tell apart"
        yield CheckResult("FAIL", "nodes to measure", seen, "run it on a login node of Slurm")
        return
    target = replace(targets[0], steps=True, modules=torch)
    measured = measurements.pairs if question.pairs else measurements.all_nodes
    yield from _in_directory(question, partial(measured, question, target, nodes, rows))


def _with_collectives(
    question: Question, target: Target, torch: tuple[str, ...], limit_s: int
) -> Iterator[Target]:
    """A job on one node, for what lies between its GPUs, and one on all nodes; their ranks bound
    themselves."""
    array = replace(target.array, time_limit_s=limit_s)
    modules = tuple(dict.fromkeys((*target.modules, *torch)))
    target = replace(target, modules=modules, collectives_s=question.collectives_s)
    for number in sorted({1, array.topology.nodes}):
        yield replace(target, array=on_so_many_nodes(array, number))


def _targets(question: Question, capacity: Capacity) -> list[Target]:
    """What to try in jobs: what the sweep asks for, else whatever the site has."""
    bound, manifest = question.engine.max_nodes or sys.maxsize, question.manifest
    most, limit_s = min(question.nodes, bound), capacity.limit_s or LIMIT_S
    if manifest is None or not manifest.arrays:
        shape = Topology(min(most, capacity.nodes), capacity.gpus or _RANKS)
        return targets_of_site(question.site, shape, limit_s) if capacity.nodes else []
    fitting = [array for array in manifest.arrays if array.topology.nodes <= bound]
    targets = targets_of(fitting, most, limit_s)
    return [
        replace(
            each,
            paths=needed_paths(manifest, each.environment),
            by_local_rank=_by_local_rank(manifest, each.environment),
        )
        for each in targets
    ]


def _by_local_rank(manifest: Manifest, environment: str) -> tuple[str, ...]:
    """The environment's programs whose LOCAL_RANK counts the processes of a node."""
    arrays = by_environment(manifest.arrays).get(environment, [])
    used = {run.case.framework for array in arrays for run in array.tasks}
    programs = (manifest.programs[name] for name in sorted(used & manifest.programs.keys()))
    counted = ("rank", LOCAL_RANKS[0])
    return tuple(each.name for each in programs if (each.launch, each.local_rank) == counted)


def local_ranks(trial: Trial) -> Iterator[CheckResult]:
    """A warning where a rank sees too few GPUs for its LOCAL_RANK to be the number of one."""
    if not trial.target.by_local_rank or not trial.target.wants_gpus:
        return
    for node in trial.reported("node"):
        devices, local = node.get("gpus", {}).get("devices"), node["local_rank"]
        if devices and local is not None and local >= len(devices):
            seen = f"local rank {local} on {node['host']} sees {number_of(len(devices), 'GPU')}"
            names = ", ".join(f"[program.{name}]" for name in trial.target.by_local_rank)
            to_do = f'write local_rank = "visible" into {names}, if it takes the GPU LOCAL_RANK'
            yield trial.found("warn", "LOCAL_RANK", seen, to_do)
            return


def _in_directory(
    question: Question, of: Callable[[Path], Iterator[CheckResult]]
) -> Iterator[CheckResult]:
    """What the short jobs tell, in a directory that stays only if something failed."""
    logs = question.logs.absolute()
    new = [path for path in (logs, *logs.parents) if not path.exists()]
    root = logs / f".doctor-{secrets.token_hex(6)}"
    try:
        make_output_directory(logs)
        root.mkdir(mode=0o700)
    except OSError as error:
        seen = f"{logs}: cannot be written on this machine: {error.strerror}"
        to_do = "give a directory that login and compute nodes share and can write with --logs"
        yield CheckResult("FAIL", "log directory", seen, to_do)
        yield CheckResult("skipped", "jobs", "no directory for what they would find")
        return
    failed = False
    try:
        for result in of(root):
            failed |= result.grade == "FAIL"
            yield result
        if failed:
            yield CheckResult("ok", "kept", f"scripts and output of the short jobs: {root}")
    finally:
        if not failed:
            shutil.rmtree(root, ignore_errors=True)
            with suppress(OSError):
                for path in new:
                    path.rmdir()


def _tried(
    question: Question, targets: Sequence[Target], rows: measurements.Rows, root: Path
) -> Iterator[CheckResult]:
    """All are submitted at once: they may have to queue."""
    trials: list[Trial] = []
    try:
        for target in targets:
            try:
                trials.append(job.submit(root, target, question, question.site))
            except DlperfError as error:
                yield CheckResult("FAIL", "job", str(error), "", target.environment)
            except OSError as error:
                seen = f"{root}: {error.strerror}"
                yield CheckResult("FAIL", "log directory", seen, "", target.environment)
        for trial in job.watch(trials, question):
            yield from interpret(trial)
            yield from local_ranks(trial)
            if trial.target.collectives_s:
                yield from measurements.collective_checks(trial)
                rows += measurements.collective_rows(trial)
    finally:
        job.cancel(trials)
