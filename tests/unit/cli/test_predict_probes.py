"""``predict`` by probes of all-reduces, from logs on disk, with steps 1.1 times as long."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import record_samples
from record_samples import COMMUNICATION, FACTS, a_sweep, begun, ended_ok, many, timed
from report_samples import case

from dlperf_hpc.cli.predict import main
from dlperf_hpc.model.case import Case, Measure
from dlperf_hpc.model.result import AllReduces
from dlperf_hpc.records.lines import PROBE, write_line
from dlperf_hpc.records.logfile import result_of_log
from dlperf_hpc.train import joblog
from dlperf_hpc.train.measurement import Communication

ALONE_MS = {1: 10.0, 2: 30.0, 4: 35.0}


def step(nodes: int) -> float:
    return 0.1 + 0.8 * ALONE_MS[nodes] / 1e3


@pytest.fixture(autouse=True)
def only_windows_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The samples' exposed communication is not that of these steps."""
    monkeypatch.setattr(record_samples, "COMMUNICATION", Communication("none was timed"))


def probed(root: Path, *cases: Case, seconds: float | None = None) -> Path:
    """A sweep whose runs ended well, were probed, and took this long for a step."""
    runs = many([*cases], 2)
    a_sweep(root, runs)
    for run in runs:
        at = run.case.topology
        log = Path(ended_ok(root, run, seconds=3 * (seconds or step(at.nodes))).log)
        figures = {"by": "x", "ranks": at.devices, "buckets": 1, "bytes": [4096], "iterations": [3]}
        *head, end = log.read_text().splitlines(keepends=True)
        line = write_line(PROBE, {**figures, "ms": [ALONE_MS[at.nodes]]})
        log.write_text("".join([*head, f"{line}\n", end]))
    return root


def answer(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[dict[str, object]]:
    assert main([*map(str, arguments), "--json"]) == 0
    (series,) = json.loads(capsys.readouterr().out)["series"]
    found: list[dict[str, object]] = series["node_counts"]
    return found


def test_probes_of_another_sweep_replace_the_curve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = probed(tmp_path / "trained", case("1n2g"), case("2n2g"))
    others = probed(tmp_path / "probes", case("4n2g"), seconds=99.0)
    *_, four = answer(capsys, trained, "--nodes", 4, "--probes", others)
    assert four["basis"] == "probe, rho 0.88"
    assert four["efficiency"] == pytest.approx(step(1) / step(4))
    *_, alone = answer(capsys, trained, "--nodes", 4)
    assert alone["basis"] == "ring"
    assert main([str(trained), "--nodes", "4", "--probes", str(others)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "probe, rho 0.88" in out and "no published table tests it" in out


def test_a_line_and_a_record_as_a_run_writes_them(tmp_path: Path) -> None:
    found = AllReduces("gloo", 2, 3, (4000, 1000), (2.0, 1.0), (3, 5))
    (run,) = many([case("1n2g")], 1)
    a_sweep(tmp_path, [run])
    attempt = begun(tmp_path, run, "100_0.0")
    measured = joblog.Measured(Measure(), timed(), COMMUNICATION, FACTS, found)
    joblog.log_window(attempt, measured)
    joblog.log_all_reduces(attempt, found, "none of 500 bytes and less: the budget is spent")
    joblog.end_ok(attempt, measured)
    result = result_of_log(attempt.paths.log)
    assert result.allreduces == found
    assert result.warnings == ("allreduce_probe: none of 500 bytes and less: the budget is spent",)
    record = json.loads(attempt.paths.record.read_text())
    assert record["allreduce_probe"]["bytes"] == [4000, 1000]
    line = attempt.paths.log.read_text()
    assert "bus_gb_s=[0.002,0.001]" in line


def test_a_damaged_line_is_a_warning_and_the_run_counts(tmp_path: Path) -> None:
    sweep = probed(tmp_path / "sweep", case("1n2g"))
    (log, *_) = sweep.rglob("*_1.log")
    log.write_text(log.read_text().replace("ms=[10.0]", "ms=[-10.0]"))
    result = result_of_log(log)
    assert result.counts and result.allreduces is None
    assert "the allreduce_probe line is not complete: ms is [-10.0]" in result.warnings
