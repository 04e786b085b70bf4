"""Sites whose commands say more than Slurm does, or something else: jobs stay known."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures_slurm import Onebox
from other_user import as_user
from places import BUSY
from queueing import Queue, tokens_of
from sweeping import Workplace, wait_until

from dlperf_hpc.records import layout
from dlperf_hpc.records.ledger import read_ledger

STRANGER, VICTIM = 1, 2  # daemon and bin: Slurm wants users that have names
HELD = 'partition = "main"\nexclusive = false\npoll_s = 1.0\nsbatch = { hold = true }\n'


class Site(Workplace):
    """A place whose Slurm commands can be wrapped in scripts; ``$REAL`` is the wrapped one."""

    def wrap(self, name: str, script: str) -> None:
        folder = self.root / "bin"
        folder.mkdir(exist_ok=True)
        text = f"#!/bin/sh\nREAL={shutil.which(name)}\n{script}\n"
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
        path = os.environ["PATH"]
        self.env = {**self.env, "PATH": f"{folder}{os.pathsep}{path}"}

    def unwrap(self, name: str) -> None:
        (self.root / "bin" / name).unlink()


@pytest.fixture
def site(tmp_path: Path, onebox: Onebox) -> Site:
    made = Site(tmp_path, onebox.env)
    made.write("held.toml", HELD)
    return made


def sweep(site: Site, name: str, topologies: list[str], repeats: int = 2) -> Path:
    spec = site.tiny(name, topologies, repeats)
    done = site.verb("sweep", spec, "--site", site.root / "held.toml")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("submitted: job") == len(topologies), done.stdout
    return site.directory(name)


def begin(site: Site, argv: list[str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        argv, cwd=site.root, env=dict(site.env), stdout=pipe, stderr=pipe, text=True
    )


def states(site: Site, root: Path) -> set[str]:
    done = site.verb("status", root, "--json")
    return {row["status"] for row in json.loads(done.stdout)["runs"]}


def test_greetings_around_what_slurm_says(site: Site, queue: Queue) -> None:
    """They name a stranger's job, and hold bytes that are not UTF-8; so does a job's comment."""
    options = ("--hold", "--parsable", "--output=/dev/null", "--wrap=true")
    thesis = queue.call("sbatch", *options, "--comment=thesis").strip()
    odd: list[str | bytes] = ["sbatch", *options, b"--comment=Gr\xfc\xdfe", b"--job-name=\xfc\n|x"]
    done = subprocess.run(odd, env=queue.env, capture_output=True, check=True)
    greeting = f"printf 'Gr\\374\\337e! Your job {thesis} waits.\\nSubmitted batch job {thesis}\\n'"
    site.wrap("sbatch", f'{greeting}; exec "$REAL" "$@"')
    site.wrap("squeue", f'{greeting}; "$REAL" "$@"; code=$?; {greeting}; exit $code')
    root = sweep(site, "greeted", ["1n1g", "2n1g"])
    noted = {row.token: row.job_id for row in read_ledger(root).submissions if row.job_id}
    assert {job: token for token, job in noted.items()} == queue.jobs(root)
    assert states(site, root) == {"pending"}
    assert "nothing to rerun" in site.verb("rerun", root).stdout
    cancelled = site.verb("cancel", root)
    assert cancelled.returncode == 0 and queue.alive(root) == [], cancelled.stderr
    assert states(site, root) == {"cancelled"}
    assert queue.call("squeue", "-h", "-j", thesis, "-o", "%T").strip() == "PENDING"
    queue.call("scancel", thesis, done.stdout.decode().strip())


def test_what_squeue_does_not_say_is_not_known(site: Site, queue: Queue) -> None:
    root = sweep(site, "unheard", ["1n1g"])
    for answer in (
        "echo '<html><body>503 Service Unavailable</body></html>'",
        '"$REAL" "$@" | head -c 150',  # cut within the first row
        '"$REAL" "$@" | tail -n +2',
        "true",
    ):
        site.wrap("squeue", answer)
        assert states(site, root) == {"unknown"}, answer
    refused = site.verb("rerun", root)
    assert refused.returncode == 2 and "cannot be understood" in refused.stderr
    left = site.verb("cancel", root)
    assert left.returncode == 1 and "nothing was cancelled" in left.stderr
    assert len(queue.alive(root)) == 2
    site.unwrap("squeue")
    assert states(site, root) == {"pending"}
    assert site.verb("cancel", root).returncode == 0 and queue.alive(root) == []


def test_jobs_end_by_their_tokens_when_the_directory_is_damaged(site: Site, queue: Queue) -> None:
    roots = [sweep(site, name, ["1n1g"]) for name in ("lost", "noted", "other")]
    tokens = [tokens_of(root)[0] for root in roots]

    def alive() -> list[bool]:
        lines = queue.call("squeue", "-h", "-o", "%k").split()
        return [token in lines for token in tokens]

    (roots[0] / layout.MANIFEST).unlink()
    (roots[1] / layout.SUBMISSIONS).unlink()
    first = site.verb("cancel", roots[0])
    assert first.returncode == 0 and "cancelled: " in first.stdout, first.stderr
    assert "no manifest.json there" in first.stderr and alive() == [False, True, True]
    second = site.verb("cancel", roots[1])
    assert second.returncode == 0 and alive() == [False, False, True]
    for path in (layout.MANIFEST, layout.SUBMISSIONS):
        (roots[2] / path).unlink()
    shutil.rmtree(roots[2] / layout.JOBS)
    (roots[2] / layout.JOBS).mkdir()
    third = site.verb("cancel", roots[2], "--dry-run")
    assert third.returncode == 2 and "`scancel JOB`" in third.stderr and alive()[2]
    queue.call("scancel", "--me", "--name", "1n1g.other")
    assert alive() == [False] * 3


def test_cancel_while_a_slow_sweep_submits(site: Site, queue: Queue) -> None:
    """The sweep stops after the array that it is submitting, and that array is cancelled too."""
    begun, go_on = site.root / "begun", site.root / "go-on"
    wait = f"touch {begun}; while [ ! -e {go_on} ]; do sleep 0.1; done"
    site.wrap("sbatch", f'{wait}; exec "$REAL" "$@"')
    spec, root = site.tiny("slow", ["1n1g", "1n2g", "2n1g"]), site.directory("slow")
    line = [sys.executable, "-m", "dlperf_hpc"]
    submit = [*line, "sweep", str(spec), "--site", "held.toml"]
    with begin(site, submit) as sweeping:
        wait_until(begun.exists, 60, "the first sbatch")
        with begin(site, [*line, "cancel", str(root)]) as cancelling:
            wait_until((root / layout.STOP).exists, 60, "the wish to stop")
            go_on.touch()
            out, err = cancelling.communicate(timeout=60 * BUSY)
            assert cancelling.returncode == 0 and out.startswith("cancelled: "), err
            assert "another process is submitting here" in err
        out, err = sweeping.communicate(timeout=60 * BUSY)
    assert sweeping.returncode == 1 and out.count("submitted: job") == 1, err
    assert "not yet submitted: 2 arrays" in err and "cancelled meanwhile" in err
    assert queue.alive(root) == [] and len(queue.jobs(root)) == 1
    again = site.verb("sweep", spec, "--site", "held.toml")
    assert again.stdout.count("submitted: job") == 2, again.stderr
    assert site.verb("cancel", root).returncode == 0 and queue.alive(root) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="to be two users takes root")
def test_a_strangers_job_under_a_noted_number_hides_none_of_ones_own(
    site: Site, onebox: Onebox, queue: Queue
) -> None:
    """Slurm counted anew, say, and the number is that of another user's job with our comment."""

    def typed(uid: int, *argv: object) -> subprocess.CompletedProcess[str]:
        # The cluster is open to its user alone: both are let in, and are whom munge says.
        rights = [f"--{kind}-caps=+dac_override" for kind in ("inh", "ambient")]
        become = [*as_user(uid), *rights, *map(str, argv)]
        return subprocess.run(
            become, env=dict(site.env), cwd="/", text=True, capture_output=True, check=False
        )

    root = sweep(site, "hidden", ["1n1g"])
    (own,) = read_ledger(root).submissions[-1:]
    queue.call("scancel", own.job_id)
    for path in (root, *root.rglob("*")):
        os.chown(path, VICTIM, VICTIM)
    token = f"--comment={own.token}"
    wait = ["sbatch", "--parsable", "--hold", "-J", own.array, token, "--wrap=true"]
    held = [typed(uid, *wait) for uid in (VICTIM, STRANGER)]
    mine, theirs = (each.stdout.strip() for each in held)
    assert mine.isdigit() and theirs.isdigit(), held
    submissions = root / layout.SUBMISSIONS
    submissions.write_text(submissions.read_text().replace(f'"{own.job_id}"', f'"{theirs}"'))
    done = typed(VICTIM, sys.executable, "-m", "dlperf_hpc", "cancel", root)
    assert done.stdout == f"cancelled: {mine}\n" and done.returncode == 1, done.stderr
    assert f"job {theirs} belongs to daemon: only daemon can cancel it" in done.stderr
    states = queue.call("squeue", "-h", "-t", "all", "-j", f"{mine},{theirs}", "-o", "%i %T")
    assert set(states.splitlines()) == {f"{mine} CANCELLED", f"{theirs} PENDING"}
    queue.call("scancel", theirs)
