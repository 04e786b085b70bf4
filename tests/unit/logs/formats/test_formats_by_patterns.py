"""Formats that ``pattern_formats.json`` tells by patterns: from real lines to a speed.

The lines are quoted from the sources that each test names, at most with their ends left out.
"""

# ruff: noqa: E501 - a log's line is as long as it is

from __future__ import annotations

import json
import re

import pytest
from places import ROOT
from scanned_lines import facts, read, reading, run

from dlperf_hpc.logs.formats import format_named
from dlperf_hpc.logs.gather import gather
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.logs.scan.search import ScanCache
from dlperf_hpc.logs.scanned import Averaging, Scope, Stamps, Unit
from dlperf_hpc.model.result import RunResult, Status

TABLE = ROOT / "dlperf_hpc" / "logs" / "pattern_formats.json"
NAMES = sorted(json.loads(TABLE.read_text(encoding="utf-8")))


def steps(*lines: str) -> list[tuple[int, float | None, float | None]]:
    """Iteration, printed speed and loss of each step in these lines."""
    return [(step.iteration, step.printed, step.loss) for step in reading(*lines).steps]


# --- OLMo and OLMo-core

# A reader's notes on two nodes of eight GPUs that train OLMo-1B, batches of 4 194 304 tokens.
OLMO = """\
[2024-04-17 09:42:26] INFO     [olmo.train:816, rank=0] [step=1/739328]
    train/CrossEntropyLoss=11.25
    throughput/total_tokens=4,194,304
[2024-04-17 09:42:38] INFO     [olmo.train:816, rank=0] [step=20/739328]
    train/CrossEntropyLoss=10.73
    throughput/total_tokens=83,886,080
    throughput/device/tokens_per_second=45,538
    throughput/device/batches_per_second=0.0869
[2024-04-17 09:46:30] INFO     [olmo.train:816, rank=0] [step=40/739328]
    train/CrossEntropyLoss=10.64
    throughput/total_tokens=167,772,160
    throughput/device/tokens_per_second=45,368
    throughput/device/batches_per_second=0.0865""".splitlines()


def test_olmos_speed_is_that_of_the_head_above_it() -> None:
    assert steps(*OLMO) == [(20, 45538.0, 10.73), (40, 45368.0, 10.64)]
    assert reading(*OLMO).stamps is Stamps.ABSOLUTE
    # The lines' own two figures: 45368 / 0.0865 tokens of a device in a batch, of 8 devices.
    assert pytest.approx(4194304, rel=1e-3) == 8 * 45368 / 0.0865


def test_olmos_mean_over_20_batches_is_read_at_every_20th_alone() -> None:
    assert steps(*[line.replace("[step=40/", "[step=41/") for line in OLMO]) == steps(*OLMO)[:1]
    short = [line.replace("step=20/", "step=2/") for line in OLMO[:8]]
    assert steps(*short) == [(2, None, 10.73)], "its clock shows how long the log is"
    result = run(short, "default", nodes=2, gpus_per_node=8)
    assert result.status is Status.PARTIAL and "the log ends at iteration 2" in result.reason


def test_an_evaluation_of_olmos_is_no_step() -> None:
    evaluation = [
        "[2024-04-17 09:50:00] INFO     [olmo.train:970, rank=0] [eval_step=20/40]",
        "[2024-04-17 09:50:01] INFO     [olmo.train:816, rank=0] [step=60/739328]",
        "    eval/all/CrossEntropyLoss=9.5",
    ]
    assert steps(*OLMO, *evaluation) == steps(*OLMO)
    assert not read(*OLMO[6:7]).readings, "a speed without its head is of no iteration"


def test_a_head_of_another_rank_is_no_head() -> None:
    """A launcher's labels say whose the lines are; each rank of a debugging run may print."""
    own = [f"[rank0]: {line}" for line in OLMO]
    other = f"[rank1]: {OLMO[3]}".replace("step=20/", "step=40/")
    assert steps(*own) == steps(*OLMO)
    assert steps(*own[:5], other, *own[5:]) == steps(*OLMO)[1:]


def test_olmo_cores_speed_is_of_one_step() -> None:
    """src/olmo_core/train/callbacks/console_logger.py; the head is quoted."""
    head = "2026-08-08 12:01:00 INFO [olmo_core.train.callbacks.console_logger:68] [step=100/2000,epoch=0,eta=5h11m]"
    lines = [
        head,
        "    train/CE loss=6.2341",
        "    throughput/device/TPS=17,155",
        "    throughput/device/TPS (actual avg)=16,902",
        head.replace("=100/", "=101/"),
        "    train/CE loss=6.1875",
        "    throughput/device/TPS (actual avg)=16,902",
    ]
    assert steps(*lines) == [(100, 17155.0, 6.2341)]
    assert reading(*lines).printed.averaging is Averaging.LAST_ONE
    assert reading(*lines).stamps is Stamps.NONE, "lines of several steps come together"


# --- Composer

# MPT-30B on two nodes, quoted in a guide to Composer under Slurm; batches of 1024 samples.
COMPOSER = """\
num_gpus_per_node: 8
num_nodes: 2
[epoch=1][batch=20/500]:
         Train time/batch: 19
         Train time/sample: 19456
         Train trainer/device_train_microbatch_size: 8
         Train throughput/batches_per_sec: 0.0027
         Train throughput/samples_per_sec: 2.7330
         Train throughput/device/batches_per_sec: 0.0002
         Train throughput/device/samples_per_sec: 0.1708
         Train throughput/tokens_per_sec: 20082.8418
         Train time/train: 0.5249""".splitlines()


def test_composers_batches_are_indices_and_samples_those_of_all_devices() -> None:
    assert steps(*COMPOSER) == [(20, 2.733, None)]
    assert facts(*COMPOSER) == {"nodes": 2, "gpus_per_node": 8}
    assert pytest.approx(2.733, rel=1e-3) == 16 * 0.1708


def test_an_evaluation_of_composers_and_a_first_batch_are_no_steps() -> None:
    without = [line for line in COMPOSER if "throughput" not in line]
    evaluation = ["[Eval batch=3/3] Eval on eval data:", "\t Eval metrics/eval/Loss: 0.1501"]
    assert steps(*without, *evaluation, *COMPOSER) == steps(*COMPOSER)


# --- verl

VERL = [
    # a project made of verl; verl's docs of a disaggregated mode; docs of its agent loop
    "step:2 - training/epoch:1.000 - perf/total_num_tokens:431047.000 - perf/time_per_step:129.426 - perf/throughput:3330.450",
    "step:1 - actor/entropy:0.28172561526298523 - perf/total_num_tokens:1345358 - perf/time_per_step:1065.5507174460217 - perf/throughput:631.2970269611557 - perf/throughput_all_gpus:1262.5940539223113",
    "\x1b[36m(TaskRunner pid=267532)\x1b[0m step:7 - timing_s/step:93.52434759191237 - perf/total_num_tokens:4388173 - perf/time_per_step:93.52434759191237 - perf/throughput:2932.5070910595373",
]


@pytest.mark.parametrize(("line", "devices"), [*zip(VERL, (1, 2, 16))])
def test_verls_tokens_are_those_of_one_gpu_without_padding(line: str, devices: int) -> None:
    (step,) = reading(line).steps
    tokens, seconds = re.findall(r"(?:total_num_tokens|time_per_step):([0-9.]+)", line)
    assert step.printed == pytest.approx(float(tokens) / float(seconds) / devices, rel=1e-6)
    printed = reading(line).printed
    assert (printed.unit, printed.scope) == (Unit.UNPADDED_TOKENS_PER_S, Scope.DEVICE)


def test_a_step_of_verls_with_a_validation_or_a_checkpoint_in_it_has_no_speed() -> None:
    tested = "step:3 - timing_s/testing:21.206 - timing_s/step:30.030646292492747 - perf/total_num_tokens:18603 - perf/time_per_step:30.030646292492747 - perf/throughput:619.4671875793262"
    saved = tested.replace("timing_s/testing", "timing_s/save_checkpoint")
    before = "step:0 - val-core/openai/gsm8k/reward/mean@1:0.25"
    assert steps(before, *VERL, tested, saved) == steps(*VERL)


def test_a_step_of_verls_with_a_thousand_figures_is_read() -> None:
    figures = "".join(f" - actor/figure_{n}:0.28172561526298523" for n in range(1000))
    assert steps(VERL[0].replace(" - training/epoch:1.000", figures)) == steps(VERL[0])


# --- InternEvo

INTERNEVO = [
    # InternLM doc/usage.md; an acceptance test of 2024
    "2023-07-07 12:29:01,636\tINFO train.py:323 in record_current_batch_training_metrics -- tflops=189.83371103277346,step=1,loss=11.613704681396484,tgs (tokens/gpu/second)=4274.45,lr=6.000000000000001e-07,loss_scale=65536.0,grad_norm=65.150786641452,micro_num=4,num_consumed_tokens=262144",
    "2024-08-23 19:25:04,187 INFO pipeline.py:663 in record_current_batch_training_metrics -- tflops=252.44732125406708 step=199 loss=0.00042401382233947515 real_tgs=2055.59 tgs (tokens/gpu/second)=2511.37 tgs/last_tgs_1=2511.37 tgs/tgs_all=2481.83 lr=1e-05 loss_scale=65536.0",
]


def test_internevos_steps_are_indices_and_its_tokens_those_of_one_gpu() -> None:
    assert steps(*INTERNEVO) == [
        (2, 4274.45, 11.613704681396484),
        (200, 2511.37, 0.00042401382233947515),
    ]
    # 131072 tokens of 8 GPUs in the 3.834 s since the line before, which the same page quotes.
    assert pytest.approx(4274.45, rel=1e-3) == 131072 / 8 / 3.834


def test_a_validation_of_internevos_is_no_step() -> None:
    other = "2023-07-07 12:40:00,000\tINFO evaluation.py:145 in evaluate_on_val_dls -- Validation on en: step=1,val_loss=9.5"
    assert steps(other, *INTERNEVO) == steps(*INTERNEVO)


# --- MindFormers

MINDFORMERS = "2025-04-07 15:34:{}.173 - [mindformers/core/callback/callback.py:529] - INFO - {{ Epoch:[{:3d}/  2], step:[{:5d}/   19], loss: 10.633, per_step_time: 1752ms, lr: 1e-05, overflow cond: False, loss_scale: 1.0, global_norm: [1 508834], train_throughput_per_npu: 170.738T"


def test_mindformers_steps_go_on_over_epochs() -> None:
    """A tutorial of MindSpore's quotes such lines."""
    lines = [
        MINDFORMERS.format(n, epoch, step)
        for n, epoch, step in ((29, 1, 2), (31, 1, 19), (33, 2, 1))
    ]
    assert [step[0] for step in steps(*lines)] == [2, 19, 20]
    assert steps(lines[0]) == [(2, 1752.0, 10.633)]
    means = lines[0].replace("loss: 10.633", "loss:[10.633/10.641]")
    assert steps(means) == steps(lines[0])


def test_mindformers_lines_of_dynamic_graphs() -> None:
    line = "{ step:[    2/   10], loss:  11.755612, per_step_time:    710ms, load_balancing_loss:   1.106543, lr: 1.000000e-05, grad_norm:  19.926786, throughput:  25.92T }"
    assert steps(line) == [(2, 710.0, 11.755612)]


# --- fairseq

FAIRSEQ = [
    # fairseq issue 2338; a README of a fork with DeepSpeed, whose first figure is 0
    "2020-07-17 07:11:02 | INFO | train_inner | epoch 001:   2800 / 160368 loss=9.255, ppl=611.12, wps=57.3, ups=0.04, wpb=1613, bsz=80, num_updates=2800, lr=2.8e-05, gnorm=3.23, train_wall=13, wall=1236",
    "2020-07-17 07:11:31 | INFO | train_inner | epoch 001:   2900 / 160368 loss=8.979, ppl=504.73, wps=53.5, ups=0.04, wpb=1504, bsz=64, num_updates=2900, lr=2.9e-05, gnorm=2.39, train_wall=13, wall=1265",
]
FAIRSEQ_JSON = [
    '2021-03-08 12:31:36 | INFO | train_inner | {"epoch": 1, "update": 0.0, "loss": "16.475", "ppl": "91120.8", "wps": "0", "ups": "0", "wpb": "16384", "bsz": "8", "num_updates": "1", "lr": "2e-05", "gnorm": "20.751"}',
    '2021-03-08 12:32:33 | INFO | train_inner | {"epoch": 1, "update": 0.0, "loss": "16.446", "ppl": "89281.6", "wps": "288.7", "ups": "0.02", "wpb": "16384", "bsz": "8", "num_updates": "2", "lr": "2e-05"}',
]


def test_fairseqs_words_are_those_of_all_devices_without_padding() -> None:
    assert steps(*FAIRSEQ) == [(2800, 57.3, 9.255), (2900, 53.5, 8.979)]
    assert steps(*FAIRSEQ_JSON) == [(1, None, 16.475), (2, 288.7, 16.446)]
    assert reading(*FAIRSEQ).printed.unit is Unit.UNPADDED_TOKENS_PER_S
    hydra = [
        line.replace(" | INFO | train_inner | ", ",123][train_inner][INFO] - ")
        for line in FAIRSEQ_JSON
    ]
    assert steps(*hydra) == steps(*FAIRSEQ_JSON)
    assert pytest.approx(288.7, rel=0.01) == 16384 / 57, "a batch's words, by the clock"


def test_a_validation_of_fairseqs_and_the_mean_of_its_epoch_are_no_steps() -> None:
    others = [
        '2021-01-12 14:37:14 | INFO | valid | {"epoch": 3, "valid_loss": "8.751", "valid_wps": "202259", "valid_num_updates": "300"}',
        "2020-07-17 07:12:00 | INFO | train | epoch 001 | loss 8.9 | wps 57 | ups 0.04 | wpb 1504 | bsz 64 | num_updates 2900",
    ]
    assert steps(*FAIRSEQ, *others) == steps(*FAIRSEQ)


# --- detection

MASKRCNN = "2019-05-27 10:48:54,461 maskrcnn_benchmark.trainer INFO: eta: 0:17:37  iter: 87940  loss: 0.6097 (0.9191)  loss_classifier: 0.1472 (0.3151)  loss_rpn_box_reg: 0.0148 (0.0678)  time: 0.5063 (0.5132)  data: 0.0062 (0.0078)  lr: 0.000025  max mem: 4358"


def test_maskrcnn_benchmarks_time_is_the_mean_since_the_start() -> None:
    """maskrcnn-benchmark issue 825: the eta of 0:17:37 is that of 2060 iterations of 90 000."""
    assert steps(MASKRCNN) == [(87940, 0.5132, 0.6097)]
    assert reading(MASKRCNN).printed.averaging is Averaging.RUNNING
    assert pytest.approx(17 * 60 + 37, abs=1) == 2060 * 0.5132
    assert facts("2019-05-27 maskrcnn_benchmark INFO: Using 8 GPUs", MASKRCNN) == {"devices": 8}


def test_a_resumed_run_of_maskrcnn_benchmarks_has_no_printed_speed() -> None:
    """Its means begin anew at the checkpoint, of which the lines say nothing."""
    lines = [
        MASKRCNN.replace("87940", str(n)).replace("10:48", f"10:{n // 20 - 4980:02d}")
        for n in range(100000, 100221, 20)
    ]
    resumed = run(lines, "printed[100020:100120]", nodes=1, gpus_per_node=8, global_batch=16)
    assert (
        resumed.samples_per_s is None
        and "at which iteration its printed averages begin" in resumed.reason
    )


OPENPCDET = "2023-01-05 16:34:49,377   INFO  Train:    1/3 ( 33%) [  49/323 ( 15%)]  Loss: 36.77 (81.7)  LR: 1.351e-04  Time cost: 00:15/01:25 [00:15/04:48]  Acc_iter 50          Data time: 0.00(0.02)  Forward time: 0.31(0.29)  Batch time: 0.31(0.35)"


def test_openpcdets_iterations_are_those_over_all_epochs() -> None:
    """OpenPCDet pull request 1229, but for the mean of the batch's time. The time is that of one
    batch of 50: not read."""
    assert steps(OPENPCDET) == [(50, None, 36.77)]
    batch = "2023-01-05 16:34:30,000   INFO  Training in distributed mode : total_batch_size: 32"
    assert facts(batch, OPENPCDET) == {"global_batch": 32}


MMCV_JSON = '{"mode": "train", "epoch": 1, "iter": 20, "lr": 0.05, "memory": 5082, "data_time": 0.48623, "top1_acc": 0.0, "loss_cls": 5.7752, "loss": 5.7752, "grad_norm": 2.36381, "time": 0.84397}'


def test_mmcvs_json_has_the_figures_of_its_text() -> None:
    """A script that plots such files quotes the line."""
    assert steps(MMCV_JSON) == [(20, 0.84397, 5.7752)]
    (step,) = reading(MMCV_JSON).steps
    assert (step.memory_mb, step.lr) == (5082.0, 0.05)


def test_a_validation_of_mmcvs_and_a_later_epoch_are_no_steps() -> None:
    validation = MMCV_JSON.replace('"train"', '"val"')
    later = MMCV_JSON.replace('"epoch": 1', '"epoch": 2')
    assert steps(validation, MMCV_JSON, later) == steps(MMCV_JSON)
    assert [note.partly for note in read(MMCV_JSON, later).notes] == [True]


# --- language models on PyTorch and Neuron


def test_the_speed_of_aws_fsdp_samples_is_that_of_all_devices() -> None:
    """README of awsome-distributed-training, 32 GPUs."""
    lines = [
        "0: 2023-11-29 04:19:48 I [train.py:122] Batch 0 Loss: 11.6533041, Speed: 3.98 samples/sec, lr: 0.000006",
        "0: 2023-11-29 04:19:54 I [train.py:122] Batch 1 Loss: 11.620493, Speed: 10.72 samples/sec, lr: 0.000013",
    ]
    assert steps(*lines) == [(1, 3.98, 11.6533041), (2, 10.72, 11.620493)]
    assert pytest.approx(10.72, rel=0.01) == 64 / 6, "two samples of each GPU, by the clock"
    other = "0: 2023-11-29 04:25:00 I [train.py:140] Batch 99 Validation loss: 9.5"
    assert steps(*lines, other) == steps(*lines)


def test_automodels_speed_is_that_of_all_devices() -> None:
    """Automodel pull request 3473, 8 GPUs; steps are indices."""
    line = "2026-08-10 15:55:20 | INFO | root | step 9 | epoch 0 | loss 0.6974 | grad_norm 1.5436 | lr 1.00e-05 | mem 24.90 GiB | tps 11278.56(1409.82/gpu) | num_label_tokens 21541"
    assert steps(line) == [(10, 11278.56, 0.6974)]
    assert pytest.approx(11278.56) == 8 * 1409.82
    other = '2026-06-26 03:59:32 | INFO | root | [val] name "default" | step 9 | epoch 0 | loss 1.0574 | lr 8.45e-05 | num_label_tokens 5'
    assert steps(line, other) == steps(line)


@pytest.mark.parametrize(
    ("figure", "rate"), [("209.63", 209.63), ("1.33K", 1330.0), ("1.25M", 1.25e6)]
)
def test_picotrons_short_numbers(figure: str, rate: float) -> None:
    """A fork's README; the last of the ranks prints under pipeline parallelism."""
    line = f"[rank 2] Step: 2     | Loss: 8.5469 | Global batch size:   2.05K | Tokens/s:   1.68K | Tokens/s/GPU: {figure:>7s} | Tokens:   4.10K | MFU:  0.07% | Memory usage:   1.75GB"
    assert steps(line) == [(2, rate, 8.5469)]
    assert not read(line[: line.index(figure) + len(figure)]).readings, "cut behind the number"


THUNDER = """\
iter 0: loss 10.5000, iter time: 73490.96ms, t: 4096
iter 44: loss 4.6250, iter time: 385.25ms, t: 4096
Seq Length: 4096
Micro BS: 1
Global BS: 1
Average iter time: 383.11 ms
Tokens/s: 10690.01
Tokens/s/GPU: 10690.01""".splitlines()


def test_thunders_settings_stand_behind_its_lines() -> None:
    """lightning-thunder's docs."""
    assert steps(*THUNDER) == [(1, 73490.96, 10.5), (45, 385.25, 4.625)]
    assert facts(*THUNDER) == {"seq_len": 4096, "batch_size": 1, "global_batch": 1}
    (total,) = reading(*THUNDER).totals
    assert (total.value, total.unit) == (10690.01, Unit.TOKENS_PER_S)
    assert pytest.approx(10690.01, rel=1e-3) == 4096 / 0.38311


def test_neurons_moving_average_is_read_at_every_tenth_step() -> None:
    """A workshop's page quotes the steps 14 to 16."""
    line = "[0]:LOG Wed Dec 21 00:12:27 2022 - (0, {}) step_loss : 11.2500 learning_rate : 2.80e-06 throughput : 6497.86"
    assert steps(line.format(14), line.format(20)) == [(20, 6497.86, 11.25)]
    assert not read(line.format(20)[:-1]).readings, "cut within the number"


def test_colossal_ais_total_is_of_all_devices() -> None:
    line = (
        "Throughput: 12.34 samples/sec, TFLOPS per GPU by Megatron: 154.20, TFLOPS per GPU: 161.30"
    )
    (total,) = reading(line).totals
    assert (total.value, total.unit, total.scope) == (12.34, Unit.SAMPLES_PER_S, Scope.ALL)
    assert not read("Throughput: 12.34 samples/sec, latency 5 ms").readings


# --- evaluations and checkpoints


def counted(name: str, line: str) -> list[tuple[int, str, bool]]:
    """The pauses of a sample with this line behind the iteration 60: after which iteration, what,
    and whether the printed speeds have it in their time."""
    text = (ROOT / "tests" / "unit" / "logs" / "formats" / f"{name}.log").read_text()
    lines = text.splitlines()
    known = {step.line: step.iteration for step in reading(*lines).steps}
    at = next(number for number, done in known.items() if done == 60)
    return [
        (each.after, each.what, each.printed)
        for each in reading(*lines[:at], line, *lines[at:]).pauses
    ]


@pytest.mark.parametrize(
    ("name", "line", "expected"),
    [
        (
            "fairseq",
            '2026-01-05 10:01:00 | INFO | fairseq_cli.train | begin validation on "valid" subset',
            [("evaluation", True)],
        ),
        (
            "fairseq",
            "2026-01-05 10:01:00 | INFO | fairseq_cli.train | begin save checkpoint",
            [("checkpoint", True)],
        ),
        (
            "olmo",
            "[2026-01-05 10:01:00] INFO     [olmo.train:945, rank=0] Running evaluation for 'all'...",
            [("evaluation", False)] * 2,
        ),
        (
            "aws_fsdp",
            "2026-01-05 10:01:00 I [train.py:140] Batch 59 Validation loss: 9.5",
            [("evaluation", False)],
        ),
        (
            "mindformers",
            "2026-01-05 10:01:00,000 - [mindformers/core/callback/callback.py:700] - INFO - ......Saving ckpt......",
            [("checkpoint", False)],
        ),
        (
            "maskrcnn_benchmark",
            "2026-01-05 10:01:00,000 maskrcnn_benchmark.inference INFO: Start evaluation on coco dataset(5000 images).",
            [("evaluation", True)],
        ),
        (
            "automodel",
            '2026-01-05 10:01:00 | INFO | root | [val] name "b" | step 59 | epoch 0 | loss 1.0',
            [("evaluation", True)] * 2,
        ),
    ],
)
def test_pauses_that_the_lines_tell_of(
    name: str, line: str, expected: list[tuple[str, bool]]
) -> None:
    assert counted(name, line) == [(60, *each) for each in expected]


def test_a_line_of_fairseqs_with_a_validation_in_its_time_does_not_count() -> None:
    line = "2026-01-05 10:{:02d}:00 | INFO | train_inner | epoch 001: {:6d} / 20368 loss=8.5, wps={}, ups=1, wpb=4096, bsz=128, num_updates={}, lr=1e-05"
    validation = (
        '2026-01-05 10:07:30 | INFO | fairseq_cli.train | begin validation on "valid" subset'
    )
    lines = [line.format(n // 10, n, 4096.0, n) for n in range(10, 141, 10)]
    lines[7:8] = [validation, line.format(8, 80, 409.6, 80)]
    result = run(lines, "printed[20:120]", nodes=1, gpus_per_node=8)
    assert result.external is not None
    assert result.external.rates["tokens/s"] == pytest.approx(4096.0)
    assert "evaluation" in " ".join(result.warnings)


# --- samples: up to iteration 20 one takes 2 s, then 0.4 and 0.6 s in turn

STATED = {"nodes": 1, "gpus_per_node": 8, "batch_size": 4}
TOKENS = {
    **{"automodel": 16384, "fairseq": 8192, "internevo": 8 * 8192},
    **{"olmo": 8 * 16384, "olmo_core": 8 * 16384, "picotron": 8 * 131072},
    **{"llms_from_scratch": 8170, "xtuner_v1": 8 * 8192},
}
"""Tokens/s over all devices of samples that have them alone."""
SAMPLES = {
    **{"aws_fsdp": 64, "composer": 512, "lightning_thunder": 32, "maskrcnn_benchmark": 64},
    **{"mindformers": 64, "mmcv_json": 64, "neuronx": 1024, "openpcdet": 64, "colossalai": 15.36},
    **{"deepspeed_chat": 128, "espnet": 64, "paddledetection": 64, "swin": 512},
    **dict.fromkeys(("flair", "opennmt_py", "paddleseg", "transformer_xl"), 64),
}


def sampled(name: str, basis: str, **stated: int) -> RunResult:
    path = ROOT / "tests" / "unit" / "logs" / "formats" / f"{name}.log"
    (result,) = gather([path], rule(basis), stated, ScanCache(None)).results
    return result


def test_every_format_of_the_table_has_a_sample_whose_speed_is_known() -> None:
    elsewhere = {
        "prime_rl",
        "yolox",
        "hrnet",
        "paddledetection",
    }  # test_formats_bars, _image_programs
    assert {*TOKENS, *SAMPLES, "verl"} | elsewhere == {*NAMES}
    for name in NAMES:
        assert format_named(name).own and not format_named(name).module


@pytest.mark.parametrize(("name", "rate"), SAMPLES.items())
def test_a_samples_samples_per_second(name: str, rate: float) -> None:
    result = sampled(name, "default", **STATED)
    assert result.status is Status.OK and result.samples_per_s == pytest.approx(rate, rel=1e-3)


@pytest.mark.parametrize(("name", "rate"), TOKENS.items())
def test_a_samples_tokens_per_second(name: str, rate: float) -> None:
    result = sampled(name, "printed[20:120]", **STATED)
    assert result.external is not None and result.samples_per_s is None
    assert result.external.rates["tokens/s"] == pytest.approx(rate, rel=3e-3)


def test_verls_steps_without_a_validation_stand_for_those_with_one() -> None:
    """Of iterations 21 to 120 these two are left out, which are among those of 0.6 s."""
    result = sampled("verl", "default")
    assert result.external is not None and result.run.case.topology.devices == 16
    assert result.external.rates["tokens/s"] == pytest.approx(16 * 1024 / 0.5, rel=0.01)
    assert "the printed speeds are of 98 single iterations of 100" in " ".join(result.warnings)
