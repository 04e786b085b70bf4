"""Readers of DeepSpeed's, Megatron's, Hugging Face's, Horovod's and tf_cnn_benchmarks' lines."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from dlperf_hpc.logs.format import Format, Line, ReadingBuilder
from dlperf_hpc.logs.formats import format_named, formats
from dlperf_hpc.logs.scanned import Counter, Evidence, Stamps, Unit

MINE = [
    format_named(name)
    for name in (
        *("deepspeed", "bing_bert", "megatron", "megatron_gpt2"),
        *("hf_trainer", "horovod_synthetic", "tf_cnn_benchmarks"),
    )
]
DEEPSPEED, BING, MEGATRON, GPT2, TRAINER, HOROVOD, TF_CNN = MINE

DS_2020 = "[INFO 2020-02-06 19:53:56] 0/50, SamplesPerSec=1292.5"
DS_03 = "[2021-05-29 19:53:43,103] [INFO] [timer.py:157:stop] 0/100, SamplesPerSec=1166.25"
DS_2021 = (
    "[2022-03-12 10:00:00,500] [INFO] [timer.py:189:stop] 0/40, SamplesPerSec=83.5, "
    "MemAllocated=0.26GB, MaxMemAllocated=9.0GB"
)
DS_2022 = (
    "[2022-10-28 04:10:07,062] [INFO] [timer.py:198:stop] 0/4, RunningAvgSamplesPerSec=80.75, "
    "CurrSamplesPerSec=71.25, MemAllocated=2.09GB, MaxMemAllocated=6.5GB"
)
DS_NOW = (
    "[2023-11-29 08:55:00,932] [INFO] [timer.py:260:stop] epoch=0/micro_step=3/global_step=3, "
    "RunningAvgSamplesPerSec=291.75, CurrSamplesPerSec=291.5, MemAllocated=17.5GB, "
    "MaxMemAllocated=66.5GB"
)
OLD = (
    " iteration      100/  320000 | elapsed time per iteration (ms): 528.9 |"
    " learning rate 1.500E-04 | lm loss 1.010000E+01 | loss scale 65536.0 |"
)
V2 = (
    " iteration       30/    1000 | consumed samples:          120 | elapsed time per iteration "
    "(ms): 1439.3 | learning rate: 1.500E-04 | global batch size:     4 | lm loss: 2.667133E+01 | "
    "loss scale: 16384.0 | grad norm: 73.338 | number of skipped iterations:   1 | "
    "number of nan iterations:   0 |"
)
CURRENT = (
    " [2025-03-31 05:54:07.250000] iteration       50/  242204 | consumed samples:        50400 | "
    "elapsed time per iteration (ms): 1552.8 | throughput per GPU (TFLOP/s/GPU): 134.0 | "
    "learning rate: 8.000000E-06 | global batch size:  1008 | lm loss: 6.258318E+00 | "
    "loss scale: 1.0 | grad norm: 1.520 |"
)
MEGATRON_DS = (
    " iteration        2/       5 | consumed samples:         4096 | consumed tokens:      8388608 "
    "| elapsed time per iteration (ms): 75254.0 | learning rate: 2.400E-07 | global batch size:  "
    "2048 | lm loss: 1.100421E+01 | loss scale: 2048.0 | actual seqlen:  2048 | "
    "samples per second: 27.215 | TFLOPs: 149.10 |"
)
NEOX = (
    " samples/sec: 7.799 | iteration       34/   1000 | elapsed time per iteration (ms): 4103.1 | "
    "learning rate: 2.000E-05 | approx flops per GPU: 4.0TFLOPS | lm_loss: 9.100000E+00 | "
    "loss scale: 65536.0 |"
)
PROGRESS = "bing_bert_progress: step=20, loss=7.25, lr=0.0001, sample_count=81920"
AT_STEP = " At step 1280, the throughput is 272.125000 Samples/s"
ACCUMULATION = "[2020-10-27 11:28:12,892] [INFO] [config.py:624:print]   {} 64".format(
    "gradient_accumulation_steps .."
)
HF_LOG = "{'loss': 10.25, 'grad_norm': 1.5, 'learning_rate': 4.9e-05, 'epoch': 0.01}"
HF_END = (
    "{'train_runtime': 123.4567, 'train_samples_per_second': 32.125, "
    "'train_steps_per_second': 1.004, 'train_loss': 9.5, 'epoch': 1.0}"
)
CNN_STEP = "10\timages/sec: 241.6 +/- 0.2 (jitter = 0.5)\t7.880"


def reads(kind: Format, lines: Iterable[str], rank: int | None = None) -> ReadingBuilder:
    """The lines that hold a literal of the format, as the scanner would show them."""
    builder = ReadingBuilder(kind)
    for number, text in enumerate(lines, 1):
        if any(literal in text for literal in (*kind.literals, *kind.facts_literals)):
            kind.read(Line(number, text, rank), builder)
    return builder


def facts(builder: ReadingBuilder) -> dict[str, object]:
    assert len({fact.name for fact in builder.facts}) == len(builder.facts), builder.facts
    return {fact.name: fact.value for fact in builder.facts}


@pytest.mark.parametrize(
    ("text", "iteration", "rate", "memory", "counter"),
    [
        (DS_2020, 50, 1292.5, None, Counter.MICRO_STEPS),
        (DS_03, 100, 1166.25, None, Counter.MICRO_STEPS),
        (DS_2021, 40, 83.5, 9216.0, Counter.MICRO_STEPS),
        (DS_2022, 4, 80.75, 6656.0, Counter.MICRO_STEPS),
        (DS_NOW, 3, 291.75, 68096.0, Counter.OPTIMIZER_STEPS),
    ],
)
def test_each_generation_of_deepspeed(
    text: str, iteration: int, rate: float, memory: float | None, counter: Counter
) -> None:
    builder = reads(DEEPSPEED, [text])
    (step,) = builder.steps
    assert (step.iteration, step.printed, step.memory_mb) == (iteration, rate, memory)
    assert builder.counter is counter
    assert builder.stamps is Stamps.ABSOLUTE
    assert not builder.notes


def test_of_a_cloud_agents_two_stamps_the_programs_own_counts() -> None:
    bare, inside = (
        reads(DEEPSPEED, [text]).steps[0].stamp
        for text in (DS_03, f"2021-05-29 19:53:45 run6222: {DS_03}")
    )
    assert bare == inside is not None


def test_deepspeed_counts_optimizer_steps_over_epochs_and_its_old_timer_one_epoch_only() -> None:
    later = DS_NOW.replace("epoch=0", "epoch=1").replace("global_step=3", "global_step=9")
    assert [step.iteration for step in reads(DEEPSPEED, [DS_NOW, later]).steps] == [3, 9]
    anew = DS_03.replace(" 0/100,", " 1/100,")
    builder = reads(DEEPSPEED, [DS_03, anew, anew])
    assert [(step.line, step.iteration) for step in builder.steps] == [(1, 100)]
    assert [note.line for note in builder.notes] == [2]
    mixed = reads(DEEPSPEED, [DS_03, DS_NOW])
    assert (len(mixed.steps), mixed.counter) == (1, Counter.MICRO_STEPS)
    assert "optimizer steps" in mixed.notes[0].text


def test_deepspeed_settings() -> None:
    builder = reads(
        DEEPSPEED,
        [
            "[2023-11-29 08:50:49,536] [INFO] [launch.py:151:main] nnodes=2, num_local_procs=8, "
            "node_rank=0",
            "[2023-11-29 08:50:49,536] [INFO] [launch.py:163:main] dist_world_size=16",
            "  train_batch_size ............. 8192",
            "  train_micro_batch_size_per_gpu  32",
            "  fp16_enabled ................. True",
            "  bfloat16_enabled ............. False",
            ACCUMULATION.replace(" 64", " 16"),
            "[x] [INFO] [logging.py:96:log_dist] [Rank 0] step=3, skipped=1, lr=[9.5e-06, 9.5e-06],"
            " mom=[(0.9, 0.95)]",
            DS_NOW,
            DS_NOW.replace("global_step=3", "global_step=4"),
        ],
    )
    assert facts(builder) == {
        "nodes": 2,
        "gpus_per_node": 8,
        "devices": 16,
        "global_batch": 8192,
        "batch_size": 32,
        "precision": "fp16",
        "accumulation": 16,
    }
    assert [step.lr for step in builder.steps] == [9.5e-06, None]


def test_deepspeeds_accumulation_is_seen_in_its_two_counts() -> None:
    line = DS_NOW.replace("micro_step=3", "micro_step=24")
    assert facts(reads(DEEPSPEED, [line])) == {"accumulation": 8}
    # A later epoch's micro-steps are counted anew; equal counts may be a pipeline engine's.
    assert not reads(DEEPSPEED, [DS_NOW, line.replace("epoch=0", "epoch=2")]).facts


@pytest.mark.parametrize("figure", ["nan", "inf", "-inf", "-1.0", "0", "9" * 30, "9" * 5000, ""])
def test_no_speed_of_deepspeeds_is_invented(figure: str) -> None:
    builder = reads(DEEPSPEED, [DS_03.replace("1166.25", figure)])
    assert [step.printed for step in builder.steps] in ([], [None])
    assert builder.notes
    odd = [DS_2021.replace("9.0GB", memory) for memory in ("9" * 400 + "GB", "1.2.3GB", "nanGB")]
    assert [step.memory_mb for step in reads(DEEPSPEED, odd).steps] == [None] * 3


def test_bing_bert_counts_optimizer_steps_where_accumulation_is_known() -> None:
    builder = reads(
        BING,
        [
            "Args = Namespace(config={'name': 'x'}, max_seq_length=128, print_steps=20)",
            ACCUMULATION,
            PROGRESS,
            AT_STEP,
            PROGRESS.replace("step=20", "step=40"),
            AT_STEP.replace("1280", "2560"),
            AT_STEP.replace("1280", "2561"),
        ],
    )
    assert builder.counter is Counter.OPTIMIZER_STEPS
    assert [(step.iteration, step.printed, step.loss, step.lr) for step in builder.steps] == [
        (20, 272.125, 7.25, 0.0001),
        (40, 272.125, 7.25, 0.0001),
    ]
    assert facts(builder) == {"seq_len": 128}
    assert [note.line for note in builder.notes] == [7]


def test_bing_bert_counts_micro_steps_where_accumulation_is_not_known() -> None:
    builder = reads(BING, [PROGRESS, AT_STEP, PROGRESS, AT_STEP.replace("1280", "2560")])
    assert builder.counter is Counter.MICRO_STEPS
    assert [(step.iteration, step.printed) for step in builder.steps] == [
        (1280, 272.125),
        (2560, 272.125),
    ]
    assert len(builder.notes) == 1
    assert len(reads(BING, [ACCUMULATION.replace("64", "True"), AT_STEP]).steps) == 1
    alone = reads(BING, [PROGRESS])
    assert (alone.counter, alone.steps[0].iteration) == (Counter.OPTIMIZER_STEPS, 20)


@pytest.mark.parametrize(
    ("kind", "text", "iteration", "unit", "printed", "loss", "lr"),
    [
        (GPT2, OLD, 100, Unit.MS_PER_ITERATION, 528.9, 10.1, 1.5e-4),
        (MEGATRON, V2, 30, Unit.MS_PER_ITERATION, 1439.3, 26.67133, 1.5e-4),
        (MEGATRON, CURRENT, 50, Unit.MS_PER_ITERATION, 1552.8, 6.258318, 8e-6),
        (MEGATRON, MEGATRON_DS, 2, Unit.MS_PER_ITERATION, 75254.0, 11.00421, 2.4e-7),
        (MEGATRON, NEOX, 34, Unit.SAMPLES_PER_S, 7.799, 9.1, 2e-5),
        (
            MEGATRON,
            MEGATRON_DS.replace("(ms): 75254.0", "(s): 75.2540"),
            2,
            Unit.S_PER_ITERATION,
            75.254,
            11.00421,
            2.4e-7,
        ),
        (
            MEGATRON,
            V2.replace("1439.3 ", "1439.3/1500.1 ").replace("1000 |", "infinity |"),
            30,
            Unit.MS_PER_ITERATION,
            1439.3,
            26.67133,
            1.5e-4,
        ),
    ],
)
def test_each_generation_of_megatron(
    kind: Format, text: str, iteration: int, unit: Unit, printed: float, loss: float, lr: float
) -> None:
    builder = reads(kind, [text])
    (step,) = builder.steps
    assert (step.iteration, step.printed, step.loss, step.lr) == (iteration, printed, loss, lr)
    assert builder.printed.unit is unit
    assert builder.counter is Counter.OPTIMIZER_STEPS
    other = GPT2 if kind is MEGATRON else MEGATRON
    assert reads(other, [text]).reading() is None
    assert not reads(other, [text]).notes


def test_megatrons_batch_of_the_line_and_its_own_stamp() -> None:
    builder = reads(MEGATRON, [V2, V2.replace("size:     4", "size:     8"), MEGATRON_DS])
    assert [(fact.line, fact.name, fact.value) for fact in builder.facts] == [
        (1, "global_batch", 4),
        (2, "global_batch", 8),
        (3, "global_batch", 2048),
    ]
    assert builder.stamps is Stamps.NONE
    two = reads(MEGATRON, [CURRENT + CURRENT.replace("05:54:07.25", "05:55:20.75")])
    first, second = (step.stamp for step in two.steps)
    assert first is not None and second is not None
    assert second - first == pytest.approx(73.5)


def test_megatron_settings_are_told_once_an_iteration_shows_whose_they_are() -> None:
    head = [
        "using world size: 16, data-parallel-size: 16, context-parallel size: 1, "
        "tensor-model-parallel size: 1, encoder-tensor-model-parallel size: 0, "
        "pipeline-model-parallel size: 1 ",
        "  micro_batch_size ................................ 2",
        "  params_dtype .................................... torch.bfloat16",
        "  retriever_seq_length ............................ 256",
        "  seq_length ...................................... 2048",
        "setting number of micro-batches to constant 64",
        "  train_batch_size ............. 8",
    ]
    assert reads(MEGATRON, head).facts == []
    assert facts(reads(MEGATRON, [*head, MEGATRON_DS])) == {
        "devices": 16,
        "batch_size": 2,
        "precision": "bf16",
        "seq_len": 2048,
        "accumulation": 64,
        "global_batch": 2048,
    }
    split = head[0].replace("tensor-model-parallel size: 1", "tensor-model-parallel size: 8")
    assert "batch_size" not in facts(reads(MEGATRON, [split, *head[1:], MEGATRON_DS]))
    old = ["using world size: 8 and model-parallel size: 1 ", "  batch_size ................... 4"]
    assert facts(reads(GPT2, [*old, OLD])) == {"devices": 8, "batch_size": 4}


def test_megatrons_memory_line_stands_before_or_after_its_iteration() -> None:
    memory = (
        "[Rank {}] (after 2 iterations) memory (MB) | allocated: 17956.4931640625 | "
        "max allocated: {} | reserved: 90178.0 | max reserved: 90178.0"
    )
    after = reads(MEGATRON, [MEGATRON_DS, memory.format(0, 68581.5), memory.format(1, 512.0)])
    before = reads(MEGATRON, [memory.format(0, 68581.5), MEGATRON_DS])
    assert [builder.steps[0].memory_mb for builder in (after, before)] == [68581.5, 68581.5]
    assert reads(MEGATRON, [memory.format(0, 68581.5)]).reading() is None
    old = "after 100 iterations memory (MB) | allocated: 1.5 | max allocated: 3.5 | cached: 4.0"
    assert reads(GPT2, [OLD, old]).steps[0].memory_mb == 3.5


def test_hugging_face_prints_one_speed_in_many_forms() -> None:
    table = "  train_samples_per_second =     32.125"
    builder = reads(TRAINER, [HF_LOG, HF_END, table])
    assert [(total.line, total.value, total.unit) for total in builder.totals] == [
        (2, 32.125, Unit.SAMPLES_PER_S)
    ]
    assert builder.steps == [] and builder.notes == []
    for form in (
        table,
        '    "train_samples_per_second": 32.125,',
        "{'train_runtime': '1575', 'train_samples_per_second': '32.125', 'epoch': '3'}",
        "TrainOutput(global_step=10, metrics={'train_samples_per_second': 32.125, 'epoch': 1.0})",
    ):
        assert [total.value for total in reads(TRAINER, [form]).totals] == [32.125]
    assert reads(TRAINER, ["  eval_samples_per_second = 38.9"]).reading() is None


def test_hugging_faces_loss_lines_show_whose_log_it_is_and_count_only_with_a_step() -> None:
    reading = reads(TRAINER, [HF_LOG]).reading()
    assert reading is not None and not reading.steps
    text = "{'loss': '0.25', 'learning_rate': '1e-05', 'epoch': '2.7', 'step': 40}"
    (step,) = reads(TRAINER, [text]).steps
    assert (step.iteration, step.loss, step.lr, step.printed) == (40, 0.25, 1e-5, None)
    assert reads(TRAINER, ["stats = {'loss': average_loss, 'accuracy': 1.0}"]).reading() is None


def test_hugging_faces_settings() -> None:
    head = [
        "[INFO|trainer.py:2243] 2024-10-22 20:05:10 >>   Instantaneous batch size per device = 8",
        "  Total train batch size (w. parallel, distributed & accumulation) = 1,024",
        "  Gradient Accumulation steps = 16",
    ]
    assert facts(reads(TRAINER, [*head, HF_LOG])) == {
        "batch_size": 8,
        "global_batch": 1024,
        "accumulation": 16,
        "replicas": 8,
    }
    assert reads(TRAINER, head).facts == []


def test_horovods_blocks_are_per_device_and_its_total_is_not() -> None:
    lines = [
        "Model: resnet50",
        "Batch size: 75",
        "Number of CPUs: 4",
        "Running warmup...",
        "Running benchmark...",
        "Iter #0: 26.1 img/sec per CPU",
        "Iter #1: 26.3 img/sec per CPU",
        "Img/sec per CPU: 26.2 +-0.2",
        "Total img/sec on 4 CPU(s): 104.8 +-0.8",
    ]
    builder = reads(HOROVOD, lines)
    assert [(step.iteration, step.printed) for step in builder.steps] == [(1, 26.1), (2, 26.3)]
    assert [(total.value, total.scope.value) for total in builder.totals] == [
        (104.8, "all devices")
    ]
    assert facts(builder) == {"model": "resnet50", "batch_size": 75, "devices": 4}
    assert builder.printed.scope.value == "one device"
    assert not builder.notes
    assert reads(HOROVOD, lines[:3]).facts == []


def test_tf_cnn_benchmarks_under_horovod() -> None:
    head = [
        "Model:       resnet101",
        "Mode:        training",
        "Batch size:  128 global",
        "             64.0 per device",
        "Devices:     ['horovod/gpu:0', 'horovod/gpu:1']",
    ]
    builder = reads(TF_CNN, [*head, CNN_STEP, "total images/sec: 483.20", "x" * 9])
    (step,) = builder.steps
    assert (step.iteration, step.printed, step.loss) == (10, 241.6, 7.88)
    assert [total.value for total in builder.totals] == [483.2]
    assert facts(builder) == {
        "model": "resnet101",
        "global_batch": 128,
        "batch_size": 64,
        "devices": 2,
    }
    assert (builder.printed.scope.value, builder.printed.averaging.value) == (
        "one process",
        "running",
    )
    accuracy = "1 images/sec: 0.2 +/- 0.0 (jitter = 0.0) 6.908 0.500 1.000"
    assert reads(TF_CNN, [accuracy]).steps[0].loss == 6.908


def test_tf_cnn_benchmarks_that_do_not_train() -> None:
    assert reads(TF_CNN, ["total images/sec: 483.20"]).reading() is None
    builder = reads(TF_CNN, ["Mode:        forward-only", "Devices:     ['/gpu:0']", CNN_STEP])
    assert [note.text for note in builder.notes] == [
        "mode forward-only: these speeds are no training's"
    ]
    assert builder.facts == []


WHOLE: list[tuple[Format, str]] = [
    (DEEPSPEED, DS_2022),
    (DEEPSPEED, DS_NOW),
    (BING, PROGRESS),
    (BING, AT_STEP),
    (GPT2, OLD),
    (MEGATRON, V2),
    (MEGATRON, CURRENT),
    (MEGATRON, MEGATRON_DS),
    (MEGATRON, NEOX),
    (TRAINER, HF_LOG),
    (TRAINER, HF_END),
    (HOROVOD, "Iter #3: 11.8 img/sec per GPU"),
    (HOROVOD, "Total img/sec on 16 GPU(s): 14281.2 +-25.0"),
    (TF_CNN, CNN_STEP),
]


@pytest.mark.parametrize(("kind", "text"), WHOLE)
def test_a_line_cut_anywhere_gives_its_figures_or_none(kind: Format, text: str) -> None:
    whole = reads(kind, [text])
    for cut in range(len(text)):
        for damaged in (text[:cut], text[cut:], text[:cut] + "\0" + text[cut:]):
            builder = reads(kind, [damaged])
            if builder.printed != whole.printed:
                continue  # GPT-NeoX's line without its first key: its time is taken instead
            for step, true in zip(builder.steps, whole.steps):
                if damaged == text[:cut]:
                    assert step.iteration == true.iteration
                for name in ("printed", "loss", "lr"):
                    read, real = getattr(step, name), getattr(true, name)
                    # The end of a number alone cannot be told from a number.
                    assert read in (None, real) or damaged == text[cut:], (name, damaged)
            if damaged == text[:cut]:
                assert [t.value for t in builder.totals] in ([], [t.value for t in whole.totals])


@pytest.mark.parametrize("kind", MINE)
def test_a_senseless_line_is_read_in_a_moment_and_without_harm(kind: Format) -> None:
    literals = (*kind.literals, *kind.facts_literals)
    noise = ["9" * 60_000, " " * 60_000, "9 " * 30_000, "=9/" * 20_000, "iteration " * 6_000]
    noise += ["nan|" * 15_000, "., " * 20_000]
    for literal, other in zip(literals, (*literals[1:], literals[0])):
        rests = [*noise, literal * 2_000, other * 2_000]
        builder = reads(kind, [part for rest in rests for part in (literal + rest, rest + literal)])
        assert not builder.steps and not builder.totals
    odd = "٣/٤, SamplesPerSec=٥ iteration ٣/ ٤ | elapsed time per iteration (ms): ٥ |"  # noqa: RUF001
    assert reads(kind, [odd]).reading() is None


def test_each_format_is_registered_and_says_what_it_rests_on() -> None:
    assert {kind.name for kind in MINE} <= {kind.name for kind in formats()}
    assert {kind.name for kind in MINE if kind.evidence is Evidence.REAL} == {
        "deepspeed",
        "megatron",
    }
    assert {kind.name for kind in MINE if kind.evidence is Evidence.SOURCE} == {
        "bing_bert",
        "megatron_gpt2",
    }


REAL = os.environ.get("DLPERF_REAL_LOGS", "")


def real(kind: Format, name: str) -> ReadingBuilder:
    if not REAL:
        pytest.skip("DLPERF_REAL_LOGS is not set")
    text = (Path(REAL) / name).read_text(errors="replace")
    tags = ("[1,0]<stdout>:", "worker-0: ")
    return reads(kind, (_without(line, tags) for line in text.splitlines()))


def _without(line: str, tags: tuple[str, ...]) -> str:
    return next((line[len(tag) :] for tag in tags if line.startswith(tag)), line)


@pytest.mark.parametrize(
    ("name", "steps", "first", "last", "seconds"),
    [
        (
            "deepspeed/opt-1.3b-globalBatchSize128.log",
            736,
            (10, 173.4455644119137, 9.649992967150629e-06),
            (7360, 171.7425285021646, 8.490116182110961e-09),
            5605.973,
        ),
        (
            "deepspeed/random_ltd_gpt_finetuning_fp16.log",
            261,
            (4, 80.82308705821143, None),
            (524, 62.103729337523966, None),
            401.183,
        ),
        (
            "excerpts/deepspeed_cifar10_tutorial_2020.log",
            13,
            (50, 1292.6411179579866, None),
            (25000, 1284.5698818883018, None),
            2488.0,
        ),
        (
            "excerpts/deepspeed_issue1107_gas8.log",
            5,
            (100, 1166.1363801104596, None),
            (500, 1340.0907121181817, None),
            33.134,
        ),
    ],
)
def test_real_deepspeed_logs(
    name: str,
    steps: int,
    first: tuple[int, float, float | None],
    last: tuple[int, float, float | None],
    seconds: float,
) -> None:
    builder = real(DEEPSPEED, name)
    assert len(builder.steps) == steps
    ends = [builder.steps[0], builder.steps[-1]]
    assert [(step.iteration, step.printed) for step in ends] == [first[:2], last[:2]]
    assert ends[0].stamp is not None and ends[1].stamp is not None
    assert ends[1].stamp - ends[0].stamp == pytest.approx(seconds, abs=1e-3)
    assert [step.lr for step in ends] == [first[2], last[2]]
    assert not builder.notes


def test_real_settings_of_deepspeed() -> None:
    assert facts(real(DEEPSPEED, "deepspeed/random_ltd_gpt_finetuning_fp16.log")) == {
        "precision": "fp16",
        "accumulation": 2,
        "global_batch": 8,
        "batch_size": 4,
    }
    assert facts(real(DEEPSPEED, "excerpts/deepspeed_cifar10_tutorial_2020.log")) == {
        "nodes": 1,
        "gpus_per_node": 1,
        "devices": 1,
        "accumulation": 1,
        "global_batch": 4,
        "batch_size": 4,
    }


def test_real_lines_of_the_others() -> None:
    builder = real(MEGATRON, "excerpts/megatron_dgxc_llama31_readme.log")
    (step,) = builder.steps
    assert (step.iteration, step.printed, step.loss, step.lr) == (1, 20289.1, 12.58695, 3e-5)
    assert step.stamp is not None and facts(builder) == {"global_batch": 128}
    trainer = real(TRAINER, "excerpts/hf_trainer_train_metrics_torchprime96.log")
    assert [(total.line, total.value) for total in trainer.totals] == [(7, 6.213)]
    horovod = real(HOROVOD, "excerpts/horovod_tf2_synthetic_issue2739.log")
    assert [step.iteration for step in horovod.steps] == list(range(1, 9))
    assert (horovod.steps[0].printed, horovod.steps[-1].printed) == (11.5, 12.0)


def test_no_other_real_log_is_taken_for_one_of_these() -> None:
    if not REAL:
        pytest.skip("DLPERF_REAL_LOGS is not set")
    taken = {
        (kind.name, path.name)
        for path in sorted(Path(REAL).rglob("*"))
        if path.is_file() and "deepspeed" not in path.as_posix()
        for kind in MINE
        if real(kind, str(path.relative_to(REAL))).reading() is not None
    }
    assert taken == {
        ("megatron", "megatron_dgxc_llama31_readme.log"),
        ("hf_trainer", "hf_trainer_train_metrics_torchprime96.log"),
        ("horovod_synthetic", "horovod_tf2_synthetic_issue2739.log"),
    }
