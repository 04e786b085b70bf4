"""Every node by itself, or pairs of nodes in rounds: jobs on nodes that are named, and the table of
nodes that comes of it.

A pair is as slow as its slower node. So each node is measured with several others, one in each
round, and is called slow only if it is below in every one of its pairs: its best pair lies below
the median of all nodes' best ones by more than 3 % and than 4.5 times their median absolute
deviation. A pair that is slow while both of its nodes do well with others is a link.
"""

from __future__ import annotations

import statistics
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dlperf_hpc.doctor import job
from dlperf_hpc.doctor.diagnosis import ended_well, gpu_checks
from dlperf_hpc.doctor.trial import Question, Target, Trial, on_so_many_nodes
from dlperf_hpc.engines.base import CheckResult, Nodes
from dlperf_hpc.errors import DlperfError, number_of

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


Results = Generator[CheckResult, None, list[dict[str, Any]]]
_WAVE = 32  # jobs at a time
_LEAVE_OUT = "leave it out (exclude in the site profile), and tell the administrators"


@dataclass
class _Seen:
    """What is known of a node: best figures, how often it was measured, what is not well."""

    pairs: int = 0
    steps_ms: float | None = None
    gb_per_s: float | None = None
    ailments: list[str] = field(default_factory=list)

    def take(self, ms: float | None, gb_per_s: float | None) -> None:
        """Keep the better of what was known and this."""
        if ms is not None:
            self.steps_ms = ms if self.steps_ms is None else min(ms, self.steps_ms)
        if gb_per_s is not None:
            self.gb_per_s = max(gb_per_s, self.gb_per_s or 0.0)

    @property
    def text(self) -> str:
        """Its figures, in words."""
        steps = "no steps" if self.steps_ms is None else f"steps of {self.steps_ms:.4g} ms"
        rate = "" if self.gb_per_s is None else f", all-reduce {self.gb_per_s:.3g} GB/s"
        return steps + rate


def pairs(question: Question, target: Target, root: Path, nodes: Nodes, rounds: int) -> Results:
    """Rounds of jobs on two nodes each; a result for each pair, then one for each node and link
    that is not well. Returns a row for each node."""
    planned = rounds_of(nodes.idle, rounds)
    yield from _left_out(nodes)
    if len(nodes.idle) < FEWEST:
        seen = f"{number_of(len(nodes.idle), 'idle node')}: one cannot be told from the other"
        yield CheckResult("skipped", "pairs", seen, f"{FEWEST} or more are needed")
        return []
    if len(planned) < rounds:
        seen = f"{len(nodes.idle)} nodes have {len(planned)} rounds, not {rounds}"
        yield CheckResult("ok", "pairs", seen)
    table = {node: _Seen() for node in nodes.idle}
    found: list[Pairing] = []
    for number, couples in enumerate(planned, 1):
        for names, trial in _wave(question, target, root, couples):
            if not isinstance(trial, Trial):
                yield trial
                continue
            pairing = _pairing((names[0], names[1]), trial)
            found.append(pairing)
            yield _told(f"round {number}: {' and '.join(names)}", trial, pairing)
            for node in names:
                table[node].pairs += 1
                table[node].take(pairing.ms.get(node), pairing.gb_per_s)
    yield from _judged(judge(found), table)
    return _rows(table, nodes)


def all_nodes(question: Question, target: Target, root: Path, nodes: Nodes) -> Results:
    """A job on each idle node, in waves; a result for each node. Returns a row for each node."""
    yield from _left_out(nodes)
    table = {node: _Seen() for node in nodes.idle}
    for names, trial in _wave(question, target, root, [(node,) for node in nodes.idle]):
        seen = table[names[0]]
        if not isinstance(trial, Trial):
            seen.ailments.append(trial.seen)
            continue
        ended = ended_well(trial)
        seen.ailments += [ended.seen] if ended.grade != "ok" else []
        firsts = [part["node"] for part in trial.parts.values() if "gpus" in part.get("node", {})]
        seen.ailments += [
            result.seen
            for result in (gpu_checks(trial, firsts) if firsts and target.modules else ())
            if result.grade in ("FAIL", "warn")
        ]
        seen.take(_slowest_ms(trial), _rate(trial))
    speeds = {node: [1 / seen.steps_ms] for node, seen in table.items() if seen.steps_ms}
    rates = {node: [seen.gb_per_s] for node, seen in table.items() if seen.gb_per_s}
    slow = [*slow_nodes(speeds, "steps"), *slow_nodes(rates, "all-reduce")]
    yield from _judged(slow, table)
    return _rows(table, nodes)


def _left_out(nodes: Nodes) -> Iterator[CheckResult]:
    for node, doing in nodes.others.items():
        yield CheckResult("skipped", f"node {node}", f"not idle: {doing}")


def _wave(
    question: Question, target: Target, root: Path, places: Sequence[Sequence[str]]
) -> Iterator[tuple[Sequence[str], Trial | CheckResult]]:
    """A job on each of these places, some at a time: what came of it, or why there is none."""
    engine, most = question.engine, min(_WAVE, question.site.max_submit or _WAVE)
    for start in range(0, len(places), most):
        trials: dict[str, tuple[Sequence[str], Trial]] = {}
        try:
            for names in places[start : start + most]:
                wanted = replace(target, array=on_so_many_nodes(target.array, len(names)))
                site = engine.on_nodes(question.site, names)
                try:
                    trial = job.submit(root, wanted, site, engine, question.visible_s)
                except (DlperfError, OSError) as error:
                    where = " and ".join(names)
                    yield names, CheckResult("FAIL", f"job on {where}", str(error))
                    continue
                trials[trial.token] = names, trial
            watched = [trial for _, trial in trials.values()]
            for trial in job.watch(
                watched, question.timeout_s, question.visible_s, question.progress
            ):
                yield trials[trial.token][0], trial
        finally:
            job.cancel([trial for _, trial in trials.values()])


def _pairing(names: tuple[str, str], trial: Trial) -> Pairing:
    """By the names that Slurm has for the nodes: their own may differ from them."""
    hosts = {rank: part["node"]["host"] for rank, part in trial.parts.items() if "node" in part}
    order = list(dict.fromkeys(host for _, host in sorted(hosts.items())))
    called = dict(zip(order, names)) if not {*order} <= {*names} else {each: each for each in names}
    ms: dict[str, float] = {}
    for rank, part in trial.parts.items():
        node = called.get(hosts.get(rank, ""))
        if "steps" in part and node is not None:
            ms[node] = max(part["steps"]["ms"], ms.get(node, 0.0))
    return Pairing(names, _rate(trial), ms)


def _rate(trial: Trial) -> float | None:
    """Of the all-reduce on GPUs if there was one, else on host memory; GB/s."""
    comm = next((part["comm"] for _, part in sorted(trial.parts.items()) if "comm" in part), None)
    return comm["rates"][-1]["gb_per_s"] if comm and comm["rates"] else None


def _slowest_ms(trial: Trial) -> float | None:
    each = [part["steps"]["ms"] for part in trial.parts.values() if "steps" in part]
    return max(each) if each else None


def _told(name: str, trial: Trial, pairing: Pairing) -> CheckResult:
    ended = ended_well(trial)
    if ended.grade != "ok":
        return replace(ended, check=name)
    rate = "none" if pairing.gb_per_s is None else f"{pairing.gb_per_s:.3g} GB/s"
    steps = ", ".join(f"{node} {ms:.4g} ms" for node, ms in sorted(pairing.ms.items()))
    return CheckResult("ok", name, f"all-reduce {rate}; steps: {steps or 'none'}")


def _judged(verdicts: Sequence[Verdict], table: dict[str, _Seen]) -> Iterator[CheckResult]:
    """A result for each node, the slow ones with their reason, and for each slow link."""
    for verdict in verdicts:
        pairs = f", in all of its {verdict.seen} pairs" if table[verdict.nodes[0]].pairs else ""
        words = f"{verdict.figure} {100 * verdict.below:.1f} % below the other nodes{pairs}"
        if verdict.kind == "node":
            table[verdict.nodes[0]].ailments.append(f"slow: {words}")
    for node, seen in table.items():
        if seen.ailments:
            told = f"{seen.text}; {'; '.join(seen.ailments)}"
            yield CheckResult("FAIL", f"node {node}", told, _LEAVE_OUT)
        elif seen.steps_ms is None:
            yield CheckResult("warn", f"node {node}", "no job on it gave a figure")
        else:
            yield CheckResult("ok", f"node {node}", seen.text)
    for verdict in verdicts:
        if verdict.kind == "link":
            words = f"all-reduce {100 * verdict.below:.1f} % below the other pairs, and both nodes"
            to_do = "look at the cables, ports and routes between them"
            name = f"link {' and '.join(verdict.nodes)}"
            yield CheckResult("FAIL", name, f"{words} do well with others", to_do)


def _rows(table: dict[str, _Seen], nodes: Nodes) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {
            "node": node,
            "state": "idle",
            "pairs": seen.pairs or None,
            "steps_ms": seen.steps_ms,
            "all_reduce_gb_per_s": seen.gb_per_s,
            "ailments": seen.ailments,
        }
        for node, seen in table.items()
    ]
    nothing: dict[str, Any] = {
        "pairs": None,
        "steps_ms": None,
        "all_reduce_gb_per_s": None,
        "ailments": [],
    }
    return [*rows, *({"node": n, "state": s, **nothing} for n, s in nodes.others.items())]
