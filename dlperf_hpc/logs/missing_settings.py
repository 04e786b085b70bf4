"""Logs that leave out a setting which their neighbours state, and so are a series by themselves.

A series is what runs have in common but for the topology. Where one log of several does not say its
precision, say, it falls out of the curve to which it belongs; the row names the others and the
option that says it. (A timed loop of a user's own has a launch: its log says what is known, and no
option adds to it.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dlperf_hpc.logs.interpret.speed import OPTIONS
from dlperf_hpc.model.case import ObservedCase, ObservedRun
from dlperf_hpc.model.result import RunResult

_PARTS = {"model": "model", "batch_size": "batch size per device", "precision": "precision"}
_NAMED = 5  # rows that are named at most


Stated = dict[tuple[str, tuple[Any, ...]], list[ObservedCase]]
"""Cases that state a setting, by that and by what they have besides."""


def with_missing_settings(results: Sequence[RunResult]) -> list[RunResult]:
    """The results, those that fall out of a series with a warning that says why."""
    cases = {case for case in map(_case, results) if case is not None}
    stated: Stated = {}
    for case in cases:
        for part in _PARTS:
            if getattr(case, part):
                stated.setdefault((part, _but(case, part)), []).append(case)
    return [_with_warnings(result, stated) for result in results]


def _case(result: RunResult) -> ObservedCase | None:
    """The case of a run that another program logged; None of any other run."""
    if isinstance(result.run, ObservedRun) and not result.launch:
        return result.run.case
    return None


def _with_warnings(result: RunResult, stated: Stated) -> RunResult:
    case = _case(result)
    if case is None:
        return result
    lacking = [(part, _but(case, part)) for part in _PARTS if not getattr(case, part)]
    gaps = [_gap(key[0], stated[key]) for key in lacking if key in stated]
    if not gaps:
        return result
    return replace(result, warnings=(*result.warnings, *gaps))


def _but(case: ObservedCase, part: str) -> tuple[Any, ...]:
    """What a series has in common, without one of its parts."""
    parts = [getattr(case, name) for name in _PARTS if name != part]
    return (case.framework, *parts, case.tags)


def _gap(part: str, cases: Sequence[ObservedCase]) -> str:
    rows = sorted({(case.topology, getattr(case, part)) for case in cases}, key=str)
    named = ", ".join(f"{topology} ({value})" for topology, value in rows[:_NAMED])
    more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    option = OPTIONS.get(part, f"--{part}")
    return (
        f"neither the log nor its name states the {_PARTS[part]}, which {named}{more} state: the "
        f"run is in a series of its own ({option})"
    )
