"""Does the interval of the median keep its coverage when it decides how many repeats there are?

``python benchmarks/stopping.py [--cases 4000] [--json]``: cases are made with noise of several
kinds, and repeated as ``repeats = { min = 6, max = 25, until = ... }`` repeats them. How often the
last interval holds the median is set beside what the same decisions give with the usual interval of
95 %, looked at after each further run; and how often it holds it in cases whose runs show no trend
by Mann-Kendall's test (p < 0.05). Then the noise is that of published repeats (the rows of the
kind ``run`` in ``dlperf_hpc/published``: 7 of each case, drawn anew with replacement): node-hours
against the smallest fixed number of repeats that brings as many cases within ``until``, and against
the smallest one with the same median half-width over all cases. Nothing is measured here; it takes
about a minute.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import statistics
from collections.abc import Callable, Iterator
from typing import Any

from dlperf_hpc.model.case import Until
from dlperf_hpc.model.statistics import Interval, median_interval, trend_z
from dlperf_hpc.model.stopping import decide, looks
from dlperf_hpc.published import published

FEWEST, MOST = 6, 25
UNTILS = (0.005, 0.01, 0.02)
RECORDED_UNTILS = (0.001, 0.002, 0.003, 0.005)
Chance = random.Random


def lognormal(chance: Chance) -> list[float]:
    """1 % of noise; the median is 1."""
    return [math.exp(chance.gauss(0, 0.01)) for _ in range(MOST)]


def heavy_tailed(chance: Chance) -> list[float]:
    """A ratio of two normals, of which half are within 0.5 % of 1 (Cauchy), with values above 0."""
    return [max(1 + 0.005 * chance.gauss(0, 1) / chance.gauss(0, 1), 0.01) for _ in range(MOST)]


def bimodal(chance: Chance) -> list[float]:
    """Two of five runs are 4 % slower; 0.3 % of noise in both groups."""
    return [(0.96 if chance.random() < 0.4 else 1) + chance.gauss(0, 0.003) for _ in range(MOST)]


def drifting(chance: Chance) -> list[float]:
    """1 % of noise, and 1 % of drift from the first to the last of all repeats there may be."""
    drift = (0.01 * (i / (MOST - 1) - 0.5) for i in range(MOST))
    return [1 + each + chance.gauss(0, 0.01) for each in drift]


def correlated(chance: Chance) -> list[float]:
    """1 % of noise, half of which each run has from the run before it."""
    value, found = chance.gauss(0, 0.01), []
    for _ in range(MOST):
        found.append(1 + value)
        value = 0.5 * value + math.sqrt(0.75) * chance.gauss(0, 0.01)
    return found


def _median_of_bimodal() -> float:
    def below(x: float) -> float:
        return 0.4 * NORMAL.cdf((x - 0.96) / 0.003) + 0.6 * NORMAL.cdf((x - 1) / 0.003)

    low, high = 0.9, 1.1
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) < 0.5 else (low, middle)
    return low


NORMAL = statistics.NormalDist()
KINDS: dict[str, tuple[Callable[[Chance], list[float]], float]] = {
    "lognormal": (lognormal, 1.0),
    "heavy-tailed": (heavy_tailed, 1.0),
    "bimodal": (bimodal, _median_of_bimodal()),
    "drifting": (drifting, 1.0),
    "correlated": (correlated, 1.0),
}


def by_rule(values: list[float], until: float) -> tuple[int, Interval]:
    """How many repeats are measured, and the interval then."""
    rule = Until(FEWEST, MOST, until)
    runs = FEWEST
    while (found := decide(values[:runs], rule)).repeats > runs:
        runs = found.repeats
    assert found.interval is not None
    return runs, found.interval


def by_peeking(values: list[float], until: float) -> tuple[int, Interval]:
    """The usual interval of 95 %, after each further run."""
    runs, found = FEWEST, _of(median_interval(values[:FEWEST]))
    for runs in range(FEWEST, MOST + 1):
        found = _of(median_interval(values[:runs]))
        if half_width(values[:runs], found) <= until:
            break
    return runs, found


def half_width(values: list[float], interval: Interval) -> float:
    return (interval.high - interval.low) / 2 / statistics.median(values)


def coverages(cases: int) -> Iterator[dict[str, Any]]:
    """How often the last interval holds the median, by noise, ``until`` and way of deciding; and
    the share of cases with a ``trend``, and how often it does in the ``steady`` rest."""
    for (kind, (make, truth)), until in itertools.product(KINDS.items(), UNTILS):
        chance = Chance(f"{kind} {until}")
        row: dict[str, Any] = {"noise": kind, "until": until}
        held, runs = dict.fromkeys(("rule", "peeking"), 0), dict.fromkeys(("rule", "peeking"), 0)
        steady: list[bool] = []
        for values in (make(chance) for _ in range(cases)):
            for name, decided in (("rule", by_rule), ("peeking", by_peeking)):
                number, interval = decided(values, until)
                held[name] += interval.low <= truth <= interval.high
                runs[name] += number
                if name == "rule" and abs(trend_z(values[:number])) < NORMAL.inv_cdf(0.975):
                    steady.append(interval.low <= truth <= interval.high)
        yield {
            **row,
            **{name: held[name] / cases for name in held},
            **{f"{name}_runs": runs[name] / cases for name in runs},
            "trend": 1 - len(steady) / cases,
            "steady": statistics.fmean(steady),
        }


def recorded() -> list[tuple[int, list[float]]]:
    """Nodes and published repeats of each case that was measured seven times."""
    found: dict[tuple[Any, ...], list[float]] = {}
    for row in published():
        if row.kind == "run":
            case = (row.repository, row.framework, row.model, row.options, row.batch_size)
            found.setdefault((row.topology, *case, row.metric), []).append(row.value)
    return [(key[0].nodes, values) for key, values in found.items() if len(values) >= 7]


def node_hours(cases: int) -> Iterator[dict[str, Any]]:
    """By ``until``: runs per node, weighted by the case's nodes, as all runs take equally long."""
    chance, rows = Chance("recorded"), recorded()
    drawn = [
        (nodes, statistics.median(values), chance.choices(values, k=MOST))
        for nodes, values in rows
        for _ in range(max(1, cases // len(rows)))
    ]
    whole = sum(nodes for nodes, _, _ in drawn)
    fixed = {}
    for number in range(FEWEST, MOST + 1):
        firsts = [values[:number] for _, _, values in drawn]
        fixed[number] = [half_width(each, _of(median_interval(each))) for each in firsts]
    for until in RECORDED_UNTILS:
        ended = [(nodes, truth, v, *by_rule(v, until)) for nodes, truth, v in drawn]
        widths = [half_width(v[:runs], interval) for _, _, v, runs, interval in ended]
        runs = sum(nodes * runs for nodes, _, _, runs, _ in ended) / whole
        within, middle = _share(widths, until), statistics.median(widths)
        as_many = next((n for n, w in fixed.items() if _share(w, until) >= within), MOST)
        as_wide = next((n for n, w in fixed.items() if statistics.median(w) <= middle), MOST)
        held = sum(each.low <= truth <= each.high for _, truth, _, _, each in ended)
        yield {
            "until": until, "cases": len(rows), "coverage": held / len(drawn), "runs": runs,
            "within": within, "half_width": middle, "as_many": as_many, "as_wide": as_wide,
            "ratio_as_many": runs / as_many, "ratio_as_wide": runs / as_wide,
        }  # fmt: skip


def _of(interval: Interval | None) -> Interval:
    assert interval is not None
    return interval


def _share(widths: list[float], until: float) -> float:
    return sum(width <= until for width in widths) / len(widths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--cases", type=int, default=4000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    made, found = list(coverages(arguments.cases)), list(node_hours(arguments.cases))
    if arguments.json:
        print(json.dumps({"coverage": made, "node_hours": found}))
        return
    plan = looks(FEWEST, MOST)
    ranks = ", ".join(f"{each.runs} (rank {each.rank})" for each in plan)
    print(f"looks: {ranks}; all of them hold the median with {1 - plan[-1].missed:.2%}")
    print(
        "| noise | until | coverage | runs | coverage by peeking | runs"
        " | trend seen | coverage of the rest |"
    )
    print("| - | -: | -: | -: | -: | -: | -: | -: |")
    for row in made:
        print(
            f"| {row['noise']} | {row['until']:.1%} | {row['rule']:.1%} | {row['rule_runs']:.1f}"
            f" | {row['peeking']:.1%} | {row['peeking_runs']:.1f}"
            f" | {row['trend']:.1%} | {row['steady']:.1%} |"
        )
    print("| until | runs | within until | as many: fixed | ratio | as wide: fixed | ratio |")
    print("| -: | -: | -: | -: | -: | -: | -: |")
    for row in found:
        print(
            f"| {row['until']:.1%} | {row['runs']:.1f} | {row['within']:.1%} | {row['as_many']}"
            f" | {row['ratio_as_many']:.2f} | {row['as_wide']} | {row['ratio_as_wide']:.2f} |"
        )


if __name__ == "__main__":
    main()
