"""Readers of torchtitan's, torchtune's, LitGPT's and nanotron's lines: from a line to a speed."""

from __future__ import annotations

import pytest
from damage import scan
from scanned_lines import facts, read, reading, run

from dlperf_hpc.logs.scanned import Averaging, Counter, Scope, Stamps, Unit

HEAD = "[titan] 2026-01-05 10:00:05,250 - root - INFO - "
TITAN_2026 = (
    f"{HEAD}step: 10  loss:  7.12500  grad_norm:  1.2500  memory: 40.25GiB(50.63%)  tps: 5,762  "
    "tflops: 370.02  mfu: 37.41%"
)
TITAN_FP8 = TITAN_2026.replace("37.41%", "N/A")
TITAN_2025 = (
    f"{HEAD}step: 10  loss:  7.1250  memory: 40.25GiB(50.63%)  tps: 5,762  tflops: 1,070.02  "
    "mfu: 37.41%"
)
TITAN_2024 = f"{HEAD}step: 10  loss:  7.1250  memory: 40.25GiB(50.63%)  wps: 5,762  mfu: 37.41%"
TITAN_FIRST = f"{HEAD}step: 10  loss:  7.1250  wps:   5,762  peak_memory:  50.6%"
TITAN_COLOURS = (
    f"{HEAD}\x1b[31mstep: 10  \x1b[32mloss:  7.1250  \x1b[33mmemory: 40.25GiB(50.63%)  "
    "\x1b[34mtps: 5,762  \x1b[36mtflops: 370.02  \x1b[35mmfu: 37.41%\x1b[39m"
)
VALIDATION = f"{HEAD}validate step: 10  loss:  7.0000  memory: 33.00GiB(41.67%)  tps: 9,000"
TUNE = "Step 12 | loss:1.0625 lr:2e-05 tokens_per_second_per_gpu:405.0625 peak_memory_alloc:14.25 "
TUNE_JSON = (
    '{"step": 12, "loss": 1.0625, "lr": 2e-05, "tokens_per_second_per_gpu": 405.0625, '
    '"peak_memory_alloc": 14.25}'
)
BAR = "1|12|Loss: 1.0625:   6%|▌         | 12/200 [01:00:30<08:00,  2.55s/it]"


LIT = "Epoch 1 | iter 8 step 2 | loss train: 1.750, val: n/a | iter time: 121.25 ms (step)"
LIT_PRETRAIN = f"{LIT} remaining time: 3 days, 1:00:00"
LIT_2023 = "iter 8 step 2: loss 1.7500, iter time: 121.25ms (optimizer.step)"
LIT_2024 = "iter 8 | step 2: loss 1.7500, iter time: 121.25 ms (optimizer.step)"
NANOTRON = (
    "01/17/2024 14:02:16 [INFO|DP=0|PP=0|TP=0|n1]: iteration: 92 / 1000 | consumed_tokens: 635K | "
    "elapsed_time_per_iteration_ms: 268 | tokens_per_sec: 22.5K | tokens_per_sec_per_gpu: 2.81K | "
    "global_batch_size: 20 | lm_loss: 9.75 | lr: 1e-05 | model_tflops_per_gpu: 38.3 | grad_norm: 1"
)


# --- torchtitan


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        (TITAN_2026, 41216.0),
        (TITAN_FP8, 41216.0),
        (TITAN_2025, 41216.0),
        (TITAN_2024, 41216.0),
        (TITAN_FIRST, None),
        (TITAN_COLOURS, 41216.0),
        (f"[rank0]:{TITAN_2026}", 41216.0),
    ],
)
def test_each_generation_of_torchtitan(text: str, memory: float | None) -> None:
    found = reading(text)
    (step,) = found.steps
    assert (step.iteration, step.printed, step.loss) == (10, 5762.0, 7.125)
    assert (step.memory_mb, found.stamps) == (memory, Stamps.ABSOLUTE)
    assert (found.printed.unit, found.printed.scope) == (Unit.TOKENS_PER_S, Scope.DEVICE)


@pytest.mark.parametrize("text", [TITAN_2026, TITAN_2025, TITAN_2024, TITAN_FIRST])
def test_a_cut_step_of_torchtitans_has_no_other_speed(text: str) -> None:
    for end in range(len(text)):
        for found in read(text[:end]).readings:
            assert [step.printed for step in found.steps] == [5762.0], text[:end]


@pytest.mark.parametrize("figure", ["0", "nan", "-5", "5.762", "9" * 30])
def test_no_speed_of_torchtitans_is_invented(figure: str) -> None:
    found = read(TITAN_2026.replace("5,762", figure)).readings
    assert [step.printed for each in found for step in each.steps] in ([], [None])


def test_a_validation_is_no_step_and_a_pipelines_minus_one_no_loss() -> None:
    assert reading(VALIDATION, TITAN_2026).steps == reading("", TITAN_2026).steps
    assert not read(VALIDATION, "step: 10 loss: 7.0 tps: many").readings
    assert reading(TITAN_2026.replace(" 7.12500", "-1.00000")).steps[0].loss is None


@pytest.mark.parametrize(
    ("mesh", "expected"),
    [
        ("1-D device mesh with ['dp_shard'], [8]", {"devices": 8, "batch_size": 4}),
        ("2-D device mesh with ['dp_shard', 'tp'], [4, 2]", {"devices": 8}),
        (
            "device mesh with parallelism: pp=1, dp_replicate=2, dp_shard=8, cp=1, tp=1, ep=4",
            {"devices": 16, "batch_size": 4},
        ),
        (
            "device mesh with parallelism: pp=2, dp_replicate=1, dp_shard=8, cp=1, tp=2, ep=1",
            {"devices": 32},
        ),
        ("device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=0, cp=1, tp=1", {}),
    ],
)
def test_torchtitans_devices_and_whose_batch_it_is(mesh: str, expected: dict[str, object]) -> None:
    found = facts(
        f"{HEAD}Building {mesh}",
        f"{HEAD}Model llama3 8B size: 8,030,261,248 total parameters",
        f"{HEAD}Trainer is initialized with local batch size 4, global batch size 32, gradient "
        "accumulation steps 1, sequence length 8192, total steps 200 (warmup 40)",
        TITAN_2026,
    )
    known = {"model": "llama3-8B", "global_batch": 32, "accumulation": 1, "seq_len": 8192}
    assert found == {**known, **expected}


def titan(count: int, seconds: float, tps: int) -> list[str]:
    """A line every ten steps."""
    lines = []
    for n in range(10, count + 1, 10):
        done = n * seconds
        minutes, left = divmod(done, 60)
        stamp = f"2026-01-05 10:{minutes:02.0f}:{left:06.3f}".replace(".", ",")
        lines.append(
            TITAN_2026.replace("2026-01-05 10:00:05,250", stamp)
            .replace("step: 10", f"step: {n:2d}")
            .replace("5,762", f"{tps:,}")
        )
    return lines


def test_torchtitans_clock_and_tokens_agree() -> None:
    """32 sequences of 8192 tokens on 8 devices in 1.6 s: 20 samples/s, 20480 tokens/s a device."""
    settings = [
        f"{HEAD}Building 1-D device mesh with ['dp_shard'], [8]",
        f"{HEAD}Training starts at step 1, with local batch size 4, global batch size 32, sequence "
        "length 8192, total steps 200 (warmup 40)",
    ]
    result = run([*settings, *titan(150, 1.6, 20480)], nodes=1)
    assert result.samples_per_s == pytest.approx(20.0)
    assert result.external is not None and result.external.basis == "clock"
    assert not result.warnings
    printed = run(titan(150, 1.6, 20480), devices=8, seq_len=8192)
    assert printed.samples_per_s == pytest.approx(20.0)


# --- torchtune


@pytest.mark.parametrize("text", [TUNE, TUNE_JSON, TUNE.replace("peak_memory_alloc:14.25 ", "")])
def test_a_loggers_line_of_torchtunes(text: str) -> None:
    found = reading(text)
    (step,) = found.steps
    assert (step.iteration, step.printed, step.loss, step.lr) == (12, 405.0625, 1.0625, 2e-05)
    assert step.memory_mb == (14592.0 if "14.25" in text else None)
    assert (found.printed.scope, found.printed.averaging) == (Scope.DEVICE, Averaging.LAST_ONE)


@pytest.mark.parametrize("text", [TUNE, TUNE_JSON, BAR])
def test_a_cut_line_of_torchtunes_has_no_other_figure(text: str) -> None:
    (whole,) = reading(text).steps
    for end in range(len(text)):
        for found in read(text[:end]).readings:
            (step,) = found.steps
            assert (step.iteration, step.printed, step.stamp) == whole[1:2] + (
                whole.printed,
                whole.stamp,
            ), text[:end]


def test_torchtunes_blank_at_the_end_may_be_gone() -> None:
    bare = "Step 12 | loss:1.0625 lr:2e-05 tokens_per_second_per_gpu:405.04497875"
    assert reading(bare).steps[0].printed == 405.04497875
    assert not read(bare[:-1]).readings


def test_a_bar_of_torchtunes_is_a_clock_and_is_counted_once() -> None:
    drawn = [
        "  0%|          | 0/200 [00:00<?, ?it/s]",
        BAR,
        BAR.replace(" 12/200 [01:00:30<", " 13/200 [01:00:33<"),  # the description is the old one
        BAR.replace("|12|", "|13|").replace(" 12/200 [01:00:30<", " 13/200 [01:00:33<"),
        BAR.replace("|12|", "|13|").replace(" 12/200 [01:00:30<", " 13/200 [01:00:34<"),
    ]
    steps = scan("\r".join(drawn).encode() + b"\n").readings[0].steps
    assert [(step.iteration, step.stamp) for step in steps] == [(12, 3630.0), (13, 3633.0)]


def test_a_bar_and_a_loggers_line_behind_it_are_one_step() -> None:
    (step,) = reading(BAR + TUNE).steps
    assert (step.iteration, step.stamp, step.printed) == (12, 3630.0, 405.0625)
    assert len(reading(TUNE, TUNE).steps) == 2  # no bar: another run's


def test_later_epochs_bars_begin_anew() -> None:
    later = BAR.replace("1|12|", "2|212|")
    found = read(BAR, later)
    assert [step.iteration for step in found.readings[0].steps] == [12]
    assert "only the first was read" in found.notes[0].text


def test_torchtunes_settings_and_speed() -> None:
    config = [
        "INFO:torchtune.utils._logging:Running FullFinetuneRecipeDistributed with resolved config:",
        "batch_size: 2",
        "dtype: bf16",
        "  dtype: fp32",
        "gradient_accumulation_steps: 8",
        "tensor_parallel_dim: 1",
    ]
    bars = [
        f"1|{n}|Loss: 1.5:   6%|▌| {n}/200 [{n // 30:02d}:{2 * n % 60:02d}<08:00,  2.00s/it]"
        for n in range(1, 131)
    ]
    assert facts(*config, *bars) == {"batch_size": 2, "precision": "bf16", "accumulation": 8}
    assert run([*config, *bars], devices=4).samples_per_s == pytest.approx(32.0)
    split = [line.replace("dim: 1", "dim: 2") for line in config]
    assert "batch_size" not in facts(*split, *bars)


# --- LitGPT


@pytest.mark.parametrize("text", [LIT, LIT_PRETRAIN, LIT_2023, LIT_2024])
def test_each_generation_of_litgpt(text: str) -> None:
    found = reading(text.replace("iter 8", "iter 7"), text)
    assert (found.counter, found.printed.unit) == (Counter.MICRO_STEPS, Unit.MS_PER_ITERATION)
    assert [(step.iteration, step.printed, step.loss) for step in found.steps] == [
        (7, None, 1.75),
        (8, 121.25, 1.75),
    ]


def test_litgpts_time_behind_lines_that_are_missing_is_no_speed() -> None:
    found = reading(LIT, LIT.replace("iter 8 step 2", "iter 16 step 4"))
    assert [step.printed for step in found.steps] == [None, None]
    assert facts(LIT) == {"accumulation": 4} and not facts(LIT.removesuffix(" (step)"))
    assert not read("iter 100: val loss 1.8750, val time: 912.25 ms").readings


def test_litgpts_micro_steps_give_samples() -> None:
    lines = [
        f"Epoch 1 | iter {n} step {n // 4} | loss train: 1.750, val: n/a | iter time: 250.00 ms"
        + (" (step)" if n % 4 == 0 else "")
        for n in range(1, 131)
    ]
    result = run(lines, devices=4, nodes=1, batch_size=2)
    assert result.samples_per_s == pytest.approx(32.0)


@pytest.mark.parametrize("text", [LIT, LIT_2023, NANOTRON])
def test_a_cut_line_of_theirs_has_no_other_speed(text: str) -> None:
    before = text.replace("iter 8", "iter 7").replace(": 92 /", ": 91 /")
    whole = reading(before, text).steps
    for end in range(len(text)):
        assert [step[1:] for step in reading(before, text[:end]).steps] in (
            [whole[0][1:]],
            [step[1:] for step in whole],
            [whole[0][1:], whole[1]._replace(lr=None)[1:]],
            [whole[0][1:], whole[1]._replace(lr=None, loss=None)[1:]],
        ), text[:end]


# --- nanotron


@pytest.mark.parametrize(
    ("figure", "rate"),
    [("22.5K", 22500.0), ("298", 298.0), ("1.25M", 1.25e6), ("2G", 2e9), ("2B", 2e9)],
)
def test_nanotrons_short_numbers(figure: str, rate: float) -> None:
    (step,) = reading(NANOTRON.replace("22.5K", figure)).steps
    assert (step.iteration, step.printed, step.loss, step.lr) == (92, rate, 9.75, 1e-05)


@pytest.mark.parametrize("figure", ["nan", "", "-1", "22.5X", "1e3"])
def test_no_speed_of_nanotrons_is_invented(figure: str) -> None:
    assert not read(NANOTRON.replace("22.5K", figure)).readings


@pytest.mark.parametrize(
    "start",
    [
        "[Start training] datetime: 2024-01-17 14:00:00 | mbs: 4 | grad_accum: 8 | "
        "global_batch_size: 256 | sequence_length: 4096 | train_steps: 500 | ..",
        "mbs: 4 | grad_accum: 8 | cp: 1 | sequence_length: 4096 | global_batch_size: 256 | "
        "train_steps: 500 | ..",
    ],
)
def test_nanotrons_settings_and_speed(start: str) -> None:
    lines = [NANOTRON.replace(": 92 /", f": {n} /").replace("22.5K", "524K") for n in range(1, 131)]
    assert facts(start, *lines) == {"accumulation": 8, "global_batch": 256, "seq_len": 4096}
    result = run([start, *lines], devices=16)
    assert result.samples_per_s == pytest.approx(524000 / 4096)
