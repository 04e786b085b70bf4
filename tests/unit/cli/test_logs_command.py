"""`dlperf logs`: the log of one run, its path, and both as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from record_samples import a_run, a_sweep, ended, ended_ok, paths

from dlperf_hpc.cli.logs import main
from dlperf_hpc.model.result import Status

RUNS = [a_run(repeat=1), a_run(repeat=2)]


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """A sweep whose first run ended well at its second attempt; the second run has not begun."""
    a_sweep(tmp_path, RUNS)
    ended(tmp_path, RUNS[0], Status.FAILED, "ValueError: x", launch="100_0.0")
    ended_ok(tmp_path, RUNS[0], launch="101_0.0")
    return tmp_path


def test_json_tells_the_run_and_where_its_files_are(sweep: Path, capsys: Any) -> None:
    assert main([str(sweep), RUNS[0].id, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    log = paths(sweep, RUNS[0]).log
    assert found == {
        "run": RUNS[0].id,
        "attempt": 2,
        "status": "ok",
        "reason": "",
        "log": str(log),
        "output": None,
        "earlier_logs": [str(log.parent / "attempts" / f"{log.stem}.attempt1.log")],
    }
    assert all(Path(path).is_file() for path in found["earlier_logs"])


def test_json_of_a_run_that_has_not_begun(sweep: Path, capsys: Any) -> None:
    assert main([str(sweep), RUNS[1].id, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["status"], found["attempt"], found["log"]) == ("pending", None, None)
    assert found["earlier_logs"] == []


@pytest.mark.parametrize("other", ["-f", "--path"])
def test_json_goes_with_no_other_way_to_show_a_log(sweep: Path, other: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as left:
        main([str(sweep), RUNS[0].id, "--json", other])
    assert left.value.code == 2 and "not allowed with argument" in capsys.readouterr().err


def test_the_log_is_shown_as_it_is(sweep: Path, capsys: Any) -> None:
    assert main([str(sweep), RUNS[0].id]) == 0
    assert capsys.readouterr().out == paths(sweep, RUNS[0]).log.read_text()


def test_a_part_of_an_id_must_name_one_run(sweep: Path, capsys: Any) -> None:
    assert main([str(sweep), "bert"]) == 2
    message = capsys.readouterr().err
    assert "2 runs have 'bert' in their id" in message and all(r.id in message for r in RUNS)
    assert main([str(sweep), "gpt"]) == 2
    assert "no run's id has 'gpt'" in capsys.readouterr().err
