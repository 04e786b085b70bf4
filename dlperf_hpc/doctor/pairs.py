"""Pairs of nodes: which to measure in which round, and what their figures say of nodes and links.

A pair is as slow as its slower node. So each node is measured with several others, one in each
round, and is called slow only if it is below in every one of its pairs: its best pair lies below
the median of all nodes' best ones by more than 3 % and than 4.5 times their median absolute
deviation. A pair that is slow while both of its nodes do well with others is a link.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

SLOW = 0.03
MADS = 4.5
LINK_SLOW = 0.05
LINK_MADS = 6.0
FEWEST = 3
"""Nodes from which on one can be told from the others."""


@dataclass(frozen=True)
class Pairing:
    """Two nodes that were measured together: their all-reduce (GB/s of bus bandwidth), and of each
    node the time of its slowest rank for a step of its own (ms), as far as they are known."""

    nodes: tuple[str, str]
    gb_per_s: float | None = None
    ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """What is slow: a ``node``, or a ``link`` of two; in ``all-reduce`` or ``steps``, and by which
    fraction it lies below the others' median. ``seen`` says how many pairs it rests on."""

    kind: str
    nodes: tuple[str, ...]
    figure: str
    below: float
    seen: int


def rounds_of(nodes: Sequence[str], count: int) -> list[list[tuple[str, str]]]:
    """The first ``count`` rounds of the circle method (a round-robin tournament): each node is in
    one pair of a round, with another partner in each; one has a break where their number is odd.

    There are no more than n - 1 rounds of n nodes (n, if n is odd).
    """
    circle: list[str | None] = list(nodes)
    circle += [None] * (len(circle) % 2)
    found = []
    for _ in range(min(count, max(len(circle) - 1, 0))):
        half = len(circle) // 2
        pairs = zip(circle[:half], reversed(circle[half:]))
        found.append([(a, b) for a, b in pairs if a is not None and b is not None])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return found


def judge(pairings: Iterable[Pairing]) -> list[Verdict]:
    """Slow nodes by their own steps, slow nodes by all-reduce, then slow links."""
    pairings = list(pairings)
    steps: dict[str, list[float]] = {}
    rates: dict[str, list[float]] = {}
    for pairing in pairings:
        for node, ms in pairing.ms.items():
            steps.setdefault(node, []).append(1 / ms)
        if pairing.gb_per_s is not None:
            for node in pairing.nodes:
                rates.setdefault(node, []).append(pairing.gb_per_s)
    # Of one pair alone nobody knows which of its nodes is the slow one.
    rates = {node: values for node, values in rates.items() if len(values) > 1}
    slow = [*slow_nodes(steps, "steps"), *slow_nodes(rates, "all-reduce")]
    named = {node for verdict in slow for node in verdict.nodes}
    return [*slow, *_links([p for p in pairings if not named & {*p.nodes}])]


def slow_nodes(speeds: Mapping[str, Sequence[float]], figure: str) -> list[Verdict]:
    """The nodes whose best of several figures (more is better) lies below the others'."""
    best = {node: max(values) for node, values in speeds.items()}
    if len(best) < FEWEST:
        return []
    centre, limit = _limit(list(best.values()), SLOW, MADS)
    return [
        Verdict("node", (node,), figure, 1 - value / centre, len(speeds[node]))
        for node, value in sorted(best.items())
        if value < limit
    ]


def _links(pairings: Sequence[Pairing]) -> list[Verdict]:
    rates = {p.nodes: p.gb_per_s for p in pairings if p.gb_per_s is not None}
    if len(rates) < FEWEST:
        return []
    centre, limit = _limit(list(rates.values()), LINK_SLOW, LINK_MADS)
    well = {node for nodes, rate in rates.items() if rate >= limit for node in nodes}
    return [
        Verdict("link", nodes, "all-reduce", 1 - rate / centre, 1)
        for nodes, rate in rates.items()
        if rate < limit and well >= {*nodes}
    ]


def _limit(values: Sequence[float], share: float, mads: float) -> tuple[float, float]:
    """The median, and what lies below it by more than a share of it and than so many MADs."""
    centre = statistics.median(values)
    mad = statistics.median(abs(value - centre) for value in values)
    return centre, centre - max(share * centre, mads * mad)
