"""Tables, CSV, JSON, Markdown, picture and terminal: nothing left out, nothing invented."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st
from places import ROOT
from record_samples import a_run, manifest
from report_samples import bad, case, external, ok, oks, tokens, window

from dlperf_hpc.analysis.flags import FLAGS
from dlperf_hpc.errors import LedgerError, printable
from dlperf_hpc.model.case import Run
from dlperf_hpc.model.result import RunResult, Status
from dlperf_hpc.records.collect import Collection
from dlperf_hpc.reporting.contents import Report, as_json
from dlperf_hpc.reporting.csv_columns import CASE_COLUMNS, RUN_COLUMNS
from dlperf_hpc.reporting.picture import picture
from dlperf_hpc.reporting.report_tables import print_report, speedup_table
from dlperf_hpc.reporting.run_states import print_status, status_table, trouble_table
from dlperf_hpc.reporting.table import Table, code, csv_table, drawn, escape, number
from dlperf_hpc.reporting.table import rows as rows_of
from dlperf_hpc.reporting.writers import DEFAULT, write_atomic, write_report, writers
from dlperf_hpc.reporting.writers.markdown import markdown as markdown_of

EVIL = "\x1b[31mRuntimeError\x1b[0m: [red]a|b[/red] <script> `x` $y$ *z*\nsecond\tline \x07\u202e!"
SHOWN = "RuntimeError: [red]a|b[/red] <script> `x` $y$ *z* / second line \\x07\\u202e!"
FILES = ["speedup.csv", "runs.csv", "report.json", "report.md", "speedup.png", "report.html"]

PLAN = manifest([a_run()])


def sweep() -> list[RunResult]:
    """Two topologies that ran, one that did not, and one that was cut after its window."""
    dead = case("4n8g")
    return [
        *oks(case("1n1g"), 100, 101, 99),
        *oks(case("2n8g"), 1500, 1510, 1490, steady=None),
        bad(case("2n8g"), 4, Status.PARTIAL, "cut", window(case("2n8g"), 9999.0)),
        bad(dead, 1, Status.FAILED, EVIL),
        bad(dead, 2, Status.TIMEOUT, "over the limit of 1800 s"),
        bad(dead, 3, Status.REJECTED, "QOSMaxNodePerUser"),
    ]


def report_of(results: list[RunResult], name: str = "quick", **more: Any) -> Report:
    return Report(name, results, **more)


def cells(content: str | bytes | None) -> list[dict[str, str]]:
    assert content is not None
    text = content if isinstance(content, str) else content.decode()
    return list(csv.DictReader(StringIO(text, newline="")))


def written(name: str, file: str, results: list[RunResult]) -> bytes:
    """A file's content as a writer makes it."""
    content = writers()[name].files[file](report_of(results))
    assert content is not None
    return content


def case_cells(results: list[RunResult]) -> list[dict[str, str]]:
    return cells(written("csv", "speedup.csv", results))


def run_cells(results: list[RunResult]) -> list[dict[str, str]]:
    return cells(written("csv", "runs.csv", results))


# --- tables and CSV ------------------------------------------------------------------------------


def test_tables_have_the_documented_columns_and_every_row() -> None:
    results = sweep()
    cases, runs = case_cells(results), run_cells(results)
    assert list(cases[0]) == [column.name for column in CASE_COLUMNS]
    assert list(runs[0]) == [column.name for column in RUN_COLUMNS]
    assert (len(cases), len(runs)) == (3, len(results))
    assert written("csv", "runs.csv", []).decode().splitlines() == [",".join(runs[0])]


def test_csv_is_what_pandas_would_write() -> None:
    """Byte for byte, as reports were written through pandas before."""
    from dlperf_hpc.reporting.table import frame

    odd = replace(bad(case("4n8g"), 4, Status.FAILED, 'a "quoted", word; # and\nmore'), log="a,b")
    results = [*sweep(), odd, ok(case("1n4g"), 1, 1e-7, memory_mb=5, drift=1e22, steady=False)]
    report = report_of(results)
    for file, columns, rows in (
        ("speedup.csv", CASE_COLUMNS, report.case_rows),
        ("runs.csv", RUN_COLUMNS, report.run_rows),
    ):
        table = frame(columns, rows)
        for name in table.columns:
            if str(table[name].dtype) == "boolean":
                words = table[name].map({True: "true", False: "false"})
                table[name] = words.astype("string")
        expected = table.to_csv(index=False, lineterminator="\n").encode()
        assert writers()["csv"].files[file](report) == expected


def test_columns_are_snake_case_and_once_each() -> None:
    for columns in (CASE_COLUMNS, RUN_COLUMNS):
        names = [column.name for column in columns]
        assert len(set(names)) == len(names)
        assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in names)
        assert all(column.meaning for column in columns)


def test_csv_leaves_empty_what_is_not_known() -> None:
    rows = case_cells(sweep())
    ran, dead = rows[1], rows[2]
    assert float(ran["speedup"]) == pytest.approx(15.0)
    assert ran["base"] == "1n1g"
    assert float(ran["base_samples_per_s"]) == pytest.approx(100)
    assert (ran["runs"], ran["runs_ok"], ran["statuses"]) == ("4", "3", "ok 3, partial 1")
    assert (ran["scaling"], ran["global_batch"]) == ("weak", "512")
    assert dead["runs_ok"] == "0"
    assert dead["speedup_missing"] == "no run counts (failed 1, timeout 1, rejected 1)"
    for name in ("samples_per_s", "samples_per_s_low", "speedup", "efficiency", "optimizer_steps"):
        assert dead[name] == ""
    assert "nan" not in written("csv", "speedup.csv", sweep()).decode().lower()


def test_runs_csv_has_the_failed_with_reason_and_without_numbers() -> None:
    rows = run_cells(sweep())
    assert [row["status"] for row in rows[6:]] == ["partial", "failed", "timeout", "rejected"]
    first_figure = list(rows[0]).index("samples_per_s")
    figures = [name for name in list(rows[0])[first_figure:] if name not in ("source", "log")]
    for row in rows[6:]:
        assert [row[name] for name in figures] == [""] * len(figures)
        assert row["reason"]
    assert rows[7]["reason"] == SHOWN
    assert rows[0]["optimizer_steps"] == "100"  # not 100.0, although other rows have none
    assert (rows[0]["steady"], rows[3]["steady"], rows[7]["steady"]) == ("true", "", "")
    assert rows[0]["run"] == "torch/bert/bz32/1n1g/bert_b32_fp32_1"


def test_figures_that_are_not_finite_are_empty() -> None:
    (row,) = run_cells([ok(case(), 1, 100, loss_last=float("nan"))])
    assert row["loss_last"] == ""
    assert float(row["loss_first"]) == 10.5


def test_numbers_survive_the_csv(tmp_path: Path) -> None:
    results = oks(case("1n1g"), 147.81, 143.61, 100 / 3)
    write_report(tmp_path / "deep", report_of(results), ["csv"])
    rows = cells((tmp_path / "deep" / "runs.csv").read_text())
    assert [float(row["samples_per_s"]) for row in rows] == [r.samples_per_s for r in results]
    again = pandas.read_csv(tmp_path / "deep" / "runs.csv")
    assert list(again["repeat"]) == [1, 2, 3]


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.processes
def test_report_writes_its_files_and_nothing_else(tmp_path: Path) -> None:
    paths = write_report(tmp_path / "r", report_of(sweep(), source="12 logs"))
    assert [path.name for path in paths] == FILES
    assert sorted(p.name for p in (tmp_path / "r").iterdir()) == sorted(FILES)


@pytest.mark.processes
def test_the_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    kinds = list(writers())
    first = [p.read_bytes() for p in write_report(tmp_path / "a", report_of(sweep()), kinds)]
    again = [p.read_bytes() for p in write_report(tmp_path / "b", report_of(sweep()), kinds)]
    assert again == first and len(first) == 11


@pytest.mark.processes
def test_a_writer_is_picked_and_what_lies_beside_its_files_stays_true(tmp_path: Path) -> None:
    """No file of an earlier report is left to tell of other runs than the new one."""
    assert set(writers()) == {*DEFAULT, "junit", "parquet", "sqlite", "svg"}
    paths = write_report(tmp_path, report_of(oks(case(), 100)), ["sqlite", "csv"])
    assert [p.name for p in paths] == ["report.sqlite", "speedup.csv", "runs.csv"]
    old = {p.name: p.read_bytes() for p in paths}
    paths = write_report(tmp_path, report_of(oks(case(), 200)), ["json"])
    assert {p.name for p in paths} == {"report.json", *old} == {p.name for p in tmp_path.iterdir()}
    for name, content in old.items():
        assert (tmp_path / name).read_bytes() != content
    assert float(cells((tmp_path / "runs.csv").read_bytes())[0]["samples_per_s"]) == 200
    with pytest.raises(KeyError, match="latex"):
        write_report(tmp_path, report_of([]), ["latex"])
    # a Markdown page stands with the picture that it shows
    paths = write_report(tmp_path / "md", report_of(sweep()), ["md"])
    assert [p.name for p in paths] == ["report.md", "speedup.png"]


@pytest.mark.processes
def test_a_slow_file_is_made_where_no_other_process_can_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a login node allows no more processes, or ends one for its memory."""
    expected = write_report(tmp_path / "a", report_of(sweep()), ["png"])[0].read_bytes()
    assert size(expected) == (1200, 600)

    def ended() -> int:
        raise BlockingIOError("Resource temporarily unavailable")

    real = os.fork

    def killed() -> int:
        child = real()
        if child == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return child

    for name, fork in (("b", ended), ("c", killed)):
        monkeypatch.setattr(os, "fork", fork)
        (path,) = write_report(tmp_path / name, report_of(sweep()), ["png"])
        assert path.read_bytes() == expected


@pytest.mark.processes
def test_a_report_is_made_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every part is computed for the first writer that asks, and is the next one's as it is."""
    from dlperf_hpc.reporting import contents as module

    calls: list[str] = []
    for name in ("summarise", "option_pairs", "dlperf_tables", "rows"):
        real = getattr(module, name)

        def counted(*arguments: Any, name: str = name, real: Any = real) -> Any:
            calls.append(name)
            return real(*arguments)

        monkeypatch.setattr(module, name, counted)
    report = report_of(sweep())
    write_report(tmp_path, report, writers())
    print_report(report)
    assert sorted(calls) == ["dlperf_tables", "option_pairs", "rows", "rows", "summarise"]


def test_tables_for_dataframes_and_sql(tmp_path: Path) -> None:
    write_report(tmp_path, report_of(sweep()), ["parquet", "sqlite"])
    runs = pandas.read_parquet(tmp_path / "runs.parquet")
    assert str(runs["batch_size"].dtype) == "Int64" and str(runs["steady"].dtype) == "boolean"
    with contextlib.closing(sqlite3.connect(tmp_path / "report.sqlite")) as database:
        rows = database.execute("SELECT topology, runs_ok FROM speedup").fetchall()
    assert rows == [("1n1g", 3), ("2n8g", 3), ("4n8g", 0)]


def load_strictly(path: Path) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(path.read_text(), parse_constant=refuse)


@pytest.mark.processes
def test_report_json(tmp_path: Path) -> None:
    odd = ok(case("1n2g"), 1, 190, loss_last=float("nan"), step_ms_p99=float("inf"))
    write_report(tmp_path, report_of([*sweep(), odd], source="13 logs"))
    report = load_strictly(tmp_path / "report.json")
    assert report["schema"] == "dlperf-report/1"
    assert (report["sweep"], report["source"], report["base"]) == ("quick", "13 logs", None)
    assert [row["topology"] for row in report["cases"]] == ["1n1g", "2n8g", "4n8g", "1n2g"]
    assert report["cases"][1]["speedup"] == pytest.approx(15.0)
    assert report["cases"][2]["speedup"] is None
    assert report["cases"][0]["flags"] == ["too-few-repeats"]
    assert "too-few-repeats" in report["flags"]
    assert [row["status"] for row in report["runs"]].count("ok") == 7
    assert report["runs"][-1]["loss_last"] is None
    assert report["runs"][0]["steady"] is True
    (table,) = report["dlperf"].values()
    assert table["result"]["bert"]["2n8g"]["speedup"] == 15.0
    assert table["missing"] == ["4n8g: no runs"]


def test_report_json_is_indented_throughout() -> None:
    """Byte for byte as json itself does it, also what is put together for speed."""
    odd = bad(case("4n8g"), 4, Status.FAILED, '"runs": [], \n "runs": []')
    for results in ([], sweep(), [odd, *sweep()]):
        report = report_of(results, '"runs": []')
        plain = json.dumps(as_json(report), indent=1, allow_nan=False) + "\n"
        assert writers()["json"].files["report.json"](report) == plain.encode()


@pytest.mark.processes
def test_a_report_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "speedup.png").write_bytes(b"of an earlier report")
    paths = write_report(tmp_path, report_of([], "empty"))
    assert [path.name for path in paths] == [name for name in FILES if name != "speedup.png"]
    assert not (tmp_path / "speedup.png").exists()
    assert load_strictly(tmp_path / "report.json")["cases"] == []
    assert "No plot: no run counts yet." in (tmp_path / "report.md").read_text()
    assert cells((tmp_path / "speedup.csv").read_text()) == []


def test_an_atomic_write_replaces_and_leaves_no_temporary(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "a.csv"
    write_atomic(path, b"old")
    inode = path.stat().st_ino
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_ino != inode
    assert [p.name for p in path.parent.iterdir()] == ["a.csv"]
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask  # readable by the group as other files


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LedgerError, match=r"file/runs\.csv"):
        write_atomic(tmp_path / "file" / "runs.csv", b"")
    (tmp_path / "taken").mkdir()
    with pytest.raises(LedgerError, match="taken"):
        write_atomic(tmp_path / "taken", b"")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "taken"]


# --- Markdown ------------------------------------------------------------------------------------


def markdown(results: list[RunResult], base: str | None = None) -> str:
    return markdown_of(Report("my_sweep", results, base, source="logs/my_sweep"))


def table_rows(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        if line.startswith("|"):
            # a cell ends at a bar that no backslash precedes
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def test_markdown_has_dlperfs_table_with_error_bars() -> None:
    rows = list(table_rows(markdown(sweep())))
    assert rows[0][:5] == ["node_num", "gpu_num", "samples/s", "CI (coverage)", "tokens/s"]
    assert rows[2] == [
        "1",
        "1",
        "100.00",
        "99.00-101.00 (75.0 %)",
        "12800.00",
        "1.00",
        "",
        "100.0 %",
        "320.00",
        "3/3",
        "too-few-repeats",
    ]
    assert rows[3][:3] == ["2", "16", "1500.00"]
    assert rows[3][5:8] == ["15.00", "14.75-15.25", "93.8 %"] and rows[3][9] == "3/4"
    assert rows[4] == ["4", "32", "", "", "", "", "", "", "", "0/3", ""]


def test_markdown_says_how_it_was_measured() -> None:
    text = markdown(sweep())
    assert "100 timed iterations after 20 of warm-up" in text
    assert "Base: 1n1g, 100.00 samples/s (3 runs, CI 99.00-101.00 (75.0 %))." in text
    assert "Weak scaling" in text
    assert "6 of 10 count (status ok)" in text
    assert "the median of the runs that count" in text
    assert "![throughput and speedup against devices](speedup.png)" in text
    assert "- tokens/s: samples/s x tokens of a sequence, so that padding counts" in text


def of_machines(*facts: dict[str, Any]) -> Any:
    return report_of([replace(r, facts=f) for r, f in zip(oks(case(), 1, 2, 3), facts)]).machines


def test_a_report_names_the_framework_with_its_version() -> None:
    earlier = {"world": {"torch": "2.13.0+cpu", "device_name": "cpu"}}
    stated = {"framework_name": "TensorFlow", "framework_version": "2.21.0"}
    assert of_machines(earlier)["Framework"] == "PyTorch 2.13.0+cpu"
    assert of_machines({"world": {"tensorflow": "2.20.0"}}) == {"Framework": "TensorFlow 2.20.0"}
    assert of_machines({**earlier, **stated})["Framework"] == "TensorFlow 2.21.0"
    assert of_machines({"framework_name": "Horovod"}) == {"Framework": "Horovod"}
    assert of_machines({"framework_version": "2.0"}) == {}  # of whatever it is the version
    assert of_machines(earlier, {**earlier, **stated}, {})["Framework"] == (
        "PyTorch 2.13.0+cpu; TensorFlow 2.21.0"
    )
    assert "- Framework: TensorFlow 2.21.0" in markdown([replace(ok(case(), 1, 2), facts=stated)])


def test_markdown_lists_every_run_that_is_not_ok() -> None:
    rows = [row for row in table_rows(markdown(sweep())) if len(row) == 4]
    assert [row[2] for row in rows[2:]] == ["partial", "failed", "timeout", "rejected"]
    assert rows[3][3] == escape(SHOWN)
    assert "<script>" not in markdown(sweep())
    assert "Runs that do not count" not in markdown(oks(case(), 1, 2))


def test_markdown_sorts_by_devices_and_says_a_missing_base_once() -> None:
    results = oks(case("4n8g"), 700) + oks(case("1n8g"), 239)
    text = markdown(results)
    assert [row[1] for row in table_rows(text)][2:4] == ["8", "32"]
    assert text.count("is not in this series") == 1
    assert "Base: 1n8g, 239.00 samples/s (1 run, no CI)." in markdown(results, "1n8g")


def test_markdown_says_when_the_base_has_no_run() -> None:
    text = markdown([bad(case("1n1g"), 1, Status.PREEMPTED), *oks(case("1n4g"), 300)])
    assert "Base: 1n1g, of which no run counts." in text
    assert (
        "1n4g: no speedup: no run of the base 1n1g counts (preempted 1)".replace("_", r"\_") in text
    )


def test_markdown_does_not_list_a_hundred_window_lengths() -> None:
    results = [ok(case(), n, 100, iterations=100 + n) for n in range(1, 9)]
    assert "and 5 other lengths" in markdown(results)


@given(st.text())
def test_escaped_text_stays_in_its_cell(text: str) -> None:
    for cell in (escape(text), code(text)):
        assert len(f"| {cell} |".splitlines()) == 1
        bars = [m.start() for m in re.finditer(r"\|", cell)]
        assert all(cell[at - 1] == "\\" for at in bars)
    assert "<" not in escape(text)


# --- terminal ------------------------------------------------------------------------------------


def render(shown: Any, width: int = 80) -> str:
    """A table, or what rich prints, as a terminal of this width shows it."""
    from rich.console import Console

    stream = StringIO()
    Console(file=stream, width=width, force_terminal=False).print(
        drawn(shown) if isinstance(shown, Table) else shown
    )
    return stream.getvalue()


def test_terminal_table_fits_80_columns_uncut() -> None:
    results = [
        *oks(case("1n1g"), *[619.73, 620.1, 619.0, 621.0, 618.0]),
        *oks(case("16n8g"), *[77751.63, 77700.0, 79812.4, 77760.0, 77800.0], optimizer_steps=0),
    ]
    text = render(speedup_table(report_of(results)))
    assert max(map(len, text.splitlines())) <= 80
    for shown in ("16n8g", "77760.00", "77700.00-79812.40", "125.47", "98.0", "5/5"):
        assert shown in text
    assert "no-optimizer-step" in text  # a flag is not broken over two lines
    assert "CI of the median covers 93.8 % for 5 runs" in text


def test_terminal_says_why_there_is_no_speedup() -> None:
    assert "4n8g: no speedup: no run counts" in render(speedup_table(report_of(sweep())))
    text = render(speedup_table(report_of(oks(case("4n8g"), 700) + oks(case("1n8g"), 239))), 200)
    assert text.count('name one that is, as base "1n8g"') == 1
    assert "no runs yet" in render(speedup_table(report_of([])))


def test_terminal_shows_what_logs_say_and_obeys_none_of_it() -> None:
    table = trouble_table(sweep())
    text = render(table, 200)
    assert SHOWN in text
    assert "\x1b" not in text
    assert text.count("torch/bert/bz32/4n8g/bert_b32_fp32_") == 3
    assert trouble_table(oks(case(), 1)) is None
    odd = replace(case(), model="[bold]m\x1b[2J[/bold]")
    assert r"[bold]m\x1b[2J[/bold]" in render(speedup_table(report_of(oks(odd, 1))))


def test_status_table_counts_every_run() -> None:
    lines = [line.split() for line in render(status_table(sweep())).splitlines()]
    assert ["topology", "ok", "partial", "failed", "timeout", "rejected", "all"] in lines
    assert ["1n1g", "3", "3"] in lines
    assert ["2n8g", "3", "1", "4"] in lines
    assert ["4n8g", "1", "1", "1", "3"] in lines
    assert ["all", "6", "1", "1", "1", "1", "10"] in lines


def test_printed_report_and_status(capsys: pytest.CaptureFixture[str]) -> None:
    results = sweep()
    print_report(report_of(results, "quick [sweep]"))
    text = capsys.readouterr().out
    assert "quick [sweep]" in text
    assert "QOSMaxNodePerUser" in text
    failed = [bad(case(), n, Status.FAILED, f"cause {n}.") for n in range(1, 26)]
    print_status(Collection(Path("x"), PLAN, (*oks(case("1n8g"), 5), *failed)), "logs/x")
    text = capsys.readouterr().out
    assert "cause 20." in text
    assert "cause 21." not in text
    assert "and 5 more; --json shows them all" in text
    print_status(Collection(Path("x"), PLAN, ()), "logs/x")
    assert "topology" in capsys.readouterr().out


@pytest.mark.parametrize("sign", ["=", "+", "-", "@", "\uff1d", "\x1b[m=", "\n\t+"])
def test_a_text_that_a_spreadsheet_would_compute_is_marked_as_text(sign: str) -> None:
    text = sign + 'HYPERLINK("http://a","b")'
    results = [replace(bad(case(), 1, Status.FAILED, text), log=text), ok(case(), 2, 5.5)]
    made = rows_of(RUN_COLUMNS, results)
    made[1]["exposed_comm"] = -0.25
    told = list(csv.DictReader(StringIO(csv_table(RUN_COLUMNS, made).decode())))
    assert told[0]["reason"] == told[0]["log"] == "'" + printable(text)
    assert made[0]["reason"] == printable(text)  # in JSON, Parquet and SQLite it stays as it is
    assert told[1]["exposed_comm"] == "-0.25"


def test_why_runs_wait_is_grouped_with_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few lines however many runs there are, and none of them too wide for a terminal."""
    monkeypatch.setenv("COLUMNS", "80")
    held = RunResult(
        Run(case("1n8g"), 1), Status.PENDING, "Slurm: PENDING (JobHeldUser)", to_do="`dlperf x DIR`"
    )
    lost = replace(held, status=Status.UNKNOWN, reason="the scheduler says nothing of it", to_do="")
    results = [
        *(replace(held, run=Run(case("1n8g"), n)) for n in range(1, 8)),
        *(replace(lost, run=Run(case("2n8g"), n)) for n in range(1, 4)),
        *(replace(lost, run=Run(case("4n8g"), n), reason=f"cause {n}") for n in range(1, 31)),
    ]
    missing = frozenset(result.run.id for result in results[:2])
    print_status(Collection(Path("x"), PLAN, tuple(results), unsubmitted=missing), "logs/[x]")
    text = capsys.readouterr().out
    lines = [line.split() for line in text.splitlines()]
    assert ["topology", "not", "submitted", "pending", "unknown", "all"] in lines
    assert ["1n8g", "2", "5", "7"] in lines
    (row,) = (line for line in text.splitlines() if "JobHeldUser" in line or " 7  pending" in line)
    assert row.split()[:2] == ["7", "pending"] and "logs/[x]" in row
    assert "other reasons: --json shows them all" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80 and len(lines) < 40


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain text", "plain text"),
        (" a \t b\r\n\nb\x00c", r"a b / b\x00c"),
        ("\x1b]0;title\x07x", r"\x1b]0;title\x07x"),
        ("\x1b[1;31mred\x1b[0m\x1b(B", r"red\x1b(B"),
        ("bad \udcff byte", r"bad \udcff byte"),
        ("\u202eright to left\u2028", r"\u202eright to left"),
        ("\x7f\x9b2J\u2066\u200f\ufeff\xad", r"\x7f\x9b2J\u2066\u200f\ufeff\xad"),
        ("naïve 速度", "naïve 速度"),
    ],
)
def test_printable(raw: str, shown: str) -> None:
    assert printable(raw) == shown


@given(st.text(st.characters()))
def test_printable_text_is_one_clean_line(text: str) -> None:
    shown = printable(text)
    shown.encode()
    assert len(shown.splitlines()) <= 1
    assert printable(shown) == shown
    assert not any(ord(char) < 32 or ord(char) == 127 for char in shown)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((None, ""), (1147.9, "1147.90"), (3.8906, "3.891"), (0.01234567, "0.01235")),
        *((99_999.5, "99999.50"), (1_048_576.25, "1048576")),
    ],
)
def test_number(value: float | None, text: str) -> None:
    assert number(value) == text


# --- throughputs in several units ----------------------------------------------------------------


def in_tokens() -> list[RunResult]:
    """Three runs each on one device and on eight, of logs that give tokens/s alone."""
    return tokens("1n1g", 8000, 8100, 8200) + tokens("1n8g", 60_000, 61_000, 62_000)


def in_both_units() -> list[RunResult]:
    return external("1n1g", {"samples/s": 50.0}) + tokens("1n8g", 61_000.0)


def test_tables_of_tokens_leave_samples_empty() -> None:
    small, large = case_cells(in_tokens())
    assert (small["speedup_of"], large["tokens_per_s"]) == ("tokens/s", "61000.0")
    assert (large["tokens_per_s_low"], large["tokens_per_s_high"]) == ("60000.0", "62000.0")
    assert (large["tokens_per_s_per_device"], large["base_tokens_per_s"]) == ("7625.0", "8100.0")
    assert float(large["speedup"]) == pytest.approx(61_000 / 8100)
    empty = [name for name in large if "samples_per_s" in name] + ["base_low", "base_high"]
    assert {large[name] for name in empty} == {""}
    run = run_cells(in_tokens())[-1]
    assert (run["samples_per_s"], run["tokens_per_s"]) == ("", "62000.0")
    assert (run["tokens_per_s_per_device"], run["rule"]) == ("7750.0", "printed[20:120]")


def test_checks_stand_in_the_unit_of_the_window() -> None:
    (run,) = tokens("1n1g", 8000)
    assert run.external is not None
    (row,) = run_cells([replace(run, external=replace(run.external, check=7990.0))])
    assert (row["check_samples_per_s"], row["check_tokens_per_s"]) == ("", "7990.0")


def test_tables_for_people_name_the_unit() -> None:
    text = markdown(in_tokens())
    assert "Base: 1n1g, 8100.00 tokens/s (3 runs, CI 8000.00-8200.00 (75.0 %))." in text
    rows = list(table_rows(text))
    assert rows[0][2:6] == ["tokens/s", "CI (coverage)", "speedup", "speedup CI"]
    assert rows[3][2:5] == ["61000.00", "60000.00-62000.00 (75.0 %)", "7.53"]
    shown = render(speedup_table(report_of(in_tokens())))
    assert "tokens/s" in shown and "samples/s" not in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_tables_for_people_name_both_units_of_a_series() -> None:
    rows = list(table_rows(markdown(in_both_units())))
    assert rows[0][2] == "throughput"
    assert [row[2] for row in rows[2:4]] == ["50.00 samples/s", "61000.00 tokens/s"]
    shown = render(speedup_table(report_of(in_both_units())), 200)
    assert "61000.00 tokens/s" in shown
    assert "1n8g: no speedup: this is in tokens/s, the base 1n1g in samples/s" in shown


def test_option_pairs_name_their_unit() -> None:
    results = tokens("1n1g", 8000) + tokens("1n1g", 9000, tags=("compile",))
    told = as_json(report_of(results))["switches"]
    assert [(each["unit"], each["ratio"]) for each in told] == [("tokens/s", 1.125)]
    assert "| tokens/s off |" in markdown(results)
    unlike = external("1n1g", {"samples/s": 50.0}) + tokens("1n1g", 9000, tags=("compile",))
    assert as_json(report_of(unlike))["switches"] == []


# --- picture -------------------------------------------------------------------------------------


def png(results: list[RunResult], title: str = "sweep", base: str | None = None) -> bytes | None:
    return picture(Report(title, results, base))


def size(data: bytes | None) -> tuple[int, int]:
    assert data is not None
    assert data.startswith(b"\x89PNG\r\n")
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


def test_no_picture_of_nothing() -> None:
    assert png([]) is None
    assert png([bad(case(), 1, Status.FAILED, timed=window(case(), 100))]) is None


def test_picture_of_one_run_one_topology_or_no_base() -> None:
    assert size(png(oks(case(), 100))) == (1200, 600)
    assert size(png(oks(case("1n8g"), 100, 101, 102))) == (1200, 600)
    assert size(png(oks(case("1n8g"), 239) + oks(case("4n8g"), 717))) == (1200, 600)


def test_picture_of_many_series_grows_with_their_names() -> None:
    results = [
        run
        for index in range(40)
        for topology in ("1n1g", "1n8g")
        for run in oks(case(topology, tags=(f"v{index}",)), 100.0 + index, 101.0)
    ]
    width, height = size(png(results))
    assert width == 1200
    assert height > 600
    text = svg(results)
    assert [n for n in range(40) if text.count(f">fp32-v{n}<") != 2] == []


def svg(results: list[RunResult], title: str = "sweep", base: str | None = None) -> str:
    data = picture(Report(title, results, base), file_format="svg")
    assert data is not None
    return data.decode()


@pytest.fixture
def _text_in_svg(monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib

    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")


@pytest.mark.usefixtures("_text_in_svg")
def test_picture_names_sweep_axes_and_series() -> None:
    text = svg(sweep(), "bert $fp32 & more")
    for shown in ("bert $fp32 &amp; more", "grey: linear from the base"):
        assert shown in text
    for shown in ("torch/bert/bz32/fp32", "efficiency", "samples/s per device"):
        assert f">{shown}<" in text


@pytest.mark.usefixtures("_text_in_svg")
def test_picture_has_a_panel_for_each_unit() -> None:
    alone = svg(in_tokens())
    assert "tokens/s per device" in alone and "samples/s per device" not in alone
    both = svg(in_tokens() + oks(case("1n1g"), 100) + oks(case("1n8g"), 780))
    for shown in ("tokens/s per device", "samples/s per device"):
        assert both.count(f">{shown}<") == 1
    assert both.count(">torchtitan/llama") == 2  # its efficiency too
    assert size(png(in_both_units())) == (1200, 600)


@pytest.mark.usefixtures("_text_in_svg")
def test_picture_without_a_base_promises_nothing() -> None:
    results = oks(case("1n8g"), 239) + oks(case("4n8g"), 717)
    assert "linear from the base" not in svg(results)
    assert "linear from the base" in svg(results, base="1n8g")
    assert ">efficiency<" not in svg(results)


# --- docs and imports ----------------------------------------------------------------------------


def documented(heading: str) -> list[tuple[str, ...]]:
    """Rows of the first table under a heading of docs/csv.md, without its two header lines."""
    section = (ROOT / "docs" / "csv.md").read_text().split(f"\n## {heading}\n")[1]
    rows = table_rows(section.split("\n## ")[0])
    return [tuple(cell.replace("\\|", "|") for cell in row) for row in rows][2:]


def documented_columns(heading: str) -> set[tuple[str, ...]]:
    """Each column under that heading; a row may have several that mean the same."""
    found: set[tuple[str, ...]] = set()
    for names, units, meaning in documented(heading):
        each = names.split(", ")
        of = units.split(", ") if ", " in units else [units] * len(each)
        found |= {(name, unit, meaning) for name, unit in zip(each, of, strict=True)}
    return found


def test_docs_name_every_column_with_unit_and_meaning() -> None:
    of_a_case, of_a_run = (
        {(f"`{each.name}`", each.unit, each.meaning) for each in columns}
        for columns in (CASE_COLUMNS, RUN_COLUMNS)
    )
    assert documented_columns("speedup.csv") == of_a_case
    assert documented_columns("runs.csv") == of_a_run - of_a_case
    text = (ROOT / "docs" / "csv.md").read_text().split("\n## runs.csv\n")[1].split("| column")[0]
    assert set(re.findall(r"`\w+`", text)) == {name for name, *_ in of_a_run & of_a_case}


def test_docs_name_every_flag() -> None:
    assert documented("The flags") == [(f"`{flag}`", text) for flag, text in FLAGS.items()]


@pytest.mark.processes
def test_nothing_heavy_is_imported_until_it_is_needed() -> None:
    program = (
        "import sys, dlperf_hpc.reporting.report_tables\n"
        "from dlperf_hpc.reporting.writers import writers; writers()\n"
        "heavy = {'pandas', 'numpy', 'matplotlib', 'rich', 'scipy', 'jinja2'} & set(sys.modules)\n"
        "sys.exit(f'imported: {sorted(heavy)}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_ci_server_sees_a_test_for_each_run(tmp_path: Path) -> None:
    runs = [*oks(case(), 100.0), bad(case(), 2, Status.FAILED, "rank 1: <boom> \x1b[31m")]
    runs.append(bad(case(), 3, Status.PENDING))
    write_report(tmp_path, report_of(runs), ["junit"])
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()
    told = [(each.get("name"), [child.tag for child in each]) for each in suite]
    assert told == [
        ("1n1g repeat 1 attempt 1", ["system-out"]),
        ("1n1g repeat 2 attempt 1", ["failure"]),
        ("1n1g repeat 3 attempt 1", ["skipped"]),
    ]
    failure = suite.find("testcase/failure")
    assert failure is not None and failure.attrib["message"].startswith("failed: rank 1: <boom>")
    assert (suite.get("failures"), suite.get("skipped")) == ("1", "1")
