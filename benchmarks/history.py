"""What does ``history`` find? Made series with a step, a spike, a drift, or nothing but noise.

``python benchmarks/history.py [--series 1000] [--json]``: for each length of a series and each
noise between evenings, as many series of every kind; how often the verdict is the kind's own, how
often a step is placed within one measurement of where it is, and how often something else is told.
The step is -5 %, the spike -10 %, the drift -10 % from end to end; the tolerance is 2 %.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections import Counter
from collections.abc import Callable

from dlperf_hpc.analysis.outcomes import changes

KINDS = ("nothing", "step", "spike", "drift")
LENGTHS = (6, 8, 12, 20, 30)
NOISES = (0.005, 0.01, 0.015)
COLUMNS = ("named", "placed", "suspected", "otherwise", "missed")


def series(kind: str, length: int, noise: float, chance: random.Random) -> tuple[list[float], int]:
    """Levels, and where the step or the spike is."""
    at = chance.randrange(3, length - 2)
    shapes: dict[str, Callable[[int], float]] = {
        "nothing": lambda n: 1.0,
        "step": lambda n: 0.95 if n >= at else 1.0,
        "spike": lambda n: 0.9 if n == at else 1.0,
        "drift": lambda n: 1 - 0.1 * n / (length - 1),
    }
    shape = shapes[kind]
    return [1000 * shape(n) * math.exp(chance.gauss(0, noise)) for n in range(length)], at


def verdict(kind: str, levels: list[float], at: int) -> set[str]:
    """Which columns a series counts in."""
    found = changes(levels, 0.02, 0.05)
    steps = [step for step in found.steps if not step.suspected]
    told = {"step": bool(steps), "spike": bool(found.spikes), "drift": bool(found.drifts)}
    counted = set()
    if kind == "nothing" and not any(told.values()) and not found.steps:
        counted.add("named")
    if told.get(kind):
        counted.add("named")
    if kind == "step" and any(abs(step.at - at) <= 1 for step in steps):
        counted.add("placed")
    if len(steps) < len(found.steps):
        counted.add("suspected")
    if any(there for name, there in told.items() if name != kind):
        counted.add("otherwise")
    if kind != "nothing" and not any(told.values()) and not found.steps:
        counted.add("missed")
    return counted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--series", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = []
    for noise in NOISES:
        for length in LENGTHS:
            for kind in KINDS:
                chance = random.Random(f"{kind} {length} {noise}")
                counts: Counter[str] = Counter()
                for _ in range(arguments.series):
                    counts.update(verdict(kind, *series(kind, length, noise, chance)))
                shares = {name: counts[name] / arguments.series for name in COLUMNS}
                rows.append({"noise": noise, "length": length, "kind": kind, **shares})
    if arguments.json:
        print(json.dumps(rows))
        return
    print(f"{arguments.series} series each; per cent of them")
    print(f"{'noise':>6} {'length':>6}  {'kind':8}", *(f"{name:>10}" for name in COLUMNS))
    for row in rows:
        cells = (f"{100 * row[name]:10.1f}" for name in COLUMNS)
        print(f"{100 * row['noise']:4.1f} % {row['length']:6}  {row['kind']:8}", *cells)


if __name__ == "__main__":
    main()
