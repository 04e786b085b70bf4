"""`dlperf archive`: one zip archive, and what is printed about it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from record_samples import a_run, a_sweep, ended_ok

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
