"""What would hold a series down on far more nodes than were measured: each component by itself.

They are never multiplied into one number: stragglers are a part of what the exchange waits for, and
no published table joins the three. Each is the share of the throughput that it leaves.

**Network**: the model of :mod:`.prediction`, from a tree's exchange to a ring's.

**Stragglers**: an iteration's time is that of its slowest rank, so that iterations on k times as
many nodes take, if nodes are slow independently, the longest of k iterations that were measured.

**Failures**: of the time that checkpoints, lost work and restarts leave (Daly, "A higher order
estimate of the optimum checkpoint interval for restart dumps", 2006, equation 13)::

    kept = tau / (M exp(R / M) (exp((tau + delta) / M) - 1))

with the mean time M between failures of any node, the restart R, the time delta of a checkpoint and
the time tau between two, which is the best one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from dlperf_hpc.analysis.prediction import RING, TREE, Prediction, loss_of, step_at

FARTHEST = 0.138
"""n measured iterations tell of at most so many times n as many nodes: further away, the longest of
them weighs over 13 % in the longest of all, and hides that longer ones would come."""
_DAY_S = 86400.0
_HALVINGS = 60  # of the interval in which the best time between checkpoints lies


@dataclass(frozen=True)
class Failures:
    """How often a node fails (``per_day``), and what one failure costs: ``checkpoint_s`` to write
    and ``restart_s`` to start again from it."""

    per_day: float
    checkpoint_s: float
    restart_s: float


@dataclass(frozen=True)
class Component:
    """What one component leaves of the throughput on a count of nodes: from ``low`` to ``high``, 1
    is all. ``basis`` says what that rests on; ``why_not`` why it is not known, and what to do."""

    nodes: int
    name: str
    low: float | None = None
    high: float | None = None
    basis: str = ""
    why_not: str = ""


def stragglers(times: Sequence[float], times_as_many: float) -> float:
    """What is left if each iteration is the longest of so many of these; 1 for one of them."""
    ordered, n = sorted(times), len(times)
    below = [math.pow(i / n, times_as_many) for i in range(n + 1)]  # that the longest is so short
    longest = sum(t * (more - less) for t, less, more in zip(ordered, below, below[1:]))
    return sum(ordered) / n / longest


def kept(failures: Failures, nodes: int, rate: float = 1.0) -> float:
    """What is left where nodes fail ``rate`` times as often; 0 where a checkpoint takes longer
    than nodes live."""
    mean = _DAY_S / (failures.per_day * rate * nodes)
    low, high = 0.0, mean
    for _ in range(_HALVINGS):  # of equation 13's minimum: exp(-(tau + delta) / M) = 1 - tau / M
        tau = (low + high) / 2
        late = 1 - tau / mean < math.exp(-(tau + failures.checkpoint_s) / mean)
        low, high = (low, tau) if late else (tau, high)
    power = (tau + failures.checkpoint_s + failures.restart_s) / mean
    if power > 700:  # exp would overflow
        return 0.0
    again = math.exp(power) - math.exp(failures.restart_s / mean)
    return tau / mean / again


def components(
    series: Prediction,
    nodes: Collection[int],
    times: Sequence[float],
    failures: Failures | str,
) -> Iterator[Component]:
    """Every component on each count of nodes. ``times`` are those of all iterations on the most
    nodes that were measured; ``failures`` may be why they are not known."""
    last = max(series.steps, default=0)
    for count in sorted({*nodes}):
        if count <= last:
            yield Component(count, "all", why_not=f"up to {last} nodes it is measured")
            continue
        yield _network(series, count)
        yield _stragglers(series, count, times)
        if isinstance(failures, str):
            yield Component(count, "failures", why_not=failures)
        else:
            often, seldom = (kept(failures, count, rate) for rate in (2, 0.5))
            basis = f"twice to half of {failures.per_day:g} failures of a node in a day"
            yield Component(count, "failures", often, seldom, basis)


def _network(series: Prediction, nodes: int) -> Component:
    if series.why_not:
        return Component(nodes, "network", why_not=series.why_not)
    steps = series.steps
    low, high = (steps[min(steps)] / step_at(steps, nodes, gamma) for gamma in (TREE, RING))
    lost = f"{100 * loss_of(steps):.1f} % lost up to {max(steps)}"
    return Component(nodes, "network", low, high, f"tree to ring; {lost}")


def _stragglers(series: Prediction, nodes: int, times: Sequence[float]) -> Component:
    last = max(series.steps, default=nodes)
    more, reach = nodes / last, FARTHEST * len(times)
    if not times:
        return Component(nodes, "stragglers", why_not="the logs have no time of each iteration")
    if more > reach:
        enough = math.ceil(more / FARTHEST)
        here = f"{len(times)} iterations reach {max(1, int(reach))} times {last} nodes"
        why_not = f"{here}: measure {enough} iterations on {last}"
        return Component(nodes, "stragglers", why_not=why_not)
    left = stragglers(times, more)
    return Component(nodes, "stragglers", left, left, f"{len(times)} iterations on {last}")
