"""Cases that one job measured in turn are compared in pairs: what a node does in the course of a
job is the same for both of a pair. Expected values are computed here, from the made speeds."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from report_samples import case, ok

from dlperf_hpc.analysis.comparison import Compared, Subject, compare, pooled, subjects
from dlperf_hpc.analysis.outcomes import RatioOutcome
from dlperf_hpc.model.result import RunResult
from dlperf_hpc.reporting.comparison_tables import comparison_json, comparison_markdown
from dlperf_hpc.reporting.contents import Report, as_json

A, B = case(tags=("a",)), case(tags=("b",))
REPEATS = 8
FACTOR = 1.03
NOISE = [0.0004, -0.0007, 0.0002, 0.0009, -0.0003, 0.0006, -0.0008, 0.0001]


def speed_of(node: float, repeat: int) -> tuple[float, float]:
    """A and B of one repeat on a node that becomes 2 % slower from one pair to the next."""
    drifted = node * 0.98**repeat
    return drifted, drifted * FACTOR * (1 + NOISE[repeat - 1])


def runs(job: str = "7_0.0", first: int = 1, last: int = REPEATS) -> list[RunResult]:
    """Runs of A and B as one job measures them: A, B, B, A and so on."""
    found, turn = [], 0
    for repeat in range(first, last + 1):
        speeds = dict(zip((A, B), speed_of(500, repeat)))
        for each in (A, B) if repeat % 2 else (B, A):
            found.append(replace(ok(each, repeat, speeds[each]), launch=f"{job}.{turn}"))
            turn += 1
    return found


def compared(results: list[RunResult]) -> Compared:
    """B over A."""
    sides = subjects(results)
    found = compare(sides, sides, across=["tags"])
    return next(each for each in found.cases if each.a and each.a.case.tags == ("a",))


def test_a_drift_of_the_node_cancels_in_pairs() -> None:
    results = runs()
    found = compared(results)
    ratios = sorted(FACTOR * (1 + noise) for noise in NOISE)
    assert found.pairs == REPEATS and found.outcome is RatioOutcome.FASTER
    # The middle of 8 logarithms; their second and seventh cover 1 - 2 (1 + 8) / 2^8.
    assert found.ratio == pytest.approx(math.sqrt(ratios[3] * ratios[4]))
    assert found.interval is not None
    assert found.interval.low == pytest.approx(ratios[1])
    assert found.interval.high == pytest.approx(ratios[-2])
    assert found.interval.coverage == pytest.approx(1 - 2 * (1 + 8) / 2**8)
    assert found.interval.low < FACTOR < found.interval.high
    assert found.note == f"in pairs: {REPEATS} of A and B were measured in turn by one job"

    alone = compared([replace(each, launch="") for each in results])
    assert alone.pairs == 0 and alone.outcome is RatioOutcome.UNDECIDED
    assert alone.interval is not None and found.interval is not None
    width, narrow = (i.high - i.low for i in (alone.interval, found.interval))
    assert width > 50 * narrow and alone.interval.low < 1 < FACTOR < alone.interval.high


def test_a_drift_within_pairs_cancels_between_ab_and_ba() -> None:
    """Each run is 1 % slower than the one before it: AB pairs are 1 % low, BA pairs 1 % high."""
    results = runs()
    speeds = [
        500 * 0.99**place * (FACTOR if run.run.case == B else 1)
        for place, run in enumerate(results)
    ]
    steady = [
        replace(ok(B if run.run.case == B else A, run.run.repeat, speed), launch=run.launch)
        for run, speed in zip(results, speeds)
    ]
    found = compared(steady)
    assert found.ratio == pytest.approx(FACTOR)
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == pytest.approx(
        (FACTOR * 0.99, FACTOR / 0.99)
    )


def test_a_run_that_lost_its_partner_is_left_out_and_named() -> None:
    results = runs()
    lost = next(each for each in results if each.run.case == B and each.run.repeat == 3)
    results.remove(lost)
    # A rerun has a job of its own, in another hour.
    results.append(ok(B, 3, 3 * lost.rates["samples/s"]))
    found = compared(results)
    kept = sorted(FACTOR * (1 + noise) for noise in [*NOISE[:2], *NOISE[3:]])
    assert found.pairs == 7 and found.ratio == pytest.approx(kept[3])
    assert found.note.endswith("no partner in their job: 1 of A, 1 of B")
    assert found.a is not None and found.a.counted == found.b.counted == 8  # type: ignore[union-attr]


def test_pairs_of_several_jobs_and_of_one_pair() -> None:
    halves = runs("7_0.0", last=4) + runs("7_1.0", first=5)
    assert compared(halves).pairs == REPEATS
    assert compared(halves).interval == compared(runs()).interval
    # The second job was requeued: what it measured before that has no partner behind it.
    single = compared(runs(last=1))
    assert (single.pairs, single.interval) == (1, None)
    assert single.outcome is RatioOutcome.TOO_FEW and "one pair has no interval" in single.note


def test_sides_put_together_keep_their_pairs() -> None:
    first, second = subjects(runs("7_0.0", last=4)), subjects(runs("9_0.0", first=5))
    both: list[Subject] = pooled([first, second])
    found = compare(both, both, across=["tags"]).cases[0]
    assert (found.pairs, found.interval) == (REPEATS, compared(runs()).interval)
    apart = compare(first, second, across=["tags"]).cases[0]
    assert apart.pairs == 0  # other jobs


def test_jobs_of_one_number_in_two_directories_are_two_jobs() -> None:
    """Two schedulers count from 1, and so does each local queue."""
    here, there = (
        subjects([replace(each, log=f"{root}/{each.run.id}.log") for each in runs()])
        for root in ("logs/x", "logs/y")
    )
    assert compare(here, there, across=["tags"]).cases[0].pairs == 0
    assert compare(here, here, across=["tags"]).cases[0].pairs == REPEATS


def test_what_people_and_programs_read_of_pairs() -> None:
    sides = subjects(runs())
    comparison = compare(sides, sides, across=["tags"])
    text = comparison_markdown(comparison, {"A": ["x"], "B": ["x"]})
    assert "8/8 runs, in 8 pairs: the CI covers" in text
    (row, _) = comparison_json(comparison, {"A": ["x"], "B": ["x"]})["cases"]
    assert row["pairs"] == 8 and row["ratio"] == compared(runs()).ratio


def test_a_report_sets_options_side_by_side_in_pairs() -> None:
    results = [
        replace(ok(case(), run.run.repeat, run.rates["samples/s"]), launch=run.launch)
        if run.run.case == A
        else run
        for run in runs()
    ]
    (row,) = as_json(Report("x", results))["switches"]
    ratios = sorted(FACTOR * (1 + noise) for noise in NOISE)
    assert row["pairs"] == REPEATS
    assert row["ratio"] == pytest.approx(math.sqrt(ratios[3] * ratios[4]))
    # 95 %: the smallest and the largest of 8 cover 99.2 %, the next ones 93 %.
    assert (row["ratio_low"], row["ratio_high"]) == pytest.approx((ratios[0], ratios[-1]))
    (alone,) = as_json(Report("x", [replace(run, launch="") for run in results]))["switches"]
    assert alone["pairs"] is None and alone["ratio_low"] < 1 < alone["ratio_high"]
