"""Programs in no known format: a speed by its name beside an iteration and a loss, or none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from named_logs import ITERATIONS, ONE, lines_of, one, read

EIGHT = {"nodes": 1, "gpus_per_node": 8}


@pytest.mark.parametrize(
    ("line", "rates"),
    [
        ("step={n} loss=2.{n} tokens_per_sec=51,234 lr=1e-3", {"tokens/s": 51234.0}),
        ('{{"iter": {n}, "loss": 2.5, "samples/s": 512.5}}', {"samples/s": 512.5}),
        ("Epoch 1 Batch {n}/500: train_loss 0.3, 96.0 imgs/sec", {"samples/s": 96.0}),
        ("iter {n}: loss 2.3, tok/s 1.5K, mfu 0.3", {"tokens/s": 1500.0}),
        ("Iteration {n} | loss: 2.3 | throughput 250 examples per second |", {"samples/s": 250.0}),
        ("[{n}] global_step: {n}, loss: 2, speed: 4.0 it/s", {ITERATIONS: 4.0}),
        ("step {n} loss 1.5 step_time: 250ms", {ITERATIONS: 4.0}),
        ("step {n} loss 1.5 (0.50 s/step)", {ITERATIONS: 2.0}),
        ("step {n} loss 2.1 sec/step: 0.250", {ITERATIONS: 4.0}),
        ("| epoch 1 | {n}/ 2983 batches | lr 20.00 | ms/batch 250.0 | ppl 2", {ITERATIONS: 4.0}),
        ("({n}/391) Data: 0.001s | Batch: 0.2s | 96.0 imgs/s | Loss: 1.2", {"samples/s": 96.0}),
    ],
)
def test_a_speed_is_known_by_its_name(
    tmp_path: Path, line: str, rates: Mapping[str, float]
) -> None:
    result = one(tmp_path, lines_of(line))
    assert dict(result.rates) == pytest.approx(rates)
    assert result.warnings[0].startswith("an unknown program: ")
    assert any(each.endswith("is taken for its speed") for each in result.warnings)


@pytest.mark.parametrize(
    "line",
    [
        "iter {n} loss 2.3 tokens/s 5101 0.33",  # before or behind the name?
        "iter {n} loss 2.3 time 12.25",  # of what unit?
        "iter {n}0 loss 2.3 elapsed 0.25s",  # since when?
        "iter {n} 96 imgs/s",  # who trains?
        "loss 2.3 96 imgs/s",  # at which iteration?
        "val step {n} loss 2.3 96 imgs/s",
        "step {n} eval_loss 2.3 96 imgs/s",
        "step {n} loss 2.3 - 3s/step",  # or 2.6
        "request {n}: 96 tokens/s",
    ],
)
def test_what_is_not_said_plainly_is_no_speed(tmp_path: Path, line: str) -> None:
    found = read(tmp_path, lines_of(line), ONE)
    assert not [result.rates for result in found.results if result.rates]


def stamped(n: int) -> str:
    seconds = 2 * n
    clock = f"2026-01-05 10:{seconds // 60:02}:{seconds % 60:02},500"
    return f"{clock} INFO Epoch [1/9] Step [{n}/300] Loss: 2.5"


def test_the_clock_is_that_of_the_lines(tmp_path: Path) -> None:
    result = one(tmp_path, lines_of(stamped))
    assert dict(result.rates) == {ITERATIONS: pytest.approx(0.5)}
    with_batch = one(tmp_path, lines_of(stamped, before="batch_size: 16\n"))
    assert dict(with_batch.rates) == {"samples/s": pytest.approx(8.0)}
    assert "no gradient accumulation is stated: 1 is taken (--accumulation)" in with_batch.warnings


def test_a_batch_beside_an_accumulation_is_not_taken(tmp_path: Path) -> None:
    """The number may count micro-steps, or optimizer steps."""
    for before in (
        "Namespace(batch_size=16, gradient_accumulation_steps=4)\n",
        "grad_accum: 8\nbatch_size: 16\n",
        "batch_size: 16\naccumulate_grad_batches=10\n",
    ):
        result = one(tmp_path, lines_of(stamped, before=before))
        assert dict(result.rates) == {ITERATIONS: pytest.approx(0.5)}


def test_an_evaluation_is_not_in_the_speed(tmp_path: Path) -> None:
    def line(n: int) -> str:
        seconds = 2 * n + 30 * (n > 60)
        clock = f"2026-01-05 10:{seconds // 60:02}:{seconds % 60:02}"
        return f"{clock} step {n} loss 2.5" + "\nValidation: acc 0.7" * (n == 60)

    result = one(tmp_path, lines_of(line))
    assert dict(result.rates) == {ITERATIONS: pytest.approx(0.5)}
    assert any("for unknown times of evaluation (once)" in each for each in result.warnings)


def test_a_speed_of_an_unknown_part_of_several_devices_is_none(tmp_path: Path) -> None:
    text = lines_of("step={n} loss=2.5 tokens_per_sec=512")
    result = one(tmp_path, text, EIGHT)
    assert dict(result.rates) == {}
    assert "the printed speed is of one process" in result.reason
    each = one(tmp_path, lines_of("step={n} loss=2.5 tokens/s/gpu=512"), EIGHT)
    assert dict(each.rates) == {"tokens/s": pytest.approx(4096.0)}


def test_of_numbers_that_begin_anew_the_first_epoch_is_read(tmp_path: Path) -> None:
    def line(n: int) -> str:
        return f"epoch {n // 130} step {n % 130} loss 2.5 {96 if n < 130 else 48}.0 imgs/s"

    anew = one(tmp_path, lines_of(line, 259))
    assert anew.external is not None and anew.external.last == 120
    assert dict(anew.rates) == {"samples/s": pytest.approx(96.0)}
    going_on = one(
        tmp_path,
        lines_of("epoch {n[0]} step {n} loss 2.5 96.0 imgs/s".replace("{n[0]}", "{decimal}")),
    )
    assert dict(going_on.rates) == {"samples/s": pytest.approx(96.0)}


def bars(step_s: float, loss: str, last: int = 200) -> str:
    seconds = [int(n * step_s) for n in range(last + 1)]
    times = [f"{each // 60:02}:{each % 60:02}" for each in seconds]
    return "".join(
        f"\rTraining:   5%|5   | {n}/400 [{times[n]}<01:00, 9.98it/s{loss}]"
        for n in range(1, last + 1)
    )


def test_a_bar_that_shows_a_loss_is_a_clock(tmp_path: Path) -> None:
    result = one(tmp_path, bars(1.0, ", loss=2.5"))
    assert dict(result.rates) == {ITERATIONS: pytest.approx(1.0, rel=0.02)}
    assert not read(tmp_path, bars(1.0, ""), ONE).results
    assert not read(tmp_path, bars(1.0, ", val_loss=2.5"), ONE).results
    woven = bars(1.0, ", loss=2.5").replace(
        "\r", "\rTraining:   5%|5   | 9/10 [00:01<01:00, 9.9it/s, loss=1]\r", 40
    )
    assert dict(one(tmp_path, bars(1.0, ", loss=2.5", 1) + woven).rates) == dict(result.rates)


def test_few_lines_make_no_run_of_a_file(tmp_path: Path) -> None:
    assert not read(tmp_path, lines_of("step {n} loss 2.5 96 imgs/s", 4), ONE).results
