"""What one sees of a report's page before one scrolls, in pixels of a real browser: the figure, and
what it leaves out, whatever the sweep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import page_samples
import pytest
from browser import Browser
from report_samples import case, oks

from dlperf_hpc.model.result import RunResult
from dlperf_hpc.reporting.contents import Report
from dlperf_hpc.reporting.writers.builtin import page

SCREENS = [(1280, 800), (390, 844)]
LONG = "x" * 300
MOST_BYTES = 5_000_000


def flagged(runs: list[RunResult]) -> list[RunResult]:
    """Every run has a flag of its window, some have several."""
    found = []
    for n, run in enumerate(runs):
        assert run.window is not None
        window = replace(
            run.window, steady=False, recompiles=n % 2, graph_breaks=n % 3, loss_first=None,
            elapsed_s=run.window.elapsed_s * (1.3 if n % 23 == 0 else 1),
        )  # fmt: skip
        found.append(replace(run, window=window))
    return found


def swept(repeats: int, batches: tuple[int, ...]) -> list[RunResult]:
    """Four series on five topologies for each batch size."""
    return [
        run
        for batch in batches
        for precision in ("fp32", "bf16")
        for tags in ((), ("compile",))
        for run in page_samples.curve(
            repeats=repeats, batch_size=batch, precision=precision, tags=tags
        )
    ]


REPORTS: dict[str, Callable[[], Report]] = {
    "10 runs": lambda: Report("ten", flagged(page_samples.curve(repeats=2))),
    "480 runs": page_samples.many_series,
    "10000 runs": lambda: Report("all", flagged(swept(100, (8, 16, 32, 48, 64))), site="Site"),
    "long names": lambda: Report(LONG, flagged(oks(case(model=LONG), 1.0) + oks(case("1n2g"), 2))),
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("first-screen")
    files = {name: place / f"{name}.html" for name in REPORTS}
    for name, made in REPORTS.items():
        files[name].write_bytes(page(made()))
    return files


def box(chromium: Browser, what: str) -> dict[str, float]:
    """Where the first such element lies in the window, in pixels."""
    found: dict[str, float] = chromium.run(
        "const b = document.querySelector(arguments[0]).getBoundingClientRect();"
        "return {top: b.top, bottom: b.bottom, left: b.left, right: b.right}",
        what,
    )
    return found


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("size", SCREENS, ids=lambda size: f"{size[0]} px")
def test_the_figure_is_in_the_first_screen(
    chromium: Browser, pages: dict[str, Path], name: str, size: tuple[int, int]
) -> None:
    """All of it on a desk, the first panel on a phone; above it stands what it leaves out."""
    width, height = size
    chromium.open(pages[name], width=width, height=height)
    first = box(chromium, "#live-0 svg")
    assert first["top"] > 0 and first["bottom"] <= height
    assert first["bottom"] - first["top"] >= 200 and first["right"] <= width
    assert box(chromium, "#drawn")["bottom"] <= first["top"]
    if width == SCREENS[0][0]:
        assert box(chromium, "#live")["bottom"] <= height
    assert chromium.run("return document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scripts", [True, False])
def test_the_page_of_many_runs_is_small_and_opens_with_the_efficiency(
    chromium: Browser, pages: dict[str, Path], scripts: bool
) -> None:
    assert pages["10000 runs"].stat().st_size <= MOST_BYTES
    chromium.open(pages["10000 runs"], width=1280, height=800, scripts=scripts)
    if not scripts:
        chromium.command("Emulation.setScriptExecutionDisabled", value=False)
        still = box(chromium, "#still svg")
        assert still["top"] < 400
        assert {"efficiency", "samples/s per device"} <= {*chromium.texts("#still text")}
        return
    titles = chromium.texts("#live .role-axis-title text")
    assert titles[0] in ("efficiency", "devices, over all nodes") and "efficiency" in titles
    assert chromium.texts("#drawn") == ["All 20 series are drawn."]
    names = chromium.texts("#live-0 .role-mark.mark-text text")
    assert {"bz8/bf16", "bz64/bf16-compile"} <= {*names} and len(names) == 10
    heights = chromium.run(
        "return [...document.querySelectorAll('#live-0 .role-mark.mark-text text')]"
        ".map(e => e.getBoundingClientRect().top).sort((a, b) => a - b)"
    )
    assert min(b - a for a, b in zip(heights, heights[1:])) >= 10  # no name covers another


def test_efficiency_is_never_logarithmic(chromium: Browser, pages: dict[str, Path]) -> None:
    """Its marks keep their places while the throughput beside it changes its axis."""
    chromium.open(pages["10 runs"], "#quantity=efficiency&beside=samples/s")
    places = "return [...document.querySelectorAll(arguments[0] + ' .mark-symbol:last-of-type path')].map(e => e.getBoundingClientRect().y)"  # noqa: E501

    def marks() -> tuple[Any, Any]:
        return chromium.run(places, "#live-0"), chromium.run(places, "#live-1")

    before = marks()
    chromium.open(pages["10 runs"], "#quantity=efficiency&beside=samples/s&y=log")
    after = marks()
    assert len(after[0]) == 5 and after[0] != before[0][::-1]
    chromium.open(pages["10 runs"], "#quantity=efficiency&beside=samples/s&y=zero")
    from_zero = marks()
    assert after[0] == pytest.approx(from_zero[0], abs=1)
    assert after[1] != pytest.approx(from_zero[1], abs=1)
    steps = [a - b for a, b in zip(after[1], after[1][1:])]
    assert max(steps) < 2 * min(steps)  # doubled throughputs: equal steps of a logarithm


def test_each_flag_has_one_folded_row(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.open(pages["10000 runs"], width=1280, height=800)
    rows = chromium.texts("#remarks summary .flag")
    assert len(rows) == len({*rows}) >= 5 and "unsteady" in rows
    (unsteady,) = (t for t in chromium.texts("#remarks summary") if t.startswith("unsteady"))
    assert "100 of 100 cases" in unsteady
    assert chromium.texts("#remarks details li") == []
    chromium.run("document.querySelector('#remarks summary').click()")
    assert chromium.texts("#remarks details li")


def test_what_one_decides_by_is_seen_in_the_table(
    chromium: Browser, pages: dict[str, Path]
) -> None:
    chromium.open(pages["10000 runs"], width=1280, height=800)
    heads = chromium.run(
        "return [...document.querySelectorAll('#t-cases th')].filter(e => e.checkVisibility())"
        ".map(e => [e.querySelector('button').textContent, e.getBoundingClientRect().right])"
    )
    names = [name for name, _ in heads]
    assert names[:4] == ["series", "topology", "efficiency", "speedup"]
    assert "tokens/s" not in names and "devices" not in names
    assert all(right <= 1280 for _, right in heads[:5])
    cells = chromium.texts("#t-cases td")
    assert any("\u202f" in text for text in cells)  # thousands are apart
    chromium.run("document.querySelector('#cases .columns').click()")
    assert {"tokens/s", "devices"} <= {*chromium.texts("#t-cases th button")}


def test_long_names_wrap(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.open(pages["long names"], width=1280, height=800)
    found = chromium.run(
        "const e = [...document.querySelectorAll('#t-cases td')].find(e => e.textContent.includes("
        "'xxx')); return [e.textContent, e.scrollWidth - e.clientWidth, e.clientHeight]"
    )
    assert LONG in found[0] and found[1] <= 1 and found[2] > 60


def test_a_search_that_finds_nothing_says_so(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.open(pages["480 runs"], "#find=nowhere")
    assert chromium.texts("#cases .nothing, #runs .nothing") == [
        "Nothing matches the filters."
    ] * 2  # fmt: skip
    assert chromium.texts("#told") == ["Nothing matches the filters."]
    assert "nothing matches" in chromium.texts("#shown")[0]
    chromium.run("document.querySelector('#reset').click()")
    chromium.wait("document.querySelector('#live-0 svg')")
    assert chromium.texts(".nothing") == []


def test_a_table_can_be_skipped(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.open(pages["480 runs"], width=1280, height=800)
    chromium.run("document.querySelector('#runs a.skip').focus()")
    assert box(chromium, "#runs a.skip")["left"] >= 0
    chromium.run("document.activeElement.click()")
    assert chromium.run("return location.hash") == "#past-runs"
    chromium.wait("document.querySelector('#past-runs').getBoundingClientRect().top < innerHeight")
