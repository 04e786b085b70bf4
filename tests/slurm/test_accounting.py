"""Accounting absent, present, and broken: the same runs stand the same in the end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures_slurm import Onebox, short_directory
from queueing import Queue
from sweeping import Workplace, wait_until

from dlperf_hpc.records import layout
from dlperf_hpc.records.ledger import read_ledger

# The first task fails, the second never ends by itself.
PYTHON = "#!/bin/sh\n[ $SLURM_ARRAY_TASK_ID = 0 ] && exit 3\nexec sleep 300\n"
SITE = 'partition = "main"\nexclusive = false\npoll_s = 1.0\narray_parallelism = 1\n'
FORGETS = ("--nodes", "1", "--conf", "MinJobAge=2")
ENDS = ["failed", "cancelled", "cancelled", "cancelled"]


@pytest.fixture
def without(tmp_path: Path) -> Iterator[Onebox]:
    cluster = Onebox(short_directory(tmp_path / "without"), *FORGETS)
    yield cluster
    cluster.down()


@pytest.fixture
def accounting(tmp_path: Path) -> Iterator[Onebox]:
    options = ("--accounting", "slurmdbd", *FORGETS)
    cluster = Onebox(short_directory(tmp_path / "with"), *options)
    yield cluster
    cluster.down()


def told(place: Workplace, name: str) -> list[str]:
    done = place.verb("status", place.directory(name), "--json")
    return [row["status"] for row in json.loads(done.stdout)["runs"]]


def aftermath(cluster: Onebox, home: Path, name: str, looks: bool) -> list[str]:
    """A sweep of which one run failed, and the others were cancelled: running, waiting, with all
    others; what ``status`` says once squeue has forgotten them. ``looks``: it was asked before."""
    place, queue = Workplace(home, cluster.env), Queue(cluster.env)
    script = place.write(f"{name}-python", PYTHON)
    script.chmod(0o755)
    site = place.write(f"{name}.site.toml", f'{SITE}[environment.default]\npython = "{script}"\n')
    root = place.directory(name)
    done = place.verb("sweep", place.tiny(name, ["1n1g"], repeats=4), "--site", site)
    assert done.returncode == 0, done.stderr
    job = read_ledger(root).submissions[-1].job_id
    wait_until(lambda: ("1", "RUNNING") in _states(queue, job), 60, "the second task")
    queue.call("scontrol", "hold", f"{job}_2")
    queue.call("scancel", f"{job}_1", f"{job}_3")
    wait_until(lambda: ("1", "RUNNING") not in _states(queue, job), 60, "its end")
    if looks:
        assert told(place, name) == ["failed", "cancelled", "pending", "cancelled"]
    assert place.verb("cancel", root).returncode == 0
    if looks:
        assert told(place, name) == ENDS
    wait_until(lambda: not _states(queue, job), 120, "squeue to forget")
    return told(place, name)


def _states(queue: Queue, job: str) -> list[tuple[str, str]]:
    text = queue.call("squeue", "-h", "-r", "-t", "all", "-o", "%F|%K|%T")
    rows = [line.split("|") for line in text.splitlines()]
    return [(row[1], row[2]) for row in rows if row[0] == job]


def test_the_same_table_with_accounting_absent_present_and_broken(
    tmp_path: Path, without: Onebox, accounting: Onebox
) -> None:
    assert aftermath(without, tmp_path, "absent", looks=True) == ENDS
    assert aftermath(accounting, tmp_path, "present", looks=True) == ENDS
    # Nobody looked in time: accounting knows what has begun, and the rest of the array.
    assert aftermath(accounting, tmp_path, "late", looks=False)[:3] == ENDS[:3]
    kept = tmp_path / "logs" / "late" / layout.FINAL_STATES
    accounting.node("kill", "slurmdbd")
    assert aftermath(accounting, tmp_path, "broken", looks=True) == ENDS
    place = Workplace(tmp_path, accounting.env)
    assert told(place, "late")[:3] == ENDS[:3] and kept.exists()
