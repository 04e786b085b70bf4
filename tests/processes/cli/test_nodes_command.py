"""``nodes`` as a command: what it names, its exit codes, its JSON; and the files of a report."""

from __future__ import annotations

import contextlib
import csv
import io
import json
from pathlib import Path

import pytest
from record_samples import a_sweep, begun, ended_ok, manifest, many, timed
from report_samples import case

from dlperf_hpc.__main__ import main
from dlperf_hpc.model.case import Run
from dlperf_hpc.train import joblog
from dlperf_hpc.train.measurement import Communication

CASES = [case("2n1g"), case("2n1g", batch_size=16)]
PLACES = ["n1 n2", "n3 n4", "n1 n3", "n2 n4", "n1 n4", "n2 n3", "n1 n2"]


def told(*arguments: object) -> tuple[int, str, str]:
    """Exit code and output of the command."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as exit_:
            code = int(exit_.code or 0)
    return code, out.getvalue(), err.getvalue()


def measured(root: Path, run: Run, hosts: str, seconds: float, own: tuple[float, ...]) -> None:
    """A run of two ranks on two nodes, with each rank's own time."""
    attempt = begun(root, run)
    found = Communication("", 3, 50.0, max(own, default=45.0), own, "" if own else "they wait")
    joblog.log_window(attempt, measured_ := joblog.Measured(
        manifest([run]).measure, timed(2, seconds=seconds), found))  # fmt: skip
    joblog.end_ok(attempt, measured_)
    first, second = hosts.split()
    text = attempt.paths.log.read_text().replace('hosts=["n1"]', f'hosts=["{first}","{second}"]')
    text = text.replace("rank=0 host=n1", f"rank=0 host={first}")
    text = text.replace("rank=1 host=n1 local_rank=1", f"rank=1 host={second} local_rank=0")
    attempt.paths.log.write_text(text)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two cases on pairs of four nodes; n3 is 6 % slower, and so are its own steps."""
    root = tmp_path_factory.mktemp("logs") / "sample"
    runs = many(CASES, len(PLACES))
    a_sweep(root, runs)
    for number, run in enumerate(runs):
        hosts = PLACES[run.repeat - 1]
        slow = "n3" in hosts
        own = tuple(45.0 * (1.06 if host == "n3" else 1.0) for host in hosts.split())
        seconds = 0.05 * (1.06 if slow else 1.0) * (1 + 0.001 * (number % 3))
        measured(root, run, hosts, seconds, own if number else ())
    return root


def test_a_slow_node_is_named_both_ways_and_the_exit_code_says_so(sweep: Path) -> None:
    code, out, err = told("nodes", sweep)
    text = " ".join(out.split())
    assert (code, err) == (1, "")
    assert "slow: n3: runs with it are -5." in text and "p: <0.001)" in text
    assert "slow: n3 rank 0, +6.0 %, slowest in 6 of 6 runs on it" in text
    assert "no rank's own times of 1 run: they wait" in text
    assert "--exclude-nodes n3" in text and "doctor --pairs 3" in text


def test_json_and_the_files_of_a_report(sweep: Path, tmp_path: Path) -> None:
    code, out, _ = told("nodes", sweep, "--json")
    answer = json.loads(out)
    assert code == 1 and answer["slow"] == ["n3"] and answer["schema"] == "dlperf-nodes/1"
    assert {row["node"] for row in answer["nodes"]} == {"n1", "n2", "n3", "n4"}
    told("report", sweep, "--out", tmp_path)
    with open(tmp_path / "nodes.csv", encoding="utf-8") as file:
        first, *others = csv.DictReader(file)
    assert (first["node"], first["slow"], first["device_slow"]) == ("n3", "true", "true")
    assert {row["slow"] for row in others} == {"false"}
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["nodes"] == answer
    assert report["cost"]["node_hours_asked"] == pytest.approx(14 * 2 * 600 / 3600)
    assert report["cost"]["runs"] == 14 and report["cost"]["samples_per_node_hour"] > 0


def test_nothing_to_compare_names_nobody(tmp_path: Path) -> None:
    runs = many([case("1n2g")], 3)
    a_sweep(tmp_path, runs)
    for run in runs:
        ended_ok(tmp_path, run)
    code, out, _ = told("nodes", tmp_path)
    text = " ".join(out.split())
    assert code == 0 and "no node is named, and none can be" in text
    assert "n1: all runs of its cases were on the same nodes" in text
    assert "of 3 runs: its log, of an earlier version," in text


def test_what_is_refused(tmp_path: Path) -> None:
    assert told("nodes", tmp_path / "absent")[0] == 2
    a_sweep(tmp_path, many([case("1n1g")], 1))
    code, _, err = told("nodes", tmp_path)
    assert code == 2 and "no run that counts tells its nodes" in err
    assert told("nodes", tmp_path, "--risk", "2")[0] == 2
    for arguments in (["--pairs", "0"], ["--pairs", "2", "--all-nodes"], ["--nodelist", "n1"],
                      ["--pairs", "2", "--nodelist", "n1 n2;x"]):  # fmt: skip
        assert told("doctor", "--cluster", "local", *arguments)[0] == 2
