"""Bars of several epochs, and the Trainer's bar beside losses that were buffered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from damage import scan
from drawn_bars import bar, clock
from tqdm import tqdm  # type: ignore[import-untyped]

from dlperf_hpc.logs.interpret.interpretation import interpret
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.model.result import RunResult

ONE: Mapping[str, Any] = {"nodes": 1, "gpus_per_node": 1, "batch_size": 8}


def results(text: str, by: str = "default") -> tuple[RunResult, ...]:
    return tuple(interpret(scan(text.encode()), (), (), ONE, rule(by)).results)


def epoch(
    number: int, total: int, s: float, *, more: str = "", every: int = 0, last: int | None = None
) -> str:
    """What tqdm draws of an epoch's bar: every so many states (0: none), and the last one."""
    last = total if last is None else last
    states = [*range(every, last, every)] if every else []
    return "".join(
        "\r" + tqdm.format_meter(done, total, done * s, prefix=f"Epoch {number}", postfix=more)
        for done in [*states, last]
    )


@pytest.mark.parametrize("every", [0, 1, 7])
@pytest.mark.parametrize(("total", "s"), [(16, 0.87), (40, 0.53), (63, 1.31)])
def test_iterations_and_time_go_on_over_epochs(every: int, total: int, s: float) -> None:
    """The time between epochs, of which no bar tells, is in neither."""
    text = "".join(
        epoch(number, total, s, every=every, more="loss=2.5") + f"\nEpoch {number} in 99 s\n"
        for number in range(1, 13)
    )
    (ran,) = results(text)
    assert ran.samples_per_s == pytest.approx(8 / s, rel=0.02)
    assert ran.external is not None and ran.external.basis == "clock"
    assert not [warning for warning in ran.warnings if "several epochs" in warning]


def test_lightnings_means_go_on_over_epochs_and_runs() -> None:
    runs = [
        "".join(epoch(number, 28, s, every=1, more="v_num=3") + "\n" for number in range(9))
        for s in (0.16, 0.08)
    ]
    first, second = results("".join(runs))
    assert first.external is not None and first.external.basis == "printed"
    assert first.samples_per_s == pytest.approx(8 / 0.16, rel=0.01)
    assert second.samples_per_s == pytest.approx(8 / 0.08, rel=0.01)


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(epoch(0, 40, 0.5) + "\n" + epoch(2, 40, 0.5), id="an epoch is missing"),
        pytest.param(epoch(0, 40, 0.5, every=1, last=39), id="an epoch is not whole"),
        pytest.param(epoch(0, 40, 0.5, more="val_loss=2.5, loss=2"), id="a validation is in it"),
        pytest.param(epoch(0, 40, 0.5, more="v_num=3"), id="a validation may be in it"),
        pytest.param("\rEpoch 0: " + bar(40, 40, "00:12", "9.00it/s"), id="its time is not known"),
    ],
)
def test_an_epoch_that_follows_no_whole_one_is_not_read(before: str) -> None:
    rest = "".join(epoch(number, 40, 0.5) + "\n" for number in (1, 3, 4, 5, 6))
    file = scan(f"{before}\n{rest}".encode())
    assert max(step.iteration for step in file.readings[0].steps) <= 40
    assert any("follows no whole epoch" in note.text and note.partly for note in file.notes)
    assert all(ran.samples_per_s is None for ran in results(f"{before}\n{rest}"))


def test_states_within_later_epochs_of_ultralytics_do_not_hide_the_means() -> None:
    """The first epoch shows one state, the later ones several."""
    name = "      {}/9      2.35G      1.239      2.651     0.9852         23        640: {}"
    head = "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size\n"
    lines = [name.format(1, bar(142, 142, "00:28", "5.00it/s"))]
    for number in range(2, 6):
        states = ((2, "5.03it/s"), (90, "4.80it/s"), (142, "4.00it/s"))
        lines += [name.format(number, bar(at, 142, clock(at / 4), rate)) for at, rate in states]
    (ran,) = results(head + "\r".join(lines) + "\n")
    assert ran.samples_per_s == pytest.approx(8 * 4.0)


# --- the Trainer's


def trained(total: int, every: int, upto: int, *, of_s: float = 5.0, losses: int = 6) -> str:
    """The Trainer's bar, drawn again at each loss; the losses come ``losses`` at a time."""
    text, waiting = "", []
    for done in range(1, upto + 1):
        drawn = "\r" + bar(done, total, clock(done * of_s))
        text += drawn
        if done % every == 0:
            waiting.append(
                f"{{'loss': 2.5, 'learning_rate': 1e-05, 'epoch': {done / total:.2f}}}\n"
            )
            if len(waiting) == losses:
                text += "\n" + "".join(waiting)
                waiting.clear()
            text += "\r" + " " * 40 + "\r" + drawn
    return text + "\n" + "".join(waiting)


def test_the_trainers_bar_is_known_among_buffered_losses() -> None:
    """Of a run that broke off, so that no summary tells its speed."""
    (ran,) = results(trained(600, 2, 400))
    assert ran.samples_per_s == pytest.approx(8 / 5.0)


def test_of_two_bars_that_are_both_drawn_again_no_more_is_read() -> None:
    other = "".join(f"\r{bar(n, 90, clock(n))}\r{bar(n, 90, clock(n))}" for n in range(1, 40))
    before, after = trained(600, 2, 50), trained(600, 2, 400)
    (read,) = scan((before + other + after[after.index("| 52/600") :]).encode()).readings
    numbers = [step.iteration for step in read.steps]
    assert numbers == [*range(numbers[0], 51)]


def test_loss_lines_of_grpo_are_long() -> None:
    rewards = ", ".join(f"'rewards/of_{n}/mean': 0.123456789" for n in range(90))
    text = ""
    for done in range(1, 150):
        drawn = f"\r{bar(done, 600, clock(done * 5.0))}"
        text += drawn
        if done % 10 == 0:
            text += f"\n{{'loss': 0.02, {rewards}, 'epoch': 0.01}}\n{drawn}"
    (ran,) = results(text + "\n")
    assert ran.samples_per_s == pytest.approx(8 / 5.0)
