"""Measurements in the order of time: which ones count, and what is told as the cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from report_samples import case, oks

from dlperf_hpc.analysis.trends import History, Measurement, history, measurements, since

NOW = datetime(2026, 6, 1, tzinfo=timezone.utc)
LEVELS = (1000.0, 1003.0, 998.0, 1001.0, 961.0, 958.0, 963.0, 960.0)


def measured(
    place: str, day: str, level: float, facts: dict[str, Any] | None = None, **changes: Any
) -> list[Measurement]:
    """Three runs of one case on a day; '' for a log that tells no date."""
    results = [
        replace(each, started=f"{day}T10:00:0{each.run.repeat}Z" if day else "", facts=facts or {})
        for each in oks(case("2n4g", **changes), level, level * 1.001, level * 0.999)
    ]
    return measurements(place, results)


def weeks(levels: Sequence[float], *facts: dict[str, Any]) -> list[Measurement]:
    return [
        each
        for n, level in enumerate(levels)
        for each in measured(
            f"week{n}", f"2026-05-{3 * n + 1:02d}", level, facts[n] if facts else {}
        )
    ]


def told(found: Sequence[Measurement]) -> History:
    return history(found, NOW)


def setup(driver: str, *hosts: str) -> dict[str, Any]:
    return {"drivers": [driver], "world": {"hosts": list(hosts)}, "provenance": {"kernel": "6.1"}}


def test_a_step_with_the_driver_that_changed_then() -> None:
    old, new = setup("570.86", "n1", "n2"), setup("575.51", "n2", "n3")
    found = told(weeks(LEVELS, *[old] * 4, *[new] * 4))
    (trend,) = found.trends
    assert trend.verdicts == ("slower",) and len(trend.measurements) == 8 and not found.remarks
    (change,) = trend.changes
    assert change.step.at == 4 and trend.measurements[4].day == "2026-05-13"
    (driver,) = change.cause.differences
    assert (driver.what, driver.a, driver.b) == ("driver", ("570.86",), ("575.51",))
    assert change.cause.nodes == (1, 3) and not change.cause.settings


def test_variables_that_were_set_then_are_told() -> None:
    """Not those that a launcher sets for each job; a log that tells no variables says nothing."""
    old, new = ({"provenance": {"env": env}} for env in (
        {"OMP_NUM_THREADS": "2", "SLURM_JOB_ID": "1", "CUDA_VISIBLE_DEVICES": "0"},
        {"OMP_NUM_THREADS": "16", "MKL_CBWR": "AVX2", "SLURM_JOB_ID": "2"},
    ))  # fmt: skip
    (trend,) = told(weeks(LEVELS, *[old] * 4, *[new] * 4)).trends
    found = [(each.what, each.a, each.b) for each in trend.changes[0].cause.differences]
    assert found == [
        ("MKL_CBWR", ("not set",), ("AVX2",)), ("OMP_NUM_THREADS", ("2",), ("16",))
    ]  # fmt: skip
    (trend,) = told(weeks(LEVELS, *[old] * 4, *[{"provenance": {}}] * 4)).trends
    assert not trend.changes[0].cause.differences
    (trend,) = told(weeks(LEVELS, *[{"provenance": {"env": {}}}] * 4, *[new] * 4)).trends
    assert len(trend.changes[0].cause.differences) == 2


def test_the_order_is_that_of_time_and_not_of_the_places() -> None:
    forward = weeks(LEVELS)
    assert told(forward).trends[0].measurements == told(forward[::-1]).trends[0].measurements


def test_an_archive_beside_its_sweep_is_counted_once() -> None:
    found = weeks(LEVELS)
    again = [replace(found[2], place="week2.zip")]
    both = told([*found, *again])
    assert len(both.trends[0].measurements) == 8
    assert both.remarks == ("week2.zip: has the runs of week2 and was counted once",)


def test_an_archive_from_before_a_sweep_grew_adds_nothing() -> None:
    (whole,) = measured("grown", "2026-05-01", 1000.0)
    part = replace(whole, place="old.zip", runs=dict(sorted(whole.runs.items())[:2]))
    for order in ([whole, part], [part, whole]):
        found = told([*order, *weeks(LEVELS)[1:]])
        assert len(found.trends[0].measurements) == 8
        assert found.trends[0].measurements[0].subject.counted == 3


def test_settings_that_changed_under_one_name_are_told() -> None:
    found = weeks(LEVELS[:4])
    found += measured("longer", "2026-05-20", 960.0, accumulation=4)
    done = told(found)
    (line,) = done.remarks
    assert "accumulation is 1 in week3 and 4 in longer" in line and "different things" in line


def test_clocks_that_cannot_be_right_and_dates_that_are_missing() -> None:
    found = weeks(LEVELS)
    found += measured("ahead", "2031-01-01", 1000.0) + measured("nameless", "", 1000.0)
    done = told(found)
    assert len(done.trends[0].measurements) == 8 and done.dated
    assert any("ahead" in line and "yet to come" in line for line in done.remarks)
    assert any("nameless" in line and "no log tells when" in line for line in done.remarks)


def test_without_any_date_the_order_is_that_of_the_places() -> None:
    found = [m for n, level in enumerate(LEVELS) for m in measured(f"run{n}", "", level)]
    done = told(found)
    assert not done.dated and not done.remarks
    assert [each.place for each in done.trends[0].measurements] == [f"run{n}" for n in range(8)]
    assert done.trends[0].verdicts == ("slower",)


def test_what_changed_before_a_day_is_left_out_and_still_compared_with() -> None:
    done = told(weeks(LEVELS))
    assert since(done, "2026-05-13").trends[0].verdicts == ("slower",)
    later = since(done, "2026-05-14").trends[0]
    assert later.verdicts == ("steady",) and len(later.measurements) == 8


def test_cases_of_which_no_run_counts_are_no_measurement() -> None:
    results = [replace(each, window=None) for each in oks(case("1n1g"), 100.0, 101.0)]
    assert measurements("empty", results) == []
    assert told([]).trends == ()


def test_two_measurements_say_nothing() -> None:
    (trend,) = told(weeks((1000.0, 900.0))).trends
    assert trend.verdicts == ("too few measurements",) and not trend.changes


def test_measurements_that_share_no_unit_are_not_divided_by_one_another() -> None:
    found = weeks(LEVELS)
    odd = replace(found[2].subject, speeds={"GFLOP/s": (5.0, 5.1)})
    done = told([*found[:2], replace(found[2], subject=odd), *found[3:]])
    (trend,) = done.trends
    assert (trend.unit, len(trend.measurements)) == ("samples/s", 7)
    (line,) = done.remarks
    assert line.startswith("week2: ") and "it has GFLOP/s, others have samples/s" in line
