"""The page as a file: what stands in it, what it leaves out, and that it may not do anything."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import page_samples
import pytest
from record_samples import a_run, ended_ok
from report_samples import bad, case, external, ok, oks, window

from dlperf_hpc.analysis.comparison import compare, subjects
from dlperf_hpc.cli import compare as compare_verb
from dlperf_hpc.model.result import GpuUse, Status
from dlperf_hpc.records.layout import RunPaths
from dlperf_hpc.reporting.contents import Report
from dlperf_hpc.reporting.csv_columns import CASE_COLUMNS
from dlperf_hpc.reporting.node_tables import nodes_of
from dlperf_hpc.reporting.page import (
    COLOURS,
    MARKS,
    colour_of,
    comparison_page,
    mark_of,
    render,
)
from dlperf_hpc.reporting.page.report_page import page as report_page
from dlperf_hpc.reporting.page.script_data import MOST_POINTS, measures_of_run, trace_of
from dlperf_hpc.reporting.page.visible import (
    MOST_RUNS,
    VisibleReport,
    case_table,
    node_table,
    sentence,
)
from dlperf_hpc.reporting.table import natural, rows
from dlperf_hpc.reporting.writers.builtin import page


class Parsed(HTMLParser):
    """Tags with their attributes, the texts of scripts, and all other text."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.texts: list[str] = []
        self._inside = ""
        self.feed(content.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            attributes, before = self.scripts[-1]
            self.scripts[-1] = attributes, before + data
        elif self._inside != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        """What is read, blanks counting as one."""
        return " ".join(" ".join(self.texts).split())

    def packed(self, name: str) -> bytes:
        """What travels compressed under this name."""
        found = [text for attributes, text in self.scripts if attributes.get("id") == f"p-{name}"]
        return gzip.decompress(base64.b64decode(found[0]))

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.packed("data"))
        return found


def addresses(parsed: Parsed) -> Iterator[str]:
    for _, attributes in parsed.tags:
        for name, value in attributes.items():
            if name in ("src", "href", "action", "srcset", "data", "poster", "xlink:href"):
                yield value or ""


@pytest.fixture(scope="module")
def few() -> Parsed:
    return Parsed(page(page_samples.few_series()))


def test_the_page_may_run_its_own_scripts_and_open_nothing(few: Parsed) -> None:
    assert [a for a in addresses(few) if not a.startswith("#") and a != "data:,"] == []
    policy = dict(few.tags[3][1])["content"] or ""
    assert "default-src 'none'" in policy and "http" not in policy
    allowed = set(re.findall(r"'sha256-([^']+)'", policy))
    run = [text for attributes, text in few.scripts if "type" not in attributes]
    assert len(run) == 1
    digests = {
        base64.b64encode(hashlib.sha256(text).digest()).decode()
        for text in (run[0].encode(), few.packed("libraries"))
    }
    assert digests == allowed
    assert "sourceMappingURL" not in few.packed("libraries").decode()


def test_each_flag_is_counted_before_the_figure_and_its_sentences_are_behind_it() -> None:
    report = page_samples.few_series()
    content = page(report).decode()
    before, _, behind = content.partition('<section id="figure"')
    assert "too-few-repeats</span>9 of 9 cases" in before
    sentence = "3 runs count: the interval of the median covers 75 %; 95 % needs 6 runs or more."
    assert sentence not in before and sentence in behind
    parsed = Parsed(content.encode())
    names = (f"{summary.case.series} {summary.case.topology}" for summary in report.cases)
    assert ", ".join(sorted(names, key=natural)) in parsed.texts
    assert "1 run failed: rank 2: ValueError: x (ddp/bert-base/bz64/fp32 1n4g #9)" in parsed.text


def test_every_mark_of_the_still_figure_has_a_title(few: Parsed) -> None:
    """Of nine cases and 27 runs, each in two panels."""
    titles = [tag for tag, _ in few.tags if tag == "title"]
    assert len(titles) == 1 + 2 * (9 + 27)
    assert any("(counts)" in text for text in few.texts)
    assert any("interval" in text and "(covers 75.0 %)" in text for text in few.texts)


def test_a_run_that_does_not_count_is_hollow_and_told() -> None:
    data = Parsed(page(page_samples.many_series(repeats=1))).data
    (hollow,) = (run for run in data["runs"] if not run["ok"] and "samples/s" in run["m"])
    assert dict(hollow["told"])["status"] == "partial: log and record differ"
    lost = [run for run in data["runs"] if not run["ok"] and not run["m"]]
    assert len(lost) == 2 and all("out of memory" in str(run["told"]) for run in lost)


def test_energy_without_samples_is_no_number() -> None:
    """Nothing is divided by no samples: the run has an energy, and none for a sample."""
    (run, *_) = page_samples.measured(case(), 100.0, 1)
    (summary,) = Report("a", [run]).cases
    assert run.window is not None and "joules" in measures_of_run(run, summary)
    without = replace(run, window=replace(run.window, samples=0))
    assert "joules" not in measures_of_run(without, summary)


def test_the_nodes_of_the_runs_are_a_table_that_names_the_slow_one() -> None:
    pairs = [("n1", "n2"), ("n1", "n3"), ("n2", "n3")] * 4
    runs = [
        replace(run, facts={"world": {"hosts": list(pair)}})
        for run, pair in zip(
            oks(case("2n1g"), *((90 if "n1" in pair else 100) + 0.1 * i
                                for i, pair in enumerate(pairs))),
            pairs,
        )
    ]  # fmt: skip
    report = Report("a", runs)
    assert report.nodes.slow_nodes == ("n1",)
    table = node_table(nodes_of(report.nodes))
    titles = [column.name for column in table.columns]
    assert titles[:3] == ["node", "outcome", "difference"] and "slowest device" not in titles
    assert (table.cells[0][0].text, table.is_bad(0)) == ("n1", True)
    assert sorted(cells[0].text for cells in table.cells) == ["n1", "n2", "n3"]
    text = Parsed(page(report)).text
    assert "Slow: n1: runs with it are" in text and "to runs without it" in text
    assert 'id="nodes"' not in page(Report("a", oks(case(), 1.0, 1.1))).decode()


def test_the_head_tells_node_hours_and_the_share_of_the_window() -> None:
    (run,) = oks(case("2n1g"), 640.0)
    long = replace(run, started="2026-11-21T10:00:00Z", ended="2026-11-21T10:06:00Z")
    limits = {run.run.id: 1800}
    report = Report("a", [long], limits_s=limits)
    told = dict(report_page(report).facts)["Node-hours"]
    assert told.startswith("0.2 used of 1 asked for by 1 run, 3 % window")
    assert "Node-hours" not in dict(report_page(Report("a", [run])).facts)


def test_step_time_is_a_quantity_and_a_column() -> None:
    """The median of the runs' own medians; a run that does not count has its own."""
    runs = [ok(case(), n, 100.0, step_ms_p50=ms) for n, ms in ((1, 30.0), (2, 10.0))]
    runs.append(bad(case(), 3, Status.PARTIAL, "x", window(case(), 90.0, step_ms_p50=99.0)))
    report = Report("a", runs)
    data = Parsed(page(report)).data
    assert data["quantities"]["step"]["label"] == "step time"
    assert data["cases"][0]["m"]["step"] == [20.0, None, None]
    assert [run["m"]["step"] for run in data["runs"]] == [30.0, 10.0, 99.0]
    table = case_table(VisibleReport(report))
    place = next(n for n, column in enumerate(table.columns) if column.name == "step time")
    assert (table.columns[place].unit, table.cells[0][place].text) == ("ms", "20.00")
    (row,) = rows(CASE_COLUMNS, report.cases)
    assert row["step_ms_p50"] == 20.0 and row["iteration_ms"] == report.cases[0].iteration_ms
    alone = Report("b", external("1n1g", {"tokens/s": 9.0}))
    assert "step" not in Parsed(page(alone)).data["quantities"]


def test_doubts_of_energy_stand_with_the_run() -> None:
    """In the table, for readers without scripts too, and in what is told when it is opened."""
    well, odd = oks(case("1n2g"), 100.0, 101.0)
    use = GpuUse(joules=100.0, devices=2)
    report = Report("a", [replace(well, gpu=use), replace(odd, gpu=replace(use, devices=1))])
    doubt = "1 of 2 devices told their energy"
    parsed = Parsed(page(report))
    assert [dict(run["told"]).get("energy in doubt") for run in parsed.data["runs"]] == [
        None,
        doubt,
    ]
    assert parsed.texts.count(doubt) == 1 and "energy in doubt" in parsed.texts


def test_a_name_at_the_beginning_of_a_sentence_stays_as_it_is() -> None:
    assert sentence("ddp/bert_1: it is odd") == "ddp/bert_1: it is odd."
    assert sentence("slow: n1") == "Slow: n1." and sentence("n1, a: x?") == "n1, a: x?"


def test_names_are_text_everywhere() -> None:
    parsed = Parsed(page(page_samples.hostile()))
    assert {tag for tag, _ in parsed.tags} & {"b", "img", "iframe"} <= {"b"}
    assert len([1 for attributes, _ in parsed.scripts if "type" not in attributes]) == 1
    for name in page_samples.HOSTILE[:4]:
        assert name in parsed.text
    whole = page(page_samples.hostile()).decode()
    assert "\u202e" not in whole and "\x1b" not in whole


def test_what_differs_stands_before_the_rest() -> None:
    runs = page_samples.measured(case(), 100.0, 2)
    runs += page_samples.measured(case("1n2g"), 190.0, 2, driver="575.51")
    text = Parsed(page(Report("x", runs))).text
    differs = text[text.index("Provenance: what differs Machine") :]
    assert differs.index("575.51") < differs.index("Provenance: all of it")
    assert "EPYC" not in differs[: differs.index("Provenance: all of it")]


@pytest.mark.parametrize(
    "report, words",
    [
        (Report("a", []), ["No run is known yet.", "there is nothing to draw"]),
        (Report("a", [bad(case(), 1, Status.FAILED, "no GPU")]), ["No run counts", "no GPU"]),
        (Report("a", oks(case(), 1.0)), ["A single run counts", "no confidence interval"]),
        (Report("a", oks(case("1n2g"), 1.0)), ["none: 1n1g has no run", "the default base"]),
        (
            Report("a", [*oks(case(), 1.0), *oks(case("1n2g", model="gpt"), 1.0)]),
            ["No case of 1n2g, which other series have: torch/bert/bz32/fp32."],
        ),
    ],
)
def test_a_page_says_what_there_is_not(report: Report, words: list[str]) -> None:
    text = Parsed(page(report)).text
    assert [word for word in words if word not in text] == []


def test_twelve_frameworks_are_told_apart() -> None:
    runs = [run for n in range(12) for run in oks(case(framework=f"framework{n}"), 10.0 + n)]
    parsed = Parsed(page(Report("a", runs)))
    assert "later" not in [attributes.get("class") for _, attributes in parsed.tags]
    assert next(iter(parsed.data["cases"][0]["keys"])) == "framework"
    assert parsed.data["series"][2] == "framework2/bert/bz32/fp32"  # before framework10


def test_too_many_runs_are_cut_and_the_page_says_so() -> None:
    """Those that do not count stay; each case keeps as many of the others as any."""
    runs = [
        run
        for n in range(30)
        for run in oks(case(batch_size=n + 1), *(10.0 + i for i in range(50)))
    ]
    runs.append(bad(case(batch_size=1), 99, Status.FAILED, "x"))
    report = Report("a", runs)
    shown = VisibleReport(report).runs
    assert len(shown) <= MOST_RUNS and any(row.run.status is Status.FAILED for row in shown)
    parsed = Parsed(page(report))
    assert f"This page shows {len(shown)} of 1501 runs one by one" in parsed.text
    assert parsed.packed("file-runs.csv").count(b"\n") == 1502


def test_the_iterations_of_a_run_come_from_its_record_else_its_log(tmp_path: Path) -> None:
    result = ended_ok(tmp_path, a_run(), iterations=150, seconds=0.06)
    found = trace_of(result)
    assert found is not None
    assert (found["first"], found["last"], found["width"], found["ranks"]) == (6, 155, 3, 2)
    assert len(found["slow"]) == 50 <= MOST_POINTS
    columns = zip(found["low"], found["high"], found["slow"])
    assert all(low <= high <= slow for low, high, slow in columns)
    assert found["slowest"].endswith(" on n1")
    RunPaths(tmp_path, result.run.id).record.unlink()
    alone = trace_of(result)
    assert alone is not None and "ranks" not in alone
    assert (alone["first"], alone["last"]) == (6, 155)
    RunPaths(tmp_path, result.run.id).log.unlink()
    assert trace_of(result) is None


@pytest.mark.parametrize(
    "detail",
    ["[[1, null]]", "[]", "[[1], [1, 2]]", "{}", '[["x"]]', "[[-1]]", f"[[1.5, {10**400}]]"],
)
def test_a_record_that_does_not_fit_is_no_trace(tmp_path: Path, detail: str) -> None:
    result = ended_ok(tmp_path, a_run())
    paths = RunPaths(tmp_path, result.run.id)
    record = json.loads(paths.record.read_bytes())
    record["detail"]["rank_step_ms"] = json.loads(detail)
    paths.record.write_text(json.dumps(record))
    found = trace_of(result)
    assert found is not None and "ranks" not in found  # the log's


def test_a_comparison_is_ordered_by_evidence(tmp_path: Path) -> None:
    a = subjects(page_samples.curve(batch_size=32))
    slower = [
        run
        for topology, speed in (("1n1g", 297.0), ("1n2g", 500.0))
        for run in page_samples.measured(
            case(topology, framework="ddp", model="bert-base"), speed, driver="575.51"
        )
    ]
    parsed = Parsed(
        render(comparison_page.page(compare(a, subjects(slower)), {"A": ["a"], "B": ["<b>"]}))
    )
    cases = [(each["outcome"], each["name"].split()[-1]) for each in parsed.data["cases"]]
    assert cases[:2] == [("slower", "1n2g"), ("same", "1n1g")]
    assert "A and B differ in driver." in parsed.text
    assert "3 cases: only A has the case." in parsed.text
    assert json.loads(parsed.packed("file-compare.json"))["schema"] == "dlperf-compare/1"


def test_compare_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        ended_ok(tmp_path / name, a_run())
    target = tmp_path / "page.html"
    words = [str(tmp_path / "a"), str(tmp_path / "b"), "--html", str(target)]
    assert compare_verb.main(words) == 0
    assert "too few runs to tell" in Parsed(target.read_bytes()).text
    capsys.readouterr()


def contrast(one: str, other: str) -> float:
    """Of two colours, by WCAG 2."""

    def light(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


def test_series_can_be_told_apart_on_light_and_dark() -> None:
    assert [c for c in COLOURS if min(contrast(c, "#ffffff"), contrast(c, "#181c22")) < 3] == []
    looks = [(colour_of(n), mark_of(n)) for n in range(len(COLOURS) * len(MARKS))]
    assert len({*looks}) == len(looks)


def test_names_sort_as_people_count() -> None:
    assert sorted(["bz16", "bz2", "bz1", "a"], key=natural) == ["a", "bz1", "bz2", "bz16"]


def test_the_script_is_as_short_as_was_promised() -> None:
    script = Path(page.__code__.co_filename).parents[1] / "page" / "page.js"
    assert len(script.read_text(encoding="utf-8").splitlines()) <= 440
