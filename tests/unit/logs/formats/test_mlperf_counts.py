"""What MLPerf's blocks count where it is not samples: steps, or GPT-3's tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dlperf_hpc.logs.formats import format_named
from dlperf_hpc.logs.scan.scanner import Scanner
from dlperf_hpc.logs.scanned import ScannedFile


def scan(*events: tuple[float, str, Any, dict[str, Any]]) -> ScannedFile:
    lines = [
        ":::MLLOG " + json.dumps({"time_ms": ms, "key": key, "value": value, "metadata": metadata})
        for ms, key, value, metadata in events
    ]
    text = "\n".join([*lines, ""])
    return Scanner([format_named("mlperf")]).scan("a.log", len(text), [text.encode()])


def steps(file: ScannedFile) -> list[tuple[int, float]]:
    """The iterations with the milliseconds of training before them."""
    found = [(step.iteration, step.stamp or 0.0) for step in file.readings[0].steps]
    return [(iteration, round(1000 * (stamp - found[0][1]))) for iteration, stamp in found]


# mlcommons/training_results_v5.1 NVIDIA/results/../flux1: samples_count is the one of before
FLUX = [
    (1759791400000, "global_batch_size", 2304, {}),
    (1759791577976, "block_start", None, {"samples_count": 262656, "step": 0}),
    (1759791636133, "block_stop", None, {"samples_count": 262656, "step": 114}),
    (1759791636133, "eval_start", None, {"samples_count": 262656, "step": 114}),
    (1759791640587, "eval_stop", None, {"samples_count": 262656, "step": 114}),
    (1759791640587, "block_start", None, {"samples_count": 262656, "step": 114}),
    (1759791698807, "block_stop", None, {"samples_count": 262656, "step": 228}),
    (1759791698808, "eval_start", None, {"samples_count": 525312, "step": 228}),
]


def test_the_steps_of_nvidias_blocks_are_counted() -> None:
    file = scan(*FLUX)
    assert steps(file) == [(0, 0), (114, 58157), (228, 58157 + 58220)]
    assert not file.notes


def test_lines_within_a_block_are_read() -> None:
    """Of one step that is counted from 0, of one from 1, and of the whole block, without a step."""
    stats = {"train_step_time": 0.5}
    inside: list[tuple[float, str, Any, dict[str, Any]]] = [
        (1759791583007, "tracked_stats", stats, {"samples_count": 23040.0, "step": 9.0}),
        (1759791588095, "tracked_stats", stats, {"samples_count": 46080, "step": 20}),
        (1759791600000, "tracked_stats", stats, {"samples_count": 46080, "step": 25}),
        (1759791636132, "tracked_stats", stats, {"samples_count": 262656}),
    ]
    late = (1759791640000, "tracked_stats", stats, {"samples_count": 276480, "step": 120})
    file = scan(*FLUX[:2], *inside, *FLUX[2:4], late, *FLUX[4:])
    read = [(0, 0), (10, 5031), (20, 10119), (114, 58157), (228, 58157 + 58220)]
    assert steps(file) == read and not file.notes


# mlcommons/training_results_v4.1 NVIDIA/results/../gpt3: tokens, and their tracked_stats too
GPT3 = [
    (1728322400000, "submission_benchmark", "gpt3", {}),
    (1728322400000, "global_batch_size", 2048, {}),
    (1728322400000, "max_sequence_length", 2048, {}),
    (1728322508892, "block_start", None, {"first_epoch_num": 0, "epoch_count": 50331648}),
    (1728322731500, "tracked_stats", {"train_step_timing in s": 18.4}, {"step": 50331648}),
    (1728322731569, "block_stop", None, {"first_epoch_num": 0, "epoch_count": 50331648}),
    (1728322731570, "eval_start", None, {"epoch_num": 50331648}),
    (1728322751739, "eval_stop", None, {"epoch_num": 50331648}),
    (1728322751740, "block_start", None, {"first_epoch_num": 50331648, "epoch_count": 50331648}),
    (1728322972596, "block_stop", None, {"first_epoch_num": 50331648, "epoch_count": 50331648}),
    (1728322972597, "eval_start", None, {"epoch_num": 100663296}),
]


def test_gpt3s_epochs_are_tokens() -> None:
    """12 optimizer steps of 2048 sequences of 2048 tokens in each block."""
    file = scan(*GPT3)
    assert steps(file) == [(0, 0), (12, 222677), (24, 222677 + 220856)]
    assert not file.notes


@pytest.mark.parametrize("without", ["submission_benchmark", "max_sequence_length"])
def test_other_epochs_are_not_read(without: str) -> None:
    file = scan(*[event for event in GPT3 if event[1] != without])
    assert not any(found.steps for found in file.readings)
    assert "counted in epochs" in file.notes[0].text


def test_an_evaluation_without_a_begin_is_in_the_speed_and_said() -> None:
    """As MaxText's GPT-3 of v4.1 prints it: at the moment at which the block stops."""
    events = [event for event in GPT3 if not event[1].startswith("eval_")]
    done = (1728322731569, "eval_accuracy", 2.7, {"epoch_num": 50331648})
    file = scan(*events[:6], done, *events[6:])
    assert steps(file) == [(0, 0), (12, 222677)]
    assert "an evaluation lies within a block" in file.notes[0].text
