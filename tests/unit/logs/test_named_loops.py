"""Own training loops in no known format: epochs that begin anew, clocks, times and bars."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from named_logs import ITERATIONS, ONE, lines_of, one, read

EPOCH = 40  # iterations of an epoch, where nothing else is said


def clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}"


def parts(n: int) -> tuple[int, int]:
    """The epoch, from 1, and the number within it of iteration ``n``."""
    return (n - 1) // EPOCH + 1, (n - 1) % EPOCH + 1


def passed(n: int) -> float:
    """An iteration takes 2 s, what lies between two epochs 10 s."""
    return 2.0 * n + 10.0 * ((n - 1) // EPOCH)


def of(form: str) -> Callable[[int], str]:
    def line(n: int) -> str:
        epoch, k = parts(n)
        return form.format(n=n, e=epoch, k=k, day=clock(passed(n)), unix=1.7e9 + passed(n))

    return line


@pytest.mark.parametrize(
    "form",
    [
        "2026-01-05 {day},250 INFO Epoch [{e}/9] Step [{k}/40] Loss: 2.5",
        "2026-01-05 {day},250 INFO Epoch: [{e}][{k}/40] loss 2.5",
        "01-05 {day}: train.py[280]: [Epoch {e}/9][ {k}:40]  Loss: 0.07",
        "{day} [INFO]   [{e}/9] batch {k}/40 loss=47.8",
        "[{day}] iteration:{e} step:{k}/40, NER loss: 3.006",
        "Nov 28 {day} | Epoch {e} | {k}/40 | perplexity 1.5 |",
        '{{"epoch": {e}, "step": "{k}/40", "loss": 2.5, "timestamp": {unix:.3f}}}',
    ],
)
def test_numbers_that_begin_anew_are_counted_on(tmp_path: Path, form: str) -> None:
    result = one(tmp_path, lines_of(of(form)))
    assert dict(result.rates) == {ITERATIONS: pytest.approx(100 / (passed(120) - passed(20)))}
    assert any(each.startswith("several epochs are in the window") for each in result.warnings)


@pytest.mark.parametrize(
    "form",
    [
        "2026-01-05 {day} Epoch: {n}/500 Loss: 0.66",  # an epoch is no iteration
        "2026-01-05 {day} Train Epoch: 1 [{n}00/60000 ({n}%)] Loss: 0.66",  # samples
        "2026-01-05 {day} Epoch {n} loss 0.66",
        "2026-01-05 {day} [build] step {n}/400: compiled, 2 tests",
    ],
)
def test_what_counts_no_iterations_is_not_read(tmp_path: Path, form: str) -> None:
    assert not read(tmp_path, lines_of(of(form)), ONE).results


def test_a_mean_since_the_first_iteration(tmp_path: Path) -> None:
    """The first iteration takes 10 s, each other one 0.25 s."""

    def line(n: int) -> str:
        return f"Epoch: [1] Iter [{n}/900] Time 0.250s ({(10 + 0.25 * (n - 1)) / n:.4f}s) Loss 2.5"

    assert dict(one(tmp_path, lines_of(line)).rates) == {ITERATIONS: pytest.approx(4.0, rel=0.01)}


def test_the_seconds_of_an_interval(tmp_path: Path) -> None:
    result = one(tmp_path, lines_of("INFO:tensorflow:loss = 0.18, step = {n}00 (25.000 sec)", 9))
    assert dict(result.rates) == {ITERATIONS: pytest.approx(4.0)}


@pytest.mark.parametrize(
    "form",
    [
        "elapsed: {:.2f}s",
        "time {:.3f} sec",
        "Cost Time: {hms}",
        "| elapsed_time={:.1f}s",
        "{:.2f}m",
    ],
)
def test_a_time_that_grows_is_the_clock(tmp_path: Path, form: str) -> None:
    def line(n: int) -> str:
        seconds = 3.0 * n / (60 if form.endswith("m") else 1)
        return f"[2 {n}0/7500] loss 0.4 lr 2.9e-04 " + form.format(seconds, hms=clock(3 * n))

    result = one(tmp_path, lines_of(line, 250))
    assert dict(result.rates) == {ITERATIONS: pytest.approx(10 / 3, rel=0.05)}
    assert any("the time since the program began" in each for each in result.warnings)


def test_a_time_of_each_iteration(tmp_path: Path) -> None:
    def line(n: int) -> str:
        return f"Epoch: [1][{n}/500] Time 0.{80 + n % 3} DataTime 0.004, loss 2.5"

    seconds = [0.80 + 0.01 * (n % 3) for n in range(21, 121)]
    result = one(tmp_path, lines_of(line))
    assert dict(result.rates) == {ITERATIONS: pytest.approx(100 / sum(seconds))}


@pytest.mark.parametrize(
    "form",
    [
        "iter {k} loss 2.3 time {t:.2f}s",  # of one iteration, or of ten?
        "iter {n} loss 2.3 time {big:.2f}s",  # since the program began, or of one iteration?
        "iter {n} loss 2.3 time {t:.2f}e",
        "iter {n} loss 2.3 time 0:00:01",  # of one iteration, or since each began?
        "iter {k} loss 2.3 time {n}.50",  # seconds, or minutes?
        "iter {n} loss 2.3 data time {t:.2f}s",
        "iter {n} loss 2.3 remaining time {t:.2f}s",
    ],
)
def test_a_time_whose_meaning_does_not_show_is_not_read(tmp_path: Path, form: str) -> None:
    def line(n: int) -> str:
        return form.format(n=n, k=10 * n, t=1.5 + n % 2 / 10, big=1000 + n)

    assert not [each.rates for each in read(tmp_path, lines_of(line), ONE).results if each.rates]


def full_bar(total: int, seconds: float, name: str = "") -> str:
    time = f"{int(seconds) // 60:02}:{int(seconds) % 60:02}"
    return f"\r{name}100%|####| {total}/{total} [{time}<00:00, {total / seconds:5.2f}it/s]\n"


def test_bars_without_a_loss_are_read_by_their_epochs(tmp_path: Path) -> None:
    bars = full_bar(60, 30.2) + full_bar(10, 2.1)
    for after in ("Epoch {n} train loss 0.5 val loss 0.7", "[ Valid | {n}/9 ] loss = 0.7"):
        result = one(tmp_path, lines_of(bars + after, 9))
        assert dict(result.rates) == {ITERATIONS: pytest.approx(60 / 30.2, rel=0.01)}
    named = full_bar(60, 30.2, "Training: ") + full_bar(90, 2.1, "Validation: ")
    result = one(tmp_path, lines_of(named + "Epoch {n} loss 0.5", 9))
    assert dict(result.rates) == {ITERATIONS: pytest.approx(60 / 30.2, rel=0.01)}


def test_of_two_bars_of_the_same_data_the_longer_trains(tmp_path: Path) -> None:
    bars = full_bar(60, 30.2) + full_bar(60, 7.1)
    result = one(tmp_path, lines_of(bars + "train loss = 0.5\n" + full_bar(9, 1.0), 9))
    assert dict(result.rates) == {ITERATIONS: pytest.approx(60 / 30.2, rel=0.01)}


@pytest.mark.parametrize(
    "epoch",
    [
        full_bar(60, 30.2) + full_bar(90, 2.1) + "Epoch {n} train loss 0.5",  # which trains?
        full_bar(60, 30.2) + "[ Valid | {n}/9 ] loss = 0.7",  # the evaluation's?
        full_bar(60, 30.2) + "sample {n} done",
    ],
)
def test_a_bar_that_may_be_no_training_is_not_read(tmp_path: Path, epoch: str) -> None:
    assert not read(tmp_path, lines_of(epoch, 9), ONE).results


def test_a_bar_of_epochs_that_shows_a_loss(tmp_path: Path) -> None:
    """Of short epochs many are in the window, of fast iterations more than 100."""
    for per_s, total in ((2.0, 16), (50.0, 5000)):

        def epoch(_: int, per_s: float = per_s, total: int = total) -> str:
            return "".join(
                f"\rloss {1 / n:.3f}:  5%|5  | {n}/{total} [{clock(n / per_s)[3:]}<01:00,"
                f" {per_s:.2f}it/s, loss={1 / n:.3f}]"
                for n in range(1, total + 1, total // 8)
            ) + (
                f"\rloss 0.1: 100%|5  | {total}/{total} [{clock(total / per_s)[3:]}<00:00,"
                f" {per_s:.2f}it/s, loss=0.1]"
            )

        result = one(tmp_path, lines_of(epoch, 12))
        assert dict(result.rates) == {ITERATIONS: pytest.approx(per_s, rel=0.06)}
