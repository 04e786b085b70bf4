"""Will it work on this site? A healthy one-machine Slurm, and faults that are each named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fixtures_slurm import Onebox, call
from sweeping import Workplace, local_environment

from dlperf_hpc.doctor.diagnosis import gpu_checks, judge
from dlperf_hpc.doctor.job import Trial, parts_of, targets_of_site
from dlperf_hpc.doctor.login import Node, Partition, _gpus, nodes, time_limits
from dlperf_hpc.doctor.result import CheckResult
from dlperf_hpc.engines.site import Site
from dlperf_hpc.sweepfile.case import Topology
from dlperf_hpc.train.probe.speech import Reporter

SITE = """\
partition = "{partition}"
exclusive = false
poll_s = 1.0
"""
CPU = 'device = "cpu"\n'


@pytest.fixture
def place(tmp_path: Path, onebox: Onebox) -> Workplace:
    return Workplace(tmp_path, onebox.env)


def spec(place: Workplace, topologies: list[str], more: str = "") -> Path:
    path = place.tiny("tried", topologies, more=more)
    path.write_text(path.read_text().replace("[measure]", CPU + "[measure]"))
    return path


def site(place: Workplace, more: str = "", partition: str = "main") -> Path:
    return place.write("site.toml", SITE.format(partition=partition) + more)


def examined(place: Workplace, *arguments: object, code: int) -> dict[str, CheckResult]:
    """Findings of a run of the verb by check, with its environment if that is not the default."""
    done = place.verb("doctor", *arguments, "--json", timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stderr == ""
    answer = json.loads(done.stdout)
    assert answer["ok"] is (code == 0)
    found = [CheckResult(**row) for row in answer["findings"]]
    return {f.line().partition("  ")[2].strip().partition(": ")[0]: f for f in found}


def test_a_healthy_site_is_ok_and_nothing_is_left(place: Workplace, onebox: Onebox) -> None:
    found = examined(place, spec(place, ["1n1g", "2n2g"]), "--site", site(place), code=0)
    grades = {name: finding.grade for name, finding in found.items()}
    assert {name for name, grade in grades.items() if grade == "skipped"} == {"gpus"}
    assert {name for name, grade in grades.items() if grade == "warn"} <= {"cpus"}
    assert "FAIL" not in grades.values()
    assert found["accounting"].seen.startswith("none at this site")
    assert "MaxArraySize 10001" in found["limits"].seen and "2 runs" in found["limits"].seen
    assert found["nodes"].seen == "4 of 4 take jobs"
    assert "to start at" in found["sbatch --test-only tried-2n2g"].seen
    assert "2 nodes, 4 ranks" in found["job"].seen
    assert found["mpi"].seen.startswith("world size 4 under --mpi=pmi2; MPICH")
    assert found["torch"].seen.startswith("2.") and found["mpi4py"].seen.startswith("4.")
    assert "GB/s" in found["all-reduce"].seen
    if onebox.facts["isolation"] != "plain":
        assert found["placement"].seen == "ranks on n1 2, n2 2"
        assert "read and written on n1, n2" in found["log directory"].seen
        assert "n2 reach n1" in found["names"].seen
        assert "n1 " in found["clock"].seen and " ms" in found["clock"].seen
    assert not (place.root / "logs").exists()
    assert onebox.run(["squeue", "--noheader", "--states=PD,R"]).stdout == ""


def test_faults_of_environments_are_named_each_in_its_own(place: Workplace) -> None:
    bare, old = place.root / "bare", place.write("old", "#!/bin/sh\nexit 3\n")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    old.chmod(0o755)
    profile = f"""\
[environment.alone]
mpi = "none"
[environment.unknown]
mpi = "pmi9"
[environment.bare]
python = "{bare}/bin/python"
[environment.absent]
python = "{place.root}/absent/python"
[environment.broken]
python = "{old}"
[environment.crash]
env = {{ MPIR_CVAR_CH4_NETMOD = "nonsuch" }}
"""
    names = ["alone", "unknown", "bare", "absent", "broken", "crash"]
    sweep = spec(place, ["1n2g"], more=f"[matrix]\nenvironment = {names}\n")
    found = examined(place, sweep, "--site", site(place, profile), code=1)
    failed = {name: f for name, f in found.items() if f.grade == "FAIL"}

    alone = failed.pop("mpi [alone]")
    assert "2 ranks each believe they are alone" in alone.seen and "--mpi=none" in alone.seen
    assert "site profile" in alone.to_do and "pmi2" in alone.to_do
    assert found["torch [alone]"].grade == "ok"
    unknown = failed.pop("job [unknown]")
    assert "no MPI plug-in pmi9" in unknown.seen and "pmi2" in unknown.to_do
    for module in ("dlperf_hpc", "mpi4py", "torch"):
        missing = failed.pop(f"{module} [bare]")
        assert f"No module named '{module}'" in missing.seen
        assert f"{bare}/bin/python -m pip" in missing.to_do
    assert found["python [bare]"].grade == "ok" and found["mpi [bare]"].grade == "skipped"
    assert "absent/python: No such file" in failed.pop("job [absent]").seen
    assert "exit code 3" in failed.pop("job [broken]").seen
    # Every node has told what it is like before a rank may die in MPI.
    crash = failed.pop("mpi [crash]")
    assert "0 of 2 ranks came through MPI_Init" in crash.seen and "died" in crash.seen
    assert found["torch [crash]"].grade == "ok"
    assert not failed
    kept = Path(found["kept"].seen.partition(": ")[2])
    assert list(kept.glob("*/jobs/*.out")) and kept.stat().st_mode & 0o777 == 0o700


def test_what_cannot_start_is_named_and_what_waits_is_cancelled(
    place: Workplace, onebox: Onebox
) -> None:
    sweep = spec(place, ["4n1g", "1n9g"])
    held = site(place, "sbatch = { hold = true }\n")
    drain = ["scontrol", "update", "nodename=n4", "state=drain", "reason=bad memory | slot 3"]
    assert onebox.run(drain).returncode == 0
    try:
        found = examined(place, sweep, "--site", held, "--timeout", 1, code=1)
    finally:
        onebox.run(["scontrol", "update", "nodename=n4", "state=resume"])
    out = found["nodes"]
    assert out.grade == "FAIL" and "n4 drained: bad memory | slot 3" in out.seen
    assert "4n1g cannot start" in out.to_do
    refused = found["sbatch --test-only tried-1n9g"]
    assert refused.grade == "FAIL" and "node configuration is not available" in refused.seen
    assert "no nodes for 1n9g" in refused.to_do
    waited = found["job"]
    assert waited.grade == "warn" and "still pending after 1 s: JobHeldUser" in waited.seen
    assert onebox.run(["squeue", "--noheader", "--states=PD,R"]).stdout == ""
    assert not (place.root / "logs").exists()


def test_no_such_partition(place: Workplace) -> None:
    profile = site(place, partition="mian")
    found = examined(place, "--site", profile, code=1)
    assert "no partition 'mian'" in found["partition"].seen
    assert "main, small" in found["partition"].to_do
    assert found["scripts and jobs"].grade == "skipped"


def test_a_controller_that_does_not_answer(place: Workplace, onebox: Onebox) -> None:
    config = Path(onebox.env["SLURM_CONF"]).read_text()
    lines = [line for line in config.splitlines() if not line.startswith("SlurmctldPort")]
    nobody = place.write("nobody.conf", "\n".join([*lines, "SlurmctldPort=9", ""]))
    elsewhere = Workplace(place.root, {**onebox.env, "SLURM_CONF": str(nobody)})
    found = examined(elsewhere, spec(place, ["1n1g"]), "--site", site(place), code=1)
    assert found["commands"].grade == "ok"
    assert found["slurmctld"].grade == "FAIL" and "DOWN" in found["slurmctld"].seen
    assert found["everything else"].grade == "skipped"


def test_a_log_directory_that_cannot_be(place: Workplace) -> None:
    place.write("file", "in the way\n")
    arguments = ("--site", site(place), "--nodes", 1)
    found = examined(place, *arguments, "--logs", place.root / "file" / "logs", code=1)
    assert "file/logs: cannot be written on this machine" in found["log directory"].seen
    assert "--logs" in found["log directory"].to_do


def test_a_log_directory_that_a_node_can_only_read(place: Workplace, onebox: Onebox) -> None:
    if onebox.facts["isolation"] != "pod":
        pytest.skip("nodes without mounts of their own")
    logs = place.root / "shared"
    logs.mkdir()
    arguments = (spec(place, ["1n1g"]), "--site", site(place, partition="small"))
    with read_only(onebox, "n1", logs):
        found = examined(place, *arguments, "--logs", logs, code=1)
    bad = found["log directory"]
    assert bad.grade == "FAIL" and "on n1, and no output of it shows" in bad.seen
    assert f"{logs} must be one directory" in bad.to_do


@contextmanager
def read_only(onebox: Onebox, node: str, directory: Path) -> Iterator[None]:
    """A mount in the node's own namespace, as where a file system is exported read-only."""
    pid = json.loads(call(["status", str(onebox.dir), "--json"]).stdout)[node]["pid"]
    child = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]
    user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
    inside = ["nsenter", "--target", child, *user, "--mount"]
    script = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1"'
    subprocess.run([*inside, "sh", "-c", script, "sh", str(directory)], check=True)
    try:
        yield
    finally:
        subprocess.run([*inside, "umount", str(directory)], check=True)


def test_this_machine_as_the_local_engine(tmp_path: Path) -> None:
    place = Workplace(tmp_path, local_environment())
    found = examined(place, spec(place, ["2n2g"]), "--cluster", "local", code=1)
    assert found["topologies"].grade == "FAIL" and "2n2g" in found["topologies"].seen
    found = examined(place, "--cluster", "local", code=0)
    assert found["mpi"].seen.startswith("world size 2 under mpiexec")
    assert found["mpi4py"].grade == found["log directory"].grade == "ok"
    assert "GB/s" in found["all-reduce"].seen
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize(
    "arguments", [["--nodes", "0"], ["--timeout", "nan"], ["absent.toml"], ["--site", "absent"]]
)
def test_usage(tmp_path: Path, arguments: list[str]) -> None:
    done = Workplace(tmp_path, local_environment()).verb("doctor", *arguments)
    assert done.returncode == 2 and "Traceback" not in done.stderr


def test_help_loads_the_standard_library_only() -> None:
    program = (
        "import sys\nfrom dlperf_hpc import doctor\ntry: doctor.main(['--help'])\n"
        "except SystemExit: pass\nprint(*sys.modules)"
    )
    argv = [sys.executable, "-c", program]
    loaded = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    assert not {"pydantic", "submitit", "rich", "mpi4py", "torch"} & set(loaded)


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
    assert finding.line() == "FAIL     mpi [x]: a / \\x1b[31mred / b -> c\\u202ed"


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
    return Trial(target, Site(), Path("/logs/.doctor/it"), job_id="7_0")


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
    return {finding.check: finding for finding in judge(it, "slurm")}


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


def test_a_directory_that_is_not_the_same_on_a_node() -> None:
    alone = node_facts("n2", exchange={"unread": "no such file"})
    mute = node_facts(exchange={"read_s": 0.1, "unwritten": "Read-only file system"})
    found = judged({0: {"node": mute, "world": world()}, 1: {"node": alone, "world": world()}})
    assert found["log directory"].grade == "FAIL"
    assert "n2: cannot read" in found["log directory"].seen
    assert "n1: cannot write: Read-only file system" in found["log directory"].seen
    assert found["clock"].grade == "skipped"


def test_ranks_that_get_stuck_or_do_not_reach_each_other() -> None:
    nodes = [node_facts(), node_facts("n2")]
    it = trial("2n1g")
    for rank, phase in enumerate(["leaving MPI", "all-reduce on host memory"]):
        it.parts[rank] = {"phase": {"name": phase}, "node": nodes[rank], "world": world()}
    it.output = "0: fine\n1: Timeout (0:01:00)!\n1:   File x\n"
    found = {finding.check: finding for finding in judge(it, "slurm")}
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
