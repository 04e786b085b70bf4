"""From a checked sweep to job arrays: which run is which index of which array. Pure."""

from __future__ import annotations

import itertools
import secrets
from dataclasses import dataclass

from dlperf_hpc import __version__
from dlperf_hpc.launch.site import Site
from dlperf_hpc.records.lines import utc
from dlperf_hpc.records.manifest import Array, Manifest
from dlperf_hpc.spec.case import Run, repeat_major
from dlperf_hpc.spec.sweepfile import Sweep


@dataclass(frozen=True)
class _Group:
    """What all tasks of an array share, because it stands in the array's script."""

    topology: str
    environment: str

    def name(self, sweep: str) -> str:
        """Readable in squeue: sweep, topology, and the environment where it is not the default."""
        suffix = "" if self.environment == "default" else f"-{self.environment}"
        return f"{sweep}-{self.topology}{suffix}"


def _group_of(run: Run) -> _Group:
    return _Group(str(run.case.topology), run.case.environment)


def plan_arrays(sweep: Sweep, one_queue: bool) -> tuple[Array, ...]:
    """The sweep's arrays, each in repeat-major order.

    On a cluster there is one array for each topology (and environment). ``one_queue``, for the
    local engine, which runs one task after another anyway, keeps repeat-major order over the whole
    sweep: an array is then a stretch of neighbours in that order.
    """
    runs = repeat_major(list(sweep.cases), sweep.repeats)
    if not one_queue:
        # A stable sort: repeat-major order stays within each group.
        order = {group: i for i, group in enumerate(dict.fromkeys(map(_group_of, runs)))}
        runs = sorted(runs, key=lambda run: order[_group_of(run)])
    arrays: list[Array] = []
    for group, stretch in itertools.groupby(runs, key=_group_of):
        tasks = tuple(stretch)
        topology = tasks[0].case.topology
        number = f"-{len(arrays) + 1}" if one_queue else ""
        arrays.append(
            Array(
                name=group.name(sweep.name) + number,
                token=f"dlperf-{secrets.token_hex(6)}",
                topology=topology,
                environment=group.environment,
                time_limit_s=sweep.time_limit_s[topology],
                tasks=tasks,
            )
        )
    return tuple(arrays)


def make_manifest(sweep: Sweep, site: Site, engine: str) -> Manifest:
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
        arrays=plan_arrays(sweep, one_queue=engine == "local"),
        site=site.to_dict(),
        tool_version=__version__,
        created=utc(),
        source=str(sweep.source),
    )


def node_hours(array: Array) -> float:
    """Upper bound: every run of the array at its time limit."""
    return len(array.tasks) * array.topology.nodes * array.time_limit_s / 3600
