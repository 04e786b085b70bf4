"""How often is a slow node named, and a healthy one accused? Made runs and made pairs of nodes.

``python benchmarks/nodes.py [--series 100] [--json]``. Residuals across runs: cases of 1, 2 and 4
nodes, the same number of repeats each, every run on nodes drawn at random; a run has the noise of
its own, normal or (t3) Student's t with 3 degrees of freedom, and is slower by as much as the slow
node is if that is among its nodes. ``named`` is how often that node, or the set of nodes that are
in the very same runs, is named, and no other; ``in 2+`` the same of the series in which it has two
runs or more; ``others`` how often another node is named instead or as well; ``false`` how often
anything is named where no node is slow. Pairs: the rounds of ``doctor --pairs 3``.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dlperf_hpc.analysis.slow_nodes import Observation, node_effects
from dlperf_hpc.doctor.measurements import Pairing, judge, rounds_of

WIDTHS = (1, 2, 4)
NOISE: Mapping[str, Callable[[random.Random], float]] = {
    "normal": lambda chance: chance.gauss(0, 1),
    "t3": lambda chance: chance.gauss(0, 1) / math.hypot(*(chance.gauss(0, 1) for _ in range(3))),
}
"""Of variance 1."""


@dataclass(frozen=True)
class Setting:
    """Nodes, runs, the slow node's share, and the noise of a run (standard deviation)."""

    nodes: int
    runs: int
    slow: float
    noise: float
    shape: str = "normal"


SETTINGS = (
    *(Setting(16, 18, slow, 0.005) for slow in (0.02, 0.03, 0.05, 0.10)),
    Setting(16, 18, 0.05, 0.005, "t3"),
    Setting(16, 18, 0.10, 0.005, "t3"),
    *(Setting(16, 18, 0.10, noise, shape) for noise in (0.01, 0.03) for shape in ("normal", "t3")),
    Setting(8, 21, 0.05, 0.01),
    Setting(8, 21, 0.05, 0.03, "t3"),
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
            setting.noise * NOISE[setting.shape](chance)
            - (setting.slow if slow and "n1" in each else 0)
            for each in hosts
        ]
        centre = sorted(logs)[repeats // 2]
        found += [Observation(f"{width}", h, value - centre) for h, value in zip(hosts, logs)]
    return found


def named(runs: Sequence[Observation]) -> list[str]:
    """The nodes that are called slow; ``n1 or n2`` where no run tells them apart."""
    return [" or ".join(effect.nodes) for effect in node_effects(runs) if effect.slow]


def shares(setting: Setting, series: int, widths: Sequence[int] = WIDTHS) -> dict[str, float]:
    """How often the slow node is named alone, of all series and of those in which it has two runs
    or more; another one is; and one where none is slow."""
    chance = random.Random(f"{setting}")
    right = wrong = false = twice = of_twice = 0
    for _ in range(series):
        runs = made_runs(setting, True, chance, widths)
        sets = [each.split(" or ") for each in named(runs)]
        good = len(sets) == 1 and "n1" in sets[0]
        often = sum("n1" in run.hosts for run in runs) >= 2
        right += good
        twice += often
        of_twice += good and often
        wrong += any("n1" not in each for each in sets)
        false += bool(named(made_runs(setting, False, chance, widths)))
    found = {"named": right, "others": wrong, "false": false}
    return {name: n / series for name, n in found.items()} | {"in 2+": of_twice / max(twice, 1)}


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
    print("nodes  runs  slow / noise            named   in 2+  others   false")
    for row in rows:
        cells = (f"{100 * row[name]:7.1f}" for name in ("named", "in 2+", "others", "false"))
        noise = f"{100 * row['slow']:3.0f} % / {100 * row['noise']:.1f} % {row['shape']}"
        print(f"{row['nodes']:5} {row['runs']:5}  {noise:20}", *cells)
    print("\npairs in 3 rounds, 5 % slow, 1 % of noise; per cent")
    print("nodes  by          named  others   false   links")
    for row in pairs:
        cells = (f"{100 * row[name]:7.1f}" for name in ("named", "others", "false", "links"))
        print(f"{row['nodes']:5}  {row['by']:10}", *cells)


if __name__ == "__main__":
    main()
