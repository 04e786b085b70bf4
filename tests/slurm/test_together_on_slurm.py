"""Cases that are run together on a real Slurm: one job, its order, and a member that fails."""

from __future__ import annotations

import json
from csv import DictReader
from pathlib import Path

import pytest
from fixtures_slurm import Onebox
from queueing import Queue
from sweeping import Workplace, pairs, wait_until

from dlperf_hpc.model.case import Case
from dlperf_hpc.model.result import RunResult, Status
from dlperf_hpc.records.collect import full_results
from dlperf_hpc.records.ledger import read_ledger

SITE = """
partition = "main"
exclusive = false
poll_s = 1.0
[environment.default]
env = { UCX_TLS = "tcp,self" }
[environment.other]
env = { UCX_TLS = "tcp,self" }
setup = ["echo turn $DLPERF_TURN is in other"]
"""


@pytest.fixture
def place(tmp_path: Path, onebox: Onebox) -> Workplace:
    return Workplace(tmp_path, onebox.env)


@pytest.fixture
def queue(onebox: Onebox) -> Queue:
    return Queue(onebox.env)


def letter_of(result: RunResult) -> str:
    assert isinstance(result.run.case, Case)
    return {20: "A", 30: "B"}[dict(result.run.case.options)["ms"]]


def test_two_cases_four_times_in_one_job(place: Workplace, queue: Queue) -> None:
    site = place.write("site.toml", SITE)
    # Eight starts of PyTorch would tell no more of the job than those of a few lines.
    spec, root = pairs(place, (20, 30), repeats=4, doomed=4), place.directory("pairs")
    done = place.verb("sweep", spec, "--site", site)
    assert done.returncode == 0 and done.stdout.count("submitted: job") == 1, done.stderr
    ((job, token),) = queue.jobs(root).items()
    (array,) = read_ledger(root).arrays
    assert token == array.token and array.size == 1
    wait_until(lambda: not queue.alive(root), 240, "the end of the job")
    results = sorted(full_results(root).results, key=lambda each: each.started)
    assert [each.launch for each in results] == [f"{job}_0.0.{turn}" for turn in range(8)]
    assert "".join(map(letter_of, results)) == "ABBAABBA"
    output = (root / "jobs" / f"{job}_0.out").read_text()
    assert [turn for turn in range(8) if f"turn {turn} is in other" in output] == [1, 2, 5, 6]
    ends = [Status.OK] * 4 + [Status.FAILED] + [Status.OK] * 3
    assert [each.status for each in results] == ends, [each.reason for each in results]

    told = place.verb("compare", root, root, "--across", "tags", "--json")
    row = json.loads(told.stdout)["cases"][0]
    assert place.verb("report", root, "--write", "csv").returncode == 1  # one run failed
    with open(root / "report" / "runs.csv", encoding="utf-8") as file:
        speeds = {
            (each["tags"], each["repeat"]): each["samples_per_s"] for each in DictReader(file)
        }
    ratios = [float(speeds["envother-ms30", n]) / float(speeds["ms20", n]) for n in "124"]
    assert row["pairs"] == 3 and row["ratio"] == pytest.approx(sorted(ratios)[1])
    assert (row["ratio_low"], row["ratio_high"]) == pytest.approx((min(ratios), max(ratios)))
    assert (
        row["ratio_coverage"] == 0.75 and "no partner in their job: 0 of A, 1 of B" in row["note"]
    )
