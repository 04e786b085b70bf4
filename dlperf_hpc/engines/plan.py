"""From a checked sweep to job arrays in a directory: which run is which index of which array, what
a later request adds to the sweep that is there, and what contradicts it.

Runs, and with them topologies, repeats and values of the matrix, are added as arrays of their own.
Nothing that is there is changed: tasks that wait or run find their runs as before.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from dlperf_hpc import __version__
from dlperf_hpc.engines import get_engine
from dlperf_hpc.engines.base import DEFAULT_BOUND
from dlperf_hpc.engines.site import Site
from dlperf_hpc.errors import LedgerError, below, number_of, printable, raising, toml_text
from dlperf_hpc.files import make_output_directory, read_regular, write_atomically, write_once
from dlperf_hpc.model.case import Case, Run, Topology, repeat_major
from dlperf_hpc.records import layout, ownership
from dlperf_hpc.records.ledger import Ledger, read_ledger
from dlperf_hpc.records.lines import flatten, utc
from dlperf_hpc.records.manifest import Array, Manifest, extend_manifest, write_manifest
from dlperf_hpc.sweepfile.load import MOST_RUNS, Sweep

_MOST_LINES = 10
# Keys of a site profile that say how one submits and looks, and not what the jobs are.
_OF_SUBMITTING = {
    *("array_parallelism", "description", "gpu_memory_mib", "group", "max_array_size"),
    *("max_submit", "node_hour", "poll_s", "spread"),
}


def _group_of(
    job: Sequence[Run], one_queue: bool
) -> tuple[Topology, tuple[str, ...], str, bool, int]:
    """What all jobs of an array share, because it stands in the array's script: topology, the
    environments of their runs in turn, and a user's program, whose tasks are started in a way of
    their own; whether they wait for the first repeats, which find the batch size of their cases;
    and how many runs a job measures."""
    case, size = job[0].case, len(job)
    waits = case.sought and job[0].repeat > size and not one_queue
    names = tuple(run.case.environment for run in job)
    return case.topology, names, case.framework if case.launch else "", waits, size


def arrays_of(
    name: str, jobs: Iterable[Sequence[Run]], time_limit_s: Mapping[Topology, int], *,
    one_queue: bool, bound: int = DEFAULT_BOUND, exclude: str = "",
) -> tuple[Array, ...]:  # fmt: skip
    """Arrays of ``jobs``, in their order, under names that have ``name`` behind the topology: one
    for each topology (and environment), in pieces if it has more than ``bound`` indices. Each index
    takes the runs of a job in turn. ``one_queue``, for an engine that runs one task after another,
    keeps the order over all jobs: an array is then a stretch of that order."""
    jobs, group_of = list(jobs), partial(_group_of, one_queue=one_queue)
    if not one_queue:
        # A stable sort: the order stays within each group.
        order = {group: i for i, group in enumerate(dict.fromkeys(map(group_of, jobs)))}
        jobs.sort(key=lambda job: order[group_of(job)])
    arrays, titles = list[Array](), Counter[str]()
    several = len({len(job) for job in jobs}) > 1
    for group, stretch in itertools.groupby(jobs, key=group_of):
        topology, environments, program, waits, size = group
        # Readable in squeue, which shows eight characters of it by default. (Earlier versions had
        # the sweep's name first.)
        parts = (
            f"{topology}.{name}{'.later' * waits}{f'.x{size}' * several}",
            *(name for name in dict.fromkeys(environments) if name != "default"),
            program,
        )
        title = "-".join(filter(None, parts))
        titles[title] += 1  # jobs with the same environments in other turns
        title += f".{titles[title]}" * (titles[title] > 1 and not one_queue)
        tasks, limit_s = tuple(itertools.chain(*stretch)), time_limit_s[topology]
        pieces = [tasks] if one_queue else _pieces(tasks, bound * size)
        for number, piece in enumerate(pieces, 1):
            suffix = f"-{len(arrays) + 1}" if one_queue else f"-{number}" * (len(pieces) > 1)
            made = Array(title + suffix, new_token(), topology, environments[0], limit_s, piece)
            arrays.append(replace(made, exclude=exclude, repeats_per_job=size))
    return tuple(arrays)


def pieces_of(array: Array, runs: Sequence[Run], bound: int, number: int = 0) -> tuple[Array, ...]:
    """Arrays of an array's ``runs``, in their order, with at most ``bound`` indices each; pieces
    that are there already have numbers up to ``number``."""
    pieces = enumerate(_pieces(tuple(runs), bound * array.repeats_per_job), number + 1)
    made = replace(array, piece_of=array.token)
    return tuple(
        replace(made, name=f"{array.name}.p{place}", token=new_token(), tasks=piece)
        for place, piece in pieces
    )


def new_token() -> str:
    """What tells an array from all others, for its job to bear."""
    return f"dlperf-{secrets.token_hex(8)}"


def _pieces(tasks: tuple[Run, ...], most: int) -> list[tuple[Run, ...]]:
    return [tasks[start : start + most] for start in range(0, len(tasks), most)]


def plan_arrays(sweep: Sweep, one_queue: bool, bound: int = DEFAULT_BOUND) -> tuple[Array, ...]:
    """The sweep's arrays, each in repeat-major order. This machine is one allocation anyway, so the
    local queue (``one_queue``) has a use for several repeats in a job only where cases are run
    together: by their job they are known for pairs."""
    per_job = 1 if one_queue and not sweep.together else sweep.repeats_per_job
    jobs = repeat_major(sweep.groups, sweep.repeats, per_job)
    return arrays_of(sweep.name, jobs, sweep.time_limit_s, one_queue=one_queue, bound=bound)


def with_runs(arrays: Iterable[Array], wanted: Collection[str]) -> tuple[Array, ...]:
    """The arrays with those of their runs whose ids are ``wanted``."""
    kept = ((array, tuple(run for run in array.tasks if run.id in wanted)) for array in arrays)
    return tuple(replace(array, tasks=tasks) for array, tasks in kept if tasks)


def rerun_arrays(
    ledger: Ledger, runs: Iterable[Run], *, bound: int = DEFAULT_BOUND, exclude: str = "",
    stretch: Callable[[int], int] = lambda seconds: seconds,
) -> tuple[Array, ...]:  # fmt: skip
    """New arrays of runs that the ledger knows, under names that no array has yet; a job for each.
    ``stretch`` gives the new time limit (s) for that of a run's latest array."""
    tasks = ledger.tasks()
    planned = {run.id: array for array in ledger.manifest.arrays for run in array.tasks}
    limits: dict[Topology, int] = {}
    for run in (runs := list(runs)):
        before = tasks[run.id].array if run.id in tasks else planned[run.id]
        topology = run.case.topology
        limits[topology] = max(stretch(before.time_limit_s), limits.get(topology, 0))
    name, queue = f"{ledger.manifest.sweep}.r{_next_number(ledger, 'r')}", _one_queue(ledger)
    jobs = [(run,) for run in runs]
    return arrays_of(name, jobs, limits, one_queue=queue, bound=bound, exclude=exclude)


def _one_queue(ledger: Ledger) -> bool:
    return get_engine(ledger.manifest.engine).one_queue


def _added_arrays(ledger: Ledger, requested: Manifest) -> tuple[Array, ...]:
    """Arrays of those runs of a plan that the ledger does not know, under names that no array has
    yet, in the order of the plan. Of a job that would measure several repeats, the repeats that are
    new stay together."""
    there = {run.id for run in ledger.manifest.runs}
    jobs: dict[int, list[list[Run]]] = {}  # by the number of runs that each of them measures
    for array in requested.arrays:
        size = array.repeats_per_job
        for start in range(0, len(array.tasks), size):
            job = [run for run in array.tasks[start : start + size] if run.id not in there]
            jobs.setdefault(len(job), []).append(job)
    limits = {array.topology: array.time_limit_s for array in requested.arrays}
    queue, first, found = _one_queue(ledger), _next_number(ledger, "g"), list[Array]()
    for number, size in enumerate(sorted(jobs.keys() - {0}, reverse=True), first):
        name = f"{ledger.manifest.sweep}.g{number}"
        found += arrays_of(name, jobs[size], limits, one_queue=queue)
    return tuple(found)


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
    """The manifest of a sweep, not yet on disk. SpecError for an environment the site lacks."""
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
        budget_node_hours=sweep.budget_node_hours,
        until=sweep.until,
    )


def node_hours(array: Array) -> float:
    """Upper bound: every run of the array at its time limit."""
    return len(array.tasks) * array.topology.nodes * array.time_limit_s / 3600


def make_directory(root: Path) -> None:
    """Make the sweep's directory; LedgerError if it cannot be written, or is somebody else's."""
    try:
        make_output_directory(root.parent, ownership.sharing_group())
        ownership.make_directory(root)
        ownership.refuse_unsafe(root)
        ownership.make_directory(root / layout.JOBS)
        if not os.access(root, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        a_file = next((each for each in (root, *root.parents) if each.is_file()), None)
        why = f"{a_file} is a file, not a directory" if a_file else error.strerror
        raise LedgerError(
            f"{root}: cannot be written: {why}; give with --logs a directory that you and the"
            " compute nodes can write"
        ) from error


def open_sweep(root: Path, manifest: Manifest, text: str) -> tuple[Ledger, bool]:
    """The directory's ledger, and whether it was made just now; call it with the lock held. Runs
    that the sweep there lacks are added to it; LedgerError if what is wanted contradicts it."""
    new = not (root / layout.MANIFEST).exists()
    if new:
        _refuse_leftovers(root)
        with raising(LedgerError, f"{root}: cannot be written"):
            write_atomically(root / layout.SPEC_COPY, text)
        write_manifest(root, manifest)
    ledger = read_ledger(root)
    if not new:
        refuse_differences(root, ledger.manifest, manifest)
        ledger = grow(ledger, manifest, text)
    keys = differing_keys(ledger.manifest.site, manifest.site)
    if keys:
        note = (
            f"note: {root / layout.MANIFEST} has another site profile ({', '.join(keys)}); what is"
            " submitted now uses the one given, `dlperf rerun` without --site the manifest's"
        )
        print(printable(note), file=sys.stderr)
    return ledger, new


def _refuse_leftovers(root: Path) -> None:
    """LedgerError for a directory without a manifest that has what a sweep leaves all the same."""
    names = (layout.SUBMISSIONS, layout.FINAL_STATES, layout.ARRAYS)
    found = [name for name in names if (root / name).exists()]
    if left := next((root / layout.JOBS).glob("*"), None):
        found.append(f"{layout.JOBS}/{left.name}")
    if logs := [path for path in root.rglob("*.log") if layout.JOBS not in path.parts]:
        found.append(f"{len(logs)} logs")
    if found:
        raise LedgerError(
            f"{root}: has no {layout.MANIFEST}, but {', '.join(found)} of an earlier sweep: nothing"
            " was written or submitted. Put the manifest back if there is a copy; without it"
            f" `dlperf report {root}` still reads the logs, and `dlperf cancel {root}` ends jobs"
            " that are left. To measure anew give another --name (or --logs)"
        )


def differing_keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Which keys of a site profile, of those that decide what a job is and runs, differ. A key that
    an earlier version did not know has its default there."""
    default = Site().to_dict()
    old, new = {**default, **old}, {**default, **new}
    names = (old.keys() | new.keys()) - _OF_SUBMITTING
    return sorted(name for name in names if old.get(name) != new.get(name))


def differences(there: Manifest, requested: Manifest) -> list[str]:
    """What of a plan contradicts the sweep that is there, key by key; what it adds does not."""
    found = [
        f"{key}: there {toml_text(old)}, here {toml_text(new)}"
        for key, old, new in (*_of_sweep(there, requested), *_of_time_limits(there, requested))
        if old != new
    ]
    return [*found, *_of_cases(there, requested)]


def _of_sweep(there: Manifest, requested: Manifest) -> Iterator[tuple[str, Any, Any]]:
    yield "engine", there.engine, requested.engine
    if there.base and requested.base:  # no base, where 1n1g was left out, is no wish
        yield "base", there.base, requested.base
    if there.until and requested.until:
        before, now = vars(there.until), vars(requested.until)
        for key in before:
            yield f"repeats.{key.replace('half_width', 'until')}", before[key], now[key]
    for table in ("measure", "limits"):
        old, new = asdict(getattr(there, table)), asdict(getattr(requested, table))
        for key in old:
            yield f"{table}.{key}", old[key], new[key]
    for name in there.programs.keys() & requested.programs.keys():
        old, new = there.programs[name].to_dict(), requested.programs[name].to_dict()
        for key in old:
            yield f"program.{name}.{key}", old[key], new[key]


def _of_time_limits(there: Manifest, requested: Manifest) -> Iterator[tuple[str, Any, Any]]:
    limits = {array.topology: array.time_limit_s for array in there.arrays}
    for topology, limit in {a.topology: a.time_limit_s for a in requested.arrays}.items():
        if topology in limits:
            yield f"time_limit.{topology}", _clock(limits[topology]), _clock(limit)


def _clock(seconds: int) -> str:
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def _of_cases(there: Manifest, requested: Manifest) -> list[str]:
    """Settings of cases that have one name there and here."""
    old = {run.case.id: run.case for run in there.runs}
    found: dict[str, list[str]] = {}
    for name, case in {run.case.id: run.case for run in requested.runs}.items():
        if name in old and case != old[name]:
            before, now = _settings(old[name]), _settings(case)
            # An option that only one of the two versions knows is at its default, or it would be a
            # tag of the name; and a new option's default means what was done before it.
            for key in sorted(before.keys() & now.keys()):
                if before[key] != now[key]:
                    line = f"case.{key}: there {toml_text(before[key])}, here {toml_text(now[key])}"
                    found.setdefault(line, []).append(name)
    return [f"{line} ({_named(names)})" for line, names in found.items()]


def _named(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} cases, {names[0]} among them"


def _settings(case: Case) -> dict[str, Any]:
    row = case.to_dict()
    options = row.pop("options")
    return flatten({**row, **options})


def refuse_differences(root: Path, there: Manifest, requested: Manifest) -> None:
    """LedgerError that lists what contradicts the sweep in ``root``, if anything does."""
    lines = differences(there, requested)
    if not lines:
        return
    raise LedgerError(
        f"{root} holds this sweep as it was planned on {there.created[:10]}, and what you ask for"
        f" differs:{below(lines, _MOST_LINES)}\nTopologies, repeats and values of the"
        " matrix can be added to a sweep, but the keys above cannot change in it: give the values"
        " that are there, or another --name (or --logs) to measure anew"
    )


def grow(ledger: Ledger, requested: Manifest, text: str) -> Ledger:
    """Add those runs of a plan that the sweep does not have; the ledger as it is then. ``text`` is
    the sweep file's. Call it with the lock held, and with a plan without :func:`differences`.
    LedgerError if the directory cannot be written, or the sweep would be too large."""
    there, added = ledger.manifest, _added_arrays(ledger, requested)
    named = {run.case.environment for array in added for run in array.tasks}
    grown = replace(
        there,
        base=requested.base or there.base,
        repeats=max(there.repeats, requested.repeats),
        arrays=(*there.arrays, *added),
        site=_site_with(there.site, requested.site, named),
        programs={**there.programs, **requested.programs},
        budget_node_hours=requested.budget_node_hours or there.budget_node_hours,
        until=requested.until or there.until,
    )
    if grown == there:
        return ledger
    number, before = len(grown.runs) - len(there.runs), len(there.runs)
    if len(grown.runs) > MOST_RUNS:
        raise LedgerError(
            f"{ledger.root}: has {before} runs, and {number} more would be above {MOST_RUNS}: give"
            " another --name (or --logs)"
        )
    _keep_spec(ledger.root, text)
    extend_manifest(ledger.root, grown)
    if added:
        had = number_of(before, "run")
        note = f"note: {ledger.root} had {had}; {number} more are added to it, as new arrays"
        print(printable(note), file=sys.stderr)
    return read_ledger(ledger.root)


def _site_with(
    there: Mapping[str, Any], given: Mapping[str, Any], names: set[str]
) -> dict[str, Any]:
    """The manifest's site profile with those environments that it lacks and new arrays name, and
    with a price if it has none."""
    known, more = there.get("environment", {}), given.get("environment", {})
    lacking = {name: more[name] for name in sorted(names & more.keys() - known.keys())}
    if lacking:
        there = {**there, "environment": {**known, **lacking}}
    if given.get("node_hour") and not there.get("node_hour"):
        there = {**there, "node_hour": given["node_hour"]}
    return dict(there)


def _keep_spec(root: Path, text: str) -> None:
    """Let the copy of the sweep file be this one; another that was there stays, under a number."""
    path = root / layout.SPEC_COPY
    try:
        before = read_regular(path) if path.exists() else text.encode()
        number = 1
        while before != text.encode() and not write_once(_earlier(root, number), before):
            if read_regular(_earlier(root, number)) == before:
                break  # kept already, before a kill came
            number += 1
        write_atomically(path, text)
    except OSError as error:
        where = error.filename or path
        raise LedgerError(f"{where}: cannot be written: {error.strerror or error}") from error


def _earlier(root: Path, number: int) -> Path:
    return root / layout.EARLIER_SPEC.format(number)
