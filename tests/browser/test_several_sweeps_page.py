"""The page of three sweeps in a real browser: their colours, filters, and in what they differ."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from browser import Browser
from page_samples import curve
from several_sweeps import CPUS, three_sweeps

from dlperf_hpc.cli import report as report_verb
from dlperf_hpc.model.result import SweepSource
from dlperf_hpc.reporting.contents import Report
from dlperf_hpc.reporting.writers.builtin import page as page_of


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("several")
    argv = [*map(str, three_sweeps(place)), "--out", str(place / "out"), "--no-cache"]
    report_verb.main([*argv, "--write", "html"])
    return place / "out" / "report.html"


def colours(chromium: Browser, by: str) -> list[str]:
    """The colours of the marks that are drawn of series, in the order of the legend, which has the
    same, by a choice of the menu."""
    chromium.run(
        "const s = document.querySelector('#menus [name=colour]');"
        "s.value = arguments[0]; s.dispatchEvent(new Event('input', {bubbles: true}))",
        by,
    )
    chromium.wait(
        "[...document.querySelectorAll('#legend li path:nth-child(2)')].every(mark =>"
        " document.querySelector(`#live-1 svg path[fill='${mark.getAttribute('fill')}']`))"
    )
    found: list[str] = chromium.run(
        "return [...document.querySelectorAll('#legend li path:nth-child(2)')]"
        ".map(p => p.getAttribute('fill'))"
    )
    return found


def test_colours_are_those_of_sweeps_at_first(tmp_path: Path, chromium: Browser) -> None:
    """Two series of three sweeps: three colours by sweep, two by batch size, six by series."""
    sweeps = [SweepSource(name, name) for name in ("may", "june", "july")]
    runs = [
        replace(run, sweep=sweep.name)
        for sweep in sweeps
        for batch in (16, 32)
        for run in curve(("1n1g", "1n2g"), repeats=2, batch_size=batch)
    ]
    (tmp_path / "page.html").write_bytes(page_of(Report("x", runs, sweeps=sweeps)))
    chromium.open(tmp_path / "page.html", width=1280, height=800)
    assert chromium.run("return document.querySelector('#menus [name=colour]').value") == "sweep"
    by_sweep = colours(chromium, "sweep")  # of july, june and may with either batch size
    assert len({*by_sweep}) == 3 and by_sweep[:3] == by_sweep[3:]
    assert len({*colours(chromium, "batch size")}) == 2 and len({*colours(chromium, "")}) == 6


def test_three_sweeps_are_told_apart(page: Path, chromium: Browser) -> None:
    chromium.open(page, width=1280, height=800)
    first = chromium.run("return document.querySelector('.card.first').textContent")
    assert "Different CPU: may EPYC 7742, june and july EPYC 9654" in " ".join(first.split())
    rows = chromium.run(
        "return [...document.querySelectorAll('#t-differs tr')]"
        ".map(tr => [...tr.children].map(td => td.textContent.trim()))"
    )
    assert rows[0] == ["what", *CPUS] and rows[1] == ["CPU", *CPUS.values()]
    hidden = chromium.run(
        "const box = document.querySelector('fieldset[data-key=sweep] input[value=may]');"
        "box.checked = false; box.dispatchEvent(new Event('input', {bubbles: true}));"
        "return [...document.querySelectorAll('#t-cases tbody tr')]"
        ".filter(tr => !tr.hidden).map(tr => tr.children[0].textContent.trim())"
    )
    assert sorted({*hidden}) == ["july", "june"] and len(hidden) == 6
