"""Readers of nanoGPT and its kin, and of llm.c: from a line to a speed."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from damage import scan
from scanned_lines import facts, read, reading, run

from dlperf_hpc.logs.interpret.interpretation import interpret
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.logs.scanned import Averaging, Unit
from dlperf_hpc.model.result import Status

NANOGPT = "iter 100: loss 2.4512, time 912.25ms, mfu 16.50%"
EARLY = "iter 100: loss 2.4512, time 912.25ms"
FORK = "iter 100: loss 2.4512, time 912.25ms, mfu 16.50%, cuda memory 0.499G, lr 6.00e-04"
LLAMA2_C = "100 | loss 2.4512 | lr 5.000000e-05 | 912.25ms | mfu 16.50%"
BUILD = (
    "step   12 | loss: 6.112500 | lr 1.2500e-05 | norm: 2.4375 | dt: 312.50ms | tok/sec: 1677721.62"
)
CHAT = (
    "step 00012/21400 (0.06%) | loss: 6.112500 | lrm: 1.00 | dt: 455.25ms | tok/sec: 1,151,902 "
    "| mfu: 48.25 | epoch: 1 | total time: 3.00m"
)
RESEARCH = (
    "step 00012 (1.2%) | loss: 6.112500 | lrm: 1.00 | dt: 312ms | tok/sec: 168,000 | mfu: 39.2% "
    "| epoch: 1 | remaining: 250s    "
)
MODDED = "step:13/1480 train_time:426ms step_avg:142.00ms"
MODDED_2024 = "step:13/6000 train_loss:9.8750 train_time:426ms step_avg:142.00ms"
LLM_C = (
    "step   12/19560 | loss 7.125000 (+0.31z)| norm 2.1250 (-0.11z)| lr 1.25e-04 | 315.25 ms | "
    "48.9% bf16 MFU | 1663000 tok/s"
)
LLM_C_MAY = (
    "step   12/19560 | train loss 7.1250 | norm 2.1250 | lr 1.25e-04 | 315.25 ms | 48.9% A100 fp16 "
    "MFU | 1663000 tok/s"
)
LLM_C_FP32 = "step   12/74: train loss 7.125000 (315.250000 ms, 12999 tok/s)"
LLM_C_ACC = "step   12/74: train loss 7.125000 (acc 7.125000) (315.250000 ms, 12999.500000 tok/s)"
LLM_C_LR = "step   12/74: train loss 7.125000 norm 2.1250 lr 1.25e-04 (315.25 ms, 12999 tok/s)"
LLM_C_PYTHON = (
    "step   12/50 | train loss 7.125000 | norm 2.1250 | lr 1.25e-04 | (315.25 ms | 12999 tok/s)"
)


@pytest.mark.parametrize(
    ("text", "name", "iteration", "printed", "unit", "loss", "lr"),
    [
        (NANOGPT, "nanogpt", 101, 912.25, Unit.MS_PER_ITERATION, 2.4512, None),
        (EARLY, "nanogpt", 101, 912.25, Unit.MS_PER_ITERATION, 2.4512, None),
        (FORK, "nanogpt", 101, 912.25, Unit.MS_PER_ITERATION, 2.4512, None),
        (LLAMA2_C, "nanogpt", 101, 912.25, Unit.MS_PER_ITERATION, 2.4512, 5e-5),
        (BUILD, "nanochat", 13, 1677721.62, Unit.TOKENS_PER_S, 6.1125, 1.25e-5),
        (CHAT, "nanochat", 13, 1151902.0, Unit.TOKENS_PER_S, 6.1125, None),
        (RESEARCH, "nanochat", 13, 168000.0, Unit.TOKENS_PER_S, 6.1125, None),
        (MODDED, "modded_nanogpt", 13, 142.0, Unit.MS_PER_ITERATION, None, None),
        (MODDED_2024, "modded_nanogpt", 13, 142.0, Unit.MS_PER_ITERATION, 9.875, None),
        (LLM_C, "llm_c", 12, 315.25, Unit.MS_PER_ITERATION, 7.125, 1.25e-4),
        (LLM_C_MAY, "llm_c", 12, 315.25, Unit.MS_PER_ITERATION, 7.125, 1.25e-4),
        (LLM_C_FP32, "llm_c", 12, 315.25, Unit.MS_PER_ITERATION, 7.125, None),
        (LLM_C_ACC, "llm_c", 12, 315.25, Unit.MS_PER_ITERATION, 7.125, None),
        (LLM_C_LR, "llm_c", 12, 315.25, Unit.MS_PER_ITERATION, 7.125, 1.25e-4),
        (LLM_C_PYTHON, "llm_c", 12, 315.25, Unit.MS_PER_ITERATION, 7.125, 1.25e-4),
    ],
)
def test_each_form_of_a_line(
    text: str,
    name: str,
    iteration: int,
    printed: float,
    unit: Unit,
    loss: float | None,
    lr: float | None,
) -> None:
    found = reading(text)
    (step,) = found.steps
    assert (found.format, found.printed.unit) == (name, unit)
    assert (step.iteration, step.printed, step.loss, step.lr) == (iteration, printed, loss, lr)


@pytest.mark.parametrize(
    "text",
    [NANOGPT, FORK, LLAMA2_C, BUILD, CHAT, RESEARCH, MODDED, MODDED_2024, LLM_C, LLM_C_MAY]
    + [LLM_C_FP32, LLM_C_ACC, LLM_C_LR, LLM_C_PYTHON],
)
def test_a_cut_line_has_no_other_speed(text: str) -> None:
    (whole,) = reading(text).steps
    for end in range(len(text)):
        for found in read(text[:end]).readings:
            (step,) = found.steps
            assert step.iteration == whole.iteration
            assert step.printed in (None, whole.printed), text[:end]


@pytest.mark.parametrize("figure", ["nan", "inf", "-1.0", "0"])
@pytest.mark.parametrize(
    ("text", "number"),
    [(NANOGPT, "912.25"), (LLAMA2_C, "912.25"), (LLM_C, "315.25"), (MODDED, "142.00")],
)
def test_no_speed_is_invented(text: str, number: str, figure: str) -> None:
    (step,) = reading(text.replace(number, figure)).steps
    assert step.printed is None


def test_lines_that_look_alike_are_not_taken() -> None:
    others = (
        "iter 100: loss 2.4512 | 912ms | mfu 16.5%",
        "iter 100: loss 2.4512, val 2.5, time 912.25 s",
        "Step: 12 | Loss: 6.0 | LR: 1.0e-05 | Time: 312.50ms | Tok/sec: 1677721.62",
        "step: 12 | train loss: 6.0 | lr: 1e-05 | dt: 312.50ms | tok/sec: 1677721.62",
        "    print0(f'step:{step}/{n} train_time:{t:.0f}ms step_avg:{t/step:.2f}ms')",
        "| scenario | step ms | MFU | tok/s |",
        "INFO engine.py: Avg generation throughput: 93.3 tok/s",
    )
    assert not read(*others).readings


# --- nanogpt

CONFIG = ("Overriding config with config/train.py:", "batch_size = 8", "block_size = 512 # short")
TOKENS = "tokens per iteration will be: 65,536"


def iterations(count: int, every: int, ms: float, index: int = 0) -> list[str]:
    return [
        f"iter {n}: loss {10 - n / 50:.4f}, time {ms:.2f}ms, mfu 30.00%"
        for n in range(index, count, every)
    ]


def test_nanogpts_settings_and_speed() -> None:
    lines = [*CONFIG, "Overriding: dtype = float16", TOKENS, *iterations(161, 10, 128.0)]
    assert facts(*lines) == {
        "batch_size": 8,
        "seq_len": 512,
        "global_tokens": 65536,
        "precision": "fp16",
    }
    result = run(lines, devices=8)
    assert result.samples_per_s == pytest.approx(1000.0)
    assert any("of 9 single iterations of 90" in each for each in result.warnings)


def test_nanogpts_accumulation_is_not_guessed() -> None:
    stated = facts(*CONFIG, NANOGPT)
    assert not {"batch_size", "global_batch", "accumulation"} & set(stated)
    assert run([*CONFIG, *iterations(161, 1, 128.0)], devices=8).samples_per_s is None


def test_nanogpts_tokens_are_all_of_an_iteration() -> None:
    """Its default block_size of 1024 is not printed: with a batch by the user and no accumulation
    the speed was 40 or 64 times too low."""
    lines = ["tokens per iteration will be: 491,520", *iterations(161, 1, 128.0)]
    tokens = run(lines, devices=8, batch_size=12)
    assert tokens.samples_per_s is None
    assert tokens.rates == {"tokens/s": pytest.approx(491520 / 0.128)}
    assert any("sequence length (--seq-len) is not known" in each for each in tokens.warnings)
    samples = run(lines, devices=8, batch_size=12, seq_len=1024)
    assert samples.samples_per_s == pytest.approx(480 / 0.128)
    assert (samples.run.case.global_batch, samples.run.case.accumulation) == (480, 5)
    belied = run(lines, devices=8, batch_size=12, seq_len=1024, global_batch=96)
    assert belied.samples_per_s == pytest.approx(480 / 0.128)
    assert any("global batch: the log says 480" in each for each in belied.warnings)
    assert "tokens/s" in run(lines, devices=8, seq_len=1000).rates


def test_llama2_c_takes_its_tokens_apart() -> None:
    breakdown = (
        "breaks down as: 4 grad accum steps * 8 processes * 128 batch size * 256 max seq len"
    )
    assert facts("tokens per iteration will be: 1,048,576", breakdown, LLAMA2_C) == {
        "accumulation": 4,
        "devices": 8,
        "batch_size": 128,
        "seq_len": 256,
        "global_tokens": 1048576,
    }


def test_nanogpts_time_with_an_evaluation_in_it_is_no_speed() -> None:
    slow = "iter 100: loss 8.0000, time 56012.50ms, mfu 0.10%"
    lines = iterations(161, 10, 128.0)
    lines[10:11] = ["step 100: train loss 7.9, val loss 8.1", "saving checkpoint to out", slow]
    steps = {step.iteration: step for step in reading(*lines).steps}
    assert (steps[101].printed, steps[101].loss, steps[91].printed) == (None, 8.0, 128.0)
    assert run(lines, global_batch=64, devices=8).samples_per_s == pytest.approx(500.0)


# --- nanochat


CHAT_HEAD = (
    "Tokens / micro-batch / rank: 16 x 2048 = 32,768",
    "Tokens / micro-batch: 262,144",
    "Total batch size 524,288 => gradient accumulation steps: 2",
)


def chats(rate: str, count: int = 130) -> list[str]:
    """Steps of 640 ms."""
    line = CHAT.replace("1,151,902", rate).replace("455.25", "640.00").replace(" epoch: 1 |", "")
    return [line.replace("00012", f"{n:05d}") for n in range(count)]


def test_nanochats_early_tokens_are_those_of_a_micro_batch() -> None:
    found = reading(*CHAT_HEAD, *chats("409,600", 3))
    assert (found.printed.scale, [step.printed for step in found.steps]) == (2.0, [409600.0] * 3)
    result = run([*CHAT_HEAD, *chats("409,600")])
    assert result.samples_per_s == pytest.approx(400.0)


def test_nanochats_tokens_of_which_it_is_not_known_are_left_out() -> None:
    alone = read(*chats("409,600", 3))
    assert [step.printed for step in alone.readings[0].steps] == [None] * 3
    assert len(alone.notes) == 1 and "Total batch size" in alone.notes[0].text
    contradicted = reading(*CHAT_HEAD, *chats("819,200", 1), *chats("300,000", 2)[1:])
    assert [step.printed for step in contradicted.steps] == [819200.0, None]


def test_nanochats_settings_and_speed() -> None:
    lines = [*CHAT_HEAD, *chats("819,200")]
    assert facts(*lines) == {"batch_size": 16, "seq_len": 2048, "devices": 8, "accumulation": 2}
    assert run(lines).samples_per_s == pytest.approx(400.0)


def test_a_bar_that_is_drawn_anew_is_many_lines() -> None:
    drawn = "".join("\r" + RESEARCH.replace("00012", f"{n:05d}") for n in range(3)) + "\n"
    assert [step.iteration for step in scan(drawn.encode()).readings[0].steps] == [1, 2, 3]


def test_build_nanogpts_speed_of_a_step_behind_an_evaluation_is_left_out() -> None:
    later = BUILD.replace("step   12", "step   13")
    found = reading(
        "=> calculated gradient accumulation steps: 4", "validation loss: 6.1250", BUILD, later
    )
    assert [step.printed for step in found.steps] == [None, 1677721.62]
    # nanochat's clock runs while it trains only.
    assert reading(RESEARCH, "validation loss: 6.1250", CHAT).steps[1].printed == 1151902.0


# --- modded_nanogpt


def speedrun(count: int, ms: float, origin: int = 0) -> list[str]:
    """A line per step, of a clock that is set back to 0 after ``origin`` of them."""
    lines = ["step:0/1480 val_loss:10.8125 train_time:0ms step_avg:nanms"]
    for n in range(1, count + 1):
        past = n - origin if n > origin else n
        mean = "nan" if n <= origin + 2 and origin else f"{ms:.2f}"
        lines.append(f"step:{n}/1480 train_time:{past * ms + 0.1:.0f}ms step_avg:{mean}ms")
    return lines


@pytest.mark.parametrize("origin", [0, 10])
def test_the_speedruns_clock_and_mean_agree(origin: int) -> None:
    lines = speedrun(140, 150.0, origin)
    found = reading(*lines)
    assert (found.printed.averaging, found.printed.origin) == (Averaging.RUNNING, origin)
    for basis in ("clock", "printed"):
        result = run(lines, basis, global_batch=30, devices=8)
        assert result.samples_per_s == pytest.approx(200.0), basis


def test_a_speedruns_mean_far_from_its_start_is_rounded() -> None:
    late = "step:8350/20000 train_loss:2.0625 train_time:363279ms step_avg:43.51ms"
    assert [step.printed for step in reading(late).steps] == [43.51]
    unclear = "step:90000/99999 train_loss:2.0625 train_time:3915900ms step_avg:43.51ms"
    assert [step.printed for step in reading(unclear).steps] == [None]


def test_a_speedruns_validation_is_no_second_step() -> None:
    lines = speedrun(20, 150.0)
    twice = [*lines, "step:20/1480 val_loss:7.1250 train_time:3002ms step_avg:150.10ms"]
    assert reading(*twice).steps == reading(*lines).steps


def test_a_speedruns_mean_beside_seconds_is_not_read() -> None:
    lines = [
        "step:0/3250 val_loss:10.81250 train_time:0.000s step_avg:nanms",
        "step:125/3250 val_loss:4.62500 train_time:25.000s step_avg:200.00ms",
        "step:250/3250 val_loss:4.12500 train_time:43.750s step_avg:150.00ms",
    ]
    assert [step.printed for step in reading(*lines).steps] == [None] * 3
    result = run(lines, global_batch=15, devices=8)
    assert result.samples_per_s == pytest.approx(100.0)


def test_a_second_speedrun_in_a_file_is_another_run() -> None:
    found = read(*speedrun(130, 150.0), *speedrun(140, 75.0))
    results = interpret(found, (), (), {"global_batch": 30, "devices": 8}, rule("clock")).results
    assert [result.samples_per_s for result in results] == [
        pytest.approx(200.0),
        pytest.approx(400.0),
    ]


def test_a_speedruns_settings_stand_in_its_own_text() -> None:
    text = (
        "    batch_size : int = 8*64 # batch size, in sequences, across all devices",
        "    device_batch_size : int = 64 # batch size, in sequences, per device",
        "    sequence_length : int = 1024 # sequence length, in tokens",
    )
    assert facts(*text, MODDED) == {"global_batch": 512, "batch_size": 64, "seq_len": 1024}


# --- llm.c

TABLE = (
    "| precision             | BF16                                               |",
    "| weight init method    | d12                                                |",
    "batch_size B=32 * seq_len T=1024 * num_processes=8 and total_batch_size=524288",
    "=> setting grad_accum_steps=2",
    "val loss 11.000000",
)
TOTAL = "total average iteration time: 256.000000 ms"
SETTINGS: Mapping[str, object] = {
    "precision": "bf16",
    "batch_size": 32,
    "seq_len": 1024,
    "devices": 8,
    "accumulation": 2,
}


def test_llm_cs_settings_and_speed() -> None:
    steps = [
        LLM_C.replace("step   12", f"step {n:4d}").replace("315.25", "256.00")
        for n in range(1, 131)
    ]
    lines = [*TABLE, *steps]
    assert facts(*lines) == SETTINGS
    assert run(lines).samples_per_s == pytest.approx(2000.0)


def test_llm_cs_mean_counts_unless_the_run_was_resumed() -> None:
    lines = [*TABLE, LLM_C, TOTAL]
    assert run(lines, "total").samples_per_s == pytest.approx(2000.0)
    resumed = [line.replace("d12                    ", "intermediate checkpoint") for line in lines]
    assert not reading(*resumed).totals and not reading(LLM_C, TOTAL).totals


def test_the_time_of_train_gpt2_py_has_a_validation_in_it() -> None:
    later = LLM_C_PYTHON.replace("12/50", "13/50")
    steps = reading("val loss 11.0", LLM_C_PYTHON, later).steps
    assert [step.printed for step in steps] == [None, 315.25]
    assert reading("val loss 11.0", LLM_C).steps[0].printed == 315.25


def test_main_log_has_losses_and_no_speed() -> None:
    lines = ["s:0 tel:11.0312", "s:0 trl:11.0625 lr:0.000001 norm:15.25", "s:1 trl:10.875000"]
    found = reading(*lines, "s:2 trl:10.8", "s:2 trl:10.81")
    assert [(step.iteration, step.loss, step.printed) for step in found.steps] == [
        (1, 11.0625, None),
        (2, 10.875, None),
    ]
    result = run(lines, devices=8, batch_size=4)
    assert result.status is Status.OK and result.samples_per_s is None
