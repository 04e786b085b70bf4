"""``batch_size = "max"`` under real mpiexec. Each sample takes as much of a rank's address space as
the drill says, and the kernel refuses more than there is (RLIMIT_AS): which sizes fit is known."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sweeping import Workplace, local_environment, wait_until

from dlperf_hpc.model.result import Status
from dlperf_hpc.records.logfile import read_log

# MiB of a sample, and of room; what is left over is for the training itself.
SITE = """
[environment.default]
env = {{ DLPERF_FAULT = "memory:{0}:{1}@{2}" }}
"""
A_SAMPLE, LEFT_OVER = 1024, 700
MAX = ("--set", "batch_size=max")


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path, local_environment())


def room_for(place: Workplace, samples: int, rank: int) -> Path:
    room = samples * A_SAMPLE + LEFT_OVER
    return place.write("site.toml", SITE.format(A_SAMPLE, room, rank))


def trials(place: Workplace, name: str) -> dict[int, dict[str, Any]]:
    paths = place.directory(name).rglob("attempts/*.batch*.json")
    rows = [json.loads(path.read_text()) for path in paths]
    return {row["batch_size"]: row for row in rows}


def test_the_repeats_measure_the_largest_that_fits_on_every_rank(place: Workplace) -> None:
    """Killed in the search, and taken up: no size is tried twice."""
    spec, site = place.tiny("largest", ["1n2g"], repeats=2), room_for(place, 3, rank=1)
    command = ("sweep", spec, "--cluster", "local", "--site", site, *MAX)
    plan = place.verb(*command, "--dry-run")
    assert "The first run finds the largest batch size of 1 case" in plan.stdout, plan.stderr
    argv = [sys.executable, "-m", "dlperf_hpc", *map(str, command)]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(argv, cwd=place.root, env=place.env, stdout=quiet, stderr=quiet) as first:
        wait_until(lambda: 2 in trials(place, "largest"), 90, "a trial of 2 samples")
        first.send_signal(signal.SIGKILL)
    before = trials(place, "largest")
    assert 1 in before and 3 not in before
    assert "1 of 2 runs was cancelled" in place.verb(*command).stderr
    done = place.verb("rerun", place.directory("largest"))
    assert done.returncode == 0, done.stdout + done.stderr
    after = trials(place, "largest")
    assert {size: row["fits"] for size, row in after.items()} == {
        1: True,
        2: True,
        4: False,
        3: True,
    }
    assert before.items() <= after.items()
    assert after[4]["reason"].startswith("rank 1 on ") and "allocate memory" in after[4]["reason"]
    assert len(after[3]["memory_mb"]) == 2
    logs = sorted(place.directory("largest").glob("ddp/bert-tiny/bzmax/1n2g/*.log"))
    assert [log.name for log in logs] == [f"bert-tiny_bmax_fp32-seq16_{n}.log" for n in (1, 2)]
    for log in logs:
        tables = read_log(log).tables
        assert tables["search"]["size"] == tables["case"]["batch_size"] == 3
        assert tables["search"]["tried"] == [1, 2, 4, 3] and tables["search"]["grain"] == 1
    (row,) = place.table("largest")
    assert (row["batch_size"], row["global_batch"], row["runs_ok"]) == ("3", "6", "2")
    assert "mixed-settings" not in row["flags"]


def test_where_not_even_one_sample_fits_the_run_says_so(place: Workplace) -> None:
    spec, site = place.tiny("none", ["1n1g"], repeats=2), room_for(place, 0, rank=0)
    done = place.verb("sweep", spec, "--cluster", "local", "--site", site, *MAX)
    assert done.returncode == 1, done.stdout + done.stderr
    result = place.results("none")["1n1g"]
    assert result.status is Status.OUT_OF_MEMORY and result.window is None
    assert "one sample per device does not fit, so that nothing is measured" in result.reason
    assert list(trials(place, "none")) == [1]
    (row,) = place.table("none")
    assert (row["batch_size"], row["runs_ok"], row["samples_per_s"]) == ("", "0", "")
