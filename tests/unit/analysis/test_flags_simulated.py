"""The flags of made sweeps, in short: ``benchmarks/flags.py`` has the whole table."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from flags import clean, flags_of, found


@pytest.mark.parametrize("shape", ["normal", "lognormal", "t3"])
@pytest.mark.parametrize("repeats", [5, 25])
def test_few_clean_cases_carry_a_flag(shape: str, repeats: int) -> None:
    chance = random.Random(11)
    shares = [clean(shape, noise, repeats, 18, 720, chance) for noise in (0.002, 0.01, 0.03)]
    assert sum(each["clean"] for each in shares) / len(shares) <= 0.02


@pytest.mark.parametrize(("shape", "least"), [("normal", 0.95), ("lognormal", 0.95), ("t3", 0.8)])
def test_a_run_that_is_10_percent_slow_is_found(shape: str, least: float) -> None:
    assert found(shape, 6, 18, 200, random.Random(11)) >= least


def test_a_flag_states_its_size() -> None:
    speeds = [[100.0, 100.5, 99.5, 100.2, 99.8, 89.8]]
    ((text,),) = flags_of(speeds)
    assert text == "outlier 89.80 samples/s is -10.2 % off the median of the others, but counted"
    ((text,),) = flags_of([[90.0, 90.1, 90.2, 100.0, 100.1, 100.2]])
    assert "3 from 90.00 to 90.20 and 3 from 100.00 to 100.20 samples/s" in text
    assert "whose medians are 10.0 % apart" in text
