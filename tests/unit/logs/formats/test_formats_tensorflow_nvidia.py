"""Formats of TensorFlow 2, of NVIDIA's DeepLearningExamples and of MXNet: what a line gives."""

from __future__ import annotations

import csv
import json
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import pytest

from dlperf_hpc.logs.format import Format, Line, ReadingBuilder
from dlperf_hpc.logs.formats import formats
from dlperf_hpc.logs.scanned import Averaging, Counter, Evidence, Scope, Stamps, Unit

MINE = {
    "tf2_bert",
    "tf2_resnet",
    "ngc_tf1_bert",
    "ngc_tf1_resnet",
    "ngc_tf2_bert",
    "dllogger_pytorch_bert",
    "dllogger_pytorch_resnet",
    "dllogger_mxnet_resnet",
    "dllogger_json",
    "mxnet_ngc",
    "mxnet_gluon_bert",
}
ABSL = "I0826 15:12:50.113950 140405777909504 "
TF1_STEP = (
    "DLL 2021-05-26 03:51:01.399857 - Iteration: {}  throughput_train : {} seq/s mlm_loss : 10.4043"
    "  nsp_loss : 0.7508  total_loss : 11.1551  avg_loss_step : 11.1198  learning_rate : 3e-06 "
)
GLUON = (
    "INFO:root:[step 20]\tmlm_loss=9.12345\tmlm_acc=5.12345\tnsp_loss=0.69000\tnsp_acc=52.123\t"
    "throughput=18.7K tks/s\tlr=0.0000100 time=12.34, latency=617.1 ms/batch"
)

# format, line, iteration, stamp's fraction of a minute (None: no stamp), printed, loss, lr
STEPS = [
    (
        "tf2_bert",
        ABSL + "model_training_utils.py:505] Train Step: 20/120  / loss = 10.88"
        "  masked_lm_accuracy = 0.012000  lm_example_loss = 10.200000",
        20, 50.11395, None, 10.88, None,
    ),
    (
        "tf2_resnet",
        ABSL + "keras_utils.py:133] TimeHistory: 42.65 seconds, 9602.84 examples/second "
        "between steps 100 and 200",
        200, 50.11395, 9602.84, None, None,
    ),
    (
        "tf2_resnet",
        ABSL + "keras_utils.py:98] BenchmarkMetric: {'global step':300, 'time_taken': 39.125,"
        "'examples_per_second': 327.091111}",
        300, 50.11395, 327.091111, None, None,
    ),
    (
        "tf2_resnet",
        "BenchmarkMetric: {'num_batches':100, 'time_taken': 39.125,'images_per_second': 327.1}",
        100, None, 327.1, None, None,
    ),
    ("ngc_tf1_bert", TF1_STEP.format(2, "370.588"), 2, 1.399857, 370.588, 11.1551, 3e-06),
    (
        "ngc_tf1_bert",
        "DLL 2023-08-01 03:51:01 - Iteration: 7 Rank : 0  throughput_train : 1239.665 sequences/s "
        "mlm_loss : 10.4  total_loss : 11.1  learning_rate : 0.0  loss_scaler : 4294967296 ",
        7, 1.0, 1239.665, 11.1, 0.0,
    ),
    (
        "ngc_tf1_resnet",
        " 20%|##  | 4/20DLL 2022-06-07 08:11:20.889682 - (0, 200) total_ips : 1142.672393463279 ",
        201, 20.889682, 1142.672393463279, None, None,
    ),
    (
        "ngc_tf1_resnet",
        "DLL 2020-06-07 08:11:20.889682 - (1, 430) imgs_per_sec : 390.1875  cross_entropy : 6.9  "
        "l2_loss : 1.25  total_loss : 8.15  learning_rate : 0.1 ",
        431, 20.889682, 390.1875, 8.15, 0.1,
    ),
    (
        "dllogger_pytorch_bert",
        "DLL 2021-12-14 04:59:55.679554 - Training Epoch: 0 Training Iteration: 14  average_loss :"
        " 11.18017578125  step_loss : 11.1953125  learning_rate : 0.004220893422441084 ",
        14, 55.679554, None, 11.1953125, 0.004220893422441084,
    ),
    (
        "dllogger_pytorch_bert",
        "DLL 2023-07-28 15:25:05.249086 - Training Epoch: 0 Training Iteration: 20  "
        "final_loss : 8.566617012023926 None",
        20, 5.249086, None, 8.566617012023926, None,
    ),
    (
        "dllogger_pytorch_resnet",
        "DLL 2020-12-16 10:32:15.957606 - Epoch: 0 Iteration: 1  train.loss : 7.09061 "
        "train.total_ips : 267.44 img/s",
        1, 15.957606, 267.44, 7.09061, None,
    ),
    (
        "dllogger_pytorch_resnet",
        "DLL 2023-08-04 05:46:29.582489 - Epoch: 0 Iteration: 3  train.loss : 8.36858 None "
        "train.compute_ips : 372.08 images/s train.total_ips : 371.32 images/s train.lr : 0.1  "
        "train.grad_scale : 1.00000 None",
        3, 29.582489, 371.32, 8.36858, 0.1,
    ),
    (
        "dllogger_mxnet_resnet",
        "DLL 2023-07-31 09:17:53.117629 - Epoch: 0 Iteration: 479  train.loss : 5.865658020973205"
        "  train.ips : 2945.191789332496 images/s train.lr : 0.0920576 ",
        480, 53.117629, 2945.191789332496, 5.865658020973205, 0.0920576,
    ),
    (
        "dllogger_json",
        'DLLL {"timestamp": "1570716921.842053", "datetime": "2019-10-10 14:15:21.842053", "type":'
        ' "LOG", "step": [0, 5], "data": {"train.loss": 8.56640625, "train.total_ips": 545.273}}',
        5, 21.842053, 545.273, 8.56640625, None,
    ),
    (
        "mxnet_ngc",
        "2020-12-16 08:21:31,031:INFO: Epoch[0] Batch [0-19]\tSpeed: 833.9040223720193 "
        "samples/sec\tLR: 0.004352\t",
        20, 31.031, 833.9040223720193, None, 0.004352,
    ),
    ("mxnet_gluon_bert", GLUON, 20, None, 617.1, 9.12345, 1e-05),
    (
        "mxnet_gluon_bert",
        "[step 40]\tmlm_loss=8.10000\tnsp_loss= 0.69\tthroughput=18.7K tks/s\t"
        "lr=0.0000200 time=12.34, latency=617.1 ms/step",
        40, None, 617.1, 8.1, 2e-05,
    ),
]  # fmt: skip

# format, line, total's name, value
TOTALS = [
    (
        "ngc_tf1_resnet",
        "DLL 2022-11-24 04:02:49.192609 - () train_throughput : 1219.6576825967823 images/s",
        "train_throughput", 1219.6576825967823,
    ),
    (
        "ngc_tf1_resnet",
        "DLL 2022-06-13 17:48:42.116329 - () train_throughput : 12671.899230200308 ",
        "train_throughput", 12671.899230200308,
    ),
    (
        "dllogger_pytorch_bert",
        "DLL 2020-12-16 10:32:15.957606 -  e2e_train_time : 898.3941352367401  "
        "training_sequences_per_second : 4208.125633201432  final_loss : 7.9880146980285645  "
        "raw_train_time : 883.3196353912354",
        "training_sequences_per_second", 4208.125633201432,
    ),
    (
        "dllogger_pytorch_bert",
        "DLL 2023-07-28 15:25:07.507816 -  e2e_train_time : 428.12 s training_sequences_per_second"
        " : 5055.566265125031 sequences/s final_loss : 8.566 None raw_train_time : 400.43 s",
        "training_sequences_per_second", 5055.566265125031,
    ),
    (
        "dllogger_pytorch_resnet",
        "DLL 2023-08-04 05:47:42.970732 - Summary: train.loss : 6.43294 None train.total_ips : "
        "21259.81 img/s train.lr : 0.1  val.total_ips : None images/s",
        "summary", 21259.81,
    ),
    (
        "dllogger_mxnet_resnet",
        "DLL 2023-07-31 09:18:00.252435 - Summary: train.loss : 5.8885  train.ips : 2960.3527"
        " images/s",
        "summary", 2960.3527,
    ),
    (
        "dllogger_json",
        'DLLL {"timestamp": "1.5e9", "type": "LOG", "step": [], '
        '"data": {"train.total_ips": 661.98}}',
        "summary", 661.98,
    ),
    (
        "tf2_resnet",
        "{'loss': 6.03, 'train_finish_time': 1598446717.39, "
        "'avg_exp_per_second': 3617.871691927869}",
        "avg_exp_per_second", 3617.871691927869,
    ),
]  # fmt: skip


def by_name(name: str) -> Format:
    return next(each for each in formats() if each.name == name)


def read(lines: list[str], known: tuple[Format, ...] | None = None) -> dict[str, ReadingBuilder]:
    """Every line shown to every format that has a literal in it, as the scanner does."""
    builders: dict[str, ReadingBuilder] = {}
    for number, text in enumerate(lines, 1):
        for each in known or formats():
            if any(literal in text for literal in (*each.literals, *each.facts_literals)):
                builder = builders.setdefault(each.name, ReadingBuilder(each))
                each.read(Line(number, text), builder)
    return builders


def recognised(builders: dict[str, ReadingBuilder]) -> dict[str, ReadingBuilder]:
    return {name: builder for name, builder in builders.items() if builder.reading()}


def facts(builder: ReadingBuilder) -> dict[str, object]:
    assert len({fact.name for fact in builder.facts}) == len(builder.facts), builder.facts
    return {fact.name: fact.value for fact in builder.facts}


def ngc_tf2_round(step: int, perf: str) -> list[str]:
    return [
        ABSL + f"model_training_utils.py:538] Step: {step} Lr 1.6526e-05 Loss scale 32768",
        ABSL + f"model_training_utils.py:539] Train Step: {step}/90  / loss = 11.0390625"
        " / time = 0.136 sec",
        ABSL + f"model_training_utils.py:540] Perf {perf}",
    ]


@pytest.mark.parametrize(("name", "text", "done", "second", "printed", "loss", "lr"), STEPS)
def test_a_line_of_an_iteration(
    name: str,
    text: str,
    done: int,
    second: float | None,
    printed: float | None,
    loss: float | None,
    lr: float | None,
) -> None:
    found = recognised(read([text]))
    assert list(found) == [name]
    (step,) = found[name].steps
    assert (step.iteration, step.printed, step.loss, step.lr) == (done, printed, loss, lr)
    assert (None if second is None else pytest.approx(second)) == (
        None if step.stamp is None else step.stamp % 60
    )
    assert not found[name].notes


@pytest.mark.parametrize(("name", "text", "total", "value"), TOTALS)
def test_a_line_of_the_whole_run(name: str, text: str, total: str, value: float) -> None:
    found = recognised(read([text]))
    assert list(found) == [name]
    assert [(each.name, each.value) for each in found[name].totals] == [(total, value)]
    assert not found[name].steps
    assert not found[name].notes


def test_what_the_printed_numbers_are() -> None:
    assert by_name("ngc_tf1_resnet").printed.averaging is Averaging.LAST_ONE
    assert by_name("mxnet_gluon_bert").printed.unit is Unit.MS_PER_ITERATION
    assert by_name("dllogger_pytorch_resnet").counter is Counter.MICRO_STEPS
    assert {by_name(name).printed.scope for name in MINE} == {Scope.ALL}
    real = {name for name in MINE if by_name(name).evidence is Evidence.REAL}
    assert MINE - real == {"tf2_bert", "ngc_tf2_bert", "mxnet_ngc", "mxnet_gluon_bert"}


def test_stamps_without_a_year_are_said_to_be() -> None:
    for text, expected in ((0, Stamps.NO_YEAR), (1, Stamps.NO_YEAR), (4, Stamps.ABSOLUTE)):
        (builder,) = recognised(read([STEPS[text][1]])).values()
        assert builder.stamps is expected


def test_literals_are_specific() -> None:
    for name in MINE:
        declared = by_name(name)
        for literal in (*declared.literals, *declared.facts_literals):
            assert len(literal) >= 5, (name, literal)
            assert not literal.startswith("  "), (name, literal)


def test_the_two_tensorflow_2_loops_leave_each_other_alone() -> None:
    official = [STEPS[0][1].replace(" 20/", f" {step}/") for step in (1, 2)]
    builders = read([*official, *ngc_tf2_round(47, "7.74"), *ngc_tf2_round(48, "7.77")])
    assert [step.iteration for step in builders["tf2_bert"].steps] == [1, 2]
    assert [
        (step.line, step.iteration, step.printed, step.loss, step.lr)
        for step in builders["ngc_tf2_bert"].steps
    ] == [(4, 47, 7.74, 11.0390625, 1.6526e-05), (7, 48, 7.77, 11.0390625, 1.6526e-05)]
    assert not any(builder.notes for builder in builders.values())


def test_a_round_without_perf_has_no_speed_and_no_other_rounds_rate() -> None:
    first, second = ngc_tf2_round(47, "7.74"), ngc_tf2_round(48, "7.7")
    builder = read([*first[:2], *second[1:]])["ngc_tf2_bert"]
    assert [(step.iteration, step.printed, step.lr) for step in builder.steps] == [
        (47, None, 1.6526e-05),
        (48, None, None),
    ]
    assert [note.text for note in builder.notes] == ["Perf '7.7' is cut"]


def averages(unit: str, training: bool, *values: str) -> list[str]:
    what = "Training" if training else "Inference"
    lines = [f"Total {what} Time = 2654.03 for Sentences = 3041280"]
    if training:
        lines.append(f"Throughput Average ({unit}/sec) with overhead = {values[0]}")
    lines.append(f"Throughput Average ({unit}/sec) = {values[-1]}")
    return [prefix + line for line in lines for prefix in ("INFO:tensorflow:", ABSL + "x.py:1] ")]


def test_averages_count_once_and_those_of_training_only() -> None:
    last = "DLL 2023-08-01 03:52:34.988283 -  throughput_train : 1067.190 seq/s"
    own = {
        "ngc_tf1_bert": ([TF1_STEP.format(2, "370.588")], "sentences"),
        "ngc_tf2_bert": (ngc_tf2_round(47, "7.74"), "sequences"),
    }
    for name, (steps, unit) in own.items():
        end = [*averages(unit, True, "1033.33", "1067.19"), last, *averages(unit, False, "354.07")]
        found = recognised(read([*steps, *end]))
        assert list(found) == [name]
        assert [(total.name, total.value) for total in found[name].totals] == [
            ("average with overhead", 1033.33),
            ("average", 1067.19),
            ("throughput_train", 1067.19),
        ]
        again = recognised(read([*steps, *end, *steps, *end]))[name]
        assert len(again.totals) == 6


def test_overflowing_steps_are_kept_in_their_order() -> None:
    lines = [TF1_STEP.format(1, f"54{n}.691") for n in range(5)] + [TF1_STEP.format(2, "449.497")]
    builder = read(lines)["ngc_tf1_bert"]
    assert [step.iteration for step in builder.steps] == [1, 1, 1, 1, 1, 2]
    assert builder.steps[4].printed == 544.691


def test_a_record_cut_by_the_next_one_gives_no_number() -> None:
    whole = TF1_STEP.format(3, "370.588")
    for cut in range(len("DLL 2021-05-26 03:51:01.399857 - "), whole.index(" mlm_loss")):
        builder = read([TF1_STEP.format(22, "370.588")[:cut] + whole])["ngc_tf1_bert"]
        assert builder.steps[-1].iteration == 3
        assert {step.iteration for step in builder.steps} <= {22, 3}
        assert {step.printed for step in builder.steps} <= {370.588, None}


def test_settings_of_the_tensorflow_1_bert() -> None:
    lines = ["  train_batch_size: 96", "  num_accumulation_steps: 88", "  use_xla: True"]
    lines += ["  name = input_ids, shape = (96, 128)", "  name = input_ids, shape = (?, 128)"]
    lines += ["Precision = fp32", TF1_STEP.format(2, "370.588")]
    prefixed = [p + line for line in lines for p in ("INFO:tensorflow:", ABSL + "x.py:583] ")]
    assert facts(read(prefixed)["ngc_tf1_bert"]) == {
        "batch_size": 96,
        "accumulation": 88,
        "seq_len": 128,
        "precision": "fp32",
        "xla": True,
    }
    shell = ["+ num_gpus=8", "++ num_accumulation_steps_phase1=704", "+ num_gpus=x", "+ num_gpus=0"]
    builder = read([*shell, STEPS[5][1]])["ngc_tf1_bert"]
    assert facts(builder) == {"precision": "fp16", "gpus_per_node": 8, "accumulation": 704}
    assert builder.steps[0].rank == 0


def test_settings_of_the_dllogger_programs() -> None:
    head = "DLL 2023-08-04 05:46:18.018259 - PARAMETER "
    tf1 = "arch : resnet50  batch_size : 256  iter_unit : batch  xla : True  amp : False "
    builder = read([head + tf1, "Num GPUs 8", "Per-GPU Batch Size 256", STEPS[6][1]])
    assert facts(recognised(builder)["ngc_tf1_resnet"]) == {
        "model": "resnet50", "batch_size": 256, "precision": "fp32", "xla": True, "devices": 8
    }  # fmt: skip
    assert not builder["dllogger_mxnet_resnet"].facts
    torch = "data : /imagenet  arch : resnet50  batch_size : 64  optimizer_batch_size : {}  "
    torch += "amp : True  world_size : 8 "
    for whole, expected in ((-1, {"accumulation": 1}), (1024, {"global_batch": 1024})):
        found = read([head + torch.format(whole), STEPS[10][1]])["dllogger_pytorch_resnet"]
        assert facts(found) == {
            "model": "resnet50", "batch_size": 64, "devices": 8, "precision": "fp16", **expected
        }  # fmt: skip
    bert = 'Config : ["Namespace(allreduce_post_accumulation_fp16=True, amp=False, fp16=False, '
    bert += 'gradient_accumulation_steps=88, max_seq_length=128, train_batch_size=8448)"] '
    builders = read([head + bert, head + "batch_size_per_gpu : 96 ", STEPS[8][1]])
    assert facts(builders["dllogger_pytorch_bert"]) == {
        "accumulation": 88, "seq_len": 128, "precision": "fp32", "batch_size": 96
    }  # fmt: skip


def mxnet(epoch: int, iteration: int, rate: float = 2945.5) -> str:
    step = f"Epoch: {epoch} Iteration: {iteration}"
    return f"DLL 2023-07-31 09:17:53.117629 - {step}  train.ips : {rate} images/s train.lr : 0 "


def test_mxnet_counts_over_epochs_of_the_length_that_the_log_says() -> None:
    asked = "DLL 2023-07-31 09:09:06.954612 - PARAMETER arch : resnetv15  num_layers : 50  "
    asked += "gpus : [0, 1, 2, 3]  kv_store : horovod  dtype : float16  amp : False  "
    asked += "batch_size : 512  benchmark_iters : 500 "
    builder = read([asked, mxnet(0, 479), mxnet(2, 19)])["dllogger_mxnet_resnet"]
    assert [step.iteration for step in builder.steps] == [480, 1020]
    assert not builder.notes
    assert facts(builder) == {
        "model": "resnet50", "global_batch": 512, "gpus_per_node": 4, "precision": "fp16"
    }  # fmt: skip


def test_epochs_of_unknown_length_go_on_from_the_last_line() -> None:
    lines = [mxnet(0, 19), mxnet(0, 39), mxnet(1, 19), mxnet(0, 59), mxnet(2, 19), mxnet(0, 19)]
    builder = read(lines)["dllogger_mxnet_resnet"]
    assert [step.iteration for step in builder.steps] == [20, 40, 60, 60, 80, 20]
    assert len(builder.notes) == 1
    text = "DLL 2023-08-04 05:46:28 - Epoch: {}  {} : 25.20 images/s"
    lines = [text.format("0 Iteration: 20", "train.total_ips")]
    lines += [text.format("0 Iteration: 25 Validation Iteration: 5", "val.total_ips")]
    lines += [text.format(step, "train.total_ips") for step in ("0", "1 Iteration: 5")]
    steps = read(lines)["dllogger_pytorch_resnet"].steps
    assert [step.iteration for step in steps] == [20, 30]


def test_the_table_of_the_mxnet_benchmark() -> None:
    def table(
        metric: str, *cells: str, gpus: int = 8, sizes: Sequence[str] = ("128",)
    ) -> list[str]:
        row = "|".join(cell.center(11) for cell in (str(gpus), *cells)) + "|"
        head = " " * 11 + "|" + "|".join(size.center(11) for size in sizes) + "|"
        return [metric, head, "-" * 24, row, ""]

    builder = read([*table("train.ips", "2957.8"), *table("val.ips", "9000.1")])
    found = recognised(builder)["dllogger_mxnet_resnet"]
    assert [(total.name, total.value) for total in found.totals] == [("table", 2957.8)]
    assert facts(found) == {"devices": 8, "batch_size": 128}
    two = read(table("train.total_ips", "389.54", "12345", gpus=16, sizes=("64", "128")))
    assert list(recognised(two)) == ["mxnet_ngc"]
    assert [(total.name, total.value) for total in two["mxnet_ngc"].totals] == [
        ("table, batch size 64", 389.54),
        ("table, batch size 128", 12345.0),
    ]
    failed = read(table("train.ips", "nan"))
    assert not recognised(failed)
    assert not recognised(read(table("val.ips", "9000.1")))
    assert not recognised(read(["|   0  Tesla V100   |   45%   |", "     8     |   2957.8  |"]))


def test_the_json_file_tells_whose_it_is() -> None:
    def record(kind: str = "LOG", **rest: Any) -> str:
        return "DLLL " + json.dumps({"timestamp": "1570716916.25", "type": kind, **rest})

    asked = {"arch": "resnet50", "batch_size": 128, "amp": True, "fp16": False}
    asked |= {"optimizer_batch_size": -1, "world_size": 4}
    lines = [
        record(step="PARAMETER", data=asked),
        record("METADATA", metric="train.total_ips", metadata={"unit": "img/s"}),
        record(step=[0, 5], data={"train.loss": None, "train.total_ips": 545.25}),
        record(step=[0, 5], data={"lr": 0.1, "train.compute_ips": 547.5}),
        record(step=[0, 25, 5], data={"val.total_ips": 1900.5}),
        record(step=[0], data={"train.total_ips": 1.5}),
        record(step=[1, 5], data={"train.total_ips": 600.5}),
    ]
    builders = read(lines)
    builder = builders.pop("dllogger_json")
    assert not any(other.notes for other in builders.values())
    assert [(step.iteration, step.printed) for step in builder.steps] == [(5, 545.25), (30, 600.5)]
    assert builder.framework == "ngc-pytorch"
    assert builder.counter is Counter.MICRO_STEPS
    assert facts(builder)["precision"] == "fp16"
    assert facts(builder)["devices"] == 4
    tf1 = read([record(step=3, data={"throughput_train": 370.5, "total_loss": 11.25})])
    assert tf1["dllogger_json"].framework == "ngc-tensorflow"
    assert tf1["dllogger_json"].steps[0][1:6] == (3, None, 1570716916.25, 370.5, 11.25)
    rn50 = read([record(step=[0, 20], data={"total_ips": 370.5})])["dllogger_json"]
    assert (rn50.steps[0].iteration, rn50.printed.averaging) == (21, Averaging.LAST_ONE)
    other = read([record(step=[0, 20], data={"train_items_per_sec": 370.5})])
    assert not recognised(other)


def test_json_that_is_none_or_not_what_it_says() -> None:
    start = 'DLLL {"timestamp": "1.5e9", "type": "LOG", "step": [0, 5], "data": {"total_ips": '
    good = start + "5.5}}"
    for bad in (
        "",
        "5",
        "[[" * 5000,
        '{"a":' * 30000,
        "NaN}}",
        "1" * 4000 + "}}",
        '"x"}}',
        "true}}",
    ):
        builder = read([start + bad, good])["dllogger_json"]
        assert [step.printed for step in builder.steps if step.printed] == [5.5], bad[:9]
    for step in (
        "null",
        '"x"',
        "[0, -5]",
        "[0, 1.5]",
        "[0, 10000000000000000000]",
        "[true, 5]",
        "{}",
    ):
        builder = read([good.replace("[0, 5]", step), good])["dllogger_json"]
        assert len(builder.steps) == 1, step
        assert len(builder.notes) == 1, step
    for stamp in ('"nan"', '"1e300"', "[]", '"-5"', "null"):
        builder = read([good.replace('"1.5e9"', stamp)])["dllogger_json"]
        assert builder.steps[0].stamp is None, stamp
    for data in ("[]", "5", "null"):
        text = f'DLLL {{"type": "LOG", "step": [0, 5], "data": {data}}}'
        assert not recognised(read([text]))


def test_settings_and_the_end_of_the_keras_models() -> None:
    lines = [
        ABSL + "classifier_trainer.py:180] Base params: {'evaluation': None,",
        "             'enable_xla': False,",
        "                   'dtype': 'float32',",
        ABSL + "classifier_trainer.py:189] Final model parameters: {'evaluation': None,",
        "             'enable_xla': True,",
        "             'mixed_precision_dtype': None,",
        "                   'dtype': 'float16',",
        "MultiWorkerMirroredStrategy with cluster_spec = {'worker': ['a:1', 'b:1']}, task_type ="
        " 'worker', task_id = 0, num_workers = 2, local_devices = ("
        "'/job:worker/task:0/device:GPU:0', '/job:worker/task:0/device:GPU:1'), communication = x",
        "Using Piecewise constant decay. Parameters: batch_size: 512, epoch_size: 640512, x: 0",
        STEPS[1][1],
    ]
    assert facts(read(lines)["tf2_resnet"]) == {
        "xla": True, "gpus_per_node": 2, "precision": "fp16", "nodes": 2, "global_batch": 512
    }  # fmt: skip
    one = "INFO:tensorflow:Using MirroredStrategy with devices ("
    one += "'/job:localhost/replica:0/task:0/device:GPU:0',)"
    assert facts(read([one])["tf2_bert"]) == {"nodes": 1, "gpus_per_node": 1}
    stamps = [(0, 1598425853.75), (100, 1598425970.5), (200, 1598426009.25)]
    batches = ", ".join(f"'BatchTimestamp<batch_index: {n}, timestamp: {s}>'" for n, s in stamps)
    end = f"{{'step_timestamp_log': [{batches}], 'avg_exp_per_second': 244.25}}"
    alone = read([end])["tf2_resnet"]
    assert [(step.iteration, step.stamp) for step in alone.steps] == stamps
    assert alone.stamps is Stamps.ABSOLUTE
    assert len(read([STEPS[1][1], end])["tf2_resnet"].steps) == 1


def test_lines_that_are_none_of_these_formats() -> None:
    lines = [
        ABSL + "keras_utils.py:98] BenchmarkMetric: {'epoch':0, 'time_taken': 39.125}",
        "INFO:root:[step 19]\tmlm_loss=8.1\tnsp_loss=0.6\tnsp_acc=5.2\tthroughput=9.1K tks/s\t",
        "INFO:root:Epoch[0] Batch [0-20]\tSpeed: 389.5 samples/sec\taccuracy=0.001",
        "DLLL 2019-10-10 16:42:54.501155 - Epoch: 0 Iteration: 0  loss : 130.0 nat",
        "DLL 2023-07-28 15:18:50.582885 - PARAMETER loss_scale : 262144.0 ",
        "DLL 2023-08-01 03:52:46.631669 -  throughput_val : 354.06805177070333 ",
        "DLL 2023-08-01 03:52:34.988283 -  throughput_train : 1238.020 sequences/s",
        "DLL 2023-08-04 05:47:41 - Epoch: 0  train.total_ips : 366.74 images/s",
        ABSL + "model_training_utils.py:1] Step: [47] Validation accuracy = 0.5",
    ]
    builders = read(lines, tuple(each for each in formats() if each.name in MINE))
    assert not recognised(builders)
    assert not any(builder.notes for builder in builders.values())


@pytest.mark.parametrize("name", sorted(MINE))
def test_damage_is_noted_and_no_number_is_invented(name: str) -> None:
    declared = by_name(name)
    texts = [str(text) for whose, text, *_ in [*STEPS, *TOTALS] if whose == name]
    texts += ngc_tf2_round(47, "7.74") if name == "ngc_tf2_bert" else []
    odd = ["nan", "inf", "-inf", "None", "", "-5.5", "9" * 5000, "1e999", "\0", "1_0.5"]
    odd += ["\uff11.\uff12", "0x10", "{}"]
    for text in texts:
        for value in odd:
            bad = re.sub(r"(?<![:0-9])[0-9]+\.[0-9]+", value, text)
            assert (name, bad) == (name, text) or not speeds(declared, bad), bad[:300]
        damaged = [re.sub(r"[0-9]+", value, text) for value in odd]
        damaged += [text[:cut] for cut in range(len(text))]
        damaged += [text[cut:] for cut in range(len(text))]
        for bad in damaged:
            assert all(0 < speed < 1e15 for speed in speeds(declared, bad))


def speeds(declared: Format, text: str) -> list[float]:
    """What is read of a line as speeds; whatever is in it, the reader does not raise."""
    builder = ReadingBuilder(declared)
    declared.read(Line(1, text), builder)
    assert all(0 <= step.iteration < 10**18 for step in builder.steps)
    values = [step.printed for step in builder.steps] + [total.value for total in builder.totals]
    return [value for value in values if value is not None]


@pytest.mark.parametrize("step", [each for each in STEPS if each[0] in (
    "tf2_resnet", "ngc_tf1_bert", "dllogger_pytorch_resnet", "dllogger_json", "mxnet_gluon_bert"
)])  # fmt: skip
def test_a_speed_of_fixed_decimals_is_whole_or_none(step: tuple[Any, ...]) -> None:
    declared = by_name(step[0])
    for cut in range(len(step[1])):
        builder = ReadingBuilder(declared)
        declared.read(Line(1, step[1][:cut]), builder)
        assert {each.printed for each in builder.steps} <= {step[4], None}


@pytest.mark.parametrize("name", sorted(MINE))
def test_the_longest_lines_are_read_in_no_time(name: str) -> None:
    declared = by_name(name)
    literals = (*declared.literals, *declared.facts_literals)
    heads = [text for whose, text, *_ in STEPS if whose == name] or [""]
    noise = [
        unit * (65000 // len(unit)) for unit in (" ", "a", "1", "a.", "=", "|   1", " : ", "[")
    ]
    began = time.process_time()
    for literal in literals:
        for filler in (*noise, literal * (65000 // len(literal))):
            for text in (literal + filler, filler + literal, heads[0] + filler):
                builder = ReadingBuilder(declared)
                builder.state.update(final=True, table=(1, ("128",)))
                declared.read(Line(2, text), builder)
    assert time.process_time() - began < 0.05 * len(literals) * 27


# -- real logs -----------------------------------------------------------------------------------

REAL = os.environ.get("DLPERF_REAL_LOGS")
needs_real_logs = pytest.mark.skipif(not REAL, reason="DLPERF_REAL_LOGS is not set")
_TAG = re.compile(r"^(?:\w{3} \w{3} [ \d]\d [\d:]{8} \d{4})?\[\d+,\d+\]<\w+>:")


def read_log(name: str) -> dict[str, ReadingBuilder]:
    text = (Path(REAL or "") / name).read_text(errors="replace")
    found = recognised(read([_TAG.sub("", line) for line in re.split("[\r\n]", text)]))
    assert len(found) <= 1, list(found)
    return found


def published() -> list[tuple[str, str, float]]:
    """Of each log that is ours: the rule which reproduces its published figure, and the figure."""
    if not REAL:
        return []
    with open(Path(REAL) / "expected.csv", newline="") as file:
        return [
            (row["log"], row["rule that fits best"], float(row["published"]))
            for row in csv.DictReader(file)
            if not row["log"].startswith("paddle/")
        ]


FIELDS = {
    "ngc_tf_rn50": "ngc_tf1_resnet",
    "ngc_tf_bert": "ngc_tf1_bert",
    "nvidia_pyt_rn50": "dllogger_pytorch_resnet",
    "nvidia_pyt_bert": "dllogger_pytorch_bert",
    "mxnet_rn50": "dllogger_mxnet_resnet",
}


@needs_real_logs
@pytest.mark.parametrize(("log", "rule", "figure"), published())
def test_published_figures_of_real_logs(log: str, rule: str, figure: float) -> None:
    ((name, builder),) = read_log(log).items()
    assert name == FIELDS[log.split("/")[0]]
    speeds = [step.printed for step in builder.steps if step.printed is not None]
    totals = {total.name: total.value for total in builder.totals}
    skipped = re.fullmatch(r"mean of lines\[(\d+):\]", rule)
    if name == "dllogger_mxnet_resnet":
        found = totals["table"]
    elif name == "dllogger_pytorch_bert":
        found = totals["training_sequences_per_second"]
    else:
        found = mean(speeds[int(skipped[1]) if skipped else 0 :])
    assert found == pytest.approx(figure, rel=5e-5)
    assert not builder.notes


@needs_real_logs
def test_all_lines_of_real_logs_are_read() -> None:
    counts = {
        "ngc_tf_rn50/tf_gpu8_fp32_bs256.txt": (30, 1, 491),
        "ngc_tf_rn50/tf_gpu32_fp32_bs256.txt": (300, 1, 500),
        "ngc_tf_bert/tf_bert_pretraining_lamb_base_fp32_bs96_gpu8.log": (45, 3, 46),
        "ngc_tf_bert/tf_bert_pretraining_lamb_base_fp16_bs96_gpu1.log": (50, 3, 46),
        "nvidia_pyt_rn50/pytorch_gpu1_fp32_bs256.txt": (99, 1, 99),
        "mxnet_rn50/mxnet_gpu8_fp32_bs128.txt": (75, 2, 1500),
        "dllogger/example_resnet_log.json": (8, 1, 45),
        "excerpts/ngc_tf2_bert_issue1262.log": (2, 0, 48),
    }
    for log, (steps, totals, last) in counts.items():
        ((name, builder),) = read_log(log).items()
        found = (
            len(builder.steps),
            len(builder.totals),
            max(step.iteration for step in builder.steps),
        )
        assert found == (steps, totals, last), log
        assert all(step.stamp for step in builder.steps), log
        assert name in MINE
    assert not read_log("dllogger/example_stdout_log.json")


@needs_real_logs
def test_overflows_in_a_real_log_repeat_an_iteration() -> None:
    log = "bert_base_lamb_pretraining.pyt_bert_pretraining_phase1_fp16_bs96_gpu8.log"
    steps = read_log(f"nvidia_pyt_bert/{log}")["dllogger_pytorch_bert"].steps
    iterations = [step.iteration for step in steps]
    assert iterations == sorted(iterations)
    assert (len(iterations), len(set(iterations)), iterations[-1]) == (30, 20, 20)


@needs_real_logs
def test_the_keras_logs_give_what_the_benchmarks_scripts_got() -> None:
    expected = json.loads((Path(REAL or "") / "tf2_resnet50" / "expected.json").read_text())
    for case, batch in (("1n1g", 128), ("2n8g", 2048)):
        printed, clock = {}, {}
        for run in map(str, range(1, 6)):
            builder = read_log(f"tf2_resnet50/{case}/rn50_b128_fp32_{run}.log")["tf2_resnet"]
            steps = builder.steps
            printed[run] = round(mean(step.printed or 0.0 for step in steps[1:6]), 2)
            clock[run] = round(batch * 500 / ((steps[5].stamp or 0.0) - (steps[0].stamp or 0.0)), 2)
            assert {"global_batch": batch, "precision": "fp32", "xla": False}.items() <= facts(
                builder
            ).items()
        assert printed == expected["speed"]["per_run"][case]
        assert clock == expected["time"]["per_run"][case]
        assert median(clock.values()) == expected["time"]["result"]["rn50"][case]["median_speed"]
