"""Readers of programs that draw bars or print beside them: Ultralytics, sd-scripts, Levanter,
diffusers, accelerate's scripts, unsloth, ms-swift, OpenCLIP, YOLOX, prime-rl.

Lines are those of the public issues that the modules name; numbers and times are filled in where a
window needs more of them.
"""

# ruff: noqa: E501 - a line of a log is as long as it is

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from damage import scan
from drawn_bars import bar, clock
from external_corpus import samples

from dlperf_hpc.logs.formats.bars import bar_of
from dlperf_hpc.logs.interpret.interpretation import interpret
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.logs.scanned import Reading, ScannedFile
from dlperf_hpc.model.result import RunResult

SAMPLES = {path.stem: path.read_bytes() for path in samples()}


def found(text: str) -> ScannedFile:
    return scan(text.encode())


def facts(text: str) -> dict[str, Any]:
    return {fact.name: fact.value for fact in found(text).facts}


def steps(text: str) -> list[tuple[int, Any, Any]]:
    """Iteration, stamp and printed speed of each step; none if nothing was recognised."""
    readings: tuple[Reading, ...] = found(text).readings
    return (
        [(each.iteration, each.stamp, each.printed) for each in readings[0].steps]
        if readings
        else []
    )


def result(text: str, by: str = "default", **stated: Any) -> RunResult:
    (only,) = interpret(found(text), (), (), stated, rule(by)).results
    return only


@pytest.mark.parametrize(
    ("name", "stated", "per_s"),
    [
        ("program_bars", {}, 32.0),
        ("ms_swift", {"devices": 1, "batch_size": 8, "accumulation": 1}, 16.0),
        ("open_clip", {}, 2048.0),
        ("prime_rl", {"devices": 8, "global_batch": 16}, 16 / 0.36),
        ("yolox", {}, 128.0),
    ],
)
def test_a_sample_has_its_number(name: str, stated: Mapping[str, Any], per_s: float) -> None:
    ran = result(SAMPLES[name].decode(), **stated)
    assert ran.samples_per_s == pytest.approx(per_s, rel=1e-4)


# --- bars of any program


@pytest.mark.parametrize(
    ("text", "mean"),
    [
        ("640: 100%|##########| 16/16 [00:05<00:00,  2.83it/s]", 2.83),
        ("640: 100%|##########| 1849/1849 [51:50<00:00,  1.68s/it]", 1 / 1.68),
        ("640: 100% 16/16 [00:05<00:00,  2.83it/s]", 2.83),  # as notebooks show it
        ("640: 100%|##########| 16/16 [00:05<00:00,  3.40it/s]", None),  # of the last states
        ("640:  50%|#####     | 8/16 [00:02<00:02,  2.83it/s]", None),
    ],
)
def test_the_rate_of_a_full_bar_is_its_mean_if_the_time_bears_it_out(
    text: str, mean: float | None
) -> None:
    state = bar_of(text)
    assert state is not None and state.mean == (mean and pytest.approx(mean))


@pytest.mark.parametrize("unit", [" batch/s", "batches/s", "step/s", " steps/s", "iter/s"])
def test_batches_and_steps_are_iterations(unit: str) -> None:
    state = bar_of(f"Epoch 0:  45%|####      | 45/100 [00:10<00:12,  4.30{unit}, loss=1]")
    assert state is not None and (state.rate, state.rest) == ("4.30", ", loss=1]")
    assert bar_of("Epoch 0:  45%|####      | 45/100 [03:10<00:12,  4.30s/ batch]") is not None


@pytest.mark.parametrize("unit", ["img/s", " images/s", "MB/s", " examples/s", "B/s", "file/s"])
def test_images_bytes_and_files_are_no_iterations(unit: str) -> None:
    """``Epoch 1/5: .. 12.9img/s, loss (batch)=0.5`` of a U-Net counts images."""
    text = "".join(
        f"\rEpoch 1/5:  {n % 100:2d}%|#  | {4 * n}/4576 [{clock(n)}<04:51, 12.90{unit}, loss (batch)=0.5]"
        for n in range(1, 150)
    )
    assert not found(text + "\n").readings


def test_a_validation_of_the_same_name_and_length_is_no_training() -> None:
    """As programs print it that call both bars after the epoch."""
    train = "".join(
        "\rEpoch 1/100: " + bar(n, 156, clock(n), more=", lr=5.13e-6, total_loss=2.83")
        for n in range(1, 157)
    )
    check = train.replace("total_loss", "val_loss").replace("lr=5.13e-6, ", "")
    text = f"Start Train\n{train}\nFinish Train\nStart Validation\n{check}\n"
    assert [n for n, _, _ in steps(text)] == list(range(1, 157))
    assert not found(check + "\n").readings


def test_a_bar_of_steps_beside_an_epochs_number_counts_no_batches() -> None:
    text = "".join("\rEpoch 1/10, Steps: " + bar(n, 200, clock(n)) for n in range(1, 200))
    assert not found(text + "\n").readings


def test_colossal_ais_bars_are_those_of_an_epochs_batches() -> None:
    """``tqdm(range(total_step), desc=f"Epoch [{epoch + 1}/{NUM_EPOCHS}]")`` of its examples."""
    text = "".join(
        "\rEpoch [1/3]: " + bar(n, 140, clock(2 * n), more=", loss=0.5") for n in range(1, 141)
    )
    assert result(text + "\n", devices=4, batch_size=8).samples_per_s == pytest.approx(16.0)


def test_a_bar_whose_meaning_is_not_known_is_named() -> None:
    text = "Training:   0%|          | 0/500 [00:00<?, ?it/s]"
    text += "".join("\rTraining: " + bar(n, 500, clock(n)) for n in range(1, 140))
    scanned = found(text + "\n")
    assert not scanned.readings and "does not say what it counts" in scanned.nearest
    named = found(text.replace("Training", "Epoch 0") + "\n")
    assert len(named.readings[0].steps) == 139 and not named.notes


def test_of_a_bar_of_rich_a_file_keeps_one_line() -> None:
    line = "Epoch 9/9  ━━━━━━━━━━━━━━━━ 100/100 0:00:10 • 0:00:00 9.85it/s v_num: 3.000 train_loss: 0.3\n"
    scanned = found(line)
    assert not scanned.readings and "a bar of rich's" in scanned.nearest


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_bar_of_another_rank_makes_no_step_faster(ranks: int) -> None:
    """Two nodes draw the bar of sd-scripts, each with its label."""
    lines = [
        f"{rank}: steps: " + bar(n, 2000, clock(n), " 1.00it/s", ", avr_loss=0.0725")
        for n in range(1, 131)
        for rank in range(ranks)
    ]
    ran = result("\n".join(lines) + "\n", devices=2, batch_size=3, accumulation=1)
    assert ran.samples_per_s == pytest.approx(6.0)


# --- Ultralytics

HEAD = "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size\n"
ARGUMENTS = "engine/trainer: task=detect, mode=train, model=yolo11m.pt, data=data.yaml, epochs=20, time=None, patience=100, batch={}, imgsz=640, save=True, device={}, workers=1, nbs=64, lr0=0.01\n"
EPOCH = """    {}/1000      6.73G      1.235     0.5911       1.14         11        640: 100%|██████████| {} [00:05<00:00,  2.83it/s]
                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95): 100%|██████████| 8/8 [00:03<00:00,  2.13it/s]
                   all        722       1444      0.939      0.927      0.967      0.551
"""


def test_epochs_of_ultralytics_count_by_their_means_without_the_validations() -> None:
    """Issue 7653 of ultralytics/ultralytics, of 16 iterations an epoch."""
    epochs = "".join(HEAD + EPOCH.format(n, "16/16") for n in range(31, 42))
    ran = result(ARGUMENTS.format(48, "0") + epochs)
    assert ran.samples_per_s == pytest.approx(48 * 2.83)
    assert any("up to 6 % too high" in warning for warning in ran.warnings)


@pytest.mark.parametrize(
    ("batch", "device", "read"),
    [
        ("16", "None", (4, 64, 1)),
        ("48", "0", (1, 48, 1)),
        ("128", "[0, 1, 2, 3]", (1, 128, 4)),
        ("16", "0,1", (4, 64, 2)),
        ("-1", "0", (None, None, 1)),
    ],
)
def test_the_batch_of_ultralytics_arguments_is_that_of_all_devices(
    batch: str, device: str, read: tuple[int | None, ...]
) -> None:
    stated = facts(ARGUMENTS.format(batch, device) + HEAD + EPOCH.format(1, "16/16"))
    assert tuple(map(stated.get, ("accumulation", "global_batch", "devices"))) == read
    assert stated["model"] == "yolo11m"


def test_yolov5s_arguments_and_the_batch_that_autobatch_chose() -> None:
    old = "train: weights=yolov5s.pt, cfg=, data=coco128.yaml, hyp=hyp.yaml, epochs=3, batch_size=16, imgsz=640, device=0,1, seed=0\n"
    epoch = "       0/2     2.03G   0.04615   0.07257   0.02249    0.1412       185       640: 100%|█████| 8/8 [00:08<00:00,  1.05s/it]\n"
    head = "     Epoch   gpu_mem       box       obj       cls     total    labels  img_size\n"
    assert facts(old + head + epoch) == {
        **{"model": "yolov5s", "devices": 2, "accumulation": 4, "global_batch": 64}
    }
    assert steps(head + epoch) == [(8, 8.0, pytest.approx(1 / 1.05))]
    chosen = "AutoBatch: Using batch-size 88 for CUDA:0 8.72G/14.75G (59%) ✅\n"
    assert (
        facts(ARGUMENTS.format(-1, "0") + chosen + HEAD + EPOCH.format(1, "8/8"))["global_batch"]
        == 88
    )


def test_bars_of_ultralytics_own_have_a_mean_by_their_time() -> None:
    line = "      {}/100      2.04G     0.8483      3.457      1.179         37        640: 100% ━━━━━━━━━━━━ {}\n"
    check = "                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95): 100% ━━━━━━━━━━━━ 26/26 4.8it/s 5.5s\n"
    begun = "      1/100      2.04G     0.8483      3.457      1.179         37        640: 0% ──────────── 1/221 1.1it/s 0.9s<3:20\n"
    text = (
        HEAD
        + begun
        + line.format(1, "221/221 4.4it/s 49.8s")
        + check
        + line.format(2, "221/221 5.0it/s 43.8s<0.1s")
    )
    assert steps(text) == [
        (2, 0.9, None),
        (221, 49.8, pytest.approx(221 / 49.8)),
        (442, None, pytest.approx(221 / 43.8)),
    ]
    # Below a second the time is not known to 5 %.
    assert steps(HEAD + line.format(1, "2/2 5.4it/s 0.4s"))[-1][2] is None
    assert steps(HEAD + line.format(1, "420/420 1.8it/s 3:50")) == [
        (420, 230.0, pytest.approx(420 / 230))
    ]


def test_a_real_epoch_of_ultralytics_8_4() -> None:
    """A run on a CPU; by stamps of its batches the second epoch has 2.0139 iterations/s."""
    states = [
        "        2/3         0G      2.389      1.377      1.207          4         64: 0% ──────────── 0/60  0.4s",
        "        2/3         0G      4.481      2.463      2.397          4         64: 1% ──────────── 1/60 1.4s/it 0.9s<1:22",
        "        2/3         0G      4.824      2.617      2.654          4         64: 98% ━━━━━━━━━━━╸ 59/60 2.2it/s 29.8s<0.5s",
        "        2/3         0G      4.824      2.617      2.654          4         64: 100% ━━━━━━━━━━━━ 60/60 2.0it/s 29.8s",
    ]
    text = HEAD + "".join(f"\r\x1b[K{state}" for state in states)
    read = steps(text + "\n                 Class     Images: 100% ━━━━━━━━━━━━ 2/2 3.6it/s 0.6s\n")
    # Their steps ended after 0.46, 0.87 and 29.79 s.
    assert read == [(1, 0.4, None), (2, 0.9, None), (60, 29.8, pytest.approx(2.0139, rel=1e-3))]


@pytest.mark.parametrize(
    "other",
    [
        "train: Scanning /labels.cache... 640 images, 0 corrupt: 100%|██████████| 640/640 [00:01<00:00, 640.00it/s]\n",
        "100%|██████████| 6.25M/6.25M [00:00<00:00, 119MB/s]\n",
        "                 Class     Images  Instances: 100%|██████████| 8/8 [00:03<00:00,  2.66it/s]\n",
        "Extracting Dataset to yolov11:: 100%|██████████| 5696/5696 [00:01<00:00, 4600.12it/s]\n",
    ],
)
def test_other_bars_of_ultralytics_are_no_training(other: str) -> None:
    assert not found(ARGUMENTS.format(16, "0") + HEAD + other).readings


# --- sd-scripts and Levanter


def test_steps_of_sd_scripts() -> None:
    head = "running training / 学習開始\n  num epochs / epoch数: 10\n  batch size per device / バッチサイズ: 2\n  gradient accumulation steps / 勾配を合計するステップ数 = 4\n"
    drawn = "".join(
        "\rsteps: " + bar(n, 2000, clock(n), " 1.00it/s", ", avr_loss=0.0725")
        for n in range(1, 131)
    )
    ran = result(head + drawn + "\n", devices=2)
    assert ran.samples_per_s == pytest.approx(2 * 4 * 2)
    assert ran.external is not None and ran.external.check == pytest.approx(16.0)
    assert "batch_size" not in facts(head.replace(": 2\n", ": 2, 4\n") + drawn + "\n")
    assert not found(drawn.replace("avr_loss", "x") + "\n").readings


def test_lines_of_levanter_and_none_of_its_evaluation() -> None:
    line = "2026-06-14 06:18:25 INFO Progress on:{} {}it/{} rate:7.5s/it remaining:6:52 elapsed:{} postfix:loss=9.1\n"
    text = "".join(
        line.format("train", f"{n}.0", "1.00kit", clock(6 * n))
        + line.format("eval", f"{n}.0", "64.0it", clock(n))
        for n in range(1, 131)
    )
    ran = result(text, devices=4, global_batch=512)
    assert ran.samples_per_s == pytest.approx(512 / 6)
    assert ran.run.case.framework == "levanter"
    assert not found(
        line.format("train", "1.23k", "2.00kit", "3:08") + "Progress on:train -/30\n"
    ).readings


# --- programs of Hugging Face's kin

TRAINING = """03/22/2024 15:02:20 - INFO - __main__ - ***** Running training *****
03/22/2024 15:02:20 - INFO - __main__ -   Num examples = 833
03/22/2024 15:02:20 - INFO - __main__ -   Num Epochs = 186
03/22/2024 15:02:20 - INFO - __main__ -   Instantaneous batch size per device = 8
03/22/2024 15:02:20 - INFO - __main__ -   Total train batch size (w. parallel, distributed & accumulation) = 64
03/22/2024 15:02:20 - INFO - __main__ -   Gradient Accumulation steps = 4
03/22/2024 15:02:20 - INFO - __main__ -   Total optimization steps = 500
"""


@pytest.mark.parametrize("name", ["Steps: ", ""])
def test_scripts_without_a_trainer_are_read_by_their_bar(name: str) -> None:
    """diffusers' and accelerate's; with the pipelines' own bars between."""
    drawn = "".join(
        f"\r{name}" + bar(n, 500, clock(1.5 * n), "1.50s/it", ", lr=0.0001, step_loss=0.0852")
        for n in range(1, 131)
    )
    others = (
        "\nLoading pipeline components...: "
        + bar(7, 7, "00:04")
        + "\n"
        + bar(40, 50, "00:09")
        + "\n"
    )
    ran = result(TRAINING + drawn + others)
    assert ran.samples_per_s == pytest.approx(64 / 1.5)
    assert str(ran.run.case.topology) == "1n2g"
    assert ran.run.case.framework == ("diffusers" if name else "transformers")


BANNER = r"""==((====))==  Unsloth - 2x faster free finetuning | Num GPUs used = 1
   \\   /|    Num examples = 6,261 | Num Epochs = 1 | Total steps = 196
O^O/ \_/ \    Batch size per device = 16 | Gradient accumulation steps = 2
\        /    Data Parallel GPUs = 1 | Total batch size (16 x 2 x 1) = 32
 "-____-"     Trainable parameters = 66,060,288 of 4,073,997,824 (1.62% trained)
"""
EARLIER = r"""==((====))==  Unsloth - 2x faster free finetuning | Num GPUs = 8
   \\   /|    Num examples = 12,734,115 | Num Epochs = 2
O^O/ \_/ \    Batch size per device = 4 | Gradient Accumulation steps = 2
\        /    Total batch size = 64 | Total steps = 196
 "-____-"     Number of trainable parameters = 866,157,056
"""


@pytest.mark.parametrize(("banner", "batch", "devices"), [(BANNER, 32, 1), (EARLIER, 64, 8)])
def test_unsloths_banner_has_the_settings(banner: str, batch: int, devices: int) -> None:
    tokenized = 'Unsloth: Tokenizing ["text"] (num_proc=7): 100%|████| 265/265 [00:02<00:00, 113.68 examples/s]\n'
    drawn = "".join("\r" + bar(n, 196, clock(2 * n), "2.00s/it") for n in range(1, 131))
    ran = result(tokenized + banner + drawn + "\n")
    assert ran.samples_per_s == pytest.approx(batch / 2)
    assert facts(banner + drawn + "\n")["replicas"] == devices


SWIFT = [
    "{'loss': 1.66180363, 'token_acc': 0.59449748, 'grad_norm': 1.06889856, 'learning_rate': 9.965e-05, 'memory(GiB)': 5.15, 'train_speed(iter/s)': 0.302867, 'epoch': 0.11, 'global_step/max_steps': '340/9060', 'percentage': '3.75%', 'elapsed_time': '18m 42s', 'remaining_time': '7h 59m 46s'}",
    "Train:   8%|▊         | 5/60 [03:52<43:40, 47.64s/it]{'loss': '0.2992', 'grad_norm': '0.6541', 'learning_rate': '9.97e-05', 'token_acc': '0.9285', 'epoch': '0.4301', 'global_step/max_steps': '5/60', 'elapsed_time': '3m 53s', 'remaining_time': '42m 43s', 'memory(GiB)': '14.3', 'train_speed(s/it)': '46.6'}",
    "{'loss': 0.43613276, 'grad_norm': 1.75246286, 'learning_rate': 9e-08, 'load_balancing_loss': 1.04061723, 'iteration': '5/10635', 'elapsed_time': '9m 40s', 'remaining_time': '14d 6h 48m 17s', 'memory(GiB)': 258.51, 'train_speed(s/it)': 116.095699}",
]


@pytest.mark.parametrize(
    ("line", "read"),
    [
        (SWIFT[0], (340, 0.302867, "iterations/s", 1.66180363, 9.965e-05)),
        (SWIFT[1], (5, 46.6, "s/iteration", 0.2992, 9.97e-05)),
        (
            SWIFT[2].replace("'iteration'", "'rewards/mean': 0.5, " * 300 + "'iteration'"),
            (5, 116.095699, "s/iteration", 0.43613276, 9e-08),
        ),
        (SWIFT[2], (5, 116.095699, "s/iteration", 0.43613276, 9e-08)),
    ],
)
def test_ms_swifts_loss_lines(line: str, read: tuple[object, ...]) -> None:
    (reading,) = [each for each in found(line + "\n").readings if each.format == "ms_swift"]
    (step,) = reading.steps
    assert (step.iteration, step.printed, reading.printed.unit.value, step.loss, step.lr) == read
    # The rate is the mean since the beginning, as the line's own time says.
    assert step.iteration / 0.302867 == pytest.approx(1122, abs=1) or step.iteration == 5


def test_of_ms_swifts_runs_behind_a_checkpoint_there_is_no_window() -> None:
    text = "".join(
        SWIFT[0].replace("340/9060", f"{n}/9060").replace("0.302867", f"{n / (n - 3000):.6f}")
        + "\n"
        for n in range(3010, 3300, 10)
    )
    ran = result(text, "printed[3020:3200]", devices=1, batch_size=1, accumulation=1)
    assert ran.samples_per_s is None and "goes on after iteration" in ran.reason


# --- OpenCLIP, YOLOX, prime-rl

CLIP = [
    "2023-10-18,18:08:07 | INFO | Train Epoch: 0 [  256/65368 (0%)] Data (t): 96.245 Batch (t): 99.933, 2.56173/s, 2.56173/s/gpu LR: 0.000000 Logit Scale: 14.286 Contrastive_loss: 5.6169 (5.6169) Loss: 5.6169 (5.6169)",
    "2023-10-18,18:27:13 | INFO | Train Epoch: 0 [25856/65368 (40%)] Data (t): 11.252 Batch (t): 11.458, 22.3421/s, 22.3421/s/gpu LR: 0.000000 Logit Scale: 14.286 Contrastive_loss: 5.2 (5.4) Loss: 5.2 (5.4)",
]


def test_open_clips_samples_are_iterations_of_the_first_lines() -> None:
    """Issue 681 of mlfoundations/open_clip: by its stamps 25600 samples in 1146 s."""
    text = "\n".join(CLIP) + "\n"
    assert [(n, printed) for n, _, printed in steps(text)] == [(1, 99.933), (101, 11.458)]
    ran = result(text, "clock[1:101]", devices=1)
    assert ran.samples_per_s == pytest.approx(25600 / 1146)
    assert ran.external is not None and ran.external.check == pytest.approx(256 / 11.458)


@pytest.mark.parametrize(
    "text",
    [
        CLIP[1],
        "2023-06-29,15:44:40 | INFO | Train Epoch: 0 [    64/109468 (0%)] Loss: 1.0672 (1.067) Data (t): 14.173 Batch (t): 18.240, 1.75441/s LR: 0.000000 Logit Scale: 100.000 - V4",
    ],
)
def test_a_log_of_open_clip_whose_batch_is_not_known_has_no_iterations(text: str) -> None:
    """One that begins later, and a fork's, whose count is twice its batch."""
    scanned = found(text + "\n")
    assert not scanned.readings and "which is not known" in scanned.nearest


def test_yolox_lines_and_their_clock() -> None:
    """Issue 679 of Megvii-BaseDetection/YOLOX: ten iterations of 0.569 s in 5.697 s."""
    lines = [
        "2021-11-25 03:51:03.360 | INFO | yolox.core.trainer:after_iter:238 - epoch: 48/300, iter: 5890/7393, mem: 13208Mb, iter_time: 0.571s, data_time: 0.002s, total_loss: 10.8, iou_loss: 3.0, l1_loss: 0.0, conf_loss: 5.2, cls_loss: 2.6, lr: 2.366e-03, size: 800, ETA: 12 days, 10:35:16",
        "2021-11-25 03:51:09.057 | INFO | yolox.core.trainer:after_iter:238 - epoch: 48/300, iter: 5900/7393, mem: 13208Mb, iter_time: 0.569s, data_time: 0.002s, total_loss: 9.5, iou_loss: 2.6, l1_loss: 0.0, conf_loss: 4.9, cls_loss: 2.0, lr: 2.366e-03, size: 800, ETA: 12 days, 10:35:10",
    ]
    first, second = found("\n".join(lines) + "\n").readings[0].steps
    assert (first.iteration, second.iteration, second.printed) == (5890, 5900, 0.569)
    assert (second.loss, second.lr) == (9.5, 2.366e-03)
    assert second.stamp is not None and first.stamp is not None
    assert second.stamp - first.stamp == pytest.approx(5.697)
    newer = lines[0].replace("mem: 13208Mb", "gpu mem: 20839Mb, mem: 46.8Gb")
    assert steps(newer + "\n")[0][2] == 0.571
    later = lines[1].replace("epoch: 48", "epoch: 49").replace("iter: 5900", "iter: 10")
    assert [n for n, _, _ in steps(f"{lines[0]}\n{later}\n")] == [5890, 7403]


def test_prime_rls_steps_count_from_0() -> None:
    """Pull request 999 of PrimeIntellect-ai/prime-rl."""
    line = "02:40:53 SUCCESS Step 1 | Time: 0.60s | Loss: 12.3125 | Grad. Norm: 28.4812 | LR: 1.00e-06 | Throughput: 3324 tokens/s | MFU: 1.0% | Peak Mem.: 5.2/23.7 GiB (22.1%) | Max Vio: 0.9891"
    assert steps(line + "\n") == [(2, None, 0.6)]
    assert not found("GPU | Throughput: 345 steps/sec for Step 3\n").readings


@pytest.mark.parametrize("name", ["program_bars", "ms_swift", "open_clip", "prime_rl", "yolox"])
def test_a_senseless_line_is_read_in_a_moment(name: str) -> None:
    from dlperf_hpc.logs.format import Line, ReadingBuilder
    from dlperf_hpc.logs.formats import format_named

    kind = format_named(name)
    builder = ReadingBuilder(kind)
    for noise in (
        "9" * 60_000,
        " " * 60_000,
        "9%|" * 20_000,
        "1/1 [" * 12_000,
        "{'loss': 1," * 5_000,
    ):
        for literal in (*kind.literals, *kind.facts_literals):
            kind.read(Line(1, f"1/2 1G 1{noise}{literal}{noise}"), builder)
            kind.read(Line(1, literal * 2_000), builder)
            kind.read(Line(1, f"1/2  1G  1 1: 100% ━━━━━━━━━━━━ 1/1 {noise}"), builder)
    assert not builder.steps
