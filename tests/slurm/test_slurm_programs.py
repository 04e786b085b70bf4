"""Users' programs on two nodes of a real Slurm, beside a back end of ours."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from fixtures_slurm import Onebox
from places import ROOT
from queueing import Queue
from ready_programs import compiled
from sweeping import Workplace, wait_until

from dlperf_hpc.model.result import Status
from dlperf_hpc.records.collect import full_results
from dlperf_hpc.records.failures import LAUNCHER
from dlperf_hpc.records.layout import RunPaths
from dlperf_hpc.records.logfile import read_log
from dlperf_hpc.records.record import read_record

PROFILE = ROOT / "slurm" / "onebox.toml"
SWEEP = f"""
topologies = ["2n2g"]
base = "2n2g"
repeats = 1
time_limit = "00:15:00"
[limits]
iteration_s = 20.0
[measure]
warmup = 3
iterations = 10
[case]
model = "bert-tiny"
batch_size = 2
seq_len = 16
[matrix]
framework = ["ddp", "gpt", "acc", "mpi"]
[program.gpt]
launch = "torchrun"
workdir = "{ROOT}/tests/support/programs"
run = ["tiny_gpt.py", "--steps", "100000", "--batch", "{{batch_size}}", "--seq", "{{seq_len}}"]
[program.acc]
launch = "accelerate"
workdir = "{ROOT}/tests/support/programs"
run = [
    "-m", "dlperf_hpc.hook", "--batch-size", "{{batch_size}}",
    "accelerated.py", "100000", "{{batch_size}}",
]
[program.mpi]
launch = "rank"
workdir = "{ROOT}/tests/support/programs"
run = ["mpi_steps.py", "100000", "{{batch_size}}", "timer"]
[program.mpi.read]
format = "megatron"
"""


def test_torchrun_accelerate_mpi_and_c_beside_ddp(place: Workplace) -> None:
    """One process on each of two nodes: each of these that imports torch costs CI seconds."""
    table = f'[program.c]\nlaunch = "rank"\nrun = ["{compiled(place.root)}", "20", "32"]\n'
    text = SWEEP.replace('"mpi"]', '"mpi", "c"]').replace("2n2g", "2n1g") + table
    spec = place.write("both.toml", text)
    done = place.verb("sweep", spec, "--site", PROFILE, "--wait", timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["framework"]: row for row in place.table("both")}
    assert all(float(rows[name]["samples_per_s"]) > 0 for name in ("ddp", "gpt", "acc", "mpi"))
    assert {row["global_batch"] for row in rows.values()} == {"4"}
    with open(place.directory("both") / "report" / "runs.csv", encoding="utf-8") as file:
        basis = {row["framework"]: row["basis"] for row in csv.DictReader(file)}
    # The hook's processes met by torch.distributed, the Timer's by MPI.
    assert (basis["acc"], basis["mpi"]) == ("timer", "timer")
    results = full_results(place.directory("both")).results
    found = {result.run.case.framework: result for result in results}
    text = Path(found["mpi"].log).read_text(encoding="utf-8")
    assert all(f"Z {rank}| rank {rank} of 2\n" in text for rank in range(2))
    text = Path(found["acc"].log).read_text(encoding="utf-8")
    assert all(f"| process {rank} of 2\n" in text for rank in range(2))
    text = Path(found["c"].log).read_text(encoding="utf-8")
    assert " GFLOP/s on 2 ranks\n" in text and found["c"].status is Status.OK
    tables = read_log(Path(found["gpt"].log)).tables
    assert tables["program"]["argv"][1:5] == ["-m", "torch.distributed.run", "--nnodes", "2"]
    assert len(tables["program_end"]["codes"]) == tables["world"]["ranks"] == 2


def test_a_program_that_is_cancelled_and_run_again(place: Workplace, onebox: Onebox) -> None:
    text = SWEEP.replace('["ddp", "gpt", "acc", "mpi"]', '["mpi"]')
    text = text.replace("iterations = 10", "iterations = 90000")
    done = place.verb("sweep", place.write("long.toml", text), "--site", PROFILE)
    assert done.returncode == 0, done.stdout + done.stderr
    root = place.directory("long")

    log = root / "mpi/bert-tiny/bz2/2n2g/bert-tiny_b2_fp32-seq16_1.log"

    def begun(attempt: int = 1) -> bool:
        text = log.read_bytes() if log.exists() else b""
        return b"attempt=%d " % attempt in text and b" 0|  iteration " in text

    wait_until(begun, 90, "an iteration", lambda: sorted(root.rglob("*")))
    assert place.verb("cancel", root).returncode == 0

    def cancelled() -> bool:
        place.verb("status", root)  # which asks Slurm, and writes down what it says
        return _status(root) is Status.CANCELLED

    wait_until(cancelled, 60, "cancelled", lambda: full_results(root).results)
    # Slurm's signal came to the ranks as to their supervisors: none of them is to blame.
    (output,) = (root / "jobs").glob("*.out")
    assert "dlperf_hpc: failed: " not in output.read_text(encoding="utf-8")
    told = place.verb("status", root, "--why", "1")
    # Whether Slurm's own word is known, or an epilogue that it let live: both say who ended it.
    by_slurm = r"^(?:> scheduler +Slurm, job \d+_0: |.*\*\*\* .* )CANCELLED"
    assert re.search(by_slurm, told.stdout, re.MULTILINE)
    assert told.returncode == 1 and "n1, n2" in told.stdout
    assert place.verb("rerun", root, "--status", "cancelled").returncode == 0
    wait_until(lambda: begun(2), 90, "a second attempt")
    assert place.verb("cancel", root).returncode == 0
    # Where scancel killed the epilogue too, the next attempt has put together what it left.
    first = log.parent / "attempts" / f"{log.stem}.attempt1.log"
    assert b" 3| rank 3 of 4\n" in first.read_bytes()
    assert not first.with_suffix(".program").exists()


PRINTS = """
import time
time.sleep(2)  # a real program imports something
for step in range(1, 100):
    time.sleep(0.05)
    print(f"step {step}", flush=True)
"""
ON_GPUS = """
topologies = ["2n1g"]
base = "2n1g"
repeats = 1
time_limit = "00:15:00"
[measure]
warmup = 3
iterations = 80
[case]
framework = "mine"
model = "toy"
batch_size = 4
[program.mine]
launch = "rank"
run = ["train.py"]
[program.mine.read]
line = '^step (?P<iteration>[0-9]+)'
"""


def test_the_gpus_of_a_program_on_two_nodes_are_sampled(place: Workplace) -> None:
    """On each node by its first supervisor, by an NVML that is faked in all processes."""
    fake = {"PYTHONPATH": str(ROOT / "tests" / "support" / "nvml"), "FAKE_NVML": "GPU-{node}"}
    words = ", ".join(f'{name} = "{value}"' for name, value in fake.items())
    profile = PROFILE.read_text(encoding="utf-8").replace("env = {", f"env = {{ {words},")
    place.write("train.py", PRINTS)
    spec = place.write("gpus.toml", ON_GPUS)
    site = place.write("site.toml", profile)
    done = place.verb("sweep", spec, "--site", site, "--wait", "--no-check", timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    with open(place.directory("gpus") / "report" / "runs.csv", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    seen = [row[f"gpu_{figure}"] for figure in ("util", "sm_mhz", "devices")]
    assert seen == ["90.0", "1000.0", "2"], row
    joules = float(row["gpu_joules"]) / 200  # 100 W each
    assert joules == pytest.approx(float(row["elapsed_s"]), rel=0.5), row


def _status(root: Path) -> Status:
    (result,) = full_results(root).results
    return result.status


ALONE = """
topologies = ["1n1g"]
base = "1n1g"
repeats = {repeats}
time_limit = "00:15:00"
[case]
model = "m"
batch_size = 1
framework = "alone"
[program.alone]
launch = "rank"
run = {run}
"""


def _states(place: Workplace, name: str) -> list[dict[str, Any]]:
    told = place.verb("status", place.directory(name), "--json")
    rows: list[dict[str, Any]] = json.loads(told.stdout)["runs"]
    return rows


def test_a_rank_that_dies_on_another_node_in_the_window(place: Workplace) -> None:
    """Ranks do not wait for each other: rank 0 comes to its window's end all the same."""
    table = SWEEP.partition("[program.gpt]")[0].replace('["ddp", "gpt", "acc", "mpi"]', '["mine"]')
    program = f"""what = ["kill", "none"]
    [program.mine]
    launch = "rank"
    workdir = "{ROOT}/tests/support/programs"
    run = ["apart.py", "9999", "20", "{{global_batch}}", "{{what}}"]
    [program.mine.keys]
    what = "plain"
    [program.mine.read]
    format = "megatron"
    """
    table = table.replace("iterations = 10", "iterations = 400")  # ranks start apart, too
    text = table.replace("2n2g", "2n1g") + program
    spec = place.write("apart.toml", text.replace("    ", ""))
    assert place.verb("sweep", spec, "--site", PROFILE, "--wait").returncode == 1
    ends = {row["run"].partition("what")[2][:4]: row for row in _states(place, "apart")}
    assert {name: row["status"] for name, row in ends.items()} == {
        "kill": "failed",
        "none": "partial",
    }, ends
    record = read_record(RunPaths(place.directory("apart"), ends["kill"]["run"]).record) or {}
    assert record["cause"] == "killed" and record["program"]["codes"][1] == -9
    assert "rank 1 on" in ends["kill"]["reason"] and "rank 1 on" in ends["none"]["reason"]


def test_what_slurms_pmi2_cuts_is_named_with_the_cure_and_repeated_once(place: Workplace) -> None:
    """The profile has requeue = 2; this program writes the same line each time."""
    run = [f"{ROOT}/tests/support/programs/long_put.py", "1022"]
    spec = place.write("cut.toml", ALONE.format(repeats=1, run=run))
    assert place.verb("sweep", spec, "--site", PROFILE, "--wait").returncode == 1
    (state,) = _states(place, "cut")
    assert state["status"] == "failed" and 'UCX_TLS = "tcp,self"' in state["reason"]
    record = read_record(RunPaths(place.directory("cut"), state["run"]).record)
    assert record is not None and (record["attempt"], record["cause"]) == (2, LAUNCHER)


def test_why_runs_wait_is_always_told_and_never_of_what_has_ended(
    place: Workplace, queue: Queue
) -> None:
    spec = place.write("waits.toml", ALONE.format(repeats=4, run=["sleep", "300"]))
    assert place.verb("sweep", spec, "--site", PROFILE).returncode == 0
    root = place.directory("waits")

    def told() -> str:
        return "".join(f"{row['reason']} {row['to_do']}\n" for row in _states(place, "waits"))

    (job,) = queue.jobs(root)
    wait_until(lambda: "RUNNING" in told(), 60, "the first run")
    queue.call("scontrol", "update", "nodename=n[1-4]", "state=drain", "reason=test")
    try:
        queue.call("scontrol", "hold", f"{job}_2")
        queue.call("scontrol", "uhold", f"{job}_3")
        queue.call("scontrol", "requeuehold", f"{job}_0")
        wanted = (
            ("requeued in held state", "it was put back and is held: `scontrol release"),
            ("DRAINED", "`sinfo -R` says why"),
            ("JobHeldAdmin", "the site holds it: ask"),
            ("JobHeldUser", "`scontrol release JOB` lets it start"),
        )
        patterns = [re.compile(".*".join(map(re.escape, words))) for words in wanted]

        def all_are_told(text: str) -> bool:
            return all(pattern.search(text) for pattern in patterns)

        wait_until(lambda: all_are_told(told()), 60, "four reasons", told)
        assert "DRAINED" in place.verb("status", root).stdout
        assert place.verb("cancel", root).returncode == 0
        rows = _states(place, "waits")
        assert {(row["status"], row["to_do"]) for row in rows} == {("cancelled", "")}
    finally:
        queue.call("scontrol", "update", "nodename=n[1-4]", "state=resume")
