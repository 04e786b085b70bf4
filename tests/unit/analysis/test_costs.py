"""Energy that may not be the window's, and what runs took in node-hours."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report_samples import bad, case, ok

from dlperf_hpc.analysis.costs import cost, energy_doubts
from dlperf_hpc.analysis.speedup import summarise
from dlperf_hpc.model.result import GpuUse, RunResult, Status

WELL = GpuUse(joules=100.0, devices=2, joules_by="counter", covered=0.99, gap_s=0.6, watched_s=10.1)


def measured(**changes: object) -> RunResult:
    """A run on two devices with a window of 10 s."""
    made = ok(case("1n2g"), 1, 640.0)
    assert made.window is not None and made.window.elapsed_s == 10
    return replace(made, gpu=replace(WELL, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"devices": 1}, "1 of 2 devices told their energy"),
        ({"watched_s": 14.0}, "it is that of 14.0 s, and the window has 10.0 s"),
        ({"joules_by": "power", "covered": 0.5}, "samples of power that cover 50 % of it"),
        ({"joules_by": "power", "gap_s": 7.25}, "no sample of power for 7.2 s"),
    ],
)
def test_energy_in_doubt_says_why(changes: dict[str, object], said: str) -> None:
    run = measured(**changes)
    (why,) = energy_doubts(run)
    assert said in why
    (case_,) = summarise([run])
    assert "energy-in-doubt" in case_.flags and any(said in note for note in case_.notes)


def test_energy_that_is_well_and_none_say_nothing() -> None:
    assert energy_doubts(measured()) == []
    # The counter counts whether somebody looks or not.
    assert energy_doubts(measured(covered=0.2, gap_s=9.0)) == []
    assert energy_doubts(ok(case("1n2g"), 1, 640.0)) == []
    assert energy_doubts(measured(joules=None, devices=0)) == []
    old = GpuUse(joules=5.0, devices=2)
    assert energy_doubts(replace(measured(), gpu=old)) == []


def lasting(run: RunResult, minutes: float) -> RunResult:
    ended = f"2026-05-01T10:{int(minutes):02d}:{60 * (minutes % 1):09.6f}Z"
    return replace(run, started="2026-05-01T10:00:00.000000Z", ended=ended)


def test_node_hours_asked_used_and_measured() -> None:
    good = lasting(ok(case("2n1g"), 1, 640.0), 6.0)
    failed = lasting(bad(case("2n1g"), 2, Status.FAILED), 3.0)
    unknown = replace(bad(case("2n1g"), 3, Status.NODE_FAILED), source="log")
    pending = bad(case("2n1g"), 4, Status.PENDING)
    limits = {good.run.id: 900, failed.run.id: 900}
    found = cost([good, failed, unknown, pending], limits)
    assert found is not None and good.window is not None
    assert (found.runs, found.unknown) == (2, 1)
    assert found.used == pytest.approx(2 * 9 / 60) and found.requested == pytest.approx(2 * 0.5)
    assert found.window == pytest.approx(2 * good.window.elapsed_s / 3600)
    assert found.samples_per_node_hour == pytest.approx(good.window.samples / found.used)


def test_what_is_not_known_is_not_made_up() -> None:
    good = lasting(ok(case("2n1g"), 1, 640.0), 6.0)
    found = cost([good], {})
    assert found is not None and found.requested is None
    assert cost([ok(case("1n1g"), 1, 640.0)], {}) is None
    assert cost([replace(good, ended="yesterday")], {}) is None
