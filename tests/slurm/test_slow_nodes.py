"""A node that is really slow is named by pairs of nodes; repeats that are spread over the nodes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from fixtures_slurm import Onebox, call
from places import ROOT
from sweeping import Workplace

from dlperf_hpc.records.collect import full_results

# Never two jobs at a time: all nodes share this machine's cores.
SITE = """\
partition = "main"
poll_s = 1.0
spread = true
sbatch = { licenses = "machine:1" }
[environment.default]
mpi = "pmi2"
env = { GLOO_SOCKET_IFNAME = "lo" }
"""
PROGRAM = f"""
topologies = ["1n1g"]
base = "1n1g"
repeats = 3
time_limit = "00:03:00"
[measure]
warmup = 2
iterations = 10
[case]
framework = "steps"
model = "bert-tiny"
batch_size = 2
seq_len = 16
[program.steps]
launch = "once"
workdir = "{ROOT}/tests/support/programs"
run = ["steps.py", "200", "20", "2"]
[program.steps.read]
format = "megatron"
"""
_PERIOD_US = 100_000
_SHARE = 0.2  # of what a process gets on this machine now, whatever else runs there


def test_a_slow_node_is_named_by_every_one_of_its_pairs(place: Workplace, onebox: Onebox) -> None:
    spec = place.tiny("tried", ["2n1g"])
    spec.write_text(spec.read_text().replace("[measure]", 'device = "cpu"\n[measure]'))
    site = place.write("site.toml", SITE)
    with slowed(onebox, "n3"):
        arguments = ("--pairs", 3, "--nodelist", "n[2-4]", "--json")
        done = place.verb("doctor", spec, "--site", site, *arguments, timeout=280)
    answer = json.loads(done.stdout)
    assert done.returncode == 1 and answer["ok"] is False, done.stderr
    rows = {row["node"]: row for row in answer["nodes"]}
    assert rows.keys() == {"n2", "n3", "n4"} and {r["pairs"] for r in rows.values()} == {2}
    assert any("slow: steps" in words for words in rows["n3"]["ailments"])
    assert rows["n3"]["steps_ms"] == max(row["steps_ms"] for row in rows.values())
    found = {row["check"]: row["grade"] for row in answer["findings"]}
    assert found["node n3"] == "FAIL" and found["round 2: n2 and n4"] == "ok"


def test_repeats_that_are_spread_have_other_nodes_each(place: Workplace) -> None:
    spec, site = place.write("apart.toml", PROGRAM), place.write("site.toml", SITE)
    done = place.verb("sweep", spec, "--site", site, "--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    results = full_results(place.directory("apart")).results
    hosts = [host for result in results for host in result.facts["world"]["hosts"]]
    assert len(hosts) == 3 == len(set(hosts))


@contextmanager
def slowed(onebox: Onebox, node: str) -> Iterator[None]:
    """Let a node's processes have a fifth of the time that a process gets on this machine."""
    group, limit = control_group()
    pid = json.loads(call(["status", str(onebox.dir), "--json"]).stdout)[node]["pid"]
    quota = max(2000, int(_SHARE * share_of_a_process() * _PERIOD_US))
    group.mkdir()
    try:
        (group / limit).write_text(f"{quota}" if "quota" in limit else f"{quota} {_PERIOD_US}")
        for process in processes(pid):
            (group / "cgroup.procs").write_text(f"{process}")
        yield
    finally:
        for each in (group / "cgroup.procs").read_text().split():
            with suppress(OSError):  # it has ended
                (group.parent / "cgroup.procs").write_text(each)
        group.rmdir()


def control_group() -> tuple[Path, str]:
    """A group of processes that is not there yet, and its file for the limit."""
    name = f"dlperf-slow-{time.monotonic_ns()}"
    old, new = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
    for parent, limit in ((old, "cpu.cfs_quota_us"), (new, "cpu.max")):
        probe = parent / f"{name}-probe"
        with suppress(OSError):
            probe.mkdir()
            there = (probe / limit).exists()
            probe.rmdir()
            if there:
                return parent / name, limit
    pytest.skip("no control groups that this user may make")


def share_of_a_process() -> float:
    """Of one core, what a process that never waits gets here."""
    begin, used = time.monotonic(), time.process_time()
    while time.monotonic() < begin + 0.5:
        pass
    return (time.process_time() - used) / (time.monotonic() - begin)


def processes(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += processes(int(child))
    return found
