"""The run listings that DLPerf published: every printed number must come out, digit for digit."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from report_samples import bad, case, ok
from worked_examples import DEEPSPEED, IDS, LISTINGS, TENSORFLOW, printed, results, speeds

from dlperf_hpc.analysis.dlperf_rule import dlperf_table, dlperf_tables, round2
from dlperf_hpc.analysis.speedup import summarise
from dlperf_hpc.model.result import Status


def test_there_are_33_numbers() -> None:
    assert sum(3 * len(listing["topologies"]) for listing in LISTINGS) == 33


@pytest.mark.parametrize("listing", LISTINGS, ids=IDS)
def test_dlperf_rule_gives_every_printed_number(listing: dict[str, Any]) -> None:
    table = dlperf_table(listing["model"], listing["batch_size"], speeds(listing))
    assert table.to_dict() == printed(listing)
    assert table.reasons == ()
    # digit for digit also as text: 1147.9, not 1147.90 or 1147.9000000000001
    assert json.dumps(table.to_dict()) == json.dumps(printed(listing))


@pytest.mark.parametrize("listing", LISTINGS, ids=IDS)
def test_the_same_numbers_from_runs_in_any_order(listing: dict[str, Any]) -> None:
    runs = results(listing)
    random.Random(3).shuffle(runs)
    (table,) = dlperf_tables(runs).values()
    assert table.to_dict() == printed(listing)


@pytest.mark.parametrize("listing", LISTINGS, ids=IDS)
def test_summaries_agree_with_the_printed_table(listing: dict[str, Any]) -> None:
    summaries = summarise(results(listing))
    assert [str(s.case.topology) for s in summaries] == list(listing["topologies"])
    for summary, row in zip(summaries, listing["topologies"].values()):
        assert summary.sample is not None
        assert summary.speedup is not None
        assert round(summary.sample.median, 2) == row["median"]
        assert round(summary.sample.mean, 2) == row["average"]
        assert round(summary.speedup, 2) == row["speedup"]
        assert summary.sample.interval is not None
        assert summary.sample.interval.coverage == 0.9375


def test_the_super_linear_claim_is_flagged() -> None:
    """33.15 times on 32 GPUs: [4873.92 / 148.42, 4903.74 / 143.61] lies above 32."""
    by_name = {str(s.case.topology): s for s in summarise(results(DEEPSPEED))}
    last = by_name["4n8g"]
    assert last.speedup_interval is not None
    assert last.speedup_interval.low == pytest.approx(4873.92 / 148.42)
    assert last.speedup_interval.high == pytest.approx(4903.74 / 143.61)
    assert last.efficiency == pytest.approx(4899.37 / 147.81 / 32)
    assert "super-linear" in last.flags
    assert any("1.036" in note and "[1.026, 1.067]" in note for note in last.notes)
    assert [name for name, s in by_name.items() if "super-linear" in s.flags] == ["4n8g"]


def test_the_base_of_that_claim_is_bimodal() -> None:
    by_name = {str(s.case.topology): s for s in summarise(results(DEEPSPEED))}
    assert by_name["1n1g"].sample is not None
    assert by_name["1n1g"].sample.spread == pytest.approx(0.0325, abs=1e-4)
    assert [name for name, s in by_name.items() if "bimodal" in s.flags] == ["1n1g"]
    assert any("2 from 143.61 to 143.80" in note for note in by_name["1n1g"].notes)
    assert all("bimodal" not in s.flags for s in summarise(results(TENSORFLOW)))


def test_windows_that_stop_before_the_first_optimizer_step_are_flagged() -> None:
    (summary, *_) = summarise(results(DEEPSPEED, optimizer_steps=0, iterations=11))
    assert "no-optimizer-step" in summary.flags
    assert summary.optimizer_steps == 0


def test_the_fall_to_two_nodes_is_flagged() -> None:
    flagged = [s for s in summarise(results(TENSORFLOW)) if "efficiency-drop" in s.flags]
    assert [str(s.case.topology) for s in flagged] == ["2n8g"]
    assert flagged[0].efficiency == pytest.approx(1239.3 / 112.99 / 16)


def test_half_way_cells_are_rounded_as_numpy_does() -> None:
    """A published 1n1g of four runs: average 23.645 was printed 23.64, median 23.65."""
    table = dlperf_table("gpt2", 4, {"1n1g": {1: 23.58, 2: 23.7, 3: 23.6, 4: 23.7}})
    assert table.cells["1n1g"].average_speed == 23.64
    assert table.cells["1n1g"].median_speed == 23.65


@pytest.mark.parametrize(
    ("value", "rounded"),
    [(0.125, 0.12), (0.375, 0.38), (2.675, 2.68), (1.005, 1.0), (33.1464, 33.15), (7.0, 7.0)],
)
def test_round2_is_times_100_half_to_even(value: float, rounded: float) -> None:
    assert round2(value) == rounded


def test_round2_is_numpys() -> None:
    numpy = pytest.importorskip("numpy")
    random_ = random.Random(1)
    for _ in range(5000):
        value = random_.randrange(1, 10**6) / 1000 + random_.choice([0, 0.005])
        assert round2(value) == float(numpy.round(value, 2))


def test_speedup_is_of_the_rounded_medians() -> None:
    # unrounded: 1.0149 / 1.0051 = 1.0098 -> 1.01 either way; 2.4949 / 0.0149 differs
    table = dlperf_table("m", 1, {"1n1g": {1: 0.0149}, "1n4g": {1: 2.4949}})
    assert table.cells["1n4g"].speedup == 249.0
    assert round(2.4949 / 0.0149, 2) == 167.44


def test_without_1n1g_there_is_no_speedup_but_a_reason() -> None:
    table = dlperf_table("gpt2", 4, {"1n8g": {1: 239.0}, "2n8g": {1: 412.0}})
    assert {cell.speedup for cell in table.cells.values()} == {None}
    assert table.reasons == ("no speedup: there is no 1n1g",)
    assert "1n1g" not in table.to_dict()["gpt2"]


def test_topologies_without_runs_are_absent() -> None:
    table = dlperf_table("bert", 32, {"1n1g": {}, "1n4g": {1: 500.0}, "4n8g": {}})
    assert list(table.cells) == ["1n4g"]
    assert table.reasons == ("1n1g: no runs", "4n8g: no runs", "no speedup: there is no 1n1g")
    assert dlperf_table("bert", 32, {}).to_dict() == {"bert": {}}


def test_a_base_that_rounds_to_nothing_divides_nothing() -> None:
    table = dlperf_table("m", 1, {"1n1g": {1: 0.004}, "1n2g": {1: 8.0}})
    assert table.cells["1n2g"].speedup is None
    assert table.reasons == ("no speedup: the median of 1n1g rounds to 0",)


@pytest.mark.parametrize("speed", [0.0, -0.3, math.nan, math.inf])
def test_what_is_no_speed_is_refused(speed: float) -> None:
    with pytest.raises(ValueError, match="1n8g, run 2"):
        dlperf_table("bert", 32, {"1n8g": {1: 5.0, 2: speed}})


def test_failed_runs_leave_no_zero_in_the_average() -> None:
    """DLPerf's scripts take 0 for a log that was cut: 64 and a cut one gave a median of 32."""
    one = case("1n1g")
    tables = dlperf_tables([ok(one, 1, 64.0), bad(one, 2, Status.FAILED, "cut")])
    assert tables[one.series].cells["1n1g"].median_speed == 64.0


def test_series_do_not_mix() -> None:
    """In DLPerf fp32 and fp16 logs of one directory replace each other."""
    runs = [ok(case(precision=p), 1, s) for p, s in (("fp32", 100.0), ("fp16", 400.0))]
    assert [t.cells["1n1g"].median_speed for t in dlperf_tables(runs).values()] == [100.0, 400.0]
