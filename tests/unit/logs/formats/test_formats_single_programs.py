"""Programs with a form of line of their own: from real lines to a speed.

The lines are quoted from the sources that each test names, at most with their ends left out.
"""

# ruff: noqa: E501 - a log's line is as long as it is

from __future__ import annotations

import pytest
from places import ROOT
from scanned_lines import facts, read, reading, run

from dlperf_hpc.logs.gather import gather
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.logs.scan.search import ScanCache
from dlperf_hpc.logs.scanned import Averaging, Counter

STATED = {"nodes": 1, "gpus_per_node": 1}

# espnet/espnet issue 2674, three lines in a row
ESPNET = """\
[PC] 2020-11-11 16:58:28,197 (trainer:486) INFO: 17epoch:train:4501-4875batch: iter_time=0.001, forward_time=0.005, loss=1.281, backward_time=0.005, optim_step_time=1.970e-04, lr_0=0.100, train_time=0.014
[PC] 2020-11-11 16:58:33,417 (trainer:486) INFO: 17epoch:train:4876-5250batch: iter_time=0.001, forward_time=0.005, loss=1.310, backward_time=0.005, optim_step_time=2.044e-04, lr_0=0.100, train_time=0.014
[PC] 2020-11-11 16:58:38,489 (trainer:486) INFO: 17epoch:train:5251-5625batch: iter_time=0.001, forward_time=0.005, loss=1.287, backward_time=0.005, optim_step_time=1.966e-04, lr_0=0.100, train_time=0.013""".splitlines()


def test_espnets_clock_counts_the_batches_of_the_first_epoch() -> None:
    found = reading(*ESPNET, ESPNET[0].replace("17epoch", "18epoch"))
    assert [(step.iteration, step.loss) for step in found.steps] == [
        *((4875, 1.281), (5250, 1.31), (5625, 1.287))
    ]
    result = run(ESPNET, "default", **STATED, batch_size=1)
    assert result.samples_per_s == pytest.approx(375 / (33.417 - 28.197))


# modelscope/FunASR's documentation
FUNASR = "[bach-gpu011024008134] 2023-04-23 18:59:48,924 (trainer:777) INFO: 2epoch:train:1-50batch:50num_updates: iter_time=0.008, forward_time=0.302, loss_att=0.186, acc=0.942, loss_pre=0.005, loss=0.192, backward_time=0.231, train_time=0.753"


def test_funasr_prints_espnets_line_with_the_updates_behind_the_batches() -> None:
    (step,) = reading(FUNASR).steps
    assert (step.iteration, step.loss, step.stamp is None) == (50, 0.192, False)


# deepspeedai/DeepSpeedExamples issue 444
CHAT = """\
epoch: 0|step: 3183|ppo_ep: 1|act_loss: 30.921875|cri_loss: 30.515625|unsuper_loss: 0.0
average reward score: -7.80859375
-------------------------------------------------------------------------------------
|E2E latency=2.14s |Gather latency=0.00s (0.00%) |Generate time=1.62s (75.39%) |Training time=0.42s (19.74%) |Others=0.10 (4.87%)|CurSamplesPerSec=1.87 |AvgSamplesPerSec=1.95
epoch: 0|step: 3184|ppo_ep: 1|act_loss: inf|cri_loss: inf|unsuper_loss: 0.0
|E2E latency=2.16s |Gather latency=0.00s (0.00%) |Generate time=1.62s (75.39%) |Training time=0.42s (19.74%) |Others=0.10 (4.87%)|CurSamplesPerSec=1.85 |AvgSamplesPerSec=1.95""".splitlines()


def test_deepspeed_chats_speed_is_that_of_the_step_above_it() -> None:
    found = read(*CHAT)
    (steps,) = (each.steps for each in found.readings)
    assert [(step.iteration, step.printed) for step in steps] == [(3184, 1.87), (3185, 1.85)]
    assert not found.notes, "SamplesPerSec= stands in lines of DeepSpeed's engine too"


def test_deepspeed_chats_later_lines_state_the_batch() -> None:
    """As dschat/utils/perf.py of DeepSpeedExamples prints them; no real line was seen."""
    lines = [
        "Epoch: 0 | Step: 7 | PPO Epoch: 1 | Actor Loss: 0.25 | Critic Loss: 0.5 | Unsupervised Loss: 0.0",
        "End-to-End => Latency: 8.00s, TFLOPs: 2.12, Samples/sec: 8.00, Time/seq 0.12s, Batch Size: 64, Total Seq. Length: 512",
        "Generation => Latency: 5.26s, Per-token Latency 20.55 ms, TFLOPs: 0.92, BW: 120.00 GB/sec, Answer Seq. Length: 256",
    ]
    (step,) = reading(*lines).steps
    assert (step.iteration, step.printed, step.loss) == (8, 8.0, 0.25)
    assert facts(*lines) == {"global_batch": 64}


# rasbt/LLMs-from-scratch ch05/10_llm-training-speed, as a reader's notes quote it
SCRATCH = """\
Ep 1, Step 000000, Train: 9.535, Val: 9.609, Step tok/sec: 7238, Avg tok/sec: 0
Ep 1, Step 000015, Train: 6.201, Val: 6.152, Step tok/sec: 12545, Avg tok/sec: 12545
Ep 1, Step 000030, Train: 5.663, Val: 5.688, Step tok/sec: 12490, Avg tok/sec: 12517""".splitlines()


def test_llms_from_scratch_has_evaluations_in_its_time_and_says_so() -> None:
    """Its mean since the second step counts, whatever lies between two lines."""
    found = read(*SCRATCH)
    (steps,) = (each.steps for each in found.readings)
    assert [(step.iteration, step.printed) for step in steps] == [(16, 12545.0), (31, 12517.0)]
    (note,) = found.notes
    assert note.line == 1 and "evaluation" in note.text


# InternLM/xtuner's documentation of V1
XTUNER = "[XTuner][RANK 0][2025-09-08 03:04:13][INFO] Step 2/13 data_time: 0.0065 lr: 0.000060 time: 0.0515 text_tokens: 3964.0 total_loss: 10.779, reduced_llm_loss: 10.779 max_memory: 7.06 GB reserved_memory: 8.79 GB grad_norm: 9.420 tgs: 76934.8 e2e_tgs: 11936.3"


def test_xtuners_mean_over_the_whole_run_is_read() -> None:
    """The mean has the time of the data in it, ``tgs`` of the step alone has not."""
    (step,) = reading(XTUNER).steps
    assert (step.iteration, step.printed, step.loss) == (2, 11936.3, 10.779)
    assert step.memory_mb == pytest.approx(7.06 * 1024)
    assert not read(XTUNER[: XTUNER.index("e2e_tgs: 1193") + 12]).readings, "a cut number"


def test_a_line_of_litgpts_on_tpus_has_no_loss() -> None:
    """Lightning-AI/litgpt issue 519, two lines in a row."""
    lines = [
        "[rank: 0] iter 34 step 35: iter time: 3372.20ms (optimizer.step)",
        "[rank: 0] iter 35 step 36: iter time: 3369.29ms (optimizer.step)",
    ]
    found = reading(*lines)
    assert [(step.iteration, step.printed, step.loss) for step in found.steps] == [
        *((34, None, None), (35, 3369.29, None))
    ]


# microsoft/Swin-Transformer issue 183
SWIN = "[2022-03-14 09:05:16 swin_v1_tiny_patch4_window7_224_WindowAttention] (main.py 226): INFO Train: [14/300][250/1251]\teta 0:10:52 lr 0.000710\ttime 0.6408 (0.6516)\tloss 6.5584 (6.3074)\tgrad_norm 6.5613 (10.6225)\tmem 14764MB"
# MzeroMiko/VMamba issue 273, which is made of it
VMAMBA = "[2024-07-27 03:37:34 vssm1_high_tiny_gradacc2] (main.py 295): INFO Train: [30/300][210/2859]\teta 0:25:26 lr 0.000872\t wd 0.0500\ttime 0.4205 (0.5761)\tdata time 0.0010 (0.1443)\tmodel time 0.4195 (0.4317)\tloss 1.9993 (1.9758)\tgrad_norm 2.1558 (2.5588)\tloss_scale 32768.0000 (32768.0000)\tmem 16138MB"


@pytest.mark.parametrize(
    ("line", "done", "mean", "memory"),
    [(SWIN, 251, 0.6516, 14764.0), (VMAMBA, 211, 0.5761, 16138.0)],
)
def test_swins_mean_is_that_since_the_epoch_began(
    line: str, done: int, mean: float, memory: float
) -> None:
    found = reading(line)
    (step,) = found.steps
    assert (step.iteration, step.printed, step.memory_mb) == (done, mean, memory)
    assert found.printed.averaging is Averaging.RUNNING and found.counter is Counter.MICRO_STEPS


# --- nnU-Net

NNUNET = ROOT / "tests" / "unit" / "logs" / "formats" / "nnunet.log"


def test_an_epoch_of_nnunets_is_250_iterations_of_its_plans_batch() -> None:
    (result,) = gather([NNUNET], rule("default"), STATED, ScanCache(None)).results
    assert result.samples_per_s == pytest.approx(250 * 12 / 100)
    assert "evaluation" in " ".join(result.warnings)
    lines = NNUNET.read_text(encoding="utf-8").splitlines()
    printed = run(lines, "printed[250:500]", **STATED)
    assert printed.samples_per_s == pytest.approx(250 * 12 / 100)


def test_an_epochs_time_of_another_program_is_none_of_nnunets() -> None:
    epoch = "2026-01-05 10:00:00: Epoch 3"
    assert not read(epoch, "2026-01-05 10:00:09: Epoch time: 9.00 s").readings
    assert not read("2026-01-05 10:00:09.000001: Epoch time: 9.00 s").readings, "of no epoch"


# --- MetricLogger's: RF-DETR

# The arguments of a real log, shortened
RFDETR = "Namespace(num_classes=6, grad_accum_steps=2, amp=True, lr=0.0001, batch_size=8, weight_decay=0.0001, epochs=10, num_queries=300, group_detr=13, two_stage=True, world_size=1, dist_url='env://')"
BATCH = "Epoch: [{}]  [{:2d}/61]  eta: 0:00:50  lr: 0.000100  loss: 9.8 (10.1)  time: {:.4f}  data: 0.0121  max mem: 5243"


def test_an_iteration_of_rf_detrs_is_an_optimizer_step() -> None:
    """61 steps an epoch, 0.8 s each; the first of an epoch takes 5 s, as its data loader starts."""
    lines = [BATCH.format(e, n, 0.8 if n else 5.0) for e in range(3) for n in range(0, 61, 10)]
    found = reading(RFDETR, *lines)
    assert found.counter is Counter.OPTIMIZER_STEPS
    result = run([RFDETR, *lines], "default")
    assert result.samples_per_s == pytest.approx(2 * 8 / 0.8)


def test_an_evaluation_between_epochs_is_named() -> None:
    test = "Test:  [ 0/10]  eta: 0:00:05  loss: 9.8 (10.1)  time: 0.5  data: 0.01  max mem: 5243"
    found = reading(RFDETR, BATCH.format(0, 60, 0.8), test, BATCH.format(1, 20, 0.8))
    assert [(pause.what, pause.after, pause.printed) for pause in found.pauses] == [
        ("evaluation", 61, False)
    ]


# --- diffusers: a bar stands on the line of a validation

BAR = "Steps: {:3d}%|###       | {}/1000 [{:02d}:{:02d}<37:50,  2.00s/it, loss=0.094, lr=1]"
SETTINGS = """\
12/04/2023 08:53:53 - INFO - __main__ - ***** Running training *****
12/04/2023 08:53:53 - INFO - __main__ -   Total train batch size (w. parallel, distributed & accumulation) = 3
12/04/2023 08:53:53 - INFO - __main__ -   Gradient Accumulation steps = 1
12/04/2023 08:53:53 - INFO - __main__ -   Total optimization steps = 1000""".splitlines()


def test_a_validation_on_the_line_of_a_bar_is_a_pause() -> None:
    """2 s a step; the validation behind step 60 takes 100 s."""
    lines = []
    for n in range(10, 151, 10):
        seconds = 2 * n + 100 * (n > 60)
        text = BAR.format(n // 10, n, *divmod(seconds, 60))
        behind = "12/04/2023 08:54:14 - INFO - __main__ - Running validation... " * (n == 60)
        lines.append(text + behind)
    result = run([*SETTINGS, *lines], "default", nodes=1, gpus_per_node=1)
    assert result.samples_per_s == pytest.approx(3 / 2, rel=0.02)
    assert "evaluation" in " ".join(result.warnings)
