"""The benchmarks run: with tiny settings, for their form and not for their numbers."""

from __future__ import annotations

import argparse
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

BENCHMARKS = ROOT / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))  # where a benchmark finds its neighbours


def run(name: str, arguments: str) -> dict[str, Any]:
    """What the benchmark says in JSON, as a process of its own."""
    argv = [sys.executable, str(BENCHMARKS / name), *arguments.split(), "--json"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, env=env, text=True, capture_output=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def names_of(name: str) -> dict[str, Any]:
    """The functions and values in a benchmark's file."""
    return runpy.run_path(str(BENCHMARKS / name))


def test_wrapper_cost(capsys: pytest.CaptureFixture[str]) -> None:
    small = "--rounds 6 --iterations 1 --warmup 1 --seq-len 16 --batch-size 2"
    found = run("wrapper_cost.py", small)
    assert len(found["ratios"]) == 6 and all(0.01 < ratio < 100 for ratio in found["ratios"])
    assert found["interval"]["low"] <= found["median"] <= found["interval"]["high"]
    assert found["interval"]["coverage"] >= 0.95
    assert found["target"] == "within 0.5% of 1" and found["verdict"]
    names_of("wrapper_cost.py")["show"](found)
    text = capsys.readouterr().out
    assert "round   6  wrapper / bare" in text and "96.9% interval" in text
    control = run("wrapper_cost.py", f"{small} --control")
    assert control["compared"] == "bare / bare" and len(control["ratios"]) == 6
    timer = run("wrapper_cost.py", f"{small} --timer --cpu-time")
    assert timer["compared"] == "timer / untimed" and len(timer["ratios"]) == 5


def test_verdict_of_wrapper_cost() -> None:
    from dlperf_hpc.model.statistics import Interval

    verdict = names_of("wrapper_cost.py")["verdict"]
    assert verdict(Interval(0.996, 1.004, 0.96)) == "met"
    assert verdict(Interval(0.95, 0.99, 0.96)) == "missed"
    assert verdict(Interval(0.98, 1.001, 0.96)).startswith("not shown")
    assert verdict(None) == "one round says nothing"


def test_horovod_printed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The lines are read as the figure they were printed from; the way to ours is worked out."""
    log = tmp_path / "bert-tiny_b2_fp32_1n1g_1.log"
    small = "--framework ddp --rounds 3 --batches 2 --batch-size 2 --seq-len 16"
    found = run("horovod_printed.py", f"{small} --log {log}")
    first, whole, slowest, stated = found["figures"].values()
    assert first >= whole == slowest > 0 and stated > 0  # one rank; a mean of rates is the larger
    argv = [sys.executable, "-m", "dlperf_hpc", "report", str(log), "--json", "--no-cache"]
    done = subprocess.run(argv, cwd=tmp_path, text=True, capture_output=True, check=True)
    (row,) = json.loads(done.stdout)["runs"]
    assert (row["format"], row["batch_size"], row["topology"]) == ("horovod_synthetic", 2, "1n1g")
    assert row["samples_per_s"] == pytest.approx(first, abs=0.05)
    names = names_of("horovod_printed.py")
    ranks = [
        {"blocks": [1.0, 2.0], "windows": [1.0, 3.0]},
        {"blocks": [2.0, 1.0], "windows": [2.0, 2.0]},
    ]
    assert list(names["compare"](ranks, 4, 3).values()) == [18.0, 16.0, 12.0, 9.6]
    names["show"](found)
    assert "  stated: the same of our windows  " in capsys.readouterr().out


def test_models_beside_others(capsys: pytest.CaptureFixture[str]) -> None:
    small = "--device cpu --models bert-tiny gpt2-tiny --modes eager --batch-size 2 --seq-len 16"
    few = "--warmup 1 --windows 6 --iterations 5 --precisions fp32 tf32 --dropouts 0 --seconds 90"
    found = run("models.py", f"{small} {few}")
    rows = [row for row in found["rows"] if not row["refused"]]
    ours = ("dlperf_hpc", "dlperf_hpc-no-ddp", "huggingface")
    assert [(row["model"], row["code"]) for row in rows] == [
        *(("bert-tiny", code) for code in ours),
        *(("gpt2-tiny", code) for code in (*ours, "nanogpt")),
    ]
    for row in rows:
        assert row["slowest"] <= row["samples_per_s"] <= row["fastest"]
        assert 9 < row["loss"] < 13  # chance: ln 30528 + ln 2, ln 50304
        assert row["tflops"] is not None and row["share_of_peak"] is None  # of no known card
        assert 2 <= row["windows"] <= 6 and row["dropout"] == 0
        enough = (row["windows"], row["iterations"]) == (6, 5)
        if row["code"] == "dlperf_hpc":
            assert row["ratio"] is None and not row["too_few"]
        elif not enough:
            assert row["ratio"] is None and "needs 6 x 5" in row["too_few"]
        else:
            assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
    # Without dropout DDP changes no number.
    assert rows[0]["loss"] == rows[1]["loss"] and rows[3]["loss"] == rows[4]["loss"]
    assert rows[2]["gflop_per_sample"] > rows[0]["gflop_per_sample"]
    refused = [row["refused"] for row in found["rows"] if row["refused"]]
    assert len(refused) == 7 and all("tf32 needs an NVIDIA GPU" in text for text in refused)
    names = names_of("models.py")
    shown = [names["Row"](**row) for row in found["rows"]]
    names["show"](shown, found["device"], argparse.Namespace(**found))
    text = capsys.readouterr().out
    assert re.search(r"samples/s +TFLOPS +of peak +windows +iterations", text)
    assert "nanogpt" in text and "ours x " in text and "tf32 needs" in text
    told = names["ratios"]([2.0, 3.0, 8.0], [1.0, 1.0, 2.0])
    assert (told["ratio"], told["ratio_low"], told["ratio_high"]) == (3.0, 2.0, 4.0)
    assert names["ratios"]([], [1.0]) == {} and "ratio_low" in names["ratios"](
        [1.0, 2.0], [1.0] * 2
    )


def test_scan_logs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # The benchmark itself stops if a reader counts other figures than were written.
    found = run("scan_logs.py", "--size 1e7 --files 24 --rounds 1")
    assert list(found) == ["sparse", "dense", "sixth", "tagged"]
    for tree in found.values():
        rows = tree["readers"]
        for reader in ("one format", "ours, 1 process", "ours", "ours again"):
            assert rows[reader]["figures"] == tree["figures"] > 50
        assert 0 < rows["grep"]["figures"] < tree["figures"] >= rows["naive"]["figures"] > 0
        assert all(row["wall_s"] > 0 and row["memory_mb"] > 0 for row in rows.values())
        assert all(ratio > 0 for ratio in tree["ratios"].values())
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    names_of("scan_logs.py")["show"](found, 1, print)
    text = capsys.readouterr().out
    assert "scaled from 17 files" in text and "ours / grep" in text and "at least 0.5" in text


def test_many_reports() -> None:
    """This version beside itself: the same files, and a row for each way of reporting."""
    found = run("many_reports.py", f"--old {ROOT} --runs 100 --rounds 1")
    assert list(found) == ["100"]
    assert [row["version"] for row in found["100"]] == ["old", "first", "again"]
    assert all(row["seconds"][0] > 0 and row["memory_mb"] > 10 for row in found["100"])
    names = names_of("many_reports.py")
    text = names["show"]({100: [names["Row"](**row) for row in found["100"]]})
    assert "100 runs of 100 iterations, median of 1 rounds" in text and "  1.00 " in text
