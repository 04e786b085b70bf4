"""An environment that failed once: what is learnt of it, and what becomes of its other runs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from queueing import NO_PYTHON
from record_samples import SWEEP, a_run, a_sweep, begun, ended, ended_ok, opened, paths

from dlperf_hpc.cli import submission as told
from dlperf_hpc.engines import epilogue, suspects
from dlperf_hpc.engines.local import LocalEngine, QueuedTask
from dlperf_hpc.engines.postmortem import explain
from dlperf_hpc.engines.suspects import suspect_nodes
from dlperf_hpc.model.case import Run
from dlperf_hpc.model.result import Status
from dlperf_hpc.records import quarantine
from dlperf_hpc.records.collect import full_results, quick_results
from dlperf_hpc.records.failures import ENVIRONMENT
from dlperf_hpc.records.ledger import read_ledger
from dlperf_hpc.records.record import read_record
from dlperf_hpc.records.store import Failure, finish, leave_failure
from dlperf_hpc.reporting.run_states import trouble_table

NO_MODULE = """\
2: /v/bin/python3: No module named dlperf_hpc
srun: error: n[1-2]: tasks 0-3: Exited with exit code 1
"""
CUT = """\
0: Traceback (most recent call last):
srun: error: n1: task 0: Exited with exit code 1
srun: launch/slurm: _step_signal: Terminating StepId=44.0
0: ModuleNotFoundError
0: :
0: No module named 'dlperf_hpc'
0: ImportError
0: :
0: Error while finding module specification for 'dlperf_hpc.train' (...)
0:
"""
BAD_MPI = """\
srun: error: MPI: Cannot create context for mpi/foo
srun: error: Invalid MPI type 'foo', --mpi=list for acceptable types
"""
NO_FILE = "[proxy:0@vm] HYDU_create_process: execvp error on file /no/python (No such file or dir"
KILLED = "=   EXIT CODE: 9\nYOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)\n"
NO_TORCH = "rank 0 on n1: ModuleNotFoundError: No module named 'torch'"
ENTRY = quarantine.EnvironmentFault(
    "framework", "torch", "torch/bert/bz32/1n2g/bert_b32_fp32_1", NO_TORCH
)


def runs_of(count: int = 4, **changes: Any) -> list[Run]:
    return [a_run(repeat=number, **changes) for number in range(1, count + 1)]


def lacking(root: Path, run: Run, kind: str, host: str, reason: str = NO_TORCH) -> None:
    """A run that died of its environment, as a rank writes it."""
    attempt = opened(root, run)
    leave_failure(attempt, Failure(0, host, Status.FAILED, reason, "t", fault=kind))
    finish(attempt, Status.FAILED, reason, detail={"fault": kind, "fault_hosts": [host]})


def learnt(root: Path, run: Run) -> list[str]:
    """The kinds of fault that hold the environment back, once the end of this run is known."""
    manifest = read_ledger(root).manifest
    record = read_record(paths(root, run).record)
    assert record is not None
    suspects.learn(root, manifest, run, record)
    return [entry.kind for entry in quarantine.read_entries(root, "default")]


@pytest.fixture
def second_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is the task of the second run."""
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "200")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "1")


# --- what is learnt


@pytest.mark.parametrize(
    ("output", "code", "kind", "hosts"),
    [
        (NO_PYTHON, 2, "interpreter", ["n4", "n3"]),
        (NO_MODULE, 1, "package", ["n[1-2]"]),
        (NO_MODULE.replace("dlperf_hpc", "mpi4py"), 1, "mpi", ["n[1-2]"]),
        (CUT, 1, "package", ["n1"]),
        (BAD_MPI, 1, "mpi_plugin", ["here"]),
        (NO_FILE, 255, "interpreter", ["here"]),
        ("dlperf_hpc: setup ended with exit code 1: module load x\n", 1, "setup", ["here"]),
        ("dlperf_hpc: an environment's Python must be 3.9 or newer, and this one is 3.6.8\n"
         "srun: error: n1: task 0: Exited with exit code 1\n", 1, "python", ["n1"]),
        ("dlperf_hpc: setup ended with exit code 1: [ \"3\" -le 2 ] # put back more often than"
         " requeue allows\n", 1, "", []),
        ("srun: error: n1: task 0: Exited with exit code 3\n", 3, "", []),
        ("srun: error: n1: task 0: Killed\n", 137, "", []),
        ("slurmstepd-n1: error: execve(): /v/python: Cannot allocate memory\n", 2, "", []),
        ("slurmstepd-n1: error: Detected 1 oom-kill event(s)\n", 137, "", []),
        ("srun: error: Node failure on n3\n", 1, "", []),
        (KILLED, 9, "", []),
        ("1: Timeout (0:05:00)!\n", 1, "", []),
    ],
)  # fmt: skip
def test_what_launchers_print(
    monkeypatch: pytest.MonkeyPatch, output: str, code: int, kind: str, hosts: list[str]
) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "here")
    told = explain(code, output, [], ranks=4)
    assert told.fault == kind, told
    if kind:
        assert (told.status, told.cause) == (Status.FAILED, ENVIRONMENT)
        assert suspects.hosts_of_launch(kind, output) == hosts


def test_a_missing_framework_is_believed_of_one_run(tmp_path: Path) -> None:
    runs = runs_of()
    a_sweep(tmp_path, runs, "slurm")
    lacking(tmp_path, runs[0], "framework", "n1")
    assert learnt(tmp_path, runs[0]) == ["framework"]
    (entry,) = quarantine.read_entries(tmp_path, "default")
    assert (entry.run, entry.reason) == (runs[0].id, NO_TORCH) and entry.time
    assert quarantine.entry_for(tmp_path, runs[1].case) == entry
    assert quarantine.entry_for(tmp_path, a_run(framework="tensorflow").case) is None
    assert quarantine.entry_for(tmp_path, a_run(environment="other").case) is None


def test_not_where_a_run_of_the_environment_has_ended_ok(tmp_path: Path) -> None:
    runs = runs_of()
    a_sweep(tmp_path, runs, "slurm")
    ended_ok(tmp_path, runs[1])
    lacking(tmp_path, runs[0], "framework", "n1")
    assert learnt(tmp_path, runs[0]) == []  # a node without the shared file system
    lacking(tmp_path, runs[2], "framework", "n1")
    assert learnt(tmp_path, runs[2]) == []
    lacking(tmp_path, runs[3], "framework", "n2")
    assert learnt(tmp_path, runs[3]) == ["framework"]


def test_what_one_broken_node_may_lack_takes_two(tmp_path: Path) -> None:
    runs = runs_of(device="cuda")
    a_sweep(tmp_path, runs, "slurm")
    for run, host, kinds in zip(runs, ("n1", "n1", "n2"), ([], [], ["gpu"])):
        lacking(tmp_path, run, "gpu", host, "DeviceError: no GPU")
        assert learnt(tmp_path, run) == kinds
    assert quarantine.entry_for(tmp_path, a_run(device="cpu").case) is None
    assert quarantine.entry_for(tmp_path, runs[3].case) is not None


def test_ten_runs_on_one_node_are_enough_where_none_has_got_further(tmp_path: Path) -> None:
    runs = runs_of(22)
    a_sweep(tmp_path, runs, "slurm")
    begun(tmp_path, runs[0])  # and has its world
    for run in runs[1:11]:
        lacking(tmp_path, run, "mpi_library", "n1")
        assert learnt(tmp_path, run) == []
    paths(tmp_path, runs[0]).log.unlink()
    assert learnt(tmp_path, runs[9]) == ["mpi_library"]


def test_on_one_machine_there_is_no_second_node(tmp_path: Path) -> None:
    runs = runs_of()
    a_sweep(tmp_path, runs, "local")
    lacking(tmp_path, runs[0], "library", "n1")
    assert learnt(tmp_path, runs[0]) == ["library"]


def test_what_never_holds_anything_back(tmp_path: Path) -> None:
    runs = runs_of()
    a_sweep(tmp_path, runs, "local")
    for run, status in zip(runs, (Status.OUT_OF_MEMORY, Status.NODE_FAILED, Status.FAILED)):
        ended(tmp_path, run, status, "No module named 'torch'")
        assert learnt(tmp_path, run) == []


def test_ranks_alone_are_no_matter_for_a_run_of_one_rank(tmp_path: Path) -> None:
    quarantine.hold_back(
        tmp_path, "default", quarantine.EnvironmentFault("mpi_alone", "torch", "a/b", "alone")
    )
    assert quarantine.entry_for(tmp_path, a_run("1n2g").case) is not None
    assert quarantine.entry_for(tmp_path, a_run("1n1g").case) is None


def test_the_epilogue_learns_it(tmp_path: Path, second_task: None) -> None:
    runs = runs_of()
    a_sweep(tmp_path, runs, "slurm")
    (tmp_path / "jobs" / "200_1.out").parent.mkdir()
    (tmp_path / "jobs" / "200_1.out").write_text(f"dlperf_hpc: launch 200_1.0\n{NO_PYTHON}")
    assert epilogue.main([str(tmp_path), f"1n2g.{SWEEP}", "2"]) == 0
    record = read_record(paths(tmp_path, runs[1]).record)
    assert record is not None and (record["fault"], record["cause"]) == ("interpreter", ENVIRONMENT)
    assert set(record["fault_hosts"]) == {"n3", "n4"}
    assert quarantine.entry_for(tmp_path, runs[0].case) is not None


# --- what is held back


def test_a_run_held_back_has_a_record_and_no_attempt(tmp_path: Path, second_task: None) -> None:
    runs = runs_of()
    a_sweep(tmp_path, runs, "slurm")
    assert suspects.main([str(tmp_path), f"1n2g.{SWEEP}"]) == 1
    quarantine.hold_back(tmp_path, "default", ENTRY)
    assert suspects.main([str(tmp_path), f"1n2g.{SWEEP}"]) == 0
    assert epilogue.main([str(tmp_path), f"1n2g.{SWEEP}", "0"]) == 0
    where = paths(tmp_path, runs[1])
    assert not where.log.exists() and not where.attempts.exists()
    ledger = read_ledger(tmp_path)
    for found in (quick_results(ledger), full_results(tmp_path)):
        result = found.results[1]
        assert (result.status, result.attempt, result.source) == (Status.HELD_BACK, 0, "record")
        assert result.status.bad and "No module named 'torch'" in result.reason
        assert ENTRY.run in result.reason and "dlperf rerun" in result.reason
    table = trouble_table([*found.results[1:2], *found.results[1:2]])
    assert table is not None
    assert [row[0].text for row in table.cells] == ["2 runs"]
    # The next launch is the first attempt; the record of none goes aside.
    attempt = opened(tmp_path, runs[1], "300_0.0")
    assert attempt.number == 1 and not where.record.exists()
    assert [path.name for path in where.attempts.glob("*")] == [f"{where.log.stem}.attempt0.json"]


def test_what_ended_ok_or_is_being_measured_is_left_alone(
    tmp_path: Path, second_task: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = runs_of()
    a_sweep(tmp_path, runs, "slurm")
    quarantine.hold_back(tmp_path, "default", ENTRY)
    ended_ok(tmp_path, runs[1])
    assert suspects.main([str(tmp_path), f"1n2g.{SWEEP}"]) == 1
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "2")
    begun(tmp_path, runs[2], "200_2.0")
    assert suspects.main([str(tmp_path), f"1n2g.{SWEEP}"]) == 1
    assert not paths(tmp_path, runs[2]).record.exists()


def test_an_earlier_attempt_is_kept(tmp_path: Path, second_task: None) -> None:
    runs = runs_of()
    a_sweep(tmp_path, runs, "slurm")
    ended(tmp_path, runs[1], Status.TIMEOUT, "long")
    quarantine.hold_back(tmp_path, "default", ENTRY)
    assert suspects.main([str(tmp_path), f"1n2g.{SWEEP}"]) == 0
    where = paths(tmp_path, runs[1])
    assert {"attempt1"} == {path.suffixes[0][1:] for path in where.attempts.glob("*")}
    assert opened(tmp_path, runs[1], "300_0.0").number == 2


def marked(**changes: Any) -> str:
    row = {"schema": quarantine.SCHEMA, "environment": "default", "held": [vars(ENTRY)], **changes}
    return json.dumps(row)


DAMAGED = {
    "empty": "",
    "torn": "{",
    "list": "[]",
    "deep": "[" * 60_000,
    "version": marked(schema="dlperf-held-back/2"),
    "other": marked(environment="other"),
    "entry": marked(held=[1]),
    "kind": marked(held=[{**vars(ENTRY), "kind": "x"}]),
    "run": marked(held=[{**vars(ENTRY), "run": "/etc/passwd"}]),
    "long": marked().ljust(1 << 17),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_marker_holds_nothing_back(
    tmp_path: Path, second_task: None, content: str
) -> None:
    a_sweep(tmp_path, runs_of(), "slurm")
    quarantine.marker(tmp_path, "default").write_text(content)
    assert quarantine.read_entries(tmp_path, "default") == ()
    assert suspects.main([str(tmp_path), f"1n2g.{SWEEP}"]) == 1
    quarantine.hold_back(tmp_path, "default", ENTRY)  # and is replaced by a whole one
    assert [entry.kind for entry in quarantine.read_entries(tmp_path, "default")] == ["framework"]


def test_a_link_a_pipe_and_a_directory_hold_nothing_back(tmp_path: Path) -> None:
    root, path = tmp_path / "sweep", quarantine.marker(tmp_path / "sweep", "default")
    a_sweep(root, runs_of(), "slurm")
    quarantine.hold_back(tmp_path, "default", ENTRY)
    path.symlink_to(quarantine.marker(tmp_path, "default"))
    assert quarantine.read_entries(root, "default") == ()
    assert quarantine.let_go(root, ["default", "other"]) == ["default"]
    assert quarantine.marker(tmp_path, "default").exists()
    os.mkfifo(path)
    assert quarantine.read_entries(root, "default") == ()
    path.unlink()
    path.mkdir()
    assert quarantine.read_entries(root, "default") == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="to give a file away takes root")
def test_another_users_marker_holds_nothing_back(tmp_path: Path) -> None:
    quarantine.hold_back(tmp_path, "default", ENTRY)
    os.chown(quarantine.marker(tmp_path, "default"), 65534, 65534)
    assert quarantine.read_entries(tmp_path, "default") == ()


def test_a_second_fault_is_added_and_the_first_stays(tmp_path: Path) -> None:
    for framework in ("torch", "tensorflow", "torch"):
        entry = quarantine.EnvironmentFault("framework", framework, "a/b", "x")
        quarantine.hold_back(tmp_path, "default", entry)
    found = [entry.framework for entry in quarantine.read_entries(tmp_path, "default")]
    assert found == ["torch", "tensorflow"]


@pytest.mark.processes
def test_the_local_queue_starts_no_rank_of_it(tmp_path: Path) -> None:
    marker, ran = tmp_path / "marker", tmp_path / "ran"
    queue = LocalEngine()
    for name, code in (("1_0", 0), ("1_1", 1)):
        marker.write_text("")
        argv = ["sh", "-c", f"echo {name} >>{ran}"]
        task = QueuedTask(
            name, argv, dict(os.environ), tmp_path / f"{name}.out", 60, ["true"],
            ["sh", "-c", f"exit {code}"], [marker],
        )  # fmt: skip
        queue.put(task)
    while not queue.idle():
        pass
    assert ran.read_text() == "1_1\n"


def test_verbs_say_it_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = runs_of(50)
    a_sweep(tmp_path, runs, "slurm")
    quarantine.hold_back(tmp_path, "default", ENTRY)
    told.say_held_back(tmp_path, (run.case for run in runs))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("note: runs are held back: environment default: ")
    told.try_anew(tmp_path, read_ledger(tmp_path).arrays)
    assert capsys.readouterr().err == "note: environment default is tried anew\n"
    told.say_held_back(tmp_path, (run.case for run in runs))
    assert capsys.readouterr().err == ""


# --- no node is to blame


def test_no_node_is_blamed_for_its_environment(tmp_path: Path) -> None:
    runs = runs_of(8)
    a_sweep(tmp_path, runs, "slurm")
    lacking(tmp_path, runs[0], "framework", "n1")
    ended(tmp_path, runs[1], Status.FAILED, "rank 0 on n1: RunError: fault")
    ended(tmp_path, runs[2], Status.FAILED, NO_TORCH)  # as an earlier version wrote it
    for run, host in zip(runs[3:5], ("n2", "n3")):
        lacking(tmp_path, run, "gpu", host)
    lacking(tmp_path, runs[5], "interpreter", "n4")
    assert suspect_nodes(read_ledger(tmp_path), full_results(tmp_path).results) == {
        "n1": "1 of 1 runs on it died",  # of what is no environment's
        "n4": "1 of 1 runs on it died",  # no other node lacks the interpreter
    }
