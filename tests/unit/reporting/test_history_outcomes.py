"""The page of a history, without a browser: it has a word for every outcome, and each change its
own cause."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone

from report_samples import case, oks

from dlperf_hpc.analysis.trends import History, history, measurements
from dlperf_hpc.cli.history import FAIL_ON
from dlperf_hpc.reporting.page import Page, history_page

NOW = datetime(2026, 6, 1, tzinfo=timezone.utc)


def weeks(levels: Sequence[float], noises: Sequence[float]) -> History:
    """Six runs each week, at these levels and with so much noise; another driver from week 8 on."""
    chance, found = random.Random(11), []
    for week, (level, noise) in enumerate(zip(levels, noises)):
        day = (datetime(2026, 1, 5, 10) + timedelta(weeks=week)).isoformat()
        facts = {"drivers": ["575.51" if week >= 8 else "570.86"]}
        results = oks(case(), *(level * (1 + chance.gauss(0, noise)) for _ in range(6)))
        dated = [replace(run, started=f"{day}Z", facts=facts) for run in results]
        found += measurements(f"week{week}", dated)
    return history(found, NOW)


def cells(page: Page, section: str) -> list[list[str]]:
    """The texts of a section's table."""
    (table,) = (each.table for each in page.sections if each.name == section)
    assert table is not None
    return [[cell.text for cell in row] for row in table.cells]


def test_every_outcome_of_the_command_has_its_place() -> None:
    assert {*FAIL_ON} - {"changed", "nothing"} <= {*history_page.ORDER}


def test_a_change_of_noise_is_counted() -> None:
    made = history_page.page(weeks([1000.0] * 16, [0.002] * 8 + [0.012] * 8), "logs")
    assert made.counts == (("noisier", 1, ""),)
    (row,) = cells(made, "cases")
    assert "noisier" in row and any("noise: runs" in text for text in row)


def test_a_change_of_level_and_of_noise_in_one_week_stay_apart() -> None:
    levels, noises = [1000.0] * 8 + [900.0] * 8, [0.002] * 8 + [0.012] * 8
    made = history_page.page(weeks(levels, noises), "logs")
    assert [word for word, *_ in made.counts] == ["slower", "noisier"]
    ((_, outcome, change, since, causes),) = cells(made, "changes")
    assert (outcome, since) == ("slower", "2026-03-02 week8") and change.startswith(("-9", "-10"))
    assert causes.startswith("changed since 2026-02-23 (week7): driver 570.86 -> 575.51")
    told = made.data["cases"][0]["points"][8]["told"]
    (text,) = (text for name, text in told if name == "change")
    assert text.count("from 2026-03-02 (week8) on") == 2 and "noise: runs" in text
