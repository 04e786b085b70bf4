"""How good is ``dlperf predict``? On the published ladders: from 1 and 2 full nodes to 4.

``python benchmarks/forecast.py [--all]``. Beside the model stand constant efficiency, Amdahl's law
and USL (Gunther), fitted to every topology of the same table up to 2 nodes. Errors are predicted /
published - 1. The interval is calibrated anew on the other frameworks, and then held against each
framework. Bars: median error 3.0 %, P90 11 %, and both lower than the others'; coverage 85 to 95 %
as the mean of the frameworks, at a half width of 10 %.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from dlperf_hpc.analysis import prediction
from dlperf_hpc.model.case import Topology
from dlperf_hpc.published import SAMPLES_PER_S, published

COVERED = 0.9
FROM, TO = (1, 2), 4


@dataclass(frozen=True)
class Ladder:
    """A table's throughputs (samples/s) by topology, of one case; ``batch`` is per device."""

    name: str
    framework: str
    batch: int | None
    but_for_batch: tuple[object, ...]
    speeds: dict[Topology, float]

    @property
    def gpus(self) -> int:
        """Devices of a full node."""
        return max(topology.gpus_per_node for topology in self.speeds)

    @property
    def nodes(self) -> dict[int, float]:
        """Throughputs on full nodes."""
        return {t.nodes: v for t, v in self.speeds.items() if t.gpus_per_node == self.gpus}

    @property
    def steps(self) -> dict[int, float]:
        """What the model knows: step times of the counts in ``FROM``, s."""
        return {n: t for n, t in self.all_steps.items() if n in FROM}

    @property
    def all_steps(self) -> dict[int, float]:
        """Step times on full nodes, s; of one sample per device where the batch is not known."""
        return {n: (self.batch or 1) * n * self.gpus / v for n, v in self.nodes.items()}

    @property
    def truth(self) -> float:
        """What was measured on the nodes that are predicted."""
        return self.nodes[TO]


def ladders() -> list[Ladder]:
    """Every data-parallel table with full nodes in three counts. Left out are model-parallel cases,
    runs behind a table and figures read off pictures, and DeepSpeed in fp32, whose windows held no
    update (docs/comparing.md)."""
    found: dict[tuple[object, ...], dict[Topology, float]] = defaultdict(dict)
    rows = {}
    for row in published():
        split = any("parallel" in each or "partial" in each for each in row.options)
        split = split and "data-parallel" not in row.options
        unsound = (row.framework, row.precision) == ("deepspeed", "fp32")
        if row.kind == "table" and row.metric == SAMPLES_PER_S and not split and not unsound:
            found[row.series][row.topology] = row.value
            rows[row.series] = row
    made = []
    for series, speeds in found.items():
        row = rows[series]
        key = (row.repository, row.path, row.ref, row.model, row.precision, row.options)
        name = f"{row.framework} {row.model} {row.precision} {' '.join(row.options)}".strip()
        ladder = Ladder(f"{name} bz{row.batch_size}", row.framework, row.batch_size, key, speeds)
        if {*FROM, TO} <= ladder.nodes.keys():
            made.append(ladder)
    return made


def ours(ladder: Ladder) -> float:
    """The model, from two node counts."""
    gamma = prediction.gamma_for(ladder.steps, TO)
    time = prediction.step_at(ladder.steps, TO, gamma)
    return TO * ladder.gpus * (ladder.batch or 1) / time


def constant_efficiency(ladder: Ladder) -> float:
    """As fast per device as on 2 nodes."""
    return ladder.nodes[max(FROM)] * TO / max(FROM)


def _law(ladder: Ladder, powers: Sequence[Callable[[float], float]]) -> float:
    """devices / throughput as a sum of these functions of the devices with factors from 0 on: the
    least squares of relative errors over every topology up to 2 nodes."""
    points = [(t.devices, v) for t, v in ladder.speeds.items() if t.nodes <= max(FROM)]
    p, y = np.array([p for p, _ in points], float), np.array([p / v for p, v in points])
    columns = np.stack([np.vectorize(power, otypes=[float])(p) for power in powers], axis=1)
    best, chosen = math.inf, np.zeros(len(powers))
    for count in range(1, len(powers) + 1):
        for subset in map(list, combinations(range(len(powers)), count)):
            x, *_ = np.linalg.lstsq(columns[:, subset] / y[:, None], np.ones(len(y)), rcond=None)
            error = float(np.sum((columns[:, subset] @ x / y - 1) ** 2))
            if (x >= 0).all() and error < best - 1e-12:
                best, chosen = error, np.zeros(len(powers))
                chosen[subset] = x
    devices = TO * ladder.gpus
    return devices / float(sum(x * power(devices) for x, power in zip(chosen, powers)))


def amdahl(ladder: Ladder) -> float:
    """p / X(p) = 1 + sigma (p - 1), over a factor."""
    return _law(ladder, (lambda p: 1.0, lambda p: p - 1))


def usl(ladder: Ladder) -> float:
    """p / X(p) = 1 + sigma (p - 1) + kappa p (p - 1), over a factor."""
    return _law(ladder, (lambda p: 1.0, lambda p: p - 1, lambda p: p * (p - 1)))


MODELS: dict[str, Callable[[Ladder], float]] = {
    "dlperf predict": ours,
    "constant efficiency": constant_efficiency,
    "Amdahl": amdahl,
    "USL": usl,
}


def with_sibling(every: Sequence[Ladder], ladder: Ladder) -> float | None:
    """The model, with what the exchange added for the nearest other batch; None without one."""
    near = [
        (abs(math.log(other.batch / ladder.batch)), other)
        for other in every
        if ladder.batch and other.batch and other.batch != ladder.batch
        if other.but_for_batch == ladder.but_for_batch and other.framework == ladder.framework
    ]
    if not near:
        return None
    steps = min(near, key=lambda pair: pair[0])[1].all_steps
    time = ladder.steps[max(FROM)] + max(0.0, steps[TO] - steps[max(FROM)])
    return TO * ladder.gpus * (ladder.batch or 1) / time


@dataclass(frozen=True)
class Errors:
    """Of predictions, fractions: median and P90 of the absolute ones, mean of the signed ones."""

    n: int
    median: float
    p90: float
    bias: float

    @classmethod
    def of(cls, errors: Sequence[float]) -> Errors:
        """From predicted / measured - 1."""
        absolute = np.abs(errors)
        p90 = float(np.percentile(absolute, 90))
        return cls(len(errors), float(np.median(absolute)), p90, float(np.mean(errors)))

    def __str__(self) -> str:
        figures = (self.median, self.p90, self.bias)
        return "{:4d}  {:6.1f}  {:6.1f}  {:+6.1f}".format(self.n, *(100 * x for x in figures))


def score(ladder: Ladder) -> float:
    """How far the truth is from the prediction, in half widths of factor 1."""
    unit = prediction.half_width(ladder.steps, TO) / prediction.CONFORMAL
    return abs(ladder.truth / ours(ladder) - 1) / unit


@dataclass(frozen=True)
class Coverage:
    """``factor`` is calibrated on the other frameworks, ``left_out`` the share of this framework
    that its interval holds; ``shipped`` that of the factor in the package."""

    n: int
    factor: float
    left_out: float
    shipped: float


def coverage(every: Sequence[Ladder]) -> dict[str, Coverage]:
    """By framework, the worst one first."""
    found = {}
    for name in {ladder.framework for ladder in every}:
        others = sorted(score(each) for each in every if each.framework != name)
        place = min(len(others), math.ceil((len(others) + 1) * COVERED))
        factor = others[place - 1]
        own = [score(each) for each in every if each.framework == name]
        shares = (sum(s <= f for s in own) / len(own) for f in (factor, prediction.CONFORMAL))
        found[name] = Coverage(len(own), factor, *shares)
    return dict(sorted(found.items(), key=lambda item: item[1].left_out))


def main() -> None:
    """Compute and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="also print every ladder")
    arguments = parser.parse_args()
    every = ladders()
    why = {ladder.name: prediction.why_not_from(ladder.steps) for ladder in every}
    sound = [ladder for ladder in every if not why[ladder.name]]
    print(f"{len(every)} ladders, of which {len(sound)} are predicted; refused:")
    print("".join(f"  {name}: {text}\n" for name, text in why.items() if text))
    print(f"{'1 and 2 nodes -> 4':24}   n  median     P90    bias  (error, %)")
    for name, model in MODELS.items():
        errors = Errors.of([model(each) / each.truth - 1 for each in sound])
        print(f"{name:24}{errors}")
    twins = [(each, speed) for each in sound if (speed := with_sibling(sound, each)) is not None]
    print("\nof those that have another batch size in the same table:")
    for name, speeds in (
        ("dlperf predict, alone", [ours(each) for each, _ in twins]),
        ("with its milliseconds", [speed for _, speed in twins]),
    ):
        errors = Errors.of([s / each.truth - 1 for s, (each, _) in zip(speeds, twins)])
        print(f"{name:24}{errors}")
    show_coverage(sound)
    if arguments.all:
        for each in sorted(sound, key=lambda ladder: -abs(ours(ladder) / ladder.truth - 1)):
            wide = prediction.half_width(each.steps, TO)
            print(f"{100 * (ours(each) / each.truth - 1):+6.1f} +-{100 * wide:5.1f}  {each.name}")


def show_coverage(every: Sequence[Ladder]) -> None:
    """Print what the interval holds."""
    found = coverage(every)
    print(f"\n{'framework left out':24}   n  factor  held, %  held by {prediction.CONFORMAL}, %")
    for name, each in found.items():
        shares = f"{100 * each.left_out:7.1f}  {100 * each.shipped:7.1f}"
        print(f"{name:24}{each.n:4d}  {each.factor:6.3f}  {shares}")
    mean = statistics.fmean(each.left_out for each in found.values())
    widths = [prediction.half_width(each.steps, TO) for each in every]
    held = statistics.fmean(score(each) <= prediction.CONFORMAL for each in every)
    print(f"mean of the frameworks {100 * mean:.1f} %; all ladders {100 * held:.1f} %")
    print(
        f"half width: median {100 * statistics.median(widths):.1f} %,"
        f" mean {100 * statistics.fmean(widths):.1f} %, most {100 * max(widths):.1f} %\n"
    )


if __name__ == "__main__":
    main()
