"""Times of single iterations, of which some have an evaluation in them that no line tells of."""

from __future__ import annotations

from pathlib import Path

import pytest
from named_logs import ITERATIONS, lines_of, one

LEFT_OUT = "printed times of single iterations were left out"


def nanogpt(tmp_path: Path, every: int, long_ms: float, first: int = 1) -> tuple[float, list[str]]:
    """The speed of nanoGPT's lines, one each ``every`` iterations of 500 ms, and what is said. From
    the ``first`` on the tenth of them is of ``long_ms``."""

    def line(n: int) -> str:
        long = n % 10 == 0 and n >= first
        return f"iter {every * n}: loss 2.5, time {long_ms if long else 500.0:.2f}ms"

    result = one(tmp_path, lines_of(line, 400))
    return result.rates[ITERATIONS], list(result.warnings)


def test_an_evaluation_in_a_printed_time_is_left_out(tmp_path: Path) -> None:
    speed, warnings = nanogpt(tmp_path, 10, 30_000.0)
    assert speed == pytest.approx(1 / 0.5)
    assert not [each for each in warnings if "behind the window" in each]


def test_it_is_said_where_the_window_has_it(tmp_path: Path) -> None:
    text = lines_of(lambda n: f"iter {10 * n}: loss 2.5, time {30_000 if n == 5 else 500}.00ms")
    result = one(tmp_path, text)
    assert result.rates[ITERATIONS] == pytest.approx(1 / 0.5)
    (said,) = [each for each in result.warnings if LEFT_OUT in each]
    assert said.startswith("1 of ") and "more than 3 times the median" in said


def test_where_every_iteration_is_printed_all_count(tmp_path: Path) -> None:
    speed, warnings = nanogpt(tmp_path, 1, 30_000.0)
    assert speed == pytest.approx(10 / (9 * 0.5 + 30.0))
    assert not [each for each in warnings if LEFT_OUT in each]


@pytest.mark.parametrize("long_ms", [1000.0, 1400.0])
def test_a_time_that_is_a_little_longer_counts(tmp_path: Path, long_ms: float) -> None:
    _, warnings = nanogpt(tmp_path, 10, long_ms)
    assert not [each for each in warnings if LEFT_OUT in each]
