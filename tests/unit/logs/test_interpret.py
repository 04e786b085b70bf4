"""From a scanned log to runs: statuses, factors, settings, and warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reading_samples import facts, reading, scanned, steps

from dlperf_hpc.analysis.flags import of_external
from dlperf_hpc.logs.interpret.interpretation import Interpretation, interpret
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.logs.scanned import (
    FACTS,
    Averaging,
    Counter,
    Fact,
    Note,
    Printed,
    Reading,
    ScannedFile,
    Scope,
    Stamps,
    Total,
    Trouble,
    Unit,
)
from dlperf_hpc.model.case import ObservedRun
from dlperf_hpc.model.result import ExternalWindow, RunResult, Status

NAME = facts(model="bert", nodes=2, gpus_per_node=8, batch_size=32, precision="fp16", repeat=3)
"""``2n8g/bert_b32_fp16_3.log``: 512 samples in an iteration."""

SPEED = 1024.0  # samples/s: 2 iterations/s of 512


def clock(n: int) -> float:
    return 1e9 + n / 2


def log(last: int = 130, **changes: Any) -> Reading:
    """A run of 2 iterations/s, with a clock, samples/s and losses, up to iteration ``last``."""
    lines = steps(
        range(1, last + 1), stamp=clock, printed=lambda n: SPEED, loss=lambda n: 10 - n / 100
    )
    return reading(lines, **changes)


def interpreted(
    file: ScannedFile,
    stated: Mapping[str, Any] | None = None,
    named: Sequence[Fact] = NAME,
    text: str = "default",
    variant: Sequence[str] = (),
) -> Interpretation:
    return interpret(file, named, variant, stated or {}, rule(text))


def one(file: ScannedFile, *args: Any, **kwargs: Any) -> RunResult:
    (result,) = interpreted(file, *args, **kwargs).results
    return result


def window(result: RunResult) -> ExternalWindow:
    assert result.external is not None
    return result.external


# --- a number


def test_a_whole_log_gives_one_run_with_its_number() -> None:
    result = one(scanned(log()), variant=("zero1",))
    assert (result.status, result.reason, result.attempt) == (Status.OK, "", 1)
    assert result.samples_per_s == pytest.approx(SPEED)
    assert isinstance(result.run, ObservedRun)
    assert result.run.id == "torch/bert/bz32/2n8g/bert_b32_fp16-zero1_3"
    assert result.run.log == "some.log"
    seen = window(result)
    assert (seen.rule, seen.basis, seen.unit) == ("clock[20:120]", "clock", "iterations/s")
    assert (seen.first, seen.last, seen.elapsed_s, seen.factor) == (20, 120, 50.0, 512.0)
    assert [seen.loss_first, seen.loss_last] == pytest.approx([9.79, 8.8])
    assert seen.check == pytest.approx(SPEED)
    assert (seen.steady, seen.optimizer_steps, seen.evidence) == (True, 100, "real logs")
    assert result.warnings == (), "the printed figures bear out that nothing is accumulated"


def test_no_reading_is_no_run() -> None:
    assert interpreted(scanned()) == Interpretation()


def test_without_stamps_the_printed_figures_count() -> None:
    lines = steps(range(1, 131), printed=lambda n: SPEED)
    result = one(scanned(reading(lines)))
    assert (window(result).basis, window(result).rule) == ("printed", "printed[20:120]")
    assert result.samples_per_s == pytest.approx(SPEED) and result.warnings == ()


def test_without_either_the_total_counts() -> None:
    result = one(scanned(reading(steps(range(1, 131)), [Total(200, "train_speed", 900.0)])))
    assert (window(result).basis, result.samples_per_s) == ("total", 900.0)


def test_a_short_program_that_ended_has_its_total_a_cut_one_what_it_held() -> None:
    whole = one(scanned(log(60, totals=[Total(70, "train_speed", 900.0)])))
    assert (whole.status, whole.samples_per_s, window(whole).basis) == (Status.OK, 900.0, "total")
    assert "ends at iteration 60" in whole.warnings[0]
    cut = one(scanned(log(60), cut=True))
    assert cut.status is Status.PARTIAL and cut.samples_per_s == pytest.approx(SPEED)
    ends = "between 20 and 120: clock[20:60] is used (the file is cut within its last line)"
    assert cut.reason.endswith(ends)
    assert (window(cut).first, window(cut).last) == (20, 60)


def test_a_clock_that_went_back_leaves_the_printed_figures() -> None:
    lines = steps(range(1, 131), stamp=lambda n: clock(n) - 99 * (n > 50), printed=lambda n: SPEED)
    result = one(scanned(reading(lines)))
    assert result.samples_per_s == pytest.approx(SPEED)
    assert "line 51: the clock goes backward by 98.5 s" in result.warnings[0]
    strict = one(scanned(reading(lines)), text="clock[20:120]")
    assert (strict.samples_per_s, strict.external) == (None, None)
    assert "goes backward" in strict.reason


def test_midnight_and_a_log_of_all_formats_times() -> None:
    lines = steps(range(1, 131), stamp=lambda n: (86_350 + n / 2) % 86_400)
    result = one(scanned(reading(lines, stamps=Stamps.TIME_ONLY)))
    assert result.samples_per_s == pytest.approx(SPEED)


# --- factors


@pytest.mark.parametrize(
    ("printed", "figure", "factor"),
    [
        (Printed(), 1024.0, 1.0),
        (Printed(scope=Scope.DEVICE), 64.0, 16.0),
        (Printed(Unit.TOKENS_PER_S, scale=1000.0), 131.072, 1000 / 128),
        (Printed(Unit.ITERATIONS_PER_S), 2.0, 512.0),
        (Printed(Unit.MS_PER_ITERATION), 500.0, 512_000.0),
        (Printed(Unit.S_PER_ITERATION), 0.5, 512.0),
    ],
)
def test_the_factor_to_samples_of_all_devices(
    printed: Printed, figure: float, factor: float
) -> None:
    lines = steps(range(1, 131), printed=lambda n: figure)
    result = one(scanned(reading(lines, printed=printed)), {"seq_len": 128})
    assert result.samples_per_s == pytest.approx(SPEED)
    assert window(result).factor == pytest.approx(factor)


def test_a_speed_of_one_process_needs_to_know_of_how_many() -> None:
    lines = [
        step._replace(rank=rank, line=16 * step.line + rank)
        for step in steps(range(1, 131), printed=lambda n: 64.0)
        for rank in range(16)
    ]
    process = Printed(scope=Scope.PROCESS)
    result = one(scanned(reading(lines, printed=process), end_line=9999))
    assert result.samples_per_s == pytest.approx(SPEED)
    one_rank = reading([s for s in lines if s.rank == 0], printed=process)
    result = one(scanned(one_rank, end_line=9999))
    assert result.samples_per_s is None and "how many ran on the 16 devices" in result.reason
    face = replace(one_rank, format="insightface")
    per_node = one(scanned(face, end_line=9999), text="insightface")
    assert per_node.samples_per_s == pytest.approx(2 * 64.0)


def test_micro_steps_and_optimizer_steps() -> None:
    micro = log(counter=Counter.MICRO_STEPS)
    seen = window(one(scanned(micro), {"accumulation": 64}))
    assert seen.samples_per_s == pytest.approx(SPEED)
    assert seen.optimizer_steps == 1, "iteration 64 is in the window, 128 is not"
    assert window(one(scanned(micro))).optimizer_steps is None
    whole = steps(range(1, 131), stamp=clock)
    seen = window(one(scanned(reading(whole)), {"accumulation": 64}))
    assert seen.samples_per_s == pytest.approx(64 * SPEED)
    stated = one(scanned(reading(whole), facts=facts(1, global_batch=2048)))
    assert stated.samples_per_s == pytest.approx(4 * SPEED)
    assert stated.run.case.accumulation == 4, "2048 = 4 x 512"


def test_accumulation_that_is_not_stated_is_taken_as_1_unless_the_log_contradicts_it() -> None:
    silent = one(scanned(reading(steps(range(1, 131), stamp=clock))))
    assert silent.samples_per_s == pytest.approx(SPEED)
    assert silent.warnings == ("no gradient accumulation is stated: 1 is taken (--accumulation)",)
    lines = steps(range(1, 131), stamp=clock, printed=lambda n: 8 * SPEED)
    belied = one(scanned(reading(lines)))
    assert belied.samples_per_s == pytest.approx(8 * SPEED)
    assert window(belied).basis == "printed"
    strict = one(scanned(reading(lines)), text="clock[20:120]")
    assert strict.samples_per_s is None
    assert "--accumulation" in strict.reason and "which is not stated" in strict.reason


@pytest.mark.parametrize(
    ("missing", "option"),
    [("batch_size", "--batch-size"), ("accumulation", "")],
)
def test_a_missing_fact_is_named_with_its_option(missing: str, option: str) -> None:
    named = [fact for fact in NAME if fact.name != missing]
    result = one(scanned(reading(steps(range(1, 131), stamp=clock))), named=named)
    if option:
        assert (result.samples_per_s, result.status) == (None, Status.OK)
        assert dict(result.rates) == {"iterations/s on 2n8g": pytest.approx(2.0)}
        why = f"the batch size per device ({option}) is not known: clock[20:120] is used"
        assert result.warnings == (f"{why}, in iterations/s",)
    else:
        assert result.samples_per_s == pytest.approx(SPEED)


UNKNOWN_LENGTH = (
    "the sequence length (--seq-len) is not known: tokens/s are known, samples/s are not"
)


@pytest.mark.parametrize(
    ("printed", "figure", "factor"),
    [
        (Printed(Unit.TOKENS_PER_S), 131_072.0, 1.0),
        (Printed(Unit.TOKENS_PER_S, Scope.DEVICE), 8192.0, 16.0),
        (Printed(Unit.TOKENS_PER_S, Scope.DEVICE, scale=1000.0), 8.192, 16_000.0),
    ],
)
def test_tokens_of_sequences_of_unknown_length_stay_tokens(
    printed: Printed, figure: float, factor: float
) -> None:
    result = one(scanned(reading(steps(range(1, 131), printed=lambda n: figure), printed=printed)))
    assert (result.status, result.reason, result.samples_per_s) == (Status.OK, "", None)
    assert dict(result.rates) == {"tokens/s": pytest.approx(131_072.0)}
    assert window(result).factor == pytest.approx(factor)
    assert (window(result).check, window(result).check_basis) == (None, "")
    assert result.warnings == (UNKNOWN_LENGTH,)


def test_the_length_of_a_sequence_gives_both_throughputs() -> None:
    lines = steps(range(1, 131), printed=lambda n: 131_072.0)
    result = one(scanned(reading(lines, printed=Printed(Unit.TOKENS_PER_S))), {"seq_len": 128})
    assert dict(result.rates) == {"samples/s": pytest.approx(SPEED), "tokens/s": 131_072.0}
    assert result.warnings == ()
    clocked = one(scanned(log()), {"seq_len": 128})
    assert dict(clocked.rates) == {"samples/s": SPEED, "tokens/s": SPEED * 128}
    assert list(one(scanned(log())).rates) == ["samples/s"]
    images = one(scanned(log()), {"seq_len": 1})
    assert list(images.rates) == ["samples/s"], "what has one token is no sequence"


def test_beside_a_clock_the_printed_tokens_are_kept_and_not_held_against_samples() -> None:
    lines = steps(range(1, 131), stamp=clock, printed=lambda n: 99_999.0)
    file = scanned(reading(lines, printed=Printed(Unit.TOKENS_PER_S)))
    result = one(file, {"accumulation": 1})
    assert dict(result.rates) == pytest.approx({"samples/s": SPEED, "tokens/s": 99_999.0})
    assert (window(result).basis, window(result).check) == ("clock", None)
    assert result.warnings == ()


def test_tokens_without_padding_give_no_samples() -> None:
    lines = steps(range(1, 131), printed=lambda n: 9000.0)
    unpadded = reading(lines, printed=Printed(Unit.UNPADDED_TOKENS_PER_S, Scope.DEVICE))
    result = one(scanned(unpadded), {"seq_len": 128})
    assert dict(result.rates) == {"tokens/s": pytest.approx(144_000.0)}
    assert result.warnings == (
        "the program counts tokens without padding: tokens/s are known, samples/s are not",
    )


def test_totals_in_tokens_are_held_against_lines_in_tokens() -> None:
    total = Total(131, "tokens_per_second", 262_144.0, Unit.TOKENS_PER_S)
    lines = steps(range(1, 131), printed=lambda n: 131_072.0)
    file = scanned(reading(lines, printed=Printed(Unit.TOKENS_PER_S), totals=(total,)))
    result = one(file, text="total")
    assert dict(result.rates) == {"tokens/s": 262_144.0}
    assert (window(result).check, window(result).check_basis) == (131_072.0, "printed")
    assert result.warnings[0].startswith("tokens/s by all lines by printed figures over those by")
    assert "total-and-lines-differ" in {flag.name for flag in of_external([window(result)])}


def test_a_window_in_tokens_that_is_cut_has_what_it_held_by_the_default_alone() -> None:
    lines = steps(range(1, 101), printed=lambda n: 131_072.0)
    file = scanned(reading(lines, printed=Printed(Unit.TOKENS_PER_S)))
    result = one(file)
    assert (result.status, dict(result.rates)) == (Status.PARTIAL, {"tokens/s": 131_072.0})
    named = one(file, text="printed[20:120]")
    assert (named.status, dict(named.rates)) == (Status.PARTIAL, {})


def test_a_missing_batch_size_leaves_what_needs_none() -> None:
    result = one(scanned(log()), named=facts(nodes=2, gpus_per_node=8))
    assert window(result).basis == "printed" and result.samples_per_s == pytest.approx(SPEED)
    assert result.warnings == (
        "the batch size per device (--batch-size) is not known: printed[20:120] is used",
    )
    assert result.run.case.id == "torch/?/bz?/2n8g/unknown_b?_?"


# --- clock against print


@pytest.mark.parametrize(
    ("printed", "likely"),
    [
        (SPEED / 16, "1/16 (a speed of one device)"),
        (SPEED * 8, "8 (gradient accumulation) or 8 (devices of a node)"),
        (SPEED * 128, "128 (tokens of a sequence)"),
        (SPEED / 32, "1/32 (samples of a batch)"),
        (SPEED * 1.3, "no known factor explains it"),
        (SPEED * 1.04, ""),
    ],
)
def test_a_disagreement_names_the_likely_factor(printed: float, likely: str) -> None:
    lines = steps(range(1, 131), stamp=clock, printed=lambda n: printed)
    file = scanned(reading(lines, counter=Counter.MICRO_STEPS))
    result = one(file, {"accumulation": 8, "seq_len": 128})
    assert result.samples_per_s == pytest.approx(SPEED), "the clock counts"
    assert window(result).check == pytest.approx(printed)
    warned = [w for w in result.warnings if w.startswith("samples/s by printed figures over")]
    assert bool(warned) == bool(likely)
    assert all(likely in warning for warning in warned)


def test_two_formats_in_one_file_are_compared() -> None:
    """Micro-steps by a timer that forgets the accumulation, and whole steps with the clock."""
    timer = steps(range(1, 1041), printed=lambda n: 8 * SPEED)
    whole = [s._replace(line=8 * s.line) for s in log().steps]
    file = scanned(
        reading(timer, format="timer", counter=Counter.MICRO_STEPS),
        reading(whole, format="whole"),
        facts=facts(1, accumulation=1),
        end_line=2000,
    )
    result = one(file, text="clock[20:120]")
    assert window(result).format == "whole", "the only one with a clock"
    assert result.samples_per_s == pytest.approx(SPEED)
    assert (
        "samples/s by timer lines by printed over those by clock: 8192 / 1024 = 8: as by a factor "
        "8 (devices of a node)"
    ) in result.warnings


def test_the_format_that_gives_a_number_counts() -> None:
    bare = reading(steps(range(1, 141)), format="bare")
    result = one(scanned(bare, log(format="full")))
    assert window(result).format == "full"


# --- what became of it


@pytest.mark.parametrize(
    ("last", "at", "kind", "status"),
    [
        (130, 60, "failed", Status.FAILED),  # inside the window
        (63, 64, "failed", Status.FAILED),  # the window never ended
        (10, 11, "out_of_memory", Status.OUT_OF_MEMORY),
        (130, 140, "node_failed", Status.NODE_FAILED),  # after the window
        (130, 140, "what", Status.FAILED),
    ],
)
def test_trouble_ends_a_run_badly(last: int, at: int, kind: str, status: Status) -> None:
    result = one(scanned(log(last), troubles=[Trouble(at, kind, "it broke")]))
    assert (result.status, result.samples_per_s) == (status, None)
    assert result.reason.startswith(f"line {at}: it broke")


@pytest.mark.parametrize("kind", [Status.CANCELLED, Status.TIMEOUT, Status.PREEMPTED])
def test_a_job_that_is_ended_behind_a_whole_window_has_its_number(kind: Status) -> None:
    srun = Trouble(139, "failed", "srun: error: node1: task 3: Terminated")
    result = one(scanned(log(), troubles=[srun, Trouble(140, kind.value, "ended")]))
    assert (result.status, result.reason) == (kind, "line 140: ended (after the window)")
    assert result.samples_per_s == pytest.approx(SPEED) and result.counts
    inside = one(scanned(log(), troubles=[Trouble(60, kind.value, "ended")]))
    assert (inside.status, inside.samples_per_s, inside.counts) == (kind, None, False)
    short = one(scanned(log(63), troubles=[Trouble(64, kind.value, "ended")]))
    assert (short.status, short.samples_per_s) == (kind, None)


def test_what_broke_before_it_was_cancelled_has_no_number() -> None:
    """A rank fails, and srun cancels the others."""
    troubles = [Trouble(135, "failed", "Traceback"), Trouble(140, "cancelled", "CANCELLED AT")]
    result = one(scanned(log(), troubles=troubles))
    assert (result.status, result.samples_per_s) == (Status.FAILED, None)
    assert result.reason == "line 135: Traceback (after the window)"


def test_a_named_rule_takes_its_own_formats_lines_alone() -> None:
    """DeepSpeed's timer stands under Megatron's lines: 'deepspeed-logs' is not Megatron's time."""
    timer = reading(
        steps(range(3, 131), printed=lambda n: 100.0),
        format="deepspeed",
        printed=Printed(averaging=Averaging.RUNNING, origin=2),
    )
    both = one(scanned(log(format="megatron"), timer), text="deepspeed-logs")
    assert window(both).format == "deepspeed" and both.samples_per_s == pytest.approx(100.0)
    alone = one(scanned(log(format="megatron")), text="deepspeed-logs")
    assert (alone.samples_per_s, alone.external) == (None, None)
    assert alone.reason == (
        "deepspeed-logs[20:120] takes lines of deepspeed: there are none, but of megatron"
    )


def test_figures_beside_a_clock_are_not_printed_only() -> None:
    result = one(scanned(log()), text="printed[20:120]")
    seen = window(result)
    assert (seen.basis, seen.check_basis) == ("printed", "clock")
    assert [flag.name for flag in of_external([seen])] == []
    belied = replace(seen, check=2 * seen.speed)
    assert [flag.name for flag in of_external([belied])] == ["clock-and-print-differ"]
    alone = window(one(scanned(reading(steps(range(1, 131), printed=lambda n: SPEED)))))
    assert [flag.name for flag in of_external([alone])] == ["printed-only"]


@pytest.mark.parametrize(("seconds", "names"), [(1.0, []), (20.0, ["clock-and-print-differ"])])
def test_lines_that_come_late_belie_no_short_window(seconds: float, names: list[str]) -> None:
    """0.1 s of one second is what a busy machine takes to bring a line; 2 s of 20 are not."""
    seen = window(one(scanned(log()), text="printed[20:120]"))
    late = replace(seen, basis="timer", check_basis="arrival", elapsed_s=seconds)
    late = replace(late, check=late.speed / 1.1)
    assert [flag.name for flag in of_external([late])] == names


def slowing(by: float, last: int = 220) -> Reading:
    """2 iterations/s up to 120, then slower."""
    lines = steps(
        range(1, last + 1),
        stamp=lambda n: clock(min(n, 120)) + max(0, n - 120) * by / 2,
        printed=lambda n: SPEED if n <= 120 else SPEED / by,
    )
    return reading(lines)


@pytest.mark.parametrize("text", ["default", "printed[20:120]", "mean[20:120]"])
def test_a_run_that_slows_down_behind_the_window_is_told(text: str) -> None:
    """As MXNet's logs do, by 5 and by 12 %."""
    for by in (1.05, 1.12):
        result = one(scanned(slowing(by)), text=text)
        seen = window(result)
        assert seen.samples_per_s == pytest.approx(SPEED), "the window counts as it is"
        assert seen.rest == pytest.approx(SPEED / by)
        assert f"{100 / by - 100:+.1f} %" in " ".join(result.warnings)
        assert "window-and-rest-differ" in [flag.name for flag in of_external([seen])]
    steady = one(scanned(slowing(1.02)), text=text)
    assert "window-and-rest-differ" not in [f.name for f in of_external([window(steady)])]
    short = window(one(scanned(slowing(2.0, last=150)), text=text))
    assert short.rest is None, "30 iterations behind 100 are too few"


@pytest.mark.parametrize("text", ["lines[10:20]", "mean[20:120]"])
def test_a_mean_of_running_averages_is_told(text: str) -> None:
    averages = Printed(averaging=Averaging.RUNNING)
    lines = steps(range(1, 131), printed=lambda n: SPEED)
    result = one(scanned(reading(lines, printed=averages)), text=text)
    assert any("a mean of means" in warning for warning in result.warnings)
    plain = one(scanned(reading(lines)), text=text)
    assert not any("means" in warning for warning in plain.warnings)


def test_a_row_says_that_only_the_first_epoch_was_read() -> None:
    text = "count and mean begin anew with each epoch: only the first was read"
    file = replace(scanned(log()), notes=(Note(131, text, partly=True),))
    assert text in one(file).warnings


def test_a_total_is_held_against_the_lines_of_the_same_log() -> None:
    """NVIDIA's TensorFlow BERT: steps skipped for an overflow are in the total's time, not in its
    samples."""
    lines = steps(range(1, 51), printed=lambda n: 1000.0 if n > 1 else 200.0)
    belied = one(scanned(reading(lines, [Total(60, "average", 880.0)])))
    seen = window(belied)
    assert (seen.basis, seen.check_basis) == ("total", "printed")
    assert seen.check == pytest.approx(1000.0)
    assert (
        "samples/s by all lines by printed figures over those by total: 1000 / 880 = 1.136: "
        "no known factor explains it"
    ) in belied.warnings
    assert [flag.name for flag in of_external([seen])] == [
        "printed-only",
        "total-and-lines-differ",
    ]
    fits = one(scanned(reading(lines, [Total(60, "average", 980.0)])))
    assert not any("over those by total" in warning for warning in fits.warnings)
    assert [flag.name for flag in of_external([window(fits)])] == ["printed-only"]


def test_trouble_after_the_programs_last_word_is_a_warning() -> None:
    file = scanned(log(totals=[Total(135, "t", SPEED)]), troubles=[Trouble(140, "failed", "kill")])
    result = one(file)
    assert result.status is Status.OK and result.samples_per_s == pytest.approx(SPEED)
    assert result.warnings == ("after the program's summary: line 140: kill",)


def test_the_trouble_that_says_most_is_the_reason() -> None:
    troubles = [Trouble(50, "failed", "Traceback"), Trouble(55, "out_of_memory", "CUDA")]
    result = one(scanned(log(49), troubles=troubles))
    assert result.status is Status.OUT_OF_MEMORY and result.reason.startswith("line 55: CUDA")


def test_runs_in_one_file_are_attempts() -> None:
    crashed = steps(range(1, 64), printed=lambda n: SPEED)
    again = steps(range(1, 131), printed=lambda n: SPEED, line=70)
    file = scanned(
        reading([*crashed, *again]), troubles=[Trouble(65, "node_failed", "srun: error")]
    )
    first, second = interpreted(file).results
    assert (first.attempt, first.status) == (1, Status.NODE_FAILED)
    assert first.reason.startswith("line 65: srun: error (the log ends at iteration 63")
    assert (second.attempt, second.status) == (2, Status.OK)
    assert first.run.id == second.run.id
    assert second.warnings[0].startswith("run 2 of 2 in this file: it begins at line 70")


def test_a_loss_that_is_gone_is_said() -> None:
    lines = [s if s.iteration < 100 else s._replace(loss=None) for s in log().steps]
    result = one(scanned(reading(lines)))
    assert window(result).loss_last is None
    assert any("iteration 120 has no finite loss" in w for w in result.warnings)


def test_a_window_that_drifts_is_not_steady() -> None:
    lines = steps(range(1, 131), stamp=lambda n: 1e9 + n / 2 + n * n / 1000)
    seen = window(one(scanned(reading(lines))))
    assert seen.steady is False and seen.drift is not None and seen.drift > 0.2


# --- which source counts


def test_the_log_counts_before_name_and_user() -> None:
    file = scanned(log(counter=Counter.MICRO_STEPS), facts=facts(7, batch_size=64))
    result = one(file, {"batch_size": 16})
    assert result.samples_per_s == pytest.approx(2 * SPEED)
    assert result.run.case.batch_size == 64
    assert (
        "batch size: the log says 64 (line 7), the command line says 16: the log counts, for the "
        "program that ran wrote it"
    ) in result.warnings
    assert any("the file's name says 32: the log counts" in w for w in result.warnings)


def test_the_user_counts_before_the_name() -> None:
    result = one(scanned(log(counter=Counter.MICRO_STEPS)), {"batch_size": 16})
    assert result.run.case.batch_size == 16
    assert "the file's name says 32: the command line counts" in result.warnings[0]


def test_devices_that_contradict_the_name() -> None:
    result = one(scanned(log(), facts=facts(2, devices=8)))
    assert str(result.run.case.topology) == "1n8g"
    assert any("the log says 8 devices, the file's name 16" in w for w in result.warnings)


@pytest.mark.parametrize(
    ("values", "topology", "assumed"),
    [
        ({"devices": 1}, "1n1g", False),
        ({"devices": 4}, "1n4g", True),
        ({"devices": 32}, "4n8g", True),
        ({"devices": 32, "gpus_per_node": 4}, "8n4g", False),
        ({"devices": 12, "nodes": 3}, "3n4g", False),
    ],
)
def test_topologies(values: dict[str, int], topology: str, assumed: bool) -> None:
    result = one(scanned(log()), named=facts(batch_size=32, **values))
    assert str(result.run.case.topology) == topology
    assert any("on unknown nodes are taken for" in w for w in result.warnings) == assumed


@pytest.mark.parametrize(
    ("values", "says"),
    [({}, "the number of devices is not known"), ({"devices": 12}, "give --nodes"),
     ({"nodes": 2}, "--gpus-per-node")],
)  # fmt: skip
def test_a_log_of_unknown_topology_is_a_problem(values: dict[str, int], says: str) -> None:
    found = interpreted(scanned(log()), named=facts(**values))
    assert found.results == () and says in found.problems[0]


@pytest.mark.parametrize(
    ("named", "logged", "model", "warns"),
    [
        ("rn50", "resnet50_v1.5", "rn50", False),
        ("bert", "BERT-large", "bert", False),
        ("bert", "gpt2", "gpt2", True),
    ],
)
def test_labels(named: str, logged: str, model: str, warns: bool) -> None:
    name = [*[f for f in NAME if f.name != "model"], *facts(model=named)]
    result = one(scanned(log(), facts=facts(1, model=logged)), named=name)
    assert result.run.case.model == model
    assert any(w.startswith("model: the log says") for w in result.warnings) == warns


def test_a_name_of_another_framework_does_not_count() -> None:
    result = one(scanned(log()), named=[*NAME, *facts(framework="oneflow")])
    assert result.run.case.framework == "torch"
    assert any("the file's name says oneflow" in w for w in result.warnings)
    assert one(scanned(log()), named=[*NAME, *facts(framework="pytorch")]).warnings == ()


def test_precision_and_options_part_cases() -> None:
    half = one(scanned(log()))
    single = one(scanned(log(), facts=facts(1, precision="fp32")))
    compiled = one(scanned(log(), facts=facts(1, xla=True)))
    assert len({r.run.case.id for r in (half, single, compiled)}) == 3
    assert compiled.run.case.tags == ("xla",)


def test_a_log_that_says_two_things_is_taken_at_its_last_word_before_the_run() -> None:
    lines = steps([*range(1, 131), *range(1, 131)], printed=lambda n: SPEED, line=10)
    stated = [*facts(5, batch_size=32), *facts(139, batch_size=64)]
    first, second = interpreted(
        scanned(reading(lines, counter=Counter.MICRO_STEPS), facts=stated)
    ).results
    assert (first.run.case.batch_size, second.run.case.batch_size) == (32, 64)
    assert any("the latter is taken for this run" in w for w in first.warnings)


def test_values_of_a_wrong_kind_are_no_facts() -> None:
    odd = [Fact(1, "batch_size", "many"), Fact(2, "devices", -3), Fact(3, "seq_len", True)]
    result = one(scanned(log(), facts=odd), {"batch_size": 0})
    assert (result.run.case.batch_size, result.run.case.seq_len) == (32, None)


_VALUES = st.integers(-2, 2**70) | st.sampled_from(["", "x", True, None, 32, 8, 1])


@given(
    st.lists(st.tuples(st.integers(0, 150), st.floats(), st.floats()), max_size=30),
    st.lists(st.tuples(st.sampled_from([*FACTS]), _VALUES), max_size=8),
    st.sampled_from([*Unit]),
    st.sampled_from([*Scope]),
    st.sampled_from(["default", "lines", "total", "mxnet-bert", "insightface"]),
)
def test_no_damage_makes_a_number_or_a_traceback(
    lines: list[tuple[int, float, float]],
    odd: list[tuple[str, Any]],
    unit: Unit,
    scope: Scope,
    text: str,
) -> None:
    damaged = [
        step._replace(stamp=stamp, printed=printed)
        for step, (_, stamp, printed) in zip(steps(n for n, _, _ in lines), lines)
    ]
    stated = [Fact(i, name, value) for i, (name, value) in enumerate(odd)]
    file = scanned(
        reading(damaged, [Total(31, "t", -1.0)], printed=Printed(unit, scope)),
        log(130, format="whole"),
        facts=stated,
        troubles=[Trouble(20, "failed", "x")] if len(lines) % 2 else [],
    )
    for result in interpreted(file, text=text).results:
        assert result.samples_per_s is None or 0 < result.samples_per_s < float("inf")
        assert result.external or result.reason
