"""From a checked sweep to job arrays: which run is which index of which array. Pure."""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dlperf_hpc import __version__
from dlperf_hpc.engines import get_engine
from dlperf_hpc.engines.base import DEFAULT_BOUND
from dlperf_hpc.engines.site import Site
from dlperf_hpc.model.case import Run, Topology, repeat_major
from dlperf_hpc.records.ledger import Ledger
from dlperf_hpc.records.lines import utc
from dlperf_hpc.records.manifest import Array, Manifest
from dlperf_hpc.sweepfile.load import Sweep


@dataclass(frozen=True)
class _Group:
    """What all tasks of an array share, because it stands in the array's script."""

    topology: Topology
    environment: str
    program: str = ""

    def name(self, sweep: str) -> str:
        """Readable in squeue, which shows eight characters of it unless it is told otherwise:
        topology, sweep, the environment where it is not the default, and a user's program, whose
        tasks are started in a way of their own. (Earlier versions had the sweep's name first.)"""
        more = [] if self.environment == "default" else [self.environment]
        more += [self.program] if self.program else []
        return "-".join([f"{self.topology}.{sweep}", *more])


def _group_of(run: Run) -> _Group:
    case = run.case
    return _Group(case.topology, case.environment, case.framework if case.launch else "")


def arrays_of(
    name: str,
    runs: Iterable[Run],
    time_limit_s: Mapping[Topology, int],
    *,
    one_queue: bool,
    bound: int = DEFAULT_BOUND,
    exclude: str = "",
    repeats_per_job: int = 1,
) -> tuple[Array, ...]:
    """Arrays of ``runs``, in their order, under names that have ``name`` behind the topology.

    There is one array for each topology (and environment), in pieces if it has more than ``bound``
    indices. Each index takes ``repeats_per_job`` neighbours in turn. ``one_queue``, for an engine
    that runs one task after another anyway, keeps the order over all runs: an array is then a
    stretch of neighbours in that order.
    """
    runs = list(runs)
    if not one_queue:
        # A stable sort: the order stays within each group.
        order = {group: i for i, group in enumerate(dict.fromkeys(map(_group_of, runs)))}
        runs.sort(key=lambda run: order[_group_of(run)])
    arrays: list[Array] = []
    for group, stretch in itertools.groupby(runs, key=_group_of):
        tasks = tuple(stretch)
        pieces = [tasks] if one_queue else _pieces(tasks, bound * repeats_per_job)
        for number, piece in enumerate(pieces, 1):
            suffix = f"-{len(arrays) + 1}" if one_queue else f"-{number}" * (len(pieces) > 1)
            array = Array(
                name=group.name(name) + suffix,
                token=_new_token(),
                topology=group.topology,
                environment=group.environment,
                time_limit_s=time_limit_s[group.topology],
                tasks=piece,
                exclude=exclude,
                repeats_per_job=repeats_per_job,
            )
            arrays.append(array)
    return tuple(arrays)


def pieces_of(array: Array, runs: Sequence[Run], bound: int, number: int = 0) -> tuple[Array, ...]:
    """Arrays of an array's ``runs``, in their order, with at most ``bound`` indices each; pieces
    that are there already have numbers up to ``number``."""
    pieces = _pieces(tuple(runs), bound * array.repeats_per_job)
    return tuple(
        replace(
            array,
            name=f"{array.name}.p{place}",
            token=_new_token(),
            tasks=piece,
            piece_of=array.token,
        )
        for place, piece in enumerate(pieces, number + 1)
    )


def _new_token() -> str:
    return f"dlperf-{secrets.token_hex(8)}"


def _pieces(tasks: tuple[Run, ...], most: int) -> list[tuple[Run, ...]]:
    return [tasks[start : start + most] for start in range(0, len(tasks), most)]


def plan_arrays(sweep: Sweep, one_queue: bool, bound: int = DEFAULT_BOUND) -> tuple[Array, ...]:
    """The sweep's arrays, each in repeat-major order. This machine is one allocation anyway, so the
    local queue (``one_queue``) has no use for several repeats in a job."""
    per_job = 1 if one_queue else sweep.repeats_per_job
    return arrays_of(
        sweep.name,
        repeat_major(list(sweep.cases), sweep.repeats, per_job),
        sweep.time_limit_s,
        one_queue=one_queue,
        bound=bound,
        repeats_per_job=per_job,
    )


def rerun_arrays(
    ledger: Ledger,
    runs: Iterable[Run],
    *,
    bound: int = DEFAULT_BOUND,
    exclude: str = "",
    stretch: Callable[[int], int] = lambda seconds: seconds,
) -> tuple[Array, ...]:
    """New arrays of runs that the ledger knows, under names that no array has yet; a job for each.

    ``stretch`` gives the new time limit (s) for that of a run's latest array.
    """
    tasks = ledger.tasks()
    planned = {run.id: array for array in ledger.manifest.arrays for run in array.tasks}
    limits: dict[Topology, int] = {}
    for run in (runs := list(runs)):
        before = tasks[run.id].array if run.id in tasks else planned[run.id]
        limits[run.case.topology] = max(
            stretch(before.time_limit_s), limits.get(run.case.topology, 0)
        )
    return arrays_of(
        f"{ledger.manifest.sweep}.r{_next_number(ledger, 'r')}",
        runs,
        limits,
        one_queue=get_engine(ledger.manifest.engine).one_queue,
        bound=bound,
        exclude=exclude,
    )


def added_arrays(ledger: Ledger, asked: Manifest) -> tuple[Array, ...]:
    """Arrays of those runs of a plan that the ledger does not know, under names that no array has
    yet, in the order of the plan. Of a job that would measure several repeats, the repeats that are
    new stay together.
    """
    there = {run.id for run in ledger.manifest.runs}
    jobs: dict[int, list[Run]] = {}  # by the number of runs that each of them measures
    for array in asked.arrays:
        size = array.repeats_per_job
        for start in range(0, len(array.tasks), size):
            job = [run for run in array.tasks[start : start + size] if run.id not in there]
            jobs.setdefault(len(job), []).extend(job)
    limits = {array.topology: array.time_limit_s for array in asked.arrays}
    first = _next_number(ledger, "g")
    return tuple(
        array
        for number, size in enumerate(sorted(jobs.keys() - {0}, reverse=True), first)
        for array in arrays_of(
            f"{ledger.manifest.sweep}.g{number}",
            jobs[size],
            limits,
            one_queue=get_engine(asked.engine).one_queue,
            repeats_per_job=size,
        )
    )


def _next_number(ledger: Ledger, letter: str) -> int:
    """The first number that no arrays of a rerun (``r``) or of a growth (``g``) have yet. Arrays of
    earlier versions are called ``bert.r1-2n8g``, those of this one ``2n8g.bert.r1``."""
    sweep, topology = re.escape(ledger.manifest.sweep), "[0-9]+n[0-9]+g"
    numbered = re.compile(
        rf"{sweep}\.{letter}([0-9]+)-{topology}.*|{topology}\.{sweep}\.{letter}([0-9]+)(?:[-.].*)?"
    )
    taken = [match for array in ledger.arrays if (match := numbered.fullmatch(array.name))]
    return 1 + max((int(match[1] or match[2]) for match in taken), default=0)


def make_manifest(sweep: Sweep, site: Site, engine: str, bound: int = DEFAULT_BOUND) -> Manifest:
    """The manifest of a sweep on one engine, not yet on disk.

    SpecError if a case names an environment that the site lacks.
    """
    for case in sweep.cases:
        site.environment_named(case.environment)
    return Manifest(
        sweep=sweep.name,
        engine=engine,
        base=sweep.base,
        repeats=sweep.repeats,
        measure=sweep.measure,
        limits=sweep.limits,
        arrays=plan_arrays(sweep, get_engine(engine).one_queue, bound),
        site=site.to_dict(),
        tool_version=__version__,
        created=utc(),
        source=str(sweep.source).encode(errors="backslashreplace").decode(),
        programs=sweep.programs,
    )


def node_hours(array: Array) -> float:
    """Upper bound: every run of the array at its time limit."""
    return len(array.tasks) * array.topology.nodes * array.time_limit_s / 3600
