"""Lines that differ in digits only, read column by column: as they are read one by one."""

from __future__ import annotations

import math
import re
import sys
from array import array
from random import Random

import numpy as np
import pytest
from damage import line_by_line, scan, with_bytes, with_numbers
from hypothesis import example, given
from hypothesis import strategies as st
from places import ROOT

from dlperf_hpc.logs.columns import are_finite, differences, extent, is_rising, sums
from dlperf_hpc.logs.scan.columns import Places
from dlperf_hpc.logs.scan.rows import MASK, Form, Rows, absl_stamps, full_stamps
from dlperf_hpc.logs.scanned import Step, Steps

sys.path.insert(0, str(ROOT / "benchmarks"))
from made_logs import NOISE_LINES, PRINTERS

DECIMALS = st.from_regex(r"-?[0-9]{1,20}(\.[0-9]{1,25})?([eE][-+][0-9]{1,2})?", fullmatch=True)


def places(texts: list[str], name: str) -> Places:
    """The column that texts make, each with some other text before it."""
    block = "".join(f"{'x' * (n % 3)}{text}\n" for n, text in enumerate(texts)).encode()
    begins = np.cumsum([0, *(n % 3 + len(text) + 1 for n, text in enumerate(texts))])[:-1]
    forms = [Form({name: (n % 3, text.encode().translate(MASK))}) for n, text in enumerate(texts)]
    return Places(block, begins, np.arange(len(texts)), forms)


@given(st.lists(DECIMALS, min_size=1, max_size=20))
def test_numbers_are_those_of_float_to_the_last_bit(texts: list[str]) -> None:
    columns = places(texts, "loss")
    found = columns.floats("loss", -math.inf, math.inf)
    assert found is not None and [*map(float.hex, found)] == [float(t).hex() for t in texts]
    assert columns["loss"] == texts and columns.distinct("loss") == set(texts)


@pytest.mark.parametrize("text", ["9007199254740993", "0.1", "123456789012345.6", "1e22", "-0.0"])
def test_numbers_at_the_edge_of_what_is_exact(text: str) -> None:
    found = places([text, text], "lr").floats("lr", -math.inf, math.inf)
    assert found is not None and [*map(float.hex, found)] == [float(text).hex()] * 2


@given(st.floats(allow_nan=False, allow_infinity=False, width=64))
def test_numbers_as_python_prints_them(number: float) -> None:
    found = places([repr(number)], "lr").floats("lr", -math.inf, math.inf)
    assert found is not None and found[0] == number


def test_numbers_outside_their_bounds_are_none() -> None:
    columns = places(["0.5", "7.25", "0.0"], "printed")
    assert columns.floats("printed", math.ulp(0.0), 1e15) is None
    assert columns.floats("printed", 0.0, 7.0) is None
    found = columns.floats("printed", 0.0, 1e15)
    assert found is not None and list(found) == [0.5, 7.25, 0.0]


@given(st.lists(st.integers(0, 10**15 - 1), min_size=1, max_size=9))
def test_whole_numbers(numbers: list[int]) -> None:
    found = places([f"{number:0{n + 1}d}" for n, number in enumerate(numbers)], "index")
    assert list(found.whole("index", first=1)) == [number + 1 for number in numbers]


def test_stamps_are_those_that_are_read_one_by_one() -> None:
    for name, many in (("full", full_stamps), ("absl", absl_stamps)):
        random = Random(name)
        for odd in range(9):
            texts = [stamp(name, random, odd == 8) for _ in range(20)]
            found, alone = places(texts, name).stamps(name), many(texts)
            assert (found and list(found)) == alone, texts


def stamp(name: str, random: Random, odd: bool) -> str:
    """A time stamp; an ``odd`` one may be no time."""
    hour, minute, second = (random.randrange(end + 9 * odd) for end in (24, 60, 60))
    time = f"{hour:02d}:{minute:02d}:{second:02d}"
    month, day = random.randrange(1, 13 + odd), random.randrange(1, 29 + 4 * odd)
    if name == "absl":
        return f"{month:02d}{day:02d} {time}.{random.randrange(10**6):06d}"
    fraction = random.choice(["", ",123", ".5", ",123456789"])
    return f"20{random.randrange(100):02d}-{month:02d}-{day:02d} {time}{fraction}"


def test_a_form_knows_the_digits_that_the_pattern_takes_only() -> None:
    rows = Rows(r"0/(?P<iteration>[0-9]{1,9}) loss_(?:12|34): (?P<loss>[0-9]\.[0-9]+) v[0-5]")
    form = rows.form("0/17 loss_12: 3.25 v4")
    assert form is not None
    assert form.groups == {"iteration": (2, b"00"), "loss": (14, b"0.00")}
    assert form.fixed == ((0, b"0"), (10, b"12"), (20, b"4"))
    assert rows.form("1/17 loss_12: 3.25 v4") is None
    plain = Rows(r"step (?P<iteration>[0-9]+): (?P<printed>[0-9.]+)/s").form("step 1: 2.5/s")
    assert plain is not None and plain.fixed == ()


def test_lines_that_differ_in_a_fixed_digit_are_not_of_the_form() -> None:
    form = Form({"loss": (2, b"0")}, ((0, b"1"),))
    same = Places(b"1 2\n1 3\n", np.array([0, 4]), np.array([0, 0]), [form])
    other = Places(b"1 2\n2 3\n", np.array([0, 4]), np.array([0, 0]), [form])
    assert same.are_fixed() and not other.are_fixed()


# --- steps

VALUES = st.one_of(st.none(), st.floats(allow_nan=False))
STEPS = st.builds(
    Step,
    st.integers(0, 10**9),
    st.integers(0, 10**18),
    st.one_of(st.none(), st.integers(0, 10**6)),
    *[VALUES] * (len(Step._fields) - 3),
)


@given(st.lists(STEPS, max_size=8), st.lists(STEPS, max_size=8), st.data())
def test_steps_are_a_list_of_them(one: list[Step], two: list[Step], data: st.DataObject) -> None:
    steps, alike = Steps(one), list(one)
    steps.add(Steps(two).columns(), len(two))
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


def mixed(name: str, noise: int, lines: int = 1500) -> bytes:
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
    assert found == line_by_line(data) and len(found.readings[0].steps) == 1500
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
@example([0.0, -0.0])
@example([sys.float_info.max] * 3)
def test_a_column_tells_the_same_with_and_without_numpy(values: list[float]) -> None:
    def told() -> list[object]:
        column, whole = array("d", values), array("q", [int(value % 1e9) for value in values])
        return [
            *(each(of) for each in (is_rising, differences) for of in (column, whole)),
            *(end + 0 for of in (column, whole) for end in extent(of)),  # 0 or -0 is one to it
            sums(column),
            is_rising(array("q", sorted(set(whole)))),
            are_finite(column),
        ]

    with_numpy = told()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "numpy", None)
        assert repr(told()) == repr(with_numpy)  # NaN too, and -0.0


def test_infinite_numbers_and_none_are_no_finite_column() -> None:
    for odd in (math.nan, math.inf, -math.inf):
        assert not are_finite(array("d", [1.0, odd, 2.0]))
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, "numpy", None)
            assert not are_finite(array("d", [1.0, odd, 2.0]))
