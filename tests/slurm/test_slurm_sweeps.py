"""Sweeps on a real four-node Slurm: results, refusals, deaths, time limits."""

from __future__ import annotations

import json
from pathlib import Path

from fixtures_slurm import Onebox
from places import BUSY, ROOT
from sweeping import Workplace, moment

from dlperf_hpc.model.result import Status

SITE = """\
partition = "main"
exclusive = false
poll_s = 1.0
[environment.default]
mpi = "pmi2"
env = { GLOO_SOCKET_IFNAME = "lo", UCX_TLS = "tcp,self" }
[environment.raising]
env = { GLOO_SOCKET_IFNAME = "lo", UCX_TLS = "tcp,self", DLPERF_FAULT = "raise@1" }
[environment.killed]
env = { GLOO_SOCKET_IFNAME = "lo", UCX_TLS = "tcp,self", DLPERF_FAULT = "kill@1" }
[environment.alone]
mpi = "none"
"""


def _profile(name: str) -> Path:
    return ROOT / "slurm" / f"{name}.toml"


def test_four_topologies_and_two_that_cannot_be(place: Workplace, onebox: Onebox) -> None:
    topologies = ["1n1g", "1n2g", "2n2g", "4n1g", "8n1g", "1n16g"]
    spec = place.tiny("scaling", topologies)
    done = place.verb("sweep", spec, "--site", _profile("onebox"), "--wait", timeout=280)
    onebox.run(["scancel", "--name=8n1g.scaling"])
    assert done.returncode == 1, done.stdout + done.stderr
    assert "refused: 1n16g.scaling" in done.stderr

    results = place.results("scaling")
    nodes = ["n1", "n2", "n3", "n4"] if onebox.facts["isolation"] != "plain" else None
    for topology in topologies[:4]:
        result = results[topology]
        assert result.status is Status.OK, (topology, result.reason)
        case, ranks = result.run.case, result.facts["ranks"]
        assert len(ranks) == case.ranks == result.facts["world"]["ranks"]
        hosts = [rank["host"] for rank in ranks]
        per_node = [hosts.count(host) for host in dict.fromkeys(hosts)]
        assert per_node == [case.topology.gpus_per_node] * case.topology.nodes
        assert nodes is None or set(hosts) <= set(nodes)
        assert [rank["local_rank"] for rank in ranks] == [0, 1][: per_node[0]] * len(per_node)
    assert results["8n1g"].status is Status.REJECTED
    refused = ("PartitionNodeLimit", "not available")  # Slurm 22.05 queues it, 24.11 does not
    assert any(words in results["8n1g"].reason for words in refused), results["8n1g"].reason
    assert results["1n16g"].status is Status.REJECTED
    assert "not available" in results["1n16g"].reason
    rows = {row["topology"]: row for row in place.table("scaling")}
    assert list(rows) == topologies
    assert all(float(rows[topology]["speedup"]) > 0 for topology in topologies[:4])
    assert rows["8n1g"]["speedup"] == "" and rows["1n16g"]["samples_per_s"] == ""


def test_deaths_leave_a_row_and_the_others_alone(place: Workplace, onebox: Onebox) -> None:
    site = place.write("site.toml", SITE)
    more = _environments("default", "raising", "killed", "alone")
    spec = place.tiny("deaths", ["1n2g"], more=more)
    done = place.verb("sweep", spec, "--site", site, "--wait")
    assert done.returncode == 1, done.stdout + done.stderr

    results = place.results("deaths")
    assert results["1n2g"].status is Status.OK, results["1n2g"].reason
    assert results["raising"].status is Status.FAILED
    assert "rank 1" in results["raising"].reason and "RunError" in results["raising"].reason
    assert "Traceback" in Path(results["raising"].log).read_text()
    assert results["killed"].status is Status.FAILED
    assert "rank 1" in results["killed"].reason and "Killed" in results["killed"].reason
    for name in ("raising", "killed"):  # not by the time limit of five minutes
        assert moment(results[name].ended) - moment(results[name].started) < 90 * BUSY, name
    assert results["alone"].status is Status.FAILED
    for word in ("believes it is alone", "--mpi", "site profile"):
        assert word in results["alone"].reason


def _environments(*names: str) -> str:
    return f"[matrix]\nenvironment = {list(names)}\n"


def _status(place: Workplace, name: str) -> dict[str, list[dict[str, str]]]:
    done = place.verb("status", place.directory(name), "--json")
    table: dict[str, list[dict[str, str]]] = json.loads(done.stdout)
    return table


def test_names_in_squeue_and_what_status_says_of_waiting_runs(
    place: Workplace, onebox: Onebox
) -> None:
    spec = place.tiny("queued", ["1n1g", "2n1g"], repeats=3)
    site = place.write("held.toml", 'partition = "main"\nsbatch = { hold = true }\n')
    done = place.verb("sweep", spec, "--site", site)
    assert done.returncode == 0, done.stderr
    names = onebox.run(["squeue", "--noheader", "--array", "-o", "%j %t %k"]).stdout.split("\n")
    assert sum(line.startswith("1n1g.queued PD dlperf-") for line in names) == 3
    assert sum(line.startswith("2n1g.queued PD dlperf-") for line in names) == 3
    table = place.verb("status", place.directory("queued"))
    assert table.returncode == 0 and "pending" in table.stdout and "1n1g" in table.stdout
    assert {run["status"] for run in _status(place, "queued")["runs"]} == {"pending"}
    assert "squeue -j" in done.stdout and "dlperf cancel" in done.stdout  # what it said to type
    cancelled = place.verb("cancel", place.directory("queued"))
    assert cancelled.returncode == 0 and "cancelled: " in cancelled.stdout
    assert {run["status"] for run in _status(place, "queued")["runs"]} == {"cancelled"}
    # Kept in the directory: Slurm forgets, and another machine never knew.
    elsewhere = place.verb("status", place.directory("queued"), "--json", "--offline")
    assert {run["status"] for run in json.loads(elsewhere.stdout)["runs"]} == {"cancelled"}
    report = place.verb("report", place.directory("queued"))
    assert report.returncode == 1 and "Traceback" not in report.stderr
