"""From runs to summaries: what counts, what it is compared with, and what is said about it."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_samples import bad, case, external, ok, oks, tokens, window

from dlperf_hpc.analysis.flags import FLAGS
from dlperf_hpc.analysis.speedup import CaseSummary, chosen, summarise
from dlperf_hpc.model.case import ObservedCase, ObservedRun, Topology
from dlperf_hpc.model.result import (
    SAMPLES_PER_S,
    Contradiction,
    ExternalWindow,
    GpuUse,
    RunResult,
    Status,
)
from dlperf_hpc.reporting.csv_columns import CASE_COLUMNS
from dlperf_hpc.reporting.table import rows

TEN = tuple(100 + 0.1 * i for i in range(10))


def one(results: list[RunResult]) -> CaseSummary:
    (summary,) = summarise(results)
    return summary


def at(results: list[RunResult], topology: str, base: str | None = None) -> CaseSummary:
    (found,) = [s for s in summarise(results, base) if str(s.case.topology) == topology]
    return found


def test_nothing_of_nothing() -> None:
    assert summarise([]) == []


def test_speedup_is_the_ratio_of_medians() -> None:
    results = oks(case("1n1g"), 90, 100, 130) + oks(case("1n4g"), 360, 380, 390)
    summary = at(results, "1n4g")
    assert summary.samples_per_s == pytest.approx(380)
    assert summary.per_device(SAMPLES_PER_S) == pytest.approx(95)
    assert summary.speedup == pytest.approx(3.8)
    assert summary.efficiency == pytest.approx(0.95)
    assert summary.base == Topology(1, 1)
    assert summary.base_sample is not None
    assert summary.base_sample.median == pytest.approx(100)
    assert summary.speedup_interval is not None
    assert summary.speedup_interval.low == pytest.approx(360 / 130)
    assert summary.speedup_interval.high == pytest.approx(390 / 90)
    assert summary.speedup_interval.coverage == pytest.approx(0.75**2)
    assert summary.efficiency_interval is not None
    assert summary.efficiency_interval.low == pytest.approx(360 / 130 / 4)
    assert summary.speedup_missing == ""


def test_the_base_over_itself_is_one_without_an_interval() -> None:
    summary = one(oks(case("1n1g"), 90, 100, 130))
    assert (summary.speedup, summary.efficiency) == (1.0, 1.0)
    assert summary.speedup_interval is None


def test_order_of_first_appearance_is_kept() -> None:
    mixed = [
        ok(case("4n8g"), 1, 3000),
        ok(case("1n1g", precision="fp16"), 1, 300),
        ok(case("1n1g"), 1, 100),
        ok(case("4n8g"), 2, 3010),
    ]
    order = [s.case.id for s in summarise(mixed)]
    assert order == [mixed[0].run.case.id, mixed[1].run.case.id, mixed[2].run.case.id]


def test_a_base_is_of_the_same_series_only() -> None:
    results = oks(case("1n1g", precision="fp16"), 400) + oks(case("1n8g", precision="fp32"), 800)
    summary = at(results, "1n8g")
    assert summary.speedup is None
    assert summary.base is None
    assert summary.speedup_missing == (
        'the default base 1n1g is not in this series (1n8g): name one that is, as base "1n8g"'
    )


def test_no_smaller_topology_is_taken_in_silence() -> None:
    results = oks(case("4n8g"), 700) + oks(case("1n8g"), 239) + oks(case("2n8g"), 412)
    for summary in summarise(results):
        assert summary.speedup is None
        assert summary.efficiency is None
        assert '(1n8g, 2n8g, 4n8g): name one that is, as base "1n8g"' in summary.speedup_missing
        assert f"no speedup: {summary.speedup_missing}" in summary.notes


def test_a_named_base() -> None:
    results = oks(case("1n8g"), 239) + oks(case("4n8g"), 717)
    summary = at(results, "4n8g", base="1n8g")
    assert summary.speedup == pytest.approx(3.0)
    assert summary.efficiency == pytest.approx(0.75)


def test_a_named_base_goes_before_1n1g() -> None:
    results = oks(case("1n1g"), 40) + oks(case("1n8g"), 240) + oks(case("4n8g"), 720)
    assert at(results, "4n8g", base="1n8g").speedup == pytest.approx(3.0)
    assert at(results, "1n1g", base="1n8g").speedup == pytest.approx(1 / 6)


def test_a_named_base_that_is_not_there() -> None:
    summary = at(oks(case("1n1g"), 40), "1n1g", base="2n8g")
    assert summary.speedup is None
    assert "the base 2n8g has no run in this series (1n1g)" in summary.speedup_missing
    assert "--only" in summary.speedup_missing and "--base 1n1g" in summary.speedup_missing


def test_a_base_that_is_no_topology() -> None:
    with pytest.raises(ValueError, match="not a topology"):
        summarise([], base="8 GPUs")


def test_a_base_without_a_run_that_counts() -> None:
    results = [bad(case("1n1g"), 1, Status.OUT_OF_MEMORY), *oks(case("1n8g"), 800)]
    summary = at(results, "1n8g")
    assert summary.speedup is None
    assert summary.base == Topology(1, 1)
    assert summary.base_sample is None
    assert summary.speedup_missing == "no run of the base 1n1g counts (out_of_memory 1)"


def test_a_case_without_a_run_that_counts_is_there_and_says_why() -> None:
    dead = case("2n8g")
    results = [
        *oks(case("1n1g"), 100),
        bad(dead, 1, Status.FAILED, "rank 3 died"),
        bad(dead, 2, Status.REJECTED, "QOSMaxNodePerUser"),
        bad(dead, 3, Status.PENDING),
        bad(dead, 4, Status.FAILED, "rank 3 died"),
    ]
    summary = at(results, "2n8g")
    assert (summary.ok, summary.runs) == (0, 4)
    assert summary.statuses == (
        (Status.PENDING, 1),
        (Status.FAILED, 2),
        (Status.REJECTED, 1),
    )
    assert summary.speedup_missing == "no run counts (pending 1, failed 2, rejected 1)"
    for empty in (summary.sample, summary.samples_per_s, summary.per_device(SAMPLES_PER_S)):
        assert empty is None
    for empty in (summary.optimizer_steps, summary.skipped_steps, summary.rank_spread):
        assert empty is None
    assert summary.flags == ()


@pytest.mark.parametrize("status", [s for s in Status if s is not Status.OK])
def test_a_window_counts_only_if_the_run_ended_ok(status: Status) -> None:
    """A partial run's number, however good, stays outside the median."""
    here = case()
    cut = bad(here, 3, status, "cut", window(here, 900.0))
    summary = one([*oks(here, 100, 102), cut])
    assert summary.samples_per_s == pytest.approx(101)
    assert summary.statuses == tuple(
        sorted(((Status.OK, 2), (status, 1)), key=lambda pair: list(Status).index(pair[0]))
    )
    assert cut.samples_per_s is None


def test_an_ok_run_without_a_positive_finite_number_does_not_count() -> None:
    here = case()
    results = oks(here, 100, 102)
    odd = [
        ok(here, 3, 100, elapsed_s=0.0),
        ok(here, 4, 100, elapsed_s=math.nan),
        ok(here, 5, 100, elapsed_s=-5.0),
        ok(here, 6, 100, samples=0),
        replace(ok(here, 7, 100), window=None),
    ]
    summary = one(results + odd)
    assert summary.ok == 2
    assert summary.samples_per_s == pytest.approx(101)
    assert "no-number" in summary.flags
    assert any(odd[-1].run.id in note for note in summary.notes)


def test_the_first_ok_attempt_is_the_result() -> None:
    first = replace(ok(case(), 1, 100), attempt=2)
    later = replace(ok(case(), 1, 150), attempt=3)
    failed = bad(case(), 1, Status.FAILED)
    for order in ([failed, first, later], [later, first, failed]):
        assert chosen(order) == [first]
        summary = one(order)
        assert summary.runs == 1
        assert summary.samples_per_s == pytest.approx(100)
        assert "duplicate-run" in summary.flags


def test_of_failed_attempts_the_last_is_the_result() -> None:
    attempts = [replace(bad(case(), 1, Status.FAILED, str(n)), attempt=n) for n in (2, 3, 1)]
    assert [r.attempt for r in chosen(attempts)] == [3]


# --- scaling -------------------------------------------------------------------------------------


def scaling(*cases: Any) -> list[str | None]:
    return [s.scaling for s in summarise([ok(c, 1, 100.0) for c in cases])]


def test_scaling_is_named() -> None:
    weak = [case(t) for t in ("1n1g", "1n4g", "4n8g")]
    assert scaling(*weak) == ["weak"] * 3
    strong = [case("1n1g", accumulation=32), case("1n4g", accumulation=8), case("4n8g")]
    assert scaling(*strong) == ["strong"] * 3
    mixed = [case("1n1g"), case("1n4g", accumulation=2)]
    assert scaling(*mixed) == ["mixed"] * 2
    assert scaling(case("1n8g")) == [None]
    assert scaling(case("1n8g"), case("2n4g")) == [None] * 2


def test_global_batch_is_as_the_windows_report() -> None:
    here = case("1n4g")
    summary = one(oks(here, 100, 101, accumulation=2, global_batch=256))
    assert (summary.accumulation, summary.global_batch) == (2, 256)
    assert "not-as-asked" in summary.flags
    assert "a window reports global batch 256, the case asks for 128" in summary.notes


@pytest.mark.parametrize(
    ("launch", "ranks", "flagged"),
    [("torchrun", 4, False), ("accelerate", 4, False), ("torchrun", 1, True), ("rank", 4, False),
     ("once", 4, False), ("node", 1, False), ("", 1, True)],
)  # fmt: skip
def test_a_programs_processes_are_not_its_supervisors(
    launch: str, ranks: int, flagged: bool
) -> None:
    here = replace(case("1n4g"), launch=launch)
    summary = one(oks(here, 100, 101, ranks=ranks))
    assert ("not-as-asked" in summary.flags) is flagged, summary.notes


# --- throughputs in several units ----------------------------------------------------------------

BOTH = {"samples/s": 10.0, "tokens/s": 1280.0}


def test_own_runs_have_tokens_beside_samples() -> None:
    summary = at(oks(case("1n1g"), 100) + oks(case("1n4g"), 360, 380, 390), "1n4g")
    assert summary.unit == "samples/s"
    assert summary.median("tokens/s") == pytest.approx(380 * 128)
    assert summary.per_device("tokens/s") == pytest.approx(95 * 128)
    (interval,) = [summary.samples["tokens/s"].interval]
    assert interval is not None
    assert [interval.low, interval.high] == pytest.approx([360 * 128, 390 * 128])
    images = one(oks(case("1n1g", seq_len=1), 100))
    assert list(images.samples) == ["samples/s"]


def test_a_series_of_tokens_has_speedups_of_tokens() -> None:
    runs = tokens("1n1g", 900, 1000, 1300) + tokens("1n4g", 3600, 3800, 3900)
    summary = at(runs, "1n4g")
    assert (summary.unit, summary.speed, summary.samples_per_s) == ("tokens/s", 3800, None)
    assert summary.speedup == pytest.approx(3.8) and summary.efficiency == pytest.approx(0.95)
    assert summary.speedup_interval is not None
    assert summary.speedup_interval.low == pytest.approx(3600 / 1300)
    assert (summary.ok, summary.speedup_missing) == (3, "")
    assert (summary.tflops_per_device, summary.mfu) == (None, None), "of no known length"
    far = one(tokens("1n1g", 100, 101, 102, 103, 900))
    assert any(note.startswith("900.00 tokens/s is +786.7 % off") for note in far.notes)


def test_a_series_counts_in_the_unit_that_all_of_its_cases_have() -> None:
    runs = external("1n1g", BOTH) + tokens("1n4g", 5120)
    small, large = summarise(runs)
    assert (small.unit, large.unit) == ("tokens/s", "tokens/s")
    assert large.speedup == pytest.approx(4.0) and small.speedup == 1.0
    assert "mixed-units" not in (*small.flags, *large.flags)


def test_samples_are_not_divided_by_tokens() -> None:
    small, large = summarise(external("1n1g", {"samples/s": 10.0}) + tokens("1n4g", 5120))
    assert (small.unit, large.unit) == ("samples/s", "tokens/s")
    assert (large.speedup, large.efficiency, large.base_sample) == (None, None, None)
    assert large.speedup_missing == (
        "this is in tokens/s, the base 1n1g in samples/s: one is not divided by the other; the "
        "sequence length (--seq-len) may give both"
    )
    for summary in (small, large):
        assert "mixed-units" in summary.flags
        assert any("1n1g in samples/s, 1n4g in tokens/s" in note for note in summary.notes)


def test_runs_of_one_case_count_in_one_unit() -> None:
    shared = one(external("1n1g", BOTH, {"tokens/s": 1300.0}))
    assert (shared.unit, shared.speed, shared.ok) == ("tokens/s", 1290.0, 2)
    mixed = one(external("1n1g", {"tokens/s": 1300.0}, {"samples/s": 10.0}, {"tokens/s": 1301.0}))
    assert (mixed.unit, mixed.speed, mixed.ok, mixed.runs) == ("samples/s", 10.0, 1, 3)
    assert any(
        note.startswith("2 runs are in tokens/s and left out, the others are in samples/s")
        for note in mixed.notes
    )


def test_another_unit_needs_no_other_code() -> None:
    runs = external("1n1g", {"GFLOP/s": 70.0}) + external("1n4g", {"GFLOP/s": 210.0})
    summary = at(runs, "1n4g")
    assert summary.unit == "GFLOP/s" and summary.speedup == pytest.approx(3.0)
    row, *_ = rows(CASE_COLUMNS, [summary])
    assert (row["figure"], row["figure_unit"], row["base_figure"]) == (210.0, "GFLOP/s", 70.0)
    assert row["speedup_of"] == "GFLOP/s" and row["samples_per_s"] is None
    alone = at(external("1n1g", {"GFLOP/s": 70.0}) + external("1n4g", {"TFLOP/s": 0.2}), "1n4g")
    assert alone.speedup is None and alone.speedup_missing == (
        "this is in TFLOP/s, the base 1n1g in GFLOP/s: one is not divided by the other"
    )


# --- findings ------------------------------------------------------------------------------------


def test_a_clean_series_has_no_flags() -> None:
    results = oks(case("1n1g"), *TEN) + oks(case("1n4g"), *(3.9 * v for v in TEN))
    assert [s.flags for s in summarise(results)] == [(), ()]
    assert [s.notes for s in summarise(results)] == [(), ()]


def test_every_flag_is_documented_and_set_by_something() -> None:
    base = oks(case("1n1g"), *TEN)
    odd = case("1n4g")
    changes: list[dict[str, Any]] = [
        {"optimizer_steps": 0},
        {"skipped_steps": 100},
        {"steady": False},
        {"loss_last": math.nan},
        {"loss_last": 10.5},
        {"ranks": 2},
        {"samples": 0},
        {"graphs": 3, "graph_breaks": 1, "recompiles": 1, "memory_growth_mb": 65.0},
    ]
    results = [ok(odd, i, 500 + i, **change) for i, change in enumerate(changes, 1)]
    results.append(ok(odd, 1, 900))
    other = oks(replace(case("1n8g"), threads=4), 600) + [ok(case("1n8g"), 2, 601)]
    groups = oks(case("2n8g"), 1000, 1001, 1090, 1091) + oks(case("4n8g"), *TEN, 150)
    results += base + other + groups
    seen = {flag for s in summarise(results) for flag in s.flags}
    # By the word of who asks the card is a V100, 15.7 TFLOPS in fp32: 69.9 GFLOP a sample.
    for speed in (200.0, 250.0):
        seen |= {
            f for s in summarise(oks(case("1n1g"), speed), accelerator="V100") for f in s.flags
        }
    seen |= {flag for s in summarise(foreign_results()) for flag in s.flags}
    unlike_units = external("1n1g", BOTH, {"tokens/s": 9.0}, {"samples/s": 1.0})
    seen |= {flag for s in summarise(unlike_units) for flag in s.flags}
    turns = [replace(run, launch=f"7_0.0.{i}") for i, run in enumerate(oks(odd, 500, 501))]
    seen |= {flag for s in summarise(turns) for flag in s.flags}
    unlike = [Contradiction("log", "x", False), Contradiction("record", "x", False)]
    run = replace(ok(odd, 1, 500), source="record", contradictions=tuple(unlike))
    seen |= {flag for s in summarise([run]) for flag in s.flags}
    far = [rank_line(cpus="0", cpus_numa="0", gpu_numa=1)]
    seen |= {flag for s in summarise([on_gpus(far, elapsed_s=1.0, retries=2)]) for flag in s.flags}
    lacking = replace(ok(odd, 1, 500), gpu=GpuUse(joules=5.0, devices=3))
    seen |= {flag for s in summarise([lacking]) for flag in s.flags}
    (large,) = summarise([bad(odd, 1, Status.OUT_OF_MEMORY)])
    seen |= set(large.flags)
    ways = {"within": ["NET/IB"], "between": ["NET/Socket"], "ports": ["mlx5_0/1"]}
    (talked,) = summarise([replace(ok(odd, 1, 500), facts={"nccl": ways})])
    assert talked.transports == ("NET/IB within nodes, NET/Socket between nodes",)
    assert seen | set(talked.flags) == set(FLAGS)


def rank_line(rank: int = 0, host: str = "n1", cpus: str = "0-7", **more: Any) -> dict[str, Any]:
    """As a log tells of a rank with a GPU."""
    return {"rank": rank, "host": host, "cpus": cpus, "device_uuid": f"GPU-{rank}", **more}


def on_gpus(ranks: list[Any], elapsed_s: float = 20.0, retries: int | None = None) -> RunResult:
    result = ok(case("1n1g"), 1, 100)
    assert result.window is not None
    window = replace(result.window, elapsed_s=elapsed_s, samples=int(100 * elapsed_s))
    used = GpuUse(alloc_retries=retries)
    return replace(result, window=window, facts={**result.facts, "ranks": ranks}, gpu=used)


def gpu_flags(*ranks: Any, **more: Any) -> set[str]:
    names = {"short-window", "few-cores", "far-memory", "allocator-retries"}
    return names & set(one([on_gpus(list(ranks), **more)]).flags)


@pytest.mark.parametrize(
    ("ranks", "flagged"),
    [
        ([rank_line()], False),
        ([rank_line(cpus="0-2")], True),
        ([rank_line(0), rank_line(1)], False),  # eight cores for two ranks
        ([rank_line(rank) for rank in range(3)], True),
        ([rank_line(0), rank_line(1, "n2", "3")], True),
        ([rank_line(cpus="0-99999999")], False),  # no such list
        ([{**rank_line(cpus="0"), "device_uuid": None}], False),
        (["0", None, 7], False),
    ],
)
def test_few_cores_for_a_gpu(ranks: list[Any], flagged: bool) -> None:
    assert gpu_flags(*ranks) == ({"few-cores"} if flagged else set())


@pytest.mark.parametrize(
    ("more", "flagged"),
    [
        ({"cpus_numa": "0", "gpu_numa": 1}, True),
        ({"cpus_numa": "0-1", "gpu_numa": 1}, False),
        ({"cpus_numa": "1", "memory_numa": "0", "gpu_numa": 1}, True),
        ({"cpus_numa": "0"}, False),  # the machine does not tell where the GPU is
        ({"cpus_numa": "0", "gpu_numa": "1"}, False),
    ],
)
def test_memory_far_from_the_gpu(more: dict[str, Any], flagged: bool) -> None:
    assert gpu_flags(rank_line(**more)) == ({"far-memory"} if flagged else set())


def test_a_short_window_is_told_of_gpus_alone() -> None:
    assert gpu_flags(rank_line(), elapsed_s=1.5) == {"short-window"}
    assert gpu_flags(rank_line(), elapsed_s=5.0) == set()
    assert gpu_flags(elapsed_s=1.5) == set()
    assert gpu_flags(rank_line(), retries=0) == set()
    summary = one([on_gpus([rank_line()], elapsed_s=1.5, retries=3)])
    assert any("the shortest 1.50 s" in note for note in summary.notes)
    assert any("up to 3 times" in note for note in summary.notes)


def foreign_results() -> list[RunResult]:
    """Runs of another program: on printed figures alone, with a clock that contradicts them, and
    with a total that its lines contradict."""
    window = ExternalWindow(
        {"samples/s": 100.0}, "clock[20:120]", "clock", "samples/s", 1.0, "deepspeed", "real logs"
    )
    windows = [replace(window, basis="printed"), replace(window, check=800.0)]
    windows.append(replace(windows[1], basis="total", check_basis="printed"))
    windows.append(replace(window, rest=90.0))
    seen = ObservedCase("deepspeed", "bert", Topology(1, 1), "fp32", 32)
    return [
        RunResult(ObservedRun(seen, i, "a.log"), Status.OK, external=window)
        for i, window in enumerate(windows, 1)
    ]


def test_super_linear_needs_the_whole_interval_above_one() -> None:
    base = oks(case("1n1g"), *TEN)
    above = oks(case("1n4g"), *(4.1 * v for v in TEN))
    touching = oks(case("1n8g"), *(8.02 * v for v in TEN))
    assert "super-linear" in at(base + above, "1n4g").flags
    summary = at(base + touching, "1n8g")
    assert summary.efficiency is not None
    assert summary.efficiency > 1
    assert "super-linear" not in summary.flags


@pytest.mark.parametrize(("speed", "flagged"), [(407, False), (409, True)])
def test_super_linear_without_an_interval(speed: float, flagged: bool) -> None:
    summary = at(oks(case("1n1g"), 100) + oks(case("1n4g"), speed), "1n4g")
    assert summary.efficiency_interval is None
    assert ("super-linear" in summary.flags) is flagged


def test_fewer_devices_than_the_base_may_be_more_efficient() -> None:
    results = oks(case("1n1g"), *TEN) + oks(case("1n8g"), *(6 * v for v in TEN))
    results += oks(case("2n4g"), *(7 * v for v in TEN))
    for topology in ("1n1g", "2n4g"):
        summary = at(results, topology, base="1n8g")
        assert summary.efficiency is not None
        assert summary.efficiency > 1.1
        assert "super-linear" not in summary.flags


@pytest.mark.parametrize(("n", "said"), [(1, "no confidence interval"), (5, "covers 93.75 %")])
def test_too_few_repeats_states_the_coverage(n: int, said: str) -> None:
    summary = one(oks(case(), *TEN[:n]))
    assert "too-few-repeats" in summary.flags
    assert any(said in note for note in summary.notes)


def test_six_repeats_are_enough() -> None:
    assert one(oks(case(), *TEN[:6])).flags == ()


def test_an_outlier_is_named_and_still_counts() -> None:
    summary = one(oks(case(), *TEN, 150))
    assert summary.flags == ("outlier",)
    assert summary.sample is not None
    assert summary.sample.maximum == pytest.approx(150)
    assert any("150.00 samples/s is +49.3 % off the median" in note for note in summary.notes)


def test_an_even_split_says_that_the_median_is_no_run() -> None:
    summary = one(oks(case(), 100, 101, 120, 121))
    assert any("the median is between them, where no run is" in note for note in summary.notes)


def test_findings_count_windows() -> None:
    results = oks(case(), *TEN) + [ok(case(), 11, 100.5, steady=False)]
    assert any(note.startswith("1 of 11 windows are not steady") for note in one(results).notes)
    untested = one(oks(case(), *TEN, steady=None))
    assert "unsteady" not in untested.flags


def test_some_skipped_steps_are_a_note_not_a_flag() -> None:
    summary = one(oks(case(), *TEN, skipped_steps=3))
    assert summary.flags == ()
    assert summary.skipped_steps == 3
    assert any(note.startswith("up to 3 optimizer steps") for note in summary.notes)


def test_only_skipped_steps_are_not_no_steps() -> None:
    assert one(oks(case(), *TEN, optimizer_steps=0, skipped_steps=5)).flags == (
        "all-steps-skipped",
    )


def test_worst_windows_are_reported() -> None:
    results = [
        ok(case(), 1, 100, optimizer_steps=9, memory_mb=500.0, exposed_comm=0.1),
        ok(case(), 2, 100, optimizer_steps=7, skipped_steps=2, memory_mb=700.0, attention="math"),
        ok(case(), 3, 100, elapsed_min_s=0.8 * 32.0, exposed_comm=-0.02, attention="flash"),
    ]
    summary = one(results)
    assert (summary.optimizer_steps, summary.skipped_steps) == (7, 2)
    assert (summary.memory_mb, summary.attention) == (700.0, "flash+math")
    assert summary.exposed_comm == pytest.approx(0.04)
    assert summary.rank_spread == pytest.approx(0.2)


def test_efficiency_drop_is_against_the_next_smaller_device_count() -> None:
    speeds = {"1n1g": 1.0, "1n8g": 7.2, "2n4g": 6.0, "2n8g": 9.5, "4n8g": 18.0}
    results = [r for t, f in speeds.items() for r in oks(case(t), *(f * v for v in TEN))]
    # 2n4g falls against 1n1g; 2n8g (0.594) is within 15 points of neither 0.9 nor 0.75
    flagged = [str(s.case.topology) for s in summarise(results) if "efficiency-drop" in s.flags]
    assert flagged == ["2n4g", "2n8g"]
    drop = next(note for note in at(results, "2n8g").notes if "falls" in note)
    assert drop == "efficiency falls from 0.750 on 2n4g to 0.594"


# --- invariants ----------------------------------------------------------------------------------

SPEEDS = st.lists(st.floats(1, 1e5), min_size=1, max_size=9)


@given(SPEEDS, SPEEDS, st.randoms())
def test_order_of_runs_does_not_matter(
    base: list[float], others: list[float], random_: random.Random
) -> None:
    results = oks(case("1n1g"), *base) + oks(case("1n4g"), *others)
    expected = {s.case.id: s for s in summarise(results)}
    random_.shuffle(results)
    assert {s.case.id: s for s in summarise(results)} == expected


@given(SPEEDS, SPEEDS)
def test_speedup_lies_in_its_interval(base: list[float], others: list[float]) -> None:
    summary = at(oks(case("1n1g"), *base) + oks(case("2n8g"), *others), "2n8g")
    assert summary.speedup is not None
    assert summary.efficiency == pytest.approx(summary.speedup / 16)
    assert (summary.speedup_interval is None) == (min(len(base), len(others)) < 2)
    if summary.speedup_interval is not None:
        low, high = summary.speedup_interval.low, summary.speedup_interval.high
        assert low * (1 - 1e-12) <= summary.speedup <= high * (1 + 1e-12)


@given(SPEEDS, st.lists(st.sampled_from([s for s in Status if s is not Status.OK]), max_size=5))
def test_runs_that_do_not_count_change_no_figure(
    speeds: list[float], statuses: list[Status]
) -> None:
    here = case()
    good = oks(here, *speeds)
    rest = [bad(here, 100 + i, s, timed=window(here, 1e9)) for i, s in enumerate(statuses)]
    alone, together = one(good), one(good + rest)
    assert together.sample == alone.sample
    assert together.flags == alone.flags
    assert together.runs == len(good) + len(rest)
    assert sum(count for _, count in together.statuses) == together.runs
