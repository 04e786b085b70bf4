"""What people look at: tables that fit, series side by side, two sweeps of one case, pictures."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from queueing import printed_by_squeue
from record_samples import a_sweep, begun, ended, ended_ok, many, token_of
from report_samples import bad, case, ok, oks

from dlperf_hpc.cli import report as report_verb
from dlperf_hpc.cli import status as status_verb
from dlperf_hpc.cli.status import _Pace
from dlperf_hpc.model.result import RunResult, Status
from dlperf_hpc.records import layout
from dlperf_hpc.records.manifest import Submission, add_submission
from dlperf_hpc.reporting.contents import Report
from dlperf_hpc.reporting.picture import picture
from dlperf_hpc.reporting.report_tables import print_report, speedup_table
from dlperf_hpc.reporting.run_states import clock, trouble_table
from dlperf_hpc.reporting.table import Table, common_beginning, drawn, natural
from dlperf_hpc.reporting.writers import write_report
from dlperf_hpc.reporting.writers.markdown import markdown

FACTS: dict[str, Any] = {
    "world": {"device_name": "NVIDIA A100-SXM4-40GB", "hosts": ["n10", "n2"]},
    "framework_name": "PyTorch",
    "framework_version": "2.13.0",
}
RUNS = many([case("1n1g"), case("1n2g")], 3)


def shown(what: Any, width: int = 80) -> str:
    from rich.console import Console

    stream = StringIO()
    Console(file=stream, width=width, force_terminal=False).print(
        drawn(what) if isinstance(what, Table) else what
    )
    return stream.getvalue()


def measured(*names: str, batches: tuple[int, ...] = (2,)) -> list[RunResult]:
    """Five runs of each topology and batch, on A100s, with memory and all."""
    found = []
    for batch in batches:
        for name in names:
            of = case(name, batch_size=batch, seq_len=128)
            speed = 100.0 * of.topology.devices
            for each in oks(of, *(speed + n for n in range(6)), memory_mb=31_000.0):
                began, ended_at = "2026-11-20T10:00:01Z", "2026-11-21T09:30:59Z"
                found.append(replace(each, facts=FACTS, started=began, ended=ended_at))
    return found


def test_numbers_in_names_are_sorted_as_numbers() -> None:
    assert sorted(["bz16", "bz2", "bz2/b", "a", "10n8g", "2n8g"], key=natural) == [
        *("2n8g", "10n8g", "a", "bz2", "bz2/b", "bz16"),
    ]
    assert list(Report("x", measured("1n1g", batches=(16, 2))).series) == [
        *("torch/bert/bz2/fp32", "torch/bert/bz16/fp32"),
    ]
    assert common_beginning(["a/b/c", "a/b/d-e"]) == "a/b/" and common_beginning(["a", "a"]) == ""


def test_what_people_decide_by_is_in_the_table() -> None:
    report = Report("x", measured("1n1g", "4n8g"))
    wide = shown(speedup_table(report, 160), 160)
    head = wide.splitlines()[1].split()
    assert " ".join(head) == ("case samples/s CI speedup eff. % ms/it. MFU % mem GB tokens/s runs")
    assert "31.00" in wide and "no room" not in wide
    narrow = shown(speedup_table(report, 60), 60)
    assert max(map(len, narrow.splitlines())) <= 60
    told = " ".join(narrow.split())
    assert "no room for ms/it., MFU %, mem GB, tokens/s: a wider terminal" in told
    assert "eff. %" in narrow and "speedup" in narrow


def test_columns_without_a_figure_are_left_out_without_a_word() -> None:
    text = shown(speedup_table(Report("x", oks(case("1n1g"), 100)), 80))
    assert "MFU" not in text and "mem GB" not in text and "no room" not in text


def test_all_series_stand_side_by_side() -> None:
    results = measured("1n1g", "1n8g", "4n8g", batches=(16, 2))
    text = shown(speedup_table(Report("x", results), 80))
    lines = [line.split() for line in text.splitlines()]
    assert "all series: speedup over 1n1g" in text
    assert ["series", "(torch/bert/...)", "1n1g", "1n8g", "4n8g"] in lines
    assert lines.index(["bz2/fp32", "1.00", "7.83", "31.24"]) + 1 == lines.index(
        ["bz16/fp32", "1.00", "7.83", "31.24"]
    )
    assert "| bz2/fp32 | 1.00 | 7.83 | 31.24 |" in markdown(Report("x", results))
    assert "all series" not in shown(speedup_table(Report("x", measured("1n1g")), 80))
    assert "no room for 1n1g: the tables" in shown(speedup_table(Report("x", results), 25))


def test_the_head_says_when_where_and_on_what(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("x", measured("2n1g"))
    print_report(report)
    head = capsys.readouterr().out.splitlines()[:3]
    assert head[1] == "measured 2026-11-20 10:00 to 2026-11-21 09:30 UTC on 2 hosts (n2, n10)"
    assert head[2] == "Device: NVIDIA A100-SXM4-40GB; Framework: PyTorch 2.13.0"
    assert "- Hosts: 2 (n2, n10)" in markdown(report)


def test_what_logs_warn_of_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    warned = [replace(each, warnings=("the [clock] jumps\x1b[2J",)) for each in oks(case(), 5, 6)]
    reason = bad(case(), 3, Status.FAILED, "it broke")
    report = Report("x", [*warned, replace(reason, warnings=("it broke",))])
    print_report(report)
    text = capsys.readouterr().out
    assert text.count(f"warning of {warned[0].title} and 1 other:") == 1 and "\x1b" not in text
    assert " ".join(text.split()).count("the [clock] jumps") == 1
    assert "it broke" not in text.split("runs that do")[0]
    told = markdown(report)
    assert "## Warnings of runs" in told and " and 1 other: the \\[clock\\] jumps" in told


def test_runs_that_end_for_one_reason_share_a_row() -> None:
    results = [bad(case(), n, Status.FAILED, "no space left") for n in range(1, 6)]
    text = " ".join(shown(trouble_table(results), 200).split())
    assert "bert_b32_fp32_1 and 4 others failed no space left" in text


# --- two sweeps of one case ----------------------------------------------------------------------


def two_sweeps(place: Path) -> tuple[Path, Path]:
    """Two sweeps of one name and the same cases, the second slower, and not a copy."""
    for name, seconds in (("old", 0.05), ("new", 0.1)):
        root = place / name / "bert"
        a_sweep(root, RUNS)
        for run in RUNS:
            ended_ok(root, run, seconds=seconds)
    manifest = place / "new" / "bert" / layout.MANIFEST
    text = manifest.read_text()
    for topology in ("1n1g", "1n2g"):
        text = text.replace(token_of(topology), f"dlperf-{topology.encode().hex()}ff")
    manifest.write_text(text)
    return place / "old" / "bert", place / "new" / "bert"


def reported(*paths: Path, out: Path) -> dict[str, Any]:
    argv = [*map(str, paths), "--out", str(out), "--no-cache", "--write", "csv,json,md,junit,png"]
    report_verb.main(argv)
    told: dict[str, Any] = json.loads((out / "report.json").read_text())
    return told


def test_both_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = two_sweeps(tmp_path)
    told = reported(old, new, out=tmp_path / "out")
    assert [(each["sweep"], each["topology"], each["runs_ok"]) for each in told["cases"]] == [
        ("old/bert", "1n1g", 3), ("old/bert", "1n2g", 3),
        ("new/bert", "1n1g", 3), ("new/bert", "1n2g", 3),
    ]  # fmt: skip
    assert "duplicate-run" not in told["flags"] and not told["unread"]
    first, second = (told["cases"][n]["samples_per_s"] for n in (0, 2))
    assert first == pytest.approx(2 * second, rel=0.2)
    assert [each["speedup"] for each in told["cases"][::2]] == [1, 1]  # each its own base
    assert {each["sweep"] for each in told["runs"]} == {"old/bert", "new/bert"}
    text = capsys.readouterr().out
    assert [line.split()[1] for line in text.splitlines() if line.startswith("1n1g ")] == [
        "new/bert", "old/bert"
    ]  # fmt: skip
    made = (tmp_path / "out" / "report.md").read_text()
    assert "of sweep old/bert" in made and "of sweep new/bert" in made
    assert "of sweep new.bert" in (tmp_path / "out" / "junit.xml").read_text()


def test_a_copy_is_no_second_measurement(tmp_path: Path) -> None:
    import shutil

    old, new = two_sweeps(tmp_path)
    shutil.copytree(old, tmp_path / "copy")
    told = reported(old, tmp_path / "copy", out=tmp_path / "out")
    assert [each["sweep"] for each in told["cases"]] == [None, None]
    assert [each["runs_ok"] for each in told["cases"]] == [3, 3]
    assert told["unread"] == [f"{tmp_path}/copy: is a copy of {old}, whose runs are the same"]
    told = reported(old, tmp_path / "copy", new, out=tmp_path / "out")
    assert [each["runs_ok"] for each in told["cases"]] == [3, 3, 3, 3]


def test_a_log_that_was_cut_is_among_the_runs_that_do_not_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_sweep(tmp_path / "sweep", RUNS[:2])
    ended_ok(tmp_path / "sweep", RUNS[0])
    begun(tmp_path / "sweep", RUNS[1])
    assert report_verb.main([str(tmp_path / "sweep")]) == 1
    text = capsys.readouterr().out
    assert "runs that do not count" in text and "unknown" in text.partition("do not count")[2]


# --- status --------------------------------------------------------------------------------------


def test_cases_with_their_jobs_nodes_and_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "sweep"
    a_sweep(root, RUNS, engine="slurm")
    for topology, job in (("1n1g", "7"), ("1n2g", "8")):
        add_submission(root, Submission(f"{topology}.sample", token_of(topology), job_id=job))
    ended(root, RUNS[0], Status.FAILED, "it broke", launch="7_0.0")
    one, two = token_of("1n1g"), token_of("1n2g")
    rows = printed_by_squeue(f"7_1|RUNNING|None|n3|x|{one}", times="1:02:03|2:00:00|N/A")
    more = printed_by_squeue(
        f"7_2|PENDING|Resources||x|{one}", f"8_[0-2]|PENDING|Priority||x|{two}",
        times="0:00|1-00:00:00|2026-11-23T15:20:00",
    )  # fmt: skip
    (tmp_path / "bin").mkdir()
    squeue = tmp_path / "bin" / "squeue"
    squeue.write_text(f"#!/bin/sh\necho '{rows}{more.partition(chr(10))[2]}'\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", str(squeue.parent))
    monkeypatch.setenv("COLUMNS", "100")
    status_verb.main([str(root)])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    head = next(line for line in lines if line[:1] == ["case"])
    assert head == ["case", "runs", "job", "nodes", "elapsed", "left", "starts"]
    (first,) = (line for line in lines if line[:2] == ["1n1g", "fp32"])
    assert " ".join(first).endswith("7_[1,2] n3 1:02:03 57:57 11-23 15:20")
    (second,) = (line for line in lines if line[:2] == ["1n2g", "fp32"])
    assert " ".join(second).endswith("pending 3 8_[0,1,2] 11-23 15:20")
    status_verb.main([str(root), "--json"])
    told_of = {each["run"]: each for each in json.loads(capsys.readouterr().out)["runs"]}
    running = told_of[RUNS[2].id]
    assert (running["job"], running["nodes"]) == ("7_1", "n3")
    assert (running["elapsed_s"], running["left_s"]) == (3723, 3477)
    waiting = told_of[RUNS[1].id]
    assert (waiting["starts"], waiting["elapsed_s"]) == ("2026-11-23T15:20:00", None)


def test_lengths_of_time() -> None:
    assert [clock(each) for each in (0, 131, 3731.9, 93_784)] == [
        *("0:00", "2:11", "1:02:11", "1-02:03:04"),
    ]


def test_the_pace_is_that_of_the_runs_that_ended_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    pace = _Pace(30.0, began=1000.0)
    monkeypatch.setattr("time.time", lambda: 1000.0 + 120)
    waiting = [bad(case(), n, Status.PENDING) for n in range(1, 11)]
    assert pace.sentence(waiting) == ""
    told = pace.sentence([*oks(case(), 1, 2, 3, 4), *waiting[4:]])
    assert told.startswith("2 runs/min since ") and told.endswith("takes about 3 min")


# --- pictures ------------------------------------------------------------------------------------


def test_lines_of_series_are_named_where_they_end() -> None:
    results = measured("1n1g", "1n8g", batches=(1, 2, 4, 8, 16, 32))
    data = picture(Report("x", results), "svg")
    assert data is not None
    text = data.decode()
    for batch in (1, 2, 4, 8, 16, 32):
        assert text.count(f">bz{batch}<") == 2  # efficiency, and throughput per device
    assert text.count(">torch/bert/...<") == 2
    assert "devices (NVIDIA A100-SXM4-40GB), weak scaling" in text


def test_the_picture_is_written_in_vectors_too(tmp_path: Path) -> None:
    report = Report("x", measured("1n1g", "1n8g"))
    (path,) = write_report(tmp_path, report, ["svg"])
    assert path.name == "speedup.svg" and "weak scaling" in path.read_text()
    assert picture(report, "svg") == path.read_bytes()
    assert write_report(tmp_path, Report("x", []), ["svg"]) == () and not path.exists()


def test_a_run_of_one_sweep_has_its_id_as_title() -> None:
    result = ok(case(), 1, 5.0)
    assert result.title == result.run.id
    assert replace(result, sweep="old").title == f"old: {result.run.id}"
