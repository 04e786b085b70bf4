"""The sweeps of ours at and below some paths: where they are, which are copies of one another, and
how the runs of several sweeps are told apart."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dlperf_hpc.errors import LedgerError
from dlperf_hpc.files import open_regular
from dlperf_hpc.records import layout
from dlperf_hpc.records.collect import Collection, full_results
from dlperf_hpc.records.manifest import SCHEMA


def sweeps_below(paths: Iterable[Path]) -> list[Path]:
    """Directories at and below ``paths`` with a manifest of ours, not looking inside them."""
    found: list[Path] = []
    for path in paths:
        for folder, folders, names in os.walk(path):
            folders.sort()
            if layout.MANIFEST in names and _is_manifest(Path(folder, layout.MANIFEST)):
                found.append(Path(folder))
                folders.clear()
    return found


def _is_manifest(manifest: Path) -> bool:
    try:
        with open_regular(manifest) as file:
            return SCHEMA.split("/")[0].encode() in file.read(4096)
    except OSError:
        return False


def read_sweeps(roots: Sequence[Path], paths: Sequence[Path]) -> tuple[list[Collection], list[str]]:
    """Sweeps, and what is wrong with each that cannot be read. LedgerError for such a one if it is
    among ``paths``: if it was only found below them, the rest is reported."""
    sweeps, damaged = [], []
    for root in roots:
        try:
            sweeps.append(full_results(root))
        except LedgerError as error:
            if root in paths:
                raise
            damaged.append(str(error))
    return sweeps, damaged


def _identity(sweep: Collection) -> str:
    """What a sweep has in common with its copies alone: the token of its first array."""
    arrays = sweep.manifest.arrays if sweep.manifest else ()
    return arrays[0].token if arrays else str(sweep.root)


def copies_of(sweeps: Sequence[Collection], places: Mapping[Path, Path]) -> list[str]:
    """A remark on each sweep that was read before, from another place."""
    first: dict[str, Collection] = {}
    remarks = []
    for sweep in sweeps:
        other = first.setdefault(_identity(sweep), sweep)
        if other is not sweep:
            here, there = (_as_given(each.root, places) for each in (sweep, other))
            remarks.append(f"{here}: is a copy of {there}, whose runs are the same")
    return remarks


def distinct(sweeps: Sequence[Collection], places: Mapping[Path, Path]) -> list[Collection]:
    """The sweeps, with their names in the results of each series of which several sweeps measured
    the same case: these are several measurements, each with a base of its own. A copy is no second
    measurement: its runs have the name of the sweep that it was made of."""
    own = {_identity(sweep): sweep for sweep in reversed(sweeps)}
    results = [result for sweep in own.values() for result in sweep.results]
    cases = {(name, result.run.case.id) for name, sweep in own.items() for result in sweep.results}
    often = Counter(case for _, case in cases)
    series = {r.run.case.series for r in results if often[r.run.case.id] > 1}
    if not series:
        return [*sweeps]
    names = dict(zip(own, _names([*own.values()], places)))
    return [_named(sweep, names[_identity(sweep)], series) for sweep in sweeps]


def _named(sweep: Collection, name: str, series: set[str]) -> Collection:
    """The sweep, with its name in the results of these series."""
    results = list(sweep.results)
    for at, result in enumerate(results):
        if result.run.case.series in series:
            results[at] = replace(result, sweep=name)
    return replace(sweep, results=tuple(results))


def _names(sweeps: Sequence[Collection], places: Mapping[Path, Path]) -> list[str]:
    """The sweeps' names where these differ, else as much of their paths as tells them apart."""
    names = [sweep.manifest.sweep if sweep.manifest else "" for sweep in sweeps]
    paths = [_as_given(sweep.root, places).absolute().parts for sweep in sweeps]
    length = 0
    while len(set(names)) < len(names) and length < max(map(len, paths)):
        length += 1
        names = ["/".join(parts[-length:]) for parts in paths]
    return names


def _as_given(root: Path, places: Mapping[Path, Path]) -> Path:
    """Where the user finds a sweep that may have been unpacked."""
    for place, path in places.items():
        if root == place or place in root.parents:
            return path / root.relative_to(place)
    return root


def agreed_base(sweeps: Sequence[Collection]) -> str | None:
    bases = {sweep.manifest.base for sweep in sweeps if sweep.manifest}
    return bases.pop() if len(bases) == 1 else None
