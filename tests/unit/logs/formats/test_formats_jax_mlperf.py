"""Readers of MaxText's lines and of MLPerf's logging."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dlperf_hpc.logs.interpret.interpretation import interpret
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.logs.scan.scanner import scanner
from dlperf_hpc.logs.scanned import Reading, ScannedFile, Stamps, Unit
from dlperf_hpc.model.result import RunResult

HERE = Path(__file__).parent


def scan(*lines: str) -> ScannedFile:
    text = "".join(f"{line}\n" for line in lines).encode()
    return scanner().scan("a.log", len(text), [text])


def reading(*lines: str) -> Reading:
    (found,) = scan(*lines).readings
    return found


def facts(*lines: str) -> dict[str, Any]:
    return {fact.name: fact.value for fact in scan(*lines).facts}


def result(file: ScannedFile, by: str = "default", **stated: Any) -> RunResult:
    (found,) = interpret(file, (), (), stated, rule(by)).results
    return found


# --- MaxText

OF_2023 = "completed step: 20, seconds: 2.250, TFLOP/s: 35.375, loss: 2.312"
OF_2024 = "completed step: 8, seconds: 0.175, TFLOP/s/device: 39.500, loss: 210.125"
WITH_TOKENS = (
    "completed step: 9, seconds: 1.375, TFLOP/s/device: 251.500, Tokens/s/device: 35746.875, "
    "loss: 0.000"
)
WITH_WEIGHTS = (
    "completed step: 0, seconds: 5.125, TFLOP/s/device: 149.250, Tokens/s/device: 9590.625, "
    "total_weights: 393216, loss: 10.625"
)
TODAY = f"I0811 20:10:05.250125 140304841739136 metric_logger.py:226] {WITH_WEIGHTS}" + (
    ", lm_loss: 10.625, perplexity: 41149.875"
)
SLICES = "completed step: {}, seconds: 5.6, live slice count: {}, TFLOP/s/device: 1.0, loss: 9.000"


@pytest.mark.parametrize(
    ("text", "iteration", "printed", "unit", "loss"),
    [
        (OF_2023, 21, 2.25, Unit.S_PER_ITERATION, 2.312),
        (OF_2024, 9, 0.175, Unit.S_PER_ITERATION, 210.125),
        (WITH_TOKENS, 10, 35746.875, Unit.TOKENS_PER_S, 0.0),
        (WITH_WEIGHTS, 1, 9590.625, Unit.TOKENS_PER_S, 10.625),
        (TODAY, 1, 9590.625, Unit.TOKENS_PER_S, 10.625),
    ],
)
def test_each_version_of_maxtext(
    text: str, iteration: int, printed: float, unit: Unit, loss: float
) -> None:
    found = reading(text)
    (step,) = found.steps
    assert (step.iteration, step.printed, step.loss) == (iteration, printed, loss)
    assert found.printed.unit is unit
    assert found.stamps is (Stamps.NO_YEAR if text == TODAY else Stamps.NONE)


def test_no_cut_line_of_maxtext_has_another_loss_or_speed() -> None:
    for end in range(len(TODAY)):
        steps = [step for each in scan(TODAY[:end]).readings for step in each.steps]
        assert all((step.printed, step.loss) == (9590.625, 10.625) for step in steps)
        assert bool(steps) is (", loss: 10.625" in TODAY[:end])


def test_a_speed_of_maxtext_that_is_none_is_noted() -> None:
    found = scan(WITH_WEIGHTS.replace("9590.625", "inf").replace("10.625", "nan"))
    assert (found.readings[0].steps[0].printed, found.readings[0].steps[0].loss) == (None, None)
    assert len(found.notes) == 1


def test_maxtexts_evaluation_and_profiler_lines_are_no_steps() -> None:
    assert not scan(
        "Completed eval step: 3, seconds: 1.500, running loss=9.100",
        "completed profiler activation/deactivation step: 5, total_weights: 1, loss: 9.000",
        "[2026-01-01] completed step: compile",
    ).readings


def test_steps_of_a_growing_batch_are_not_read() -> None:
    ramp_up = "[Rampup Batch Size Phase], completed step: 1, seconds: 5.600, loss: 9.000"
    found = scan(ramp_up, ramp_up, WITH_WEIGHTS)
    assert [step.line for step in found.readings[0].steps] == [3]
    assert [note.line for note in found.notes] == [1]


def test_steps_with_another_number_of_slices_are_not_read() -> None:
    found = scan(*(SLICES.format(n, slices) for n, slices in enumerate((2, 2, 1, 1))))
    assert [step.iteration for step in found.readings[0].steps] == [1, 2]
    assert [note.line for note in found.notes] == [3]


def test_settings_of_maxtext() -> None:
    told = facts(
        "Config param dtype: bfloat16",
        "Config param dtype_mm: float32",
        "Config param global_batch_size_to_eval_on: 7",
        "Config param global_batch_size_to_train_on: 384",
        "Config param gradient_accumulation_steps: 2",
        "Config param max_target_length: 4096",
        "Config param model_name: llama2-7b",
        "INFO:maxtext.configs.pyconfig:Config param per_device_batch_size: 12.0",
        "Config param quantization: QuantizationType.NONE",
        "Num_devices: 16, shape (1, 1, 16)",
        WITH_WEIGHTS,
    )
    assert told == {
        **{"precision": "bf16", "global_batch": 384, "accumulation": 2, "seq_len": 4096},
        **{"model": "llama2-7b", "batch_size": 12, "devices": 16},
    }


def test_a_part_of_a_sample_is_no_batch_and_a_quantized_model_is_not_in_bf16() -> None:
    told = facts(
        "Config param model_name: default",
        "Config param per_device_batch_size: 0.5",
        "Config param quantization: int8",
        "Config param dtype: bfloat16",
        WITH_WEIGHTS,
    )
    assert told == {"precision": "int8"}


def test_maxtexts_sample_gives_tokens_and_samples() -> None:
    file = scan(*(HERE / "maxtext.log").read_text().splitlines()[:-1])
    clock = result(file)
    assert clock.external is not None and clock.external.rule == "clock[20:120]"
    assert clock.samples_per_s == pytest.approx(384 / 5, rel=0.001)
    printed = result(file, "printed")
    assert printed.samples_per_s == pytest.approx(16 * 9830.4 / 2048, rel=0.003)


# --- MLPerf


def event(key: str, time_s: float = 0.0, value: Any = None, **metadata: Any) -> str:
    told = {
        "namespace": "",
        "time_ms": int(1_700_000_000_000 + 1000 * time_s),
        "event_type": "POINT_IN_TIME",
        "key": key,
        "value": value,
        "metadata": {"file": "/workspace/train.py", "lineno": 7, **metadata},
    }
    return f":::MLLOG {json.dumps(told)}"


def block(start_s: float, seconds: float, begun: int, done: int, **stats: float) -> list[str]:
    """A block of training, and what is printed of it."""
    end = start_s + seconds
    printed = [event("tracked_stats", end, stats, step=done)] if stats else []
    return [
        event("block_start", start_s, samples_count=begun),
        *printed,
        event("block_stop", end, samples_count=done),
    ]


BATCH = event("global_batch_size", value=8)
EVALUATION = event("eval_start", 200, samples_count=384)
RUN = [
    BATCH,
    event("run_start"),
    *block(0, 200, 0, 384, throughput=1.92),
    EVALUATION,
    event("eval_stop", 244, samples_count=384),
    *block(244, 100, 384, 768, throughput=3.84),
    *block(400, 100, 768, 1152, throughput=3.84),
    *block(600, 100, 1152, 1536, throughput=3.84),
]


def test_the_clock_stands_still_between_blocks() -> None:
    found = reading(*RUN)
    assert [step.iteration for step in found.steps] == [0, 48, 96, 144, 192]
    first = found.steps[0].stamp
    assert first is not None
    assert [step.stamp - first for step in found.steps if step.stamp] == [0, 200, 300, 400, 500]
    assert [step.printed for step in found.steps] == [None, 1.92, 3.84, 3.84, 3.84]


def test_the_speed_of_mlperfs_blocks() -> None:
    made = result(scan(*RUN), nodes=1, gpus_per_node=8)
    assert made.samples_per_s == pytest.approx(3.84)
    assert made.external is not None
    assert (made.external.first, made.external.last) == (48, 192)
    assert made.external.check == pytest.approx(3.84)
    whole = result(scan(*RUN), "clock[0:192]", nodes=1, gpus_per_node=8)
    assert whole.samples_per_s == pytest.approx(1536 / 500)  # without 200 s of evaluation


def test_tracked_stats_in_tokens_are_told_to_differ_from_the_clock() -> None:
    tokens = [line.replace('"throughput": 3.84', '"throughput": 31457.28') for line in RUN]
    made = result(scan(*tokens), nodes=1, gpus_per_node=8, seq_len=8192)
    assert made.samples_per_s == pytest.approx(3.84)
    assert any("8192 (tokens of a sequence)" in warning for warning in made.warnings)


def uncounted(line: str) -> str:
    """An event whose samples_count is 0, whatever it was."""
    return re.sub(r'"samples_count": [0-9]+', '"samples_count": 0', line)


def test_samples_that_stay_at_0_are_counted_by_tracked_stats() -> None:
    """The blocks' counts were taken for an end at iteration 0, and the speed beside them not."""
    made = result(scan(*map(uncounted, RUN)), nodes=1, gpus_per_node=8)
    assert made.samples_per_s == pytest.approx(3.84)
    assert made.external is not None and made.external.check == pytest.approx(3.84)
    bare = [uncounted(line) for line in RUN if "tracked_stats" not in line]
    file = scan(*bare)
    assert not file.readings[0].steps and "same at both ends of a block" in file.notes[0].text
    told = interpret(file, (), (), {"nodes": 1, "gpus_per_node": 8}, rule())
    assert "no line with the number of an iteration was read" in told.results[0].reason


def test_tracked_stats_behind_the_stop_of_their_block() -> None:
    """As NVIDIA's Stable Diffusion prints them (callbacks of its v3.1 and v4.0): in steps."""
    first = [line for line in block(0, 200, 0, 384) if "tracked" not in line]
    stats = event("tracked_stats", 200, {"throughput": 1.93}, step_num=48)
    steps = reading(BATCH, *first, stats).steps
    assert [(step.iteration, step.printed) for step in steps] == [(0, None), (48, 1.93)]


def test_settings_of_mlperf() -> None:
    told = facts(
        event("submission_benchmark", value="llama2_70b_lora"),
        event("gradient_accumulation_steps", value=2),
        event("max_sequence_length", value=8192),
        event("number_of_nodes", value=4),
        event("accelerators_per_node", value=8),
        event("number_of_ranks", value="8"),
        BATCH,
    )
    assert told == {
        **{"model": "llama2_70b_lora", "accumulation": 2, "seq_len": 8192, "nodes": 4},
        **{"gpus_per_node": 8, "global_batch": 8},
    }


@pytest.mark.parametrize(
    ("lines", "steps", "noted"),
    [
        ([BATCH, event("block_start", first_epoch_num=1, epoch_count=4)], 0, "epochs"),
        (block(0, 10, 0, 384), 0, "global_batch_size"),
        ([BATCH, *block(0, 10, 0, 12)], 1, "no multiple"),
        ([BATCH, *block(0, 10, 0, 384), *block(20, 10, 0, 384)], 2, "does not begin with"),
        ([BATCH, event("block_start", samples_count=0), EVALUATION], 1, "evaluation lies within"),
        ([BATCH, event("block_start", samples_count=True)], 0, "epochs"),
        ([BATCH, event("block_start", -1e12, samples_count=0)], 0, "epochs"),
        ([BATCH, BATCH[:-9]], 0, "no JSON"),
        ([BATCH, ":::MLLOG " + '{"key": ' * 7000], 0, "no JSON"),
    ],
)
def test_what_is_not_certain_is_not_read(lines: list[str], steps: int, noted: str) -> None:
    found = scan(*lines)
    assert sum(len(each.steps) for each in found.readings) == steps
    assert noted in found.notes[0].text


def test_a_second_run_in_a_file_begins_anew() -> None:
    again = [BATCH, event("run_start", 1000), *block(1000, 100, 0, 384)]
    found = scan(BATCH, event("run_start"), *block(0, 200, 0, 384), *again)
    assert [step.iteration for step in found.readings[0].steps] == [0, 48, 0, 48]
    assert not found.notes


def test_a_log_of_epochs_is_recognised_without_a_speed() -> None:
    file = scan(BATCH, event("epoch_start", epoch_num=1), event("epoch_stop", epoch_num=1))
    assert interpret(file, (), (), {}, rule()).problems == ("recognised: mlperf, no speed read",)
    told = interpret(file, (), (), {"nodes": 1, "gpus_per_node": 8}, rule())
    (made,) = told.results
    assert made.reason.startswith("recognised: mlperf, no speed read: no line with the number of")
    assert told.problems == ("recognised: mlperf, no speed read",)
