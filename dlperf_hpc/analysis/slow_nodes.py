"""Which node is slow? What runs on different nodes, and the ranks of one run, tell of it.

Across runs: the residual of a run is the logarithm of its throughput over the median of its case.
The slowest node sets the pace of a run, so that runs with a slow node lie below the others. A
node's effect is the mean residual of the runs with it minus that of the runs without it, in its
standard errors; the largest of all nodes is held against orders in which the residuals are permuted
within their cases, as often as it takes (a maxT permutation test: Westfall & Young,
"Resampling-Based Multiple Testing", 1993; the stopping rule is that of Besag & Clifford,
"Sequential Monte Carlo p-values", Biometrika 78, 1991).

Within a run: each rank's own time for a step in which no rank waits for another.
"""

from __future__ import annotations

import functools
import math
import operator
import random
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
_MOST_ORDERS, _FEWEST_ORDERS = 1999, 199
_ENOUGH = 20  # orders as extreme as what was seen: it is chance then
_MOST_WORK = 2_000_000  # additions; a report of thousands of runs must not wait for this
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
    an effect as large. None where ``missing`` says why nothing can be said.
    """

    nodes: tuple[str, ...]
    runs: int
    runs_without: int
    difference: float | None = None
    errors: float | None = None
    p: float | None = None
    slow: bool = False
    missing: str = ""


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

    The node with the largest effect is slow if chance gives that seldom enough (``risk``) and its
    runs are slower by more than ``tolerance``. Then the same is asked of the runs without it.
    """
    compared = telling(runs)
    effects = _effects(runs, compared)
    left = compared
    for _ in range(_MOST_NAMED):
        worst = _worst(left, _testable(left))
        if worst is None:
            break
        nodes, p = worst
        place = next(i for i, effect in enumerate(effects) if nodes[0] in effect.nodes)
        effect = effects[place]
        slow = p <= risk and (effect.difference or 0.0) < -tolerance
        effects[place] = replace(effect, p=p, slow=slow)
        if not slow:
            break
        left = telling([run for run in left if not run.hosts & set(effect.nodes)])
    return sorted(effects, key=_order)


def _order(effect: NodeEffect) -> tuple[bool, bool, float, tuple[str, ...]]:
    return effect.errors is None, not effect.slow, effect.errors or 0.0, effect.nodes


def _effects(runs: Sequence[Observation], compared: Sequence[Observation]) -> list[NodeEffect]:
    tested = _testable(compared)
    sums = _Sums([run.residual for run in compared])
    found = []
    for nodes, members in _groups(compared).items():
        count, without = len(members), len(compared) - len(members)
        if nodes in tested:
            total = math.fsum(compared[i].residual for i in members)
            gap = math.expm1(total / count - (sums.total - total) / without)
            found.append(NodeEffect(nodes, count, without, gap, sums.errors(total, count)))
        else:
            found.append(NodeEffect(nodes, count, without, missing=_why_not(count, without)))
    seen = {node for effect in found for node in effect.nodes}
    alone = Counter(host for run in runs for host in run.hosts - seen)
    why = "all runs of its cases were on the same nodes, so that nothing can be said"
    return found + [NodeEffect((host,), count, 0, missing=why) for host, count in alone.items()]


def _why_not(runs: int, without: int) -> str:
    if runs < FEWEST:
        return f"{runs} run, nothing can be said"
    return f"{without} run{'s' * (without != 1)} without it, nothing can be said"


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


def _testable(runs: Sequence[Observation]) -> dict[tuple[str, ...], list[int]]:
    return {
        nodes: members
        for nodes, members in _groups(runs).items()
        if FEWEST <= len(members) <= len(runs) - FEWEST
    }


class _Sums:
    """What no order of the residuals changes, and the effect of a node whose sum is known."""

    def __init__(self, residuals: Sequence[float]) -> None:
        self._n = len(residuals)
        self.total = math.fsum(residuals)
        self._squares = math.fsum(r * r for r in residuals)

    def errors(self, total: float, runs: int) -> float:
        """(mean with - mean without) / its standard error, the spread within both pooled."""
        without = self._n - runs
        mean, mean_without = total / runs, (self.total - total) / without
        within = self._squares - runs * mean**2 - without * mean_without**2
        # Runs that are equal to the last digit have no spread, and no order is rarer than another.
        spread = max(within / max(self._n - 2, 1), 1e-18)
        return (mean - mean_without) / math.sqrt(spread * (1 / runs + 1 / without))


def _worst(
    runs: Sequence[Observation], groups: Mapping[tuple[str, ...], list[int]]
) -> tuple[tuple[str, ...], float] | None:
    """The nodes whose runs are slowest beyond the others, and how often chance alone gives some
    node as much; None if nothing can be tested, or it would take minutes."""
    if not groups:
        return None
    sums = _Sums([run.residual for run in runs])
    named, counts = list(groups), list(map(len, groups.values()))

    def least(residuals: Sequence[float]) -> tuple[float, int]:
        totals = (sum(map(residuals.__getitem__, members)) for members in groups.values())
        return min((sums.errors(total, counts[n]), n) for n, total in enumerate(totals))

    seen, which = least([run.residual for run in runs])
    work = sum(counts) + 10 * len(counts) + len(runs)
    if work > _MOST_WORK // 20:
        return None
    orders = max(_FEWEST_ORDERS, min(_MOST_ORDERS, _MOST_WORK // work))
    as_extreme = 0
    for done, residuals in enumerate(_permuted(runs, orders), 1):
        as_extreme += least(residuals)[0] <= seen + 1e-9
        if as_extreme == _ENOUGH:
            return named[which], as_extreme / done
    return named[which], (as_extreme + 1) / (orders + 1)


def _permuted(runs: Sequence[Observation], orders: int) -> Iterator[list[float]]:
    """So often the residuals in another order within their cases."""
    chance = random.Random(len(runs))  # the same runs give the same answer
    cases: dict[str, list[int]] = defaultdict(list)
    for place, run in enumerate(runs):
        cases[run.case].append(place)
    residuals = [run.residual for run in runs]
    for _ in range(orders):
        for places in cases.values():
            values = [residuals[place] for place in places]
            chance.shuffle(values)
            for place, value in zip(places, values):
                residuals[place] = value
        yield residuals


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
