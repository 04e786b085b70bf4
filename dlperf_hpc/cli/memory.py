"""What cases need of a GPU's memory: the dry run's table, and the refusal of what cannot fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dlperf_hpc.cli.messages import in_columns
from dlperf_hpc.errors import Issue, SpecError, at_most, number_of

if TYPE_CHECKING:
    from dlperf_hpc.model.case import Case, Run
    from dlperf_hpc.sweepfile.declarations import Memory

_MOST_LINES = 60
_GIB = 2**30
_SPREAD = "spread them over more GPUs, as fsdp does, or leave the case out by [[exclude]]"


def needs(cases: Iterable[Case]) -> Mapping[Case, Memory | None]:
    """What a rank of each case needs, None where that is not known; for one sample where the batch
    size is to be found. Programs' cases and those that ask for CPUs are left out."""
    from dlperf_hpc.train.registry import registry

    own = dict.fromkeys(case for case in cases if not case.launch and case.device != "cpu")
    known, cases = registry(), sorted(own, key=lambda each: each.series)
    return {each: known.memory(replace(each, batch_size=each.batch_size or 1)) for each in cases}


def _alike(found: Mapping[Case, Memory | None]) -> dict[tuple[str, Memory | None], str]:
    groups: dict[tuple[str, Memory | None], list[str]] = {}
    for case, need in found.items():
        groups.setdefault((case.series, need), []).append(str(case.topology))
    return {key: ", ".join(places) for key, places in groups.items()}


def refuse(source: str, cases: Iterable[Case], limit_mib: int | None) -> None:
    """SpecError for the cases of the sweep file ``source`` that certainly need more than the memory
    of a GPU; none where that is not known."""
    issues, limit = [], (limit_mib or 0) * 2**20
    has = f"gpu_memory_mib of the site profile says {limit / _GIB:.4g}"
    for (name, need), places in _alike(needs(cases) if limit else {}).items():
        if need and need.certain > limit:
            held = f"{need.certain / _GIB:.4g} GiB for parameters, gradients and optimizer state"
            issues.append(Issue("cases", f"{name} on {places} needs {held}, and {has}", _SPREAD))
    if issues:
        raise SpecError(source, issues)


def texts(runs: Iterable[Run], limit_mib: int | None) -> Iterator[str]:
    """The table, and a warning where an estimate is above a GPU's memory; nothing without runs."""
    found, limit = needs(run.case for run in runs), (limit_mib or 0) * 2**20
    of, rows = f" of {limit / _GIB:.4g}" * bool(limit), list[tuple[str, ...]]()
    for (name, need), places in _alike(found).items():
        figures = ("-", "-")
        if need:
            figures = (f"{need.certain / _GIB:.3g}", f"about {need.about / _GIB:.3g}{of}")
        rows.append((name, places, *figures))
    if rows:
        head = ("memory of a GPU, GiB", "topologies", "at least", "with activations")
        lines = at_most(
            in_columns([head, *rows]).splitlines(), _MOST_LINES, " lines; --json has all"
        )
        yield "\n".join(["", *lines])
    above = sum(bool(limit and need and need.about > limit) for need in found.values())
    if above:
        yield f"\nwarning: {number_of(above, 'case')} may run out of memory by this estimate"


def values(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """The table for scripts, in bytes."""
    return [
        {
            "case": case.id,
            **{f"{key}_bytes": getattr(need, key, None) for key in ("certain", "about")},
        }
        for case, need in needs(run.case for run in runs).items()
    ]
