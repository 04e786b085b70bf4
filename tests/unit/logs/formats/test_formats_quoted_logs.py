"""Lines of logs that repositories hold: settings, blocks and totals that only some programs print.

Each sample names its source; the figures that are expected are divisions of what it prints.
"""

# ruff: noqa: E501 - a line of a log is as long as it is

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from damage import scan

from dlperf_hpc.logs.interpret.interpretation import interpret
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.model.result import RunResult


def result(text: str, stated: Mapping[str, Any] | None = None) -> RunResult:
    (only,) = interpret(scan(text.encode()), (), (), stated or {}, rule("default")).results
    return only


GOLF = """\
world_size:8 grad_accum_steps:1
train_batch_tokens:524288 train_seq_len:1024 iterations:20000 warmup_steps:20 max_wallclock_seconds:600.000
step:50/20000 train_loss:3.9930 train_time:2148ms step_avg:42.95ms
step:100/20000 train_loss:3.4213 train_time:4289ms step_avg:42.89ms
step:150/20000 train_loss:3.1001 train_time:6447ms step_avg:42.98ms
"""
"""As openai/parameter-golf records/track_10min_16mb/2026-03-17_NaiveBaseline/train.log."""


def test_parameter_golf_states_its_devices_and_its_batch() -> None:
    made = result(GOLF)
    topology = made.run.case.topology
    assert (topology.nodes, topology.gpus_per_node) == (1, 8)
    assert made.samples_per_s == pytest.approx(524288 / 1024 * 50 / (4.289 - 2.148))


@pytest.mark.parametrize("length", ["1000", "0"])
def test_tokens_that_are_no_whole_sequences_are_no_batch(length: str) -> None:
    facts = scan(GOLF.replace("seq_len:1024", f"seq_len:{length}").encode()).facts
    assert {fact.name for fact in facts} == {"devices", "accumulation"}


INTERNEVO = """\
2023-07-07 12:26:58,293\tINFO launch.py:228 in launch -- Distributed environment is initialized, data parallel size: 8, pipeline parallel size: 1, tensor parallel size: {tensor}
2023-07-07 12:29:01,636\tINFO train.py:323 in record_current_batch_training_metrics -- tflops=189.8,step=1,loss=11.6,tgs (tokens/gpu/second)=4274.45,lr=6.0e-07,loss_scale=65536.0
"""
"""InternLM/InternEvo doc/en/usage.md."""


@pytest.mark.parametrize(("tensor", "devices"), [(1, [8]), (2, [])])
def test_internevos_devices_are_its_data_parallel_size_alone(
    tensor: int, devices: list[int]
) -> None:
    facts = scan(INTERNEVO.format(tensor=tensor).encode()).facts
    assert [fact.value for fact in facts if fact.name == "devices"] == devices


def event(key: str, at: float, value: Any = None, **metadata: Any) -> str:
    fields = {"namespace": "", "time_ms": 1746051324076 + round(1000 * at), "key": key}
    return ":::MLLOG " + json.dumps({**fields, "value": value, "metadata": metadata})


def late(stopped: float, samples: int, before: int, goes_on: str) -> list[str]:
    """A block whose stop repeats the count of its start, and what comes behind it."""
    return [
        event("tracked_stats", stopped, {"throughput": 33.2}, step=before),
        event("block_stop", stopped, samples_count=before),
        event(goes_on, stopped, samples_count=samples),
    ]


@pytest.mark.parametrize("goes_on", ["eval_start", "block_start"])
def test_a_block_whose_stop_repeats_its_start_ends_with_the_next_count(goes_on: str) -> None:
    """As mlcommons/training_results_v5.0 Dell/results/16xXE9712x4GB200/llama2_70b_lora prints."""
    lines = [
        event("global_batch_size", 0, 8),
        event("block_start", 0, samples_count=0),
        *late(46.295, 1536, 0, goes_on),
        *([] if goes_on == "block_start" else [event("block_start", 49.009, samples_count=1536)]),
        *late(60.574, 1920, 1536, "eval_start"),
    ]
    (reading,) = scan(("\n".join(lines) + "\n").encode()).readings
    stood = 0 if goes_on == "block_start" else 49.009 - 46.295
    ends = [(step.iteration, step.stamp, step.printed) for step in reading.steps]
    base = reading.steps[0].stamp or 0.0
    assert [(n, round((s or 0) - base, 3), p) for n, s, p in ends] == [
        (0, 0.0, None),
        (192, 46.295, 33.2),
        (240, round(60.574 - stood, 3), 33.2),
    ]


UNSLOTH = """\
==((====))==  Unsloth - 2x faster free finetuning | Num GPUs = 1
   \\\\   /|    Num examples = 51,760 | Num Epochs = 1
O^O/ \\\\_/ \\\\    Batch size per device = 2 | Gradient Accumulation steps = 4
\\\\        /    Total batch size = 8 | Total steps = 60
 "-____-"     Number of trainable parameters = 41,943,040
462.7198 seconds used for training.
7.71 minutes used for training.
"""
"""Outputs of unslothai/notebooks nb/AMD-Llama3.1_(8B)-Alpaca.ipynb."""


def test_the_seconds_of_unsloths_notebooks_are_those_of_all_steps() -> None:
    made = result(UNSLOTH)
    assert made.samples_per_s == pytest.approx(60 * 8 / 462.7198)
    assert any("no line says how many were trained" in each for each in made.warnings)


@pytest.mark.parametrize(
    ("banner", "other"),
    [
        ("51,760 | Num Epochs = 1", "10 | Num Epochs = 60"),  # 480 samples of 60 epochs of 10
        (" | Total steps = 60", ""),
        ("    Total batch size = 8 |", "   "),
    ],
)
def test_seconds_without_whole_batches_or_their_number_are_no_speed(
    banner: str, other: str
) -> None:
    """The first as in nb/AMD-Meta-Synthetic-Data-Llama3.1_(8B).ipynb."""
    file = scan(UNSLOTH.replace(banner, other).encode())
    assert not any(reading.totals for reading in file.readings)
    assert any("do not fit the epochs" in note.text for note in file.notes)
