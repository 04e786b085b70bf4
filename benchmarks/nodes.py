"""How often is a slow node named, and a healthy one accused? Made runs and made pairs of nodes.

``python benchmarks/nodes.py [--series 100] [--json]``. Residuals across runs: cases of 1, 2 and 4
nodes, the same number of repeats each, every run on nodes drawn at random; a run has the noise of
its own, and is slower by as much as the slow node is if that is among its nodes. ``named`` is how
often that node is named, alone; ``others`` how often another is named instead or as well; ``false``
how often anything is named where no node is slow. Pairs: the rounds of ``doctor --pairs 3``.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

from dlperf_hpc.analysis.slow_nodes import Observation, node_effects
from dlperf_hpc.doctor.measurements import Pairing, judge, rounds_of

WIDTHS = (1, 2, 4)


@dataclass(frozen=True)
class Setting:
    """Nodes, runs, the slow node's share, and the noise of a run (standard deviation)."""

    nodes: int
    runs: int
    slow: float
    noise: float


SETTINGS = (
    Setting(8, 21, 0.05, 0.01),
    Setting(16, 21, 0.05, 0.01),
    Setting(16, 42, 0.10, 0.03),
    Setting(32, 21, 0.10, 0.01),
    Setting(32, 42, 0.10, 0.01),
)


def made_runs(
    setting: Setting, slow: bool, chance: random.Random, widths: Sequence[int] = WIDTHS
) -> list[Observation]:
    """Runs of cases of each width; node n1 is the slow one, if any is."""
    names = [f"n{number}" for number in range(1, setting.nodes + 1)]
    found = []
    repeats = setting.runs // len(widths)
    for width in widths:
        hosts = [frozenset(chance.sample(names, width)) for _ in range(repeats)]
        logs = [
            chance.gauss(0, setting.noise) - (setting.slow if slow and "n1" in each else 0)
            for each in hosts
        ]
        centre = sorted(logs)[repeats // 2]
        found += [Observation(f"{width}", h, value - centre) for h, value in zip(hosts, logs)]
    return found


def named(runs: Sequence[Observation]) -> list[str]:
    """The nodes that are called slow."""
    return [node for effect in node_effects(runs) if effect.slow for node in effect.nodes]


def shares(setting: Setting, series: int, widths: Sequence[int] = WIDTHS) -> dict[str, float]:
    """How often the slow node is named alone, another one is, and one where none is slow."""
    chance = random.Random(f"{setting}")
    right = wrong = false = 0
    for _ in range(series):
        found = named(made_runs(setting, True, chance, widths))
        right += "n1" in found and len(found) == 1
        wrong += any(node != "n1" for node in found)
        false += bool(named(made_runs(setting, False, chance, widths)))
    return {"named": right / series, "others": wrong / series, "false": false / series}


def made_pairs(
    nodes: int, rounds: int, slow: float, noise: float, steps: bool, chance: random.Random
) -> list[Pairing]:
    """Rounds of pairs; node n1 is slower by ``slow``, in its own steps or in its all-reduce."""
    names = [f"n{number}" for number in range(1, nodes + 1)]

    def speed(*pair: str) -> float:
        return (1 - slow * ("n1" in pair)) * (1 + chance.gauss(0, noise))

    return [
        Pairing((a, b), None, {a: 1 / speed(a), b: 1 / speed(b)})
        if steps
        else Pairing((a, b), speed(a, b))
        for couples in rounds_of(names, rounds)
        for a, b in couples
    ]


def shares_of_pairs(nodes: int, steps: bool, series: int) -> dict[str, float]:
    """As :func:`shares`; three rounds, 5 % slow, 1 % of noise. ``links``: how often a link is
    accused, where none is slow."""
    chance = random.Random(f"{nodes} {steps}")
    right = wrong = false = links = 0
    for _ in range(series):
        for slow in (0.05, 0.0):
            found = judge(made_pairs(nodes, 3, slow, 0.01, steps, chance))
            named_ = {each.nodes[0] for each in found if each.kind == "node"}
            links += any(each.kind == "link" for each in found)
            right += bool(slow) and named_ == {"n1"}
            wrong += bool(slow) and bool(named_ - {"n1"})
            false += not slow and bool(named_)
    counts = {"named": right, "others": wrong, "false": false, "links": links / 2}
    return {name: count / series for name, count in counts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--series", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = [{**vars(each), **shares(each, arguments.series)} for each in SETTINGS]
    pairs = [
        {"nodes": nodes, "by": "steps" if steps else "all-reduce",
         **shares_of_pairs(nodes, steps, arguments.series)}
        for nodes in (4, 8, 16, 32)
        for steps in (False, True)
    ]  # fmt: skip
    if arguments.json:
        print(json.dumps({"residuals": rows, "pairs": pairs}))
        return
    print(f"residuals across runs, {arguments.series} series each; per cent of them")
    print("nodes  runs  slow / noise   named  others   false")
    for row in rows:
        print(
            f"{row['nodes']:5} {row['runs']:5}  {100 * row['slow']:3.0f} %"
            f" / {100 * row['noise']:.0f} %  {100 * row['named']:6.1f}"
            f"  {100 * row['others']:6.1f}  {100 * row['false']:6.1f}"
        )
    print("\npairs in 3 rounds, 5 % slow, 1 % of noise; per cent")
    print("nodes  by          named  others   false   links")
    for row in pairs:
        cells = (f"{100 * row[name]:7.1f}" for name in ("named", "others", "false", "links"))
        print(f"{row['nodes']:5}  {row['by']:10}", *cells)


if __name__ == "__main__":
    main()
