"""Readers of NeMo 2's lines, NeMo 1's progress bar and Megatron-Bridge's lines."""

from __future__ import annotations

import pytest
from format_lines import facts, reads, sampled

from dlperf_hpc.logs.formats import format_named
from dlperf_hpc.logs.scanned import Averaging

NEMO, BAR, MEGATRON = map(format_named, ("nemo", "nemo_bar", "megatron"))

LINE = (
    "Training epoch 0, iteration 12/99 | lr: 3e-05 | global_batch_size: 512 | global_step: 12 |"
    " reduced_train_loss: 10.25 | train_step_timing in s: 1.234 | consumed_samples: 6656"
)
BIONEMO = (
    "Training epoch 0, iteration 120/149 | lr: 3e-05 | consumed_samples: 121 |"
    " global_batch_size: 1 | global_step: 120 | reduced_train_loss: 1.25 |"
    " train_step_timing in s: 0.03146 | val_loss: 4.125"
)
SHORT = LINE.replace(" | consumed_samples: 6656", "")
STATE = (
    "Epoch 0: :  47%|####7     | 47/99 [06:19<07:13, v_num=0, reduced_train_loss=11.50,"
    " global_step=46.00, consumed_samples=96256.0, train_step_timing in s=49.50]"
)
BRIDGE = (
    "llama_fp8/0  [2025-12-22 15:18:33] iteration       50/      50 | consumed samples:        "
    "25600 | elapsed time per iteration (ms): 9089.0 | throughput per GPU (TFLOP/s/GPU): 663.5 |"
    " energy per GPU (J/iter/GPU): 5000.0 | power per GPU (W/GPU): 550.1 |"
    " learning rate: 3.000000E-05 | global batch size:   512 | lm loss: 8.125000E+00 |"
    " loss scale: 1.0 | grad norm: 0.042 | number of skipped iterations:   0 |"
)


@pytest.mark.parametrize(
    ("text", "iteration", "seconds", "loss", "batch"),
    [
        (LINE, 13, 1.234, 10.25, 512),
        (SHORT, 13, 1.234, 10.25, 512),
        (BIONEMO, 121, 0.03146, 1.25, 1),
        (LINE.replace("/99", "/inf"), 13, 1.234, 10.25, 512),
        (f"[2025-11-20T14:55:23+08:00] train/0 {LINE}", 13, 1.234, 10.25, 512),
    ],
)
def test_a_line_of_nemo_2(
    text: str, iteration: int, seconds: float, loss: float, batch: float
) -> None:
    builder = reads(NEMO, [text])
    (step,) = builder.steps
    assert (step.iteration, step.printed, step.loss) == (iteration, seconds, loss)
    assert (step.global_batch, step.lr, step.consumed) == (batch, 3e-5, None)
    assert facts(builder) == {"global_batch": batch} and not builder.notes


def test_nemo_2_prints_memory_in_bytes() -> None:
    memory = " | max_memory_reserved: 64286097408 | max_memory_allocated: 62777196544 | reduced"
    (step,) = reads(NEMO, [LINE.replace(" | reduced", memory)]).steps
    assert (step.memory_mb, step.printed, step.loss) == (59869.0, 1.234, 10.25)
    odd = reads(NEMO, [LINE.replace(" | reduced", memory.replace("62777196544", "1.2.3"))])
    assert [step.memory_mb for step in odd.steps] == [None]


def test_nemo_2_counts_over_epochs_by_its_global_step() -> None:
    later = LINE.replace("epoch 0, iteration 12", "epoch 1, iteration 2").replace(
        "step: 12", "step: 102"
    )
    assert [step.iteration for step in reads(NEMO, [LINE, later]).steps] == [13, 103]
    bare = reads(NEMO, [text.replace(" | global_step: 102", "") for text in (LINE, later)])
    assert [step.iteration for step in bare.steps] == [13]
    assert [note.line for note in bare.notes] == [2]


def test_no_cut_line_of_nemo_2_has_another_speed() -> None:
    for end in range(len(SHORT)):
        for step in reads(NEMO, [SHORT[:end]]).steps:
            assert step.iteration == 13
            assert step.printed is None and step.loss in (None, 10.25)


@pytest.mark.parametrize("figure", ["nan", "inf", "-1.5", "0", ""])
def test_no_time_of_nemos_is_invented(figure: str) -> None:
    builder = reads(NEMO, [LINE.replace("1.234", figure)])
    assert [step.printed for step in builder.steps] == [None]


def test_validation_lines_and_lines_of_others_are_no_iterations() -> None:
    builder = reads(NEMO, ["Validation: iteration 4/8", "[x] train_step_timing in s: 1.5"])
    assert not builder.steps and [note.line for note in builder.notes] == [2]
    assert not reads(BAR, ["Step 12: train_step_timing in s=1.25"]).steps


def test_the_bar_of_nemo_1() -> None:
    later = STATE.replace("47/99", "48/99").replace("46.00", "47.00").replace("96256", "98304")
    builder = reads(BAR, [STATE, STATE, later])
    assert [(step.iteration, step.printed, step.loss) for step in builder.steps] == [
        (47, 49.5, 11.5),
        (47, 49.5, 11.5),
        (48, 49.5, 11.5),
    ]
    assert facts(builder) == {"global_batch": 2048}
    assert builder.printed.averaging is Averaging.LAST_ONE


def test_what_the_bar_rounds_is_not_read() -> None:
    rounded = STATE.replace("46.00", "2e+3").replace("96256.0", "2.56e+5")
    assert not reads(BAR, [rounded]).steps
    assert not reads(BAR, [STATE, rounded]).facts
    # With a ramp-up the bar has the batch itself.
    ramped = STATE.replace("train_step", "global_batch_size=2048.0, train_step")
    assert [step.global_batch for step in reads(BAR, [ramped, ramped]).steps] == [2048, 2048]


def test_no_cut_bar_is_read() -> None:
    for end in range(len(STATE) - 1):
        assert not reads(BAR, [STATE[:end]]).steps


def test_settings_wait_for_an_iteration() -> None:
    world = "All distributed processes registered. Starting with 16 processes"
    length = "      encoder_seq_length: 2048"
    assert facts(reads(BAR, [length, world, STATE])) == {"seq_len": 2048, "devices": 16}
    assert not reads(NEMO, [length, world]).facts


def test_megatron_bridge() -> None:
    summary = [
        "  params_dtype: torch.bfloat16  (Mcore default: torch.float32)",
        "  seq_length: 8192  (Mcore default: None)",
        "  seq_length: 8192",
    ]
    step_time = "llama_fp8/0 Step Time : 9.09s GPU utilization: 663.5MODEL_TFLOP/s/GPU"
    builder = reads(MEGATRON, [*summary, step_time, BRIDGE])
    (step,) = builder.steps
    assert (step.iteration, step.printed, step.global_batch) == (50, 9089.0, 512)
    assert step.stamp is not None and step.loss == 8.125
    assert facts(builder) == {"precision": "bf16", "seq_len": 8192, "global_batch": 512}


@pytest.mark.parametrize(
    ("name", "seconds", "by"),
    [("nemo", 1.6056, "printed"), ("nemo_bar", 2.122, "printed")],
)
def test_a_samples_speed(name: str, seconds: float, by: str) -> None:
    result = sampled(name)
    assert result.external is not None and result.external.basis == by
    assert result.samples_per_s == pytest.approx(256 / seconds, rel=1e-3)
