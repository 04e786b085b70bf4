"""All checks in order, each finding as soon as it is there."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dlperf_hpc.doctor import job, login
from dlperf_hpc.doctor.diagnosis import judge
from dlperf_hpc.doctor.job import LIMIT_S, Target, Trial, targets_of, targets_of_site
from dlperf_hpc.doctor.result import CheckResult
from dlperf_hpc.engines.site import Site
from dlperf_hpc.errors import DlperfError
from dlperf_hpc.records.manifest import Array, Manifest
from dlperf_hpc.sweepfile.case import Topology

_RANKS = 2  # per node, where no sweep says how many


@dataclass(frozen=True)
class Question:
    """What to look at. ``logs`` is the parent of sweeps' directories; ``nodes`` the most that the
    short jobs take; ``timeout_s`` how long one may be pending; ``visible_s`` how long a file may
    take from one machine to the other. ``tell`` is called with what is being waited for."""

    engine: str
    site: Site
    logs: Path
    manifest: Manifest | None = None
    nodes: int = 2
    timeout_s: float = 300.0
    visible_s: float = 60.0
    tell: Callable[[str], None] = lambda text: None

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The sweep's, if there is one."""
        return self.manifest.arrays if self.manifest else ()

    @property
    def root(self) -> Path:
        """Where the sweep would be, so that its scripts are the real ones."""
        return (self.logs / (self.manifest.sweep if self.manifest else "doctor")).absolute()


def examine(question: Question) -> Iterator[CheckResult]:
    """Every finding there is. Nothing of the short jobs is left behind, unless one failed."""
    if question.engine == "slurm":
        targets = yield from _login_node(question)
    else:
        targets = yield from _this_machine(question)
    if targets:
        yield from _jobs(question, targets)


def _login_node(question: Question) -> Generator[CheckResult, None, list[Target]]:
    """Findings; returns what to try in a job, which is nothing where none could start."""
    present = login.commands()
    yield present
    answers = login.controller() if present.grade == "ok" else None
    if answers:
        yield answers
    if not answers or answers.grade != "ok":
        yield CheckResult("skipped", "everything else", "it needs a Slurm that answers")
        return []
    config = login.configuration()
    arrays = question.arrays
    yield login.accounting(config)
    yield login.limits(config, arrays)
    found = login.read_partitions(question.site.partition)
    there = login.partition(question.site, found)
    yield there
    if there.grade != "ok":
        yield CheckResult("skipped", "scripts and jobs", "no partition to send them to")
        return []
    yield login.nodes(found, arrays)
    yield login.time_limits(found, arrays)
    yield from login.scripts(question.root, arrays, question.site)
    return _targets(question, found)


def _targets(question: Question, found: Sequence[login.Partition]) -> list[Target]:
    if question.arrays:
        return targets_of(question.arrays, question.nodes)
    up = [node for partition in found for node in partition.up]
    nodes = min(question.nodes, len({node.name for node in up}))
    gpus = min((node.gpus for node in up), default=0)
    limit_s = min((p.limit_s for p in found if p.limit_s), default=LIMIT_S)
    shape = Topology(nodes, gpus or _RANKS)
    return targets_of_site(question.site, shape, limit_s) if nodes else []


def _this_machine(question: Question) -> Generator[CheckResult, None, list[Target]]:
    from dlperf_hpc.engines.submit import local_gpus

    present = login.mpiexec()
    yield present
    yield from login.topologies(question.arrays)
    if present.grade != "ok":
        return []
    if question.arrays:
        fitting = [array for array in question.arrays if array.topology.nodes == 1]
        return targets_of(fitting, 1)
    return targets_of_site(question.site, Topology(1, local_gpus() or _RANKS))


def _jobs(question: Question, targets: Sequence[Target]) -> Iterator[CheckResult]:
    """What the short jobs tell. Their directory stays only if something failed."""
    logs = question.logs.absolute()
    new = [path for path in (logs, *logs.parents) if not path.exists()]
    root = logs / f".doctor-{secrets.token_hex(6)}"
    try:
        root.mkdir(parents=True, mode=0o700)
    except OSError as error:
        seen = f"{logs}: cannot be written on this machine: {error.strerror}"
        to_do = "give a directory that login and compute nodes share and can write with --logs"
        yield CheckResult("FAIL", "log directory", seen, to_do)
        yield CheckResult("skipped", "jobs", "no directory for what they would find")
        return
    failed = False
    try:
        for result in _tried(question, root, targets):
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


def _tried(question: Question, root: Path, targets: Sequence[Target]) -> Iterator[CheckResult]:
    """All are submitted at once: they may have to queue."""
    engine, visible_s = question.engine, question.visible_s
    trials: list[Trial] = []
    try:
        for target in targets:
            try:
                trials.append(job.submit(root, target, question.site, engine, visible_s))
            except DlperfError as error:
                yield CheckResult("FAIL", "job", str(error), "", target.environment)
            except OSError as error:
                seen = f"{root}: {error.strerror}"
                yield CheckResult("FAIL", "log directory", seen, "", target.environment)
        for trial in job.watch(trials, engine, question.timeout_s, visible_s, question.tell):
            yield from judge(trial, engine)
    finally:
        job.cancel(trials, engine)
