"""NVIDIA's MLPerf BERT and R-GAT, whose speeds stand beside MLPerf's blocks; and MindCV's epochs."""

# ruff: noqa: E501 - a log's line is as long as it is

from __future__ import annotations

import json
from typing import Any

import pytest
from scanned_lines import read, reading, run

from dlperf_hpc.logs.scanned import Averaging, Unit

STATED: dict[str, Any] = {"nodes": 1, "gpus_per_node": 8}


def event(key: str, value: Any = None, **metadata: Any) -> str:
    return ":::MLLOG " + json.dumps(
        {"time_ms": 1723852728757, "key": key, "value": value, "metadata": metadata}
    )


BERT = [
    event("submission_benchmark", "bert"),
    event("global_batch_size", 6912),
    event("block_start", first_epoch_num=1, epoch_count=1),
]
GLOBAL = "{{'global_steps': {}, 'eval_loss': 4.24, 'eval_mlm_accuracy': 0.35}}"


def evaluated(step: int, speed: float) -> list[str]:
    samples = 6900 * step  # of packed batches: no multiple of the batch
    return [
        event("tracked_stats", {"throughput": speed}, epoch_num=samples),
        event("eval_start", samples, epoch_num=samples),
        event("eval_stop", samples, epoch_num=samples),
        GLOBAL.format(step),
    ]


def test_berts_throughput_is_that_up_to_the_step_behind_it() -> None:
    lines = [*BERT, *evaluated(29, 35000.0), *evaluated(58, 48400.5), GLOBAL.format(87)]
    steps = reading(*lines).steps
    assert [(step.iteration, step.printed) for step in steps] == [(29, 35000.0), (58, 48400.5)]


def test_berts_speed_is_in_samples_and_holds_the_evaluations() -> None:
    lines = [*BERT, *(line for n in range(1, 9) for line in evaluated(20 * n, 48400.0))]
    result = run(lines, **STATED)
    assert result.samples_per_s == pytest.approx(48400)
    assert "each speed has the time of the evaluation before it" in result.warnings


RGAT = [event("submission_benchmark", "rgat"), event("global_batch_size", 32768)]
ITERATION = "0: DLL 2025-04-29 16:53:{:09.6f} - Iteration {} | train_acc : 0.1875 % | iteration_time : {:.2f} ms | train_loss : 5.1133  | last_iter_used_cuda_graph : True "


def rgat(last: int) -> list[str]:
    lines = [ITERATION.format(0.09 * n % 60, n, 656.57 if n == 0 else 90.0) for n in range(last)]
    evaluation = "0: DLL 2025-04-29 16:53:50.349608 - Current_epoch_num 0.05 | eval_epoch_time : 1894.28 ms | total_steps : 48 "
    return [*RGAT, *lines[:60], event("eval_start", 0.05), evaluation, *lines[60:]]


def test_rgats_iterations_are_read_each_by_its_own_time() -> None:
    found = reading(*rgat(130))
    assert found.printed.unit is Unit.MS_PER_ITERATION
    assert found.printed.averaging is Averaging.LAST_ONE
    assert [step.iteration for step in found.steps] == list(range(1, 131))
    assert found.steps[0].printed == 656.57 and found.steps[0].loss == 5.1133
    result = run(rgat(130), **STATED)
    assert result.samples_per_s == pytest.approx(32768 / 0.090)


def test_such_times_beside_counted_blocks_are_left() -> None:
    blocks = [
        event("block_start", samples_count=0),
        event("block_stop", samples_count=32768 * 40),
    ]
    found = read(*RGAT, blocks[0], ITERATION.format(1, 1, 90.0), blocks[1])
    assert found.readings[0].printed.unit is Unit.SAMPLES_PER_S
    assert [step.iteration for step in found.readings[0].steps] == [0, 40]
    assert not found.notes


EPOCH = "[2023-08-02 23:{:02}:32] mindcv.utils.callbacks INFO - Epoch: [{}/120], batch: [{}/2502], loss: 4.402465, lr: 0.079744, time: {:.6f}s"
TOTAL = "[2023-08-02 23:{:02}:18] mindcv.utils.callbacks INFO - Total time since last epoch: {:.6f}(train: {:.6f}, val: 44.607866)s, ETA: 74279.170964s"


def epoch(number: int, train: float) -> list[str]:
    half, whole = (EPOCH.format(number, number, k, train / 3) for k in (1251, 2502))
    return [half, whole, TOTAL.format(number, train + 50, train)]


def test_mindcvs_epochs_count_by_the_time_of_their_training() -> None:
    lines = [*epoch(1, 951.0), *epoch(2, 583.0), *epoch(3, 581.8)]
    found: list[tuple[int, Any]] = [
        (step.iteration, step.printed) for step in reading(*lines).steps
    ]
    assert found == [
        (2502 * n, pytest.approx(train / 2502)) for n, train in ((1, 951.0), (2, 583.0), (3, 581.8))
    ]
    result = run(lines, nodes=1, gpus_per_node=4, batch_size=128)
    assert result.samples_per_s == pytest.approx(512 * 2502 / 583.0)


def test_a_total_without_a_whole_epoch_before_it_is_left() -> None:
    lines = [*epoch(1, 951.0), EPOCH.format(9, 2, 1251, 300.0), TOTAL.format(9, 600, 583.0)]
    assert [step.iteration for step in reading(*lines).steps] == [2502]


def test_a_validation_in_the_time_is_the_reason_for_no_speed() -> None:
    keras = "41/41 [==============================] - 4s 97ms/step - loss: 2.4 - val_loss: 1.3"
    result = run([line for n in (1, 2, 3) for line in (f"Epoch {n}/3", keras)], **STATED)
    assert result.reason == (
        "recognised: keras, no speed read: validation is in the time of an epoch: no speed is read"
    )
