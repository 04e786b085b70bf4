"""A sweep taken up again, on real Slurm and on this machine: every run once, nothing forgotten."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from places import BUSY
from queueing import Queue, executions, live_runs, tokens_of
from sweeping import Done, Workplace, local_environment, phase_began, wait_until

from dlperf_hpc.model.result import Status
from dlperf_hpc.records import layout
from dlperf_hpc.records.layout import RunPaths
from dlperf_hpc.records.ledger import read_ledger
from dlperf_hpc.records.store import launch_of

# Jobs that wait until they are released: submitting costs little, and nothing runs meanwhile.
HELD = 'partition = "main"\nexclusive = false\npoll_s = 1.0\nsbatch = { hold = true }\n'
READY = HELD.replace("sbatch = { hold = true }\n", "")
# A file beside the sweep says what befalls the array's task of that index.
DOOMED = """
[environment.default]
env = {{ GLOO_SOCKET_IFNAME = "lo", UCX_TLS = "tcp,self" }}
setup = ["f={0}/doom.$SLURM_ARRAY_TASK_ID; if [ -e $f ]; then export DLPERF_FAULT=$(cat $f); fi"]
"""


@pytest.fixture
def held(place: Workplace) -> Path:
    return place.write("held.toml", HELD)


def states(place: Workplace, directory: Path) -> dict[str, str]:
    done = place.verb("status", directory, "--json")
    return {row["run"]: row["status"] for row in json.loads(done.stdout)["runs"]}


def submitted(done: Done) -> int:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.count("submitted: job")


def _files(root: Path) -> dict[Path, bytes]:
    """What a sweep's directory holds itself, but for who had its lock last."""
    files = (path for path in root.iterdir() if path.is_file() and path.name != layout.LOCK)
    return {path: path.read_bytes() for path in files}


def test_the_same_sweep_again_submits_nothing(place: Workplace, held: Path, queue: Queue) -> None:
    spec, root = place.tiny("again", ["1n1g", "2n1g"], repeats=2), place.directory("again")
    assert submitted(place.verb("sweep", spec, "--site", held)) == 2
    before = _files(root)
    again = place.verb("sweep", spec, "--site", held)
    assert submitted(again) == 0 and "nothing is missing" in again.stdout
    for change, told in (
        ("measure.iterations=7", "\n  measure.iterations: there 6, here 7\n"),
        ("time_limit=00:09:00", 'time_limit.1n1g: there "00:20:00", here "00:09:00"'),
    ):
        done = place.verb("sweep", spec, "--site", held, "--set", change)
        assert done.returncode == 2 and told in done.stderr, done.stderr
        assert "another --name" in done.stderr
    assert _files(root) == before
    assert sorted(queue.jobs(root).values()) == sorted(tokens_of(root))
    cancelled = place.verb("cancel", root)
    assert cancelled.returncode == 0 and queue.alive(root) == []
    takes = "4 of 4 runs were cancelled: `dlperf rerun logs/again --status cancelled` takes them\n"
    for verb, words in (
        (("sweep", spec, "--site", held), "nothing is missing"),
        (("rerun", root), "nothing to rerun"),
    ):
        done = place.verb(*verb)
        assert done.returncode == 1 and words in done.stdout, done.stdout + done.stderr
        assert done.stderr == takes
    one = place.verb("sweep", spec, "--site", held, "--only", "2n1g")
    assert one.returncode == 1 and "2 of 2 runs were cancelled" in one.stderr
    assert "`dlperf rerun logs/again --status cancelled --only 2n1g`" in one.stderr
    assert queue.alive(root) == []


def test_rerun_of_3_failed_of_40(place: Workplace, queue: Queue) -> None:
    broken = place.write("broken", "#!/bin/sh\necho no Python here\nexit 3\n")
    broken.chmod(0o755)
    site = place.write("site.toml", f'{HELD}[environment.default]\npython = "{broken}"\n')
    spec, root = place.tiny("forty", ["1n1g"], repeats=40), place.directory("forty")
    assert submitted(place.verb("sweep", spec, "--site", site)) == 1
    ((job, _),) = queue.jobs(root).items()
    queue.call("scontrol", "release", f"{job}_[3,17,39]")
    wait_until(lambda: len(queue.alive(root)) == 37, 60, "the end of three tasks")
    manifest = read_ledger(root).manifest
    failed = [manifest.runs[index].id for index in (3, 17, 39)]
    assert [run for run, state in states(place, root).items() if state == "failed"] == failed

    mended = place.write("mended.toml", f'{HELD}[environment.default]\nenv.GLOO_SOCKET_IFNAME="lo"')
    dry = place.verb("rerun", root, "--site", mended, "--dry-run", "--json")
    (array,) = json.loads(dry.stdout)["arrays"]
    assert array["runs"] == failed and "--array=0-2%3" in array["script"]
    done = place.verb("rerun", root, "--site", mended, "--time", "x2")
    assert submitted(done) == 1 and "1n1g.forty.r1  3 runs" in done.stdout
    again = place.verb("rerun", root, "--site", mended)
    assert submitted(again) == 0 and "nothing to rerun" in again.stdout
    (array,) = read_ledger(root).arrays[1:]
    assert [run.id for run in array.tasks] == failed and array.time_limit_s == 2400
    assert set(states(place, root).values()) == {"pending"}
    assert live_runs(queue, root) == sorted(run.id for run in manifest.runs)  # each once

    (job,) = (number for number, token in queue.jobs(root).items() if token == array.token)
    queue.call("scontrol", "release", f"{job}_1")
    # The log costs less to look at than a `status`.
    twice = ["failed", "ok"]
    wait_until(lambda: executions(root)[failed[1]] == twice, 120, "the second attempt")
    assert states(place, root)[failed[1]] == "ok"
    left = RunPaths(root, failed[1])
    kept = left.attempts / f"{left.log.stem}.attempt1.log"
    assert "no Python here" in kept.read_text()
    assert place.verb("cancel", root).returncode == 0


def test_repeats_take_turns_in_one_job(place: Workplace, queue: Queue) -> None:
    """Four repeats in two jobs; one of them fails alone, and is rerun in a job of its own."""
    doomed = DOOMED.format(place.root).replace("_TASK_ID", "_TASK_ID.$DLPERF_TURN")
    site = place.write("site.toml", READY + doomed)
    doom = place.write("doom.0.0", "raise@0")
    spec, root = place.tiny("turns", ["1n1g"], repeats=4), place.directory("turns")
    three = place.verb("sweep", spec, "--site", site, "--set", "repeats_per_job=3")
    assert three.returncode == 2 and "what does: 1, 2, 4" in three.stderr
    sweep = (spec, "--site", site, "--set", "repeats_per_job=2")
    assert submitted(place.verb("sweep", *sweep)) == 1
    runs = [run.id for run in read_ledger(root).manifest.runs]
    assert {index for _, index in queue.alive(root)} <= {0, 1}
    wait_until(lambda: not queue.alive(root), 120, "the end of both jobs")
    assert list(states(place, root).values()) == ["failed", "ok", "ok", "ok"]
    report = place.verb("report", root)
    # Other flags may stand before it: so short a window is unsteady now and then.
    assert "shared-allocation" in report.stdout and " 3/4 " in report.stdout, report.stdout
    told = (root / "report" / "report.md").read_text()
    assert "3 of 3 runs were measured in turn inside 2 jobs" in told
    ((job, _),) = queue.jobs(root).items()
    assert [launch_of(RunPaths(root, run)) for run in runs] == [
        *(f"{job}_{index}.0.{turn}" for index in (0, 1) for turn in (0, 1))
    ]
    doom.unlink()
    assert submitted(place.verb("rerun", root, "--site", site)) == 1
    wait_until(lambda: not queue.alive(root), 60, "the end of the rerun")
    assert [ends[-1] for ends in executions(root).values()] == ["ok"] * 4
    assert submitted(place.verb("sweep", *sweep)) == 0


def test_an_archive_is_read_as_the_directory_was(
    place: Workplace, held: Path, queue: Queue
) -> None:
    spec, root = place.tiny("kept", ["1n1g", "2n1g"]), place.directory("kept")
    assert submitted(place.verb("sweep", spec, "--site", held)) == 2
    early = place.verb("archive", root)
    assert early.returncode == 2 and "2 runs have not ended" in early.stderr
    one = next(job for job in queue.jobs(root))
    queue.call("scontrol", "release", one)
    wait_until(lambda: len(queue.alive(root)) == 1, 120, "the end of one run")
    assert place.verb("cancel", root).returncode == 0
    before = states(place, root)
    assert sorted(before.values()) == ["cancelled", "ok"], place.verb("status", root).stdout
    report = place.verb("report", root, "--json")
    done = place.verb("archive", root)
    assert done.returncode == 0 and "written: kept.zip" in done.stdout, done.stderr
    twice = place.verb("archive", root)
    assert twice.returncode == 2 and "is there already" in twice.stderr
    shutil.rmtree(root)
    archive = place.root / "kept.zip"
    assert states(place, archive) == before
    again = place.verb("report", archive, "--json", "--out", place.root / "again")
    assert json.loads(again.stdout)["cases"] == json.loads(report.stdout)["cases"]
    assert f"{archive}/ddp/bert-tiny/" in (place.root / "again" / "runs.csv").read_text()
    unchanged = place.verb("rerun", archive)
    assert unchanged.returncode == 2 and "unpack it first" in unchanged.stderr
    shutil.unpack_archive(archive, root.parent)
    assert states(place, root) == before


def test_a_requeued_run_is_a_new_attempt_of_the_same_job(place: Workplace, queue: Queue) -> None:
    site = place.write("site.toml", READY + DOOMED.format(place.root))
    place.write("doom.0", "hang@0")
    spec, root = place.tiny("requeued", ["1n1g"]), place.directory("requeued")
    assert submitted(place.verb("sweep", spec, "--site", site)) == 1
    ((job, _),) = queue.jobs(root).items()
    (run,) = read_ledger(root).manifest.runs
    log = RunPaths(root, run.id).log
    wait_until(lambda: log.exists() and "name=warmup" in log.read_text(), 60, "the warm-up")
    argv = [sys.executable, "-m", "dlperf_hpc", "logs", str(root), "-f"]
    with subprocess.Popen(
        argv, cwd=place.root, env=dict(place.env), stdout=subprocess.PIPE, text=True
    ) as follower:
        (place.root / "doom.0").unlink()
        queue.call("scontrol", "requeuehold", f"{job}_0")  # it waits until it was looked at
        seen = set()

        def stands(wanted: str) -> bool:
            state = states(place, root)[run.id]
            if state not in seen:
                assert "nothing to rerun" in place.verb("rerun", root).stdout
            seen.add(state)
            return state == wanted

        wait_until(lambda: stands("pending"), 60, "the requeue")
        queue.call("scontrol", "release", f"{job}_0")
        wait_until(lambda: stands("ok"), 120, "the second attempt")
        assert seen <= {"pending", "running", "ok"}
        followed = follower.communicate(timeout=30 * BUSY)[0]
    # Slurm kills a task that it puts back; the task may find the time for a last word before.
    assert executions(root)[run.id] in (["unknown", "ok"], ["cancelled", "ok"])
    assert len(queue.jobs(root)) == 1
    assert followed.count(" begin ") == 2 and followed.rstrip().endswith("end status=ok")
    shown = place.verb("logs", root, "bert-tiny")
    assert shown.stdout == log.read_text() and "attempt=2" in shown.stdout
    printed = place.verb("logs", root, "--output")
    assert f"launch {job}_0.0" in printed.stdout and f"launch {job}_0.1" in printed.stdout
    unknown = place.verb("logs", root, "resnet")
    assert unknown.returncode == 2 and run.id in unknown.stderr


def test_cancel_takes_its_own_jobs_alone(place: Workplace, held: Path, queue: Queue) -> None:
    for name in ("mine", "also"):
        spec = place.tiny(name, ["1n1g", "2n1g"], repeats=3)
        assert submitted(place.verb("sweep", spec, "--site", held)) == 2
    options = ("--hold", "--parsable", "--output=/dev/null", "--job-name=1n1g.mine")
    thesis = queue.call("sbatch", *options, "--comment=thesis", "--wrap=true").strip()
    root = place.directory("mine")
    # As in a cluster where our numbers are somebody else's.
    row = {"array": "1n1g.mine", "token": read_ledger(root).arrays[0].token, "job_id": thesis}
    with open(root / layout.SUBMISSIONS, "a") as file:
        file.write(json.dumps(row) + "\n")
    shown = place.verb("cancel", root, "--dry-run")
    assert shown.stdout.split()[0] == "scancel" and thesis not in shown.stdout.split()
    assert len(queue.alive(root)) == 6
    done = place.verb("cancel", root, "--json")
    assert len(json.loads(done.stdout)["tasks"]) == 2
    assert queue.alive(root) == [] and len(queue.alive(place.directory("also"))) == 6
    assert queue.call("squeue", "-h", "-j", thesis, "-o", "%T").strip() == "PENDING"
    assert place.verb("cancel", root).stdout == "no job of this sweep waits or runs\n"
    queue.call("scancel", thesis)
    place.verb("cancel", place.directory("also"))


def test_pressed_three_times_at_once(place: Workplace, held: Path, queue: Queue) -> None:
    spec, root = place.tiny("rush", ["1n1g", "1n2g", "2n1g"], repeats=4), place.directory("rush")
    argv = [sys.executable, "-m", "dlperf_hpc", "sweep", str(spec), "--site", str(held)]
    pressed = [
        subprocess.Popen(argv, cwd=place.root, env=dict(place.env), stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    outputs = [process.communicate(timeout=120 * BUSY)[0].decode() for process in pressed]
    assert [process.returncode for process in pressed] == [0, 0, 0]
    assert sorted(text.count("submitted: job") for text in outputs) == [0, 0, 3]
    assert sorted(queue.jobs(root).values()) == sorted(tokens_of(root))
    assert live_runs(queue, root) == sorted(run.id for run in read_ledger(root).manifest.runs)
    assert place.verb("cancel", root).returncode == 0


def test_a_directory_that_was_moved_serves_on(place: Workplace, queue: Queue, held: Path) -> None:
    spec = place.tiny("moved", ["1n1g"], repeats=3)
    assert submitted(place.verb("sweep", spec, "--site", held)) == 1
    (job,) = queue.jobs(place.directory("moved"))
    queue.call("scancel", f"{job}_1")
    root = place.root / "elsewhere" / "renamed"
    root.parent.mkdir()
    shutil.move(place.directory("moved"), root)
    assert list(states(place, root).values()) == ["pending", "cancelled", "pending"]
    done = place.verb("rerun", root, "--status", "cancelled", "--dry-run")
    assert f"dlperf_hpc.train {root} 1n1g.moved.r1" in done.stdout
    assert submitted(place.verb("rerun", root, "--status", "cancelled")) == 1
    assert list(states(place, root).values()) == ["pending"] * 3
    report = place.verb("report", root)
    assert report.returncode == 0 and "Traceback" not in report.stderr
    assert place.verb("cancel", root).returncode == 0 and queue.alive(root) == []


def test_a_closed_standard_input_keeps_nobody_from_submitting(
    place: Workplace, held: Path, queue: Queue
) -> None:
    spec, root = place.tiny("detached", ["1n1g"]), place.directory("detached")
    argv = [sys.executable, "-m", "dlperf_hpc", "sweep", str(spec), "--site", str(held)]
    shell = ["sh", "-c", 'exec "$@" <&-', "sh", *argv]
    done = subprocess.run(
        shell,
        cwd=place.root,
        env=dict(place.env),
        capture_output=True,
        text=True,
        timeout=60 * BUSY,
    )
    assert submitted(done) == 1
    assert place.verb("cancel", root).returncode == 0 and queue.alive(root) == []


def test_a_local_sweep_that_was_killed_is_completed(tmp_path: Path) -> None:
    place = Workplace(tmp_path, local_environment())
    spec, root = place.tiny("killed", ["1n1g"], repeats=3), place.directory("killed")
    argv = [sys.executable, "-m", "dlperf_hpc", "sweep", str(spec), "--cluster", "local"]
    with subprocess.Popen(argv, cwd=place.root, env=dict(place.env)) as process:
        second = root / "ddp/bert-tiny/bz2/1n1g/bert-tiny_b2_fp32-seq16_2.log"
        wait_until(second.exists, 120, "the second run")
        process.send_signal(signal.SIGKILL)
    before = {path: path.read_bytes() for path in root.rglob("*_1.*")}
    assert before and phase_began(min(before, key=lambda path: path.suffix != ".log"), "measure")
    done = place.verb("sweep", spec, "--cluster", "local")
    assert done.returncode == 1, done.stderr
    assert "`dlperf rerun logs/killed` takes it" in done.stderr
    assert place.verb("rerun", root).returncode == 0
    assert {path: path.read_bytes() for path in before} == before
    assert {run: made.count("ok") for run, made in executions(root).items()} == {
        run.id: 1 for run in read_ledger(root).manifest.runs
    }
    assert place.results("killed")["1n1g"].status is Status.OK
