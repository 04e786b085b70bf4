"""What one option changes: cases that differ in it alone, side by side."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report_samples import bad, case, oks

from dlperf_hpc.analysis.speedup import option_pairs, summarise
from dlperf_hpc.model.result import GpuUse, RunResult, Status
from dlperf_hpc.reporting.contents import Report, as_json
from dlperf_hpc.reporting.writers.markdown import markdown


def test_cases_on_other_devices_are_no_pair() -> None:
    """A CPU's run without the option and a V100's with it: the ratio would be the device's."""

    def made(device: str, *tags: str) -> list[RunResult]:
        facts = {"world": {"device_name": device}} if device else {}
        return [replace(run, facts=facts) for run in oks(case(tags=tags), 100, 101)]

    for off, on, pairs in (("cpu", "Tesla V100-SXM2-16GB", 0), ("V100", "Tesla V100-SXM2-16GB", 1),
                           ("", "V100", 1)):  # fmt: skip
        found = option_pairs(summarise([*made(off), *made(on, "xla")]))
        assert len(found) == pairs, (off, on)


def test_the_published_deltas_of_optimizer_placement_come_out() -> None:
    """OneFlow's GPT-2 on one node: 104 to 89 samples/s (-14.4 %), 5603 to 3849 MB (-31.3 %)."""
    off, on = case("1n8g"), case("1n8g", tags=("optimizerplacement",))
    results = [
        *(replace(run, gpu=GpuUse(util=73)) for run in oks(off, 104, 104, memory_mb=5603.0)),
        *(replace(run, gpu=GpuUse(util=43)) for run in oks(on, 89, 89, memory_mb=3849.0)),
    ]
    report = Report("placement", results, "1n8g")
    (found,) = report.option_pairs
    assert (found.name, found.memory_mb) == ("optimizerplacement", -1754)
    assert found.ratio == pytest.approx(89 / 104)
    text = markdown(report)
    assert "| -14.4 % |" in text and "| -1754 (-31.3 %) | 73.00 | 43.00 |" in text
    (row,) = as_json(report)["switches"]
    assert (row["off"], row["on"]) == (off.id, on.id)
    assert (row["gpu_util_off"], row["gpu_util_on"]) == (73, 43)


def test_pairs_of_cases_that_differ_otherwise_are_told_apart() -> None:
    results = [
        run
        for tags in (("seq128",), ("seq512", "acc4"))
        for more, speed in (((), 100), (("xla",), 110))
        for run in oks(case(tags=(*tags, *more)), speed)
    ]
    lines = [line for line in markdown(Report("two", results)).splitlines() if " xla` |" in line]
    assert [line.split("|")[4].strip() for line in lines] == ["seq128", "seq512 acc4"]


def test_on_and_off_are_a_pair_too() -> None:
    results = oks(case(tags=("off",)), 412) + oks(case(tags=("on",)), 395)
    assert [pair.name for pair in option_pairs(summarise(results))] == ["on"]


def test_only_one_difference_counts() -> None:
    plain, xla = case("1n4g"), case("1n4g", tags=("xla",))
    others = [
        case("1n8g", tags=("xla",)),
        case("1n4g", tags=("lr1e-05", "zerostage1")),
        case("1n4g", batch_size=99, tags=("xla",)),
    ]
    results = oks(plain, 100) + [r for other in others for r in oks(other, 90)]
    results.append(bad(xla, 1, Status.FAILED))
    assert option_pairs(summarise(results)) == []
    both = case("1n4g", tags=("lr1e-05", "xla"))
    found = option_pairs(summarise([*oks(xla, 110), *oks(plain, 100), *oks(both, 120)]))
    assert [(s.name, s.on.case.tags) for s in found] == [
        *(("xla", ("xla",)), ("lr1e-05", ("lr1e-05", "xla")))
    ]
