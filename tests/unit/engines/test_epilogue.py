"""Why a run left no record: from the launcher's words, as Slurm 22.05 and MPICH 5 print them."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest
from queueing import NO_PYTHON
from record_samples import a_run, a_sweep, begun, ended, ended_ok, opened, paths, without_end

from dlperf_hpc.engines.epilogue import close, main
from dlperf_hpc.engines.local import LocalEngine, QueuedTask, note
from dlperf_hpc.engines.postmortem import explain, verdict_of_output
from dlperf_hpc.model.result import Status
from dlperf_hpc.records import failures, layout
from dlperf_hpc.records.logfile import read_end, result_of_log
from dlperf_hpc.records.record import read_record
from dlperf_hpc.records.store import Failure, failure_hosts, leave_failure, read_failures

STEP = "slurmstepd-n1: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-11-21T15:10:10"
JOB = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-21T15:10:10"
OTHERS = f"""\
srun: launch/slurm: _step_signal: Terminating StepId=1.0
0: {STEP} ***
srun: error: n1: task 0: Terminated
srun: error: n2: tasks 2-3: Terminated
srun: Force Terminated StepId=1.0
"""
BAD_MPI = """\
srun: error: Couldn't find the specified plugin name for mpi/foo looking at all files
srun: error: cannot find mpi plugin for mpi/foo
srun: error: MPI: Cannot create context for mpi/foo
srun: error: MPI: Unable to load any plugin
srun: error: Invalid MPI type 'foo', --mpi=list for acceptable types
"""
NO_MODULE = """\
2: /v/bin/python3: No module named dlperf_hpc
0: /v/bin/python3: No module named dlperf_hpc
srun: error: n2: tasks 2-3: Exited with exit code 1
srun: launch/slurm: _step_signal: Terminating StepId=7.0
srun: error: n1: tasks 0-1: Exited with exit code 1
"""
HYDRA = """\

===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 28482 RUNNING AT vm
=   EXIT CODE: {code}
=   CLEANING UP REMAINING PROCESSES
=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES
===================================================================================
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: {text} (signal {code})
This typically refers to a problem with your application.
Please see the FAQ page for debugging suggestions
"""
HYDRA_3 = """\
ImportError: libmpi.so.12: cannot open shared object file
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 28482 RUNNING AT vm
=   EXIT CODE: 3
"""
NO_FILE = (
    "[proxy:0@vm] HYDU_create_process (launch.c:73): execvp error on file /no/python (No such file"
    " or directory)\n"
)
REQUEUED_BY_NODE = """\
srun: error: Node failure on n3
slurmstepd: error: *** STEP 9.0 ON n1 CANCELLED AT 2026-11-21T15:10:10 DUE TO NODE FAILURE, SEE SLU
srun: error: n1: tasks 0-1: Killed
"""
OOM = """\
slurmstepd: error: Detected 1 oom_kill event in StepId=5.0. Some of the step tasks have been OOM Ki
srun: error: n1: task 1: Out Of Memory
"""
# OverMemoryKill: slurmd looks at the memory now and then, and ends the step.
POLLED_OOM = """\
slurmstepd-n1: error: StepId=2.0 exceeded memory limit (400097280 > 209715200), being killed
slurmstepd-n1: error: Exceeded job memory limit
srun: Job step aborted: Waiting up to 5 seconds for job step to finish.
slurmstepd-n1: error: *** STEP 2.0 ON n1 CANCELLED AT 2026-11-21T19:02:06 ***
srun: error: n1: tasks 0-1: Killed
"""
OLD_OOM = """\
srun: error: n1: task 1: Killed
slurmstepd: error: Detected 1 oom-kill event(s) in step 5.0 cgroup. Some of your processes may have
"""
CAUSES = [
    ("srun: error: n1: task 1: Killed\n" + OTHERS, 143, Status.FAILED, "rank 1 on n1 died: Killed"),
    (
        "srun: error: n1: tasks 1,3: Segmentation fault (core dumped)\n" + OTHERS,
        143,
        Status.FAILED,
        "rank 1,3 on n1 died: Segmentation fault",
    ),
    (
        "srun: error: n1: task 1: Aborted\n" + OTHERS,
        143,
        Status.FAILED,
        "rank 1 on n1 died: Aborted",
    ),
    (
        "srun: error: n1: task 1: Exited with exit code 3\n" + OTHERS,
        143,
        Status.FAILED,
        "rank 1 on n1 left with exit code 3",
    ),
    (f"0: {STEP} DUE TO TIME LIMIT ***\n" + OTHERS, 143, Status.TIMEOUT, "DUE TO TIME LIMIT"),
    (f"{JOB} DUE TO TIME LIMIT ***\n", 143, Status.TIMEOUT, "DUE TO TIME LIMIT"),
    (f"{JOB} DUE TO PREEMPTION ***\n", 143, Status.PREEMPTED, "DUE TO PREEMPTION"),
    (REQUEUED_BY_NODE, 143, Status.NODE_FAILED, "Node failure on n3"),
    (OOM, 137, Status.OUT_OF_MEMORY, "oom_kill event"),
    (POLLED_OOM, 137, Status.OUT_OF_MEMORY, "exceeded memory limit (400097280 > 209715200)"),
    (OLD_OOM, 137, Status.OUT_OF_MEMORY, "oom-kill event"),
    (
        f"0: {STEP} ***\nsrun: Job step aborted: Waiting up to 5 seconds for job step to finish.\n"
        "srun: error: n1: tasks 0-1: Exited with exit code 1\nsrun: error: n2: task 2: Killed\n",
        143,
        Status.CANCELLED,
        "CANCELLED AT",
    ),
    ("dlperf_hpc: CANCELLED by the user\n" + HYDRA_3, 15, Status.CANCELLED, "by the user"),
    (
        "dlperf_hpc: CANCELLED DUE TO TIME LIMIT of 60 s\n",
        143,
        Status.TIMEOUT,
        "DUE TO TIME LIMIT of 60 s",
    ),
    (BAD_MPI, 1, Status.FAILED, "srun has no MPI plug-in foo: choose one of `srun --mpi=list`"),
    (NO_PYTHON, 2, Status.FAILED, "a rank cannot start: execve(): /no/python: No such file"),
    (
        NO_MODULE,
        1,
        Status.FAILED,
        "rank 2-3 on n2 left with exit code 1; last output: 0: /v/bin/python3: No module named",
    ),
    (
        "0: \x1b[91mERROR  : no capability\n0: \x1b[0m\n0:\n"
        "srun: error: n1: task 0: Exited with exit code 1\n",
        1,
        Status.FAILED,
        "rank 0 on n1 left with exit code 1; last output: 0: ERROR  : no capability",
    ),
    (HYDRA.format(code=9, text="Killed"), 9, Status.FAILED, "a rank died: Killed (signal 9)"),
    (
        "step 1\n" + HYDRA.format(code=11, text="Segmentation fault"),
        11,
        Status.FAILED,
        "a rank died: Segmentation fault (signal 11)",
    ),
    (HYDRA_3, 3, Status.FAILED, "a rank left with exit code 3; last output: ImportError: libmpi"),
    (NO_FILE, 255, Status.FAILED, "a rank cannot start: execvp error on file /no/python"),
    (
        "srun: error: Unable to create step for job 8: Requested nodes are busy",
        1,
        Status.FAILED,
        "srun: error: Unable to create step for job 8",
    ),
    ("", 1, Status.FAILED, "exit code 1; last output: nothing printed"),
    ("", 0, Status.FAILED, "without a record; last output: nothing printed"),
    ("\n \nhello\n\n", 137, Status.FAILED, "ended by signal 9; last output: hello"),
]
LOST = Failure(0, "n1", Status.FAILED, "rank 0 on n1: Connection reset", "2", "", True)
ENDED = Failure(2, "n2", Status.CANCELLED, "rank 2 on n2: SIGTERM", "1", "", True)
CAUSE = Failure(1, "n1", Status.OUT_OF_MEMORY, "rank 1 on n1: MemoryError", "3")


@pytest.mark.parametrize(("output", "code", "status", "words"), CAUSES)
def test_what_the_launcher_says(output: str, code: int, status: Status, words: str) -> None:
    told = explain(code, output, [])
    assert told.status is status, told
    assert words in told.reason and "\n" not in told.reason


@pytest.mark.parametrize("output", ["", OTHERS, OOM, BAD_MPI, "0: done\n"])
def test_a_rank_that_knows_is_believed_first(output: str) -> None:
    told = explain(143, output, [CAUSE, ENDED, LOST])
    assert (told.status, told.reason) == (Status.OUT_OF_MEMORY, CAUSE.reason)


def test_of_ranks_that_only_suffered_the_launcher_knows_more() -> None:
    killed = "srun: error: n2: task 3: Killed\n" + OTHERS
    assert explain(143, killed, [ENDED, LOST]).reason == "rank 3 on n2 died: Killed"
    limit = f"{JOB} DUE TO TIME LIMIT ***\n"
    assert explain(143, limit, [ENDED, LOST]).status is Status.TIMEOUT


def test_a_lost_connection_says_more_than_a_signal_or_an_exit_code() -> None:
    left = "srun: error: n1: task 0: Exited with exit code 1\n"
    assert explain(1, left, [ENDED, LOST]) == LOST.verdict
    assert explain(1, "", [ENDED]) == ENDED.verdict


DUMP = """\
{rank}: Timeout (0:05:15)!
{rank}: Thread 0x00007f8e2a2a7740 (most recent call first):
{rank}:   File "/x/dlperf_hpc/train/ranks.py", line 86 in discover
"""
LEFT = f"srun: error: n1: task 0: Exited with exit code 1\n{OTHERS}"


def test_who_did_not_come_is_told() -> None:
    dumps = "".join(DUMP.format(rank=rank) for rank in (0, 2, 3))
    reason = explain(1, dumps + LEFT, [], ranks=4)
    words = "ranks 0,2,3 waited 0:05:15 for MPI to start; rank 1 did not come"
    assert reason.status is Status.FAILED and reason.reason.startswith(words)
    several = explain(1, DUMP.format(rank=0) + LEFT, [], ranks=4).reason
    assert several.startswith("rank 0 waited 0:05:15 for MPI to start; ranks 1,2,3 did not come")
    everybody = explain(1, dumps + DUMP.format(rank=1) + LEFT, [], ranks=4).reason
    assert "all ranks were there and did not find each other" in everybody
    without_labels = explain(1, dumps.replace("0: T", "T").replace("2: T", "T"), [], ranks=9).reason
    assert "rank 3 waited" in without_labels
    told = explain(1, "Timeout (0:05:15)!\nTimeout (0:05:15)!\n", []).reason
    assert told.startswith("2 ranks waited 0:05:15")  # how many there should have been, nobody says
    assert explain(1, dumps + LEFT, [CAUSE], ranks=4) == CAUSE.verdict  # who knows why says it


@pytest.mark.parametrize("source", ["slurmstepd-n1: error: ", "srun: error: "])
def test_a_fault_of_slurms_own_is_named_as_such(source: str) -> None:
    output = f"{source}mpi/pmi2: value not properly terminated in client request\n{LEFT}"
    told = explain(1, output, [CAUSE])
    assert (told.status, told.cause) == (Status.FAILED, failures.LAUNCHER)
    assert "1024 bytes" in told.reason and 'UCX_TLS = "tcp,self"' in told.reason


NULS = "\0" * 9  # what a node that died may leave of a block of its output


@pytest.mark.parametrize(
    ("output", "status", "words"),
    [
        (f"{JOB} DUE TO TIME LIMIT ***\n", Status.TIMEOUT, "DUE TO TIME LIMIT"),
        (f"{JOB} ***\n", Status.CANCELLED, "CANCELLED AT"),
        (
            "1: dlperf_hpc: failed: rank 1 on n2: OSError: [Errno 28] No space left on device\n"
            "1: dlperf_hpc: could not write the record: OSError(28)\n" + LEFT,
            Status.FAILED,
            "rank 1 on n2: OSError: [Errno 28] No space",
        ),
        ("bash: line 4: echo: write error: No space left on device\n", Status.FAILED, "No space"),
        (
            f"hello\n{NULS}\n{NULS}srun: error: n1: task 0: Exited with exit code 1\n",
            Status.FAILED,
            "left with exit code 1; last output: hello",
        ),
        ("0: step 1\n0: step 2\n", None, ""),
        ("", None, ""),
    ],
)
def test_an_output_alone_tells_of_the_end_or_says_nothing(
    tmp_path: Path, output: str, status: Status | None, words: str
) -> None:
    (tmp_path / layout.JOBS).mkdir()
    path = tmp_path / layout.JOBS / "7_0.out"
    earlier = f"dlperf_hpc: launch 7_0.0\n{JOB} DUE TO PREEMPTION ***\n"
    path.write_text(f"{earlier}dlperf_hpc: launch 7_0.1\n{output}")
    found = verdict_of_output(tmp_path, "7_0")
    assert (found and found.status) is status and (found is None or words in found.reason)


def test_an_output_that_is_no_file_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / layout.JOBS).mkdir()
    os.mkfifo(tmp_path / layout.JOBS / "7_0.out")
    assert verdict_of_output(tmp_path, "7_0") is None and verdict_of_output(tmp_path, "8_0") is None
    # Its path is no word of the launcher's.
    assert verdict_of_output(tmp_path / "oom-kill", "7_0") is None


def test_what_is_quoted_is_short() -> None:
    for output in (
        "x" * 10_000,
        "srun: error: n1: task 0: Exited with exit code 1\n" + "y" * 10_000,
    ):
        assert len(explain(1, output, []).reason) < 500


def test_no_output_takes_long() -> None:
    """A 64 KiB tail of one long line, or of many short ones, is searched in no time."""
    for output in ("srun: error: " * 5000, "CANCELLED\n" * 6500, "\n" * 65536, "x" * 65536):
        start = time.process_time()
        assert explain(1, output, []).status is Status.FAILED
        assert time.process_time() - start < 2


# --- close: the record, or what is missing of the log --------------------------------------------

RUN = a_run()
ARRAY = "1n2g.sample"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a sweep of one run, as array task 100_0."""
    a_sweep(tmp_path, [RUN])
    (tmp_path / layout.JOBS).mkdir()
    for name in ("SUBMITIT_MPIEXEC_JOB_ID", "SUBMITIT_MPIEXEC_TASK", "SLURM_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "100")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "0")
    return tmp_path


def test_a_run_that_never_began(root: Path) -> None:
    (root / layout.JOBS / "100_0.out").write_text(NO_MODULE)
    close(root, ARRAY, 1)
    result = result_of_log(paths(root, RUN).log)
    assert result.status is Status.FAILED and "No module named dlperf_hpc" in result.reason
    record = read_record(paths(root, RUN).record)
    assert record is not None and record["reason"] == result.reason


def test_a_run_without_output(root: Path) -> None:
    close(root, ARRAY, 1)
    assert "100_0.out cannot be read" in result_of_log(paths(root, RUN).log).reason


def test_what_is_no_file_in_place_of_what_ranks_left_is_not_read(root: Path) -> None:
    """And what is no account of a failure is none: the epilogue writes its record all the same."""
    attempt = begun(root, RUN)
    leave_failure(attempt, CAUSE)
    os.mkfifo(attempt.paths.failure(attempt.number, 0))
    for rank, text in enumerate(("", "[" * 100_000, "[1]", '{"status": 7}', '{"status": "ok"}'), 2):
        attempt.paths.failure(attempt.number, rank).write_text(text)
    assert read_failures(attempt) == [CAUSE]
    assert failure_hosts(attempt.paths, attempt.number) == ["n1"]
    os.mkfifo(root / layout.JOBS / "100_0.out")
    close(root, ARRAY, 143)
    assert result_of_log(attempt.paths.log).status is CAUSE.status


@pytest.mark.processes
def test_an_output_that_is_a_link_is_not_written_to(root: Path) -> None:
    """The local queue runs nothing then, and the record says why."""
    mine, output = root / "mine", root / layout.JOBS / "100_0.out"
    mine.write_text("mine\n")
    output.symlink_to(mine)
    epilogue = (sys.executable, "-m", "dlperf_hpc.engines.epilogue", str(root), ARRAY)
    queue = LocalEngine()
    task = QueuedTask("100_0", ["touch", str(root / "ran")], os.environ, output, 60, epilogue)
    queue.put(task)
    deadline = time.monotonic() + 60
    while task.task_state.alive and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (task.state, mine.read_text(), (root / "ran").exists()) == ("FAILED", "mine\n", False)
    assert result_of_log(paths(root, RUN).log).status is Status.FAILED


@pytest.mark.processes
def test_the_local_queue_goes_on_behind_an_epilogue_that_cannot_start(root: Path) -> None:
    queue, output = LocalEngine(), root / layout.JOBS / "100_0.out"
    tasks = [
        QueuedTask(f"100_{index}", ["true"], os.environ, output, 60, epilogue)
        for index, epilogue in enumerate((["/no/such/python"], ["true"]))
    ]
    for task in tasks:
        queue.put(task)
    deadline = time.monotonic() + 60
    while not queue.idle() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [task.state for task in tasks] == ["FINISHED", "FINISHED"]
    assert "/no/such/python: " in output.read_text()


def test_a_full_disk_does_not_keep_a_task_from_being_ended() -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        note(full, "dlperf_hpc: CANCELLED by the user")


def test_only_the_end_of_a_long_output_is_read(root: Path) -> None:
    noise = "x" * 100 + "\n"
    text = "srun: error: n1: task 0: Killed\n" + noise * 1000 + BAD_MPI
    (root / layout.JOBS / "100_0.out").write_text(text)
    close(root, ARRAY, 1)
    assert "no MPI plug-in foo" in result_of_log(paths(root, RUN).log).reason


def test_a_run_whose_ranks_were_killed(root: Path) -> None:
    attempt = begun(root, RUN)
    leave_failure(attempt, ENDED)
    (root / layout.JOBS / "100_0.out").write_text("srun: error: n1: task 1: Killed\n" + OTHERS)
    close(root, ARRAY, 143)
    result = result_of_log(attempt.paths.log)
    assert (result.status, result.reason) == (Status.FAILED, "rank 1 on n1 died: Killed")
    assert result.facts["world"]["ranks"] == 2


@pytest.mark.parametrize("ok", [True, False])
def test_a_record_stays_and_its_log_gets_the_end_it_lacks(root: Path, ok: bool) -> None:
    if ok:
        ended_ok(root, RUN)
    else:
        ended(root, RUN, Status.FAILED, "why")
    log, record = paths(root, RUN).log, paths(root, RUN).record
    text = record.read_text()
    without_end(log)
    close(root, ARRAY, 1)
    end = read_end(log)
    assert end is not None and end.values["status"] == ("ok" if ok else "failed")
    assert record.read_text() == text
    whole = log.read_text()
    close(root, ARRAY, 1)
    assert log.read_text() == whole


def test_a_restart_that_never_began_does_not_touch_what_was(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = begun(root, RUN)
    text = old.paths.log.read_text()
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    close(root, ARRAY, 1)
    assert old.paths.earlier(old.paths.log, 1).read_text() == text
    record = json.loads(old.paths.record.read_text())
    assert (record["attempt"], record["launch"]) == (2, "100_0.1")
    assert opened(root, RUN, "100_0.1").number == 2


@pytest.mark.parametrize(("restarts", "code"), [("0", layout.REQUEUE), ("1", 0)])
def test_a_run_that_slurm_kept_from_starting_is_put_back_once(
    root: Path, monkeypatch: pytest.MonkeyPatch, restarts: str, code: int
) -> None:
    """Then `rerun` takes it, for it failed."""
    monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
    output = root / layout.JOBS / "100_0.out"
    output.write_text(
        "dlperf_hpc: launch 100_0.0\n"
        "slurmstepd-n1: error: mpi/pmi2: value not properly terminated in client request\n"
        "srun: error: n1: task 0: Killed\n"
    )
    assert main([str(root), ARRAY, "137"]) == code
    record = read_record(paths(root, RUN).record)
    assert record is not None and (record["status"], record["cause"]) == ("failed", "launcher")
    assert 'UCX_TLS = "tcp,self"' in record["reason"]
