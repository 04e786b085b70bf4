"""What the ranks of a short job told, and what sinfo prints, as check results."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sweeping import Workplace, local_environment

from dlperf_hpc.doctor.diagnosis import gpu_checks, interpret
from dlperf_hpc.doctor.trial import Trial, parts_of, targets_of_site
from dlperf_hpc.engines import get_engine
from dlperf_hpc.engines.base import CheckResult
from dlperf_hpc.engines.site import Site
from dlperf_hpc.engines.slurm.login import Node, Partition, _gpus, nodes, time_limits
from dlperf_hpc.sweepfile.case import Topology
from dlperf_hpc.train.probe.speech import Reporter


@pytest.mark.parametrize(
    "arguments", [["--nodes", "0"], ["--timeout", "nan"], ["absent.toml"], ["--site", "absent"]]
)
def test_usage(tmp_path: Path, arguments: list[str]) -> None:
    done = Workplace(tmp_path, local_environment()).verb("doctor", *arguments)
    assert done.returncode == 2 and "Traceback" not in done.stderr


def test_reports_are_read_out_of_whatever_else_is_printed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    long = {"text": "ü\n" * 2000, "numbers": list(range(500))}
    for rank in (0, 11):
        Reporter(rank).say("node", {**long, "rank": rank})
    Reporter(1).say("node", long)
    lines = capfd.readouterr().out.splitlines()
    assert max(map(len, lines)) < 1000 and len(lines) > 30
    cut = lines[:-1]  # rank 1's last line never came
    mixed = [f"{i % 3}: {line}\nnoise\n" for i, line in enumerate(cut[::2] + cut[1::2])]
    parts = parts_of("".join(mixed) + "dlperf-probe 2 node 1/1 {broken\n")
    assert parts == {rank: {"node": {**long, "rank": rank}} for rank in (0, 11)}


def test_a_rank_that_hangs_where_no_python_runs_says_in_what_and_ends() -> None:
    program = (
        "import ctypes; from dlperf_hpc.train.probe.speech import Reporter;"
        "Reporter(3).enter('starting MPI', 0.5); ctypes.PyDLL(None).sleep(30)"
    )
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 1 and "Timeout (" in done.stderr
    assert parts_of(done.stdout) == {3: {"phase": {"name": "starting MPI"}}}


def test_a_line_is_one_line_without_control_characters() -> None:
    finding = CheckResult("FAIL", "mpi", "a\n\x1b[31mred\n\n  b", "c\u202ed", "x")
    assert finding.line() == "FAIL     mpi [x]: a / red / b -> c\\u202ed"


def node_facts(host: str = "n1", **more: Any) -> dict[str, Any]:
    exchange = {"read_s": 0.1, "round_trip_s": 0.02, "offset_s": 0.0, "within_s": 0.01}
    return {
        "host": host,
        "local_rank": 0,
        "python": "3.11.2",
        "executable": "/usr/bin/python3",
        "cpus": [0, 1, 2, 3],
        "omp": None,
        "exchange": exchange,
        "gpus": {"visible": "0,1", "source": None, "devices": None},
        "modules": {name: {"version": "1"} for name in ("dlperf_hpc", "mpi4py")},
        "installed": {},
        **more,
    }


def trial(topology: str = "1n2g") -> Trial:
    (target,) = targets_of_site(Site(), Topology.parse(topology))
    return Trial(target, get_engine("slurm"), Site(), Path("/logs/.doctor"), job_id="7")


def gpu(**more: Any) -> dict[str, Any]:
    healthy = {"index": 0, "uuid": "GPU-1", "name": "H100", "throttle": 4, "ecc": 0, "others": []}
    return {**healthy, "remap": {"pending": False, "failed": False}, **more}


def gpus_judged(devices: list[dict[str, Any]] | None, **more: Any) -> list[CheckResult]:
    gpus = {"visible": "0,1", "source": "NVML", "devices": devices}
    return list(gpu_checks(trial(), [node_facts(gpus=gpus, **more)]))


def test_gpus_seen_against_gpus_asked_and_their_health() -> None:
    count, health = gpus_judged([gpu(), gpu(index=1)])
    assert (count.grade, health.grade) == ("ok", "ok") and "2 x H100" in count.seen
    few, _ = gpus_judged([gpu()])
    assert few.grade == "FAIL" and "2 per node asked for" in few.to_do
    (none,) = gpus_judged(None)
    assert none.grade == "warn" and "CUDA_VISIBLE_DEVICES=0,1" in none.seen
    torch = {"torch": {"version": "2", "devices": 0}}
    blind, _ = gpus_judged([gpu(), gpu(index=1)], modules=torch)
    assert blind.grade == "FAIL" and "torch in this environment sees 0" in blind.seen
    remap = {"pending": True, "failed": True}
    ill = gpu(index=1, throttle=0x48, ecc=3, others=[4711], remap=remap)
    _, health = gpus_judged([gpu(), ill])
    assert health.grade == "warn" and "GPU 0" not in health.seen
    for word in ("3 uncorrected", "remapped", "throttled", "hardware slowdown", "pid 4711"):
        assert word in health.seen


def judged(parts: dict[int, dict[str, Any]], topology: str = "2n1g") -> dict[str, CheckResult]:
    it = trial(topology)
    it.parts, it.code = parts, 0
    return {finding.check: finding for finding in interpret(it)}


def world(size: int = 2) -> dict[str, Any]:
    return {"size": size, "library": "MPICH"}


def test_nodes_that_differ_and_clocks_that_are_off() -> None:
    off = {"read_s": 0.1, "round_trip_s": 0.2, "offset_s": -7.0, "within_s": 0.1}
    other = {"dlperf_hpc": {"version": "1"}, "mpi4py": {"error": "libmpi.so: cannot open"}}
    first = node_facts(python="3.9.1")
    second = node_facts("n2", exchange=off, modules=other, cpus=[0])
    found = judged({0: {"node": first, "world": world()}, 1: {"node": second, "world": world()}})
    assert found["clock"].grade == "warn" and "n2 -7000 +- 100 ms" in found["clock"].seen
    assert found["python"].grade == "FAIL" and "3.9.1" in found["python"].seen
    assert found["mpi4py"].grade == "FAIL" and found["mpi4py"].seen.endswith("on n2")
    assert found["mpi"].grade == "ok"


def test_a_program_that_a_node_does_not_have() -> None:
    it = trial("2n1g")
    paths = {"mine": ("/shared/train.py",), "other": ("/shared",)}
    it.target = replace(it.target, paths=paths)
    second = node_facts("n2", lacking=["/shared/train.py"])
    it.parts = {0: {"node": node_facts(lacking=[])}, 1: {"node": second}}
    found = {finding.check: finding for finding in interpret(it)}
    assert (
        found["program mine"]
        .line()
        .startswith(
            "FAIL     program mine: there is no /shared/train.py on n2 -> put it where all nodes"
        )
    )
    assert found["program other"].seen == "its files are there on n1, n2"


def test_a_directory_that_is_not_the_same_on_a_node() -> None:
    alone = node_facts("n2", exchange={"unread": "no such file"})
    mute = node_facts(exchange={"read_s": 0.1, "unwritten": "Read-only file system"})
    found = judged({0: {"node": mute, "world": world()}, 1: {"node": alone, "world": world()}})
    assert found["log directory"].grade == "FAIL"
    assert "n2: cannot read" in found["log directory"].seen
    assert "n1: cannot write: Read-only file system" in found["log directory"].seen
    assert found["clock"].grade == "skipped"


def test_slurms_own_fault_is_not_blamed_on_the_profiles_mpi() -> None:
    """Under load Slurm 22.05 misreads a rank's request now and then."""
    fault = "slurmstepd-n1: error: mpi/pmi2: value not properly terminated in client request\n"
    tried = trial("2n1g")
    tried.output = f"{fault}0: Timeout (0:01:00)!\nsrun: error: n1: task 0: Killed\n"
    tried.parts = {0: {"node": node_facts(), "phase": {"name": "MPI_Init"}}}
    found = {each.check: each for each in interpret(tried)}
    assert found["mpi"].grade == "warn" and "PMI-2 plug-in misread" in found["mpi"].seen
    assert "mpi is not to blame" in found["mpi"].to_do
    tried.parts = {}
    (job,) = interpret(tried)
    assert job.grade == "warn" and "mpi is not to blame" in job.to_do


def test_ranks_that_die_when_they_first_talk() -> None:
    """In containers of their own they may not read each other's memory."""
    tried = trial("1n2g")
    tried.code = 143
    tried.parts = {rank: {"node": node_facts(), "world": world()} for rank in range(2)}
    tried.output = "0: copy_iovs(224)....: process_vm_readv failed (errno 1)\n"
    (mpi,) = [each for each in interpret(tried) if each.check == "mpi"]
    assert mpi.grade == "FAIL" and "process_vm_readv failed" in mpi.seen
    assert "srun --mpi=list" in mpi.to_do or "srun has" in mpi.to_do
    box = {"environment": {"default": {"apptainer": {"image": "/image.sif"}}}}
    tried.site = Site.model_validate(box)
    (mpi,) = [each for each in interpret(tried) if each.check == "mpi"]
    assert 'options = ["--sharens"]' in mpi.to_do


def test_ranks_that_get_stuck_or_do_not_reach_each_other() -> None:
    nodes = [node_facts(), node_facts("n2")]
    it = trial("2n1g")
    for rank, phase in enumerate(["leaving MPI", "all-reduce on host memory"]):
        it.parts[rank] = {"phase": {"name": phase}, "node": nodes[rank], "world": world()}
    it.output = "0: fine\n1: Timeout (0:01:00)!\n1:   File x\n"
    found = {finding.check: finding for finding in interpret(it)}
    assert found["mpi"].grade == "FAIL" and "stuck in all-reduce on host" in found["mpi"].seen
    reach = [{"host": "n2", "error": "n1 (127.0.1.1): Connection refused"}]
    comm = {"comm": {"hosts": ["n1", "n2"], "reach": reach, "rates": []}}
    found = judged(
        {r: {"node": n, "world": world(), **(comm if r == 0 else {})} for r, n in enumerate(nodes)}
    )
    assert found["names"].grade == "FAIL" and "127.0.1.1" in found["names"].seen


@pytest.mark.parametrize(
    ("state", "out"),
    [
        *(("idle", False), ("mixed", False), ("allocated", False), ("planned", False)),
        *(("idle~", False), ("completing", False), ("reserved", False), ("mixed-", False)),
        *(("drained", True), ("draining", True), ("drained*", True), ("down*", True)),
        *(("idle*", True), ("down$", True), ("inval", True), ("maint", True), ("fail", True)),
    ],
)
def test_node_states(state: str, out: bool) -> None:
    assert Node("n1", state, "none", 8).out is out


def test_generic_resources_and_limits_as_sinfo_prints_them() -> None:
    assert _gpus("gpu:8") == 8 and _gpus("(null)") == 0
    assert _gpus("gpu:a100:4(S:0-1),gpu:v100:2,shard:64,mps:100") == 6
    small = Partition("p", "up", 600, (Node("n1", "idle", "none", 8),))
    (target,) = targets_of_site(Site(), Topology(2, 1), limit_s=300)
    assert nodes([small], [target.array]).grade == "FAIL"
    assert time_limits([small], [target.array]).grade == "ok"
    short = Partition("p", "up", 60, small.nodes)
    assert time_limits([short], [target.array]).grade == "FAIL"
    assert time_limits([short, small], [target.array]).grade == "ok"
