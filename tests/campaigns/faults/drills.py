"""The faults, one function each: it strikes a scene, and lets it be completed."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from queueing import executions

from dlperf_hpc.records import layout
from dlperf_hpc.records.ledger import read_ledger
from faults.stage import BAD, Scene, Stage, Trial, shim

Strike = Callable[[Stage, str], Trial]

TIMED_OUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
FAILS = f'echo "{TIMED_OUT}" >&2; exit 1\n'
# A Python in whose place another program runs, if there is a file beside it.
INSTEAD = """\
#!/bin/sh
if [ -e {home}/doom.$SLURM_ARRAY_TASK_ID ]; then
    {instead}
fi
exec {python} "$@"
"""
PATIENT = "while [ -e {home}/doom.$SLURM_ARRAY_TASK_ID ]; do sleep 0.2; done"
DEAF = "trap '' USR2 TERM; exec sleep 600"
GREEDY = "exec {python} -c 'import time; x = b\"a\" * (1600 << 20); time.sleep(120)'"


@dataclass(frozen=True)
class Drill:
    """``alone``: it touches the whole cluster, or its queue: nothing else is at work there."""

    fault: str
    strike: Strike
    alone: bool


DRILLS: list[Drill] = []


def drill(fault: str, alone: bool = False) -> Callable[[Strike], Strike]:
    def add(strike: Strike) -> Strike:
        DRILLS.append(Drill(fault, strike, alone))
        return strike

    return add


# --- slow to show: these come first, and others go on meanwhile -----------------------------------


@drill("over Slurm's time limit (1 min), a rank that hears nothing")
def time_limit(stage: Stage, fault: str) -> Trial:
    scene = _instead(stage, fault, DEAF, time_limit="00:01:00")
    scene.begin()
    # One squeue costs less than one `status`, and it is a minute until then.
    scene.wait(lambda: scene.state(1) not in ("PENDING", "RUNNING"), "the limit")
    # squeue still shows the job, completing, for a while after accounting has its end.
    scene.wait(lambda: scene.told()[1] == "timeout", "its end")
    row = scene.rows()[1]
    assert "TIMEOUT" in row["reason"] or "TIME LIMIT" in row["reason"], row
    return scene.complete()


@drill("a rank hangs, the others wait in a collective")
def hang(stage: Stage, fault: str) -> Trial:
    scene = Scene(stage, fault, topologies=("1n2g",), limits="[limits]\nstartup_s = 60\n")
    scene.begin("hang@1")
    scene.wait(lambda: scene.ended(1) == "failed", "the watchdog")
    return scene.complete()


@drill("a rank is SIGKILLed")
def rank_killed(stage: Stage, fault: str) -> Trial:
    scene = Scene(stage, fault, topologies=("1n2g",))
    scene.begin("kill@1")
    scene.wait(lambda: scene.ended(1) == "failed", "the end of the others")
    return scene.complete()


@drill("out of memory (killed by slurmd)")
def out_of_memory(stage: Stage, fault: str) -> Trial:
    scene = _instead(stage, fault, GREEDY, keys='mem = "1200M"\nexclude = "n3,n4"')
    scene.begin()
    scene.wait(lambda: scene.ended(1) == "out_of_memory", "the kill")
    return scene.complete()


def _instead(stage: Stage, fault: str, instead: str, **options: Any) -> Scene:
    """A scene whose second run is another program."""
    python = stage.root / f"python-{len(list(stage.root.glob('python-*')))}"
    scene = Scene(stage, fault, environment=f'python = "{python}"', **options)
    home = scene.place.root
    told = instead.format(home=home, python=sys.executable)
    python.write_text(INSTEAD.format(home=home, instead=told, python=sys.executable))
    python.chmod(0o755)
    scene.doom(1, "none@-1")  # no rank has that number
    return scene


@drill("disk full")
def disk_full(stage: Stage, fault: str) -> Trial:
    """The sweep's own file system; where none can be mounted, a limit on the files of the run."""
    scene = Scene(stage, fault, where=stage.small if stage.mounted else None)
    scene.gate(1)
    if not stage.mounted:
        scene.notes.append("RLIMIT_FSIZE: no file system can be mounted here")
        scene.doom(1, "0", kind="limit")
    scene.begin()
    with _filled(stage.small) if stage.mounted else contextlib.nullcontext():
        (scene.place.root / "gate.1").unlink()
        scene.wait(lambda: not scene.queue.alive(scene.root), "the end of the run without room")
        scene.press("status", scene.root)
        if stage.mounted:
            size = os.statvfs(stage.small).f_blocks * 4 // 1024
            scene.notes.append(
                f"tmpfs of {size} MiB; the attempt without room could leave no trace"
            )
            refused = scene.press("rerun", scene.root, "--status", BAD, code=2)
            assert "cannot be written: No space left" in refused.stderr, refused.stderr
    return scene.complete()


@contextlib.contextmanager
def _filled(path: Path) -> Iterator[None]:
    filler = path / "filler"
    with open(filler, "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError as error:
                assert error.errno == errno.ENOSPC
    try:
        yield
    finally:
        filler.unlink()


@drill("scancel of a running and of a waiting task")
def cancel_single(stage: Stage, fault: str) -> Trial:
    scene = Scene(stage, fault, runs=3)
    scene.begin("hang@0")
    stage.queue.call("scancel", scene.task(1), scene.task(2))
    scene.wait(lambda: not scene.queue.alive(scene.root), "the end of the job")
    assert scene.told() == ["ok", "cancelled", "cancelled"]
    return scene.complete()


@drill("scancel of the whole array")
def cancel_whole(stage: Stage, fault: str) -> Trial:
    scene = Scene(stage, fault, runs=3, steps=True)
    scene.gate(1)
    scene.begin()
    scene.wait(lambda: scene.state(1) == "RUNNING", "the second task")
    stage.queue.call("scancel", scene.task(1).split("_")[0])
    scene.wait(lambda: not scene.queue.alive(scene.root), "the end of the job")
    assert scene.told() == ["ok", "cancelled", "cancelled"]
    return scene.complete()


@drill("scontrol requeue")
def requeue(stage: Stage, fault: str) -> Trial:
    scene = Scene(stage, fault)
    scene.begin("hang@0")
    scene.heal()
    stage.queue.call("scontrol", "requeue", scene.task(1))
    scene.wait(lambda: scene.ended(1) == "ok", "the second attempt")
    scene.notes.append("Slurm starts it again by itself")
    return scene.complete()


@drill("sbatch times out after the job was accepted")
def sbatch_accepted(stage: Stage, fault: str) -> Trial:
    return _sbatch(stage, fault, f'"$REAL" "$@" >/dev/null; {FAILS}', submitted=2)


@drill("sbatch times out, the job is accepted 3 s later")
def sbatch_late(stage: Stage, fault: str) -> Trial:
    late = '(sleep 3; exec "$REAL" "$@") </dev/null >/dev/null 2>&1 &\n'
    return _sbatch(stage, fault, late + FAILS, submitted=2)


@drill("sbatch times out, the job was never accepted")
def sbatch_refused(stage: Stage, fault: str) -> Trial:
    return _sbatch(stage, fault, FAILS, submitted=0)


@drill("sbatch is killed before it says a word")
def sbatch_mute(stage: Stage, fault: str) -> Trial:
    return _sbatch(stage, fault, '"$REAL" "$@" >/dev/null; kill -9 $$\n', submitted=2)


@drill("a banner with a job's number before sbatch's answer")
def sbatch_banner(stage: Stage, fault: str) -> Trial:
    banner = 'echo "Welcome! Maintenance: see job 1 of the calendar"\n'
    return _sbatch(stage, fault, banner + 'exec "$REAL" "$@"\n', submitted=2)


def _sbatch(stage: Stage, fault: str, script: str, submitted: int) -> Trial:
    """Two arrays, one after the other through an sbatch that fails."""
    scene = Scene(stage, fault, topologies=("1n1g", "2n1g"), runs=1, steps=True)
    scene.place.env = {**scene.place.env, "PATH": shim(scene.place.root, script)}
    done = scene.sweep(code=0 if submitted else 1)
    assert done.stdout.count("submitted: job") == submitted, done.stdout + done.stderr
    assert len(scene.queue.jobs(scene.root)) == submitted
    scene.place.env = stage.cluster.env
    return scene.complete()


@drill("squeue prints a page of HTML, and exit code 0")
def squeue_garbage(stage: Stage, fault: str) -> Trial:
    """While it does, nothing is known of what waits or runs, and nothing is submitted again."""
    scene = Scene(stage, fault, steps=True)
    scene.gate(1)
    scene.begin()
    scene.wait(lambda: scene.state(1) == "RUNNING", "the second task")
    page = "echo '<html><body>Service temporarily unavailable</body></html>'\n"
    scene.place.env = {**scene.place.env, "PATH": shim(scene.place.root, page, "squeue")}
    told = scene.told()[1]
    assert told in ("running", "unknown"), told
    refused = scene.press("rerun", scene.root, "--status", BAD, code=2)
    assert "squeue" in refused.stderr, refused.stderr
    scene.place.env = stage.cluster.env
    scene.press("cancel", scene.root, code=0)
    scene.wait(lambda: not scene.queue.alive(scene.root), "the end of the job")
    return scene.complete()


@drill("the log of a run that was ok is emptied")
def log_emptied(stage: Stage, fault: str) -> Trial:
    scene = Scene(stage, fault)
    scene.begin()
    scene.wait(lambda: scene.ended(1) == "ok", "the second run's end")
    scene.wait(lambda: not scene.queue.alive(scene.root), "the end of the job")
    run = read_ledger(scene.root).manifest.runs[1]
    log = layout.RunPaths(scene.root, run.id).log
    log.write_bytes(b"")
    told = scene.told()
    assert told == ["ok", "partial"], told
    scene.notes.append("told as partial; rerun measures it again")
    return scene.complete()


@drill("the manifest is lost while jobs wait")
def manifest_lost(stage: Stage, fault: str) -> Trial:
    """They can be ended all the same; with the manifest back, the sweep goes on."""
    scene = Scene(stage, fault, steps=True)
    scene.gate(1)
    scene.begin()
    manifest, job = scene.root / layout.MANIFEST, scene.task(1).split("_")[0]
    held = manifest.rename(scene.place.root / "kept")
    scene.press("cancel", scene.root, code=0)
    left = ("squeue", "-h", "-t", "PD,R,CG", "-j", job)
    scene.wait(lambda: not stage.queue.call(*left), "the end of the job")
    held.rename(manifest)
    return scene.complete()


# --- what touches everybody -----------------------------------------------------------------------


@drill("a node dies (NODE_FAIL) and comes back")
def node_dies(stage: Stage, fault: str) -> Trial:
    with stage.nodes["n4"]:
        scene = Scene(stage, fault, keys='requeue = 0\nsbatch = { nodelist = "n4" }')
        scene.begin("hang@0")
        _power_cut(scene)
        scene.wait(lambda: scene.state(1) == "NODE_FAIL", "NODE_FAIL")
        assert scene.told() == ["ok", "node_failed"]
        stage.start("n4")
        return scene.complete()


@drill("a node dies, Slurm requeues its job")
def node_dies_requeued(stage: Stage, fault: str) -> Trial:
    with stage.nodes["n4"]:
        scene = Scene(stage, fault, keys='requeue = 2\nsbatch = { nodelist = "n4" }')
        scene.begin("hang@0")
        _power_cut(scene)
        scene.wait(lambda: scene.state(1) == "PENDING", "the requeue")
        assert "nothing to rerun" in scene.press("rerun", scene.root, "--status", BAD).stdout
        scene.heal()
        stage.start("n4")
        scene.wait(lambda: scene.ended(1) == "ok", "the second attempt")
        scene.notes.append("Slurm starts it again by itself")
        return scene.complete()


def _power_cut(scene: Scene) -> None:
    """Slurm would see it by itself within half a minute."""
    scene.stage.kill("n4")
    scene.queue.call("scontrol", "update", "nodename=n4", "state=down", "reason=drill")


@drill("a limit on submitted jobs (AssocMaxSubmitJobLimit)", alone=True)
def submit_limit(stage: Stage, fault: str) -> Trial:
    """First as one who goes away, then as one who stays: in waves, as the queue empties."""
    scene = Scene(stage, fault, topologies=("1n1g", "1n2g", "2n1g"), runs=1, steps=True)
    limit = ("sacctmgr", "-i", "modify", "user", stage.user, "set")
    stage.queue.call(*limit, "MaxSubmitJobs=1")
    try:
        first = scene.sweep(code=1)
        assert first.stdout.count("submitted: job") == 1, first.stdout + first.stderr
        assert "not yet submitted: 2 arrays with 2 runs" in first.stderr, first.stderr
        assert "AssocMaxSubmitJobLimit" in first.stderr
        scene.sweep("--wait", code=0)
        scene.look()
    finally:
        stage.queue.call(*limit, "MaxSubmitJobs=-1")
    assert len(read_ledger(scene.root).arrays) == len(scene.queue.jobs(scene.root)) == 3
    return scene.complete()


@drill("slurmctld restarts while a run goes on", alone=True)
def controller_restarts(stage: Stage, fault: str) -> Trial:
    scene = _instead(stage, fault, PATIENT)
    scene.begin()
    scene.wait(lambda: scene.state(1) == "RUNNING", "the second task")
    stage.stop("slurmctld")
    try:
        # Accounting may still know; without it, nobody does.
        assert scene.told() in (["ok", "running"], ["ok", "unknown"])
        refused = scene.press("rerun", scene.root, "--status", BAD, code=2)
        assert "not known" in refused.stderr, refused.stderr
        assert "nothing is missing" in scene.sweep(code=0).stdout
    finally:
        stage.start("slurmctld")
    scene.heal()
    scene.wait(lambda: scene.ended(1) == "ok", "the run's end")
    return scene.complete()


@drill("slurmctld is SIGKILLed and forgets its last seconds", alone=True)
def controller_killed(stage: Stage, fault: str) -> Trial:
    """It then believes that the first run still runs and the second waits: a person cancels."""
    scene = Scene(stage, fault, steps=True)
    scene.gate(1)
    scene.begin()
    scene.wait(lambda: scene.state(1) == "RUNNING", "the second task")
    stage.kill("slurmctld")
    stage.start("slurmctld")
    scene.heal()
    believes = [scene.state(index) for index in (0, 1)]
    scene.notes.append(f"afterwards Slurm says {' and '.join(believes)}; the sweep is cancelled")
    scene.press("cancel", scene.root, code=0)
    scene.wait(lambda: not scene.queue.alive(scene.root), "the end of the job")
    return scene.complete()


@drill("slurmctld is away when a sweep is submitted", alone=True)
def controller_away(stage: Stage, fault: str) -> Trial:
    scene = Scene(stage, fault, runs=1, steps=True)
    stage.kill("slurmctld")
    try:
        done = scene.sweep(code=1)
        assert "not yet submitted" in done.stderr, done.stderr
    finally:
        stage.start("slurmctld")
    return scene.complete()


@drill("slurmdbd is stopped", alone=True)
def database_stopped(stage: Stage, fault: str) -> Trial:
    scene = Scene(stage, fault)
    stage.kill("slurmdbd")
    try:
        scene.begin("kill@0")
        scene.wait(lambda: scene.ended(1) == "failed", "the run's end")
        return scene.complete()
    finally:
        stage.start("slurmdbd")


@drill("preempted by a higher partition, requeued")
def preempted_requeued(stage: Stage, fault: str) -> Trial:
    with stage.nodes["n3"]:
        scene = _preempted(stage, fault, "requeued", "PENDING")
        scene.heal()
        scene.wait(lambda: scene.ended(1) == "ok", "the second attempt")
        scene.notes.append("Slurm starts it again by itself")
        return scene.complete()


@drill("preempted by a higher partition, cancelled")
def preempted_ended(stage: Stage, fault: str) -> Trial:
    with stage.nodes["n3"]:
        scene = _preempted(stage, fault, "ended", "PREEMPTED")
        assert scene.told() == ["ok", "preempted"]
        return scene.complete()


@drill("preempted with a notice, put back by the profile's requeue = 2")
def preempted_with_notice(stage: Stage, fault: str) -> Trial:
    with stage.nodes["n3"]:
        scene = _preempted(stage, fault, "warned", "PENDING", "requeue = 2")
        scene.heal()
        scene.wait(lambda: scene.ended(1) == "ok", "the second attempt")
        scene.notes.append("the batch script puts it back itself, in the grace time")
        assert list(executions(scene.root).values())[1] == ["preempted", "ok"]
        return scene.complete()


def _preempted(stage: Stage, fault: str, partition: str, state: str, keys: str = "") -> Scene:
    keys += '\nsbatch = { nodelist = "n3" }'
    scene = Scene(stage, fault, partition=partition, exclusive=True, keys=keys)
    scene.begin("hang@0")
    options = ("--partition=first", "--nodelist=n3", "--exclusive", "--output=/dev/null")
    stage.queue.call("sbatch", *options, "--wrap=sleep 1")
    scene.wait(lambda: scene.state(1) == state, state)
    return scene
