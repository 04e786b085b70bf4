"""Readers of OneFlow's, Paddle's, MindSpore's, HugeCTR's, InsightFace's and imagenet's lines."""

from __future__ import annotations

import csv
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
import reading_samples

from dlperf_hpc.logs.format import Format, Line, ReadingBuilder
from dlperf_hpc.logs.formats import format_named
from dlperf_hpc.logs.interpret.interpretation import interpret
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.logs.scanned import Averaging, Counter, Evidence, Scope, Stamps, Unit
from dlperf_hpc.model.result import RunResult

MINE = [
    format_named(name)
    for name in (
        *("oneflow_bert", "oneflow_cnn", "oneflow_gpt2", "oneflow_gpt", "oneflow_insightface"),
        *("pytorch_imagenet", "paddle18_bert", "paddle18_resnet", "paddlenlp", "paddleclas"),
        *("mindspore", "hugectr", "insightface", "insightface_partial_fc"),
    )
]
BERT, CNN, GPT2, GPT, FACE, IMAGENET, PADDLE_BERT, PADDLE_RESNET, NLP, CLAS = MINE[:10]
MINDSPORE, HUGECTR, ARCFACE, PARTIAL_FC = MINE[10:]

STAMPED = (
    "step: 19, total_loss: 9.725, mlm_loss: 8.960, nsp_loss: 0.766, "
    "throughput: 54.982 1598056519.8844702"
)
CNN_LINE = (
    "train: epoch 0, iter 20, loss: 7.087004, top_1: 0.000000, top_k: 0.000000, "
    "samples/s: 3988.891 1597933942.9863544"
)
GPT2_LINE = "step: 10, loss: 1.364, throughput: 103.900 1607400000.12"
PAIRS = "step=10,micro_batches=320,samples=5120,throughput=35.88042,latency=14.26962,loss=11.23708,"
HEAD = "| batches  | micro_batches   | samples         | throughput | latency    | loss       |"
RULE = "| -------- | --------------- | --------------- | ---------- | ---------- | ---------- |"
ROW = "| 10       | 320             | 5120            | 35.88042   | 14.26962   | 11.23708   |"
FACE_LINE = "train: iter 20, loss 33.96, throughput: 512.345"
BATCH = (
    "Epoch: [0][ 1/53]       Time  0.970 ( 6.512)    Data  0.002 ( 0.001)    "
    "Loss 2.6312e+01 (1.6647e+01)    Acc@1   1.56 (  1.17) Acc@5  10.94 (  6.25)"
)
PADDLE_LINE = (
    "epoch: 1, progress: 1/1, step: 60, loss: 10.487363, ppl: 17796.216797, "
    "next_sent_acc: 0.560417, speed: 1.060437 steps/s, file: demo_wiki_train.gz"
)
PASS_LINE = (
    "[Pass 0, train batch 19] \tloss 7.07000, acc1 0.01000, acc5 0.02000, lr 0.10000, "
    "elapse 0.3425 sec"
)
NLP_LINE = (
    "tobal step: 40, epoch: 0, batch: 39, loss: 11.128925, avg_reader_cost: 0.00011 sec, "
    "avg_batch_cost: 0.13001 sec, avg_samples: 64.00000, ips: 492.25918 sequences/sec"
)
CLAS_LINE = (
    "[2022/06/02 16:17:31] ppcls INFO: epoch:0   train step:10   lr: 0.100000, loss:  6.9950 "
    "top1:  0.0039 top5:  0.0078 batch_cost: 0.75584 s, reader_cost: 0.03820 s, "
    "ips: 338.69825 samples/sec."
)
DYNAMIC_LINE = (
    "[2024/07/31 20:24:38] ppcls INFO: [Train][Epoch 24/120][Iter: 10/304]lr(PiecewiseDecay): "
    "0.00100000, top1: 0.97159, CELoss: 0.05098, loss: 0.05098, batch_cost: 0.62808s, "
    "reader_cost: 0.12837, ips: 25.47451 samples/s, eta: 5:08:34"
)
OUTPUTS = "epoch: 1, step: 20, outputs are [10.5]"
EPOCH_TIME = "epoch time: 1234.500 ms, per step time: 61.725 ms"
HUGE = "[HUGECTR][02:51:59][INFO][RANK0]: Iter: 100 Time(100 iters): 0.315066s Loss: 0.13 lr:0.001"
ARC = "INFO:root:Epoch[0] Batch [20]\tSpeed: 1195.56 samples/sec\tacc=0.000000"
TOTAL = (
    "rank-id:0:2021-01-08 19:22:59,208-Iter:460 Rank:207.42 it/sec Total:1659.38 it/sec "
    "[0][loss]:0.01"
)
LINES = {
    STAMPED: BERT,
    CNN_LINE: CNN,
    GPT2_LINE: GPT2,
    PAIRS: GPT,
    FACE_LINE: FACE,
    BATCH: IMAGENET,
    PADDLE_LINE: PADDLE_BERT,
    PASS_LINE: PADDLE_RESNET,
    NLP_LINE: NLP,
    CLAS_LINE: CLAS,
    DYNAMIC_LINE: CLAS,
    OUTPUTS: MINDSPORE,
    HUGE: HUGECTR,
    ARC: ARCFACE,
    TOTAL: PARTIAL_FC,
}


def read(declared: Format, lines: Iterable[str]) -> ReadingBuilder:
    """What the format makes of those lines that hold one of its literals."""
    builder = ReadingBuilder(declared)
    for number, text in enumerate(lines, start=1):
        if any(literal in text for literal in (*declared.literals, *declared.facts_literals)):
            declared.read(Line(number, text), builder)
    return builder


def facts(builder: ReadingBuilder) -> dict[str, object]:
    return {fact.name: fact.value for fact in builder.facts}


def printed(builder: ReadingBuilder) -> list[float]:
    """Every step's printed figure."""
    found = [step.printed for step in builder.steps if step.printed is not None]
    assert len(found) == len(builder.steps)
    return found


@pytest.mark.parametrize("text", LINES)
def test_a_line_is_read_by_one_format_and_passed_over_by_the_others_in_silence(text: str) -> None:
    builders = [read(each, [text]) for each in MINE]

    assert [builder.format.name for builder in builders if builder.steps] == [LINES[text].name]
    assert not [builder.notes for builder in builders if builder.notes]


def test_a_step_of_bert_is_an_index_and_a_wall_clock_time() -> None:
    builder = read(BERT, [STAMPED, STAMPED.rsplit(" ", 1)[0].replace("19", "39")])

    assert [step.iteration for step in builder.steps] == [20, 40]
    assert [step.stamp for step in builder.steps] == [1598056519.8844702, None]
    assert [step.printed for step in builder.steps] == [54.982, 54.982]
    assert builder.steps[0].loss == 9.725
    assert builder.stamps is Stamps.ABSOLUTE
    assert builder.printed.scope is Scope.ALL


def test_arguments_are_facts_and_an_unrelated_reading_of_memory_is_not_kept() -> None:
    head = ["batch_size_per_device = 24", "gpu_num_per_node = 8", "num_nodes = 2", "num_nodes = 2."]
    smi = ["utilization.gpu [%], memory.used [MiB]", "100 %, 13858 MiB", "0 %, 11958 MiB"]
    builder = read(BERT, [*head, *smi, STAMPED, STAMPED.replace("19", "39"), "acc 98.3 %, 5 MiB."])

    assert facts(builder) == {"batch_size": 24, "gpus_per_node": 8, "nodes": 2}
    assert [step.memory_mb for step in builder.steps] == [13858.0, None]
    assert not builder.notes
    assert read(BERT, head).reading() is None  # settings alone are anybody's


def test_iterations_of_a_cnn_count_from_one_and_on_over_epochs() -> None:
    validation = CNN_LINE.replace("train:", "validation:").replace("loss: 7.087004, ", "")
    second = CNN_LINE.replace("epoch 0", "epoch 1").replace("loss: 7.087004, ", "")
    builder = read(CNN, [CNN_LINE, validation, second])

    assert [step.iteration for step in builder.steps] == [20, 40]
    assert [step.loss for step in builder.steps] == [7.087004, None]
    assert builder.steps[0].stamp == 1597933942.9863544


def test_gpt2_counts_from_one_and_its_loss_is_kept_as_printed() -> None:
    builder = read(GPT2, [GPT2_LINE])

    assert builder.steps[0][1:8] == (10, None, 1607400000.12, 103.9, 1.364, None, None)


def test_a_table_needs_its_head_and_may_print_it_again() -> None:
    smi = "100 %, 11838 MiB"
    later = ROW.replace("10 ", "20 ", 1)
    builder = read(GPT, [ROW, smi, HEAD, RULE, ROW, HEAD.replace("batches ", "step    ", 1), later])

    assert [(step.line, step.iteration) for step in builder.steps] == [(5, 10), (7, 20)]
    assert builder.steps[0][4:8] == (35.88042, 11.23708, None, 11838.0)
    assert builder.steps[1].memory_mb is None
    assert not builder.notes


def test_a_damaged_row_is_noted_and_other_tables_are_not() -> None:
    other = "| GPU  Name        Persistence-M        | Bus-Id        Disp.A | x | y | z |"
    builder = read(GPT, [HEAD, ROW[:60] + " |", other, ROW.replace("35.88042", "nan     ")])

    assert [note.line for note in builder.notes] == [2, 4]
    assert [step.printed for step in builder.steps] == [None]


def test_gpt_arguments() -> None:
    text = "  num_gpus_per_node ............................... 8"
    more = ["  num_nodes ....................................... 4", "  num_nodes .... four"]

    assert facts(read(GPT, [text, *more])) == {"gpus_per_node": 8, "nodes": 4}


def test_imagenet_reads_the_running_mean_of_the_epoch() -> None:
    first = BATCH.replace("[ 1/53]", "[ 0/53]").replace(" 0.970 ( 6.512)", "12.054 (12.054)")
    builder = read(IMAGENET, ["=> creating model 'resnet50'", first, BATCH])

    assert [(step.iteration, step.printed) for step in builder.steps] == [(1, 12.054), (2, 6.512)]
    assert builder.steps[1].loss == 26.312
    assert builder.printed.averaging is Averaging.RUNNING
    assert (builder.printed.unit, builder.printed.origin) == (Unit.S_PER_ITERATION, 0)
    assert facts(builder) == {"model": "resnet50"}


def test_imagenet_counts_over_epochs_of_the_stated_length() -> None:
    lines = [BATCH.replace("[0][ 1/53]", f"[{e}][{n:2d}/53]") for e in (3, 4) for n in (10, 52)]
    builder = read(IMAGENET, lines)
    assert [step.iteration for step in builder.steps] == [11, 53, 64, 106]
    assert builder.epochs == [(1, 0), (3, 53)]
    made = run_of(IMAGENET, lines, "printed[11:106]")
    assert made.samples_per_s == pytest.approx(64 / 6.512)


def test_imagenet_of_2017_and_times_of_minutes() -> None:
    old = "Epoch: [3][100/5005]\tTime 105.105 (99.250)\tData 0.003 (0.021)\tLoss 6.9117 (6.9780)\t"

    assert read(IMAGENET, [old]).steps[0][1:6] == (101, None, None, 99.25, 6.9117)


def test_imagenet_that_counts_from_one_shows_it_in_its_first_line() -> None:
    first = BATCH.replace(" 0.970 ( 6.512)", "12.054 (12.054)")
    later = BATCH.replace("[ 1/53]", "[11/53]")

    assert [step.iteration for step in read(IMAGENET, [first, later]).steps] == [1, 11]
    assert [step.iteration for step in read(IMAGENET, [later]).steps] == [12]


def test_speed_of_paddle_bert_counts_every_trainers_steps() -> None:
    head = "worker_endpoints:['a:1', 'b:1'] trainers_num:2 current_endpoint:a:1  trainer_id:0"
    alone, pair = read(PADDLE_BERT, [PADDLE_LINE]), read(PADDLE_BERT, [head, PADDLE_LINE])

    assert alone.steps[0][1:8] == (60, None, None, 1.060437, 10.487363, None, None)
    assert (alone.printed.unit, alone.printed.scale) == (Unit.ITERATIONS_PER_S, 1.0)
    assert pair.printed.scale == 0.5
    assert pair.steps == [alone.steps[0]._replace(line=2)]


def test_paddle_bert_of_later_2020_and_its_validation() -> None:
    later = (
        "[epoch: 1, progress: 1/1, step: 60] loss: 10.487363, ppl: 1.0, next_sent_acc: 0.5, "
        "batch_cost: 0.943008 sec, speed: 1.060437 steps/s, file: demo_wiki_train.gz"
    )
    validation = (
        "[validation_set] epoch: 1, step: 100, loss: 10.036789, global ppl: 12706.8, "
        "batch-averged ppl: 12706.8, next_sent_acc: 1.000000, speed: 0.987255 steps/s"
    )
    builder = read(PADDLE_BERT, [later, validation])

    assert [(step.iteration, step.printed) for step in builder.steps] == [(60, 1.060437)]
    assert not builder.notes


def test_elapse_is_the_time_of_one_batch() -> None:
    mixup = "INFO:utils.utility:[Pass 1, train batch 0] \tloss 6.9, lr 0.10000, elapse 0.4000 sec"
    test = PASS_LINE.replace("train batch", "test  batch").replace(" lr 0.10000,", "")
    builder = read(PADDLE_RESNET, [PASS_LINE, mixup, test])

    assert [(step.iteration, step.printed) for step in builder.steps] == [(20, 0.3425), (21, 0.4)]
    assert builder.steps[0].lr == 0.1
    assert builder.printed.averaging is Averaging.LAST_ONE


def test_paddlenlp_prints_the_speed_of_one_device() -> None:
    lines = [NLP_LINE, NLP_LINE.replace("tobal step: 40", "global step 50 / 500")]
    builder = read(NLP, [lines[0], lines[1] + ", max_mem_allocated: 5120 MB"])

    assert [step.iteration for step in builder.steps] == [40, 50]
    assert builder.steps[1][4:8] == (492.25918, 11.128925, None, 5120.0)
    assert builder.printed.scope is Scope.DEVICE
    assert builder.counter is Counter.MICRO_STEPS


def test_paddlenlp_arguments() -> None:
    text = "Namespace(batch_size=96, gradient_merge_steps=88, use_amp={}, use_pure_fp16=False)"

    assert facts(read(NLP, [text.format("True")])) == {
        "accumulation": 88,
        "batch_size": 96,
        "precision": "fp16",
    }
    assert facts(read(NLP, [text.format("0")]))["precision"] == "fp32"


def test_paddleclas_prints_a_running_mean_of_one_device() -> None:
    early = CLAS_LINE.replace("step:10 ", "step:4  ")
    builder = read(CLAS, ["LAUNCH INFO, ips: 127.0.0.1", early, CLAS_LINE])

    assert [(step.iteration, step.printed) for step in builder.steps] == [
        (4, None),
        (10, 338.69825),
    ]
    assert builder.steps[1][5:7] == (6.995, 0.1)
    assert (builder.steps[1].stamp or 0) % 86400 == (16 * 60 + 17) * 60 + 31
    assert (builder.printed.averaging, builder.printed.origin) == (Averaging.RUNNING, 4)
    assert builder.printed.scope is Scope.DEVICE
    assert not builder.notes


def test_paddleclas_counts_static_epochs_on_from_the_last_printed() -> None:
    epochs = [
        CLAS_LINE.replace("epoch:0", f"epoch:{epoch}").replace("step:10 ", f"step:{done}")
        for epoch in (0, 1, 2)
        for done in ("4  ", "200", "400")
    ]
    builder = read(CLAS, epochs)
    assert [step.iteration for step in builder.steps] == [
        4,
        200,
        400,
        404,
        600,
        800,
        804,
        1000,
        1200,
    ]
    assert [step.printed is None for step in builder.steps] == 3 * [True, False, False]
    assert builder.epochs == [(1, 0), (4, 400), (7, 800)]
    assert [note.text for note in builder.notes] == [
        "an epoch's number of iterations is taken from the last one printed of it:"
        " the log does not say it"
    ]


def dynamic(epoch: int, index: int, length: int = 304) -> str:
    place = f"[Epoch {epoch}/120][Iter: {index}/{length}]"
    return DYNAMIC_LINE.replace("[Epoch 24/120][Iter: 10/304]", place)


def test_paddleclas_counts_dynamic_epochs_by_the_length_that_each_line_states() -> None:
    builder = read(CLAS, [dynamic(24, 10), dynamic(24, 300), dynamic(25, 0), dynamic(26, 10)])
    assert [step.iteration for step in builder.steps] == [11, 301, 305, 619]
    assert [step.printed is None for step in builder.steps] == [False, False, True, False]
    assert builder.epochs == [(1, 0), (3, 304), (4, 608)]
    assert not builder.notes


def test_a_line_that_states_another_length_of_an_epoch_is_left_out() -> None:
    odd = [dynamic(1, 10), dynamic(2, 10, 3040), dynamic(2, 20)]
    builder = read(CLAS, odd)
    assert [step.iteration for step in builder.steps] == [11, 325]
    assert [note.text for note in builder.notes] == [
        "an epoch of 3040 iterations: those before had another number"
    ]
    two_runs = [*odd, *(dynamic(1, index, 100) for index in (10, 20, 30)), dynamic(2, 10, 100)]
    assert [step.iteration for step in read(CLAS, two_runs).steps] == [11, 325, 21, 31, 111]


def test_a_run_that_begins_with_an_earlier_epoch_is_another() -> None:
    builder = read(CLAS, [dynamic(24, 10), dynamic(25, 10), dynamic(1, 10), dynamic(2, 10)])
    assert [step.iteration for step in builder.steps] == [11, 315, 11, 315]


SECONDS = 0.5
EPOCH, EVALUATION = 60, 30.0


def trained(epochs: int) -> list[str]:
    """A run of PaddleClas of two devices with a batch of 32: 128 samples/s, in an epoch's first 20
    iterations half of it; each epoch ends with an evaluation."""
    lines = []
    for epoch in range(epochs):
        for index in range(0, EPOCH, 10):
            done, slow = index + 1, min(index + 1, 20) * SECONDS
            now = epoch * (EPOCH * SECONDS + 10 + EVALUATION) + done * SECONDS + slow
            rate = 32 * (done - 5) / ((done - 5) * SECONDS + slow - 5 * SECONDS) if done > 5 else 99
            stamp = f"2024/07/31 20:{int(now // 60):02d}:{now % 60:06.3f}"
            line = dynamic(epoch + 1, index, EPOCH).replace("2024/07/31 20:24:38", stamp)
            lines.append(line.replace("25.47451", f"{rate:.8f}"))
    return lines


@pytest.mark.parametrize(
    ("window", "seconds", "covered"),
    [
        # iterations 21 to 51 of the first epoch, 5 to 51 and 5 to 21 of the next, 15 of each slow
        ("printed[20:150]", 30 * 0.5 + (15 + 31 * 0.5) + (15 + 0.5), 30 + 46 + 16),
        ("printed[20:60]", 15, 30),
        ("printed[80:120]", 15, 30),
    ],
)
def test_means_of_epochs_are_taken_apart_within_each(
    window: str, seconds: float, covered: int
) -> None:
    result = run_of(CLAS, trained(4), window)
    assert result.samples_per_s == pytest.approx(64 * covered / seconds, rel=1e-6)
    gap = any("iterations of the window have no printed speed" in w for w in result.warnings)
    assert gap == (window == "printed[20:150]")


def test_a_clock_over_epochs_has_their_evaluation_in_it_and_says_so() -> None:
    within = run_of(CLAS, trained(4), "clock[20:60]")
    assert within.samples_per_s == pytest.approx(128, rel=1e-3)
    assert not any("several epochs" in warning for warning in within.warnings)
    over = run_of(CLAS, trained(4), "clock[20:120]")
    assert over.samples_per_s is not None and over.samples_per_s < 70
    assert any(warning.startswith("several epochs are in") for warning in over.warnings)


def test_rules_by_lines_take_the_lines_of_all_epochs() -> None:
    result = run_of(CLAS, trained(4), "lines")
    assert result.external is not None and result.external.last == 3 * EPOCH + 51
    assert not any("first was read" in warning for warning in result.warnings)


def run_of(of: Format, lines: list[str], text: str) -> RunResult:
    made = read(of, lines).reading()
    assert made is not None
    named = reading_samples.facts(nodes=1, gpus_per_node=2, batch_size=32)
    scanned = reading_samples.scanned(made)
    (result,) = interpret(scanned, named, (), {}, rule(text)).results
    return result


def test_paddleclas_generations_count_and_drop_differently() -> None:
    first = DYNAMIC_LINE.replace("Iter: 10/", "Iter: 0/")
    newer = read(CLAS, [first, DYNAMIC_LINE])
    old = CLAS_LINE.replace("epoch:0   train step:10   lr", "epoch:0  , train step:20  , lr")
    end = CLAS_LINE.replace("epoch:0   train step:10  ", "END epoch:0   train")

    assert [step.iteration for step in newer.steps] == [1, 11]
    assert [step.printed for step in newer.steps] == [None, 25.47451]
    assert newer.steps[1][5:7] == (0.05098, 0.001)
    assert newer.printed.origin == 5
    builder = read(CLAS, [old.replace("samples", "images"), end])
    assert [(step.iteration, builder.printed.origin) for step in builder.steps] == [(21, 10)]


def test_mindspore_puts_a_step_and_the_time_after_it_together() -> None:
    tensors = (
        "epoch: 1, current epoch percent: 0.002, step: 40, outputs are "
        "(Tensor(shape=[1], dtype=Float32, value= [ 9.25e+00]), Tensor(shape=[], dtype=Bool))"
    )
    builder = read(MINDSPORE, [OUTPUTS, EPOCH_TIME, EPOCH_TIME, tensors, "Train " + EPOCH_TIME])

    assert [step.iteration for step in builder.steps] == [20, 40]
    assert [step.loss for step in builder.steps] == [10.5, 9.25]
    assert printed(builder) == [61.725, 61.725]
    assert builder.printed.unit is Unit.MS_PER_ITERATION


def test_mindspore_counts_steps_of_an_epoch_on() -> None:
    old = "Epoch time: 65047.685, per step time: 41.644"
    lines = ["epoch: 1 step: 878, loss is 0.55", old, "epoch: 2 step: 878, loss is 0.5", old]
    builder = read(MINDSPORE, [*lines, "Eval " + EPOCH_TIME, EPOCH_TIME.replace(" ms", "")])

    assert [step.iteration for step in builder.steps] == [878, 1756]
    assert printed(builder) == [41.644, 41.644]


def test_hugectr_names_how_many_iterations_its_time_is_of() -> None:
    old = "[02d07h54m43s][HUGECTR][INFO]: Iter: 200 Time(100 iters): 0.213347s Loss: 0.1 lr:9.0"
    new = "[HCTR][07:03:04.414][INFO][RK0][main]: Iter: 300 Time(100 iters): 0.25s Loss: 0.125"
    odd = HUGE.replace("(100 ", "(50 ")
    builder = read(HUGECTR, [HUGE, old, new, odd, "Iter: 400 Time(100 iters): 0.3 Loss: 0.1"])

    assert builder.printed.unit is Unit.S_PER_ITERATION
    assert builder.printed.scale == 0.01
    assert [step.printed for step in builder.steps] == [0.315066, 0.213347, 0.25, None, 0.3]
    assert [step.iteration for step in builder.steps] == [100, 200, 300, 100, 400]
    assert [step.stamp for step in builder.steps[:3]] == [10319.0, 28483.0, 25384.414]
    assert builder.stamps is Stamps.TIME_ONLY
    assert [note.line for note in builder.notes] == [4]


def test_insightface_counts_from_nought_and_leaves_ranges_alone() -> None:
    ranged, second = ARC.replace("[20]", "[20-40]"), ARC.replace("Epoch[0]", "Epoch[1]")
    builder = read(ARCFACE, [ARC, ranged, second])

    assert [step.iteration for step in builder.steps] == [21, 42]
    assert printed(builder) == [1195.56, 1195.56]
    assert builder.printed.scope is Scope.PROCESS


def test_partial_fc_prints_the_total_of_all_ranks() -> None:
    step = read(PARTIAL_FC, [TOTAL]).steps[0]

    assert step[1:3] == (460, None)
    assert step[4:6] == (1659.38, 0.01)
    assert (step.stamp or 0) % 60 == pytest.approx(59.208)


@pytest.mark.parametrize("text", LINES)
@pytest.mark.parametrize("damage", ["nan", "inf", "-inf", "1" * 5000, "1e999", "", "0.000"])
def test_a_damaged_speed_is_no_speed(text: str, damage: str) -> None:
    if text == OUTPUTS:  # its time is a line of its own
        lines = [text, EPOCH_TIME.replace("61.725", damage)]
    else:
        speed = repr(read(LINES[text], [text]).steps[0].printed)
        lines = [re.sub(rf"{re.escape(speed)}0*", damage, text)]
    builder = read(LINES[text], lines)

    assert not [step for step in builder.steps if step.printed is not None]
    assert builder.notes or (text == OUTPUTS and not damage)


@pytest.mark.parametrize("text", LINES)
def test_a_line_cut_anywhere_gives_the_whole_speed_or_none(text: str) -> None:
    whole = read(LINES[text], [text]).steps[0]
    for end in range(len(text)):
        for step in read(LINES[text], [text[:end]]).steps:
            assert step.printed in (whole.printed, None)
            assert step.iteration == whole.iteration
            assert step.stamp is None or step.stamp == pytest.approx(whole.stamp, abs=0.01)


@pytest.mark.parametrize("declared", MINE, ids=lambda each: each.name)
def test_long_lines_and_odd_digits_cost_little_and_give_nothing(declared: Format) -> None:
    texts = [text for text, each in LINES.items() if each is declared]
    fillers = [" ", "\t", "9", "e", "[", "|", ", ", *declared.literals, *texts]
    began = time.process_time()
    for text in texts:
        for place in (len(text) // 3, len(text) // 2, len(text)):
            for filler in fillers:
                middle = filler * (60_000 // len(filler))
                declared.read(
                    Line(1, text[:place] + middle + text[place:]), ReadingBuilder(declared)
                )
        arabic = re.sub("[0-9]", "\u0663", text)
        assert not read(declared, [arabic]).steps
        assert not read(declared, [re.sub("[0-9]", lambda m: m[0] * 1000, text)]).steps
    assert time.process_time() - began < 5


def test_evidence_is_what_was_read() -> None:
    assert {each.name for each in MINE if each.evidence is Evidence.REAL} == {
        *("oneflow_gpt", "paddlenlp", "paddleclas"),
    }
    assert {each.name for each in MINE if each.evidence is Evidence.SOURCE} == {
        *("oneflow_gpt2", "oneflow_insightface", "paddle18_resnet"),
    }


REAL_LOGS = Path(os.environ.get("DLPERF_REAL_LOGS", ""))
real = pytest.mark.skipif("DLPERF_REAL_LOGS" not in os.environ, reason="needs the real logs")


def read_file(declared: Format, name: str) -> ReadingBuilder:
    text = (REAL_LOGS / name).read_bytes().decode("utf-8", errors="replace")
    return read(declared, re.split("[\r\n]+", text))


@real
def test_published_figures_of_paddle_follow_from_the_printed_speeds() -> None:
    with (REAL_LOGS / "expected.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["field"] == "paddle_ips"]
    assert len(rows) == 3
    for row in rows:
        builder = read_file(CLAS if "PaddleClas" in row["log"] else NLP, row["log"])
        first = int(row["rule that fits best"].removeprefix("mean of lines[").partition(":")[0])
        speeds = printed(builder)[first:]
        ours = sum(speeds) / len(speeds) * int(row["multiplier"])
        # No rule gives what was published for PaddleNLP in fp16.
        theirs = float(row["value" if "fp16" in row["log"] else "published"])
        assert ours == pytest.approx(theirs, rel=5e-5)
        assert not builder.notes


@real
def test_real_paddle_logs_state_their_settings() -> None:
    fp16 = read_file(NLP, "paddle/PaddleNLP_bert_base_seqlen128_bs96_fp16_DP_N1C8_log")
    fp32 = read_file(NLP, "paddle/base_bs96_fp32_gpu32.log")
    clas = read_file(CLAS, "paddle/PaddleClas_ResNet50_bs256_fp32_DP_N1C8_log")

    assert facts(fp16) == {"accumulation": 88, "batch_size": 96, "precision": "fp16"}
    assert facts(fp32) == {"accumulation": 88, "batch_size": 96, "precision": "fp32"}
    assert facts(clas) == {"batch_size": 256}
    assert [builder.steps[-1].iteration for builder in (fp16, fp32, clas)] == [500, 500, 800]


@real
def test_paddleclas_really_prints_a_running_mean() -> None:
    builder = read_file(CLAS, "paddle/PaddleClas_ResNet50_bs256_fp32_DP_N1C8_log")
    one, other = builder.steps[39], builder.steps[-1]  # iterations 400 and 800
    assert one.printed and other.printed and one.stamp and other.stamp
    origin = builder.printed.origin
    seconds = (other.iteration - origin) / other.printed - (one.iteration - origin) / one.printed

    clock = 256 * 400 / (other.stamp - one.stamp)  # stamps are whole seconds
    assert 400 / seconds == pytest.approx(clock, rel=0.005)
    assert other.printed > 1.02 * clock  # the line itself, taken for the speed of the moment


@real
def test_excerpts_of_real_logs() -> None:
    bert = read_file(BERT, "excerpts/oneflow_bert_readme.log")
    gpt = read_file(GPT, "excerpts/oneflow_gpt_2d_pp_2x4x4_512_2304x24.log")
    paddle = read_file(PADDLE_BERT, "excerpts/paddle1.8_bert_readme.log")
    imagenet = read_file(IMAGENET, "excerpts/pytorch_imagenet_rn50_dlperf_readme.log")

    assert [step.iteration for step in bert.steps] == [20, 40, 60, 80]
    assert printed(bert) == [81.638, 121.513, 104.633, 118.725]
    assert facts(gpt) == {"global_batch": 512, "gpus_per_node": 8, "nodes": 4}
    assert gpt.steps[0][1:8] == (10, None, None, 35.88042, 11.23708, None, 11958.0)
    assert gpt.steps[-1].iteration == 10 * len(gpt.steps)
    assert [step.iteration for step in paddle.steps] == [60, 80, 100]
    # Pieces of several runs: the first line whose epoch has another length may be damaged.
    assert len(imagenet.steps) == 27
    assert imagenet.steps[1][1:6] == (2, None, None, 6.512, 26.312)
    (note,) = imagenet.notes
    assert note.text == "an epoch of 13 iterations: those before had another number"
    for builder in (bert, gpt, paddle):
        assert not builder.notes
