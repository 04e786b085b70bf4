"""Cases that are run together on a real Slurm: one job, its order, and a member that fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fixtures_slurm import Onebox
from queueing import Queue
from sweeping import Workplace, wait_until

from dlperf_hpc.model.case import Case
from dlperf_hpc.model.result import RunResult, Status
from dlperf_hpc.records.collect import full_results
from dlperf_hpc.records.ledger import read_ledger

# A file beside the sweep says what befalls the run that a job measures as its so-manyth.
SITE = """
partition = "main"
exclusive = false
poll_s = 1.0
[environment.default]
env = {{ GLOO_SOCKET_IFNAME = "lo", UCX_TLS = "tcp,self" }}
setup = ["f={0}/doom.$DLPERF_TURN; if [ -e $f ]; then export DLPERF_FAULT=$(cat $f); fi"]
[environment.other]
env = {{ GLOO_SOCKET_IFNAME = "lo", UCX_TLS = "tcp,self" }}
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
    return {1: "A", 2: "B"}[result.run.case.accumulation]


def test_two_cases_four_times_in_one_job(place: Workplace, queue: Queue) -> None:
    site = place.write("site.toml", SITE.format(place.root))
    place.write("doom.4", "raise@0")
    spec, root = place.tiny("pairs", ["1n1g"], repeats=4), place.directory("pairs")
    text = f'together = "accumulation"\n{spec.read_text()}[[zip]]\naccumulation = [1, 2]\n'
    spec.write_text(f'{text}environment = ["default", "other"]\n')
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
    speeds = {(letter_of(each), each.run.repeat): each.samples_per_s for each in results}
    ratios = [(speeds["B", n] or 0) / (speeds["A", n] or 0) for n in (1, 2, 4)]
    assert row["pairs"] == 3 and row["ratio"] == pytest.approx(sorted(ratios)[1])
    assert (row["ratio_low"], row["ratio_high"]) == pytest.approx((min(ratios), max(ratios)))
    assert (
        row["ratio_coverage"] == 0.75 and "no partner in their job: 0 of A, 1 of B" in row["note"]
    )
