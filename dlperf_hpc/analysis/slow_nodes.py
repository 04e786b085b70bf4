"""Which node is slow? What runs on different nodes, and the ranks of one run, tell of it.

Across runs: the slowest node sets the pace of a run, so that every run with a slow node lies below
the runs of its case without it. Each run with a node is held against the lower median of the runs
of its case without that node, in units of the noise of all runs without it. How often as many runs
lie as low by chance is counted as if they were drawn from Student's t with 3 degrees of freedom,
whose tails are heavy, by the bound of Chernoff ("A Measure of Asymptotic Efficiency", Annals of
Mathematical Statistics 23, 1952), once for all runs and once for most of them, and multiplied by
the number of nodes (Bonferroni). No orders are permuted: a slow node's runs are part of all orders,
so that these cannot tell a node that is slower.

Within a run: each rank's own time for a step in which no rank waits for another.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from dlperf_hpc.analysis.speedup import chosen, of_one_unit
from dlperf_hpc.model.result import RankTime, RunResult, throttle_words
from dlperf_hpc.model.statistics import RISK, TOLERANCE

FEWEST = 2
"""Runs with a node, and without it, from which on something can be said of it; and runs on a device
from which on it can be called slow."""

DEVICE_SLOW = 0.03
"""A device's own time must be longer than the other devices' by more than this in every run."""

DEVICE_MADS = 4.5
_MOST_OVER = 700.0  # a logarithm whose power a float can hold
_MOST_WORK = 200_000  # nodes x runs; beyond, one noise serves all nodes
_CAUTION = 4.0  # as the noise is that of few runs
_MOST_IN_PAIRS = 30  # runs of a case
_SUSPICIOUS = 0.02
_LEAST_NOISE = 1e-3  # runs that are equal to the last digit are no measure of it
_T3_WITHIN = 1.197  # 68.3 % of Student's t with 3 degrees of freedom lie within
_MOST_NAMED = 8


@dataclass(frozen=True)
class Observation:
    """A run as far as its nodes go: ``case`` is whom it may be compared with."""

    case: str
    hosts: frozenset[str]
    residual: float


@dataclass(frozen=True)
class NodeEffect:
    """What the runs tell of a node, or of ``nodes`` that no run tells apart.

    ``difference`` is the fraction by which runs with it are faster (below 0: slower) than those
    without it; ``errors`` the same in standard errors; ``p`` how often chance alone gives some node
    an effect as large. None where ``missing`` says why nothing can be said; the difference of a
    single run stands there too. ``unexplained`` is how far all runs are apart if this node alone is
    slow. Figures of what is not slow are those of the runs without the slow nodes. ``needed``: with
    so many runs as slow as these the node would be named; 0 where nothing makes it suspicious.
    """

    nodes: tuple[str, ...]
    runs: int
    runs_without: int
    difference: float | None = None
    errors: float | None = None
    p: float | None = None
    unexplained: float = math.inf
    needed: int = 0
    slow: bool = False
    missing: str = ""

    def is_low(self, tolerance: float, risk: float) -> bool:
        """Whether its runs are slow, and chance gives that seldom enough."""
        rare = self.p is not None and self.p <= risk
        return rare and self.difference is not None and self.difference < -tolerance


@dataclass(frozen=True)
class DeviceTime:
    """The own times of the ranks on one device, against the lower median of all ranks of each run.

    ``excess`` is the median over its runs, ``least`` the smallest; ``slowest`` in how many of its
    ``runs`` it was the slowest of all. Clocks are medians over runs, MHz: its own, and those of the
    other devices of its runs.
    """

    host: str
    local_rank: int
    gpu: bool
    uuid: str
    runs: int
    slowest: int
    excess: float
    least: float
    sm_mhz: float | None = None
    peers_mhz: float | None = None
    throttle: int | None = None
    slow: bool = False

    @property
    def name(self) -> str:
        """``n7 GPU 3``; ``n7 rank 3`` where ranks compute on CPUs."""
        return f"{self.host} {'GPU' if self.gpu else 'rank'} {self.local_rank}"

    @property
    def throttled(self) -> str:
        """Why it was throttled, in words; '' if it was not, or nobody looked."""
        return throttle_words(self.throttle or 0)


@dataclass(frozen=True)
class NodeFindings:
    """All of it. ``runs`` counted and told their nodes; ``compared`` of them are of cases whose
    runs were on different nodes. ``effects`` and ``devices`` stand from slow to fast, with those
    of which nothing can be said at the end. ``missing`` says why runs tell no times of their ranks,
    and of how many runs that holds."""

    runs: int
    compared: int
    effects: tuple[NodeEffect, ...]
    devices: tuple[DeviceTime, ...]
    missing: Mapping[str, int]
    tolerance: float = TOLERANCE
    risk: float = RISK

    @property
    def slow_nodes(self) -> tuple[str, ...]:
        """The nodes that are named, by either way."""
        named = [node for effect in self.effects if effect.slow for node in effect.nodes]
        return tuple(dict.fromkeys([*named, *(d.host for d in self.devices if d.slow)]))

    @property
    def suspected(self) -> tuple[NodeEffect, ...]:
        """What is not named, but would be if more runs were as slow."""
        return tuple(
            effect
            for effect in self.effects
            if effect.needed and not effect.slow and (effect.difference or 0.0) < -self.tolerance
        )

    @property
    def something(self) -> bool:
        """Whether there is anything to show."""
        return bool(self.effects or self.devices)

    @property
    def several(self) -> bool:
        """Whether there is something to tell of nodes: several of them, or the ranks' own times."""
        nodes = {node for effect in self.effects for node in effect.nodes}
        return len(nodes) > 1 or bool(self.devices)


def hosts_of(result: RunResult) -> frozenset[str]:
    """The nodes of a run, as its log tells them; none if it does not, or tells too many."""
    world = result.facts.get("world")
    hosts = world.get("hosts") if isinstance(world, Mapping) else None
    if not isinstance(hosts, (list, tuple)) or len(hosts) > result.run.case.topology.nodes:
        return frozenset()  # a log may say anything
    return frozenset(map(str, hosts))


def observations(sweeps: Iterable[Sequence[RunResult]]) -> list[Observation]:
    """The runs that count and tell their nodes. Runs of one case are compared within one sweep
    only: what changed between two evenings is no node's."""
    found = []
    for number, results in enumerate(sweeps):
        cases: dict[str, list[RunResult]] = defaultdict(list)
        for result in chosen(results):
            cases[result.run.case.id].append(result)
        for name, members in cases.items():
            counted, units = of_one_unit(members)
            rates = [result.rates[units[0]] for result in counted]
            centre = statistics.median(rates) if rates else 1.0
            for result, rate in zip(counted, rates):
                hosts = hosts_of(result)
                if hosts:
                    residual = math.log(rate / centre)
                    found.append(Observation(f"{number} {name}", hosts, residual))
    return found


def telling(runs: Sequence[Observation]) -> list[Observation]:
    """Those of cases whose runs were not all on the same nodes: others say nothing of nodes."""
    places: dict[str, set[frozenset[str]]] = defaultdict(set)
    for run in runs:
        places[run.case].add(run.hosts)
    return [run for run in runs if len(places[run.case]) > 1]


def node_effects(
    runs: Sequence[Observation], tolerance: float = TOLERANCE, risk: float = RISK
) -> list[NodeEffect]:
    """What there is to say of each node, the slowest first.

    The node whose runs chance explains least is slow if that is seldom enough (``risk``) and they
    are slower by more than ``tolerance``. Then the same is asked of the runs without it.
    """
    left = compared = telling(runs)
    effects = _Runs(left, risk).effects()
    named: list[NodeEffect] = []
    while low := [effect for effect in effects if effect.is_low(tolerance, risk)]:
        worst = min(low, key=lambda effect: effect.unexplained)
        named.append(replace(worst, slow=True))
        left = telling([run for run in left if not run.hosts & {*worst.nodes}])
        effects = _Runs(left, risk).effects() if len(named) < _MOST_NAMED else []
    lowest = min((effect.p for effect in effects if effect.p is not None), default=None)
    found = named + [replace(e, p=e.p if e.p == lowest else None) for e in effects]
    return sorted([*found, *_unsaid(runs, compared, found)], key=_order)


def _unsaid(
    runs: Iterable[Observation], compared: Iterable[Observation], found: Iterable[NodeEffect]
) -> Iterator[NodeEffect]:
    """The nodes of which nothing was found, and why."""
    seen = {node for effect in found for node in effect.nodes}
    with_slow = {host for run in compared for host in run.hosts}
    for host, count in Counter(host for run in runs for host in run.hosts - seen).items():
        why = "all runs of its cases were on the same nodes, so that nothing can be said"
        if host in with_slow:
            why = "without its runs with a slow node nothing can be said"
        yield NodeEffect((host,), count, 0, missing=why)


def _order(effect: NodeEffect) -> tuple[bool, bool, float, tuple[str, ...]]:
    by = effect.difference if effect.slow else effect.errors
    return effect.errors is None, not effect.slow, by or 0.0, effect.nodes


def _groups(runs: Sequence[Observation]) -> dict[tuple[str, ...], list[int]]:
    """The runs with each node, by their places; nodes that are always together are one."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, run in enumerate(runs):
        for host in run.hosts:
            places[host].append(place)
    together: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for host, members in sorted(places.items()):
        together[tuple(members)].append(host)
    return {tuple(hosts): list(members) for members, hosts in together.items()}


def _why_not(runs: int, without: int) -> str:
    if runs < FEWEST:
        return f"{runs} run, nothing can be said"
    return f"{without} run{'s' * (without != 1)} without it, nothing can be said"


class _Runs:
    """Runs by their cases, for what is said of each node."""

    def __init__(self, runs: Sequence[Observation], risk: float) -> None:
        self._risk, self._size, self._groups = risk, len(runs), _groups(runs)
        self._cases: dict[str, dict[int, float]] = defaultdict(dict)
        for place, run in enumerate(runs):
            self._cases[run.case][place] = run.residual
        self._of_run = [run.case for run in runs]
        self._apart = {case: _apart(of_case.values()) for case, of_case in self._cases.items()}
        self._noise = 0.0
        if len(self._groups) * len(runs) > _MOST_WORK:
            self._noise = self._noise_without(set())

    def effects(self) -> list[NodeEffect]:
        """Of each node; ``p`` is None where nothing can be said."""
        return [self._effect(nodes, set(members)) for nodes, members in self._groups.items()]

    def _effect(self, nodes: tuple[str, ...], members: set[int]) -> NodeEffect:
        below, scores, unexplained = self._against(members)
        count, rest = len(members), self._size - len(members)
        said = NodeEffect(nodes, count, rest)
        if not scores or rest < FEWEST:
            return replace(said, missing=_why_not(count, min(rest, len(scores))))
        noise, middle = self._noise or self._noise_without(members), statistics.median(below)
        once = _below(max(scores) / noise)
        alone = self._risk / (_CAUTION * len(self._groups))
        needed = math.ceil(math.log(alone) / math.log(once)) if once <= _SUSPICIOUS else 0
        said = replace(
            said, difference=math.expm1(middle), needed=max(needed, FEWEST) * (needed > 0)
        )
        if len(scores) < FEWEST:
            return replace(said, missing=_why_not(count, len(scores)))
        return replace(
            said,
            errors=middle / (noise * math.sqrt(1 / len(scores) + 1 / rest)),
            p=min(1.0, _chance([score / noise for score in scores]) * self._risk / alone),
            unexplained=unexplained,
        )

    def _against(self, members: set[int]) -> tuple[list[float], list[float], float]:
        """By how much runs with a node lie below their case's without it; the highest of them in
        units of the noise of such a difference; how far apart all runs are otherwise."""
        below: list[float] = []
        scores: list[float] = []
        unexplained = math.fsum(self._apart.values())
        for case in {self._of_run[place] for place in members}:
            of_case = self._cases[case]
            without = [value for place, value in of_case.items() if place not in members]
            if without:
                usual, scale = statistics.median_low(without), math.sqrt(1 + 1 / len(without))
                off = sorted(of_case[place] - usual for place in of_case.keys() & members)
                below += off
                # runs with the node are as many witnesses as there are runs to hold them against
                scores += [value / scale for value in off[-len(without) :]]
                unexplained += _apart(without) - self._apart[case]
        return below, scores, unexplained + (_apart(below) if below else 0.0)

    def _noise_without(self, members: set[int]) -> float:
        """What 68.3 % of the other runs differ from one another at most, over the root of 2, within
        their cases; larger where they are few."""
        off: list[float] = []
        free = 0
        for of_case in self._cases.values():
            values = [value for place, value in of_case.items() if place not in members]
            pairs = itertools.combinations(values[:_MOST_IN_PAIRS], 2)
            off += (abs(a - b) / math.sqrt(2) for a, b in pairs)
            free += max(len(values) - 1, 0)
        if not off:
            return math.inf
        return max(_LEAST_NOISE, sorted(off)[int(0.683 * len(off))] * math.sqrt(1 + 2 / free))


def _apart(values: Iterable[float]) -> float:
    known = [*values]
    usual = statistics.median(known)
    return math.fsum(abs(value - usual) for value in known)


def _chance(scores: Sequence[float]) -> float:
    """How often as many runs, in units of their noise, would all lie as low, or most of them."""
    ordered, n = sorted(scores), len(scores)
    every = _bound(n, n, ordered[-1])
    if n < 4:
        return every
    most = n // 2 + 1
    return 2 * min(every, _bound(n, most, ordered[most - 1]))


def _below(score: float) -> float:
    """How often Student's t (3), scaled so that 68.3 % lie within 1 of 0, lies below ``score``."""
    u = score * _T3_WITHIN / math.sqrt(3)
    return max(0.5 + (u / (1 + u * u) + math.atan(u)) / math.pi, 1e-15)


def _bound(n: int, many: int, score: float) -> float:
    """How often, at most, ``many`` of ``n`` such values lie below ``score``."""
    below, share = _below(score), many / n
    if below >= share:
        return 1.0
    far = share * math.log(share / below)
    if many < n:
        far += (1 - share) * math.log((1 - share) / (1 - below))
    return math.exp(-n * far)


class _RankRow(NamedTuple):
    """A rank's time in one run, ``over`` the logarithm of it over the usual one, whether it was the
    slowest, and the other ranks' clock, MHz. Logarithms, for a device that takes four times as
    long, and eight times, is slow for certain, though these are far apart."""

    time: RankTime
    over: float
    slowest: bool
    peers_mhz: float | None


def device_times(results: Iterable[RunResult]) -> list[DeviceTime]:
    """Each device that ranks ran on, the slowest first."""
    devices: dict[tuple[str, int], list[_RankRow]] = defaultdict(list)
    for result in results:
        if result.rates and len(result.rank_times) > 1:
            for row in _rank_rows(result.rank_times):
                devices[row.time.host, row.time.local_rank].append(row)
    # How far the times of one device are apart, whatever device: not how far devices are.
    own = [[row.over for row in rows] for rows in devices.values() if len(rows) > 1]
    apart = [abs(over - statistics.median(overs)) for overs in own for over in overs]
    limit = max(math.log1p(DEVICE_SLOW), DEVICE_MADS * statistics.median(apart or [0.0]))
    made = [_device_time(rows, limit) for rows in devices.values()]
    return sorted(made, key=lambda each: (-each.excess, each.host, each.local_rank))


def _rank_rows(times: Sequence[RankTime]) -> Iterator[_RankRow]:
    usual = math.log(statistics.median_low(time.ms for time in times))
    worst = max(time.ms for time in times)
    for time in times:
        over = math.log(time.ms) - usual
        peers_mhz = _median(each.sm_mhz for each in times if each is not time)
        yield _RankRow(time, over, time.ms == worst and over > 0, peers_mhz)


def _median(values: Iterable[float | None]) -> float | None:
    """The median of what is known."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _excess(over: float) -> float:
    """How much longer it takes, as a fraction; of what no run is, the most that a float holds."""
    return math.expm1(min(over, _MOST_OVER))


def _device_time(rows: Sequence[_RankRow], limit: float) -> DeviceTime:
    first = rows[0].time
    bits = [row.time.throttle for row in rows if row.time.throttle is not None]
    least = min(row.over for row in rows)
    return DeviceTime(
        host=first.host,
        local_rank=first.local_rank,
        gpu=first.gpu,
        uuid=first.uuid,
        runs=len(rows),
        slowest=sum(row.slowest for row in rows),
        excess=_excess(statistics.median(row.over for row in rows)),
        least=_excess(least),
        sm_mhz=_median(row.time.sm_mhz for row in rows),
        peers_mhz=_median(row.peers_mhz for row in rows),
        throttle=functools.reduce(operator.or_, bits) if bits else None,
        slow=len(rows) >= FEWEST and least > limit,
    )


def examine(
    sweeps: Sequence[Sequence[RunResult]], tolerance: float = TOLERANCE, risk: float = RISK
) -> NodeFindings:
    """All that the runs of these sweeps tell of their nodes."""
    runs = observations(sweeps)
    counted = [r for results in sweeps for r in chosen(results) if r.rates]
    missing = Counter(r.rank_times_missing for r in counted if not r.rank_times)
    missing.pop("", None)
    return NodeFindings(
        runs=len(runs),
        compared=len(telling(runs)),
        effects=tuple(node_effects(runs, tolerance, risk)),
        devices=tuple(device_times(counted)),
        missing=dict(missing),
        tolerance=tolerance,
        risk=risk,
    )
