"""One row for each flag, and a report of 10 000 runs in few lines of a terminal."""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import replace
from pathlib import Path

import page_samples
import pytest
from record_samples import a_run, ended_ok
from report_samples import bad, case, oks

from dlperf_hpc.cli import report as report_verb
from dlperf_hpc.model.result import RunResult, Status
from dlperf_hpc.reporting.contents import Report, as_json
from dlperf_hpc.reporting.page import grouped
from dlperf_hpc.reporting.page.visible import panels_at_first, panels_by, short_names
from dlperf_hpc.reporting.picture import apart, from_zero
from dlperf_hpc.reporting.report_tables import MOST_LINES, flag_count, print_report
from dlperf_hpc.reporting.writers.markdown import markdown

HEAD = 4  # lines at most, and a blank one


def many(repeats: int = 10, batches: int = 50) -> list[RunResult]:
    """Twenty runs of two topologies for each batch size, with an outlier or two in each case."""
    found: list[RunResult] = []
    for batch in range(1, batches + 1):
        for topology in ("1n1g", "1n2g"):
            of = case(topology, batch_size=batch)
            speeds = [100.0 + n % 3 for n in range(repeats)]
            speeds[0] = 100.0 - batch
            found += oks(of, *speeds)
    return found


def test_a_flag_is_counted_once_with_its_largest_size() -> None:
    report = Report("a", many())
    (row,) = (row for row in report.flag_rows if row.flag == "outlier")
    with_it = [each for each in report.cases if "outlier" in each.flags]
    others = statistics.median(100.0 + n % 3 for n in range(1, 10))
    assert (row.cases, row.of) == (len(with_it), 100)
    assert row.largest == pytest.approx(50 / others - 1)
    assert flag_count(row) == f"{len(with_it)} of 100 cases, largest -50.5 %"
    assert next(iter(row.about.values()))[0].case.batch_size == 50  # the largest first
    counts = [each.cases for each in report.flag_rows]
    assert counts == sorted(counts, reverse=True)


def test_json_has_the_counts_beside_all_that_it_had() -> None:
    told = as_json(Report("a", many()))
    counted = {each["flag"]: each["cases"] for each in told["flag_counts"]}
    for flag in told["flags"]:
        assert counted[flag] == sum(flag in each["flags"] for each in told["cases"])
    assert {each["of"] for each in told["flag_counts"]} == {100}


def test_markdown_has_a_row_for_each_flag_and_all_sentences_behind_it() -> None:
    report = Report("a", many())
    text = markdown(report)
    rows = re.findall(r"<summary>([\w-]+): (\d+) of 100 cases", text)
    assert dict(rows)["outlier"] == str(sum("outlier" in each.flags for each in report.cases))
    notes = {flag.note for each in report.cases for flag in each.evidence}
    plain = text.replace("\\", "")
    assert [note for note in notes if note not in plain] == []


@pytest.mark.parametrize("repeats, batches", [(100, 50), (2, 2)])
def test_a_report_fits_forty_lines_and_says_what_it_leaves_out(
    capsys: pytest.CaptureFixture[str], repeats: int, batches: int
) -> None:
    runs = many(repeats, batches)
    warned = [replace(run, warnings=(f"warning {n}",)) for n, run in enumerate(runs[:60])]
    failed = [bad(case(), 900 + n, Status.FAILED, f"cause {n}") for n in range(60)]
    report = Report("many", [*warned, *runs[60:], *failed])
    print_report(report)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= HEAD + MOST_LINES
    text = "\n".join(lines)
    if batches > 2:
        left_out = re.search(r"left out: (\d+) series of the first table and (\d+) rows", text)
        assert left_out is not None and int(left_out[2]) == len(report.cases)
        printed = len(re.findall(r"^bz\d+", text, re.MULTILINE))
        assert printed + int(left_out[1]) == len(report.series)
        assert "--all shows them" in " ".join(text.split())
    print_report(report, everything=True)
    text = capsys.readouterr().out
    assert [n for n in range(60) if f"cause {n}" not in text] == []
    assert [n for n in range(len(warned)) if f": warning {n}" not in text] == []
    assert text.count("CI of the median covers") == batches


def test_the_verb_prints_everything_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for repeat in range(1, 3):
        ended_ok(tmp_path / "a", a_run(repeat=repeat))
    report_verb.main([str(tmp_path / "a"), "--no-cache", "--write", "json"])
    short = capsys.readouterr().out
    report_verb.main([str(tmp_path / "a"), "--no-cache", "--write", "json", "--all"])
    assert "too-few-repeats: 1 of 1 case" in short
    assert len(capsys.readouterr().out.splitlines()) >= len(short.splitlines())
    told = json.loads((tmp_path / "a" / "report" / "report.json").read_text())
    assert told["flag_counts"][0]["of"] == 1


# --- the figure


def test_panels_part_series_only_where_there_are_many() -> None:
    few, many_series = page_samples.few_series().series, page_samples.many_series().series
    assert panels_at_first(few) == "" and {*panels_by(few)} == {"batch size"}
    assert panels_at_first(many_series) == "precision"
    parts = panels_by(many_series)["precision"]
    assert sorted(name for names in parts.values() for name in names) == sorted(many_series)
    assert all(name.split("/")[3].startswith(part) for part in parts for name in parts[part])


def test_names_beside_lines_are_short_and_differ() -> None:
    names = ["ddp/bert/bz2/fp32", "ddp/bert/bz16/fp32", "ddp/bert/bz16/fp32-compile"]
    assert short_names(names) == ["bz2/fp32", "bz16/fp32", "bz16/fp32-compile"]
    assert short_names([*names, "fsdp/gpt/bz2/fp32"])[-1] == "fsdp/gpt/bz2"
    for odd in (["a/b", "a/c/d"], ["a/x", "a/x/y", "a/x/z"], ["a", "b"], ["x/y"]):
        assert len({*short_names(odd)}) == len(odd)


@pytest.mark.parametrize("heights", [[5.0, 4.9, 4.8, 0.1], [1.0] * 8, [9.0], [5.0, 4.0, 3.0]])
def test_names_are_moved_apart_and_keep_their_order(heights: list[float]) -> None:
    found = apart(heights, 0.0, 6.0, 0.5)
    assert len(found) == len(heights) and max(found) <= 6 and min(found) >= 0
    assert all(a - b >= 0.5 - 1e-9 for a, b in zip(found, found[1:]))
    assert apart([5.0, 4.0, 3.0], 0.0, 6.0, 0.5) == [5.0, 4.0, 3.0]  # where there is room, none


def test_an_axis_begins_at_0_unless_that_would_hide_all() -> None:
    assert from_zero([]) and from_zero([0.5, 1.0]) and not from_zero([0.9, 1.0])


def test_thousands_are_apart_and_no_digit_changes() -> None:
    assert grouped("1234567.25\u201398765 9999 0.123456 00012345") == (
        "1\u202f234\u202f567.25\u201398\u202f765 9999 0.123456 00012345"
    )
