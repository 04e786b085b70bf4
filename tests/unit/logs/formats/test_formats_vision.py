"""Readers of timm's, the MetricLogger programs' and detectron2's lines."""

from __future__ import annotations

import pytest
from format_lines import facts, reads, sampled

from dlperf_hpc.logs.formats import format_named
from dlperf_hpc.logs.scanned import Stamps, Unit

TIMM, LOGGER, D2 = map(format_named, ("timm", "metric_logger", "detectron2"))

# --- timm

NOW = (
    "Train: 0 [  50/1251 (  4%)]  Loss: 6.91 (6.92)  Time: 0.245s, 1044.90/s"
    "  (0.312s,  820.50/s)  LR: 1.000e-05  Data: 0.010 (0.080)"
)
OLD = NOW.replace("Loss: 6.91 (6.92)", "Loss:  6.910000 (6.9234)")


@pytest.mark.parametrize("text", [NOW, OLD])
def test_timm_prints_the_mean_since_the_epoch_began(text: str) -> None:
    builder = reads(TIMM, [text])
    (step,) = builder.steps
    assert (step.iteration, step.printed, step.loss, step.lr) == (51, 820.5, 6.91, 1e-5)
    assert not builder.notes


def test_timms_first_epoch_is_read_without_the_batch_that_may_be_smaller() -> None:
    last = NOW.replace("  50/1251 (  4%)", "1250/1251 (100%)")
    builder = reads(TIMM, [NOW, last, NOW.replace("Train: 0", "Train: 1")])
    assert [(step.iteration, step.printed) for step in builder.steps] == [(51, 820.5), (1251, None)]
    assert [note.line for note in builder.notes] == [3]


def test_batches_of_changing_size_have_no_speed() -> None:
    assert reads(TIMM, ["Using NaFlex loader", NOW]).steps[0].printed is None


def test_no_cut_line_of_timms_has_another_speed() -> None:
    for end in range(len(NOW)):
        for step in reads(TIMM, [NOW[:end]]).steps:
            assert (step.printed, step.loss) == (820.5, 6.91) and step.lr in (None, 1e-5)


@pytest.mark.parametrize("figure", ["nan", "inf", "-820.50", "0.00"])
def test_no_speed_of_timms_is_invented(figure: str) -> None:
    builder = reads(TIMM, [NOW.replace("820.50", figure)])
    assert [step.printed for step in builder.steps] == [None] and len(builder.notes) == 1


@pytest.mark.parametrize(
    "text",
    [
        "Test: [   0/29]  Time: 0.560 (0.560)  Loss:  0.6912 (0.6912)  Acc@1: 87.5000 (87.5)",
        "Train: 0 [   0/390 (  0%)]  Loss: 2.3183  Acc@1: 10.1562  Time: 3.18s  LR: 1.000e-06",
        "Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.297471",
    ],
)
def test_lines_of_others_are_not_timms(text: str) -> None:
    assert not reads(TIMM, [text]).steps


@pytest.mark.parametrize(
    "world",
    [
        "Training in distributed mode with multiple processes, 1 device per process.Process 0,"
        " total 8, device cuda:0.",
        "Training in distributed mode with multiple processes, 1 GPU per process. Process 0,"
        " total 8.",
    ],
)
def test_timms_settings(world: str) -> None:
    lines = [
        world,
        "Model vit_base_patch16_224 created, param count:86567656",
        "AMP not enabled. Training in torch.bfloat16.",
        "Learning rate (0.4) calculated from base learning rate (0.1) and effective global batch"
        " size (1024) with linear scaling.",
    ]
    assert facts(reads(TIMM, [*lines, NOW])) == {
        "devices": 8,
        "model": "vit_base_patch16_224",
        "precision": "bf16",
        "global_batch": 1024,
    }
    assert not reads(TIMM, lines).facts
    alone = "Training with a single process on 1 device (cuda)."
    assert facts(reads(TIMM, [alone, NOW])) == {"devices": 1}


# --- metric_logger

TORCHVISION = (
    "Epoch: [0]  [  40/5005]  eta: 1:00:00  lr: 0.1  img/s: 400.123456  loss: 6.97 (6.98)"
    "  acc1: 0.0000 (0.1712)  acc5: 0.0000 (0.6421)  time: 0.3012  data: 0.0031  max mem: 3524"
)
DINO = (
    "Epoch: [0/100]  [2240/2502]  eta: 0:02:44  loss: 5.385776 (7.546279)"
    "  lr: 0.000089 (0.000045)  wd: 0.040071 (0.040024)  time: 0.618063  data: 0.000170"
    "  max mem: 13871"
)
DINOV2 = (
    "I20231111 00:21:00 65566 dinov2 helpers.py:103] Training  [  3280/164000]"
    "  eta: 1 day, 3:45:08  lr: 0.0000 (0.0000)  total_loss: 12.5 (12.75)  time: 1.157781"
    "  data: 0.000141  max mem: 11125"
)


@pytest.mark.parametrize(
    ("text", "iteration", "seconds", "loss", "lr", "memory"),
    [
        (TORCHVISION, 41, 0.3012, 6.97, 0.1, 3524),
        (f"Train {TORCHVISION}", 41, 0.3012, 6.97, 0.1, 3524),
        (TORCHVISION[: -len("  max mem: 3524")], 41, 0.3012, 6.97, 0.1, None),
        (DINO, 2241, 0.618063, 5.385776, 0.000089, 13871),
        (DINOV2, 3281, 1.157781, 12.5, 0.0, 11125),
    ],
)
def test_programs_with_a_metric_logger(
    text: str, iteration: int, seconds: float, loss: float, lr: float, memory: float | None
) -> None:
    builder = reads(LOGGER, [text])
    (step,) = builder.steps
    assert (step.iteration, step.printed, step.loss) == (iteration, seconds, loss)
    assert (step.lr, step.memory_mb) == (lr, memory)
    assert not builder.notes


def test_only_means_that_do_not_overlap_are_read() -> None:
    lines = [TORCHVISION.replace("[  40/", f"[{index:4d}/") for index in range(0, 101, 10)]
    steps = reads(LOGGER, lines).steps
    assert [step.iteration for step in steps] == [1, 21, 41, 61, 81, 101]


def test_later_epochs_of_a_metric_logger_go_on_from_the_ones_before() -> None:
    """The first batch of a later epoch has the start of its data loader in its time."""
    later = TORCHVISION.replace("Epoch: [0]", "Epoch: [1]")
    builder = reads(LOGGER, [TORCHVISION, later.replace("[  40/", "[   0/"), later])
    assert [step.iteration for step in builder.steps] == [41, 5005 + 41]
    assert [epoch.after for epoch in builder.epochs] == [0, 5005] and not builder.notes


def test_dinov2s_stamp_is_read() -> None:
    later = DINOV2.replace("00:21:00", "00:21:30").replace("3280/", "3300/")
    builder = reads(LOGGER, [DINOV2, later])
    first, second = (step.stamp for step in builder.steps)
    assert first is not None and second == first + 30
    assert builder.stamps is Stamps.ABSOLUTE


def test_validation_of_a_metric_logger_is_not_read() -> None:
    test = TORCHVISION.replace("Epoch: [0]", "Test:")
    assert not reads(LOGGER, [test, f"Epoch: [0] {test}"]).steps


def test_no_cut_line_of_a_metric_loggers_has_another_speed() -> None:
    for end in range(len(TORCHVISION)):
        for step in reads(LOGGER, [TORCHVISION[:end]]).steps:
            assert (step.iteration, step.printed, step.loss) == (41, 0.3012, 6.97)


@pytest.mark.parametrize("figure", ["nan", "inf", "-0.3012", "0.0000"])
def test_no_time_of_a_metric_loggers_is_invented(figure: str) -> None:
    builder = reads(LOGGER, [TORCHVISION.replace("0.3012", figure)])
    assert [step.printed for step in builder.steps] == [None] and len(builder.notes) == 1


def test_a_metric_loggers_settings() -> None:
    one_line = "Namespace(amp=False, batch_size=32, val_batch_size=64, world_size=8, gpu=0)"
    assert facts(reads(LOGGER, [one_line, TORCHVISION])) == {"batch_size": 32, "devices": 8}
    mae = [
        "Namespace(accum_iter=4,",
        "batch_size=64,",
        "world_size=16)",
        "accumulate grad iterations: 4",
        "effective batch size: 4096",
    ]
    assert facts(reads(LOGGER, [*mae, TORCHVISION])) == {
        "accumulation": 4,
        "batch_size": 64,
        "devices": 16,
        "global_batch": 4096,
    }
    assert not reads(LOGGER, [*mae, "a batch_size=7, of another program"]).facts


# --- detectron2

EVENTS = (
    "[11/01 11:23:38 d2.utils.events]:  eta: 8:08:27  iter: 639  total_loss: 1.194"
    "  loss_cls: 0.831  time: 0.3326  last_time: 0.3311  data_time: 0.0328"
    "  last_data_time: 0.0301   lr: 0.006394  max_mem: 3961M"
)
EVENTS_2019 = EVENTS.replace("  last_time: 0.3311", "").replace("  last_data_time: 0.0301 ", "")
EVENTS_FILE = EVENTS_2019.replace(" d2.utils.events]:", "] d2.utils.events INFO:")
SPEED = (
    "[11/01 11:33:38 d2.engine.hooks]: Overall training speed: 8997 iterations in 0:10:00"
    " (0.0667 s / it)"
)


@pytest.mark.parametrize("text", [EVENTS, EVENTS_2019, EVENTS_FILE])
def test_detectron2(text: str) -> None:
    builder = reads(D2, [text, text.replace("11:23:38", "11:23:45").replace("639", "659")])
    first, second = builder.steps
    assert (first.iteration, first.printed, first.loss) == (640, 0.3326, 1.194)
    assert (first.lr, first.memory_mb) == (0.006394, 3961)
    assert first.stamp is not None and second.stamp == first.stamp + 7
    assert builder.stamps is Stamps.NO_YEAR and not builder.notes


def test_detectron2s_total() -> None:
    (total,) = reads(D2, [SPEED]).totals
    assert (total.value, total.unit) == (0.0667, Unit.S_PER_ITERATION)
    cut = reads(D2, [SPEED[:-6]])
    assert not cut.totals and len(cut.notes) == 1


def test_no_cut_line_of_detectron2s_has_another_figure() -> None:
    for end in range(len(EVENTS)):
        (whole,) = reads(D2, [EVENTS]).steps
        for step in reads(D2, [EVENTS[:end]]).steps:
            assert all(cut is None or cut == known for cut, known in zip(step[1:], whole[1:]))


@pytest.mark.parametrize("figure", ["nan", "inf", "-0.3326", "0.0000"])
def test_no_time_of_detectron2s_is_invented(figure: str) -> None:
    builder = reads(D2, [EVENTS.replace("0.3326", figure)])
    assert [step.printed for step in builder.steps] == [None] and len(builder.notes) == 1


CONFIG = """\
[11/01 11:20:00 detectron2]: Rank of current process: 0. World size: 8
SOLVER:
  AMP:
    ENABLED: true
  CLIP_GRADIENTS:
    ENABLED: false
  IMS_PER_BATCH: 16
""".splitlines()


def test_detectron2s_settings() -> None:
    stated = {"devices": 8, "precision": "fp16", "global_batch": 16}
    assert facts(reads(D2, [*CONFIG, EVENTS])) == stated
    assert not reads(D2, CONFIG).facts
    lazy = "    total_batch_size: 64"
    assert facts(reads(D2, [lazy, EVENTS])) == {"global_batch": 64}
    scaled = (
        "[11/01 11:20:09 d2.engine.defaults]: Auto-scaling the config to batch_size=32, "
        "learning_rate=0.04, max_iter=45000, warmup=500."
    )
    batches = [fact.value for fact in reads(D2, [*CONFIG, scaled, EVENTS]).facts]
    assert batches[-1] == 32


@pytest.mark.parametrize(
    ("name", "rate", "basis"),
    [
        ("timm", 1024 / 0.32, "printed"),
        ("metric_logger", 256 / 0.3, "printed"),
        ("detectron2", 16 / 0.3625, "clock"),
    ],
)
def test_a_samples_speed(name: str, rate: float, basis: str) -> None:
    result = sampled(name)
    assert result.external is not None and result.external.basis == basis
    assert result.samples_per_s == pytest.approx(rate, rel=0.03)
    assert sampled(name, "printed[20:120]").samples_per_s == pytest.approx(rate, rel=0.01)
