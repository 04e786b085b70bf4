"""Lines of many ranks and many runs: which belong to one run, and in which order."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st
from reading_samples import reading, steps

from dlperf_hpc.logs.interpret.segments import MOST, Segment, segments_of
from dlperf_hpc.logs.scanned import Stamps, Total


def cut(*iterations: int) -> list[Segment]:
    return segments_of(reading(steps(iterations)))


def numbers(segment: Segment) -> list[int]:
    return [step.iteration for step in segment.steps]


def test_a_plain_run_is_one_segment() -> None:
    (only,) = cut(*range(1, 121))
    assert numbers(only) == list(range(1, 121))
    assert (only.ranks, only.after, only.notes) == (1, 0, ())


def test_of_repeats_the_last_counts_and_the_lines_stay() -> None:
    (only,) = cut(1, 1, 1, 1, 1, 10, 20, 30)
    assert [step.line for step in only.steps] == [5, 6, 7, 8]
    assert len(only.lines) == 8, "a rule by lines counts them as they stand"
    assert "4 lines repeat" in only.notes[0]


def test_the_rank_with_most_lines_speaks_and_the_lowest_of_several() -> None:
    mixed = [
        *steps(range(1, 11), rank=2),
        *steps(range(1, 13), rank=1, line=20),
        *steps(range(1, 13), rank=0, line=40),
    ]
    random.Random(1).shuffle(mixed)
    by_line = sorted(mixed, key=lambda s: (s.iteration, s.rank))
    lines = [s._replace(line=i) for i, s in enumerate(by_line, 1)]
    (only,) = segments_of(reading(lines))
    assert (only.steps[0].rank, only.ranks, len(only.steps), len(only.everyone)) == (0, 3, 12, 34)


def test_untagged_ranks_side_by_side_are_one_run() -> None:
    (only,) = cut(1, 1, 2, 1, 2, 2, 3, 3, 3, 4, 4, 5, 4, 5, 6, 5, 6, 6)
    assert numbers(only) == [1, 2, 3, 4, 5, 6]
    assert only.ranks == 3 and not any("repeat" in note for note in only.notes)
    assert only.steps[0].line == 4, "the last rank's"
    assert "3 times" in only.notes[0]


def test_untagged_ranks_in_blocks_are_told_by_their_stamps() -> None:
    blocks = [n for start in (1, 41) for _ in range(2) for n in range(start, start + 40)]
    (only,) = segments_of(reading(steps(blocks, stamp=lambda n: 1e9 + n)))
    assert numbers(only) == list(range(1, 81))
    assert only.ranks == 2


def test_runs_appended_to_one_file() -> None:
    first, second, third = cut(*range(1, 121), *range(1, 121), *range(1, 31))
    assert [len(s.steps) for s in (first, second, third)] == [120, 120, 30]
    assert [s.number for s in (first, second, third)] == [1, 2, 3]
    assert second.notes == (
        "run 2 of 3 in this file: it begins at line 121, where iteration 120 is followed by 1",
    )
    assert first.holds(0) is False and first.holds(1) and first.holds(120)
    assert not first.holds(121) and second.holds(121) and third.holds(10**6)


def test_a_requeued_run_goes_on_from_its_checkpoint() -> None:
    first, second = cut(*range(10, 510, 10), *range(410, 700, 10))
    assert numbers(first)[-1] == 500
    assert (numbers(second)[0], second.after, first.after) == (410, 400, 0)


def test_short_runs_that_crashed_are_not_taken_for_ranks() -> None:
    segments = cut(1, 2, 3, 1, 2, 3, 4, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
    assert [numbers(s)[-1] for s in segments] == [3, 4, 11]


def test_a_second_run_without_date_after_an_earlier_time_of_day() -> None:
    late = steps(range(1, 51), stamp=lambda n: 64800.0 + n)
    early = steps(range(1, 51), stamp=lambda n: 32400.0 + n, line=51)
    assert len(segments_of(reading([*late, *early], stamps=Stamps.TIME_ONLY))) == 2


def test_one_damaged_number_does_not_part_a_run() -> None:
    for odd in (912, 3):
        (only,) = cut(*range(1, 60), odd, *range(61, 121))
        assert len(only.steps) == 119
        assert "1 lines whose iteration is out of order" in only.notes[0]


def test_totals_go_to_the_run_they_follow() -> None:
    lines = steps([*range(1, 31), *range(1, 31)])
    totals = [Total(30, "t", 1.0), Total(70, "t", 2.0)]
    first, second = segments_of(reading(lines, totals))
    assert [t.value for t in first.totals + second.totals] == [1.0, 2.0]
    assert (len(first.totals), len(second.totals)) == (1, 1)


def test_no_steps_is_one_empty_run() -> None:
    (only,) = segments_of(reading([], [Total(7, "t", 1.0)]))
    assert only.steps == () and len(only.totals) == 1


def test_disorder_has_an_end() -> None:
    shuffled = [n % 997 * 100 for n in range(0, 300_000, 3)]
    assert len(cut(*shuffled)) <= MOST


@given(st.lists(st.integers(0, 40), max_size=60))
def test_any_order_gives_rising_steps_and_loses_no_line_unsaid(iterations: list[int]) -> None:
    for segment in cut(*iterations):
        seen = numbers(segment)
        assert seen == sorted(set(seen))
        assert all(segment.holds(step.line) for step in segment.everyone)
    assert sum(len(s.everyone) for s in cut(*iterations)) == len(iterations)
