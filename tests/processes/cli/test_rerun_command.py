"""``rerun`` as a command: which runs it takes, what it refuses, which nodes it leaves out."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import pytest
from queueing import printed_by_squeue
from record_samples import a_run, a_sweep, begun, ended, ended_ok, many, paths, token_of
from report_samples import case

from dlperf_hpc.cli import rerun
from dlperf_hpc.engines.suspects import suspect_nodes
from dlperf_hpc.model.case import Run
from dlperf_hpc.model.result import Status
from dlperf_hpc.records.collect import full_results
from dlperf_hpc.records.ledger import read_ledger
from dlperf_hpc.records.manifest import (
    FinalState,
    Submission,
    add_final_states,
    add_submission,
    read_submissions,
)

RUNS = many([case("1n1g"), case("1n2g")], 4)
NO_SLURM = {"PATH": "/nowhere"}


def command(*arguments: object) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = rerun.main([str(argument) for argument in arguments])
    return code, out.getvalue(), err.getvalue()


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Runs of every kind that a directory alone tells of."""
    root = tmp_path / "mixed"
    a_sweep(root, RUNS, engine="slurm", site={"poll_s": 1.0})
    ended_ok(root, RUNS[0])
    for index, status in ((1, Status.FAILED), (2, Status.TIMEOUT), (3, Status.CANCELLED)):
        ended(root, RUNS[index], status, "x")
    begun(root, RUNS[4])
    for index, status in ((5, Status.NODE_FAILED), (6, Status.REJECTED)):
        add_final_states(root, [FinalState(RUNS[index].id, status, "x")])
    return root


def taken(root: Path, *options: str) -> set[int]:
    """Indices of the runs that would be submitted again."""
    _, out, _ = command(root, "--dry-run", "--json", *options)
    return {index for index, run in enumerate(RUNS) if f'"{run.id}"' in out}


def test_what_is_not_taken_is_named_with_the_option_that_takes_it(mixed: Path) -> None:
    _, _, err = command(mixed, "--dry-run")
    assert f"1 of 8 runs was rejected: `dlperf rerun {mixed} --status rejected` takes it" in err
    assert f"1 of 8 runs was cancelled: `dlperf rerun {mixed} --status cancelled` takes it" in err
    assert "failed" not in err
    only = command(mixed, "--dry-run", "--status", "cancelled", "--only", "1n1g")[2]
    assert f"1 of 4 runs ended as timeout: `dlperf rerun {mixed} --only 1n1g` takes it" in only
    assert f"`dlperf rerun {mixed} --status rejected --only 1n1g` takes it" in only
    assert "node_failed" not in only


def test_nothing_to_rerun_is_told_with_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, text in (("sbatch", "exit 1"), ("squeue", f"echo '{printed_by_squeue()}'")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    root = tmp_path / "sweep"
    a_sweep(root, RUNS, engine="slurm", site={"poll_s": 1.0})
    add_final_states(root, [FinalState(run.id, Status.CANCELLED, "x") for run in RUNS])
    code, out, err = command(root)
    assert code == 1 and "nothing to rerun" in out
    takes = f"`dlperf rerun {root} --status cancelled` takes them"
    assert err == f"8 of 8 runs were cancelled: {takes}\n"
    code, out, _ = command(root, "--json")
    assert code == 1 and json.loads(out)["untaken"] == {"cancelled": 8}
    add_final_states(root, [FinalState(run.id, Status.OK, "x") for run in RUNS])
    assert command(root)[::2] == (0, "")


def test_which_runs_are_taken(mixed: Path) -> None:
    assert taken(mixed) == {1, 2, 5}
    assert taken(mixed, "--status", "cancelled,rejected") == {3, 6}
    assert taken(mixed, "--status", "node-failed") == {5}
    assert taken(mixed, "--only", "1n1g") == {2}
    assert taken(mixed, "--run", RUNS[1].id, "--run", RUNS[0].id) == {1}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--status", "ok"], "ok cannot be rerun"),
        (["--status", "failed,pending,splendid"], "pending, splendid cannot be rerun"),
        (["--status", ""], "nothing cannot be rerun"),
        (["--only", "9n9g"], "no topology 9n9g"),
        (["--time", "x0"], "--time"),
        (["--time", "soon"], "--time"),
    ],
)
def test_what_is_refused(mixed: Path, options: list[str], told: str) -> None:
    code, out, err = command(mixed, "--dry-run", *options)
    assert (code, out) == (2, "") and told in err


def test_nothing_is_submitted_where_the_scheduler_cannot_be_asked(
    mixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it cannot be asked of may still run: taken for lost, it would run twice."""
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho Submitted batch job 1\n")
    (tmp_path / "sbatch").chmod(0o755)
    for array in read_ledger(mixed).arrays:
        add_submission(mixed, Submission(array.name, array.token, job_id="9"))
    before = read_submissions(mixed)
    code, out, err = command(mixed)
    assert (code, out) == (2, "") and "squeue: not on the PATH" in err
    assert "nothing is submitted while" in err
    assert read_submissions(mixed) == before and not (mixed / "arrays").exists()


def test_a_dry_run_of_a_local_sweep_prints_the_commands_it_would_run(tmp_path: Path) -> None:
    """No scheduler has a part in it, so that there is no batch script."""
    a_sweep(tmp_path / "sweep", RUNS)
    ended(tmp_path / "sweep", RUNS[1], Status.FAILED, "x")
    code, out, err = command(tmp_path / "sweep", "--dry-run")
    assert (code, err) == (0, "") and "sbatch" not in out.lower() and "srun" not in out
    assert out.startswith("1 run would start on this machine, one after another\n")
    (typed,) = [line for line in out.splitlines() if "mpiexec" in line]
    assert " -n 2 " in typed and f"dlperf_hpc.train {tmp_path}/sweep " in typed
    assert typed.endswith(f"> {tmp_path}/sweep/jobs/JOB_0.out 2>&1")
    (array,) = json.loads(command(tmp_path / "sweep", "--dry-run", "--json")[1])["arrays"]
    assert array["script"] is None and array["commands"] == [typed]
    assert not (tmp_path / "sweep" / "arrays").exists()


# --- runs whose jobs live ------------------------------------------------------------------------

ROWS = (
    f"7_1|PENDING|PartitionTimeLimit||1n1g.sample|{token_of('1n1g')}",
    f"6_2|RUNNING|None|n1|1n1g.sample|{token_of('1n1g')}",
    f"7_2|FAILED|None|n1|1n1g.sample|{token_of('1n1g')}",
)
HELD, GONE = (
    printed_by_squeue(f"7_0|{state}|PartitionTimeLimit||1n1g.sample|{token_of('1n1g')}", *ROWS)
    for state in ("PENDING", "CANCELLED")
)
COMMANDS = {
    "squeue": f"if [ -e gone ]; then echo '{GONE}'; else echo '{HELD}'; fi\n",
    "scancel": "[ ! -e stuck ] || exit 1\n/bin/touch gone\n",
    "sbatch": "echo Submitted batch job 9\n",
}


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands that note down how they were called; the first array's three runs have a job."""
    (tmp_path / "bin").mkdir()
    for name, text in COMMANDS.items():
        path = tmp_path / "bin" / name
        head = f'#!/bin/sh\ncd "{tmp_path}"\n' + (
            "" if name == "squeue" else f'echo "{name} $*" >> called\n'
        )
        path.write_text(head + text)
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    root = tmp_path / "sweep"
    a_sweep(root, many([case("1n1g")], 3), engine="slurm")
    for job in ("6", "7"):  # the first of them as an earlier version left it
        add_submission(root, Submission("1n1g.sample", token_of("1n1g"), job_id=job))
    return root


def called(slurm: Path) -> list[str]:
    path = slurm.parent / "called"
    lines = path.read_text().splitlines() if path.exists() else []
    return [
        " ".join(line.split()[:2] if line.startswith("scancel") else line.split()[:1])
        for line in lines
    ]


def test_a_job_that_may_still_start_is_cancelled_before_its_run_is_submitted_again(
    slurm: Path,
) -> None:
    first = many([case("1n1g")], 3)[0].id
    _, _, err = command(slurm, "--status", "rejected", "--run", first, "--dry-run")
    assert "would be cancelled first: 7_0" in err and called(slurm) == []
    code, out, err = command(slurm, "--status", "rejected", "--run", first)
    assert code == 0 and "submitted: job 9" in out, err
    assert called(slurm) == ["scancel 7_0", "sbatch"]
    assert "cancelled: 7_0, which waited: PENDING (PartitionTimeLimit)" in err


def test_nothing_is_submitted_where_the_old_job_cannot_be_cancelled(slurm: Path) -> None:
    (slurm.parent / "stuck").touch()
    code, out, err = command(slurm, "--status", "rejected")
    assert (code, out) == (2, "") and "scancel" in err
    assert called(slurm) == ["scancel 7_0"] and not (slurm / "arrays").exists()


@pytest.mark.parametrize(
    "wrong", ["--time=soon", "--exclude-nodes=n1;n2", "--status=rejected,ok", "--only=9n9g"]
)
def test_an_invalid_request_cancels_nothing(slurm: Path, wrong: str) -> None:
    code, out, err = command(slurm, "--status", "rejected", wrong)
    assert (code, out) == (2, "") and wrong.partition("=")[0] in err
    assert called(slurm) == []


def test_a_run_that_an_earlier_job_measures_is_not_submitted_again(slurm: Path) -> None:
    code, out, err = command(slurm, "--status", "failed")
    assert code == 1 and "nothing to rerun" in out
    assert "2 of 3 runs were rejected" in err
    assert "job 6_2 measures it now" in err and called(slurm) == []


def test_a_site_of_another_version_is_told(tmp_path: Path) -> None:
    a_sweep(tmp_path / "sweep", RUNS, engine="slurm", site={"colour": "red", "gpus": "many"})
    code, out, err = command(tmp_path / "sweep", "--dry-run")
    assert (code, out) == (2, "") and "colour" in err and "give --site" in err


# --- nodes ---------------------------------------------------------------------------------------


def on(root: Path, run: Run, host: str) -> None:
    """Let a run have been on another host than n1."""
    log = paths(root, run).log
    log.write_text(log.read_text().replace('"n1"', f'"{host}"').replace("host=n1", f"host={host}"))


def test_nodes_on_which_runs_died_or_were_slow(tmp_path: Path) -> None:
    hosts = [*["n1"] * 9, "n2", "n2", "n2", "n3", "n3", "n3", "n4", "n4"]
    runs = many([case("1n2g")], len(hosts))
    a_sweep(tmp_path, runs)
    for run, host in zip(runs, hosts):
        if host == "n3" and run.repeat > 13:
            ended(tmp_path, run, Status.FAILED, "rank 0 died")
        else:
            ended_ok(tmp_path, run, seconds=0.05 * (1.1 if host in ("n2", "n4") else 1))
        on(tmp_path, run, host)
    code, out, err = command(tmp_path, "--dry-run", "--exclude-nodes", "auto")
    assert code == 0 and "2 runs would start" in out
    slow = f"its runs are slow: see `dlperf nodes {tmp_path}`"
    assert [line for line in err.splitlines() if line.startswith("leaving out")] == [
        f"leaving out n2: {slow}",
        "leaving out n3: 2 of 3 runs on it died",
        f"leaving out n4: {slow}",
    ]


def test_a_healthy_sweep_suspects_nobody(tmp_path: Path) -> None:
    a_sweep(tmp_path, [a_run(repeat=number) for number in range(1, 5)])
    for number in range(1, 5):
        ended_ok(tmp_path, a_run(repeat=number), seconds=0.05 + 1e-4 * number)
    assert suspect_nodes(read_ledger(tmp_path), full_results(tmp_path).results) == {}
