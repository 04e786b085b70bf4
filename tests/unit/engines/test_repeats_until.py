"""``repeats = { min, max, until }``: what a file may say, what is planned, how a sweep grows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from record_samples import a_sweep
from report_samples import bad, case, oks
from spec_samples import load, write

from dlperf_hpc.analysis.speedup import summarise
from dlperf_hpc.cli import selection
from dlperf_hpc.engines.plan import differences, grow, make_manifest, open_sweep, with_runs
from dlperf_hpc.engines.site import Site
from dlperf_hpc.errors import LedgerError, SpecError
from dlperf_hpc.model.case import Until
from dlperf_hpc.model.result import RunResult, Status
from dlperf_hpc.records import layout
from dlperf_hpc.records.collect import Collection as RunCollection
from dlperf_hpc.records.manifest import Manifest, as_read, digest, read_manifest
from dlperf_hpc.reporting.contents import Report
from dlperf_hpc.sweepfile.load import Sweep

NONE: Mapping[str, int] = {}
TABLE = '{ min = 6, max = 25, until = "1%" }'


def sweep_of(place: Path, repeats: str = TABLE, more: str = "") -> Sweep:
    top = f'topologies = ["1n1g", "2n2g"]\nrepeats = {repeats}\n{more}'
    return load(write(place, top=top, case="", tables="[matrix]\nbatch_size = [8, 16]"))


def plan(place: Path, repeats: str = TABLE, counts: Mapping[str, int] = NONE) -> Manifest:
    sweep = sweep_of(place, repeats)
    if not counts:
        return make_manifest(sweep, Site(), "slurm")
    made = make_manifest(replace(sweep, repeats=max(counts.values())), Site(), "slurm")
    runs = [run for run in made.runs if run.repeat <= counts[str(run.case.topology)]]
    return replace(made, arrays=with_runs(made.arrays, {run.id for run in runs}))


@pytest.mark.parametrize(
    ("repeats", "more", "message"),
    [
        ('{ min = 5, until = "1%" }', "", r"repeats.min: 5 is below 6: .* less than 95 %"),
        ('{ min = 9, max = 8, until = "1%" }', "", "repeats.max: 8 is below min, which is 9"),
        ('{ max = 8, until = "1%" }', "", "repeats.max: 8 runs give no narrower interval than 6"),
        ("{ min = 6 }", "", 'repeats.until: is missing .*until = "1%"'),
        ('{ until = "0%" }', "", r"repeats.until: .*above 0 and below 100"),
        ('{ until = "100%" }', "", r"repeats.until: .*above 0 and below 100"),
        ('{ until = "1" }', "", "repeats.until: .*percentage"),
        ("{ until = 0.01 }", "", "repeats.until: 0.01 is invalid"),
        ("{ until = 0 }", "", "repeats.until: 0 is invalid"),
        ('{ until = "1%", most = 3 }', "", "repeats.most: unknown key 'most'"),
        ('{ until = "1%", max = 1001 }', "", "repeats.max: .*1000 or less"),
        ('{ until = "1%", min = true }', "", "repeats.min: .*whole number"),
        (TABLE, "repeats_per_job = 5", "repeats_per_job: .*share their nodes"),
        ("0", "", "repeats: 0 is invalid: write 1 or more"),
        ('"1%"', "", "repeats: .*whole number"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    tmp_path: Path, repeats: str, more: str, message: str
) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        sweep_of(tmp_path, repeats, more)
    assert "1 error" in str(caught.value)


def test_at_first_there_are_as_few_as_may_be(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path)
    assert sweep.until == Until(6, 25, 0.01) and sweep.repeats == 6
    made = make_manifest(sweep, Site(), "slurm")
    assert set(Counter(run.case.id for run in made.runs).values()) == {6}
    assert sweep_of(tmp_path, '{ until = "0.5 %" }').until == Until(6, 25, 0.005)
    assert sweep_of(tmp_path, "7").until is None


def test_a_sweep_grows_by_single_cases_and_no_job_loses_its_plan(tmp_path: Path) -> None:
    root = tmp_path / "logs" / "sample"
    root.mkdir(parents=True)
    ledger, _ = open_sweep(root, plan(tmp_path), "")
    before = [digest(ledger.manifest, array) for array in ledger.manifest.arrays]
    grown = grow(ledger, plan(tmp_path, counts={"1n1g": 6, "2n2g": 12}), "")
    assert [digest(grown.manifest, array) for array in grown.manifest.arrays][:2] == before
    added = [run for array in grown.manifest.arrays[2:] for run in array.tasks]
    assert {str(run.case.topology) for run in added} == {"2n2g"}
    assert Counter(run.repeat for run in added) == dict.fromkeys(range(7, 13), 2)
    assert read_manifest(root).until == Until(6, 25, 0.01)


def test_the_rule_of_a_sweep_does_not_change_once_runs_may_have_been_seen(tmp_path: Path) -> None:
    there = plan(tmp_path)
    other = plan(tmp_path, '{ min = 6, max = 30, until = "2%" }')
    assert differences(there, other) == [
        "repeats.max: there 25, here 30",
        "repeats.until: there 0.01, here 0.02",
    ]
    assert differences(there, plan(tmp_path, "9")) == []


def test_manifests_with_and_without_a_rule_are_read(tmp_path: Path) -> None:
    assert as_read(plan(tmp_path)).until == Until(6, 25, 0.01)
    root = tmp_path / "sample"
    a_sweep(root, plan(tmp_path).runs, engine="slurm")
    text = (root / layout.MANIFEST).read_text()
    assert '"until"' not in text and read_manifest(root).until is None
    good = {"min": 6, "max": 25, "half_width": 0.01}
    for wrong in ({"min": 5}, {"max": 4}, {"min": 30}, {"half_width": 0}, {"half_width": "1%"}):
        rows = {**json.loads(text), "until": {**good, **wrong}}
        (root / layout.MANIFEST).write_text(json.dumps(rows))
        with pytest.raises(LedgerError, match=r"until|min|max|half_width"):
            read_manifest(root)


# --- what cases need, by their results


NARROW, WIDE = [100.0, 100.5, 100.2, 100.4, 100.1, 100.3], [100.0, 110, 104, 102, 101, 103]
UNTIL = Until(6, 12, 0.01)


def need(*runs: RunResult) -> selection.Need:
    return selection.need_of(runs, UNTIL)


def test_further_repeats_are_those_up_to_the_next_look() -> None:
    found = need(*oks(case("2n2g"), *WIDE))
    assert (found.runs, found.further, found.why) == (6, 6, "6 more")
    assert found.half_width == pytest.approx(5 / 102.5) and not found.met
    known = need(*oks(case(), *NARROW))
    assert (known.further, known.why, known.met) == (0, "known", True)
    spent = need(*oks(case(), *WIDE, *WIDE))
    assert spent.further == 0 and spent.why == "not known, but it has as many runs as it may"
    few = need(*oks(case(), *WIDE[:3]))
    assert few.further == 3 and few.half_width is None


def test_runs_that_wait_or_failed_decide_nothing() -> None:
    runs = oks(case(), *WIDE)
    failed = need(*runs[:5], bad(case(), 6, Status.FAILED))
    assert failed.further == 0 and failed.why.startswith("1 run of it did not count:")
    waits = need(*runs[:5], bad(case(), 6, Status.RUNNING))
    assert waits.further == 0 and waits.why == "1 run of it must end first"


def test_what_status_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = plan(tmp_path)
    two = next(run.case for run in planned.runs if run.case.topology.nodes == 2)
    needs = [need(*oks(planned.runs[0].case, *NARROW)), need(*oks(two, *WIDE))]
    monkeypatch.setattr(selection, "needs_in", lambda *_: needs)
    stands = RunCollection(tmp_path, replace(planned, until=UNTIL), ())
    lines, values = selection.standing_of(tmp_path, stands)
    assert "within +-1 %, with 96.6% coverage" in lines[0] and "1 of 2 cases known" in lines[0]
    assert lines[1] == f"  {two.id}: 6 runs, +-4.9 %: 6 more" and len(lines) == 3
    # 6 runs of half an hour on two nodes
    assert lines[2].startswith("6 further runs, at most 6 node-hours: `dlperf sweep ")
    assert [row["further"] for row in values["repeats"]] == [0, 6]
    fixed = RunCollection(tmp_path, plan(tmp_path, "7"), ())
    assert selection.standing_of(tmp_path, fixed) == ([], {})


def test_the_reports_interval_allows_for_the_decision() -> None:
    (summary,) = Report("one", oks(case(), *WIDE), until=UNTIL).cases
    (fixed,) = summarise(oks(case(), *WIDE))
    assert summary.sample is not None and fixed.sample is not None
    ours, usual = summary.sample.interval, fixed.sample.interval
    assert ours is not None and usual is not None
    assert (ours.low, ours.high) == (usual.low, usual.high) == (100, 110)
    assert ours.coverage < usual.coverage == 1 - 2 * 0.5**6
    (few,) = Report("one", oks(case(), *WIDE[:4]), until=UNTIL).cases
    assert few.sample is not None and few.sample.interval is None
