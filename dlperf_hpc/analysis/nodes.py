"""Which node is slow? What runs on different nodes, and the ranks of one run, tell of it.

Across runs: the residual of a run is the logarithm of its throughput over the median of its case.
The slowest node sets the pace of a run, so that runs with a slow node lie below the others. A
node's effect is the mean residual of the runs with it minus that of the runs without it, in its
standard errors; the largest of all nodes is held against orders in which the residuals are dealt
anew within their cases, as often as it takes (a maxT permutation test: Westfall & Young,
"Resampling-Based Multiple Testing", 1993; the stopping rule is that of Besag & Clifford,
"Sequential Monte Carlo p-values", Biometrika 78, 1991).

Within a run: each rank's own time for a step in which no rank waits for another.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Optional

from dlperf_hpc.analysis.outcomes import RISK, TOLERANCE
from dlperf_hpc.analysis.speedup import chosen, of_one_unit
from dlperf_hpc.model.result import RankTime, RunResult, throttle_words

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
    others: int
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
    others_mhz: float | None = None
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
        gap = effect.difference if effect.difference is not None else 0.0
        slow = p <= risk and gap < -tolerance
        effects[place] = replace(effect, p=p, slow=slow)
        if not slow:
            break
        left = telling([run for run in left if not run.hosts & set(effect.nodes)])
    return sorted(effects, key=_order)


def _order(effect: NodeEffect) -> tuple[bool, bool, float, tuple[str, ...]]:
    errors = 0.0 if effect.errors is None else effect.errors
    return effect.errors is None, not effect.slow, errors, effect.nodes


def _effects(runs: Sequence[Observation], compared: Sequence[Observation]) -> list[NodeEffect]:
    tested = _testable(compared)
    sums = _Sums([run.residual for run in compared])
    found = []
    for nodes, members in _groups(compared).items():
        of, others = len(members), len(compared) - len(members)
        if nodes in tested:
            total = math.fsum(compared[i].residual for i in members)
            gap = math.expm1(total / of - (sums.total - total) / others)
            errors = sums.errors(total, of)
            found.append(NodeEffect(nodes, of, others, gap, errors))
        else:
            found.append(NodeEffect(nodes, of, others, missing=_why_not(of, others)))
    seen = {node for effect in found for node in effect.nodes}
    alone: dict[str, int] = defaultdict(int)
    for run in runs:
        for host in run.hosts - seen:
            alone[host] += 1
    why = "all runs of its cases were on the same nodes, so that nothing can be said"
    found += [NodeEffect((host,), count, 0, missing=why) for host, count in alone.items()]
    return found


def _why_not(runs: int, others: int) -> str:
    if runs < FEWEST:
        return f"{runs} run, nothing can be said"
    return f"{others} run{'s' * (others != 1)} without it, nothing can be said"


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
        others = self._n - runs
        mean, mean_others = total / runs, (self.total - total) / others
        within = self._squares - runs * mean**2 - others * mean_others**2
        # Runs that are equal to the last digit have no spread, and no order is rarer than another.
        spread = max(within / max(self._n - 2, 1), 1e-18)
        return (mean - mean_others) / math.sqrt(spread * (1 / runs + 1 / others))


def _worst(
    runs: Sequence[Observation], groups: Mapping[tuple[str, ...], list[int]]
) -> tuple[tuple[str, ...], float] | None:
    """The nodes whose runs are slowest beyond the others, and how often chance alone gives some
    node as much; None if nothing can be tested, or it would take minutes."""
    if not groups:
        return None
    sums = _Sums([run.residual for run in runs])
    named, counts = list(groups), [len(members) for members in groups.values()]

    def least(residuals: Sequence[float]) -> tuple[float, int]:
        totals = (sum(map(residuals.__getitem__, members)) for members in groups.values())
        each = [sums.errors(total, count) for total, count in zip(totals, counts)]
        best = min(range(len(each)), key=each.__getitem__)
        return each[best], best

    seen, which = least([run.residual for run in runs])
    work = sum(counts) + 10 * len(counts) + len(runs)
    if work > _MOST_WORK // 20:
        return None
    orders = max(_FEWEST_ORDERS, min(_MOST_ORDERS, _MOST_WORK // work))
    chance = random.Random(len(runs))  # the same runs give the same answer
    cases: dict[str, list[int]] = defaultdict(list)
    for place, run in enumerate(runs):
        cases[run.case].append(place)
    dealt = [run.residual for run in runs]
    as_extreme = 0
    for done in range(1, orders + 1):
        for places in cases.values():
            values = [dealt[place] for place in places]
            chance.shuffle(values)
            for place, value in zip(places, values):
                dealt[place] = value
        as_extreme += least(dealt)[0] <= seen + 1e-9
        if as_extreme == _ENOUGH:
            return named[which], as_extreme / done
    return named[which], (as_extreme + 1) / (orders + 1)


_Row = tuple[RankTime, float, bool, Optional[float]]
"""A rank's time in one run, the logarithm of it over the usual one, whether it was the slowest, and
the others' clock, MHz. Of logarithms: a device that takes four times as long, and eight times, is
slow for certain, though these are far apart."""


def device_times(results: Iterable[RunResult]) -> list[DeviceTime]:
    """Each device that ranks ran on, the slowest first."""
    runs = [r.rank_times for r in results if r.rates and len(r.rank_times) > 1]
    seen: dict[tuple[str, int], list[_Row]] = {}
    for times in runs:
        usual = math.log(statistics.median_low(time.ms for time in times))
        worst = max(time.ms for time in times)
        for time in times:
            clocks = [each.sm_mhz for each in times if each is not time and each.sm_mhz is not None]
            others = statistics.median(clocks) if clocks else None
            over = math.log(time.ms) - usual
            row = (time, over, time.ms == worst and over > 0, others)
            seen.setdefault((time.host, time.local_rank), []).append(row)
    # How far the times of one device are apart, whatever device: not how far devices are.
    apart = [abs(each - statistics.median(own)) for own in _overs(seen) for each in own]
    limit = max(math.log1p(DEVICE_SLOW), DEVICE_MADS * statistics.median(apart or [0.0]))
    made = [_device_time(rows, limit) for rows in seen.values()]
    return sorted(made, key=lambda each: (-each.excess, each.host, each.local_rank))


def _overs(seen: Mapping[tuple[str, int], Sequence[_Row]]) -> Iterator[list[float]]:
    """Of each device with several runs: its times over the usual ones, as logarithms."""
    return ([over for _, over, _, _ in rows] for rows in seen.values() if len(rows) > 1)


def _excess(over: float) -> float:
    """How much longer it takes, as a fraction; of what no run is, the most that a float holds."""
    return math.expm1(min(over, _MOST_OVER))


def _device_time(rows: Sequence[_Row], limit: float) -> DeviceTime:
    first = rows[0][0]
    clocks = [time.sm_mhz for time, _, _, _ in rows if time.sm_mhz is not None]
    others = [mhz for _, _, _, mhz in rows if mhz is not None]
    bits = [time.throttle for time, _, _, _ in rows if time.throttle is not None]
    every = 0
    for each in bits:
        every |= each
    least = min(over for _, over, _, _ in rows)
    return DeviceTime(
        host=first.host,
        local_rank=first.local_rank,
        gpu=first.gpu,
        uuid=first.uuid,
        runs=len(rows),
        slowest=sum(worst for _, _, worst, _ in rows),
        excess=_excess(statistics.median(over for _, over, _, _ in rows)),
        least=_excess(least),
        sm_mhz=statistics.median(clocks) if clocks else None,
        others_mhz=statistics.median(others) if others else None,
        throttle=every if bits else None,
        slow=len(rows) >= FEWEST and least > limit,
    )


def examine(
    sweeps: Sequence[Sequence[RunResult]], tolerance: float = TOLERANCE, risk: float = RISK
) -> NodeFindings:
    """All that the runs of these sweeps tell of their nodes."""
    runs = observations(sweeps)
    counted = [r for results in sweeps for r in chosen(results) if r.rates]
    missing: dict[str, int] = defaultdict(int)
    for result in counted:
        if not result.rank_times and result.rank_times_missing:
            missing[result.rank_times_missing] += 1
    return NodeFindings(
        runs=len(runs),
        compared=len(telling(runs)),
        effects=tuple(node_effects(runs, tolerance, risk)),
        devices=tuple(device_times(counted)),
        missing=dict(missing),
        tolerance=tolerance,
        risk=risk,
    )
