"""Logs without a whole window, and logs without a batch: what they say of the speed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from reading_samples import facts, reading, scanned, steps

from dlperf_hpc.analysis.speedup import summarise
from dlperf_hpc.logs.interpret.interpretation import interpret
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.logs.scanned import Averaging, Counter, Printed, Trouble, Unit
from dlperf_hpc.model.result import RunResult, Status

NAME = facts(nodes=1, gpus_per_node=8, batch_size=32)
SPEED = 512.0  # samples/s: 2 iterations/s of 256


def clock(n: int) -> float:
    return 1e9 + n / 2


def run(numbers: range, stamp: Callable[[int], float] = clock, **changes: Any) -> RunResult:
    named, text = changes.pop("named", NAME), changes.pop("text", "default")
    file = scanned(reading(steps(numbers, stamp=stamp)), **changes)
    (result,) = interpret(file, named, (), {}, rule(text)).results
    return result


@pytest.mark.parametrize(
    ("numbers", "used"),
    [
        (range(1, 61), "clock[20:60]"),
        (range(10, 91, 10), "clock[20:90]"),
        (range(1, 16), "clock[6:15]"),  # all but the first third
        (range(800, 861), "clock[819:860]"),  # an excerpt, without its own first 20 iterations
    ],
)
def test_a_steady_speed_counts_and_is_partial(numbers: range, used: str) -> None:
    result = run(numbers)
    assert (result.status, result.counts) == (Status.PARTIAL, True)
    assert result.samples_per_s == pytest.approx(SPEED)
    assert result.reason.endswith(f": {used} is used")
    again = run(numbers, text=used)
    assert again.status is Status.OK and again.samples_per_s == pytest.approx(SPEED)


@pytest.mark.parametrize(
    "stamp",
    [
        lambda n: 1e9 + n / 2 - max(0, 40 - n) ** 2 / 200,  # it becomes faster
        lambda n: 1e9 + n / 2 * (1 if n <= 40 else 1.2),  # a jump
    ],
)
def test_a_speed_that_changes_is_none(stamp: Callable[[int], float]) -> None:
    result = run(range(1, 61), stamp)
    assert (result.status, dict(result.rates)) == (Status.PARTIAL, {})
    assert "between iterations 20 and 60 the speed is not steady" in result.reason


def test_a_ramp_before_the_warm_up_is_over_is_none() -> None:
    """Its halves differ by 4 %, but its first interval is a fifth longer than the others."""
    moments = [*range(7), 7.2, *(8.2 + n for n in range(8))]
    result = run(range(1, 16), lambda n: 1e9 + moments[n])
    assert (result.status, dict(result.rates)) == (Status.PARTIAL, {})


def test_few_lines_are_none() -> None:
    assert dict(run(range(1, 6)).rates) == {}
    assert dict(run(range(10, 50, 10)).rates) == {}


def test_a_short_run_that_broke_has_no_number() -> None:
    for kind in (Status.FAILED, Status.TIMEOUT, Status.CANCELLED):
        result = run(range(1, 61), troubles=(Trouble(70, kind.value, "it ended"),))
        assert (result.status, dict(result.rates)) == (kind, {})


def test_running_means_show_whether_a_speed_is_steady() -> None:
    printed = Printed(Unit.S_PER_ITERATION, averaging=Averaging.RUNNING)
    for mean, rates in ((lambda n: 0.5, {"samples/s": SPEED}), (lambda n: 0.2 + n / 100, {})):
        file = scanned(reading(steps(range(10, 91, 10), printed=mean), printed=printed))
        (result,) = interpret(file, NAME, (), {}, rule("default")).results
        assert dict(result.rates) == pytest.approx(rates)


def test_short_logs_count_in_a_median_only_where_there_are_no_others() -> None:
    short, whole = run(range(1, 61), lambda n: 1e9 + n / 4), run(range(1, 131))
    (alone,) = summarise([short])
    assert alone.median("samples/s") == pytest.approx(2 * SPEED)
    again = replace(whole, run=replace(whole.run, repeat=2))
    later = replace(whole, attempt=2)
    for runs in ([short, again], [short, later]):
        (both,) = summarise(runs)
        assert both.median("samples/s") == pytest.approx(SPEED)


def test_without_a_batch_iterations_per_second_are_the_figure() -> None:
    result = run(range(1, 131), named=facts(nodes=1, gpus_per_node=8))
    assert (result.status, result.samples_per_s) == (Status.OK, None)
    assert dict(result.rates) == {"iterations/s on 1n8g": pytest.approx(2.0)}
    why = "the batch size per device (--batch-size) is not known: clock[20:120] is used"
    assert result.warnings == (f"{why}, in iterations/s",)


def test_iterations_per_second_are_held_against_what_follows_the_window() -> None:
    slower = run(
        range(1, 401),
        lambda n: 1e9 + n / 2 + max(0, n - 120) / 18,  # by a ninth behind iteration 120
        named=facts(nodes=1, gpus_per_node=8),
    )
    assert dict(slower.rates) == {"iterations/s on 1n8g": pytest.approx(2.0)}
    behind = "behind the window, from iteration 120 on, it is 1.8 iterations/s on 1n8g: -10.0 %"
    assert behind in slower.warnings
    assert slower.external is not None and slower.external.rest == pytest.approx(1.8)


def test_what_follows_the_window_ends_where_the_clock_begins_anew() -> None:
    resumed = run(range(1, 401), lambda n: n / 2 * 1.2 if n <= 300 else (n - 300) / 2)
    assert resumed.external is not None
    assert resumed.external.rest == pytest.approx(resumed.samples_per_s)
    slower = run(range(1, 401), lambda n: n / 2 + max(0, n - 120) / 18 if n <= 300 else n / 2 - 150)
    assert [text for text in slower.warnings if text.startswith("behind the window")]


def test_iterations_per_second_of_other_topologies_are_no_speedup() -> None:
    few = run(range(1, 131), named=facts(nodes=1, gpus_per_node=1))
    many = run(range(1, 131), named=facts(nodes=1, gpus_per_node=8))
    assert not set(few.rates) & set(many.rates)
    assert [case.speedup for case in summarise([few, many])] == [1.0, None]  # the first to itself


def test_printed_samples_count_before_iterations_of_an_unknown_batch() -> None:
    lines = steps(range(1, 131), stamp=clock, printed=lambda n: SPEED)
    file = scanned(reading(lines, counter=Counter.OPTIMIZER_STEPS))
    (result,) = interpret(file, facts(nodes=1, gpus_per_node=8), (), {}, rule("default")).results
    assert dict(result.rates) == {"samples/s": SPEED}
