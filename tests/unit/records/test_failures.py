"""One table of failures: each line goes through everyone who asks what broke, and all agree."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from places import ROOT
from reading_samples import facts, reading, scanned, steps
from record_samples import a_run, a_sweep, begun, opened, paths

from dlperf_hpc.cli.status import main as status_command
from dlperf_hpc.engines import epilogue, suspects
from dlperf_hpc.engines.postmortem import explain
from dlperf_hpc.engines.suspects import suspect_nodes
from dlperf_hpc.logs.interpret.interpretation import interpret
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.logs.scan.scanner import scanner
from dlperf_hpc.model.case import Measure
from dlperf_hpc.model.result import Status
from dlperf_hpc.records import failures, layout, quarantine
from dlperf_hpc.records.collect import full_results
from dlperf_hpc.records.failures import (
    CRASH,
    DEVICE_MEMORY,
    ENVIRONMENT,
    EXIT_CODES,
    HARDWARE,
    HOST_MEMORY,
    KILLED,
    NETWORK,
    SIGNS,
    STORAGE,
    Signs,
    Verdict,
    of_error,
    recorded,
    with_codes,
)
from dlperf_hpc.records.ledger import read_ledger
from dlperf_hpc.records.manifest import read_manifest
from dlperf_hpc.records.record import read_record
from dlperf_hpc.records.store import Failure, finish, leave_failure
from dlperf_hpc.records.supervision import Ending, judged
from dlperf_hpc.sweepfile.readtable import ReadTable
from dlperf_hpc.train.program.stdout import ProgramOutput, Progress, ended_badly

FAILED, OOM = Status.FAILED, Status.OUT_OF_MEMORY
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
LINES = [
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", OOM, DEVICE_MEMORY),
    ("[rank3]: RuntimeError: CUDA out of memory. Tried to allocate 20 MiB", OOM, DEVICE_MEMORY),
    ("torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate", OOM, DEVICE_MEMORY),
    ("RuntimeError: CUDA error: out of memory", OOM, DEVICE_MEMORY),
    ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.", OOM,
     DEVICE_MEMORY),
    ("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate request for"
     " 2.0GiB (2147483648B) on device ordinal 0", OOM, DEVICE_MEMORY),
    ("tensorflow.python.framework.errors_impl.ResourceExhaustedError: Graph execution error:", OOM,
     DEVICE_MEMORY),
    ("OOM when allocating tensor with shape[32,128] and type float on /device:GPU:0", OOM,
     DEVICE_MEMORY),
    ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", OOM, DEVICE_MEMORY),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate", OOM,
     DEVICE_MEMORY),
    ("RuntimeError: CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`",
     OOM, DEVICE_MEMORY),
    ("RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", OOM,
     DEVICE_MEMORY),
    ("RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED", OOM,
     HOST_MEMORY),
    ("terminate called after throwing an instance of 'std::bad_alloc'", OOM, HOST_MEMORY),
    ("MemoryError", OOM, HOST_MEMORY),
    ("numpy.core._exceptions._ArrayMemoryError: Unable to allocate 8.00 GiB", OOM, HOST_MEMORY),
    ("RuntimeError: [enforce fail at alloc_cpu.cpp:114] data. DefaultCPUAllocator: can't allocate"
     " memory: you tried to allocate 9 bytes. Error code 12 (Cannot allocate memory)", OOM,
     HOST_MEMORY),
    ("slurmstepd: error: Detected 1 oom_kill event in StepId=5.0. Some of the step tasks have been"
     " OOM Killed.", OOM, HOST_MEMORY),
    ("Out of memory: Killed process 4711 (python3) total-vm:9kB, anon-rss:9kB", OOM, HOST_MEMORY),
    ("Memory cgroup out of memory: Killed process 4711 (python3)", OOM, HOST_MEMORY),
    ("RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed. ", FAILED, KILLED),
    ("/var/spool/slurmd/job7/slurm_script: line 5: 4711 Killed                  python train.py",
     FAILED, KILLED),
    ("Killed", FAILED, KILLED),
    ("[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)"
     " ran for 600029 milliseconds before", FAILED, NETWORK),
    ("RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1, unhandled system error, NCCL 2.7",
     FAILED, NETWORK),
    ("RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error. It is possible"
     " that dataloader's workers are out of shared memory.", FAILED, STORAGE),
    ("ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient"
     " shared memory (shm).", FAILED, STORAGE),
    ("OSError: [Errno 28] No space left on device", FAILED, STORAGE),
    (XID, FAILED, HARDWARE),
    ("Xid 79", FAILED, HARDWARE),
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered", FAILED, HARDWARE),
    ("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", FAILED, HARDWARE),
    ("HW Exception by GPU node-1 (Agent handle: 0x7f) reason :GPU Hang", FAILED, HARDWARE),
    ("amdgpu: GPU Hang", FAILED, HARDWARE),
    ("Segmentation fault (core dumped)", FAILED, CRASH),
    ("ModuleNotFoundError: No module named 'apex'", FAILED, ENVIRONMENT),
    ("[rank0]: ImportError: libcudart.so.12: cannot open shared object file", FAILED, ENVIRONMENT),
]  # fmt: skip
HARMLESS = [
    "E0000 grpc: RESOURCE_EXHAUSTED: Received message larger than max (5000000 vs. 4194304)",
    "the batch is halved whenever a step runs out of memory",
    "Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.2GiB with freed_by_count=0. The"
    " caller indicates that this is not a failure, but this may mean that there could be gains",
    "0 uncorrectable ECC errors, no Xid was seen",
    "apex is not there (ImportError): its optimizer is not used",
    "all temporary files are Killed? no: removed",
]
EACH = pytest.mark.parametrize(("line", "status", "cause"), LINES)


def from_log(line: str) -> tuple[Status, str]:
    """How another program's log ends that has the line inside its window."""
    data = f"nothing\n{line}\nnothing\n".encode()
    troubles = scanner().scan("a.log", len(data), [data]).troubles
    found = reading(steps(range(1, 64), printed=lambda n: 100.0))
    file = scanned(found, facts=facts(nodes=1, gpus_per_node=2), troubles=troubles)
    (result,) = interpret(file, (), (), {}, rule()).results
    assert bool(troubles) == (result.decided_by == SIGNS)
    return result.status, result.cause


def from_program(line: str, code: int, folder: Path) -> Verdict:
    """How a user's program ended that has printed the line."""
    output = ProgramOutput(folder / "out", 0, Progress(), signs=Signs())
    output.take(f"step 1\n{line}\nstep 2\n".encode())
    if code:
        end = ended_badly(code, output)
        assert end.status is not None
        return Verdict(end.status, end.reason, end.decided_by, end.cause)
    ending = Ending(0, "n1", 0, iteration=50, format="x", broken=output.signs.broken)
    return judged([ending], Measure(), ReadTable())


@EACH
@pytest.mark.parametrize("code", [0, 1])
def test_a_users_program(line: str, status: Status, cause: str, code: int, tmp_path: Path) -> None:
    found = from_program(line, code, tmp_path)
    assert (found.status, found.cause, found.decided_by) == (status, cause, SIGNS)


@EACH
def test_another_programs_log(line: str, status: Status, cause: str) -> None:
    assert from_log(re.sub(r"^\[rank\d\]: ", "", line)) == (status, cause)


@EACH
@pytest.mark.parametrize("code", [0, 1])
def test_a_tasks_output(line: str, status: Status, cause: str, code: int) -> None:
    for label in ("", "3: "):
        found = explain(code, f"{label}step 1\n{label}{line}\n", [])
        assert (found.status, found.cause) == (status, cause)
    record = {"status": found.status.value, "reason": found.reason, **found.codes()}
    assert replace(recorded(record), hosts=()) == found  # as status --why and quarantine read it


@EACH
def test_an_exception_of_our_back_ends(line: str, status: Status, cause: str) -> None:
    name, _, message = re.sub(r"^\[rank\d\]: ", "", line).partition(": ")
    if not re.fullmatch(r"[\w.]*Error", name):
        return  # no exception says this
    error = type(name.rpartition(".")[2], (Exception,), {})(message)
    found = of_error(error)
    assert (found.status, found.cause, found.decided_by) == (status, cause, SIGNS)


@pytest.mark.parametrize("line", HARMLESS)
def test_a_line_that_says_no_such_thing(line: str, tmp_path: Path) -> None:
    assert from_log(line) == (Status.PARTIAL, "")
    assert from_program(line, 0, tmp_path).status is Status.PARTIAL
    found = from_program(line, 1, tmp_path)
    assert (found.status, found.cause, found.decided_by) == (FAILED, "", EXIT_CODES)
    assert explain(1, f"{line}\n", []).cause == ""
    if line != HARMLESS[1]:  # which is no mere mention in the message of an exception
        assert of_error(RuntimeError(line)).status is FAILED


def test_who_sent_sigkill_is_known_by_other_lines_alone(tmp_path: Path) -> None:
    worker = "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed. "
    for evidence in (LINES[14][0], LINES[15][0]):
        assert from_log(f"{worker}\n{evidence}") == (OOM, HOST_MEMORY)
        for code in (0, 1):
            found = from_program(f"{worker}\n{evidence}", code, tmp_path)
            assert (found.status, found.cause) == (OOM, HOST_MEMORY)
            assert explain(code, f"{worker}\n{evidence}\n", []).cause == HOST_MEMORY
    for code in (-9, 137):
        found = from_program("step 3", code, tmp_path)
        assert (found.status, found.cause) == (FAILED, KILLED)
        # Its supervisor does not know who did it; slurmstepd says so when the step has ended.
        account = Failure(0, "n1", FAILED, found.reason, "t", cause=found.cause)
        assert explain(137, "", [account]).cause == KILLED
        assert explain(137, f"{LINES[14][0]}\n", [account]).status is OOM
    assert explain(137, "srun: error: n1: task 1: Killed\n", []).cause == KILLED
    assert explain(137, "step 1\n", []).cause == KILLED


@pytest.fixture
def first_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sweep, and this process as its first task, whose ranks have begun on n1 and n2."""
    a_sweep(tmp_path, [a_run("2n1g", repeat=1), a_run("2n1g", repeat=2)], "slurm")
    (tmp_path / layout.JOBS).mkdir()
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "100")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "0")
    for name in ("SUBMITIT_MPIEXEC_JOB_ID", "SUBMITIT_MPIEXEC_TASK", "SLURM_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_the_node_of_a_broken_device_is_named_and_left_out(first_task: Path, capsys: Any) -> None:
    runs = read_manifest(first_task).runs
    log = begun(first_task, runs[0]).paths.log
    log.write_text(re.sub(r"hosts=\S+", 'hosts=["n1","n2"]', log.read_text()))
    text = f"dlperf_hpc: launch 100_0.0\n0: step 1\n1: {XID}\nsrun: error: n1: task 0: Killed\n"
    (first_task / layout.JOBS / "100_0.out").write_text(text)
    assert epilogue.main([str(first_task), read_manifest(first_task).arrays[0].name, "137"]) == 0
    record = read_record(paths(first_task, runs[0]).record)
    assert record is not None
    codes = {name: record[name] for name in ("status", "decided_by", "cause", "cause_hosts")}
    assert codes == {"status": "failed", "decided_by": SIGNS, "cause": HARDWARE,
                     "cause_hosts": ["n2"]}  # fmt: skip
    assert "Xid" in record["reason"] and "n2" in record["reason"]
    assert list(suspect_nodes(read_ledger(first_task), full_results(first_task).results)) == ["n2"]
    assert status_command([str(first_task), "--why", "1", "--offline"]) == 1
    assert "\n> signs " in capsys.readouterr().out


def test_a_rank_says_where_a_device_broke(first_task: Path) -> None:
    run = read_manifest(first_task).runs[0]
    attempt = opened(first_task, run)
    account = Failure(1, "n2", FAILED, f"rank 1 on n2: {XID}", "t", cause=HARDWARE)
    leave_failure(attempt, account)
    finish(attempt, FAILED, account.reason, detail=account.verdict.codes())
    found = suspect_nodes(read_ledger(first_task), full_results(first_task).results)
    assert list(found) == ["n2"] and "Xid" in found["n2"]


@pytest.mark.parametrize("cause", [DEVICE_MEMORY, HARDWARE, STORAGE, NETWORK, CRASH, KILLED])
def test_only_an_environments_fault_holds_runs_back(first_task: Path, cause: str) -> None:
    manifest = read_manifest(first_task)
    record = {"status": "failed", "cause": cause, "cause_hosts": ["n1"]}
    suspects.learn(first_task, manifest, manifest.runs[0], record)
    assert quarantine.read_entries(first_task, "default") == ()


def test_every_fault_of_the_table_is_one_that_holds_runs_back() -> None:
    told = {row.fault for row in failures.FAILURES if row.fault}
    assert told <= set(quarantine.KINDS)
    assert all((row.cause == ENVIRONMENT) == bool(row.fault) or row.literals
               for row in failures.FAILURES if row.cause == ENVIRONMENT)  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "decided", "cause", "fault"),
    [
        ("rank 0 on n1: the loss is not finite from iteration 3 on", "loss", "", ""),
        ("rank 1 on n2: after 61 s in phase run: over its 60 s", "ended by", "", ""),
        ("no line is as read.must says: 'x'", "must", "", ""),
        ("srun has no MPI plug-in foo: choose", EXIT_CODES, ENVIRONMENT, "mpi_plugin"),
        ("rank 0 on n1: No module named 'torch'", EXIT_CODES, ENVIRONMENT, "framework"),
        (f"rank 0 on n1 printed '{XID}', and the window is not whole", SIGNS, HARDWARE, ""),
    ],
)
def test_a_record_of_an_earlier_version_is_read_by_its_sentence(
    reason: str, decided: str, cause: str, fault: str
) -> None:
    found = with_codes(recorded({"status": "failed", "reason": reason}))
    assert found == Verdict(FAILED, reason, decided, cause, fault)
    of_today = Verdict(FAILED, reason, SIGNS, CRASH)
    assert with_codes(of_today) == of_today


def test_no_code_compares_our_own_sentences() -> None:
    """A reason is for people. Codes say what it says to programs, but where a record of an earlier
    version is read."""
    found = []
    for path in sorted((ROOT / "dlperf_hpc").rglob("*.py")):
        if str(path.relative_to(ROOT / "dlperf_hpc")) not in _ELSEWHERE:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                found += [f"{path}: {ast.unparse(node)}"] if _compares_a_reason(node) else []
    assert found == []


_ELSEWHERE = (
    "records/failures.py",  # which reads records of earlier versions
    "doctor/job.py",  # Slurm's reasons
    "engines/slurm/query.py",
    "sweepfile/patterns.py",  # RE2's
)


def _compares_a_reason(node: ast.AST) -> bool:
    """Whether a reason is searched, or held against a text."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        looks = node.func.attr in ("startswith", "endswith", "search", "match", "fullmatch")
        return looks and any(map(_is_reason, (node.func.value, *node.args)))
    if isinstance(node, ast.Compare) and any(map(_is_reason, (node.left, *node.comparators))):
        texts = [each for each in (node.left, *node.comparators) if not _is_reason(each)]
        return any(isinstance(each, (ast.Constant, ast.JoinedStr)) and not _is_empty(each)
                   for each in texts)  # fmt: skip
    return False


def _is_reason(node: ast.AST) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name.strip("_") in ("reason", "note", "why")


def _is_empty(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value in ("", None)


def test_a_programs_end_is_told_in_words_that_help(tmp_path: Path) -> None:
    lines = "There are not enough slots available in the system to satisfy the 2\nslots"
    assert "ppr:{ranks_per_node}:node:OVERSUBSCRIBE" in from_program(lines, 1, tmp_path).reason
    empty = ProgramOutput(tmp_path / "nuls", 0, Progress(), signs=Signs())
    empty.take(b"it broke\n" + b"\0" * 9 + b"\n")
    assert ended_badly(1, empty).reason == "the program ended with exit code 1: it broke"
