"""The pages in a real browser: nothing is fetched, nothing is said on the console, and every
control does what it says. One browser opens them all."""

from __future__ import annotations

import csv
import io
import json
import time
from pathlib import Path
from typing import Any

import page_samples
import pytest
from browser import Browser
from places import BUSY, SUPPORT
from record_samples import a_run, ended_ok
from report_samples import bad, case, oks

from dlperf_hpc.analysis.comparison import compare, subjects
from dlperf_hpc.model.result import Status
from dlperf_hpc.reporting.contents import Report
from dlperf_hpc.reporting.csv_columns import RUN_COLUMNS
from dlperf_hpc.reporting.page import comparison_page, render
from dlperf_hpc.reporting.table import csv_table
from dlperf_hpc.reporting.writers.builtin import page

AXE = SUPPORT / "axe" / "axe.min.js"


@pytest.fixture(scope="module")
def many() -> Report:
    return page_samples.many_series(repeats=2)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, many: Report) -> dict[str, Path]:
    """Every page of these tests, made once."""
    place = tmp_path_factory.mktemp("pages")
    traced = Report("traced", [ended_ok(place / "logs", a_run(repeat=n)) for n in (1, 2)])
    slower = [
        run
        for of in ("1n1g", "1n2g", "1n4g")
        for run in page_samples.measured(
            case(of, framework="ddp", model="bert-base", batch_size=32), 300.0, driver="575.51"
        )
    ]
    sides = subjects(page_samples.curve(batch_size=32)), subjects(slower)
    made = {
        "many": page(many),
        "few": page(page_samples.few_series()),
        "hostile": page(page_samples.hostile()),
        "traced": page(traced),
        "empty": page(Report("empty", [bad(case(), 1, Status.FAILED, "no GPU")])),
        "one": page(Report("one", oks(case(), 42.0))),
        "compare": render(
            comparison_page.page(compare(*sides), {"A": ["may"], "B": ["<b>june</b>"]})
        ),
    }
    files = {name: place / f"{name}.html" for name in made}
    for name, content in made.items():
        files[name].write_bytes(content)
    return files


def number(text: str) -> float:
    """A figure of a table, with or without blanks between its thousands."""
    return float("".join(text.split()))


def choose(chromium: Browser, name: str, value: str) -> None:
    chromium.run(
        "const s = document.querySelector(`#menus select[name=${arguments[0]}]`);"
        "s.value = arguments[1]; s.dispatchEvent(new Event('input', {bubbles: true}))",
        name,
        value,
    )
    settle(chromium)


def settle(chromium: Browser) -> None:
    """Until what was begun is drawn: two frames."""
    chromium.driver.execute_async_script(
        "const done = arguments[0]; setTimeout(() => requestAnimationFrame(() =>"
        " requestAnimationFrame(() => done())), 60)"
    )


def tick(chromium: Browser, what: str) -> None:
    chromium.run("document.querySelector(arguments[0]).click()", what)
    settle(chromium)


def hash_of(chromium: Browser) -> str:
    found: str = chromium.run("return decodeURIComponent(location.hash)")
    return found


def marks(chromium: Browser) -> int:
    """Medians that are drawn of the first quantity: the marks of the last layer."""
    found = chromium.texts("#live .role-mark.mark-symbol:last-of-type path")
    return len(found) // (1 + bool(chromium.texts("#menus") and beside(chromium)))


def beside(chromium: Browser) -> str:
    """The quantity beside the first one."""
    found: str = chromium.run("return document.querySelector('#menus [name=beside]')?.value")
    return found


def overflow(chromium: Browser) -> int:
    """Pixels by which the page is wider than its window."""
    found: int = chromium.run(
        "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )
    return found


@pytest.mark.parametrize("width", [400, 1600])
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", ["few", "compare"])
def test_pages_fit_and_are_accessible(
    chromium: Browser, pages: dict[str, Path], name: str, dark: bool, width: int
) -> None:
    chromium.open(pages[name], width=width, dark=dark)
    assert overflow(chromium) <= 0
    chromium.run(AXE.read_text(encoding="utf-8"))
    found = chromium.driver.execute_async_script(
        "const done = arguments[0]; axe.run({resultTypes: ['violations']}).then(r => done("
        "r.violations.map(v => [v.id, v.impact, v.nodes.slice(0, 2).map(n => n.html)])))"
    )
    assert [each for each in found if each[1] in ("serious", "critical")] == []
    back = chromium.run("return getComputedStyle(document.body).backgroundColor")
    assert (back == "rgb(16, 19, 23)") is dark


@pytest.mark.parametrize("name", ["many", "compare", "hostile"])
def test_without_scripts_there_are_all_tables_and_a_figure(
    chromium: Browser, pages: dict[str, Path], name: str
) -> None:
    """Scripts are off for the page; that they are is seen by what only scripts show."""
    chromium.open(pages[name], width=400, scripts=False)
    texts = chromium.command(
        "DOM.getOuterHTML", nodeId=chromium.command("DOM.getDocument", depth=0)["root"]["nodeId"]
    )["outerHTML"]
    chromium.command("Emulation.setScriptExecutionDisabled", value=False)
    assert '<html lang="en"' in texts and "data-ready" not in texts
    assert texts.count("<title>") > 3  # the page's, and one for each mark of the figure
    assert '<div id="still"><svg' in texts


def test_hostile_names_are_text(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.open(pages["hostile"])
    title = chromium.driver.title
    assert title.startswith(page_samples.HOSTILE[0]) and title != "taken"
    assert (
        chromium.run("return document.querySelectorAll('h1 script, td b, li script').length") == 0
    )
    names = " ".join(chromium.texts("#t-cases td:first-child"))
    for name in page_samples.HOSTILE[:4]:
        assert name in names
    assert "\\u202eright to left" in names and "\u202e" not in names
    assert "\x1b" not in chromium.run("return document.documentElement.outerHTML")


def test_menus_change_the_figure_the_table_and_the_address(
    chromium: Browser, pages: dict[str, Path], many: Report
) -> None:
    chromium.open(pages["many"])
    assert hash_of(chromium) == ""
    titles = chromium.texts("#live svg .role-axis-title text")
    assert {"efficiency", "samples/s per device"} <= {*titles}
    choose(chromium, "quantity", "samples/s")
    choose(chromium, "y", "log")
    choose(chromium, "base", "1n2g")
    assert hash_of(chromium) == "#quantity=samples/s&base=1n2g&y=log"
    assert "samples/s, all devices" in chromium.texts("#live svg text")
    wanted = Report("again", many.runs, "1n2g")
    rows = {(row["series"], row["topology"]): row for row in wanted.case_rows}
    cells = chromium.run(
        "return [...document.querySelectorAll('#t-cases tbody tr')].map(tr => "
        "[tr.cells[0].textContent, tr.cells[1].textContent,"
        "...['speedup', 'speedup_ends', 'efficiency'].map(q => "
        "tr.querySelector(`[data-q=${q}]`).textContent)])"
    )
    assert len(cells) == len(wanted.cases)
    for series, topology, *texts in cells:
        row = rows[series, topology]
        if row["speedup"] is None:
            assert texts == ["", "", ""]
            continue
        low, high = row["speedup_low"], row["speedup_high"]
        ends = "" if low is None else f"{low:.2f}\N{EN DASH}{high:.2f}"
        assert texts == [f"{row['speedup']:.2f}", ends, f"{100 * row['efficiency']:.1f} %"]


@pytest.mark.parametrize("scale", ["log", "zero"])
def test_every_quantity_is_drawn_on_both_scales(
    chromium: Browser, pages: dict[str, Path], scale: str
) -> None:
    x = "log" if scale == "log" else "linear"
    chromium.open(pages["many"], f"#x={x}&y={scale}&beside=&facet=&all=")
    for quantity in ("tokens/s", "samples/s per device", "speedup", "mfu", "joules", "memory"):
        choose(chromium, "quantity", quantity)
        assert marks(chromium) > 40, quantity
        label = chromium.run("return document.querySelector('#live-0').getAttribute('aria-label')")
        assert "against devices" in label and " 12 series" in label


def test_beyond_twelve_series_the_rest_is_drawn_when_asked_for(
    chromium: Browser, pages: dict[str, Path]
) -> None:
    chromium.open(pages["many"])
    assert chromium.texts("#drawn") == ["All 17 series are drawn."]
    choose(chromium, "facet", "")
    few = marks(chromium)
    assert len(chromium.texts("#legend li")) == 12
    assert chromium.texts("#drawn") == [
        "12 of 17 series are drawn; not drawn: bz64/bf16, bz64/bf16-compile, bz64/fp32,"
        " bz64/fp32-compile and 1 more."
    ]
    tick(chromium, "#all")
    assert len(chromium.texts("#legend li")) == 17
    assert marks(chromium) > few
    tick(chromium, "#legend input")
    assert chromium.texts("#drawn") == ["16 of 17 series are drawn; not drawn: bz2/bf16."]
    assert hash_of(chromium) == "#facet=&hide=ddp/bert-base/bz2/bf16&all=1"


def test_filters_act_on_figure_and_tables_and_the_address_holds_them(
    chromium: Browser, pages: dict[str, Path], many: Report
) -> None:
    chromium.open(pages["many"])
    before = marks(chromium)
    tick(chromium, 'fieldset[data-key="precision"] input[value="fp32"]')
    assert marks(chromium) < before
    series = chromium.texts("#t-cases tbody td:first-child")
    assert series and not any("fp32" in name for name in series)
    assert not any("fp32" in name for name in chromium.texts("#t-runs tbody td:first-child"))
    runs = len(chromium.texts("#t-runs tbody tr"))
    counted = f"{len(series)} of {len(many.cases)} cases, {runs} of {len(many.runs)} runs shown"
    assert chromium.texts("#shown") == [counted]
    kept = chromium.run("return location.hash")
    chromium.open(pages["many"], kept)
    assert chromium.texts("#t-cases tbody td:first-child") == series
    chromium.run(
        "const f = document.querySelector('[name=find]'); f.value = 'bz64/';"
        "f.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    settle(chromium)
    assert {name.split("/")[2] for name in chromium.texts("#t-cases tbody td:first-child")} == {
        "bz64"
    }
    tick(chromium, "#reset")
    assert hash_of(chromium) == "" and len(chromium.texts("#t-cases tbody tr")) == len(many.cases)


def test_a_filter_that_empties_a_layer_only_changes_data(
    chromium: Browser, pages: dict[str, Path]
) -> None:
    """The only cross goes and comes back; the picture is the same element."""
    chromium.open(pages["few"])
    cross, box = (
        "#live .mark-symbol path[fill=transparent]",
        'fieldset[data-key="batch size"] [value="64"]',
    )
    whole = len(chromium.texts(cross)), marks(chromium)
    assert whole == (2, 9)  # in both panels
    chromium.run("document.querySelector('#live svg').dataset.kept = 'yes'")
    tick(chromium, box)
    assert (len(chromium.texts(cross)), marks(chromium)) == (0, 6)
    tick(chromium, box)
    assert (len(chromium.texts(cross)), marks(chromium)) == whole
    assert chromium.run("return document.querySelector('#live svg').dataset.kept") == "yes"


def test_hover_and_click_tell_of_a_run(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.open(pages["traced"])
    dot = chromium.run(
        "const e = document.querySelector('#live .role-mark.mark-symbol path');"
        "document.querySelector('#live').scrollIntoView({block: 'center', behavior: 'instant'});"
        "const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]"
    )
    for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
        button = "none" if kind == "mouseMoved" else "left"
        place = {"x": dot[0], "y": dot[1], "button": button, "clickCount": 1}
        chromium.command("Input.dispatchMouseEvent", type=kind, **place)
        if kind == "mouseMoved":
            chromium.wait("document.querySelector('#tip') !== null")
            tip = " ".join(chromium.texts("#tip"))
            assert "median of its case" in tip and "n1" in tip and "100_0.0" in tip
            assert "exposed communication10.0 %" in tip
    chromium.wait("!document.querySelector('#detail').hidden")
    settle(chromium)
    assert "run=" in hash_of(chromium)
    assert "iteration, ms" in chromium.texts("#trace svg text")
    assert "p5 to p95 over 2 ranks" in chromium.texts("#trace-told")[0]
    detail = " ".join(chromium.texts("#detail dl"))
    assert "slowest over the window" in detail and "rank 0 on n1" in detail
    tick(chromium, "#to-row")
    here = chromium.run("return document.activeElement.dataset.r")
    assert here is not None and chromium.texts("tr.here")


def test_the_keyboard_reaches_every_control(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.open(pages["traced"])
    wanted = chromium.run(
        "return [...document.querySelectorAll('a, button, select, input, summary, .scroll')]"
        ".filter(e => e.checkVisibility()).length"
    )
    chromium.run(
        "window.met = new Set(); document.addEventListener('focusin', e => met.add(e.target))"
    )
    for _ in range(wanted + 2):
        for kind in ("keyDown", "keyUp"):
            chromium.command("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab",
                             windowsVirtualKeyCode=9)  # fmt: skip
    assert chromium.run("return met.size") >= wanted
    chromium.run("document.querySelector('#t-runs td button').focus()")
    chromium.command("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", text="\r",
                     windowsVirtualKeyCode=13)  # fmt: skip
    chromium.wait("document.activeElement.id === 'detail'")
    chromium.command("Input.dispatchKeyEvent", type="keyDown", key="Escape", code="Escape",
                     windowsVirtualKeyCode=27)  # fmt: skip
    chromium.wait("document.querySelector('#detail').hidden")
    assert chromium.run("return document.activeElement.closest('#t-runs') !== null")


def test_columns_sort_by_what_they_are(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.open(pages["many"])
    buttons = "[...document.querySelectorAll('#t-cases th button')]"
    sort = buttons + ".find(b => b.textContent === '{}').click()"
    chromium.run(sort.format("series"))
    names = [name.split("/")[2] for name in chromium.texts("#t-cases tbody td:first-child")]
    assert list(dict.fromkeys(names)) == ["bz2", "bz16", "bz32", "bz64", "bz?"]
    chromium.run(sort.format("samples/s"))
    column = "#t-cases tbody tr td:nth-child(5)"
    speeds = [number(text) for text in chromium.texts(column) if text]
    assert speeds == sorted(speeds)
    chromium.run(sort.format("samples/s"))
    assert [number(text) for text in chromium.texts(column) if text] == speeds[::-1]
    assert "sort.cases=4-" in hash_of(chromium)


@pytest.mark.parametrize("kind", ["csv", "markdown", "latex"])
def test_what_is_shown_is_copied(chromium: Browser, pages: dict[str, Path], kind: str) -> None:
    chromium.open(pages["hostile"], "#find=hyperlink")
    chromium.run("window.taken = []; Object.defineProperty(navigator, 'clipboard', "
                 "{value: {writeText: async text => { taken.push(text); }}})")  # fmt: skip
    chromium.run(f"document.querySelector('[data-table=cases][data-copy={kind}]').click()")
    chromium.wait("window.taken.length === 1")
    text = chromium.run("return taken[0]")
    assert chromium.texts("#cases output") == ["1 rows copied"]
    if kind == "csv":
        rows = list(csv.reader(io.StringIO(text)))
        assert len(rows) == 2 and rows[1][0].startswith("'=HYPERLINK")
    elif kind == "markdown":
        assert text.splitlines()[1].startswith("| - |") and len(text.splitlines()) == 3
    else:
        assert text.startswith("\\begin{tabular}{") and "bz?/bf16" in text


def test_data_come_out_of_the_page(chromium: Browser, pages: dict[str, Path], many: Report) -> None:
    chromium.open(pages["many"])
    for name in ("runs.csv", "report.json"):
        chromium.run("document.querySelector(`[data-get='${arguments[0]}']`).click()", name)
        deadline = time.monotonic() + 60 * BUSY
        while not (chromium.downloads / name).exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert (chromium.downloads / "runs.csv").read_bytes() == csv_table(RUN_COLUMNS, many.run_rows)
    told = json.loads((chromium.downloads / "report.json").read_bytes())
    assert len(told["runs"]) == len(many.runs)


@pytest.mark.parametrize("name, words", [
    ("empty", ["No run counts yet", "1 run failed: no GPU"]),
    ("one", ["A single run counts", "1 run counts, so there is no confidence interval"]),
])  # fmt: skip
def test_a_page_says_what_there_is_not(
    chromium: Browser, pages: dict[str, Path], name: str, words: list[str]
) -> None:
    chromium.open(pages[name])
    text = chromium.run("return document.body.innerText")
    assert [word for word in words if word not in text] == []


def test_a_comparison_is_ordered_and_filtered(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.open(pages["compare"])
    verdicts = [text.partition(":")[0] for text in chromium.texts("#t-cases td:nth-child(2)")]
    assert verdicts == ["slower", "slower", "same", "missing in B", "missing in B"]
    assert chromium.texts("#t-differs tbody tr") == ["driver570.86575.513"]
    assert marks(chromium) == 3
    tick(chromium, 'fieldset[data-key="outcome"] input[value="slower"]')
    assert marks(chromium) == 1
    assert len(chromium.texts("#t-cases tbody tr")) == 3


def test_paper(chromium: Browser, pages: dict[str, Path], tmp_path: Path) -> None:
    chromium.open(pages["one"])
    chromium.pdf(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF-")
    chromium.command("Emulation.setEmulatedMedia", media="print")
    hidden: list[Any] = chromium.texts(".buttons button, #menus select, nav, #filters")
    chromium.command("Emulation.setEmulatedMedia", media="")
    assert hidden == []


def test_each_step_is_a_bar_of_its_parts(chromium: Browser, pages: dict[str, Path]) -> None:
    """Bars as wide as the parts; the filter acts on them; a hover has the figures."""
    chromium.open(pages["few"])
    bars = "return [...document.querySelectorAll('#parts .mark-rect path')]"
    bars += ".filter(p => p.getBBox().width > 0)"
    widths: list[float] = chromium.run(f"{bars}.map(p => p.getBBox().width)")
    rows = chromium.texts("#t-time tbody tr")
    assert len(rows) == 9 and len(widths) > len(rows)
    cells = chromium.texts("#t-time tbody tr:nth-child(3) td")
    assert cells[:2] == ["ddp/bert-base/bz16/fp32", "1n4g"]
    assert "(4.0 %)" in " ".join(cells)  # exposed_comm of four devices
    chromium.run('document.querySelector(\'[name="batch size"][value="16"]\').click()')
    settle(chromium)
    assert len(chromium.texts("#t-time tbody tr")) == 6
    assert len(chromium.run(f"{bars}.map(p => 1)")) < len(widths)
