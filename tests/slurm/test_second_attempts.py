"""Runs that have a job already, on a real Slurm: none is measured twice at once, and what cancel
ended is known later, also where Slurm has forgotten it."""

from __future__ import annotations

import json
from pathlib import Path

from fixtures_slurm import Onebox
from queueing import Queue, live_runs, printed_by_squeue
from sweeping import Workplace, wait_until

from dlperf_hpc.records import layout
from dlperf_hpc.records.layout import RunPaths
from dlperf_hpc.records.ledger import read_ledger

SITE = """\
partition = "main"
exclusive = false
poll_s = 1.0
[environment.default]
env = { GLOO_SOCKET_IFNAME = "lo", UCX_TLS = "tcp,self", DLPERF_FAULT = "hang@0" }
"""


def status(place: Workplace, root: Path, *options: str) -> list[dict[str, str]]:
    done = place.verb("status", root, "--json", *options)
    rows: list[dict[str, str]] = json.loads(done.stdout)["runs"]
    return rows


def test_a_run_that_can_never_start_is_cancelled_before_it_is_submitted_again(
    place: Workplace, queue: Queue, onebox: Onebox
) -> None:
    """Slurm 24.11 refuses more nodes than there are; more than a partition gives wait on."""
    narrow = ["create", "partitionname=narrow", "nodes=ALL", "maxnodes=1"]
    assert onebox.run(["scontrol", *narrow]).returncode == 0
    site = place.write("site.toml", SITE.replace('"main"', '"narrow"'))
    spec, root = place.tiny("toomany", ["2n1g"], repeats=3), place.directory("toomany")
    assert place.verb("sweep", spec, "--site", site).returncode == 0
    wait_until(
        lambda: {row["status"] for row in status(place, root)} == {"rejected"}, 30, "Slurm's reason"
    )
    shown = place.verb("status", root)
    assert shown.returncode == 1 and "PartitionNodeLimit" in shown.stdout
    plain = place.verb("rerun", root)
    assert "nothing to rerun" in plain.stdout and "--status rejected` takes them" in plain.stderr
    one = read_ledger(root).manifest.runs[1]
    done = place.verb("rerun", root, "--status", "rejected", "--run", one.id)
    assert done.returncode == 0 and "_1, which waited: PENDING (Partition" in done.stderr
    assert live_runs(queue, root) == sorted(run.id for run in read_ledger(root).manifest.runs)
    assert place.verb("cancel", root).returncode == 0 and queue.alive(root) == []
    assert onebox.run(["scontrol", "delete", "partitionname=narrow"]).returncode == 0


def test_a_second_job_of_a_run_leaves_the_living_one_alone(
    place: Workplace, queue: Queue, onebox: Onebox
) -> None:
    site = place.write("site.toml", SITE)
    spec, root = place.tiny("twice", ["1n2g"]), place.directory("twice")
    assert place.verb("sweep", spec, "--site", site).returncode == 0
    (job,) = queue.jobs(root)
    (run,) = read_ledger(root).manifest.runs
    log = RunPaths(root, run.id).log
    wait_until(lambda: log.exists() and "name=warmup" in log.read_text(), 60, "the warm-up")
    before = log.read_bytes()
    # As an earlier version's rerun, or somebody's hand, does it.
    (script,) = (root / layout.JOBS).glob("*_submission.sh")
    second = onebox.run(["sbatch", "--parsable", str(script)], cwd=place.root).stdout.strip()
    output = root / layout.JOBS / f"{second}_0.out"
    wait_until(lambda: second not in queue.call("squeue", "-h", "-o", "%A"), 60, "its end")
    assert f"another attempt at this run lives: launch {job}_0.0" in output.read_text()
    assert log.read_bytes() == before and not RunPaths(root, run.id).record.exists()
    assert not RunPaths(root, run.id).attempts.exists()

    again = place.verb("rerun", root, "--status", "unknown,failed,rejected")
    assert "nothing to rerun" in again.stdout
    assert place.verb("cancel", root).returncode == 0
    wait_until(lambda: not queue.alive(root), 60, "the end of the job")
    (ended,) = status(place, root)
    assert ended["status"] == "cancelled", ended
    # Where Slurm has forgotten it, and nobody looked in time: the output tells.
    for path in (*root.rglob("*.json"), *root.rglob("*_1.log")):
        if path.name != layout.MANIFEST:
            path.unlink()
    (root / layout.FINAL_STATES).unlink(missing_ok=True)
    (place.root / "bin").mkdir()
    squeue = place.write("bin/squeue", f"#!/bin/sh\necho '{printed_by_squeue()}'\n")
    squeue.chmod(0o755)
    forgetful = Workplace(place.root, {**place.env, "PATH": f"{squeue.parent}:{place.env['PATH']}"})
    (told,) = status(forgetful, root)
    assert told["status"] == "cancelled" and f"(jobs/{job}_0.out)" in told["reason"], told
