"""Logs that were made of known courses: their speed is right, none or said to be doubtful."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from damage import scan
from hypothesis import given, settings
from hypothesis import strategies as st
from log_truth import FAMILIES, Course, Pause, Written, hf_trainer, keras, megatron, written
from log_verdicts import verdict, verdicts

from dlperf_hpc.logs.interpret.interpretation import interpret
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.model.result import RunResult

SEEDS = st.integers(0, 2**32)
CHANGING = [*[2] * 20, *[4] * 20, *[8] * 200]


@pytest.mark.parametrize("family", FAMILIES)
def test_no_speed_is_wrong_without_a_word(family: str) -> None:
    @settings(max_examples=50, deadline=None, derandomize=True, database=None)
    @given(SEEDS)
    def holds(seed: int) -> None:
        found, told = verdict(*written(family, seed))
        assert found != "silent", f"{family}, seed {seed}: {told}"

    holds()


def test_an_evaluation_before_any_bar_of_the_training_is_no_training() -> None:
    """Its bar has as many batches as the training has steps, and was read as 395 samples/s for 41:
    nothing of the training's is read before the first loss line."""
    found, told = verdict(*written("hf_trainer", 1862))
    assert found == "right" and "less 1253 s of evaluation (10 times)" in told


@pytest.mark.parametrize("family", FAMILIES)
def test_clean_logs_have_the_right_speed(family: str) -> None:
    found = verdicts(family, range(20), clean=True)
    assert found["right"] >= 0.85 * 20, found


@pytest.mark.parametrize(
    "family", ["hf_trainer", "lightning", "paddlenlp_trainer", "megatron", "torchtune"]
)
def test_it_is_not_enough_to_doubt_every_log(family: str) -> None:
    found = verdicts(family, range(20))
    assert found["right"] >= 0.5 * 20, found


# --- one course each


def course(
    steps: Sequence[int] = (8,) * 240,
    evaluated: int = 0,
    seconds: float = 20.0,
    kind: str = "evaluation",
    **more: Any,
) -> Course:
    """Steps of 1 s, with a pause of ``seconds`` behind every ``evaluated``-th."""
    pauses: Mapping[int, Sequence[Pause]] = {}
    if evaluated:
        numbers = range(evaluated, len(steps) + 1, evaluated)
        pauses = {number: [Pause(kind, seconds)] for number in numbers}
    return Course(steps, [1.0] * len(steps), pauses, **more)


def run(log: Written) -> RunResult:
    scanned = scan(log.text.encode())
    (only,) = interpret(scanned, (), (), log.stated, rule("default")).results
    return only


INFORMED, BARS, REDRAWN, AS_LONG, NESTED = 1, 2, 8, 16, 32


@pytest.mark.parametrize("distance", [50, 100])
def test_a_trainers_evaluations_are_taken_out(distance: int) -> None:
    ran = run(hf_trainer(course(evaluated=distance, style=BARS | REDRAWN)))
    assert ran.samples_per_s == pytest.approx(8.0, rel=1e-3)
    times = 100 // distance
    often = "once" if times == 1 else f"{times} times"
    assert f"less {20 * times} s of evaluation ({often})" in ran.warnings


def test_a_total_is_one_without_its_evaluations() -> None:
    ran = run(hf_trainer(course(evaluated=50, style=INFORMED)))
    assert ran.external is not None and ran.external.basis == "total"
    assert ran.samples_per_s == pytest.approx(8.0, rel=1e-3)
    assert "less 80 s of evaluation (4 times)" in ran.warnings


def test_an_evaluation_s_bar_behind_a_loss_line_is_no_training() -> None:
    """50 batches of 0.05 s each were read as 160 samples/s."""
    log = hf_trainer(course(evaluated=10, seconds=2.5, every=10, style=BARS))
    ran = run(log)
    assert ran.samples_per_s == pytest.approx(8.0, rel=0.02)


@pytest.mark.parametrize("more", [0, NESTED])
def test_an_evaluation_with_as_many_batches_as_the_training_has_steps(more: int) -> None:
    ran = run(hf_trainer(course(evaluated=50, style=INFORMED | BARS | REDRAWN | AS_LONG | more)))
    assert ran.samples_per_s == pytest.approx(8.0, rel=1e-3)
    assert "less 40 s of evaluation (2 times)" in ran.warnings


def test_a_trainer_that_was_stopped_has_the_clock_of_its_bar() -> None:
    """Without a loss line: the settings say how many steps its bar has."""
    log = hf_trainer(course(every=1000, stopped=True, style=INFORMED | BARS))
    assert "'loss'" not in log.text and "train_runtime" not in log.text
    ran = run(log)
    assert ran.external is not None and ran.external.basis == "clock"
    assert ran.samples_per_s == pytest.approx(8.0)


@pytest.mark.parametrize("told", [0, 2])
def test_megatrons_evaluations(told: int) -> None:
    """Until 2024 they are in the printed time, since then in the clock alone."""
    for stamped in (0, 1):
        ran = run(megatron(course(evaluated=50, style=stamped | told)))
        assert ran.samples_per_s == pytest.approx(8.0, rel=1e-3)
        assert any("evaluation (" in warning for warning in ran.warnings)
    every = run(megatron(course(evaluated=10, every=10)))
    assert every.samples_per_s is None and "of unknown length" in every.reason
    by_timer = run(megatron(course(evaluated=10, every=10, style=1)))
    assert by_timer.samples_per_s == pytest.approx(8.0)
    assert by_timer.external is not None and by_timer.external.basis == "printed"


@pytest.mark.parametrize("every", [10, 100])
@pytest.mark.parametrize("counted", [0, 4])
def test_a_ramp_of_which_lines_were_left_out(every: int, counted: int) -> None:
    """The time of a line is that of its own iteration, whose batch those before it had not."""
    log = megatron(course([*CHANGING, *[8] * 100], every=every, style=8 | counted, seed=1))
    ran = run(log)
    assert ran.samples_per_s == pytest.approx(8.0)


def test_a_long_interval_of_unknown_cause_is_told_of() -> None:
    """As where a checkpoint is in no line, or the clock was set forward."""
    text = hf_trainer(course(evaluated=50, kind="checkpoint", style=BARS | REDRAWN))
    ran = run(text)
    assert any("2 of 100 intervals" in w and "checkpoint" in w for w in ran.warnings), ran.warnings


def test_keras_saves_within_an_epoch() -> None:
    """A bar gives its last state before that; the line alone has the checkpoint in its figures."""
    made = replace(course(evaluated=120, kind="checkpoint", style=2), seconds=[0.25] * 240)
    assert run(keras(made)).samples_per_s == pytest.approx(32.0, rel=0.01)
    quiet = scan(keras(course(evaluated=120, kind="checkpoint", style=1)).text.encode())
    assert not quiet.readings[0].steps
    assert any("a checkpoint is in the time" in note.text for note in quiet.notes)
