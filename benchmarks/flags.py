"""How often do clean cases carry the flag outlier or bimodal, and is a slow run found? Made sweeps.

``python benchmarks/flags.py [--cases 4000] [--json]``. Every sweep has 18 cases, or one alone, with
equally many runs each. The noise of a run has the stated standard deviation: ``normal``;
``lognormal``, exp of a normal; ``skewed``, run times lognormal with shape 0.5, so that slow runs
lie far off; ``t3``, Student's t with 3 degrees of freedom; ``mixed``: the noise of each case of a
sweep is drawn from 0.2 to 3 %. ``clean`` is the share of cases without a slow run that carry either
flag; ``found``: of cases of which one run is 10 % slow, in how many that run is an outlier; of
cases of which half the runs are 10 % slow, ``groups`` is in how many they are bimodal.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Callable, Mapping

from dlperf_hpc.analysis.flags import of_sample
from dlperf_hpc.model.statistics import describe, usual_distance

SHAPE = 0.5
_MEAN = math.exp(SHAPE**2 / 2)
_DEVIATION = _MEAN * math.sqrt(math.expm1(SHAPE**2))


def _t3(chance: random.Random) -> float:
    squares = sum(chance.gauss(0, 1) ** 2 for _ in range(3))
    return chance.gauss(0, 1) / math.sqrt(squares)  # of variance 1


def _skewed(chance: random.Random) -> float:
    return (math.exp(chance.gauss(0, SHAPE)) - _MEAN) / _DEVIATION


SPEEDS: Mapping[str, Callable[[random.Random, float], float]] = {
    "normal": lambda chance, noise: 1 + noise * chance.gauss(0, 1),
    "lognormal": lambda chance, noise: math.exp(noise * chance.gauss(0, 1)),
    "skewed": lambda chance, noise: 1 / (1 + noise * _skewed(chance)),
    "t3": lambda chance, noise: max(0.1, 1 + noise * _t3(chance)),
}
NOISES = (0.002, 0.01, 0.03, None)
REPEATS = (5, 6, 8, 12, 25)
SLOW = 0.9


def sweep(
    shape: str, noise: float | None, repeats: int, cases: int, chance: random.Random
) -> list[list[float]]:
    """Speeds of runs by cases; a noise of None is another one for each case."""
    found = []
    for _ in range(cases):
        own = noise or math.exp(chance.uniform(math.log(0.002), math.log(0.03)))
        found.append([100 * SPEEDS[shape](chance, own) for _ in range(repeats)])
    return found


def flags_of(speeds: list[list[float]]) -> list[list[str]]:
    """What each case is flagged with, and the sentence."""
    samples = [describe(values) for values in speeds]
    usual = usual_distance(samples)
    found = [of_sample(sample, "samples/s", usual) for sample in samples]
    kept = ("outlier", "bimodal")
    return [[f"{f.name} {f.note}" for f in each if f.name in kept] for each in found]


def clean(
    shape: str, noise: float | None, repeats: int, cases: int, count: int, chance: random.Random
) -> dict[str, float]:
    """The share of ``count`` cases or more that carry a flag although nothing is slow."""
    sweeps = math.ceil(count / cases)
    made = (flags_of(sweep(shape, noise, repeats, cases, chance)) for _ in range(sweeps))
    found = [each for flags in made for each in flags]
    shares = {
        name: sum(any(text.startswith(name) for text in each) for each in found)
        for name in ("outlier", "bimodal")
    }
    shares["clean"] = sum(map(bool, found))
    return {name: value / (sweeps * cases) for name, value in shares.items()}


def found(shape: str, repeats: int, cases: int, count: int, chance: random.Random) -> float:
    """How often, of ``count`` sweeps, a run of the first case that is 10 % slow is an outlier."""
    right = 0
    for _ in range(count):
        speeds = sweep(shape, 0.01, repeats, cases, chance)
        speeds[0][0] *= SLOW
        right += any(
            text.startswith(f"outlier {speeds[0][0]:.2f} ") for text in flags_of(speeds)[0]
        )
    return right / count


def groups(shape: str, repeats: int, cases: int, count: int, chance: random.Random) -> float:
    """How often a case of which half the runs are 10 % slow is bimodal."""
    right = 0
    for _ in range(count):
        speeds = sweep(shape, 0.01, repeats, cases, chance)
        half = repeats // 2
        speeds[0][:half] = [SLOW * value for value in speeds[0][:half]]
        right += any(text.startswith("bimodal") for text in flags_of(speeds)[0])
    return right / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--cases", type=int, default=4000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    chance = random.Random(7)
    rows = []
    for shape in SPEEDS:
        for repeats in REPEATS:
            row: dict[str, object] = {"shape": shape, "repeats": repeats}
            for noise in NOISES:
                name = "mixed" if noise is None else f"{100 * noise:g} %"
                row[name] = clean(shape, noise, repeats, 18, arguments.cases, chance)["clean"]
            row["alone"] = clean(shape, 0.01, repeats, 1, arguments.cases, chance)["clean"]
            count = max(arguments.cases // 4, 1)
            row["found"] = found(shape, repeats, 18, count, chance)
            row["found alone"] = found(shape, repeats, 1, count, chance)
            row["groups"] = groups(shape, repeats, 18, count, chance)
            rows.append(row)
    if arguments.json:
        print(json.dumps(rows))
        return
    print("noise      runs  flagged of clean cases, %             -10 % at 1 %: found, %")
    names = [name for name in rows[0] if name not in ("shape", "repeats")]
    print(" " * 15, *(f"{name:>11}" for name in names))
    for row in rows:
        cells = (f"{100 * float(str(row[name])):11.1f}" for name in names)
        print(f"{row['shape']:10} {row['repeats']:4}", *cells)


if __name__ == "__main__":
    main()
