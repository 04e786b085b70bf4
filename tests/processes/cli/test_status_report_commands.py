"""``status`` and ``report`` as commands: exit codes, messages, and numbers from logs alone."""

from __future__ import annotations

import contextlib
import csv
import importlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from queueing import printed_by_squeue
from record_samples import (
    a_sweep,
    begun,
    ended,
    ended_ok,
    many,
    opened,
    paths,
    token_of,
    without_end,
)
from report_samples import case

from dlperf_hpc.model.result import Status
from dlperf_hpc.records import layout
from dlperf_hpc.records.manifest import FinalState, Submission, add_final_states, add_submission
from dlperf_hpc.records.store import begin_log

RUNS = many([case("1n1g"), case("1n2g")], 3)
Done = subprocess.CompletedProcess[str]


def verb(name: str, *arguments: object, where: Path) -> Done:
    """In this process: what starts a second one takes seconds to import."""
    out, err = io.StringIO(), io.StringIO()
    argv = [str(argument) for argument in arguments]
    with contextlib.chdir(where), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = importlib.import_module(f"dlperf_hpc.cli.{name}").main(argv)
        except SystemExit as exit_:
            code = exit_.code
    return Done(argv, code, out.getvalue(), err.getvalue())


def command(name: str, *arguments: object, where: Path) -> Done:
    """As a user does it."""
    argv = [sys.executable, "-m", "dlperf_hpc", name, *map(str, arguments)]
    return subprocess.run(argv, cwd=where, capture_output=True, text=True, timeout=120, check=False)


def rows(root: Path, name: str = "runs.csv") -> list[dict[str, str]]:
    with open(root / layout.REPORT / name, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """A sweep of which every run ended ok."""
    a_sweep(tmp_path / "good", RUNS)
    for i, run in enumerate(RUNS):
        ended_ok(tmp_path / "good", run, seconds=0.05 + 0.001 * i)
    return tmp_path / "good"


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A sweep of which runs ended ok, failed, were killed, were cut, and have not begun."""
    root = tmp_path / "mixed"
    a_sweep(root, RUNS, engine="slurm")
    for run in RUNS[:2]:
        ended_ok(root, run)
    ended(root, RUNS[2], Status.OUT_OF_MEMORY, "rank 0 on n1: CUDA out of memory")
    begun(root, RUNS[3])
    add_final_states(root, [FinalState(RUNS[4].id, Status.TIMEOUT, "Slurm: TIMEOUT on n1")])
    return root


def test_all_is_well(good: Path) -> None:
    done = command("status", good, where=good)
    assert (done.returncode, done.stderr) == (0, "")
    done = command("report", good, where=good)
    assert (done.returncode, done.stderr) == (0, "")
    assert "written: " in done.stdout
    assert all(float(row["samples_per_s"]) > 0 for row in rows(good))
    speedups = {row["topology"]: float(row["speedup"]) for row in rows(good, "speedup.csv")}
    assert speedups["1n1g"] == 1 and speedups["1n2g"] > 1


def test_every_run_is_a_row_whatever_became_of_it(mixed: Path) -> None:
    done = verb("status", mixed, "--offline", "--json", where=mixed)
    assert done.returncode == 1
    told = json.loads(done.stdout)
    states = {row["run"]: row["status"] for row in told["runs"]}
    expected = ["ok", "ok", "out_of_memory", "running", "timeout", "pending"]
    assert states == dict(zip((run.id for run in RUNS), expected))
    assert told["counts"]["ok"] == 2 and told["sweep"] == "sample"
    assert all(row["reason"] for row in told["runs"] if row["status"] != "ok")
    assert "out_of_memory" in verb("status", mixed, "--offline", where=mixed).stdout

    done = verb("report", mixed, "--json", where=mixed)
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["schema"] == "dlperf-report/1"
    by_run = {row["run"]: row for row in rows(mixed)}
    assert list(by_run) == [r.id for r in sorted(RUNS, key=lambda r: r.case.topology)]
    assert by_run[RUNS[3].id]["status"] == "unknown"
    for run, row in by_run.items():
        assert bool(row["samples_per_s"]) == (row["status"] == "ok"), run


# --- with a scheduler, here a script of its name -------------------------------------------------


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only command on the PATH; it does what the test writes into it."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    path = tmp_path / "bin" / "squeue"
    path.write_text("#!/bin/sh\nexit 1\n")
    path.chmod(0o755)
    return path


def asked(root: Path) -> dict[str, tuple[str, str]]:
    told = json.loads(verb("status", root, "--json", where=root).stdout)
    return {row["run"]: (row["status"], row["reason"]) for row in told["runs"]}


def submitted(root: Path) -> None:
    for topology, job in (("1n1g", "7"), ("1n2g", "8")):
        add_submission(root, Submission(f"{topology}.sample", token_of(topology), job_id=job))


def says(squeue: Path, *rows: str, first: str = "true") -> None:
    """Let squeue print these rows; a task of job 7 bears the first array's token, and so on."""
    tokens = {"7": token_of("1n1g"), "8": token_of("1n2g")}
    whole = [f"{row}|sample|{tokens.get(row[0], 'a stranger')}" for row in rows]
    squeue.write_text(f"#!/bin/sh\n{first}\necho '{printed_by_squeue(*whole)}'\n")


def test_the_schedulers_last_words_are_kept(tmp_path: Path, squeue: Path) -> None:
    root = tmp_path / "sweep"
    a_sweep(root, RUNS[:4], engine="slurm")
    submitted(root)
    ended_ok(root, RUNS[0])
    says(squeue, "7_1|NODE_FAIL|None|n3", "8_[0-1%1]|PENDING|Resources|")
    first = asked(root)
    assert [first[run.id][0] for run in RUNS[:4]] == ["ok", "pending", "node_failed", "pending"]
    assert first[RUNS[2].id][1] == "Slurm: NODE_FAIL on n3"
    squeue.write_text("#!/bin/sh\nexit 1\n")
    second = asked(root)
    assert second[RUNS[2].id] == first[RUNS[2].id]
    assert second[RUNS[1].id][0] == "unknown"
    assert "the scheduler cannot be asked (squeue: exit code 1)" in second[RUNS[1].id][1]
    says(squeue)
    assert "the scheduler says nothing of it" in asked(root)[RUNS[1].id][1]
    assert len((root / layout.FINAL_STATES).read_text().splitlines()) == 1


@pytest.mark.parametrize("every", ["inf", "nan", "0", "-5", "soon"])
def test_a_time_between_looks_that_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], every: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        importlib.import_module("dlperf_hpc.cli.status").main([f"--every={every}", str(tmp_path)])
    assert f"'{every}' is not a number of seconds up to a day" in capsys.readouterr().err


def test_an_array_that_was_cancelled_before_it_began(tmp_path: Path, squeue: Path) -> None:
    """squeue shows it as one job, without the indices of its tasks."""
    root = tmp_path / "sweep"
    a_sweep(root, RUNS[:4], engine="slurm")
    submitted(root)
    says(squeue, "7|CANCELLED|JobHeldUser|", "8_[0-1]|PENDING|JobHeldUser|")
    states = [asked(root)[run.id][0] for run in RUNS[:4]]
    assert states == ["cancelled", "pending", "cancelled", "pending"]


def test_a_run_that_ends_while_the_scheduler_is_asked(tmp_path: Path, squeue: Path) -> None:
    """squeue moves its log into place before it answers."""
    root = tmp_path / "sweep"
    a_sweep(root, RUNS[:1], engine="slurm")
    submitted(root)
    ended(root, RUNS[0], Status.FAILED, "rank 0 on n1: it broke", launch="7_0.0")
    log = paths(root, RUNS[0]).log
    log.rename(tmp_path / "later.log")
    paths(root, RUNS[0]).record.unlink()
    says(squeue, "7_0|FAILED|NonZeroExitCode|n1", first=f"/bin/mv {tmp_path}/later.log {log}")
    assert asked(root)[RUNS[0].id] == ("failed", "rank 0 on n1: it broke")
    assert not (root / layout.FINAL_STATES).exists()


def test_a_job_that_has_our_jobs_number_is_not_ours(tmp_path: Path, squeue: Path) -> None:
    """In a cluster that the sweep was moved to, or where the controller counts anew."""
    root = tmp_path / "sweep"
    a_sweep(root, RUNS[:4], engine="slurm")
    submitted(root)
    rows = printed_by_squeue(
        "7_0|RUNNING|None|n1|thesis|(null)",
        "7_1|PENDING|Priority||1n1g.sample|dlperf-0123",
        "8_0|RUNNING|None|n1|1n2g.sample|",  # a site without comments
        f"8_1|RUNNING|None|n2|x|billing:42 {token_of('1n2g')}",  # or with some of its own
    )
    squeue.write_text(f"#!/bin/sh\necho '{rows}'\n")
    states = [asked(root)[run.id][0] for run in RUNS[:4]]
    assert states == ["unknown", "running", "unknown", "running"]


def test_a_job_id_that_is_none_does_not_hide_the_others(tmp_path: Path, squeue: Path) -> None:
    """squeue refuses a list with such an id in it, in the words that it has for forgotten jobs."""
    root = tmp_path / "sweep"
    a_sweep(root, RUNS[:4], engine="slurm")
    submitted(root)
    add_submission(root, Submission("1n2g.sample", token_of("1n2g"), job_id="8.x"))
    squeue.write_text("#!/bin/sh\necho 'squeue: error: Invalid job id: 8.x' >&2\nexit 1\n")
    told = asked(root)[RUNS[0].id]
    assert told[0] == "unknown" and "8.x is no job id of Slurm's; correct or remove" in told[1]


def test_a_run_whose_job_lives_has_not_ended(tmp_path: Path, squeue: Path) -> None:
    """Requeued, by hand or by preemption; its first attempt left a record, or was killed."""
    root = tmp_path / "sweep"
    a_sweep(root, RUNS[:4], engine="slurm")
    submitted(root)
    ended(root, RUNS[0], Status.FAILED, "rank 0 on n1: it broke", launch="7_0.0")
    add_final_states(
        root, [FinalState(RUNS[2].id, Status.NODE_FAILED, "Slurm: NODE_FAIL on n1", job="7_1")]
    )
    says(squeue, "7_0|PENDING|BeginTime|", "7_1|RUNNING|None|n2", "8_[0-1]|PENDING|Priority|")
    found = asked(root)
    words = "requeued after: rank 0 on n1: it broke; Slurm: PENDING (BeginTime)"
    assert found[RUNS[0].id] == ("pending", words)
    assert found[RUNS[2].id] == ("running", "its job runs after: Slurm: NODE_FAIL on n1")
    says(squeue, "7_0|FAILED|NonZeroExitCode|n1", "7_1|TIMEOUT|TimeLimit|n2")
    found = asked(root)
    assert found[RUNS[0].id] == ("failed", "rank 0 on n1: it broke")
    assert found[RUNS[2].id][0] == "timeout"
    squeue.write_text("#!/bin/sh\nexit 1\n")
    assert asked(root)[RUNS[2].id][0] == "timeout"


def test_unknown_runs_are_told_of_by_the_exit_code(tmp_path: Path, squeue: Path) -> None:
    root = tmp_path / "sweep"
    a_sweep(root, RUNS[:4], engine="slurm")
    submitted(root)
    for run in RUNS[:4:2]:
        ended_ok(root, run)
    says(squeue, "8_[0-1]|PENDING|Priority|")
    assert verb("status", root, where=root).returncode == 0
    squeue.write_text("#!/bin/sh\nexit 1\n")
    done = verb("status", root, where=root)
    assert done.returncode == 1 and "look again when the" in done.stdout


def test_what_an_output_says_when_the_scheduler_has_forgotten(tmp_path: Path, squeue: Path) -> None:
    """As on a site without accounting, some minutes after the end; kept from then on."""
    root = tmp_path / "sweep"
    a_sweep(root, RUNS[:4], engine="slurm")
    submitted(root)
    (root / layout.JOBS).mkdir()
    step = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-21T15:10:10"
    (root / layout.JOBS / "7_0.out").write_text(f"{step} DUE TO TIME LIMIT ***\n")
    (root / layout.JOBS / "7_1.out").write_text(f"{step} ***\n")
    (root / layout.JOBS / "8_0.out").write_text("0: step 1\n")
    squeue.write_text("#!/bin/sh\nexit 1\n")
    assert {state for state, _ in asked(root).values()} == {"unknown"}  # they may still run
    says(squeue)
    found = asked(root)
    assert [found[run.id][0] for run in RUNS[:4]] == ["timeout", "unknown", "cancelled", "unknown"]
    assert "DUE TO TIME LIMIT" in found[RUNS[0].id][1]
    assert "(jobs/7_0.out)" in found[RUNS[0].id][1]
    kept = json.loads(verb("status", root, "--offline", "--json", where=root).stdout)["runs"]
    assert [row["status"] for row in kept] == ["timeout", "cancelled", "pending", "pending"]


def test_what_cancel_ended_is_known_when_the_scheduler_has_forgotten_it(
    tmp_path: Path, squeue: Path
) -> None:
    """A job that waited leaves nothing, and without accounting Slurm forgets it in minutes."""
    root = tmp_path / "sweep"
    a_sweep(root, RUNS[:4], engine="slurm")
    submitted(root)
    says(squeue, "7_[0-1]|PENDING|Priority|", "8_[0-1]|PENDING|Priority|")
    later = squeue.with_name("later")
    says(later, "7|CANCELLED|Priority|", "8|CANCELLED|Priority|")
    later.chmod(0o755)
    scancel = squeue.with_name("scancel")
    scancel.write_text(f"#!/bin/sh\n/bin/mv {later} {squeue}\n")
    scancel.chmod(0o755)
    assert verb("cancel", root, where=root).returncode == 0
    says(squeue)
    assert {state for state, _ in asked(root).values()} == {"cancelled"}


def test_runs_that_were_never_submitted_are_told_apart(tmp_path: Path, squeue: Path) -> None:
    root = tmp_path / "sweep"
    a_sweep(root, RUNS[:4], engine="slurm")
    add_submission(root, Submission("1n1g.sample", token_of("1n1g"), job_id="7"))
    says(squeue, "7_[0-1]|PENDING|ReqNodeNotAvail, UnavailableNodes:n[1-3]|")
    done = verb("status", root, where=root)
    assert done.returncode == 0 and "not submitted" in done.stdout
    assert "sinfo -R" in done.stdout
    told = json.loads(verb("status", root, "--json", where=root).stdout)
    assert told["counts"] == {"pending": 4} and told["not_submitted"] == 2
    rows = {row["run"]: row for row in told["runs"]}
    assert [rows[run.id]["submitted"] for run in RUNS[:4]] == [True, False, True, False]
    assert rows[RUNS[1].id]["reason"] == "is not submitted"
    add_submission(root, Submission("1n2g.sample", token_of("1n2g")))  # and no answer came
    told = json.loads(verb("status", root, "--json", where=root).stdout)
    assert (
        told["not_submitted"] == 0
        and "no answer" in told["runs"][1]["reason"] + (told["runs"][2]["reason"])
    )


# --- from logs -----------------------------------------------------------------------------------


def test_reports_from_logs_alone_have_the_same_numbers(good: Path) -> None:
    assert verb("report", good, where=good).returncode == 0
    before, table = rows(good), rows(good, "speedup.csv")
    for path in [*good.rglob("*.json"), *good.rglob("*.jsonl")]:
        path.unlink()
    done = verb("report", good, where=good)
    assert (done.returncode, done.stderr) == (0, "")
    assert rows(good) == before
    assert rows(good, "speedup.csv") == table


def test_a_directory_that_was_moved(good: Path) -> None:
    assert verb("report", good, where=good).returncode == 0
    moved = good.rename(good.with_name("moved"))
    before = rows(moved)
    assert verb("report", "moved", where=moved.parent).returncode == 0
    for old, new in zip(before, rows(moved)):
        assert {**old, "log": ""} == {**new, "log": ""}
    assert verb("status", "moved", where=moved.parent).returncode == 0


def test_a_cut_log_is_a_row_without_a_number(good: Path) -> None:
    for run in RUNS[:2]:
        where = paths(good, run)
        data = where.log.read_bytes()
        line_end = data.index(b"\n", len(data) // 2)
        where.log.write_bytes(data[: line_end - 3])
        where.record.unlink()
    done = verb("report", good, where=good)
    by_run = {row["run"]: row for row in rows(good)}
    assert len(by_run) == len(RUNS)
    for run in RUNS[:2]:
        row = by_run[run.id]
        assert (row["status"], row["samples_per_s"], row["elapsed_s"]) == ("unknown", "", "")
        assert "without an end line" in row["reason"] and "cut off" in row["warnings"]
    assert "Traceback" not in done.stderr
    assert done.returncode == 1 and "runs that do not count" in done.stdout
    assert "2 unknown" in done.stdout and "without" in done.stdout


@pytest.mark.parametrize("share", [0.01, 0.02, 0.1, 0.5, 0.99])
def test_a_cut_copy_of_a_log_is_never_silent(good: Path, tmp_path: Path, share: float) -> None:
    """Wherever it was cut: a row without a number, where the log says at least which run it is."""
    (copies := tmp_path / "copies").mkdir()
    for number, run in enumerate(RUNS):
        data = paths(good, run).log.read_bytes()
        cut = data[: int(share * len(data))] if run == RUNS[0] else data
        (copies / f"{number}.log").write_bytes(cut)
    done = verb("report", copies, where=tmp_path)
    assert done.returncode == 1, done.stdout
    table = done.stdout.partition("runs that do not count")[2]
    assert "unknown" in table and "cut" in table.replace("without an", "cut")
    made = [row for row in rows(copies) if row["samples_per_s"]]
    assert len(made) == len(RUNS) - 1
    assert "Traceback" not in done.stderr


def test_a_log_without_its_beginning_is_never_silent(good: Path, tmp_path: Path) -> None:
    (copies := tmp_path / "copies").mkdir()
    for number, run in enumerate(RUNS):
        data = paths(good, run).log.read_bytes()
        (copies / f"{number}.log").write_bytes(data[700:] if run == RUNS[0] else data)
    done = verb("report", copies, where=tmp_path)
    assert done.returncode == 1 and "0.log" in done.stderr
    assert "unknown" in done.stdout.partition("runs that do not count")[2]


def test_a_run_that_is_being_measured_is_no_trouble(tmp_path: Path) -> None:
    """Rank 0 holds its log: here another process does."""
    root = tmp_path / "sweep"
    a_sweep(root, RUNS[:1])
    attempt = opened(root, RUNS[0])
    begin_log(attempt, 600)
    program = (
        "import sys, pathlib; from dlperf_hpc.records.store import hold;"
        " hold(pathlib.Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    log = attempt.paths.log
    argv = [sys.executable, "-c", program, str(log)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        done = verb("report", root, "--json", where=tmp_path)
        holder.communicate()
    assert done.returncode == 0
    assert [row["status"] for row in json.loads(done.stdout)["runs"]] == ["running"]
    done = verb("report", root, where=tmp_path)
    assert done.returncode == 1 and "unknown" in done.stdout


def test_a_log_that_its_record_contradicts_has_a_flag_and_no_number(good: Path) -> None:
    """Somebody wrote another time into the summary: the interval reached up to millions."""
    log = paths(good, RUNS[0]).log
    text = log.read_text()
    log.write_text(re.sub(r"( elapsed_s)=\S+", r"\1=0.0000001", text))
    done = verb("report", good, where=good)
    assert done.returncode == 1 and "log-and-record-differ" in done.stdout.replace("\n", "")
    first = rows(good, "speedup.csv")[0]
    assert "log-contradicts-itself" in first["flags"] and "log-and-record-differ" in first["flags"]
    assert "the log says elapsed_s 1e-07, the record 0.1" in first["notes"]
    assert float(first["samples_per_s_max"]) < 10_000 and first["runs_ok"] == "2"
    (row,) = (row for row in rows(good) if row["run"] == RUNS[0].id)
    assert (row["status"], row["samples_per_s"]) == ("partial", "")


def test_a_log_without_its_end_whose_record_says_ok_has_a_flag(good: Path) -> None:
    without_end(paths(good, RUNS[0]).log)
    done = verb("report", good, where=good)
    assert done.returncode == 0
    assert "no-end-line" in rows(good, "speedup.csv")[0]["flags"]


def test_a_foreign_log_among_ours_is_told(good: Path) -> None:
    (good / layout.MANIFEST).unlink()
    (good / "foreign.log").write_text("step 1 of 10\n")
    done = verb("report", good, where=good)
    assert done.returncode == 0
    assert "no known format" in done.stderr and "foreign.log" in done.stderr


@pytest.mark.parametrize("name", ["status", "report"])
def test_directories_that_hold_no_sweep(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "train.log").write_text("step 1\n")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / layout.MANIFEST).write_text("{")
    for folder in ("empty", "foreign", "broken", "nowhere"):
        done = command(name, folder, where=tmp_path)
        assert done.returncode == 2, folder
        assert done.stderr.startswith(f"error: {folder}") and done.stdout == ""
        assert "Traceback" not in done.stderr


def test_a_report_names_the_logs_it_could_not_read(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("step 1\n")
    done = verb("report", ".", where=tmp_path)
    assert done.returncode == 2 and "no log in a known format among 1 file;" in done.stderr


def test_usage_errors(good: Path) -> None:
    assert verb("report", where=good).returncode == 2
    done: Any = verb("report", good, "--base", "all", where=good)
    assert done.returncode == 2 and "--base" in done.stderr
    done = verb("report", good, "--write", "csv,latex", where=good)
    assert done.returncode == 2 and "there is no kind latex" in done.stderr
    assert "there are csv, json, md, png, html, junit, parquet, sqlite" in done.stderr
    assert verb("report", good, "--write", ",", where=good).returncode == 2
    assert not (good / layout.REPORT).exists()


def test_what_is_written_can_be_picked(good: Path) -> None:
    listed = verb("report", "--write", "help", where=good).stdout
    assert [line.split()[0] for line in listed.splitlines()][:4] == ["csv", "json", "md", "png"]
    done = verb("report", good, "--write", "csv", "--sqlite", where=good)
    assert done.returncode == 0, done.stderr
    made = {path.name for path in (good / layout.REPORT).iterdir()}
    assert made == {"speedup.csv", "runs.csv", "report.sqlite"}
    assert all(f"{layout.REPORT}/{name}" in done.stdout for name in made)
    whole = json.loads(verb("report", good, "--write", "csv", "--json", where=good).stdout)
    assert len(whole["runs"]) == len(RUNS) == len(rows(good))
    assert {path.name for path in (good / layout.REPORT).iterdir()} == made
