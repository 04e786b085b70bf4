"""Which window the default takes of a run that goes on at another speed; expectations come from the
times of the single iterations, from which the lines are made."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import accumulate
from statistics import median

import pytest
from scanned_lines import read, run

from dlperf_hpc.logs.interpret.interpretation import interpret
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.model.result import RunResult

STATED = {"nodes": 1, "gpus_per_node": 1, "global_batch": 8}
BEGIN = datetime(2026, 1, 5, 10)


def lines(times: Sequence[float], every: int = 10) -> list[str]:
    """OpenNMT-py's lines of a run whose iterations take so many seconds."""
    moments = dict(enumerate(accumulate(times, initial=0.0)))
    return [
        f"[{BEGIN + timedelta(seconds=moments[n]):%Y-%m-%d %H:%M:%S,%f}"[:-3]
        + f" INFO] Step {n}/9000; acc: 12.0; ppl: 26.8; xent: 3.0; lr: 1.0; 11/8 tok/s;   9 sec"
        for n in range(every, len(times) + 1, every)
    ]


def ran(times: Sequence[float], basis: str = "default") -> RunResult:
    return run(lines(times), basis, **STATED)


def window_of(result: RunResult) -> tuple[int | None, int | None]:
    assert result.external is not None
    return result.external.first, result.external.last


def said(result: RunResult) -> str:
    return " ; ".join(result.warnings)


def test_a_run_that_goes_on_faster_has_the_speed_of_its_usual_window() -> None:
    result = ran([1.0] * 150 + [0.503] * 1100)
    first, last = window_of(result)
    assert first is not None and last is not None and first >= 150 and last - first == 100
    assert result.samples_per_s == pytest.approx(8 / 0.503)
    assert "iterations 20 to 120 differ from the run's usual speed, -49.7 %" in said(result)
    assert result.external is not None and result.external.rule == f"clock[{first}:{last}]"


def test_of_many_speeds_it_is_the_median_windows() -> None:
    """Windows of 100 iterations behind 120: each has a speed of its own."""
    of_s = [0.5, 0.9, 0.6, 0.8, 0.7, 0.55, 0.85, 0.95, 0.45, 0.41, 1.0]
    result = ran([2.0] * 120 + [s for s in of_s for _ in range(100)])
    assert result.samples_per_s == pytest.approx(8 / median(of_s))
    assert "the median of 11 later windows" in said(result)


def test_the_windows_taken_of_a_long_run_lie_all_over_it() -> None:
    result = ran([2.0] * 120 + [1.0] * 2000 + [0.5] * 3000)
    assert result.samples_per_s == pytest.approx(8 / 0.5)
    assert "the median of 17 later windows" in said(result)


def test_windows_between_whole_seconds_take_a_minute() -> None:
    times = [0.5] * 120 + [0.25] * 4000
    text = [re.sub(r",[0-9]{3} INFO", " INFO", line) for line in lines(times)]
    result = run(text, "default", **STATED)
    assert result.external is not None and result.external.elapsed_s == pytest.approx(60, abs=3)
    assert result.samples_per_s == pytest.approx(8 / 0.25, rel=1 / 60)


def test_a_window_of_few_whole_seconds_gives_way_to_one_of_a_minute() -> None:
    text = [re.sub(r",[0-9]{3} INFO", " INFO", line) for line in lines([0.273] * 2000)]
    result = run(text, "default", **STATED)
    assert result.samples_per_s == pytest.approx(8 / 0.273, rel=1 / 60)
    short = run(text, "clock[20:120]", **STATED)
    assert short.external is not None and short.external.elapsed_s in (27, 28)


def test_pauses_that_the_log_does_not_name_are_no_other_speed() -> None:
    times = [0.503] * 2100
    for at in range(299, 2100, 300):
        times[at] = 60.0
    result = ran(times)
    assert window_of(result) == (20, 120) and result.samples_per_s == pytest.approx(8 / 0.503)
    assert "behind the window" in said(result)


def test_windows_with_pauses_are_left_out_where_others_have_none() -> None:
    """Seven of twelve windows have a pause, so that a median of all would be of one of these."""
    times = [1.0] * 120 + [0.5] * 1200
    for window in (0, 1, 3, 4, 6, 8, 9):
        times[150 + 100 * window] = 30.0
    result = ran(times)
    assert result.samples_per_s == pytest.approx(8 / 0.5)
    assert "the median of 5 later windows" in said(result)


@pytest.mark.parametrize("behind", [499, 60])
def test_behind_a_short_run_nobody_knows_which_window_is_usual(behind: int) -> None:
    result = ran([1.0] * 120 + [0.5] * behind)
    assert window_of(result) == (20, 120) and result.samples_per_s == pytest.approx(8.0)
    assert "behind the window" in said(result)


def test_a_run_as_fast_as_its_window_keeps_it() -> None:
    result = ran([1.0] * 120 + [0.97] * 1200)
    assert window_of(result) == (20, 120) and not said(result)


@pytest.mark.parametrize("basis", ["clock[20:120]", "clock"])
def test_a_rule_that_the_user_names_stays(basis: str) -> None:
    result = ran([1.0] * 150 + [0.5] * 1100, basis)
    assert window_of(result) == (20, 120)


def test_a_window_that_the_user_states_stays() -> None:
    found = read(*lines([1.0] * 150 + [0.5] * 1100))
    (result,) = interpret(found, (), (), STATED, rule("default", 30, 50)).results
    assert window_of(result) == (30, 80) and result.samples_per_s == pytest.approx(8.0)
    (scripts,) = interpret(found, (), (), STATED, rule().of_whole_windows).results
    assert window_of(scripts) == (20, 120)


def test_a_batch_that_grows_is_no_other_speed() -> None:
    """Megatron's lines: iterations take longer as the batch grows, samples do not."""
    text = []
    consumed, moment = 0, BEGIN
    for n in range(1, 1501):
        batch = 64 if n <= 150 else 128
        consumed, moment = consumed + batch, moment + timedelta(seconds=batch / 64)
        text.append(
            f" [{moment:%Y-%m-%d %H:%M:%S}] iteration {n:8d}/    5000 | consumed samples:"
            f" {consumed:12d} | elapsed time per iteration (ms): {batch / 64 * 1000:.1f} | learning"
            f" rate: 1.500E-04 | global batch size: {batch:5d} | lm loss: 2.6E+00 |"
        )
    result = run(text, nodes=1, gpus_per_node=8)
    assert window_of(result) == (20, 120) and result.samples_per_s == pytest.approx(64.0)
