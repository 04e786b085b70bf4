"""Progress bars of own training loops: how much of a file is read, and where the loss stands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from named_logs import ITERATIONS, ONE, lines_of, one, read

from dlperf_hpc.logs.scan.search import scan_source
from dlperf_hpc.logs.scan.sources import Source

TOTAL, PER_S = 400, 8.0  # batches of an epoch, and the speed of all bars here


def bar(n: int, adds: str = "", name: str = "", total: int = TOTAL) -> str:
    seconds = int(n / PER_S)
    time = f"{seconds // 60:02}:{seconds % 60:02}"
    drawn = f"{100 * n // total:3}%|{'#' * 300}| {n}/{total}"
    return f"\r{name}{drawn} [{time}<00:09,  {PER_S:.2f}it/s{adds}]"


def test_a_training_is_read_whose_first_epochs_fill_half_a_megabyte(tmp_path: Path) -> None:
    """The bar of whole seconds is fast, so that an epoch shows few times."""

    def epoch(e: int) -> str:
        drawn = (bar(n, f", loss=2.{e}", "Training: ") for n in range(1, TOTAL + 1))
        return "".join((*drawn, bar(9, "", "Validation: ", 9), f"\nEpoch {e} loss 1.5"))

    text = lines_of(epoch, 12)
    assert len(text) > 2 * len(lines_of(epoch, 4)) > 1 << 20
    result = one(tmp_path, text)
    assert dict(result.rates) == {ITERATIONS: pytest.approx(PER_S, rel=0.02)}


def epochs_with(behind: Callable[[int], str]) -> str:
    """Bars without a name; ``behind`` is printed behind the one of batch ``n``."""
    one_epoch = "".join(bar(n) + behind(n) for n in range(1, TOTAL + 1, 9)) + bar(TOTAL) + "\n"
    return lines_of(one_epoch.replace("{", "{{"), 9)


def test_a_loss_that_is_printed_behind_the_bar(tmp_path: Path) -> None:
    text = epochs_with(lambda n: f"Epoch [1/5], Batch Loss: {1 / n:.3f}\n" if n % 5 == 1 else "")
    result = one(tmp_path, text)
    assert dict(result.rates) == {ITERATIONS: pytest.approx(PER_S, rel=0.02)}


@pytest.mark.parametrize("loss", ["Epoch [1/5], val loss: 1.5\n", "an accuracy of 0.5\n"])
def test_no_loss_of_a_training_behind_the_bar(tmp_path: Path, loss: str) -> None:
    text = epochs_with(lambda n: loss if n % 5 == 1 else "")
    assert not read(tmp_path, text, ONE).results


def test_a_bar_that_is_cleared_says_why_it_is_not_read(tmp_path: Path) -> None:
    """The last state of each bar is not that of a whole epoch."""
    short = "".join(bar(n, ", loss=2.5", "Training: ", 50) for n in range(1, 50))
    (tmp_path / "a.log").write_text(lines_of(short, 9))
    found = scan_source(Source(str(tmp_path / "a.log"), 0))
    assert not found.readings
    assert "fewer than 5 of its iterations" in found.nearest
    assert found.nearest.endswith("epoch 1 follows no whole epoch 0: no bar from here on was read")
