"""The page on paper: how many pages runs take of A4 and Letter, and what a reader finds there."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import page_samples
import pytest
from browser import Browser

from dlperf_hpc.reporting.writers.builtin import page

PAPER = {"A4": (210.0, 297.0), "Letter": (215.9, 279.4)}  # mm
MARGIN = 10.0
PX = 96 / 25.4  # of a mm
TABLES = """
const right = e => e.getBoundingClientRect().right;
return [...document.querySelectorAll('table')].filter(t => t.checkVisibility()).map(t => ({
  name: t.id, beyond: right(t) - right(t.closest('.card')),
  narrowest: Math.min(...[...t.querySelectorAll('th:first-child, td.long')]
    .filter(e => e.checkVisibility()).map(e => e.offsetWidth)),
}))"""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """473 runs of 80 cases."""
    report = page_samples.many_series(repeats=6)
    assert len(report.runs) > 450
    file = tmp_path_factory.mktemp("paper") / "many.html"
    file.write_bytes(page(report))
    return file


@pytest.mark.parametrize("paper", PAPER)
def test_many_runs_take_ten_pages(chromium: Browser, many: Path, paper: str) -> None:
    short, long = PAPER[paper]
    width, height = ((side - 2 * MARGIN) * PX for side in (long, short))
    chromium.open(many, width=int(width), height=int(height))
    made = chromium.command(
        "Page.printToPDF", printBackground=True, preferCSSPageSize=True,
        paperWidth=short / 25.4, paperHeight=long / 25.4,
    )  # fmt: skip
    pdf = base64.b64decode(made["data"])
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 10
    (box,) = {*re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", pdf)}  # points, landscape
    assert [float(side) * 25.4 / 72 for side in box] == pytest.approx([long, short], abs=0.5)
    chromium.command("Emulation.setEmulatedMedia", media="print")
    tables = chromium.run(TABLES)
    runs = chromium.run(
        "return [...document.querySelectorAll('#t-runs tbody tr')]"
        ".filter(e => e.checkVisibility()).map(e => e.className)"
    )
    chromium.command("Emulation.setEmulatedMedia", media="")
    assert {each["name"] for each in tables} >= {"t-cases", "t-time", "t-runs"}
    for each in tables:
        assert each["beyond"] <= 0, each
        assert each["narrowest"] >= 25 * PX - 1, each
    assert runs == ["bad"] * 3  # on paper only what does not count, which the title says
    assert chromium.messages() == []


def test_few_runs_are_all_on_paper(chromium: Browser, tmp_path: Path) -> None:
    report = page_samples.few_series()
    (tmp_path / "few.html").write_bytes(page(report))
    chromium.open(tmp_path / "few.html")
    chromium.command("Emulation.setEmulatedMedia", media="print")
    shown = chromium.run(
        "return [...document.querySelectorAll('#t-runs tbody tr')].filter(e => e.checkVisibility())"
        ".length"
    )
    chromium.command("Emulation.setEmulatedMedia", media="")
    assert shown == len(report.runs)
