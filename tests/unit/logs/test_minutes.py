"""Logs whose window is too short for stamps of whole seconds: they are read behind a minute."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from named_logs import ITERATIONS, one


def bars(lengths: Callable[[int], float], epochs: int, total: int, drawn: int) -> str:
    """Bars of ``epochs`` epochs of ``total`` batches; ``lengths`` gives the seconds of an epoch."""
    lines = []
    for epoch in range(1, epochs + 1):
        for n in (*range(1, total, total // drawn), total):
            seconds = lengths(epoch) * n / total
            time = f"{int(seconds) // 60:02}:{int(seconds) % 60:02}"
            rate = f"{total / lengths(epoch):.2f}it/s"
            lines.append(f"\rEpoch {epoch}/{epochs}: 5%|5  | {n}/{total} [{time}<00:09,  {rate}]")
        lines.append("\n")
    return "".join(lines)


def test_bars_of_fast_iterations_in_short_epochs(tmp_path: Path) -> None:
    result = one(tmp_path, bars(lambda epoch: 19.0 + epoch % 3 / 10, 30, 2590, 200))
    assert dict(result.rates) == {ITERATIONS: pytest.approx(2590 / 19.1, rel=0.01)}
    assert any(": clock[" in each for each in result.warnings)


def test_a_run_that_goes_on_in_an_epoch(tmp_path: Path) -> None:
    """Of its first bar most batches are passed over, in no time."""
    whole = bars(lambda _: 771.0, 12, 833, 400)
    rest = [f"\rEpoch 0/12: 5%|5  | {n}/833 [00:00<00:09,  900.00it/s]" for n in range(1, 690, 23)]
    rest += [
        f"\rEpoch 0/12: 5%|5  | {n}/833 [{(n - 690) // 60:02}:{(n - 690) % 60:02}<00:09,  1.00it/s]"
        for n in range(690, 834)
    ]
    result = one(tmp_path, "".join(rest) + "\n" + whole)
    assert dict(result.rates) == {ITERATIONS: pytest.approx(833 / 771, rel=0.01)}


def test_a_run_whose_halves_differ_has_no_number(tmp_path: Path) -> None:
    result = one(tmp_path, bars(lambda epoch: 19.0 if epoch < 15 else 30.0, 30, 2590, 200))
    assert not result.rates
