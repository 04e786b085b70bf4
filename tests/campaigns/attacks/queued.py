"""Another directory, or another plan, in the place of that for which a job waits in a real Slurm.

The logs directory is a project's, 2775: whoever is in the group may rename what is in it. The
victim is the user whose Slurm it is, root where root runs the campaign; the attacker is nobody.
``python -m attacks.queued JOB...`` lets jobs start, waits for their ends and prints their outputs.
"""

from __future__ import annotations

import atexit
import os
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from fixtures_slurm import Onebox
from other_user import AS_NOBODY, NOBODY
from places import CAMPAIGNS, ROOT, SUPPORT
from sweeping import wait_until

from attacks.attacks import REFUSED, Commands, attack
from attacks.scene import Command, Scene
from dlperf_hpc.records.manifest import read_submissions

if TYPE_CHECKING:
    from subprocess import CompletedProcess

OWNER = "belongs to nobody, and belonged to root when this job was submitted"
_SPEC = """\
topologies = ["1n1g"]
repeats = 1
time_limit = "00:15:00"
[measure]
warmup = 1
iterations = 2
[case]
framework = "mine"
model = "bert-tiny"
seq_len = 16
batch_size = 2
[program.mine]
launch = "rank"
run = ["/bin/sh", "-c", "true its own"]
"""
_SITE = 'partition = "main"\nexclusive = false\nsbatch = { hold = true }\n'
_one_cluster = threading.Lock()


@cache
def _made() -> Onebox:
    folder = tempfile.TemporaryDirectory(prefix="dlb-", ignore_cleanup_errors=True)
    atexit.register(folder.cleanup)  # when the cluster is down
    cluster = Onebox(Path(folder.name, "slurm"), "--nodes", "2")
    atexit.register(cluster.down)
    return cluster


def _cluster() -> Onebox:
    """One Slurm for all these attacks."""
    with _one_cluster:
        return _made()


@dataclass(frozen=True)
class Queued:
    """The victim's sweep, whose job waits, and what the attacker does to it."""

    scene: Scene
    env: dict[str, str]

    @property
    def place(self) -> Path:
        return self.scene.root / "project" / "quick"

    @property
    def kept(self) -> Path:
        return self.place.with_name("kept")

    def verb(self, *argv: object) -> None:
        words = [sys.executable, "-m", "dlperf_hpc", *map(str, argv)]
        done = subprocess.run(words, env=self.env, cwd=self.scene.home, capture_output=True)
        assert done.returncode == 0, done.stderr

    def as_attacker(self, script: str) -> None:
        """What the attacker does, in the project's directory."""
        argv = [*AS_NOBODY, "sh", "-ec", script]
        subprocess.run(argv, cwd=self.place.parent, check=True)

    def swap(self) -> str:
        """Shell lines that put the attacker's directory in the place of the victim's."""
        return "mv quick kept\nmv other quick"

    def another(self) -> None:
        """The attacker's directory: the victim's, but for what it runs."""
        self.as_attacker("cp -r quick other || true")  # the lock is the victim's alone
        self._run_payload(self.place.with_name("other"))

    def _run_payload(self, place: Path) -> None:
        text = (place / "manifest.json").read_text()
        assert text.count("true its own") == 1
        (place / "manifest.json").write_text(
            text.replace("true its own", self.scene.payload("job"))
        )

    def cancel(self, job: str) -> None:
        subprocess.run(["scancel", job], env=self.env, check=True)

    def jobs(self, place: Path) -> list[str]:
        return [row.job_id for row in read_submissions(place) if row.job_id]

    def start(self, job: str, told: str) -> Command:
        """Let a job start, and see its output, which Slurm itself writes."""
        python = os.pathsep.join(map(str, (CAMPAIGNS, SUPPORT, ROOT)))
        writes = [self.place / "jobs" / f"{job}_0.out"]
        env = {**self.env, "PYTHONPATH": python}
        program = (sys.executable, "-m", "attacks.queued")
        return Command([job], told, writes, env=env, program=program, of_slurm=True)

    def look(self, *argv: object, told: str) -> Command:
        """A verb that the victim types afterwards."""
        writes = [self.kept / "verdicts.jsonl"]
        return Command([*map(str, argv)], told, writes, env=self.env, of_slurm=True)


def _queued(scene: Scene, *options: str, path: str = "") -> Queued:
    """A sweep whose jobs are held, and the attacker's beside it."""
    env = dict(_cluster().env)
    env["PATH"] = f"{path}{os.pathsep}{env['PATH']}".strip(os.pathsep)
    made = Queued(scene, env)
    project = made.place.parent
    project.mkdir()
    os.chown(project, -1, NOBODY)
    project.chmod(0o2775)
    spec, site = scene.home / "quick.toml", scene.home / "site.toml"
    spec.write_text(_SPEC)
    site.write_text(_SITE)
    made.verb("sweep", spec, "--site", site, "--logs", project, "--no-check", *options)
    made.another()
    return made


@attack("another directory takes the place of a queued sweep's", two_users=True)
def _(scene: Scene) -> Commands:
    queued = _queued(scene)
    (job,) = queued.jobs(queued.place)
    queued.as_attacker(queued.swap())
    told = rf"Slurm: FAILED .*jobs/{job}_0.out is not here"
    return [queued.start(job, OWNER), queued.look("status", "--json", queued.kept, told=told)]


@attack("another directory takes its place before the epilogue", two_users=True)
def _(scene: Scene) -> Commands:
    queued = _queued(scene, path=str(scene.home))
    (job,) = queued.jobs(queued.place)
    swap = shlex.join([*AS_NOBODY, "sh", "-ec", f"cd {queued.place.parent}\n{queued.swap()}"])
    srun = scene.home / "srun"  # in whose step the ranks die
    srun.write_text(f"#!/bin/sh\n{swap}\necho srun: error: n1: task 0: Killed\nexit 137\n")
    srun.chmod(0o755)
    # The swap itself renames all; what the victim's job made in the attacker's is root's.
    told = rf"(?s)no record: .*{OWNER}.*\nmade by root in {queued.place}: \[\]"
    names = [queued.place, queued.place.with_name("other"), queued.kept]
    return [replace(queued.start(job, told), writes=names)]


@attack("another directory takes its place before the report", two_users=True)
def _(scene: Scene) -> Commands:
    queued = _queued(scene, "--report")
    array, report = queued.jobs(queued.place)
    queued.as_attacker(f"ln -s {scene.home} other/report\n{queued.swap()}")
    queued.cancel(array)
    return [queued.start(report, f"no report: .*: {OWNER}")]


@attack("another directory takes its place before or after a rerun", two_users=True)
def _(scene: Scene) -> Commands:
    queued = _queued(scene)
    queued.cancel(queued.jobs(queued.place)[0])
    rerun = ("rerun", queued.place, "--status", "cancelled")
    queued.verb(*rerun, "--site", scene.home / "site.toml")
    job = queued.jobs(queued.place)[-1]
    # The run of the attacker's copy has the later array, too.
    queued.as_attacker(f"cp -r quick/arrays other/arrays\n{queued.swap()}")
    return [queued.start(job, OWNER), queued.look(*rerun, told=REFUSED)]


@attack("another plan in a directory that a group can write", two_users=True)
def _(scene: Scene) -> Commands:
    queued = _queued(scene)
    (job,) = queued.jobs(queued.place)
    os.chown(queued.place, -1, NOBODY)
    queued.place.chmod(0o2775)
    queued.as_attacker("cp other/manifest.json quick/new\nmv -f quick/new quick/manifest.json")
    told = "the plan of array 1n1g.quick-mine is not what it was when this job was submitted"
    return [queued.start(job, told), queued.look("rerun", queued.place, told=REFUSED)]


def _call(*argv: str) -> CompletedProcess[str]:
    return subprocess.run(argv, text=True, capture_output=True, check=False)


def main(jobs: Sequence[str]) -> int:
    """Release jobs, wait until they have ended, and print their outputs, wherever these are now."""
    shown = [_call("scontrol", "show", "job", job).stdout for job in jobs]
    for job in jobs:
        _call("scontrol", "release", job)
    wait_until(lambda: not _call("squeue", "-h", "-j", ",".join(jobs)).stdout, 40, "their ends")
    for job, words in zip(jobs, shown):
        place = Path(words.partition("StdOut=")[2].split()[0]).parents[1]
        for path in place.parent.glob(f"*/jobs/{job}_0.out"):
            print(path.read_text())
        made = [each.name for each in place.rglob("*") if each.stat().st_uid == os.geteuid()]
        print(f"made by root in {place}: {made}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
