"""``together``: the cases of a sweep that one job measures in turn, and what cannot be so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from dlperf_hpc.errors import Issue, nearest
from dlperf_hpc.model.case import LARGEST, Case
from dlperf_hpc.sweepfile.casetables import COUNTS, Values
from dlperf_hpc.sweepfile.keys import renamed

KEY = "together"
_OF_NODES = ("topology", "topologies", *COUNTS)
_SHARED: Mapping[str, Callable[[Case], Any]] = {
    "processes_per_node": lambda case: case.ranks_per_node,
    "launch": lambda case: case.launch or "none, a back end of dlperf_hpc",
}
"""What all runs of a job have in common, since it stands in the batch script once."""


def advancing(axes: Iterable[Sequence[Values]], key: str) -> tuple[frozenset[str], list[Issue]]:
    """The keys in which cases that are run together may differ: ``key``, and those of the same
    [[zip]]; or why there are none."""
    if key in _OF_NODES:
        message = f"{key!r}: cases on other numbers of nodes or GPUs cannot share one allocation"
        return frozenset(), [Issue(KEY, message, "name another key, as framework")]
    names = {key, renamed(key, None)[0]}
    lists = [frozenset(rows[0]) for rows in axes if len(rows) > 1]
    for found in lists:
        if names & found:
            return found, []
    message = f"no list of [matrix] or [[zip]] has several values of {key!r}: there is no pair"
    return frozenset(), [Issue(KEY, message, nearest(key, sorted(frozenset().union(*lists))))]


def group_of(values: Values, apart: frozenset[str]) -> str:
    """What the values of a case, but for those of keys in ``apart``, come to as one text."""
    return repr(sorted((key, repr(value)) for key, value in values.items() if key not in apart))


def issues_of(cases: Iterable[Case], together: Mapping[str, str]) -> Iterator[Issue]:
    """Why cases cannot be run together: one reason of each kind, with the first cases."""
    groups: dict[str, Case] = {}
    found: dict[str, Issue] = {}
    for case in cases:
        first = groups.setdefault(together[case.id], case)
        if case.largest:
            message = f'{case.id} has batch_size = "{LARGEST}": runs wait for the size to be found'
            found.setdefault(LARGEST, Issue(KEY, message, "give batch_size a number"))
        for key, value in _SHARED.items():
            if value(case) != value(first):
                differ = f"{first.id} and {case.id} differ in {key} ({value(first)}, {value(case)})"
                found.setdefault(key, Issue(KEY, f"{differ}, which runs of one job share"))
    yield from found.values()


def note_on(cases: Iterable[Case], together: Mapping[str, str]) -> list[str]:
    """A note on cases that have no other one to be run with, if there are any."""
    members = Counter(together.values())
    alone = [case.id for case in cases if members[together[case.id]] == 1]
    return [f"{KEY}: {', '.join(alone[:3])}: no other case to be run with"] if alone else []
