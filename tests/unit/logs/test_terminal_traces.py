"""Lines that a terminal left its traces in: colours, and the end of a longer line before."""

# ruff: noqa: E501 - a log's line is as long as it is

from __future__ import annotations

from typing import Any

import pytest
from scanned_lines import reading, run

COLOUR, PLAIN = "\x1b[1;36m", "\x1b[0m"
NANOGPT = "iter \x1b[1;36m{}\x1b[0m: loss \x1b[1;36m{}\x1b[0m, time \x1b[1;36m{}\x1b[0m ms, mfu \x1b[1;36m1.82\x1b[0m%"
BAR = "\x1b[K       {}/30      2.19G     0.9158     0.6416      1.017          8        640: 100% ━━━━━━━━━━━━ 148/148 4.2it/s {}"
HEAD = "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size"


def test_the_colours_of_nanogpts_figures_are_no_part_of_them() -> None:
    lines = [NANOGPT.format(n, 2.5, 40.0 if n != 100 else 900.0) for n in range(0, 201, 10)]
    at = lines.index(NANOGPT.format(100, 2.5, 900.0))
    lines.insert(at, f"step {COLOUR}100{PLAIN}: train loss {COLOUR}2.4{PLAIN}, val loss 2.6")
    steps = reading(*lines).steps
    assert [step.iteration for step in steps] == [n + 1 for n in range(0, 201, 10)]
    # The time behind an evaluation has that in it.
    assert [step.printed for step in steps] == [
        None if n == 100 else 40.0 for n in range(0, 201, 10)
    ]
    result = run(lines, nodes=1, gpus_per_node=1)
    assert dict(result.rates) == {"iterations/s on 1n1g": pytest.approx(1000 / 40)}


@pytest.mark.parametrize("left", ["0.2ss", "0.5ss", "0.2s", ""])
def test_what_a_longer_bar_left_behind_the_time_is_no_part_of_it(left: str) -> None:
    ends = [(1, 37.3), (2, 35.6), (3, 35.2)]
    lines = [line for n, s in ends for line in (HEAD, BAR.format(n, f"{s}s{left}"))]
    found: list[tuple[int, Any]] = [
        (step.iteration, step.printed) for step in reading(*lines).steps
    ]
    assert found == [(148 * n, pytest.approx(148 / s)) for n, s in ends]


@pytest.mark.parametrize("time", ["1:020.2s", "1:02.2s", "35.2s0.2ss more", "35.2s12"])
def test_a_time_that_may_be_another_is_not_read(time: str) -> None:
    lines = [line for n in (1, 2) for line in (HEAD, BAR.format(n, time))]
    with pytest.raises(ValueError, match="not enough values"):
        reading(*lines)
