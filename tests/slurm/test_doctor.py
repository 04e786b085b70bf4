"""Will it work on this site? A healthy one-machine Slurm, and faults that are each named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fixtures_slurm import Onebox, call
from sweeping import Workplace, local_environment

from dlperf_hpc.engines.base import CheckResult

SITE = """\
partition = "{partition}"
exclusive = false
poll_s = 1.0
"""
CPU = 'device = "cpu"\n'


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
    assert "to start at" in found["sbatch --test-only 2n2g.tried"].seen
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


def test_collectives_within_a_node_and_between_two(place: Workplace, onebox: Onebox) -> None:
    sweep = spec(place, ["2n2g"])
    arguments = ["--site", site(place), "--collectives", "--budget", 2, "--json"]
    done = place.verb("doctor", sweep, *arguments, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    kinds = {"all-reduce", "reduce-scatter", "all-gather"}
    told = [row["seen"] for row in answer["findings"] if "slowest rank" in row["seen"]]
    assert len(told) == 12 and all(row["grade"] != "FAIL" for row in answer["findings"])
    found = {(row["nodes"], row["ranks"], row["by"]) for row in answer["collectives"]}
    libraries = {"MPI, host memory", "torch.distributed, gloo"}
    assert found == {(n, 2 * n, by) for n in (1, 2) for by in libraries}
    for each in found:
        rows = [r for r in answer["collectives"] if (r["nodes"], r["ranks"], r["by"]) == each]
        assert {row["collective"] for row in rows} == kinds
        assert all(row["right"] and row["us"] > 0 and row["iterations"] >= 3 for row in rows)
        ranks = each[1]
        for row in rows:
            factor = (2 if row["collective"] == "all-reduce" else 1) * (ranks - 1) / ranks
            rate = row["bytes"] / row["us"] / 1e3
            assert row["algorithm_gb_per_s"] == pytest.approx(rate)
            assert row["bus_gb_per_s"] == pytest.approx(factor * rate)
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
    assert list(kept.glob("jobs/*.out")) and kept.stat().st_mode & 0o777 == 0o700


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
    refused = found["sbatch --test-only 1n9g.tried"]
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
