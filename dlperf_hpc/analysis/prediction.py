"""How fast a series would be on more nodes than were measured, how sure that is, and when not.

The model is of the time t of one optimizer step on N full nodes (all devices of a node in use)::

    t(N) = t_free + x1 + c (1 - N^-gamma) / gamma

``t_free + x1`` is the step on one node; the last term is what the exchange between nodes adds: with
gamma 1 that of a ring, c (N - 1) / N (Patarasu & Yuan, "Bandwidth optimal all-reduce algorithms",
2009), with gamma 0 c ln N, that of a tree. The step time is extrapolated, and not the speedup,
since the curve of speedups kinks where the network begins.

Where the gradient's all-reduce alone was timed, ``ar(N)``, a step as a function of it is convex:
first the computation hides a part of each bucket's exchange, then it is over, and nothing hides the
rest. From the most measured nodes N0 on the slope rho is thus at least the one up to N0, at most 1,
and the exchange begins after the forward pass (of the last micro-batch)::

    t(N) = max(t(N0) + rho (ar(N) - ar(N0)), min(t_forward + ar(N), t(N0) + ar(N) - ar(N0)))

The half width of the interval is split-conformal (Lei et al., "Distribution-free predictive
inference for regression", 2018), scaled by what makes an extrapolation hard. ``benchmarks/
forecast.py`` computes :data:`CALIBRATED_ON` anew from the published tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import NamedTuple, Union

from dlperf_hpc.analysis.flags import SUPER_LINEAR_WITHOUT_INTERVAL, fewest_cores
from dlperf_hpc.analysis.speedup import CaseSummary
from dlperf_hpc.model.case import Topology
from dlperf_hpc.model.result import SAMPLES_PER_S, RunResult

Steps = Mapping[int, float]
"""Nodes -> time of an optimizer step, in one unit for all."""
AllReduceTimes = Mapping[tuple[Union[str, None], str, int], Mapping[int, Sequence[float]]]
"""Times of the gradient's all-reduces, s, by sweep (None: any), series and devices of a node; then
by nodes."""

RING, BETWEEN, TREE = 1.0, 0.5, 0.0
"""Values of gamma: of a ring, of what is taken where nothing tells, of a tree."""
BACKWARD = 2 / 3
"""Share of a micro-batch's computation that can hide the exchange: a backward pass takes twice a
forward one (Kaplan et al., "Scaling laws for neural language models", 2020)."""
_PRIOR_WIDTH = 0.5  # of gamma around BETWEEN, where three counts or more are fitted
_MODEL_ERROR = 0.005  # of a step time, relative; runs of one case vary by less
_GAMMAS = 40  # steps of the grid from tree to ring

CONFORMAL = 0.65
FLOOR = 0.02
"""Half width = CONFORMAL (FLOOR + loss) log2(target / last), a fraction of the prediction."""
CALIBRATED_ON = (
    "the interval was calibrated on 105 published ladders (1 and 2 nodes to 4, nearly all of 8 V100"
    " a node and of one cluster): 91 % of them lay within, of the worst framework 67 %; on another"
    " cluster, or further away, it may hold less often"
)

_MOST_TIMES = 16
_MOST_TIMES_BY_TWO = 4
_MOST_NODES_BY_TWO = 8
_MOST_LOSS = 0.25
_MOST_EXPOSED = 0.99  # of a step, for what remains without its exchange to be a figure
_MOST_UNSURE = 0.3  # of a throughput by a probed all-reduce
VOID = frozenset({
    "over-peak", "no-optimizer-step", "all-steps-skipped", "bimodal", "not-as-asked",
    "mixed-settings", "mixed-units",
})  # fmt: skip
"""Flags of :data:`.flags.FLAGS` by which a figure is none to extrapolate from."""


# --- the model, of plain numbers


def exchange(nodes: float, gamma: float) -> float:
    """``(1 - N^-gamma) / gamma``, and its limit ``ln N`` for gamma 0; 0 on one node."""
    return math.log(nodes) if gamma == TREE else (1 - nodes**-gamma) / gamma


def _line(steps: Steps, added: Callable[[int], float]) -> tuple[float, float]:
    """The factor of ``added`` by least squares of relative errors, and their sum of squares. It is
    never below 0: noise alone makes a step on more nodes shorter."""
    points = [(added(n), t, 1 / t**2) for n, t in steps.items()]
    total = sum(w for *_, w in points)
    x0, t0 = (sum(p[i] * p[2] for p in points) / total for i in (0, 1))
    spread = sum(w * (x - x0) ** 2 for x, _, w in points)
    c = max(0.0, sum(w * (x - x0) * (t - t0) for x, t, w in points) / spread)
    return c, sum(w * (t - t0 - c * (x - x0)) ** 2 for x, t, w in points)


def fitted_gamma(steps: Steps) -> float:
    """The gamma that fits three node counts or more, pulled towards :data:`BETWEEN`."""

    def badness(gamma: float) -> float:
        away = (gamma - BETWEEN) / _PRIOR_WIDTH
        return _line(steps, lambda n: exchange(n, gamma))[1] / _MODEL_ERROR**2 + away**2

    return min((place / _GAMMAS for place in range(_GAMMAS + 1)), key=badness)


def gamma_for(steps: Steps, nodes: int) -> float:
    """The gamma that is taken for this many nodes."""
    if len(steps) > 2:
        return fitted_gamma(steps)
    return RING if nodes <= 2 * max(steps) else BETWEEN


def step_at(steps: Steps, nodes: int, gamma: float) -> float:
    """The time of a step on ``nodes`` nodes, in the unit of ``steps``, which need two counts; the
    curve goes through the largest of them."""
    last = max(steps)
    added = exchange(nodes, gamma) - exchange(last, gamma)
    return steps[last] + _line(steps, lambda n: exchange(n, gamma))[0] * added


class Probed(NamedTuple):
    """A step by its all-reduce: time, ``rho`` (its growth over the all-reduce's), and how far the
    throughput may be off, a fraction, as computation hides more of the all-reduce or less."""

    step: float
    rho: float
    unsure: float


def probed_step(steps: Steps, alone: Steps, nodes: int, accumulation: int = 1) -> Probed | None:
    """The step on ``nodes`` nodes by the times of the all-reduce ``alone`` (s, as ``steps``); of
    both, 0 nodes are a step without any. None where it was not timed there, on the most measured
    nodes and on fewer, or takes no longer on the most. Of an ``accumulation`` only the last
    micro-batch exchanges."""
    known = {n: t for n, t in steps.items() if n in alone}
    if nodes not in alone or max(steps) not in known or len(known) < 2:
        return None
    counts = sorted(known)
    first, before, last = counts[0], counts[-2], counts[-1]
    grown, more = alone[last] - alone[before], max(0.0, alone[nodes] - alone[last])
    if grown <= 0:
        return None
    fitted, _ = _line(known, lambda n: alone[n])
    noise = math.sqrt(2) * _MODEL_ERROR * known[last] / grown
    rho = max(fitted, (known[last] - known[before]) / grown - noise)
    # DDP's first bucket is small: the exchange begins as the backward pass does.
    begins = (1 - BACKWARD / accumulation) * (known[first] - fitted * alone[first])
    longest = known[last] + max(1.0, rho) * more
    step = min(max(known[last] + rho * more, begins + alone[nodes]), longest)
    shortest = max(known[last] + max(0.0, min(1.0, rho) - noise) * more, alone[nodes])
    unsure = max(step / shortest - 1, 1 - step / longest)
    return Probed(step, (step - known[last]) / more if more else rho, unsure)


def loss_of(steps: Steps) -> float:
    """The share of a device's throughput that is lost from the fewest nodes to the most, from 0."""
    return max(0.0, 1 - steps[min(steps)] / steps[max(steps)])


def steep_loss(steps: Steps) -> float:
    """The loss between the two fewest counts if it makes every prediction doubtful, else 0."""
    first, second, *_ = sorted(steps)
    lost = 1 - steps[first] / steps[second]
    return lost if lost > _MOST_LOSS else 0.0


def half_width(steps: Steps, nodes: int) -> float:
    """Half of the interval's width, as a fraction of the predicted throughput."""
    return CONFORMAL * (FLOOR + loss_of(steps)) * math.log2(nodes / max(steps))


def why_not_from(steps: Steps) -> str:
    """Why nothing is predicted from such step times, and what to measure; '' if they will do."""
    if len(steps) < 2:
        if not steps:
            return "no run on full nodes counts: measure two counts of nodes"
        (only,) = steps
        here = f"full nodes were measured in one count only ({_nodes(only)})"
        return f"{here}: measure {_nodes(2 * only)} as well"
    counts = sorted(steps)
    for few, many in zip(counts, counts[1:]):
        growth = steps[few] / steps[many]
        where = f"from {few} to {_nodes(many)}"
        if growth * many / few <= 1:
            more = "look for the cause (`dlperf doctor --pairs 3`), and measure again"
            return f"the throughput falls {where}, from which no law follows: {more}"
        if growth > SUPER_LINEAR_WITHOUT_INTERVAL:
            faster = f"a device gets {100 * (growth - 1):.1f} % faster {where}"
            return f"{faster}, which no exchange can do: measure {_nodes(few)} again"
    return ""


def why_not_at(steps: Steps, nodes: int, probed: bool = False) -> str:
    """Why this count of nodes is not predicted, and what to measure; '' if it can be. Where the
    exchange was ``probed`` there, two counts of nodes reach as far as three."""
    last, two = max(steps), len(steps) == 2 and not probed
    if nodes in steps:
        return ""  # it is known, and needs no prediction
    if nodes < last:
        return f"{_nodes(last)} were measured, and only more are predicted: measure {nodes} itself"
    if nodes > _MOST_TIMES * last:
        more = math.ceil(nodes / _MOST_TIMES)
        return f"more than {_MOST_TIMES} times what was measured: measure {_nodes(more)} as well"
    if two and nodes > min(_MOST_TIMES_BY_TWO * last, _MOST_NODES_BY_TWO):
        far = f"{_MOST_TIMES_BY_TWO} times as far, and {_MOST_NODES_BY_TWO} nodes at most"
        return f"two node counts reach {far}: measure a third one, {_nodes(2 * last)}"
    if (lost := steep_loss(steps)) and nodes > 2 * last and not probed:
        steep = f"{100 * lost:.1f} % of a device's throughput is lost at once"
        half = _nodes(math.ceil(nodes / 2))
        return f"{steep}, so that twice as far is the limit: measure {half} as well"
    return ""


def why_not_by(at: Probed | None, nodes: int, last: int) -> str:
    """Why the all-reduce leaves such a step unknown, and what to measure; '' if it does not."""
    if at is None or at.unsure <= _MOST_UNSURE:
        return ""
    off = f"by {100 * at.unsure:.0f} %, as computation hides more of the all-reduce or less"
    return f"it may be off {off}: measure {_nodes(max(last + 1, math.ceil(nodes / 2)))} as well"


def _nodes(count: int) -> str:
    return f"{count} node{'s' * (count != 1)}"


# --- of a series

MEASURED = "measured"


@dataclass(frozen=True)
class NodeCount:
    """One count of nodes of a series. Throughputs are over all devices, in ``unit``; ``efficiency``
    is per device, over that on the fewest full nodes. ``basis`` is :data:`MEASURED`, where the
    interval is that of the median of runs, or says what the extrapolation rests on, where it has a
    ``half_width``, a fraction. ``tree`` and ``ring`` are the throughputs by these two laws where no
    measured figure tells between them, else None."""

    series: str
    topology: Topology
    unit: str
    throughput: float
    basis: str
    efficiency: float | None = None
    low: float | None = None
    high: float | None = None
    half_width: float | None = None
    tree: float | None = None
    ring: float | None = None


@dataclass(frozen=True)
class Prediction:
    """What one series says of more nodes: ``counts`` of full nodes, measured ones first, from few
    to many; ``steps`` are the measured ones' step times. ``why_not`` says why nothing is predicted
    and what to measure, '' where something may be; ``refused`` says it of single counts."""

    series: str
    steps: Steps
    counts: tuple[NodeCount, ...]
    why_not: str = ""
    refused: Mapping[int, str] = field(default_factory=dict)

    @property
    def something(self) -> bool:
        """Whether any count is predicted."""
        return any(each.basis != MEASURED for each in self.counts)


def full_nodes(members: Sequence[CaseSummary]) -> tuple[CaseSummary, ...]:
    """The cases of a series of which runs count, on nodes of which as many devices are in use as of
    any node of the series; from few nodes to many."""
    widest = max((m.case.topology.gpus_per_node for m in members), default=0)
    full = (m for m in members if m.case.topology.gpus_per_node == widest)
    sane = (m for m in full if 1e-99 < (m.speed or 0) < 1e99)  # else squares of times overflow
    return tuple(sorted(sane, key=lambda m: m.case.topology.nodes))


def predictions(
    series: Mapping[str, Sequence[CaseSummary]],
    runs: Iterable[RunResult],
    targets: Collection[int] = (),
    probes: Iterable[RunResult] = (),
) -> tuple[Prediction, ...]:
    """What each series says of these counts of nodes; without any, of twice and four times the most
    nodes that it was measured on. ``runs`` are those of all cases: they tell which cores their
    ranks had, and what all-reduces took in their sweep; ``probes`` tell that of any sweep, and
    their windows are none of a series."""
    runs = tuple(runs)
    crowded = {(run.sweep, run.run.case.id) for run in filter(_ranks_share_cores, runs)}
    full = {name: full_nodes(members) for name, members in series.items()}
    reasons = {name: _why_not(measured, crowded) for name, measured in full.items()}
    alike: dict[tuple[object, ...], list[Sequence[CaseSummary]]] = {}
    for name, measured in full.items():
        if not reasons[name]:
            alike.setdefault(_but_for_batch(measured[0]), []).append(measured)
    alone = _all_reduces(runs, probes)
    made = []
    for name, measured in full.items():
        steps, why_not = step_times(measured), reasons[name]
        counts = tuple(_measured(name, each, {} if why_not else steps) for each in measured)
        found = Prediction(name, steps, counts, why_not)
        if not why_not:
            known = _with_sibling(measured, steps, alike[_but_for_batch(measured[0])])
            found = _at_more_nodes(found, known, targets, _by_probe(measured, steps, alone))
        made.append(found)
    return tuple(made)


def _all_reduces(runs: Iterable[RunResult], probes: Iterable[RunResult]) -> AllReduceTimes:
    """The times in runs, each of its own sweep, and in ``probes``, which are of any; also where
    the window does not count."""
    found: dict[tuple[str | None, str, int], dict[int, list[float]]] = {}
    for sweep, run in (*((run.sweep, run) for run in runs), *((None, run) for run in probes)):
        case, probe = run.run.case, run.allreduces
        if probe and probe.ranks == case.topology.devices:
            by_nodes = found.setdefault((sweep, case.series, case.topology.gpus_per_node), {})
            by_nodes.setdefault(case.topology.nodes, []).append(probe.total_ms / 1e3)
    return found


def _by_probe(
    measured: Sequence[CaseSummary], steps: Steps, found: AllReduceTimes
) -> Callable[[int], Probed | None]:
    """:func:`probed_step` by nodes, with the median times of the all-reduce; on one device it takes
    none. Steps without the exchange, timed on the most nodes, are those of 0 nodes."""
    member, times = measured[-1], dict[int, list[float]]()
    for sweep in (member.sweep, None):
        key = sweep, member.case.series, member.case.topology.gpus_per_node
        for nodes, each in found.get(key, {}).items():
            times.setdefault(nodes, []).extend(each)
    alone = {1: 0.0} if member.case.topology.gpus_per_node == 1 and times else {}
    alone |= {nodes: median(each) for nodes, each in times.items()}
    if member.unit != SAMPLES_PER_S or not _samples(measured[0]):
        alone = {}  # the steps are no seconds
    elif member.exposed_comm is not None and abs(member.exposed_comm) < _MOST_EXPOSED:
        steps = {**steps, 0: steps[max(steps)] * (1 - member.exposed_comm)}
        alone[0] = 0.0
    return partial(probed_step, steps, alone, accumulation=member.accumulation or 1)


def _at_more_nodes(
    found: Prediction,
    known: Steps,
    targets: Collection[int],
    by_probe: Callable[[int], Probed | None],
) -> Prediction:
    steps, base, refused = found.steps, found.counts[0], dict[int, str]()
    points = []
    for n in sorted({*targets}) or [2 * max(steps), 4 * max(steps)]:
        at = None if n in known else by_probe(n)
        if why := why_not_at(steps, n, bool(at)) or why_not_by(at, n, max(steps)):
            refused[n] = why
        elif at:
            share, basis = steps[min(steps)] / at.step, f"probe, rho {at.rho:.2f}"
            points.append(_point(base, steps, n, share, basis, at.unsure))
        elif n not in steps:
            points.append(_predicted(base, steps, known, n))
    return replace(found, counts=(*found.counts, *points), refused=refused)


def _measured(series: str, summary: CaseSummary, steps: Steps) -> NodeCount:
    topology, interval = summary.case.topology, summary.sample and summary.sample.interval
    efficiency = steps[min(steps)] / steps[topology.nodes] if steps else None
    ends = (interval.low, interval.high) if interval else ()
    speed = summary.speed or 0.0
    return NodeCount(series, topology, summary.unit, speed, MEASURED, efficiency, *ends)


def _predicted(base: NodeCount, steps: Steps, known: Steps, nodes: int) -> NodeCount:
    """What the step times that are known say of a count of nodes; ``base`` has the fewest."""
    first, gamma = min(steps), gamma_for(known, nodes)

    def efficiency(gamma: float) -> float:
        return steps[first] / step_at(known, nodes, gamma)

    linear = base.throughput * nodes / first
    law = "ring" if gamma == RING else f"gamma {gamma:g}"
    basis = "another batch" if nodes in known else law
    found = _point(base, steps, nodes, efficiency(gamma), basis)
    if len(known) > 2 or nodes <= 2 * max(known):
        return found
    return replace(found, tree=linear * efficiency(TREE), ring=linear * efficiency(RING))


def _point(
    base: NodeCount, steps: Steps, nodes: int, efficiency: float, basis: str, unsure: float = 0.0
) -> NodeCount:
    wide = max(unsure, half_width(steps, nodes))
    speed = base.throughput * nodes / min(steps) * efficiency
    return replace(
        base,
        topology=Topology(nodes, base.topology.gpus_per_node),
        throughput=speed,
        basis=basis,
        efficiency=efficiency,
        low=max(0.0, speed * (1 - wide)),
        high=speed * (1 + wide),
        half_width=wide,
    )


def step_times(full: Sequence[CaseSummary]) -> dict[int, float]:
    """The time of an optimizer step by nodes, in s where its samples are known; else that in which
    a device does one of what the throughput counts, whose ratios are the same."""
    samples = _samples(full[0]) or 1.0 if full else 1.0
    devices = {m.case.topology.devices: m for m in full}
    return {m.case.topology.nodes: samples * n / m.speed for n, m in devices.items() if m.speed}


def _samples(summary: CaseSummary) -> float | None:
    """Samples of one device in an optimizer step; None if unknown."""
    batch = summary.global_batch
    return batch / summary.case.topology.devices if batch else None


def _with_sibling(
    measured: Sequence[CaseSummary], steps: Steps, alike: Iterable[Sequence[CaseSummary]]
) -> Steps:
    """The steps, and those on more nodes: as many ms longer than the last as those of the nearest
    batch that was measured there and on the last too, since the exchange of the same gradients adds
    the same. ``alike`` differ in the batch size alone."""
    size, last = _samples(measured[0]), max(steps)
    near = [
        (abs(math.log(other / size)), of_other)
        for each in alike
        if size and (other := _samples(each[0])) and last in (of_other := step_times(each))
    ]
    further = [each for each in near if max(each[1]) > last]
    _, found = min(further, key=lambda each: each[0], default=(0.0, {}))
    added = {n: max(0.0, t - found[last]) for n, t in found.items() if n > last}
    return {**steps, **{n: steps[last] + more for n, more in added.items()}}


def _but_for_batch(summary: CaseSummary) -> tuple[object, ...]:
    case = summary.case
    shape = (case.seq_len, case.precision, case.tags, case.topology.gpus_per_node)
    run = (summary.sweep, summary.accumulation, summary.devices, summary.unit)
    return case.framework, case.model, *shape, *run


def _why_not(measured: Sequence[CaseSummary], crowded: Collection[tuple[str, str]]) -> str:
    where = [str(m.case.topology) for m in measured if (m.sweep, m.case.id) in crowded]
    if where:
        return f"ranks of {where[0]} share cores: measure with a core or more for each rank"
    return _not_one_law(measured) or why_not_from(step_times(measured))


def _not_one_law(measured: Sequence[CaseSummary]) -> str:
    """Why the cases of a series cannot be points of one curve, and what to measure; '' if so."""
    for each in measured:
        where = each.case.topology
        for flag in each.evidence:
            if flag.name in VOID:
                return f"{where} has the flag {flag.name} ({flag.note}): measure {where} again"
    differing: dict[str, list[object]] = {
        "accumulation": [m.accumulation for m in measured],
        "number of samples of a device in an optimizer step": [*map(_samples, measured)],
        "kind of device": [", ".join(sorted(m.devices)) for m in measured],
    }
    for what, values in differing.items():
        if len({*filter(None, values)}) > 1:
            texts = (f"{v or 'unknown'} on {m.case.topology}" for v, m in zip(values, measured))
            return f"the {what} changes with the nodes ({', '.join(texts)}): measure all with one"
    return ""


def _ranks_share_cores(run: RunResult) -> bool:
    rows = [row for row in run.facts.get("ranks") or [] if isinstance(row, Mapping)]
    return (fewest_cores(rows) or 1) < 1
