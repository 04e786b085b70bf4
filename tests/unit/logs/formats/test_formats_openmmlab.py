"""Readers of MMEngine's and mmcv's lines."""

from __future__ import annotations

import pytest
from format_lines import facts, reads, sampled

from dlperf_hpc.logs.format import Format
from dlperf_hpc.logs.formats import format_named
from dlperf_hpc.logs.scanned import Stamps

MMENGINE, MMCV = map(format_named, ("mmengine", "mmcv"))

EPOCH = (
    "2023/05/24 20:17:36 - mmengine - INFO - Epoch(train)  [2][  50/1051]  base_lr: 1.0000e-02"
    " lr: 9.0530e-06  eta: 8 days, 4:44:34  time: 0.6969  data_time: 0.0698  memory: 17929"
    "  loss: 7.6343  loss_cls: 3.1140"
)
ITER = (
    "2023/05/24 20:17:36 - mmengine - INFO - Iter(train) [   50/20000]  lr: 1.0000e-02"
    "  eta: 0:10:00  time: 0.5000  data_time: 0.0100  memory: 1234  loss: 0.5000"
)
CONSOLE = (
    "04/21 21:03:52 - mmengine - INFO - Epoch(train) [1][10/90]  lr: 1.000e-02  eta: 0:00:25"
    "  time: 0.010  data_time: 0.000  memory: 0  loss: 11.4723"
)
HOOK = (
    "2020-11-11 18:20:40,841 - mmdet - INFO - Epoch [1][1050/29317]\tlr: 2.000e-02,"
    " eta: 1 day, 18:57:37, time: 0.387, data_time: 0.008, memory: 3946, loss_cls: 0.4957,"
    " loss: 1.0031"
)
HOOK_ITER = HOOK.replace("Epoch [1][1050/29317]", "Iter [50/80000]")
YOLOX = (
    "2023-05-25 09:08:45.291 | INFO     | yolox.core.trainer:after_iter:282 - epoch: 1/20,"
    " iter: 190/1051, gpu mem: 20839Mb, iter_time: 1.599s, data_time: 0.003s, total_loss: 4.2"
)


def test_mmengine_counts_over_epochs_or_iterations() -> None:
    builder = reads(MMENGINE, [EPOCH, ITER])
    first, second = builder.steps
    assert (first.iteration, first.printed, first.loss) == (1051 + 50, 0.6969, 7.6343)
    assert (first.lr, first.memory_mb) == (9.053e-6, 17929)
    assert (second.iteration, second.printed, second.loss) == (50, 0.5, 0.5)
    assert builder.stamps is Stamps.ABSOLUTE and not builder.notes


def test_mmengines_stamp_has_no_year_on_the_console() -> None:
    builder = reads(MMENGINE, [CONSOLE, CONSOLE.replace("21:03:52", "21:03:54")])
    first, second = builder.steps
    assert first.stamp is not None and second.stamp == first.stamp + 2
    assert builder.stamps is Stamps.NO_YEAR
    assert (first.iteration, first.printed, first.loss) == (10, 0.010, 11.4723)


def test_mmcv() -> None:
    builder = reads(MMCV, [HOOK, HOOK.replace("\t", "    ").replace("[1][", "[2]["), HOOK_ITER])
    assert [step.iteration for step in builder.steps] == [1050, 29317 + 1050, 50]
    step = builder.steps[0]
    assert (step.printed, step.loss, step.lr, step.memory_mb) == (0.387, 1.0031, 0.02, 3946)
    assert builder.stamps is Stamps.ABSOLUTE and not builder.notes


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (MMENGINE, EPOCH.replace("(train)", "(val)")),
        (MMCV, "2020-11-11 18:20:40,841 - mmdet - INFO - Epoch(val) [1][100]\tbbox_mAP: 0.3"),
        (MMCV, YOLOX),
    ],
)
def test_validation_and_other_programs_are_not_read(kind: Format, text: str) -> None:
    builder = reads(kind, [text])
    assert not builder.steps and not builder.notes


@pytest.mark.parametrize("text", [EPOCH, ITER, HOOK])
def test_no_cut_line_has_another_figure(text: str) -> None:
    kind = MMCV if text == HOOK else MMENGINE
    (whole,) = reads(kind, [text]).steps
    for end in range(len(text)):
        for step in reads(kind, [text[:end]]).steps:
            for cut, known in zip(step[1:], whole[1:]):
                assert cut is None or cut == known, (text[:end], step)


@pytest.mark.parametrize("figure", ["nan", "inf", "-1.5000", "0.0000"])
def test_no_time_is_invented(figure: str) -> None:
    builder = reads(MMENGINE, [EPOCH.replace("0.6969", figure)])
    assert [step.printed for step in builder.steps] == [None] and len(builder.notes) == 1


def test_a_time_at_the_lines_end_counts_with_all_its_decimals() -> None:
    early = (
        "2022/08/22 18:42:22 - mmengine - INFO - Epoch(train) [1][5/7]  lr: 7.0000e-03"
        "  memory: 7730  data_time: 0.4496  loss: 17.8843  time: 1.8666"
    )
    assert [step.printed for step in reads(MMENGINE, [early, early[:-1]]).steps] == [1.8666, None]
    six = early.replace("0.4496", "0.449600")
    assert [step.printed for step in reads(MMENGINE, [six, f"{six}01"]).steps] == [None, 1.866601]


def test_an_iteration_without_times_is_read_for_its_stamp() -> None:
    bare = EPOCH.replace("  eta: 8 days, 4:44:34  time: 0.6969  data_time: 0.0698", "")
    (step,) = reads(MMENGINE, [bare]).steps
    assert step.printed is None and step.stamp is not None


DUMP = """\
    GPU number: 16
optim_wrapper = dict(
    accumulative_counts=2,
    dtype='bfloat16',
    optimizer=dict(lr=0.02, type='SGD'),
    type='AmpOptimWrapper')
test_dataloader = dict(
    batch_size=1,
    num_workers=2)
train_dataloader = dict(
    batch_sampler=dict(
        batch_size=77,
        type='AspectRatioBatchSampler'),
    batch_size=2,
    num_workers=2)
val_dataloader = dict(
    batch_size=1,
    num_workers=2)
visualizer = dict(
    dtype='float16')
""".splitlines()


def test_mmengines_settings() -> None:
    stated = {"devices": 16, "batch_size": 2, "accumulation": 2, "precision": "bf16"}
    assert facts(reads(MMENGINE, [*DUMP, ITER])) == stated
    assert not reads(MMENGINE, DUMP).facts
    plain = [line for line in DUMP if "dtype" not in line]
    assert facts(reads(MMENGINE, [*plain, ITER]))["precision"] == "fp16"
    none = [line for line in plain if "Amp" not in line]
    assert "precision" not in facts(reads(MMENGINE, [*none, ITER]))
    on_a_line = "train_dataloader = dict(batch_size=8, num_workers=2)"
    assert facts(reads(MMENGINE, [on_a_line, ITER])) == {"batch_size": 8}


@pytest.mark.parametrize(
    "batch",
    [
        ["data = dict(", "    samples_per_gpu=4,"],
        ["data = dict(", "    videos_per_gpu=4,"],
        ["data = dict(imgs_per_gpu=4,"],
    ],
)
def test_mmcvs_settings(batch: list[str]) -> None:
    others = ["        samples_per_gpu=1,", "val_dataloader = dict(", "    samples_per_gpu=1,"]
    lines = [*batch, *others, "fp16 = dict(loss_scale=512.0)", "gpu_ids = range(0, 8)", HOOK]
    assert facts(reads(MMCV, lines)) == {"batch_size": 4, "precision": "fp16", "devices": 8}


@pytest.mark.parametrize(("name", "rate"), [("mmengine", 16 / 0.62), ("mmcv", 32 / 0.401)])
def test_a_samples_speed_by_the_clock_and_by_the_printed_times(name: str, rate: float) -> None:
    clock, printed = sampled(name), sampled(name, "printed[20:120]")
    assert clock.samples_per_s == pytest.approx(rate, rel=0.002)
    assert printed.samples_per_s == pytest.approx(rate, rel=0.015)
