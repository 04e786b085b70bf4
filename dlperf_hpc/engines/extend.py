"""A sweep that grows: what a request adds to the sweep in a directory, and what contradicts it.

Runs, and with them topologies, repeats and values of the matrix, are added as arrays of their own.
Nothing that is there is changed: tasks that wait or run find their runs as before.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dlperf_hpc.engines.plan import added_arrays
from dlperf_hpc.engines.site import Site
from dlperf_hpc.errors import LedgerError, printable, toml_text
from dlperf_hpc.files import read_regular, write_atomically, write_once
from dlperf_hpc.model.case import Case
from dlperf_hpc.records import layout
from dlperf_hpc.records.ledger import Ledger, read_ledger
from dlperf_hpc.records.lines import flatten
from dlperf_hpc.records.manifest import Manifest, extend_manifest
from dlperf_hpc.sweepfile.load import MOST_RUNS

_MOST_LINES = 10
# Keys of a site profile that say how one submits and looks, and not what the jobs are.
_OF_SUBMITTING = {
    *("array_parallelism", "description", "group", "max_array_size", "max_submit", "poll_s"),
    "spread",
}


def differing_keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Which keys of a site profile, of those that decide what a job is and runs, differ. A key that
    an earlier version did not know has its default there."""
    default = Site().to_dict()
    names = sorted((old.keys() | new.keys()) - _OF_SUBMITTING)
    return [
        name
        for name in names
        if old.get(name, default.get(name)) != new.get(name, default.get(name))
    ]


def differences(there: Manifest, asked: Manifest) -> list[str]:
    """What of a plan contradicts the sweep that is there, key by key; what it adds does not."""
    found = [
        f"{key}: there {toml_text(old)}, here {toml_text(new)}"
        for key, old, new in (*_of_sweep(there, asked), *_of_time_limits(there, asked))
        if old != new
    ]
    return [*found, *_of_cases(there, asked)]


def _of_sweep(there: Manifest, asked: Manifest) -> Iterator[tuple[str, Any, Any]]:
    yield "engine", there.engine, asked.engine
    if there.base and asked.base:  # no base, where 1n1g was left out, is no wish
        yield "base", there.base, asked.base
    for table in ("measure", "limits"):
        old, new = asdict(getattr(there, table)), asdict(getattr(asked, table))
        for key in old:
            yield f"{table}.{key}", old[key], new[key]
    for name in there.programs.keys() & asked.programs.keys():
        old, new = there.programs[name].to_dict(), asked.programs[name].to_dict()
        for key in old:
            yield f"program.{name}.{key}", old[key], new[key]


def _of_time_limits(there: Manifest, asked: Manifest) -> Iterator[tuple[str, Any, Any]]:
    limits = {array.topology: array.time_limit_s for array in there.arrays}
    for topology, limit in {a.topology: a.time_limit_s for a in asked.arrays}.items():
        if topology in limits:
            yield f"time_limit.{topology}", _clock(limits[topology]), _clock(limit)


def _clock(seconds: int) -> str:
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def _of_cases(there: Manifest, asked: Manifest) -> list[str]:
    """Settings of cases that have one name there and here."""
    old = {run.case.id: run.case for run in there.runs}
    found: dict[str, list[str]] = {}
    for name, case in {run.case.id: run.case for run in asked.runs}.items():
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
    """By the keys of a sweep file, those of its tables with dots."""
    row = case.to_dict()
    options = row.pop("options")
    return flatten({**row, **options})


def refuse_differences(root: Path, there: Manifest, asked: Manifest) -> None:
    """LedgerError that lists what contradicts the sweep in ``root``, if anything does."""
    differing = differences(there, asked)
    if not differing:
        return
    listed = "".join(f"\n  {line}" for line in differing[:_MOST_LINES])
    if len(differing) > _MOST_LINES:
        listed += f"\n  and {len(differing) - _MOST_LINES} more"
    raise LedgerError(
        f"{root} holds this sweep as it was planned on {there.created[:10]}, and what you ask for"
        f" differs:{listed}\nTopologies, repeats and values of the matrix can be added to a sweep,"
        " but the keys above cannot change in it: give the values that are there, or another --name"
        " (or --logs) to measure anew"
    )


def grow(ledger: Ledger, asked: Manifest, text: str) -> Ledger:
    """Add those runs of a plan that the sweep does not have; the ledger as it is then. ``text`` is
    the sweep file's. Call it with the lock held, and with a plan without :func:`differences`.

    LedgerError if the directory cannot be written, or the sweep would be too large.
    """
    there, added = ledger.manifest, added_arrays(ledger, asked)
    grown = replace(
        there,
        base=asked.base or there.base,
        repeats=max(there.repeats, asked.repeats),
        arrays=(*there.arrays, *added),
        site=_site_with(there.site, asked.site, {array.environment for array in added}),
        programs={**there.programs, **asked.programs},
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
        had = f"{before} run{'s' * (before > 1)}"
        note = f"note: {ledger.root} had {had}; {number} more are added to it, as new arrays"
        print(printable(note), file=sys.stderr)
    return read_ledger(ledger.root)


def _site_with(
    there: Mapping[str, Any], given: Mapping[str, Any], names: set[str]
) -> dict[str, Any]:
    """The manifest's site profile with those environments that it lacks and new arrays name."""
    known, more = there.get("environment", {}), given.get("environment", {})
    lacking = {name: more[name] for name in sorted(names & more.keys() - known.keys())}
    return {**there, "environment": {**known, **lacking}} if lacking else dict(there)


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
