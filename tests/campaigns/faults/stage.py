"""Where faults happen: a real Slurm, sweeps on it that can be struck, and what must hold after.

A scene is a sweep of a few runs one after another. The first ends well before anything is struck:
its files may not change any more. Then a run is struck, and the same ``sweep`` again and ``rerun``
must complete the sweep: no run lost, none measured twice, nothing altered.
"""

from __future__ import annotations

import contextlib
import ctypes
import getpass
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fixtures_slurm import Onebox, call, short_directory
from places import BUSY, ROOT
from queueing import Queue, executions, files_of_ok_runs, live_runs
from sweeping import Done, Workplace, wait_until

from dlperf_hpc.model.result import Status
from dlperf_hpc.records import layout
from dlperf_hpc.records.layout import LAUNCH_MARK
from dlperf_hpc.records.ledger import read_ledger

_ALL = "Nodes=n1,n2,n3,n4 MaxTime=INFINITE State=UP"
CONF = (
    *("PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE"),
    "SlurmctldParameters=preempt_send_user_signal",
    f"PartitionName=requeued {_ALL} PriorityTier=1 PreemptMode=REQUEUE",
    f"PartitionName=ended {_ALL} PriorityTier=1 PreemptMode=CANCEL",
    f"PartitionName=warned {_ALL} PriorityTier=1 PreemptMode=CANCEL GraceTime=40",
    f"PartitionName=first {_ALL} PriorityTier=10 PreemptMode=OFF",
    # Memory that is asked for is a limit: slurmd looks every second, and kills.
    *("JobAcctGatherType=jobacct_gather/linux", "JobAcctGatherParams=OverMemoryKill"),
    *("JobAcctGatherFrequency=1", "SelectTypeParameters=CR_Core_Memory", "DefMemPerNode=6000"),
    "AccountingStorageEnforce=limits",
)
CLONE_NEWNS = 0x00020000
SMALL_MIB = 4  # of the file system that is filled up
BAD = "failed,partial,timeout,out_of_memory,preempted,node_failed,cancelled,lost"
PATIENCE_S = 240.0 * BUSY

# In place of the tiny BERT where the queue alone is struck: most of a drill is starts of PyTorch.
STEPS = f"""
[program.steps]
launch = "rank"
workdir = "{ROOT}/tests/support/programs"
run = ["steps.py", "200", "20", "{{global_batch}}"]
[program.steps.read]
format = "megatron"
"""
SITE = """\
partition = "{partition}"
exclusive = {exclusive}
poll_s = 1.0
array_parallelism = 1
{keys}
[environment.default]
env = {{ GLOO_SOCKET_IFNAME = "lo", UCX_TLS = "tcp,self", OMP_NUM_THREADS = "1" }}
setup = [
    "while [ -e {place}/gate.$SLURM_ARRAY_TASK_ID ]; do sleep 0.2; done",
    "f={place}/doom.$SLURM_ARRAY_TASK_ID; if [ -e $f ]; then export DLPERF_FAULT=$(cat $f); fi",
    "f={place}/limit.$SLURM_ARRAY_TASK_ID; if [ -e $f ]; then ulimit -f $(cat $f); fi",
]
{environment}
"""


@dataclass
class Trial:
    """What came of one fault. ``attempts``: starts of a run's script, of all runs together."""

    fault: str
    runs: int = 0
    attempts: int = 0
    lost: int = 0
    duplicated: int = 0
    altered: int = 0
    seconds: float = 0.0
    note: str = ""
    error: str = ""

    @property
    def good(self) -> bool:
        return not (self.error or self.lost or self.duplicated or self.altered)


class Stage:
    """A cluster with accounting, and room for scenes. One that ``mounts`` takes this process to a
    mount namespace of its own, where it may: what it mounts there is gone with it, however it
    ends."""

    def __init__(self, root: Path, mounts: bool = True) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self.small = root / "small"
        self.mounted = mounts and _mount(self.small)  # before the nodes are: theirs as well
        options = [option for setting in CONF for option in ("--conf", setting)]
        try:
            lab = short_directory(root / "lab")
            self.cluster = Onebox(lab, "--accounting", "slurmdbd", *options)
        except BaseException:
            self._unmount()
            raise
        self.queue = Queue(self.cluster.env)
        self.nodes = {name: threading.Lock() for name in ("n3", "n4")}  # to strike: one at a time
        self.user = getpass.getuser()
        with contextlib.suppress(AssertionError):  # root has an account from the beginning
            self.queue.call(*["sacctmgr", "-i", "add", "account", "lab"])
            self.queue.call(*f"sacctmgr -i add user {self.user} account=lab".split())

    def close(self) -> None:
        self.cluster.down()
        self._unmount()

    def _unmount(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "--lazy", str(self.small)], check=False)

    def kill(self, daemon: str) -> None:
        self.cluster.node("kill", daemon)

    def stop(self, daemon: str) -> None:
        """End a daemon as an administrator does."""
        shown = call(["status", str(self.cluster.dir), "--json"]).stdout
        pid = json.loads(shown)[daemon]["pid"]
        os.kill(pid, signal.SIGTERM)
        self.until(lambda: not _runs(pid), f"the end of {daemon}")

    def start(self, daemon: str) -> None:
        self.cluster.node("start", daemon)
        asks = {"slurmctld": ["squeue"], "slurmdbd": ["sacctmgr", "-n", "show", "cluster"]}
        if daemon in asks:
            self.until(lambda: self.cluster.run(asks[daemon]).returncode == 0, daemon)

    @staticmethod
    def until(condition: Callable[[], bool], what: str, seconds: float = PATIENCE_S) -> None:
        wait_until(condition, seconds, what)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _mount(path: Path) -> bool:
    """A small file system of its own, where that is allowed."""
    path.mkdir()
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) != 0:
        return False
    subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True, check=False)
    argv = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_MIB}m", "tmpfs", str(path)]
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


@dataclass
class Scene:
    """A sweep of ``runs`` runs of each topology; ``keys`` and ``environment`` go into its site. Of
    ``steps`` the runs are those of a program that needs nothing, and no fault can be in it."""

    stage: Stage
    fault: str
    topologies: tuple[str, ...] = ("1n1g",)
    runs: int = 2
    partition: str = "main"
    exclusive: bool = False
    keys: str = 'exclude = "n3,n4"'
    environment: str = ""
    limits: str = ""
    time_limit: str = "00:20:00"
    where: Path | None = None
    steps: bool = False
    before: dict[Path, bytes] = field(default_factory=dict)
    twice: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.began = time.monotonic()
        self.name = re.sub(r"[^a-z0-9]+", "-", self.fault.lower()).strip("-")
        home = (self.where or self.stage.root) / self.name
        home.mkdir()
        self.place = Workplace(home, dict(self.stage.cluster.env))
        self.queue = self.stage.queue
        self.root = self.place.directory(self.name)
        site = SITE.format(place=home, exclusive=str(self.exclusive).lower(), **self._site())
        self.site = self.place.write("site.toml", site)
        self.spec = self.place.tiny(
            self.name, list(self.topologies), self.runs, self.time_limit, self.limits
        )
        if self.steps:
            text = self.spec.read_text().replace('framework = "ddp"', 'framework = "steps"')
            self.spec.write_text(text + STEPS)

    def _site(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in ("partition", "keys", "environment")}

    # --- what happens ---

    def doom(self, index: int, fault: str, kind: str = "doom") -> None:
        """Let the array's task of that index fail; or wait (``gate``) in its batch script."""
        (self.place.root / f"{kind}.{index}").write_text(fault)

    def gate(self, index: int) -> None:
        self.doom(index, "", "gate")

    def heal(self) -> None:
        for kind in ("doom", "gate", "limit"):
            for path in self.place.root.glob(f"{kind}.*"):
                path.unlink()

    def press(self, verb: str, *arguments: object, code: int | None = None) -> Done:
        """Type a command; whatever has happened, it ends without a traceback."""
        done = self.place.verb(verb, *arguments)
        assert "Traceback" not in done.stderr, done.stderr
        told = (verb, done.returncode, done.stdout, done.stderr)
        assert done.returncode in ((0, 1) if code is None else (code,)), told
        return done

    def sweep(self, *arguments: object, code: int | None = None) -> Done:
        return self.press("sweep", self.spec, "--site", self.site, *arguments, code=code)

    def begin(self, fault: str = "", index: int = 1) -> None:
        """Submit, wait until the first run has ended well, and until the doomed one has begun."""
        if fault:
            self.doom(index, fault)
        self.sweep(code=0)
        self.wait(lambda: self.ended(0) == "ok", "the first run's end")
        self.before = files_of_ok_runs(self.root)
        if fault:
            what = "the warm-up of the doomed run"
            over = ("", "unknown")  # not begun, not ended
            self.wait(lambda: self.warming_up(index) or self.ended(index) not in over, what)
            assert self.warming_up(index), self.press("status", self.root, "--json").stdout

    def complete(self) -> Trial:
        """What anybody would do: the same sweep again, and rerun, until every run is ok."""
        self.heal()
        for _ in range(4):
            self.sweep()
            self.look()
            self.press("rerun", self.root, "--site", self.site, "--status", BAD)
            self.look()
            self.wait(lambda: not self.queue.alive(self.root), "the end of all jobs")
            if all("ok" in ends for ends in executions(self.root).values()):
                break
        nothing = self.press("rerun", self.root, "--status", BAD, code=0).stdout
        assert "nothing to rerun" in nothing, nothing
        return self.verdict()

    # --- what is seen ---

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        self.stage.until(condition, f"{self.fault}: {what}")

    def ended(self, index: int) -> str:
        """How the run of that index ended, as its log says."""
        return list(executions(self.root).values())[index][-1:][0] if self._begun(index) else ""

    def _begun(self, index: int) -> bool:
        return bool(list(executions(self.root).values())[index])

    def warming_up(self, index: int) -> bool:
        run = read_ledger(self.root).manifest.runs[index]
        log = layout.RunPaths(self.root, run.id).log
        return log.exists() and "phase name=warmup" in log.read_text()

    def state(self, index: int) -> str:
        """Slurm's word for the task of that index of the first array's job."""
        token = read_ledger(self.root).arrays[0].token
        rows = self.queue.rows(self.root)
        return next((r[2] for r in rows if r[3] == token and r[1] == str(index)), "")

    def task(self, index: int) -> str:
        """``<job>_<index>``."""
        job = next(s.job_id for s in read_ledger(self.root).submissions if s.job_id)
        return f"{job}_{index}"

    def told(self) -> list[str]:
        """The state of every run, as ``status`` says."""
        return [row["status"] for row in self.rows()]

    def rows(self) -> list[dict[str, str]]:
        """What ``status`` says of every run."""
        found: list[dict[str, str]] = json.loads(self.press("status", self.root, "--json").stdout)[
            "runs"
        ]
        return found

    def look(self) -> None:
        """No run in two jobs that live, no array in two jobs."""
        for found in (live_runs(self.queue, self.root), self.queue.jobs(self.root).values()):
            self.twice |= {each for each, count in Counter(found).items() if count > 1}

    def verdict(self) -> Trial:
        """Count what was lost, doubled and altered: on disk, in the queue, in accounting."""
        self.look()
        made = executions(self.root)
        self.twice |= {run for run, ends in made.items() if ends.count("ok") > 1}
        self.twice |= {name for name, jobs in self._accounted().items() if jobs > 1}
        outputs = [path.read_text(errors="replace") for path in self.root.glob("jobs/*.out")]
        again = sum(text.count("already ok, nothing to do") for text in outputs)
        table = self.press("status", self.root, "--json", code=0).stdout
        counted = sum(text.count(f"{LAUNCH_MARK} ") for text in outputs)
        after = files_of_ok_runs(self.root)
        return Trial(
            fault=self.fault,
            runs=len(made),
            attempts=max(counted, sum(map(len, made.values()))),
            lost=sum("ok" not in ends for ends in made.values()) + table.count('"unknown"'),
            duplicated=len(self.twice) + again,
            altered=sum(after.get(path) != data for path, data in self.before.items()),
            seconds=time.monotonic() - self.began,
            note="; ".join(self.notes),
        )

    def _accounted(self) -> dict[str, int]:
        """Jobs of each array's name that accounting knows; nothing where it does not answer."""
        argv = ["sacct", "-n", "-P", "-X", "-S", "now-1day", "-o", "JobID,JobName"]
        done = self.stage.cluster.run(argv)
        names = {array.name for array in read_ledger(self.root).arrays}
        rows = (line.split("|", 1) for line in done.stdout.splitlines() if "|" in line)
        jobs = {(job.split("_")[0], name) for job, name in rows if name in names}
        return Counter(name for _, name in jobs)


def shim(place: Path, text: str, command: str = "sbatch") -> str:
    """A PATH whose ``command`` is this script (``$REAL`` is the real one)."""
    folder = place / "bin"
    folder.mkdir(exist_ok=True)
    real = next(
        path
        for each in os.environ["PATH"].split(os.pathsep)
        if (path := Path(each) / command).exists()
    )
    script = folder / command
    script.write_text(f"#!/bin/sh\nREAL={real}\n{text}")
    script.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


__all__ = ["BAD", "Scene", "Stage", "Status", "Trial", "say", "shim"]
