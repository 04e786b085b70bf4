"""Timer, hook and callback around real PyTorch programs, on two ranks under torchrun (gloo)."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from places import BUSY, ROOT
from sweeping import Workplace, local_environment

from dlperf_hpc import Timer, TrainerTimer
from dlperf_hpc.model.result import RunResult, Status
from dlperf_hpc.records.logfile import result_of_log
from dlperf_hpc.records.record import read_record

COMMON = """
import os, sys, time
import torch
import torch.distributed as dist
if "RANK" in os.environ:
    dist.init_process_group("gloo")
rank = int(os.environ.get("RANK", 0))
model = torch.nn.Linear(16, 16)
if dist.is_initialized():
    model = torch.nn.parallel.DistributedDataParallel(model)
first = torch.optim.AdamW(model.parameters())
def train_step(batch):
    loss = model(batch).square().mean()
    loss.backward()
    first.step()
    first.zero_grad()
    return loss
"""
TIMED = (
    COMMON
    + """
from dlperf_hpc import Timer
timer = Timer(batch_size=4, warmup=3, iterations=8, model="linear", precision="fp32")
data = torch.utils.data.TensorDataset(torch.randn(33, 16))
loader = torch.utils.data.DataLoader(data, batch_size=4)
for epoch in range(9):
    for (batch,) in timer(loader):
        loss = train_step(batch)
        timer.loss(loss)
        time.sleep(0.002 * rank)
print("seen", timer.samples_per_s)
if len(sys.argv) > 1:
    timer = Timer(batch_size=4, model="second")
    for (batch,) in timer(loader):
        if rank == 1:
            raise ValueError("rank 1 alone")
        train_step(batch)
dist.destroy_process_group()
"""
)
HOOKED = (
    COMMON
    + """
second = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
for _ in range(int(sys.argv[1])):
    train_step(torch.randn(4, 16))
    second.step()
if dist.is_initialized():
    dist.barrier()  # gloo's threads may abort a process whose peer has gone
    dist.destroy_process_group()
sys.exit(5 * rank)
"""
)
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
HOOK = ("-m", "dlperf_hpc.hook", "--batch-size", "4", "--warmup", "3", "--iterations", "8")


def run(place: Path, program: str, *words: str) -> subprocess.CompletedProcess[str]:
    """``python WORDS``, with ``program`` in the file that PROGRAM among them stands for."""
    (place / "train.py").write_text(program)
    told = ["train.py" if word == "PROGRAM" else word for word in words]
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")}
    env = {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *told], cwd=place, env=env, capture_output=True, text=True,
        timeout=120 * BUSY, check=False,
    )  # fmt: skip


def results(place: Path) -> list[RunResult]:
    return [result_of_log(path) for path in sorted(place.rglob("*.log"))]


def test_two_ranks_meet_and_a_failing_one_says_so(tmp_path: Path) -> None:
    done = run(tmp_path, TIMED, *TORCHRUN, "PROGRAM", "fail")
    assert done.returncode == 1
    timed, failed = results(tmp_path)
    window = timed.window
    assert window is not None and str(timed.run.case.topology) == "1n2g"
    # 33 samples in batches of 4, per rank: the ninth and the first ones of the next epoch.
    assert window.samples == 2 * (7 * 4 + 1) and window.ranks == 2
    assert window.elapsed_min_s is not None and window.elapsed_s >= window.elapsed_min_s > 0
    assert timed.facts["framework_name"] == "PyTorch"
    assert timed.facts["world"]["device_name"] == "cpu" and len(timed.facts["ranks"]) == 2
    assert timed.contradictions == () and window.loss_first != window.loss_last
    seen = set(re.findall(r"seen (\S+)", done.stdout))
    assert {float(text) for text in seen} == {timed.samples_per_s}
    record = read_record(Path(timed.log).with_suffix(".json"))
    assert record is not None and [len(row) for row in record["detail"]["rank_step_ms"]] == [8, 8]
    assert failed.status is Status.FAILED
    assert failed.reason == "rank 1: ValueError: rank 1 alone, after 0 iterations"


def test_the_hook_counts_the_first_optimizers_steps(tmp_path: Path) -> None:
    words = (*TORCHRUN, "--no-python", sys.executable, *HOOK, "PROGRAM", "20")
    done = run(tmp_path, HOOKED, *words)
    assert "exitcode  : 5" in done.stderr, done.stderr
    (told,) = results(tmp_path)
    assert told.window is not None and told.status is Status.OK
    assert (told.window.samples, told.window.ranks, told.window.optimizer_steps) == (64, 2, 8)
    assert told.warnings == ("SGD steps too: the steps of AdamW, the first, count",)
    assert f"dlperf_hpc: {told.samples_per_s:.2f} samples/s (2 processes, 1n2g)" in done.stderr


def test_the_hook_tells_of_too_few_steps(tmp_path: Path) -> None:
    done = run(tmp_path, HOOKED, *HOOK, "PROGRAM", "6")
    (told,) = results(tmp_path)
    assert done.returncode == 0 and told.status is Status.PARTIAL
    assert "ended after 6 iterations" in told.reason and "CUDA graphs" in told.reason


SWEEP = """
topologies = ["1n2g"]
repeats = 1
time_limit = "00:20:00"
[measure]
warmup = 3
iterations = 20
[case]
model = "linear"
batch_size = 2
accumulation = 2
device = "cpu"
[matrix]
framework = ["mine", "three"]
[program.three]
launch = "accelerate"
run = ["timed.py", "{batch_size}"]
[program.mine]
launch = "torchrun"
run = ["-m", "dlperf_hpc.hook", "--batch-size", "{batch_size*accumulation}", "train.py", "{steps}"]
[program.mine.read]
format = "nanogpt"
"""
PRINTS = (
    COMMON
    + """
for index in range(int(sys.argv[1])):
    begun = time.perf_counter()
    loss = train_step(torch.randn(4, 16))
    time.sleep(0.02)
    if rank == 0:
        ms = 1e3 * (time.perf_counter() - begun)
        print(f"iter {index}: loss {loss.item():.4f}, time {ms:.2f}ms, mfu -100.00%", flush=True)
dist.destroy_process_group()
"""
)


LINES = (
    COMMON
    + """
from dlperf_hpc import Timer
timer = Timer(batch_size=int(sys.argv[1]), accumulation=2)
for batch in timer(torch.randn(2, 16) for _ in range(99)):
    timer.loss(train_step(batch))
dist.destroy_process_group()
"""
)


def test_hook_and_timer_under_a_sweep(tmp_path: Path) -> None:
    """Their number is the run's, and that of the lines is the check; nothing is not as requested,
    though a supervisor stands for both processes, and an iteration of the hook's is a step."""
    place = Workplace(tmp_path, local_environment())
    place.write("train.py", PRINTS)
    place.write("timed.py", LINES)
    done = place.verb("sweep", place.write("hook.toml", SWEEP), "--cluster", "local")
    assert done.returncode == 0, done.stdout + done.stderr
    with open(place.directory("hook") / "report" / "runs.csv", encoding="utf-8") as file:
        row, three = sorted(csv.DictReader(file), key=lambda each: each["framework"])
    assert (row["basis"], row["rule"], row["optimizer_steps"]) == ("timer", "timer[3:23]", "20")
    assert (three["basis"], three["optimizer_steps"]) == ("timer", "10")
    flags = [each["flags"] for each in place.table("hook")]
    assert len(flags) == 2 and not any("not-as-asked" in each for each in flags)
    assert 0 < float(row["samples_per_s"]) < 8 / 0.02 > float(row["check_samples_per_s"]) > 0


def test_a_loss_is_kept_as_it_was(tmp_path: Path) -> None:
    """A program may add to it in place, and its graph must not be held."""
    timer = Timer(batch_size=1, warmup=1, iterations=3, logs=tmp_path)
    total = torch.zeros(())
    parameter = torch.ones((), requires_grad=True)
    for _ in timer(range(9)):
        total += 1
        timer.loss(total)
        assert timer._loss is None or timer._loss.data_ptr() != total.data_ptr()
        timer.loss(total * parameter)
        assert timer._loss is None or not timer._loss.requires_grad
    (told,) = results(tmp_path)
    assert told.window is not None and (told.window.loss_first, told.window.loss_last) == (2, 4)


class Training:
    """What transformers' Trainer does with its callbacks in one epoch."""

    def __init__(self, callback: TrainerTimer, **arguments: object) -> None:
        from transformers.trainer_callback import CallbackHandler, TrainerControl, TrainerState

        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.handler = CallbackHandler([callback], model, None, optimizer, None)
        self.state, self.control = TrainerState(), TrainerControl()
        told = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "n_gpu": 0,
                "dataloader_drop_last": False, **arguments}  # fmt: skip
        self.args = SimpleNamespace(**told)
        self.call("on_train_begin")

    def call(self, event: str) -> None:
        self.control = self.handler.call_event(event, self.args, self.state, self.control)

    def epoch(self, batches: int) -> int:
        for number in range(1, batches + 1):
            self.call("on_step_end" if number % 2 == 0 else "on_substep_end")
            if self.control.should_training_stop:
                return number
        self.call("on_epoch_end")
        return batches


@pytest.mark.parametrize(
    ("batches", "arguments", "status", "reason"),
    [
        (20, {}, "ok", ""),
        (6, {"dataloader_drop_last": True}, "ok", ""),
        (6, {}, "failed", "an epoch ended within the window"),
        (20, {"n_gpu": 2}, "failed", "one process drives 2 GPUs"),
        (2, {}, "partial", "ended after 4 iterations"),
    ],
)
def test_the_trainers_callback(
    tmp_path: Path, batches: int, arguments: dict[str, object], status: str, reason: str
) -> None:
    training = Training(TrainerTimer(warmup=4, iterations=6, logs=tmp_path), **arguments)
    done = [training.epoch(batches) for _ in range(2) if not training.control.should_training_stop]
    training.call("on_train_end")
    (told,) = results(tmp_path)
    assert told.status.value == status and told.reason.find(reason) >= 0
    assert sum(done) == (4 if status == "partial" else 10)
    if status == "ok":
        assert told.window is not None and told.run.case.framework == "trainer"
        assert (told.window.samples, told.window.optimizer_steps) == (24, 3)
        assert (told.window.accumulation, told.window.global_batch) == (2, 8)
