"""`dlperf archive`: one zip archive, and what is printed about it."""

from __future__ import annotations

import json
import os
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from record_samples import a_run, a_sweep, ended_ok, paths

from dlperf_hpc.cli import report, status
from dlperf_hpc.cli.archive import main

RUNS = [a_run(repeat=1), a_run(repeat=2)]


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sweep of the local engine whose second run has not begun."""
    monkeypatch.chdir(tmp_path)
    a_sweep(tmp_path / "sample", RUNS)
    ended_ok(tmp_path / "sample", RUNS[0])
    return tmp_path / "sample"


def test_json_tells_the_archive_its_size_and_what_had_not_ended(sweep: Path, capsys: Any) -> None:
    assert main([str(sweep), "--anyway", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    archive = Path("sample.zip")
    assert facts == {
        "root": str(sweep),
        "archive": "sample.zip",
        "files": len(zipfile.ZipFile(archive).namelist()),
        "bytes": archive.stat().st_size,
        "unfinished": [RUNS[1].id],
        "left_out": {},
    }


def test_a_sweep_that_has_not_ended_is_refused(sweep: Path, capsys: Any) -> None:
    assert main([str(sweep), "--json"]) == 2
    output = capsys.readouterr()
    assert output.out == "" and f"1 run has not ended ({RUNS[1].id}: pending)" in output.err
    assert list(Path().glob("*.zip")) == []


def test_a_finished_sweep_is_told_in_words(sweep: Path, capsys: Any) -> None:
    ended_ok(sweep, RUNS[1])
    assert main([str(sweep), "--out", "kept.zip"]) == 0
    assert capsys.readouterr().out.startswith("written: kept.zip (")


def test_what_is_wrong_in_an_archive_is_told_of_the_archive(sweep: Path, capsys: Any) -> None:
    """Not of the directory that it was unpacked into, which has gone by then."""
    ended_ok(sweep, RUNS[1])
    assert main([str(sweep), "--out", "kept.zip"]) == 0
    log = paths(sweep, RUNS[0]).log
    with zipfile.ZipFile("kept.zip") as whole, zipfile.ZipFile("odd.zip", "w") as odd:
        for name in whole.namelist():
            content = whole.read(name)
            if not name.endswith(f"{log.stem}.json"):
                odd.writestr(name, b"no log of ours\n" if name.endswith(log.name) else content)
    capsys.readouterr()
    told = f"odd.zip/{log.relative_to(sweep)}: no 'dlperf ... begin' line"
    status.main(["odd.zip", "--json"])
    assert json.loads(capsys.readouterr().out)["root"] == "odd.zip"
    report.main(["odd.zip", "--out", "report"])
    assert f"not read: {told}" in capsys.readouterr().err
    for name in ("runs.csv", "report.md", "report.json"):
        assert (
            f"{tempfile.gettempdir()}/dlperf-" not in (sweep.parent / "report" / name).read_text()
        )


def test_a_log_in_an_archive_is_as_old_as_it_was(sweep: Path, capsys: Any) -> None:
    """A run that was killed long ago is not told of as running, because its log has just been
    unpacked."""
    found = paths(sweep, RUNS[0])
    found.record.unlink()
    found.log.write_bytes(found.log.read_bytes().rpartition(b"dlperf ")[0])
    two_days_ago = time.time() - 2 * 86400
    os.utime(found.log, (two_days_ago, two_days_ago))
    assert main([str(sweep), "--anyway"]) == 0
    capsys.readouterr()
    told = []
    for place in (str(sweep), "sample.zip"):
        assert status.main([place, "--offline", "--json"]) == 1
        told.append([run["status"] for run in json.loads(capsys.readouterr().out)["runs"]])
    assert told == [["unknown", "pending"]] * 2
