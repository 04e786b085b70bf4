"""The page of a history in a real browser: time axis, changes with their causes, filters, print."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from browser import Browser
from report_samples import case, oks

from dlperf_hpc.analysis.trends import History, Measurement, history, measurements
from dlperf_hpc.reporting.page import history_page, render

NOW = datetime(2026, 6, 1, tzinfo=timezone.utc)
HOSTILE = "<b onclick=x>&amp;"


def weeks(levels: Sequence[float], dated: bool = True, **changes: Any) -> list[Measurement]:
    """A measurement of three runs each week; the driver changes where the level falls first."""
    found: list[Measurement] = []
    for week, level in enumerate(levels):
        day = (datetime(2026, 1, 5, 10) + timedelta(weeks=week)).isoformat() if dated else ""
        driver = "575.51" if min(levels[: week + 1]) < 0.97 * levels[0] else "570.86"
        results = [
            replace(run, started=day and f"{day}Z", facts={"drivers": [driver]})
            for run in oks(case("2n4g", **changes), level, level * 1.001, level * 0.999)
        ]
        found += measurements(f"week{week}", results)
    return found


def many() -> list[Measurement]:
    """20 cases of 16 weeks; the third falls by 6 %, the fourth rises by 4 %, the fifth is odd."""
    draw, found = random.Random(1), []
    for number in range(20):
        levels = [1000 * draw.gauss(1, 0.002) for _ in range(16)]
        if number == 2:
            levels[8:] = [0.94 * level for level in levels[8:]]
        if number == 3:
            levels[5:] = [1.04 * level for level in levels[5:]]
        if number == 4:
            levels[9] *= 0.8
        found += weeks(levels, batch_size=2 + number)
    return found


def written(place: Path, found: History, source: str = "logs") -> Path:
    path = place / "history.html"
    path.write_bytes(render(history_page.page(found, source)))
    return path


def test_what_got_slower_comes_first_with_its_cause(tmp_path: Path, chromium: Browser) -> None:
    path = written(tmp_path, history(many(), NOW))
    chromium.open(path, width=1280, height=800)
    first = chromium.texts("#t-changes tbody tr:first-child td")
    assert "bz4" in first[0] and first[1:3] == ["slower", "-6.0 %"]
    assert first[3].startswith("2026-03-02") and "driver 570.86 -> 575.51" in first[4]
    assert "bz4" in chromium.texts("#t-cases tbody tr:first-child td")[0]
    assert chromium.texts("#drawn") == ["12 of 20 cases are drawn; slower ones come first."]
    bottom = chromium.run(
        "return document.querySelector('#live svg').getBoundingClientRect().bottom"
    )
    assert bottom <= 800  # the figure is in the first screen
    marks = "#live .mark-symbol path"
    drawn = chromium.run(f"return document.querySelectorAll('{marks}').length")
    assert drawn == 12 * 16 + 3  # two changes and an odd one
    assert any(text.startswith("Feb") for text in chromium.texts("#live .role-axis-label text"))
    chromium.run("document.querySelector('#all').click()")
    chromium.wait(f"document.querySelectorAll('{marks}').length === {20 * 16 + 3}")


def test_hover_and_filters(tmp_path: Path, chromium: Browser) -> None:
    path = written(tmp_path, history(many(), NOW))
    chromium.open(path, "#find=bz4%2F", width=1280, height=800)
    assert chromium.texts("#shown")[0].startswith("1 of 20 cases")
    assert len(chromium.texts("#t-changes tbody tr")) == 1
    chromium.run(
        "const marks = document.querySelectorAll('#live .mark-symbol path'), box ="
        " marks[8].getBoundingClientRect(), at = {clientX: box.x + box.width / 2, clientY: box.y"
        " + box.height / 2, bubbles: true}; for (const kind of ['pointermove', 'mousemove'])"
        " marks[8].dispatchEvent(new PointerEvent(kind, at))"
    )
    chromium.wait("document.querySelector('#tip')")
    (tip,) = chromium.texts("#tip")
    assert "week8" in tip and "2026-03-02 10:00" in tip and "driver 570.86 -> 575.51" in tip


@pytest.mark.parametrize("dated", [True, False])
def test_without_scripts_and_on_a_phone(tmp_path: Path, chromium: Browser, dated: bool) -> None:
    levels = [1000.0, 1001.0, 999.0, 1000.5, 930.0, 931.0, 929.0, 930.5]
    found = history(weeks(levels, dated, model=HOSTILE), NOW)
    path = written(tmp_path, found, HOSTILE)
    chromium.open(path, width=390, height=844, scripts=False)
    chromium.command("Emulation.setScriptExecutionDisabled", value=False)
    assert HOSTILE in chromium.texts("h1")[0]
    assert chromium.run("return document.querySelector('#still svg').getBoundingClientRect().width")
    (title,) = chromium.run(
        "return [...document.querySelectorAll('#still title')].map(e => e.textContent)"
    )
    assert title.endswith(": slower")
    chromium.open(path, width=390, height=844)
    assert chromium.run("return document.documentElement.scrollWidth") <= 390
    axis = chromium.texts("#live .role-axis-title text")
    assert ("measurement" in axis) != dated
    assert not chromium.run("return document.querySelector('b[onclick]')")
