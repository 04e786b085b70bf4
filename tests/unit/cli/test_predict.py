"""``predict`` as a command, and the files of a report, from logs on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from record_samples import a_sweep, ended_ok, many
from report_samples import case

from dlperf_hpc.cli.predict import main
from dlperf_hpc.cli.report import main as report
from dlperf_hpc.model.case import Case

STEP_S = {1: 0.1, 2: 0.11}
"""Time of a step by nodes; 12 of 13 parts of what a window of these logs takes for it."""


def a_sweep_of(root: Path, *cases: Case) -> Path:
    """A sweep whose runs have ended, with steps of these times."""
    runs = many([*cases], 2)
    a_sweep(root, runs)
    for run in runs:
        ended_ok(root, run, seconds=3 * STEP_S[run.case.topology.nodes])
    return root


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """A sweep on 1 and 2 nodes of 2 devices, with a case that uses half of a node."""
    return a_sweep_of(tmp_path / "sweep", case("1n1g"), case("1n2g"), case("2n2g"))


def answer(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, and output of the verb with its blanks as one."""
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as end:
        code = int(end.code or 0)
    out, err = capsys.readouterr()
    return code, " ".join(out.split()), err


def test_a_table_with_the_loss_of_confidence_and_the_calibration(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = answer(capsys, sweep)
    assert (code, err) == (0, "")
    assert "torch/bert/bz32/fp32 case samples/s interval" in out
    assert "1n1g" not in out and "2n2g" in out and "measured" in out
    assert "4n2g" in out and "ring" in out and "8n2g" in out and "gamma 0.5" in out
    assert "9.1 % of a device's throughput is lost from 1 to 2 nodes: with each doubling" in out
    assert "confidence falls" in out and "calibrated on 105 published ladders" in out
    assert "guarantee" not in out


def test_json_has_every_count_and_the_law_as_computed_here(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(sweep), "--nodes", "4, 8,16", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    (series,) = found["series"]
    assert found["schema"] == "dlperf-predict/1" and series["not_predicted"] is None
    rows = {row["nodes"]: row for row in series["node_counts"]}
    assert [*rows] == [1, 2, 4, 8]
    assert [rows[n]["basis"] for n in rows] == ["measured", "measured", "ring", "gamma 0.5"]
    speeds = [rows[n]["throughput"] for n in (1, 2)]
    steps = [n * 2 * 32 / speed for n, speed in zip((1, 2), speeds)]
    added = 1.5 * (steps[1] - steps[0])
    assert rows[4]["throughput"] == pytest.approx(4 * 2 * 32 / (steps[0] + added))
    assert rows[4]["topology"] == "4n2g" and rows[4]["devices"] == 8
    assert rows[4]["half_width"] == pytest.approx(0.65 * (0.02 + 1 - steps[0] / steps[1]))
    assert rows[8]["tree"] < rows[8]["throughput"] < rows[8]["ring"]
    assert series["loss"] == pytest.approx(1 / 11)
    assert [each["nodes"] for each in series["refused"]] == [16]


def test_beyond_what_was_measured_components_stand_alone(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = answer(capsys, sweep, "--beyond", "--nodes", "4,64", "--failures", "0.0038")
    assert (code, err) == (1, "")
    # A tree adds 10 % of a step for each doubling, a ring 20 % (N - 1) / N.
    assert "64 network 62.5-83.6 64 stragglers -" in out
    assert "network: tree to ring; 9.1 % lost up to 2" in out
    assert "stragglers on 4: 12 iterations reach 1 times 2 nodes: measure 15 iterations on 2" in out
    assert "no checkpoint was timed: measure with checkpoint = true" in out
    assert "their product is no prediction" in out and "samples/s" not in out
    assert main([str(sweep), "--beyond", "--nodes", "64", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "dlperf-predict-beyond/1"
    (network, *_) = found["components"]
    assert network["low"] == pytest.approx(1 / (1.1 + 0.1 * 5))
    for wrong in (["--beyond"], ["--failures", "1"], ["--beyond", "--failures", "none"]):
        assert answer(capsys, sweep, *wrong)[0] == 2


@pytest.mark.processes
def test_a_report_has_the_same_as_a_section(
    sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([str(sweep), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert report([str(sweep), "--out", str(tmp_path), "--write", "json,md,html"]) == 0
    assert json.loads((tmp_path / "report.json").read_text())["predictions"] == found
    written = (tmp_path / "report.md").read_text()
    assert "## More nodes, predicted" in written and "| 4n2g |" in written
    page = (tmp_path / "report.html").read_text()
    assert "More nodes, predicted" in page and "8n2g" in page
    assert "calibrated on 105 published ladders" in page


@pytest.mark.processes
def test_a_report_of_one_node_count_has_no_such_section(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = a_sweep_of(tmp_path / "sweep", case("1n1g"), case("1n2g"))
    assert report([str(root), "--out", str(tmp_path), "--write", "json,md,html"]) == 0
    assert json.loads((tmp_path / "report.json").read_text())["predictions"] is None
    assert "predicted" not in (tmp_path / "report.md").read_text()
    assert "More nodes" not in (tmp_path / "report.html").read_text()
    capsys.readouterr()
    code, out, err = answer(capsys, root)
    assert (code, err) == (2, "nothing is predicted\n")
    assert "(1 node): measure 2 nodes as well" in out


def test_a_series_without_a_prediction_beside_one_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = case("1n2g", batch_size=16)
    root = a_sweep_of(tmp_path / "sweep", case("1n2g"), case("2n2g"), other)
    code, out, err = answer(capsys, root)
    assert (code, err) == (1, "")
    assert "4n2g" in out and "not predicted: full nodes were measured in one count only" in out


def test_what_is_refused_of_single_counts_is_said_once_for_all(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = answer(capsys, sweep, "--nodes", "16,32,4")
    assert code == 1 and "not predicted for nodes = 16, 32: two node counts reach" in out
    code, out, err = answer(capsys, sweep, "--nodes", "16")
    assert (code, err) == (2, "nothing is predicted\n")


@pytest.mark.parametrize("text", ["", "0", "4,", "-1", "many", "4;8", "1e3"])
def test_counts_that_are_none(sweep: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = answer(capsys, sweep, f"--nodes={text}")
    assert (code, out) == (2, "") and "is not a count of 1 or more" in err


def test_nothing_to_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = answer(capsys, tmp_path)
    assert (code, out) == (2, "") and err.startswith("error: ")
    code, _, err = answer(capsys, tmp_path / "absent")
    assert code == 2 and "absent" in err


def test_logs_of_another_program_in_two_directories(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for nodes, speed in ((1, 1000.0), (2, 950.0)):
        place = tmp_path / f"{nodes}"
        place.mkdir()
        lines = [f"Iter #{n}: {speed / 8:.1f} img/sec per GPU" for n in range(10)]
        text = f"Model: resnet50\nBatch size: 32\nNumber of GPUs: {8 * nodes}\n"
        (place / f"resnet50_b32_fp32_{nodes}n8g_1.log").write_text(
            text
            + "\n".join(lines)
            + f"\nTotal img/sec on {8 * nodes} GPU(s): {nodes * speed:.1f} +-1.0\n"
        )
    code, out, err = answer(capsys, tmp_path / "1", tmp_path / "2", "--no-cache")
    assert code == 0, (out, err)
    assert "4n8g" in out and "5.0 % of a device's throughput is lost" in out


def test_eighty_columns_are_enough(
    sweep: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([str(sweep)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any("tree-ring" in line for line in lines)  # the bracket is what must not be dropped
    monkeypatch.setenv("COLUMNS", "40")
    assert main([str(sweep)]) == 0
    assert "no room for tree-ring: --json has it" in capsys.readouterr().out
