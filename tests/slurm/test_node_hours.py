"""A budget of node-hours on a real Slurm: what waits is reserved at its limit, and what has ended
makes room, so that the same command submits the rest."""

from __future__ import annotations

import json

import pytest
from fixtures_slurm import Onebox
from queueing import Queue, executions, live_runs
from sweeping import HELD_SITE, Workplace, wait_until


def test_the_same_command_submits_what_fits_when_runs_have_ended(
    place: Workplace, onebox: Onebox
) -> None:
    queue, root = Queue(onebox.env), place.directory("spare")
    python = place.write("python", "#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    site = place.write("site.toml", HELD_SITE.format(python))
    # Five minutes for a run of one node and for one of two: a quarter of an hour for each repeat.
    spec = place.tiny("spare", ["1n1g", "2n1g"], repeats=4, time_limit="00:05:00")
    command = ("sweep", spec, "--site", site, "--no-check", "--budget", "0.8")

    small = place.verb(*command[:-1], "0.2")
    assert small.returncode == 2 and "0.2 is too small" in small.stderr and not root.exists()
    first = place.verb(*command)
    assert first.returncode == 0, first.stderr
    assert "repeat 4 of the topologies that stay: 2 runs, at most 0.25" in first.stderr
    assert len(live_runs(queue, root)) == 6
    again = place.verb(*command)
    assert again.returncode == 0 and "does not fit in the rest of the budget" in again.stdout
    assert len(live_runs(queue, root)) == 6
    found = json.loads(place.verb("status", root, "--json").stdout)["budget"]
    assert found == {"node_hours": 0.8, "used": 0, "reserved": pytest.approx(0.75)}

    queue.call("scontrol", "release", *queue.jobs(root))
    wait_until(lambda: not queue.alive(root), 60, "the end of all runs")
    assert list(executions(root).values()) == [["failed"]] * 6
    assert "of 0.8 node-hours used" in place.verb("status", root).stdout
    small = place.verb("rerun", root, "--budget", "0.0001")
    assert small.returncode == 2 and "too small, so that nothing is submitted" in small.stderr
    # The sweep keeps its budget: without --budget too.
    rest = place.verb(*command[:-2])
    assert rest.stdout.count("submitted: job") == 2, rest.stdout + rest.stderr
    assert len(live_runs(queue, root)) == 2
