"""A sweep grows on a real Slurm: new arrays, no run in two jobs, nothing that is there changed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from places import BUSY, SUPPORT
from queueing import Queue, executions, live_runs
from sweeping import HELD_SITE, Done, Workplace, wait_until

from dlperf_hpc.records import layout
from dlperf_hpc.records.ledger import read_ledger


@pytest.fixture
def site(place: Workplace) -> Path:
    python = place.write("python", "#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    return place.write("site.toml", HELD_SITE.format(python))


def submitted(done: Done) -> int:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.count("submitted: job")


def every_run_in_one_job(queue: Queue, root: Path) -> bool:
    return live_runs(queue, root) == sorted(run.id for run in read_ledger(root).manifest.runs)


def test_topologies_and_repeats_are_added(place: Workplace, site: Path, queue: Queue) -> None:
    spec, root = place.tiny("grown", ["1n1g", "2n1g"], repeats=3), place.directory("grown")
    whole = ("sweep", spec, "--site", site)
    assert submitted(place.verb(*whole, "--only", "1n1g", "--set", "repeats=1")) == 1
    ((job, token),) = queue.jobs(root).items()
    before = json.loads((root / layout.MANIFEST).read_text())["arrays"]

    dry = place.verb(*whole, "--dry-run").stdout
    assert "with 1 of these 6 runs: 5 would be added, as new arrays" in dry
    done = place.verb(*whole)
    assert submitted(done) == 2, done.stdout
    assert "1n1g.grown.g1  2 runs" in done.stdout and "2n1g.grown.g1  3 runs" in done.stdout
    assert every_run_in_one_job(queue, root) and queue.jobs(root)[job] == token
    assert json.loads((root / layout.MANIFEST).read_text())["arrays"][:1] == before
    for less in ((), ("--only", "2n1g"), ("--set", "repeats=2")):
        again = place.verb(*whole, *less)
        assert submitted(again) == 0 and "nothing is missing" in again.stdout

    queue.call("scontrol", "release", *queue.jobs(root))
    wait_until(lambda: not queue.alive(root), 60, "the end of all runs")
    assert list(executions(root).values()) == [["failed"]] * 6
    report = json.loads(place.verb("report", root, "--json").stdout)
    assert [(case["topology"], case["runs"]) for case in report["cases"]] == [
        *(("1n1g", 3), ("2n1g", 3))
    ]
    told = place.verb(*whole)
    assert told.returncode == 1 and "6 of 6 runs ended as failed" in told.stderr, told.stderr
    assert "`dlperf rerun logs/grown` takes them" in told.stderr
    assert submitted(place.verb("rerun", root)) == 2
    assert every_run_in_one_job(queue, root)
    assert place.verb("cancel", root).returncode == 0 and queue.alive(root) == []


PROGRAM = f"""
[program.mine]
launch = "rank"
workdir = "{SUPPORT}/programs"
run = ["steps.py", "20", "5", "{{batch_size}}"]
"""


def test_a_directory_that_grew_and_was_moved(place: Workplace, queue: Queue) -> None:
    """What a job that waits is bound to stays: where a link leads to the directory the job runs,
    else in a rerun. The runs really measure."""
    spec, root = place.tiny("moved", ["1n1g"], more=PROGRAM), place.directory("moved")
    spec.write_text(spec.read_text().replace('"ddp"', '"mine"'))
    site = place.write("site.toml", HELD_SITE.format(sys.executable))
    whole = ("sweep", spec, "--site", site)
    assert submitted(place.verb(*whole)) == 1 and submitted(
        place.verb(*whole, "--set", "repeats=2")
    )
    first, _ = queue.jobs(root)
    script = queue.call("scontrol", "write", "batch_script", first, "-")
    assert f"export {layout.BOUND}={os.geteuid()}:" in script
    new = root.rename(root.with_name("new"))
    root.symlink_to(new)
    queue.call("scontrol", "release", first)
    wait_until(lambda: len(queue.alive(new)) == 1, 60, "the end of the first run")
    root.unlink()
    assert place.verb("cancel", new).returncode == 0
    site.write_text(site.read_text().replace("sbatch = { hold = true }", ""))
    done = place.verb("rerun", new, "--status", "cancelled", "--site", site, "--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(executions(new).values()) == [["ok"]] * 2


def test_a_kill_after_the_manifest_has_grown(place: Workplace, site: Path, queue: Queue) -> None:
    """Then two who type the command again at once: each new array is submitted by one of them."""
    spec, root = place.tiny("slain", ["1n1g", "2n1g"], repeats=2), place.directory("slain")
    whole = ("sweep", spec, "--site", site)
    assert submitted(place.verb(*whole, "--only", "1n1g")) == 1
    kills = place.root / "bin" / "sbatch"
    kills.parent.mkdir()
    kills.write_text("#!/bin/sh\nkill -9 $PPID\n")
    kills.chmod(0o755)
    path = f"{kills.parent}{os.pathsep}{place.env['PATH']}"
    slain = Workplace(place.root, {**place.env, "PATH": path}).verb(*whole)
    assert slain.returncode == -signal.SIGKILL
    assert len(read_ledger(root).manifest.runs) == 4 and len(queue.jobs(root)) == 1

    argv = [sys.executable, "-m", "dlperf_hpc", *map(str, whole)]
    pressed = [
        subprocess.Popen(argv, cwd=place.root, env=dict(place.env), stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=120 * BUSY)[0].decode() for process in pressed]
    assert [process.returncode for process in pressed] == [0, 0]
    assert sorted(text.count("submitted: job") for text in outputs) == [0, 1]
    assert every_run_in_one_job(queue, root) and len(read_ledger(root).arrays) == 2
    assert place.verb("cancel", root).returncode == 0 and queue.alive(root) == []
