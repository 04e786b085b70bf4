"""``batch_size = "max"`` on real Slurm: the later repeats wait for the search, and go on with it
where it was cancelled."""

from __future__ import annotations

import json
from pathlib import Path

from queueing import Queue
from sweeping import Workplace, wait_until

from dlperf_hpc.records.layout import RunPaths
from dlperf_hpc.records.ledger import read_ledger
from dlperf_hpc.records.logfile import read_log

# Each run has room for 1 sample of 1 GiB, and for the training itself.
SITE = """\
partition = "main"
exclusive = false
poll_s = 1.0
[environment.default]
env = { GLOO_SOCKET_IFNAME = "lo", UCX_TLS = "tcp,self", DLPERF_FAULT = "memory:1024:1700" }
"""


def launches(root: Path) -> dict[int, str]:
    rows = [json.loads(path.read_text()) for path in root.rglob("attempts/*.batch*.json")]
    return {row["batch_size"]: row["launch"] for row in rows}


def test_a_cancelled_search_is_taken_up_by_the_repeats(place: Workplace, queue: Queue) -> None:
    site = place.write("site.toml", SITE)
    spec, root = place.tiny("largest", ["1n1g"], repeats=3), place.directory("largest")
    done = place.verb("sweep", spec, "--site", site, "--set", "batch_size=max")
    assert done.returncode == 0 and done.stdout.count("submitted: job") == 2, done.stderr
    first, later = read_ledger(root).submissions[1::2]
    assert later.array == "1n1g.largest.later"
    shown = queue.call("scontrol", "show", "job", later.job_id)
    assert f"Dependency=afterany:{first.job_id}_*" in shown, shown
    wait_until(lambda: 1 in launches(root), 120, "the first trial")
    queue.call("scancel", first.job_id)
    wait_until(lambda: not queue.alive(root), 240, "the end of the repeats")
    before = launches(root)
    assert before[1] == f"{first.job_id}_0.0" and set(before) == {1, 2}
    assert any(launch.startswith(f"{later.job_id}_") for launch in before.values())
    runs = read_ledger(root).manifest.runs
    ends = json.loads(place.verb("status", root, "--json").stdout)["runs"]
    assert [row["status"] for row in ends] == ["cancelled", "ok", "ok"]
    again = place.verb("rerun", root, "--status", "cancelled", "--wait")
    assert again.returncode == 0, again.stdout + again.stderr
    assert launches(root) == before
    tables = [read_log(RunPaths(root, run.id).log).tables for run in runs]
    assert [table["case"]["batch_size"] for table in tables] == [1, 1, 1]
    assert [table["search"]["tried"] for table in tables] == [[1, 2]] * 3
