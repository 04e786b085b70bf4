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
from dlperf_hpc.doctor.examine import local_ranks
from dlperf_hpc.doctor.job import Trial, parts_of, targets_of_site
from dlperf_hpc.engines import get_engine
from dlperf_hpc.engines.base import CheckResult
from dlperf_hpc.engines.site import Site
from dlperf_hpc.engines.slurm.login import Node, Partition, _gpus, nodes, time_limits
from dlperf_hpc.model.case import Topology
from dlperf_hpc.train.probe.__main__ import Reporter, chosen_gpus


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


def test_reports_that_srun_has_cut_anywhere(capfd: pytest.CaptureFixture[str]) -> None:
    """Seen of Slurm 22.05: what has come is taken in pieces of 1024 bytes, each ended as a line."""
    rows = [{"bytes": 8 << i, "us": i / 7, "right": True} for i in range(100)]
    for part in ("node", "comm", "world"):
        Reporter(0).say(part, {"rows": rows})
    printed = capfd.readouterr().out
    for first in range(1, 1024, 37):
        cuts = [0, *range(first, len(printed), 1024), len(printed)]
        pieces = [printed[begin:end] for begin, end in zip(cuts, cuts[1:])]
        lines = [f"0: {line}\n1: noise\n" for piece in pieces for line in piece.splitlines()]
        parts = parts_of("".join(lines))[0]
        assert parts == {part: {"rows": rows} for part in ("node", "comm", "world")}
    damaged = printed.replace('"us": 0.1', '"us": 0.2')
    assert parts_of(damaged) == {} and printed != damaged


def test_a_rank_that_hangs_where_no_python_runs_says_in_what_and_ends() -> None:
    program = (
        "import ctypes; from dlperf_hpc.train.probe.__main__ import Reporter;"
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


def test_what_torch_compile_needs_is_a_warning_where_it_lacks() -> None:
    both, torch = [gpu(), gpu(index=1)], {"torch": {"version": "2", "devices": 2}}
    lacking = ["/usr/include/python3.12/Python.h"]
    (_, found, _) = gpus_judged(both, modules=torch, cannot_compile=lacking)
    assert (found.grade, found.check) == ("warn", "compiler") and lacking[0] in found.seen
    for modules, lacks in ((torch, []), ({}, lacking)):
        found_too = gpus_judged(both, modules=modules, cannot_compile=lacks)
        assert [each.check for each in found_too] == ["gpus", "gpu health"]


def shown(*numbers: int) -> dict[str, Any]:
    devices = [gpu(index=0, uuid=f"GPU-{number}") for number in numbers]
    return {"visible": "0", "source": "NVML", "devices": devices}


def of_one_node(ranks: list[dict[str, Any]]) -> dict[str, CheckResult]:
    first = {"torch": {"version": "2", "devices": 1}, "dlperf_hpc": {"version": "1"}}
    nodes = [node_facts(gpus=ranks[0], modules={**node_facts()["modules"], **first})]
    for told in ranks[1:]:  # who is not its node's first tells less
        node = node_facts(gpus=told)
        nodes.append({k: v for k, v in node.items() if k not in ("exchange", "modules")})
    return judged({r: {"node": n, "world": world()} for r, n in enumerate(nodes)}, "1n2g")


def test_gpus_that_each_rank_is_shown_alone_are_counted_together() -> None:
    found = of_one_node([shown(1), shown(2)])
    assert found["gpus"].grade == "ok" and "2 x H100" in found["gpus"].seen
    twice = of_one_node([shown(1), shown(1)])
    assert twice["gpus"].grade == "FAIL" and "1 x H100" in twice["gpus"].seen
    ill = shown(2)
    ill["devices"][0]["ecc"] = 3
    health = of_one_node([shown(1), ill])["gpu health"]
    assert "GPU 0 (GPU-2): 3 uncorrected" in health.seen


def test_a_local_rank_that_is_no_gpu_of_its_rank_is_a_warning() -> None:
    it = trial("1n2g")
    ranks = [node_facts(gpus=shown(1)), node_facts(gpus=shown(2), local_rank=1)]
    it.parts = {r: {"node": node} for r, node in enumerate(ranks)}
    assert not list(local_ranks(it))  # no program goes by it
    it.target = replace(it.target, by_local_rank=("mine",))
    (found,) = local_ranks(it)
    assert (found.grade, found.seen) == ("warn", "local rank 1 on n1 sees 1 GPU")
    assert 'local_rank = "visible" into [program.mine]' in found.to_do
    it.parts[1]["node"] = node_facts(gpus=shown(1, 2), local_rank=1)
    assert not list(local_ranks(it))


@pytest.mark.parametrize(
    ("build", "devices", "grade", "words"),
    [
        ("ROCm 7.0", 2, "warn", "not been tried on ROCm"),
        ("ROCm 7.0", 0, "FAIL", "rocminfo"),
        ("XPU 20250301", 0, "FAIL", "no back end for XPU"),
        ("CPUs", 0, "warn", "device = auto compute on CPUs"),
    ],
)
def test_a_torch_for_other_gpus_is_named(build: str, devices: int, grade: str, words: str) -> None:
    torch = {"torch": {"version": "2.8", "build": build, "devices": devices}}
    (found,) = gpus_judged(None, modules=torch)
    assert found.grade == grade and words in found.to_do
    assert build == "CPUs" or f"built for {build}" in found.seen
    parts = {"node": node_facts(modules={**node_facts()["modules"], **torch}), "world": world(1)}
    it = trial("1n1g")
    it.target = replace(it.target, modules=("torch",))
    it.parts, it.code = {0: parts}, 0
    (module,) = [each for each in interpret(it) if each.check == "torch"]
    assert module.seen == f"2.8 (built for {build})"


def test_a_torch_that_cannot_use_the_gpus_there_are_says_what_it_is_built_for() -> None:
    torch = {"torch": {"version": "2", "build": "CPUs", "devices": 0}}
    blind, _ = gpus_judged([gpu(), gpu(index=1)], modules=torch)
    assert blind.grade == "FAIL" and "torch (built for CPUs) in this environment" in blind.seen


def test_a_missing_nvml_is_said_once() -> None:
    none = {"visible": "0", "source": None, "devices": None}
    none["no_nvml"] = "NVMLError_LibraryNotFound: NVML Shared Library Not Found"
    parts = {}
    for rank, host in enumerate(("n1", "n1", "n2", "n2")):
        node = node_facts(host, local_rank=rank % 2, gpus=none)
        if rank % 2:
            del node["exchange"]
        parts[rank] = {"node": node, "world": world(4)}
    text = " ".join(found.line() for found in judged(parts, "2n2g").values())
    assert text.count("NVML Shared Library Not Found") == 1 and "n1, n2 no NVIDIA driver" in text
    # Where nvidia-smi answers in its place.
    listed = {**none, "source": "nvidia-smi", "devices": [gpu(), gpu(index=1)]}
    count, health = gpu_checks(trial(), [node_facts(gpus=listed), node_facts("n2", gpus=listed)])
    assert count.grade == "ok" and health.grade == "skipped"
    assert "libnvidia-ml.so.1" in health.to_do and "nvidia-ml-py" not in health.line()
    listed["no_nvml"] = "ModuleNotFoundError: No module named 'pynvml'"
    _, health = gpu_checks(trial(), [node_facts(gpus=listed)])
    assert health.to_do == "pip install nvidia-ml-py"


def test_one_core_for_a_rank_with_a_gpu_is_told() -> None:
    def cpus(cores: list[int], gpus: dict[str, Any]) -> CheckResult:
        return judged({0: {"node": node_facts(cpus=cores, gpus=gpus), "world": world(1)}}, "1n1g")[
            "cpus"
        ]

    few = cpus([0], shown(1))
    assert few.grade == "warn" and "4 cores or more" in few.to_do and "cpus_per_task" in few.to_do
    assert cpus([0, 1, 2, 3], shown(1)).grade == "ok"
    assert cpus([0], {"visible": None, "source": None, "devices": None}).grade == "ok"


@pytest.mark.parametrize(
    ("seen", "own", "why"),
    [
        ([(["g0", "g1"], "")] * 2, [0, 1], ""),
        ([(["g0"], ""), (["g1"], "")], [0, 0], ""),
        ([(["g0", "g1"], ""), (["g1", "g0"], "")], [0, 0], ""),
        ([(["g0"], ""), (["g0"], "")], [], "rank 1 on n1 sees no GPU that no other rank takes"),
        ([(["g0"], ""), ([], "PyTorch sees no GPU")], [], "rank 1 on n1: PyTorch sees no GPU"),
    ],
)
def test_the_probe_s_ranks_take_the_gpus_that_real_ranks_take(
    seen: list[tuple[list[str], str]], own: list[int], why: str
) -> None:
    assert chosen_gpus(["n1", "n1"], seen) == (own, why)


def test_why_all_reduce_on_gpus_was_not_tried_is_told_where_there_are_gpus() -> None:
    def found(gpus: dict[str, Any]) -> dict[str, CheckResult]:
        nodes = [node_facts(gpus=gpus), node_facts("n2", gpus=gpus)]
        comm = {"hosts": ["n1", "n2"], "reach": [], "rates": [], "gpu_skipped": "rank 1: why not"}
        parts = {r: {"node": n, "world": world()} for r, n in enumerate(nodes)}
        return judged({**parts, 0: {**parts[0], "comm": comm}})

    skipped = found(shown(1))["all-reduce on GPUs"]
    assert (skipped.grade, skipped.seen) == ("skipped", "rank 1: why not")
    assert "all-reduce on GPUs" not in found({"visible": None, "source": None, "devices": None})


def judged(parts: dict[int, dict[str, Any]], topology: str = "2n1g") -> dict[str, CheckResult]:
    it = trial(topology)
    it.parts, it.code = parts, 0
    return {finding.check: finding for finding in interpret(it)}


def world(size: int = 2) -> dict[str, Any]:
    return {"size": size, "library": "MPICH"}


def test_nodes_that_differ_and_clocks_that_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    # Which MPI plug-ins srun has is asked only where ranks do not find each other.
    monkeypatch.setattr(type(get_engine("slurm")), "mpi_hint", None)
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
    """What MPICH wrote was too long for it."""
    fault = "slurmstepd-n1: error: mpi/pmi2: value not properly terminated in client request\n"
    tried = trial("2n1g")
    tried.output = f"{fault}0: Timeout (0:01:00)!\nsrun: error: n1: task 0: Killed\n"
    tried.parts = {0: {"node": node_facts(), "phase": {"name": "MPI_Init"}}}
    found = {each.check: each for each in interpret(tried)}
    assert found["mpi"].grade == "FAIL" and 'UCX_TLS = "tcp,self"' in found["mpi"].seen
    assert "mpi is not to blame" in found["mpi"].to_do
    tried.parts = {}
    (job,) = interpret(tried)
    assert job.grade == "FAIL" and "mpi is not to blame" in job.to_do


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
