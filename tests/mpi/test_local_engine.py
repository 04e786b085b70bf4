"""Sweeps on this machine under real mpiexec: results, failures, time limits, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from lacking import add_torch, without_torch
from places import BUSY
from sweeping import Workplace, local_environment, moment, wait_until

from dlperf_hpc.model.result import Status
from dlperf_hpc.records.ledger import read_ledger
from dlperf_hpc.records.logfile import read_log

FAULTS = """
[environment.raising]
env = { DLPERF_FAULT = "raise@1" }
[environment.killed]
env = { DLPERF_FAULT = "kill@1" }
"""


STUCK = """
[environment.asleep]
env = { DLPERF_FAULT = "hang@1" }
[environment.stopped]
env = { DLPERF_FAULT = "stop@1" }
"""
RANK_0_STOPPED = """
[environment.default]
env = { DLPERF_FAULT = "stop@0" }
"""


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path, local_environment())


def test_a_sweep_from_toml_to_csv(place: Workplace) -> None:
    """In two commands: a trial of one run, then the whole, to which that run counts."""
    spec = place.tiny("first", ["1n1g", "1n2g"], repeats=2)
    trial = ("--only", "1n1g", "--set", "repeats=1")
    tried = place.verb("sweep", spec, "--cluster", "local", *trial)
    assert tried.returncode == 0, tried.stdout + tried.stderr
    (log,) = place.directory("first").glob("ddp/bert-tiny/bz2/1n1g/*.log")
    before = log.read_bytes()
    done = place.verb("sweep", spec, "--cluster", "local")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "had 1 run; 3 more are added to it" in done.stderr
    assert log.read_bytes() == before
    names = [array.name for array in read_ledger(place.directory("first")).arrays]
    assert names == ["1n1g.first-1", "1n2g.first.g1-1", "1n1g.first.g1-2", "1n2g.first.g1-3"]
    rows = {row["topology"]: row for row in place.table("first")}
    assert set(rows) == {"1n1g", "1n2g"}
    assert rows["1n1g"]["speedup"] == "1.0" and rows["1n1g"]["runs_ok"] == "2"
    ratio = float(rows["1n2g"]["samples_per_s"]) / float(rows["1n1g"]["samples_per_s"])
    assert float(rows["1n2g"]["speedup"]) == pytest.approx(ratio)
    assert rows["1n2g"]["global_batch"] == "4"
    for name in (
        "speedup.csv",
        "runs.csv",
        "report.json",
        "report.md",
        "speedup.png",
        "report.html",
    ):
        assert f"report/{name}" in done.stdout
        assert (place.directory("first") / "report" / name).stat().st_size > 100
    results = place.results("first")
    assert results["1n2g"].facts["world"]["ranks"] == 2
    assert results["1n2g"].window is not None and results["1n2g"].window.optimizer_steps == 6
    told = read_log(Path(results["1n2g"].log)).tables["communication"]["reason"]
    assert "6 optimizer steps in the window" in told
    assert sorted(p.suffix for p in place.directory("first").glob("jobs/*")) == [".out"] * 4
    # A report at the end is what every local sweep has: there is no job for it.
    again = place.verb("rerun", place.directory("first"), "--report")
    assert again.returncode == 0 and again.stdout.startswith("nothing to rerun"), again.stderr
    assert again.stderr == "" and "report job" not in again.stdout

    told = place.verb("report", place.directory("first"), "--json")
    assert told.returncode == 0 and json.loads(told.stdout)["schema"] == "dlperf-report/1"

    again = place.verb("sweep", spec, "--cluster", "local")
    assert again.returncode == 0 and len(list(place.directory("first").glob("jobs/*"))) == 4
    changed = place.verb("sweep", spec, "--cluster", "local", "--set", "measure.warmup=3")
    assert changed.returncode == 2 and "measure.warmup: there 2, here 3" in changed.stderr


def test_ranks_that_fail_end_their_run_and_no_other(place: Workplace) -> None:
    site = place.write("site.toml", FAULTS)
    environments = '[matrix]\nenvironment = ["raising", "killed", "default"]\n'
    spec = place.tiny("faults", ["1n2g"], more=environments)
    done = place.verb("sweep", spec, "--cluster", "local", "--site", site)
    assert done.returncode == 1, done.stdout + done.stderr
    results = place.results("faults")
    assert results["1n2g"].status is Status.OK
    assert results["raising"].status is Status.FAILED
    assert "rank 1" in results["raising"].reason and "RunError" in results["raising"].reason
    assert "Traceback" in Path(results["raising"].log).read_text()
    assert results["killed"].status is Status.FAILED and "9" in results["killed"].reason
    # A rank that ends as its warm-up begins may be quicker than rank 0 with that line.
    for name in ("raising", "killed"):  # not by the time limit of five minutes
        assert moment(results[name].ended) - moment(results[name].started) < 50 * BUSY
    (row,) = (row for row in place.table("faults") if "killed" in row["tags"])
    assert row["samples_per_s"] == "" and row["speedup"] == "" and row["runs_ok"] == "0"
    takes = "2 of 3 runs ended as failed: `dlperf rerun logs/faults` takes them"
    assert takes in done.stderr


def test_a_rank_that_is_stopped_ends_with_the_time_limit(place: Workplace) -> None:
    """However far it has come by then."""
    site = place.write("site.toml", RANK_0_STOPPED)
    spec = place.tiny("stopped", ["1n2g"], time_limit="00:00:20")
    done = place.verb("sweep", spec, "--cluster", "local", "--site", site)
    assert done.returncode == 1, done.stdout + done.stderr
    result = place.results("stopped")["1n2g"]
    assert result.status is Status.TIMEOUT
    assert moment(result.ended) - moment(result.started) < (20 + 60) * BUSY
    assert "ended as timeout: `dlperf rerun logs/stopped` takes it" in done.stderr


def test_who_is_waited_for_is_named(place: Workplace) -> None:
    """One rank sleeps, one is stopped, the others wait for it: the reason says who is who. On a
    busy machine ranks may not come to their warm-up within the limit: then with a longer one."""
    site = place.write("site.toml", STUCK)
    for limit in (15, 75):
        more = f'[limits]\nstartup_s = {limit}\n[matrix]\nenvironment = ["asleep", "stopped"]\n'
        spec = place.tiny(f"stuck-{limit}", ["1n2g"], more=more)
        done = place.verb("sweep", spec, "--cluster", "local", "--site", site)
        assert done.returncode == 1, done.stdout + done.stderr
        results = place.results(f"stuck-{limit}")
        if all("in phase warmup" in result.reason for result in results.values()):
            break
    assert f"no progress for {limit} s in phase warmup" in results["asleep"].reason
    assert "rank 1 stands at drills.py:" in results["asleep"].reason
    assert "rank 0 stands at " in results["asleep"].reason
    assert "rank 1 says nothing" in results["stopped"].reason


def test_interrupt_ends_the_running_run(place: Workplace) -> None:
    spec = place.tiny("stopped", ["1n1g", "1n2g"])
    argv = [sys.executable, "-m", "dlperf_hpc", "sweep", str(spec), "--cluster", "local"]
    options = ["--set", "measure.iterations=1000000"]
    process = subprocess.Popen(
        argv + options,
        cwd=place.root,
        env=dict(place.env),
        stderr=subprocess.PIPE,
        text=True,
        # Where the tests themselves run in the background it is ignored, and that is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        log = place.directory("stopped") / "ddp/bert-tiny/bz2/1n1g"
        wait_until(
            lambda: any("name=warmup" in p.read_text() for p in log.glob("*.log")), 60, "warm-up"
        )
        process.send_signal(signal.SIGINT)
        assert process.wait(30 * BUSY) == 130
    finally:
        process.kill()
        process.communicate()
    results = place.results("stopped")
    assert results["1n1g"].status is Status.CANCELLED
    assert results["1n2g"].status is Status.PENDING
    pid = results["1n1g"].facts["ranks"][0]["pid"]
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), 15, "the rank's end")


def test_fp16_is_refused_where_a_rank_finds_no_gpu(place: Workplace) -> None:
    bare = Workplace(place.root, {**place.env, "CUDA_VISIBLE_DEVICES": ""})
    settings = ("--set", "precision=fp16", "--set", "device=auto")
    done = bare.verb("sweep", bare.tiny("half", ["1n1g"]), "--cluster", "local", *settings)
    assert done.returncode == 1, done.stdout + done.stderr
    result = bare.results("half")["1n1g"]
    assert result.status is Status.FAILED and "fp16 needs a GPU" in result.reason


def test_more_nodes_than_this_machine_are_refused(place: Workplace) -> None:
    done = place.verb("sweep", place.tiny("wide", ["1n1g", "2n1g"]), "--cluster", "local")
    assert done.returncode == 2 and "2n1g" in done.stderr and "one node" in done.stderr
    assert not place.directory("wide").exists()


def test_unwritable_logs(place: Workplace) -> None:
    place.write("file", "not a directory")
    spec = place.tiny("nowhere", ["1n1g"])
    done = place.verb("sweep", spec, "--cluster", "local", "--logs", "file/logs")
    assert done.returncode == 2 and "cannot be written" in done.stderr and "--logs" in done.stderr


def test_slurm_without_sbatch(place: Workplace) -> None:
    bare = Workplace(place.root, {**place.env, "PATH": os.path.dirname(sys.executable)})
    done = bare.verb("sweep", bare.tiny("absent", ["1n1g"]), "--cluster", "slurm")
    assert done.returncode == 2 and "sbatch" in done.stderr and "PATH" in done.stderr
    assert not bare.directory("absent").exists()


def test_an_environment_without_torch_is_refused_then_fails_once(place: Workplace) -> None:
    packages = without_torch(place.root / "env")
    python = place.root / "env" / "bin" / "python"
    site = place.write("site.toml", f'[environment.default]\npython = "{python}"\n')
    spec = place.tiny("lacking", ["1n1g"], repeats=3)
    local = ("--cluster", "local", "--site", site)
    refused = place.verb("sweep", spec, *local)
    assert refused.returncode == 2 and not place.directory("lacking").exists()
    assert f"{python} has no module torch: " in refused.stderr
    assert "--no-check" in refused.stderr and "Traceback" not in refused.stderr
    done = place.verb("sweep", spec, *local, "--no-check")
    assert done.returncode == 1, done.stdout + done.stderr
    told = [line for line in done.stdout.splitlines() if "held-back every other run" in line]
    assert len(told) + done.stderr.count("held-back every other run") == 1
    assert [result["status"] for result in runs_of(place)] == ["failed", "held-back", "held-back"]
    again = place.verb("sweep", spec, *local, "--json")
    assert "note: runs are held back: environment default: " in again.stderr
    add_torch(packages)
    mended = place.verb("rerun", place.directory("lacking"), "--run", "_2")
    assert "environment default is tried anew" in mended.stderr, mended.stdout + mended.stderr
    assert [result["status"] for result in runs_of(place)] == ["failed", "ok", "held-back"]


def runs_of(place: Workplace) -> list[dict[str, str]]:
    done = place.verb("status", place.directory("lacking"), "--json")
    found: list[dict[str, str]] = json.loads(done.stdout)["runs"]
    return found
