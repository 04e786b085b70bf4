"""Programs whose output confuses a reader: what a supervisor and a report make of each."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from confusing import FALSE, NONE, RIGHT, ROWS, SILENT, played
from places import ROOT


@pytest.mark.parametrize("name", ROWS)
def test_a_program(name: str, tmp_path: Path) -> None:
    row = ROWS[name]
    found = played(row, tmp_path)
    assert found.verdict == row.want, f"{found.ratio} {found.words}"


def test_what_may_stay_silent_is_in_the_docs() -> None:
    silent = [row.name for row in ROWS.values() if row.want == SILENT]
    page = (ROOT / "docs" / "programs.md").read_text(encoding="utf-8")
    assert len(ROWS) >= 60 and len(silent) <= 8
    assert FALSE not in {row.want for row in ROWS.values()}
    assert [name for name in silent if f"`{name}`" not in page] == []


@pytest.mark.parametrize("name", ["bar-for-20-minutes", "bar-for-20-minutes-told"])
def test_a_bar_alone_is_alive_and_ended_after_its_window(name: str, tmp_path: Path) -> None:
    found = played(ROWS[name], tmp_path)
    assert (found.verdict, found.signals) == (RIGHT, [signal.SIGTERM])


def test_of_two_clocks_the_finer_is_taken_and_both_are_known(tmp_path: Path) -> None:
    found = played(ROWS["whole-seconds"], tmp_path)
    window = found.result.external
    assert (window.basis, window.check_basis, found.words) == ("arrival", "clock", "")
    assert 0.005 < abs(window.check / window.speed - 1) < 0.05


def test_a_reason_that_is_not_the_programs_own_is_false(tmp_path: Path) -> None:
    row = ROWS["bar-of-tqdm"]
    assert played(row, tmp_path / "own").verdict == NONE
    other = type(row)(row.name, row.run, row.want, "some other reason")
    assert played(other, tmp_path / "other").verdict == FALSE
