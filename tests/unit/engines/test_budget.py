"""A budget of node-hours: which runs fit, what runs have used, and that nothing above it is
submitted. Hours are counted by hand from the stamps of the logs that a test writes."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from record_samples import a_sweep, manifest
from spec_samples import load, write

from dlperf_hpc.cli import selection
from dlperf_hpc.engines.budget import FEWEST, Usage, choose, usage
from dlperf_hpc.engines.plan import grow, make_manifest, open_sweep
from dlperf_hpc.engines.site import Site
from dlperf_hpc.errors import SpecError
from dlperf_hpc.model.case import Run
from dlperf_hpc.records import layout
from dlperf_hpc.records.collect import quick_results
from dlperf_hpc.records.layout import RunPaths
from dlperf_hpc.records.ledger import read_ledger
from dlperf_hpc.records.manifest import Manifest, Submission, add_submission, read_manifest

TOP = 'topologies = ["1n1g", "2n2g", "4n2g"]\nrepeats = {repeats}\ntime_limit = "01:00:00"\n{more}'


def plan(place: Path, repeats: int = 5, more: str = "", engine: str = "slurm") -> Manifest:
    top = TOP.format(repeats=repeats, more=more)
    sweep = load(write(place, top=top, case="", tables="[matrix]\nbatch_size = [8, 16]"))
    return make_manifest(sweep, Site(), engine)


def kept(made: Manifest) -> dict[str, Counter[int]]:
    """By topology, how often each repeat is there."""
    found: dict[str, Counter[int]] = {}
    for run in made.runs:
        found.setdefault(str(run.case.topology), Counter())[run.repeat] += 1
    return found


@pytest.mark.parametrize(
    ("budget", "topologies", "repeats"),
    [
        # Two cases on each topology, an hour for each run: a repeat of all takes 2 x (1 + 2 + 4).
        (70, "1n1g 2n2g 4n2g", 5),
        (69.9, "1n1g 2n2g 4n2g", 4),
        (42, "1n1g 2n2g 4n2g", 3),
        (41.9, "1n1g 2n2g", 5),
        (29, "1n1g 2n2g", 4),
        (18, "1n1g 2n2g", 3),
        (17, "1n1g", 5),
        (6, "1n1g", 3),
    ],
)
def test_repeats_go_first_and_then_the_largest_topologies(
    tmp_path: Path, budget: float, topologies: str, repeats: int
) -> None:
    chosen = selection.select(plan(tmp_path, more=f"budget_node_hours = {budget}"), tmp_path / "no")
    wanted = {name: dict.fromkeys(range(1, repeats + 1), 2) for name in topologies.split()}
    assert kept(chosen.manifest) == wanted
    assert chosen.values["now"] <= budget and bool(chosen.values["left_out"]) == (budget != 70)


def test_a_budget_too_small_for_anything_is_one_sentence(tmp_path: Path) -> None:
    planned = plan(tmp_path, more="budget_node_hours = 5.9")
    with pytest.raises(SpecError, match=r"5.9 is too small.* may take 6") as caught:
        selection.select(planned, tmp_path / "no")
    assert "\n" not in str(caught.value).strip().partition("\n")[2]


@pytest.mark.parametrize("value", ["0", "-3", "inf", "nan", '"much"', "true"])
def test_what_is_no_budget_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(SpecError, match="budget_node_hours"):
        plan(tmp_path, more=f"budget_node_hours = {value}")


def test_no_case_keeps_fewer_than_three_repeats_whatever_the_budget(tmp_path: Path) -> None:
    planned = plan(tmp_path, repeats=7)
    runs = planned.runs
    for budget in range(1, 110):
        chosen = choose(planned.arrays, {run.id for run in runs}, Usage(), budget)
        of_cases = Counter(run.case.id for run in runs if run.id in chosen.runs)
        assert not of_cases or min(of_cases.values()) >= FEWEST
        kept_runs = [run for run in runs if run.id in chosen.runs]
        assert sum(run.case.topology.nodes for run in kept_runs) <= budget


def test_jobs_of_several_repeats_stay_whole(tmp_path: Path) -> None:
    planned = plan(tmp_path, 8, "repeats_per_job = 4\nbudget_node_hours = 60")
    chosen = selection.select(planned, tmp_path / "no")
    assert kept(chosen.manifest)["4n2g"] == dict.fromkeys(range(1, 5), 2)


# --- what was used


def log(root: Path, run: Run, began: int, took_s: int, status: str = "ok", name: str = "") -> None:
    """The first and the last line of a run's log."""
    path = Path(name) if name else RunPaths(root, run.id).log
    path.parent.mkdir(parents=True, exist_ok=True)
    first, last = (
        datetime.fromtimestamp(each, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.000000Z")
        for each in (began, began + took_s)
    )
    launch = f"4711_{run.repeat - 1}.0"
    begin = f'dlperf {first} begin format=1 run={run.id} attempt=1 launch="{launch}"'
    path.write_text(f"{begin}\ndlperf {last} end status={status} reason=none\n")


def test_hours_are_those_of_every_attempt_and_limits_stand_for_the_rest(tmp_path: Path) -> None:
    case = plan(tmp_path).arrays[1].tasks[0].case  # of two nodes
    runs = [Run(case, repeat) for repeat in range(1, 6)]
    root = tmp_path / "sample"
    made = a_sweep(root, runs, engine="slurm")  # 600 s for each
    array = made.arrays[0]
    add_submission(root, Submission(array.name, array.token, job_id="4711"))
    log(root, runs[0], 1_700_000_000, 90, "failed")
    log(root, runs[1], 1_700_000_000, 60, "failed")
    earlier = RunPaths(root, runs[1].id)
    log(root, runs[1], 1_699_000_000, 30, "failed", str(earlier.earlier(earlier.log, 1)))
    ledger = read_ledger(root)
    found = usage(ledger, quick_results(ledger))
    assert found.used == pytest.approx(2 * (90 + 60 + 30) / 3600)
    assert found.reserved == pytest.approx(2 * 3 * 600 / 3600)
    assert found.hours(runs[4], 600) == pytest.approx(2 * 600 / 3600)
    # Once one has ended well, its time is taken for those that wait.
    known = replace(found, longest_s={case.id: 120.0})
    assert known.hours(runs[4], 600) == pytest.approx(2 * 120 / 3600)


def test_a_run_without_a_log_took_no_longer_than_its_job_printed(tmp_path: Path) -> None:
    case = plan(tmp_path).arrays[0].tasks[0].case
    runs = [Run(case, repeat) for repeat in (1, 2)]
    root = tmp_path / "sample"
    made = a_sweep(root, runs, engine="slurm")
    array = made.arrays[0]
    row = Submission(array.name, array.token, "4711", time="2026-11-21T10:00:00.000000Z")
    add_submission(root, row)
    record = {"schema": layout.RECORD_SCHEMA, "status": "failed", "attempt": 1, "reason": "died"}
    for number, run in enumerate(runs):
        path = RunPaths(root, run.id).record
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**record, "launch": f"4711_{number}.0"}))
        output = root / layout.JOBS / f"4711_{number}.out"
        output.parent.mkdir(exist_ok=True)
        output.write_text("died\n")
        ended = datetime(2026, 11, 21, 10, number * 50, 30, tzinfo=timezone.utc).timestamp()
        os.utime(output, (ended, ended))
    ledger = read_ledger(root)
    # The first printed last after half a minute; the second waited: at most its limit of 600 s.
    assert usage(ledger, quick_results(ledger)).used == pytest.approx((30 + 600) / 3600)


# --- a sweep with a budget that is there


def test_the_sweep_keeps_its_budget_until_another_is_given(tmp_path: Path) -> None:
    root = tmp_path / "logs" / "sample"
    root.mkdir(parents=True)
    first = selection.select(plan(tmp_path, more="budget_node_hours = 18"), root).manifest
    ledger, _ = open_sweep(root, first, "")
    assert read_manifest(root).budget_node_hours == 18
    again = plan(tmp_path)
    assert grow(ledger, selection.select(again, root, insist=False).manifest, "") == ledger
    more = plan(tmp_path, more="budget_node_hours = 30")
    grown = grow(ledger, selection.select(more, root, insist=False).manifest, "")
    assert grown.manifest.budget_node_hours == 30
    assert kept(grown.manifest) == {
        "1n1g": dict.fromkeys(range(1, 6), 2),
        "2n2g": dict.fromkeys(range(1, 6), 2),
    }


def test_an_earlier_manifest_has_no_budget_and_a_new_one_without_it_no_such_key(
    tmp_path: Path,
) -> None:
    root = tmp_path / "sample"
    a_sweep(root, plan(tmp_path).runs, engine="slurm")
    text = (root / layout.MANIFEST).read_text()
    assert "budget" not in text and read_manifest(root).budget_node_hours is None
    for wrong in ("0", '"5"', "-1"):
        broken = text.replace('"repeats":', f'"budget_node_hours": {wrong}, "repeats":', 1)
        (root / layout.MANIFEST).write_text(broken)
        with pytest.raises(Exception, match="budget_node_hours"):
            read_manifest(root)


def test_what_has_a_job_is_never_taken_back(tmp_path: Path) -> None:
    root = tmp_path / "logs" / "sample"
    root.mkdir(parents=True)
    planned = plan(tmp_path, more="budget_node_hours = 70", engine="slurm")
    ledger, _ = open_sweep(root, planned, "")
    taken = planned.arrays[2]
    add_submission(root, Submission(taken.name, taken.token, job_id="1"))
    ledger = read_ledger(root)
    found = usage(ledger, quick_results(ledger))
    assert found.reserved == pytest.approx(4 * len(taken.tasks))
    assert found.open == {run.id for array in planned.arrays[:2] for run in array.tasks}
    assert Usage(1.0, 2.0).text(5) == "1 of 5 node-hours used, 2 reserved by runs that wait or run"
    assert manifest(taken.tasks).budget_node_hours is None
