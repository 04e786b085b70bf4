"""Steps as columns, and lines that are taken apart many at once amid others."""

from __future__ import annotations

import math
import re
import sys
from array import array
from random import Random

import pytest
from damage import line_by_line, scan, with_bytes, with_numbers
from hypothesis import example, given
from hypothesis import strategies as st
from places import ROOT

from dlperf_hpc.logs.scanned import (
    LogStep,
    LogSteps,
    are_finite,
    bounds,
    differences,
    is_rising,
    never_falls,
    sums,
)

sys.path.insert(0, str(ROOT / "benchmarks"))
from made_logs import NOISE_LINES, PRINTERS

# --- steps

VALUES = st.one_of(st.none(), st.floats(allow_nan=False))
STEPS = st.builds(
    LogStep,
    st.integers(0, 10**9),
    st.integers(0, 10**18),
    st.one_of(st.none(), st.integers(0, 10**6)),
    *[VALUES] * (len(LogStep._fields) - 3),
)


@given(st.lists(STEPS, max_size=8), st.lists(STEPS, max_size=8), st.data())
def test_steps_are_a_list_of_them(
    one: list[LogStep], two: list[LogStep], data: st.DataObject
) -> None:
    steps, alike = LogSteps(one), list(one)
    steps.add(LogSteps(two).columns(), len(two))
    alike += two
    for step in one[:2]:
        steps.append(step)
        alike.append(step)
    if alike:
        at = data.draw(st.integers(-len(alike), len(alike) - 1))
        value = data.draw(STEPS)
        steps[at], alike[at] = value, value
        assert steps[at] == alike[at] and steps[at:] == alike[at:]
    steps[-2:] = alike[-1:]
    alike[-2:] = alike[-1:]
    assert steps == alike == list(steps) and len(steps) == len(alike)
    assert steps.values("loss") == [step.loss for step in alike]
    with pytest.raises(IndexError):
        steps[len(alike)]


# --- whole logs


def mixed(name: str, noise: int, lines: int = 400) -> bytes:
    """A log with ``noise`` lines of other programs before each figure, on average."""
    chance = Random(name)
    return "".join(
        "".join(
            chance.choice(NOISE_LINES)(n, chance) + "\n" for _ in range(chance.randrange(noise + 1))
        )
        + f"{PRINTERS[name](n + 1, chance)}\n"
        for n in range(lines)
    ).encode()


@pytest.mark.parametrize("name", PRINTERS)
def test_figures_amid_noise_are_read_as_one_by_one(name: str) -> None:
    data = mixed(name, 5)
    found = scan(data)
    assert found == line_by_line(data) and len(found.readings[0].steps) == 400
    for change in (with_bytes, with_numbers):
        damaged = change(data, Random(name))
        assert scan(damaged) == line_by_line(damaged)


def test_a_stretch_of_one_line_more_than_a_run_loses_none() -> None:
    """An unusual line in it: all are shown one by one."""
    lines = mixed("deepspeed", 0, 1 + 256 * 8).splitlines(keepends=True)
    for at in (300, len(lines) - 1):
        odd = [*lines]
        odd[at] = re.sub(rb"SamplesPerSec=[0-9.]+", b"SamplesPerSec=0.000000000000000", odd[at])
        data = b"".join(odd)
        found = scan(data)
        assert found == line_by_line(data) and len(found.readings[0].steps) == len(lines)
        assert len(found.notes) == 1


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=50))
@example([-0.0])
@example([sys.float_info.max] * 3)
def test_what_is_asked_of_a_column(values: list[float]) -> None:
    column, pairs = array("d", values), [*zip(values, values[1:])]
    assert bounds(column) == (min(values), max(values))
    assert is_rising(column) == all(one < other for one, other in pairs)
    assert never_falls(column) == all(one <= other for one, other in pairs)
    assert list(differences(column)) == [other - one for one, other in pairs]
    assert sums(column)[0] == 0 and len(sums(column)) == len(values) + 1
    assert are_finite(column)
    for odd in (math.nan, math.inf, -math.inf):
        assert not are_finite(array("d", [*values, odd]))
