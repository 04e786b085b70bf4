"""Lines of own training loops: a date with a comma, an evaluation on the same line, NUL bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from named_logs import ITERATIONS, ONE, lines_of, one, read

WITHIN = "its lines end with an evaluation, whose time may be in the speed"


def day(n: int, seconds: int) -> str:
    """The time of line ``n`` of lines that are ``seconds`` apart."""
    passed = n * seconds
    return f"{passed // 3600:02}:{passed // 60 % 60:02}:{passed % 60:02}"


def test_a_comma_between_date_and_time(tmp_path: Path) -> None:
    text = lines_of(
        lambda n: f"time:2026-01-05, {day(n, 30)}, iters:{50 * n}, average_Loss:1.5", 40
    )
    assert dict(one(tmp_path, text).rates) == {ITERATIONS: pytest.approx(50 / 30)}


def test_an_evaluation_at_the_end_of_a_line_is_said(tmp_path: Path) -> None:
    line = "2026-01-05 {} - Epoch[{}] Iter[{}] Time:29.5, main_loss: 0.03, test rmse: 1.5"
    result = one(tmp_path, lines_of(lambda n: line.format(day(n, 30), n, 50 * n), 40))
    assert dict(result.rates) == {ITERATIONS: pytest.approx(50 / 30)}
    assert any(WITHIN in each for each in result.warnings)


@pytest.mark.parametrize(
    "line",
    [
        "2026-01-05 {day} Iter: {n}, Train Loss: 2.5, Val Loss: 2.7, Time: 29.5",
        "2026-01-05 {day} step {n}: train loss 2.5, val loss 2.7",
        "2026-01-05 {day} Test: Iter[{n}] Time:29.5, loss: 0.03",
    ],
)
def test_a_line_that_may_be_of_an_evaluation_alone_is_not_read(tmp_path: Path, line: str) -> None:
    text = lines_of(lambda n: line.format(n=n, day=day(n, 30)), 40)
    assert not read(tmp_path, text, ONE).results


def test_bars_behind_which_an_epoch_shows_an_accuracy(tmp_path: Path) -> None:
    train, test = (
        "100%|##| {0}/{0} [00:{1}<00:00,  {2:.2f}it/s]\n".format(*each)
        for each in ((90, 30, 90 / 30.5), (10, "02", 10 / 2.5))
    )
    result = one(tmp_path, lines_of(train + test + "epoch {n}: {{'accuracy': 0.7, 'f1': 0.8}}", 9))
    assert dict(result.rates) == {ITERATIONS: pytest.approx(90 / 30.5, rel=0.01)}
    alone = lines_of(train + "epoch {n}: {{'accuracy': 0.7}}", 9)  # of the evaluation, perhaps
    assert not read(tmp_path, alone, ONE).results


def test_a_file_that_was_emptied_while_its_program_writes(tmp_path: Path) -> None:
    """It begins with a hole of as many zeros as were written before."""
    text = lines_of("step {n} | loss 2.5 | 400 tok/s |")
    result = one(tmp_path, "\0" * 20_000 + text)
    assert dict(result.rates) == {"tokens/s": pytest.approx(400.0)}
    assert not read(tmp_path, "\0" * 20_000, ONE).results
