"""Sweep directories of other people: read, but neither written to nor run out of.

Two users take root: the tests are this user's (root's) commands on what nobody owns, and nobody's
commands on what is root's. Without root, those that need a second user are skipped, and the others
look at what others can write.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from other_user import AS_NOBODY, NOBODY
from places import ROOT
from queueing import printed_by_squeue
from record_samples import a_sweep, ended, many, token_of
from report_samples import case
from sweeping import local_environment

from dlperf_hpc.model.result import Status
from dlperf_hpc.records import layout
from dlperf_hpc.records.ledger import read_ledger
from dlperf_hpc.records.manifest import Submission, add_submission

RUNS = many([case("1n1g")], 2)
SPEC = """\
name = "planted"
repeats = 1
topologies = ["1n1g"]
[case]
framework = "ddp"
model = "bert-tiny"
batch_size = 2
"""
two_users = pytest.mark.skipif(os.geteuid() != 0, reason="to be two users takes root")


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place as /tmp is, where everybody may make directories, and a Slurm of which only is seen
    that it was asked to run something."""
    with tempfile.TemporaryDirectory(prefix="dlperf-shared-") as name:
        place = Path(name)
        place.chmod(0o1777)
        rows = printed_by_squeue(f"7_0|CANCELLED|None|n1|1n1g.sample|{token_of('1n1g')}")
        program(place / "bin" / "squeue", f"case $* in *%i*) echo '{rows}';; esac")
        called = f"{place}/sbatch.called"
        asked = f"echo $* >> {called}; for last; do :; done; cat $last >> {called}"
        number = "case $* in *--parsable*) echo 8;; *) echo Submitted batch job 8;; esac"
        program(place / "bin" / "sbatch", f"{asked}; {number}")
        monkeypatch.setenv("PATH", f"{place}/bin:{os.environ['PATH']}")
        monkeypatch.chdir(place)
        yield place


def program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def verb(name: str, *arguments: object) -> tuple[int, str, str]:
    """A verb, in this process; exit code and output."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = importlib.import_module(f"dlperf_hpc.cli.{name}").main([str(a) for a in arguments])
    return code, out.getvalue(), err.getvalue()


def as_nobody(where: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A verb, typed by another user."""
    env = {**local_environment(), "PYTHONPATH": str(ROOT), "HOME": "/"}
    return subprocess.run(
        [*AS_NOBODY, sys.executable, "-m", "dlperf_hpc", *map(str, arguments)],
        cwd=where,
        env=env,
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )


def a_slurm_sweep(root: Path, site: Mapping[str, Any] | None = None) -> Path:
    """One run has failed; of the other Slurm says finally that it was cancelled."""
    made = a_sweep(root, RUNS, engine="slurm", site=site or {"poll_s": 1.0})
    add_submission(root, Submission(made.arrays[0].name, made.arrays[0].token, job_id="7"))
    ended(root, RUNS[1], Status.FAILED, "x", launch="7_1.0")
    (root / layout.JOBS).mkdir()
    return root


def give(root: Path, uid: int = NOBODY, gid: int = NOBODY) -> None:
    for path in (root, *root.rglob("*")):
        os.chown(path, uid, gid, follow_symlinks=False)


def state(root: Path) -> dict[str, tuple[int, int]]:
    """Names, sizes and times of all that is below a directory."""
    found = {path: os.lstat(path) for path in (root, *root.rglob("*"))}
    return {str(path): (each.st_size, each.st_mtime_ns) for path, each in found.items()}


def submitted(shared: Path) -> str:
    called = shared / "sbatch.called"
    return called.read_text() if called.exists() else ""


LOOKS = (
    ("status",),
    ("status", "--json"),
    ("logs", "bert_b32_fp32_1", "-f"),
    ("rerun", "--dry-run", "--status", "cancelled,failed"),
    ("report",),
)


def test_the_schedulers_words_are_kept_in_a_directory_of_ones_own(shared: Path) -> None:
    root = a_slurm_sweep(shared / "mine")
    verb("status", root)
    assert '"cancelled"' in (root / layout.FINAL_STATES).read_text()


@two_users
@pytest.mark.parametrize("way", ["link", "hard link", "file", "nothing"])
def test_looking_at_anothers_sweep_writes_nothing(shared: Path, way: str) -> None:
    root, bashrc = a_slurm_sweep(shared / "theirs"), shared / ".bashrc"
    bashrc.write_text("mine\n")
    states = root / layout.FINAL_STATES
    if way == "link":
        states.symlink_to(bashrc)
    elif way == "file":
        states.touch()
    give(root)
    if way == "hard link":
        os.link(bashrc, states)
    before = state(root)
    for name, *options in LOOKS:
        code, out, err = verb(name, root, *options)
        assert code in (0, 1) and (out or name == "logs"), (name, code, err)
    code, _, err = verb("archive", root, "--anyway", "--out", shared / "theirs.zip")
    assert code in (0, 1, 2), err
    assert bashrc.read_text() == "mine\n"
    assert state(root) == before
    assert not (shared / "report").exists()


@two_users
def test_a_report_of_anothers_sweep_is_its_table_and_where_to_have_files(shared: Path) -> None:
    root = a_slurm_sweep(shared / "theirs")
    give(root)
    before = state(root)
    code, out, err = verb("report", root)
    assert code == 1 and "runs that do not count" in out and "written" not in out  # a run failed
    assert f"{root}: belongs to nobody" in err and "with --out" in err
    told = json.loads(verb("report", root, "--json")[1])
    assert len(told["runs"]) == len(RUNS)
    code, out, err = verb("report", root, "--write", "csv")  # files were asked for
    assert code == 2 and "runs that do not count" in out and "with --out" in err
    code, out, err = verb("report", root, "--out", shared / "mine")
    assert (code, err) == (1, "") and (shared / "mine" / "runs.csv").exists()
    assert state(root) == before and not (shared / "report").exists()


@two_users
def test_a_report_where_nothing_can_be_written(shared: Path) -> None:
    """Of several directories it would be written into the current one."""
    roots = [a_slurm_sweep(shared / name) for name in ("a", "b")]
    (work := shared / "work").mkdir()
    work.chmod(0o555)
    done = as_nobody(work, "report", *roots)
    assert done.returncode == 1 and "runs that do not count" in done.stdout
    assert "report: cannot be written" in done.stderr or "report/" in done.stderr
    assert "with --out" in done.stderr and "Traceback" not in done.stderr
    done = as_nobody(work, "report", *roots, "--out", "mine")
    assert done.returncode == 2 and "runs that do not count" in done.stdout
    assert "mine/" in done.stderr and "Permission denied" in done.stderr


@two_users
def test_another_user_may_look_at_mine(shared: Path) -> None:
    root = a_slurm_sweep(shared / "mine")
    before = state(root)
    (work := shared / "work").mkdir()
    os.chown(work, NOBODY, NOBODY)
    done = as_nobody(work, "status", root, "--json")
    assert json.loads(done.stdout)["counts"] == {"cancelled": 1, "failed": 1}, done.stderr
    done = as_nobody(work, "report", root)
    assert done.returncode == 1 and "runs that do not count" in done.stdout, done.stderr
    assert "with --out" in done.stderr and not list(work.iterdir())
    done = as_nobody(work, "rerun", root)
    assert done.returncode == 2 and f"{root}: belongs to root, mode 0755" in done.stderr
    (work / "planted.toml").write_text(SPEC.replace("planted", "mine"))
    done = as_nobody(work, "sweep", "planted.toml", "--cluster", "slurm", "--logs", shared)
    assert done.returncode == 2 and f"{root}: belongs to root" in done.stderr
    assert state(root) == before and not submitted(shared)


# --- a directory that somebody planted -----------------------------------------------------------


def sweep(shared: Path, *options: object) -> tuple[int, str, str]:
    (shared / "planted.toml").write_text(SPEC)
    return verb("sweep", "planted.toml", "--cluster", "slurm", "--logs", shared / "logs", *options)


@two_users
@pytest.mark.parametrize(
    "planted", ["empty", "whole", "jobs", "arrays", "manifest", "link", "lock"]
)
def test_a_planted_directory_is_not_adopted(shared: Path, planted: str) -> None:
    root = shared / "logs" / "planted"
    assert sweep(shared)[0] == 0 and submitted(shared)
    (shared / "sbatch.called").unlink()
    other = root
    if planted == "empty":
        shutil.rmtree(root)
        root.mkdir()
        give(root)
    elif planted == "link":
        root.rename(shared / "elsewhere")
        root.symlink_to(shared / "elsewhere")
        os.chown(root, NOBODY, NOBODY, follow_symlinks=False)
    elif planted == "whole":
        give(root)
    else:
        other = root / {"manifest": layout.MANIFEST, "lock": layout.LOCK}.get(planted, planted)
        other.mkdir(exist_ok=True) if planted == "arrays" else None
        os.chown(other, NOBODY, NOBODY)
    (root / layout.SUBMISSIONS).unlink(missing_ok=True)
    before = state(root)
    code, out, err = sweep(shared)
    assert (code, out) == (2, "") and f"error: {other}: belongs to nobody, mode 0" in err
    assert "`group` in your site profile" in err
    assert state(root) == before and not submitted(shared)


@pytest.mark.parametrize("name", ["", layout.JOBS, layout.MANIFEST, layout.SUBMISSIONS])
def test_what_others_can_write_is_not_adopted(shared: Path, name: str) -> None:
    root = shared / "logs" / "planted"
    assert sweep(shared)[0] == 0
    (root / name).chmod(0o777)
    code, _, err = sweep(shared)
    assert code == 2 and f"{root / name}: others can write it, mode 0777" in err
    assert "chmod go-w" in err
    (root / name).chmod(0o755)
    code, out, _ = sweep(shared)
    assert code == 0 and "nothing is missing" in out


def test_a_directory_in_which_everybody_can_rename_is_refused(shared: Path) -> None:
    assert sweep(shared)[0] == 0  # its parent's parent is sticky, as /tmp is
    (shared / "logs").chmod(0o777)
    code, _, err = sweep(shared)
    assert code == 2 and f"{shared / 'logs'}: everybody can rename what is in it" in err
    (shared / "logs").chmod(0o1777)
    assert sweep(shared)[0] == 0


@two_users
def test_a_umask_that_lets_the_group_write_changes_nothing(shared: Path) -> None:
    """Where all users share a group, umask 002 lets all of them write what one makes."""
    (shared / "planted.toml").write_text(SPEC)
    command = [sys.executable, "-m", "dlperf_hpc", "sweep", "planted.toml", "--cluster", "slurm"]
    for told in ("submitted: job 8", "nothing is missing"):
        done = subprocess.run(
            ["setpriv", "--regid=2", "--clear-groups", *command],
            cwd=shared, umask=0o002, text=True, capture_output=True, check=False,
            env={**local_environment(), "PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
        )  # fmt: skip
        assert done.returncode == 0 and told in done.stdout, done.stderr
    root = shared / "logs" / "planted"
    for path in (root, root / layout.JOBS, *(root / name for name in os.listdir(root))):
        assert os.stat(path).st_gid == 2 and not os.stat(path).st_mode & 0o022, path


def test_another_site_profile_in_the_manifest_is_told(shared: Path) -> None:
    assert sweep(shared)[0] == 0
    manifest = shared / "logs" / "planted" / layout.MANIFEST
    data = json.loads(manifest.read_text())
    data["site"] = {**data["site"], "poll_s": 1.0, "environment": {"default": {"mpi": "evil"}}}
    manifest.write_text(json.dumps(data))
    code, _, err = sweep(shared)
    assert code == 0 and f"{manifest} has another site profile (environment);" in err


# --- what a rerun runs ---------------------------------------------------------------------------

EVIL = {"environment": {"default": {"setup": ["touch /tmp/owned"], "python": "/evil/python"}}}
MINE = '[environment.default]\npython = "/my/python"\n'


def rerun(root: Path, *options: object) -> tuple[int, str, str]:
    return verb("rerun", root, "--status", "failed,cancelled", *options)


def test_a_rerun_of_ones_own_sweep_uses_its_own_profile(shared: Path) -> None:
    root = a_slurm_sweep(shared / "mine", EVIL)
    rerun(root)
    assert "/evil/python" in submitted(shared)


@pytest.mark.parametrize("name", ["", layout.MANIFEST, layout.JOBS])
def test_a_manifest_that_others_can_write_is_not_run(shared: Path, name: str) -> None:
    root = a_slurm_sweep(shared / "mine", EVIL)
    (root / name).chmod(0o777)
    before = state(root)
    code, out, err = rerun(root)
    assert (code, out) == (2, "") and f"{root / name}: others can write it, mode 0777" in err
    assert "`setup` lines and the Python" in err and "--site" in err and "chmod go-w" in err
    assert state(root) == before and not submitted(shared)
    code, out, _ = rerun(root, "--dry-run")
    assert code == 0 and "touch /tmp/owned" in out  # to be read
    (shared / "my.toml").write_text(MINE)
    code, _, err = rerun(root, "--site", shared / "my.toml")
    assert "/my/python" in submitted(shared) and "touch" not in submitted(shared)
    assert f"note: {root / name}: others can write it" in err


@two_users
def test_another_users_manifest_is_not_run(shared: Path) -> None:
    root = a_slurm_sweep(shared / "theirs", EVIL)
    give(root)
    (shared / "my.toml").write_text(MINE)
    before = state(root)
    for options in ((), ("--site", shared / "my.toml")):
        code, out, err = rerun(root, *options)
        assert (code, out) == (2, "") and f"{root}: belongs to nobody, mode 0755" in err
    assert state(root) == before
    copied = shared / "copy"  # but for the manifest it is this user's
    shutil.copytree(root, copied)
    os.chown(copied / layout.MANIFEST, NOBODY, NOBODY)
    code, _, err = rerun(copied)
    assert code == 2 and f"{copied / layout.MANIFEST}: belongs to nobody" in err and "--site" in err
    assert not submitted(shared)
    rerun(copied, "--site", shared / "my.toml")
    assert "/my/python" in submitted(shared) and "touch" not in submitted(shared)


# --- a group's sweeps ----------------------------------------------------------------------------


@two_users
def test_a_group_shares_its_sweeps_if_ones_own_profile_says_so(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uid 1 is in group 1 by its entry in /etc/passwd: ``daemon``."""
    root = a_slurm_sweep(shared / "ours", {**EVIL, "group": "daemon"})
    give(root, 1, 1)
    for folder in (root, root / layout.JOBS):
        folder.chmod(0o2775)
    (root / layout.SUBMISSIONS).chmod(0o664)
    ours, theirs = shared / "ours.toml", shared / "theirs.toml"
    ours.write_text('group = "daemon"\n')
    theirs.write_text('group = "bin"\n')
    before = state(root)
    for options in ((), ("--site", theirs)):  # what the manifest says of it does not count
        code, _, err = rerun(root, *options)
        assert code == 2 and f"{root}: belongs to daemon, mode 2775, group daemon" in err
        verb("status", root)
    assert state(root) == before and not submitted(shared)
    monkeypatch.setenv("DLPERF_SITE", str(ours))
    verb("status", root)
    assert '"cancelled"' in (root / layout.FINAL_STATES).read_text()
    rerun(root)
    assert "/evil/python" in submitted(shared)
    arrays = os.stat(root / layout.ARRAYS)
    assert (arrays.st_gid, stat.S_IMODE(arrays.st_mode)) == (1, 0o2775)
    assert read_ledger(root).submissions[-1].array.endswith(".sample.r1")
    root.chmod(0o2777)
    (shared / "sbatch.called").unlink()
    code, _, err = rerun(root)
    assert code == 2 and "others can write it, mode 2777" in err and not submitted(shared)


@two_users
def test_a_sweep_made_with_a_group_is_the_groups(shared: Path) -> None:
    (shared / "ours.toml").write_text('group = "daemon"\n')
    assert sweep(shared, "--site", shared / "ours.toml")[0] == 0
    root = shared / "logs" / "planted"
    for folder in (root, root / layout.JOBS):
        found = os.stat(folder)
        assert (found.st_gid, stat.S_IMODE(found.st_mode)) == (1, 0o2775)
    assert sweep(shared, "--site", shared / "ours.toml")[0] == 0
    code, _, err = sweep(shared)
    assert code == 2 and f"{root}: others can write it, mode 2775, group daemon" in err


def test_a_group_that_is_not_there_is_named(shared: Path) -> None:
    (shared / "ours.toml").write_text('group = "no such group"\n')
    code, _, err = sweep(shared, "--site", shared / "ours.toml")
    assert code == 2 and "this machine has no group 'no such group'" in err
