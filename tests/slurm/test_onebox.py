"""The one-machine Slurm comes up for anybody, works like a cluster, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fixtures_slurm import ONEBOX, Onebox, call, short_directory
from places import BUSY, SUPPORT

NOBODY = 65534


def until(condition: Callable[[], bool], seconds: float = 15) -> bool:
    deadline = time.monotonic() + BUSY * seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.1)
    return False


def mentions(directory: Path) -> list[str]:
    """Processes whose command line or working directory names the directory, except this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != str(os.getpid()):
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                where = os.readlink(entry / "cwd")
            except OSError:
                continue
            if str(directory) in line + where:
                found.append(f"{entry.name}: {line}")
    return found


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def pids_of(directory: Path) -> list[int]:
    done = call(["status", str(directory), "--json"])
    return [row["pid"] for row in json.loads(done.stdout).values()]


@pytest.fixture
def place() -> Iterator[Path]:
    """A short path, as sockets need it, that does not exist yet."""
    with tempfile.TemporaryDirectory(prefix="obt-") as parent:
        yield Path(parent) / "box"


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Onebox]:
    cluster = Onebox(short_directory(tmp_path_factory.mktemp("box")), "--conf", "MaxArraySize=21")
    yield cluster
    cluster.down()


def test_four_idle_nodes_with_eight_gpus(box: Onebox) -> None:
    rows = box.run(["sinfo", "-h", "-N", "-o", "%P %N %T %G"]).stdout.split("\n")
    assert sorted(filter(None, rows)) == [
        "main* n1 idle gpu:8",
        "main* n2 idle gpu:8",
        "main* n3 idle gpu:8",
        "main* n4 idle gpu:8",
        "small n1 idle gpu:8",
    ]
    assert box.facts["nodes"] == ["n1", "n2", "n3", "n4"]
    assert box.env["SLURM_CONF"] == box.facts["slurm_conf"] == str(box.dir / "etc/slurm.conf")


def test_conf_replaces_a_setting(box: Onebox) -> None:
    assert "MaxArraySize            = 21\n" in box.run(["scontrol", "show", "config"]).stdout


def test_every_rank_sees_its_node_and_all_gpus(box: Onebox) -> None:
    shell = "echo $SLURM_PROCID $SLURMD_NODENAME $(hostname) $CUDA_VISIBLE_DEVICES"
    step = ["srun", "-N4", "--ntasks-per-node=2", "--gpus-per-node=8", "sh", "-c", shell]
    done = box.run(step)
    assert done.returncode == 0, done.stderr
    here = os.uname().nodename
    expected = []
    for rank in range(8):
        node = f"n{rank // 2 + 1}"
        host = here if box.facts["isolation"] == "plain" else node
        expected.append(f"{rank} {node} {host} 0,1,2,3,4,5,6,7")
    assert sorted(done.stdout.splitlines()) == expected


def test_array_runs(box: Onebox, tmp_path: Path) -> None:
    wrap = "echo task $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_JOB_ID"
    logs = str(tmp_path / "%a.log")
    done = box.run(["sbatch", "--wait", "--parsable", "--array=0-3", "-o", logs, "--wrap", wrap])
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    texts = [(tmp_path / f"{index}.log").read_text() for index in range(4)]
    assert texts == [f"task {index} of {job}\n" for index in range(4)]


def test_mpi_ranks_find_their_neighbours(box: Onebox) -> None:
    """MPI starts whatever lies in the ranks' memory: mpi/pmi2 would cut what MPICH sends of it."""
    program = str(SUPPORT / "programs" / "used_heap.py")
    srun = ["srun", "--mpi=pmi2", "-N2", "--ntasks-per-node=2", sys.executable, program]
    done = box.run(srun)
    here = os.uname().nodename
    first, second, size = ("n1", "n2", 2) if box.facts["isolation"] != "plain" else (here, here, 2)
    assert done.stdout.strip() == str([(first, size)] * 2 + [(second, size)] * 2), done.stderr


def test_node_dies_with_its_job_and_comes_back(box: Onebox) -> None:
    submit = ["sbatch", "--parsable", "--no-requeue", "-w", "n3", "-o", "/dev/null"]
    job = box.run([*submit, "--wrap", "sleep 321"]).stdout.strip()

    def state() -> str:
        return box.run(["squeue", "-h", "-t", "all", "-j", job, "-o", "%T"]).stdout.strip()

    assert until(lambda: state() == "RUNNING"), state()
    box.node("kill", "n3")
    status = call(["status", str(box.dir)])
    assert status.returncode == 1 and "n3         dead" in status.stdout
    box.run(["scontrol", "update", "nodename=n3", "state=down", "reason=test"])
    assert until(lambda: state() == "NODE_FAIL"), state()
    box.node("start", "n3")
    assert box.run(["sinfo", "-h", "-n", "n3", "-p", "main", "-o", "%T"]).stdout == "idle\n"


def test_down_leaves_nothing(place: Path) -> None:
    mounts = Path("/proc/mounts").read_text()
    cluster = Onebox(place, "--nodes", "2")
    cluster.run(["sbatch", "-N2", "--wrap", f"srun sh -c 'setsid sleep 99 & echo {place}; wait'"])
    pids = pids_of(place)
    assert len(pids) == 5 and not any(gone(pid) for pid in pids)  # munged, slurmctld, 2, guard
    cluster.down()
    assert all(gone(pid) for pid in pids)
    assert not place.exists() and mentions(place) == []
    assert Path("/proc/mounts").read_text() == mounts
    again = call(["down", str(place)])
    assert again.returncode == 0 and "nothing to do" in again.stdout


def test_foreign_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    for verb in ("down", "up", "status"):
        done = call([verb, str(tmp_path)])
        assert done.returncode == 2 and str(tmp_path) in done.stderr
    assert (tmp_path / "thesis.txt").read_text() == "precious"


def test_failed_up_shows_the_log_and_leaves_nothing(place: Path) -> None:
    done = call(["up", str(place), "--conf", "NoSuchKey=1"])
    assert done.returncode == 1 and "unrecognized key: NoSuchKey" in done.stderr
    assert not place.exists() and mentions(place) == []


def test_missing_packages_are_named(place: Path) -> None:
    done = call(["up", str(place)], env={"PATH": "/nonexistent"})
    assert done.returncode == 2
    assert "apt-get install -y --no-install-recommends slurmctld slurmd" in done.stderr


@pytest.mark.parametrize("isolation", ["uts", "plain"])
def test_weaker_isolation_takes_a_node_down_whole(place: Path, isolation: str) -> None:
    """Where pods are forbidden, orphans of a job must still end with their node."""
    cluster = Onebox(place, "--nodes", "2", "--isolation", isolation)
    orphan = f"setsid sh -c 'sleep 77; : {place}' & sleep 66"
    cluster.run(["sbatch", "-w", "n2", "-o", "/dev/null", "--wrap", orphan])
    assert until(lambda: any("sleep 77" in line for line in mentions(place)))
    cluster.node("kill", "n2")
    assert not any("sleep 77" in line for line in mentions(place))
    cluster.down()
    assert mentions(place) == []


def test_run_passes_the_exit_code_and_cleans_up(place: Path) -> None:
    scratch = place.parent
    env = os.environ | {"TMPDIR": str(scratch)}
    inner = 'test -d "$ONEBOX_DIR" && srun -N2 hostname && exit 7'
    done = call(["run", "--nodes", "2", "--", "sh", "-c", inner], env=env)
    assert done.returncode == 7 and len(done.stdout.split()) == 2, done.stderr
    assert list(scratch.iterdir()) == [] and mentions(scratch) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_run_cleans_up_when_it_is_ended(place: Path, number: signal.Signals) -> None:
    scratch = place.parent
    argv = [sys.executable, str(ONEBOX), "run", "--nodes", "1", "--", "sleep", "3"]
    env = os.environ | {"TMPDIR": str(scratch)}
    with subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True) as runner:
        assert runner.stderr is not None and "up in" in runner.stderr.readline()
        runner.send_signal(number)
        assert runner.wait(20 * BUSY) == (143 if number == signal.SIGTERM else -number)
    assert until(lambda: list(scratch.iterdir()) == [] and mentions(scratch) == [])


def test_accounting_answers_about_a_finished_job(place: Path) -> None:
    cluster = Onebox(place, "--nodes", "1", "--accounting", "slurmdbd")
    try:
        job = cluster.run(["sbatch", "--wait", "--parsable", "-o", "/dev/null", "--wrap", "exit 3"])
        ask = ["sacct", "-X", "-n", "-P", "-j", job.stdout.strip(), "-o", "State,ExitCode"]
        assert until(lambda: cluster.run(ask).stdout == "FAILED|3:0\n", 30), cluster.run(ask)
    finally:
        pids = pids_of(place)
        cluster.down()
    assert all(gone(pid) for pid in pids) and mentions(place) == []


def test_an_ordinary_user_can_do_it() -> None:
    """As root: in nobody's shoes, with a copy and a Python that nobody can read."""
    python = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
    become: list[str] = []
    if os.getuid() == 0:
        ids = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        become = ["setpriv", *ids, "env", "HOME=/", "PYTHONDONTWRITEBYTECODE=1"]
    with tempfile.TemporaryDirectory(prefix="obt-") as parent:
        os.chmod(parent, 0o1777)
        code, place = Path(parent) / "code", Path(parent) / "box"
        shutil.copytree(ONEBOX, code, ignore=shutil.ignore_patterns("__pycache__"))
        for path in (code, *code.iterdir()):
            path.chmod(0o755)

        def do(*argv: str) -> subprocess.CompletedProcess[str]:
            whole = [*become, *argv]
            return subprocess.run(whole, text=True, capture_output=True, timeout=60 * BUSY, cwd="/")

        done = do(python, str(code), "up", str(place))
        assert done.returncode == 0, done.stderr
        try:
            script = f". {place}/env.sh; id -u; srun -N4 -n4 sh -c 'id -u'"
            done = do("sh", "-c", script)
            uid = str(NOBODY if become else os.getuid())
            assert done.stdout.split() == [uid] * 5, done.stderr
            if become:
                refused = call(["down", str(place)])  # root, on another user's directory
                assert refused.returncode == 2 and "belongs to uid" in refused.stderr
        finally:
            done = do(python, str(code), "down", str(place))
        assert done.returncode == 0 and not place.exists() and mentions(place) == []
