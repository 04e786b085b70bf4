"""History: causes beside an uncertain step, changes of noise, all measurements in the trend."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from statistics import median

from report_samples import case, oks

from dlperf_hpc.analysis.trends import History, Measurement, history, measurements
from dlperf_hpc.reporting.trend_tables import history_json, history_tables, sentences, sparkline

NOW = datetime(2026, 6, 1, tzinfo=timezone.utc)
OLD, NEW = ({"drivers": [driver], "world": {"hosts": ["n1"]}} for driver in ("570.86", "575.51"))


def told(found: Sequence[Measurement]) -> History:
    return history(found, NOW)


def day(week: int) -> str:
    return (datetime(2025, 5, 1, tzinfo=timezone.utc) + timedelta(weeks=week)).strftime("%F")


def weekly(levels: Sequence[float], driver_from: int) -> list[Measurement]:
    """A measurement of three runs a week; the driver is another one from a week on."""
    made = []
    for week, level in enumerate(levels):
        facts = NEW if week >= driver_from else OLD
        runs = oks(case("2n4g"), level, level * 1.001, level * 0.999)
        runs = [replace(each, started=f"{day(week)}T10:00:00Z", facts=facts) for each in runs]
        made += measurements(f"week{week}", runs)
    return made


def test_a_driver_that_changed_a_week_away_is_named_as_near() -> None:
    """The first week of the new driver happened to be as fast as the old ones' middle."""
    levels = [1000.0, 990.0, 1010.0, 1004.0, 981.0, 962.0, 955.0, 966.0, 958.0, 960.0]
    (trend,) = told(weekly(levels, driver_from=4)).trends
    (change,) = trend.changes
    assert change.step.at == 5 and change.step.near == (4,)
    assert not change.cause.differences and [*change.near] == [4]
    (text,) = sentences(trend)
    assert "changed since 2025-05-29 (week4): nothing that the logs tell of" in text
    assert (
        "near, for it may have begun with 2025-05-29 (week4): changed since 2025-05-22 (week3):"
        " driver 570.86 -> 575.51" in text
    )
    (found,) = history_json(told(weekly(levels, 4)))["cases"][0]["changes"]
    assert found["near"] == [
        {"at": 4, "changed": [{"what": "driver", "before": ["570.86"], "after": ["575.51"]}]}
    ]


def test_a_driver_far_from_a_clear_step_is_not_named() -> None:
    levels = [1000.0, 1003.0, 998.0, 1001.0, 961.0, 958.0, 963.0, 960.0]
    (trend,) = told(weekly(levels, driver_from=6)).trends
    (change,) = trend.changes
    assert change.step.at == 4 and not change.step.near and not change.near
    assert "575.51" not in " ".join(sentences(trend))


def test_the_truth_is_within_the_places_named_in_nineteen_of_twenty() -> None:
    """150 made series of 16 measurements, a step of 4 %, 1.2 % of noise."""
    chance, right, found = random.Random(7), 0, 0
    for _ in range(150):
        at = chance.randint(3, 13)
        levels = [1000 * (0.96 if n >= at else 1) * (1 + chance.gauss(0, 0.012)) for n in range(16)]
        (trend,) = told(weekly(levels, driver_from=at)).trends
        for change in trend.changes:
            if not change.step.suspected and len(trend.changes) == 1:
                found += 1
                right += at in (change.step.at, *change.step.near)
    print(right, found)
    assert found > 75 and right / found > 0.9


def noisy(noises: Sequence[float], chance: random.Random, runs: int = 6) -> list[Measurement]:
    """A measurement a week, of runs with so much noise, at one level."""
    made = []
    for week, noise in enumerate(noises):
        results = oks(case(), *(1000 * (1 + chance.gauss(0, noise)) for _ in range(runs)))
        dated = [replace(each, started=f"{day(week)}T10:00:00Z") for each in results]
        made += measurements(f"week{week}", dated)
    return made


def test_a_change_of_noise_is_told_and_even_noise_is_not() -> None:
    chance = random.Random(11)
    named = [
        history(noisy([0.002] * 8 + [0.012] * 8, chance), NOW).trends[0] for _ in range(40)
    ]  # fmt: skip
    assert sum(trend.verdicts == ("noisier",) for trend in named) >= 36
    assert sum(abs(t.noises[0].step.at - 8) <= 1 for t in named if t.noises) >= 36
    assert "noise: runs" in " ".join(sentences(named[0]))
    even = [history(noisy([0.004] * 16, chance), NOW).trends[0] for _ in range(100)]
    assert sum(bool(trend.noises) for trend in even) <= 5


def test_all_measurements_are_in_the_trend_the_oldest_thinned() -> None:
    levels = [1000.0] * 44 + [1000.0 + 10 * n for n in range(10)]
    bars = sparkline(levels)
    assert len(bars) == 20 and bars[:10] == "▁" * 10
    assert [*bars[10:]] == sorted(bars[10:]) and bars[-1] == "█"
    older = [float(n) for n in range(44)]
    shared = [median(older[44 * n // 10 : 44 * (n + 1) // 10]) for n in range(10)]
    assert sparkline([*older, *[50.0] * 10])[:10] == sparkline([*shared, 50.0])[:10]
    (table,) = history_tables(told(weekly(levels, 99)))
    assert [*table.fitting(80).columns] == [*table.columns]
