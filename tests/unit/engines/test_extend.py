"""A sweep grows: what a request adds to it, what contradicts it, and what stays as it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from record_samples import a_sweep, ended_ok, many, token_of
from report_samples import case
from spec_samples import load, write

from dlperf_hpc.engines import plan as planning
from dlperf_hpc.engines.plan import differences, make_manifest, open_sweep, rerun_arrays
from dlperf_hpc.engines.site import Environment, Site
from dlperf_hpc.engines.states import current, follow
from dlperf_hpc.engines.submit import missing_arrays, save_arrays, split_arrays
from dlperf_hpc.errors import LedgerError
from dlperf_hpc.model.result import Status
from dlperf_hpc.records import layout
from dlperf_hpc.records.ledger import find_array, read_ledger
from dlperf_hpc.records.manifest import (
    Manifest,
    Submission,
    add_submission,
    digest,
    extend_manifest,
    read_manifest,
)

TOP = 'topologies = ["1n1g", "2n2g"]\nrepeats = 3\ntime_limit = {default = "10:00", 2n2g = "30:00"}'
TABLES = "[matrix]\nbatch_size = [8, 16]"
SITE = Site(max_array_size=1001, environment={"tf": Environment()})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "logs" / "sample"
    made.mkdir(parents=True)
    return made


def plan(
    where: Path, only: str = "", engine: str = "slurm", site: Site = SITE, **changes: Any
) -> Manifest:
    """The plan of the sample with ``--only`` and ``--set``."""
    top = changes.pop("top", TOP)
    sweep = load(write(where, top=top, case="", tables=changes.pop("tables", TABLES)), **changes)
    kept = [case for case in sweep.cases if not only or str(case.topology) in only.split(",")]
    return make_manifest(replace(sweep, cases=tuple(kept)), site, engine)


def begun(root: Path, asked: Manifest, text: str = "", submitted: bool = True) -> None:
    """A sweep's directory after ``dlperf sweep``: every array has a job."""
    ledger, new = open_sweep(root, asked, text)
    for number, array in enumerate(missing_arrays(ledger, new, asked.runs), 1):
        if submitted:
            add_submission(root, Submission(array.name, array.token, job_id=str(number)))


def missing(root: Path, asked: Manifest) -> list[tuple[str, list[str]]]:
    """The arrays that the command submits: names, and runs without what they share."""
    ledger, new = open_sweep(root, asked, "")
    arrays = missing_arrays(ledger, new, asked.runs)
    if not new:
        ledger, arrays = split_arrays(ledger, SITE, arrays, {run.id for run in asked.runs})
    noted = [(array, ledger.outcome(array)) for array in arrays]
    return [(a.name, [short(r.id) for r in a.tasks]) for a, was in noted if not was]


def short(run: str) -> str:
    """``ddp/bert-tiny/bz8/1n1g/bert-tiny_b8_fp32_1`` -> ``8/1n1g/1``."""
    _, _, batch, topology, name = run.split("/")
    return f"{batch[2:]}/{topology}/{name.rpartition('_')[2]}"


def noted(capsys: pytest.CaptureFixture[str]) -> Iterator[str]:
    yield from capsys.readouterr().err.splitlines()


# --- what is added


def test_topologies_and_repeats_are_added_as_new_arrays(
    tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun(root, plan(tmp_path, "1n1g", repeats=1))
    before = json.loads((root / layout.MANIFEST).read_text())
    whole = plan(tmp_path)
    added = [
        ("1n1g.sample.g1", [f"{b}/1n1g/{n}" for n in (2, 3) for b in (8, 16)]),
        ("2n2g.sample.g1", [f"{b}/2n2g/{n}" for n in (1, 2, 3) for b in (8, 16)]),
    ]
    assert missing(root, whole) == added
    assert list(noted(capsys)) == [
        f"note: {root} had 2 runs; 10 more are added to it, as new arrays"
    ]
    after = json.loads((root / layout.MANIFEST).read_text())
    assert after["arrays"][0] == before["arrays"][0] and after["cases"][:2] == before["cases"]
    for key in before.keys() - {"arrays", "cases", "repeats"}:
        assert after[key] == before[key]
    manifest = read_manifest(root)
    assert manifest.repeats == 3 and manifest.base == "1n1g"
    assert {run.id for run in manifest.runs} == {run.id for run in whole.runs}
    assert len(manifest.runs) == 12
    assert [array.time_limit_s for array in manifest.arrays] == [600, 600, 1800]
    # A kill before anything was submitted: the same command again submits the same arrays.
    assert missing(root, whole) == added and read_manifest(root) == manifest
    assert list(noted(capsys)) == []


def test_values_of_the_matrix_are_added(tmp_path: Path, root: Path) -> None:
    begun(root, plan(tmp_path, repeats=1, topologies=["1n1g"]))
    assert missing(root, plan(tmp_path, repeats=1, topologies=["1n1g"], batch_size=32)) == [
        ("1n1g.sample.g1", ["32/1n1g/1"])
    ]


def test_each_growth_has_names_of_its_own(tmp_path: Path, root: Path) -> None:
    for repeats in (1, 2, 3):
        begun(root, plan(tmp_path, "1n1g", repeats=repeats))
    ledger = read_ledger(root)
    save_arrays(ledger, rerun_arrays(ledger, ledger.manifest.runs[:1]))
    assert missing(root, plan(tmp_path, "2n2g", repeats=1))[0][0] == "2n2g.sample.g3"
    names = [array.name for array in read_ledger(root).arrays]
    assert names[:3] == ["1n1g.sample", "1n1g.sample.g1", "1n1g.sample.g2"]
    assert names[3:] == ["2n2g.sample.g3", "1n1g.sample.r1"]
    for name in names:
        assert find_array(root, read_manifest(root), name).name == name


def test_of_several_repeats_in_a_job_those_that_are_new_stay_together(
    tmp_path: Path, root: Path
) -> None:
    begun(root, plan(tmp_path, "1n1g", repeats=1))
    ledger, _ = open_sweep(root, plan(tmp_path, repeats=3, repeats_per_job=3), "")
    assert [(a.name, a.size, a.repeats_per_job) for a in ledger.arrays] == [
        *(("1n1g.sample", 2, 1), ("2n2g.sample.g1", 2, 3), ("1n1g.sample.g2", 2, 2))
    ]
    (_, _, rest) = ledger.arrays
    assert [short(run.id) for run in rest.tasks] == [
        "8/1n1g/2",
        "8/1n1g/3",
        "16/1n1g/2",
        "16/1n1g/3",
    ]


def test_the_local_queue_keeps_the_order_over_what_is_new(tmp_path: Path, root: Path) -> None:
    begun(root, plan(tmp_path, "1n1g", "local", repeats=1))
    whole = plan(tmp_path, engine="local", repeats=2)
    # Nothing has a result: what an earlier process had queued comes first in each repeat.
    (first, second, *others) = missing(root, whole)
    assert first == ("1n1g.sample.r1-1", ["8/1n1g/1"]) and second[0] == "2n2g.sample.r1-2"
    runs = [run for _, each in (first, second, *others) for run in each]
    assert runs == [short(run.id) for run in whole.runs]


def test_the_local_queue_takes_the_new_arrays_as_they_are(tmp_path: Path, root: Path) -> None:
    open_sweep(root, plan(tmp_path, "1n1g", "local"), "")
    found = missing(root, plan(tmp_path, "1n1g", "local"))
    assert [name for name, _ in found] == ["1n1g.sample-1"]


def test_the_base_comes_in(tmp_path: Path, root: Path) -> None:
    begun(root, plan(tmp_path, topologies=["2n2g"]))
    assert read_manifest(root).base is None
    begun(root, plan(tmp_path, topologies=["1n1g"]))
    assert read_manifest(root).base == "1n1g"
    begun(root, plan(tmp_path, topologies=["2n2g"]))  # which says nothing of a base
    assert read_manifest(root).base == "1n1g"


def test_an_environment_that_is_new_is_kept_for_reruns(tmp_path: Path, root: Path) -> None:
    begun(root, plan(tmp_path, site=Site(partition="p1"), repeats=1))
    both = plan(tmp_path, site=replace_partition(SITE), repeats=1, environment=["default", "tf"])
    begun(root, both)
    site = read_manifest(root).site
    assert site["partition"] == "p1" and site["environment"]["tf"]["mpi"] == "pmi2"


def replace_partition(site: Site) -> Site:
    return site.model_copy(update={"partition": "p2"})


def test_a_directory_that_was_moved_grows_on(tmp_path: Path, root: Path) -> None:
    """Its arrays keep the name of then, as those of a rerun do."""
    begun(root, plan(tmp_path, "1n1g"))
    assert missing(root, plan(tmp_path, "2n2g", name="moved", repeats=1)) == [
        ("2n2g.sample.g1", ["8/2n2g/1", "16/2n2g/1"])
    ]


def test_what_another_version_wrote_stays(tmp_path: Path, root: Path) -> None:
    begun(root, plan(tmp_path, "1n1g"))
    path = root / layout.MANIFEST
    data = json.loads(path.read_text())
    data["later"], data["arrays"][0]["later"], data["cases"][0]["later"] = 1, 2, 3
    path.write_text(json.dumps(data))
    begun(root, plan(tmp_path))
    data = json.loads(path.read_text())
    assert (data["later"], data["arrays"][0]["later"], data["cases"][0]["later"]) == (1, 2, 3)


def test_jobs_that_wait_stay_bound_when_the_sweep_grows(tmp_path: Path, root: Path) -> None:
    """Also where other versions wrote it: of a program less, of a case more."""
    program = '\n[program.mine]\nlaunch = "once"\nrun = ["a", "{batch_size}"]\n'
    wish: dict[str, Any] = {"tables": TABLES + program, "framework": "mine"}
    begun(root, plan(tmp_path, "1n1g", **wish))
    path = root / layout.MANIFEST
    data = json.loads(path.read_text())
    del data["programs"]["mine"]["stop"]
    data["cases"][0]["later"] = 1
    path.write_text(json.dumps(data))
    before = read_manifest(root)
    begun(root, plan(tmp_path, **wish))
    after = read_manifest(root)
    assert len(after.arrays) == 2 and after.arrays[0] == before.arrays[0]
    assert digest(after, after.arrays[0]) == digest(before, before.arrays[0])
    assert digest(after, after.arrays[1]) != digest(after, after.arrays[0])


def test_each_sweep_file_stays(tmp_path: Path, root: Path) -> None:
    begun(root, plan(tmp_path, repeats=1), "one")
    begun(root, plan(tmp_path, repeats=1), "other words for one")
    assert (root / layout.SPEC_COPY).read_text() == "one"
    (root / "sweep.1.toml").write_text("one")  # kept by a process that was killed then
    begun(root, plan(tmp_path, repeats=2), "two")
    begun(root, plan(tmp_path, repeats=3), "three")
    begun(root, plan(tmp_path, repeats=4), "three")
    kept = {path.name: path.read_text() for path in root.glob("sweep*.toml")}
    assert kept == {"sweep.1.toml": "one", "sweep.2.toml": "two", "sweep.toml": "three"}


def test_a_sweep_cannot_grow_without_end(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(root, plan(tmp_path, repeats=1))
    monkeypatch.setattr(planning, "MOST_RUNS", 10)
    before = (root / layout.MANIFEST).read_bytes()
    with pytest.raises(LedgerError, match="has 4 runs, and 8 more would be above 10"):
        open_sweep(root, plan(tmp_path), "")
    assert (root / layout.MANIFEST).read_bytes() == before


def test_a_manifest_that_could_not_be_read_again_is_not_written(tmp_path: Path, root: Path) -> None:
    begun(root, plan(tmp_path, "1n1g"))
    before = (root / layout.MANIFEST).read_bytes()
    manifest = read_manifest(root)
    twice = replace(manifest, arrays=(*manifest.arrays, *manifest.arrays))
    with pytest.raises(LedgerError, match="two of them have one name; nothing was changed"):
        extend_manifest(root, twice)
    assert (root / layout.MANIFEST).read_bytes() == before


# --- asked for less than there is


def test_only_what_is_asked_for_is_submitted(tmp_path: Path, root: Path) -> None:
    """The whole was planned, and a kill came before anything was submitted."""
    begun(root, plan(tmp_path), submitted=False)
    assert [name for name, _ in missing(root, plan(tmp_path, "2n2g"))] == ["2n2g.sample"]
    assert len(read_manifest(root).runs) == 12


def test_of_an_array_that_was_not_submitted_a_part_may_be(tmp_path: Path, root: Path) -> None:
    begun(root, plan(tmp_path), submitted=False)
    part = ("2n2g.sample.p1", ["8/2n2g/1", "16/2n2g/1"])
    assert missing(root, plan(tmp_path, "2n2g", repeats=1)) == [part]
    assert missing(root, plan(tmp_path, "2n2g", repeats=1)) == [part], "written down once"
    name = part[0]
    token = find_array(root, read_manifest(root), name).token
    add_submission(root, Submission(name, token, job_id="7"))
    assert missing(root, plan(tmp_path, "2n2g", repeats=1)) == []
    rest = [f"{batch}/2n2g/{number}" for number in (2, 3) for batch in (8, 16)]
    assert missing(root, plan(tmp_path))[1:] == [("2n2g.sample.p2", rest)]


def test_who_asks_for_less_does_not_wait_for_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No job stands for it, so that nothing would ever come of it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    runs = many([case("1n1g"), case("1n2g")], 1)
    a_sweep(tmp_path, runs, engine="slurm")
    add_submission(tmp_path, Submission("1n1g.sample", token_of("1n1g"), job_id="7"))
    ended_ok(tmp_path, runs[0], launch="7_0.0")
    follow(tmp_path, poll_s=60, quiet=True)
    assert [result.status for result in current(tmp_path).results] == [Status.OK, Status.PENDING]


# --- what contradicts


def test_what_differs_is_told_key_by_key(tmp_path: Path, root: Path) -> None:
    there = plan(tmp_path)
    assert differences(there, plan(tmp_path, repeats=2, topologies=["2n2g"])) == []
    assert differences(there, plan(tmp_path, engine="local")) == [
        'engine: there "slurm", here "local"'
    ]
    changes: dict[str, Any] = {"measure.warmup": 4, "limits.startup_s": 60.0, "base": "2n2g"}
    told = differences(there, plan(tmp_path, **changes, time_limit="01:00:00"))
    assert told == [
        'base: there "1n1g", here "2n2g"',
        "measure.warmup: there 20, here 4",
        "limits.startup_s: there 900.0, here 60.0",
        'time_limit.1n1g: there "00:10:00", here "01:00:00"',
        'time_limit.2n2g: there "00:30:00", here "01:00:00"',
    ]


def test_settings_of_a_case_of_the_same_name_are_told(tmp_path: Path) -> None:
    """As when a default changes between versions: the name does not tell. An option that the
    earlier version did not have (``bucket_mb``) is at its default, or it were in the name."""
    there = plan(tmp_path, "1n1g")
    arrays = tuple(
        replace(
            array,
            tasks=tuple(
                replace(
                    run,
                    case=replace(run.case, threads=4, mode="compile", options=(("dropout", 0.0),)),
                )
                for run in array.tasks
            ),
        )
        for array in there.arrays
    )
    told = differences(replace(there, arrays=arrays), there)
    name = there.runs[0].case.id
    assert f"case.threads: there 4, here 1 (2 cases, {name} among them)" in told
    assert f'case.mode: there "compile", here "eager" (2 cases, {name} among them)' in told
    assert f"case.dropout: there 0.0, here 0.1 (2 cases, {name} among them)" in told
    assert len(told) == 3


def test_a_refusal_is_short_and_changes_nothing(tmp_path: Path, root: Path) -> None:
    begun(root, plan(tmp_path), "text")
    before = {path: path.read_bytes() for path in root.iterdir() if path.is_file()}
    names = ("warmup", "iterations", "min_seconds", "min_optimizer_steps", "communication_steps")
    changes: dict[str, Any] = {f"measure.{name}": 77 for name in names}
    changes |= {f"limits.{name}": 7.0 for name in ("startup_s", "iteration_s", "shutdown_s")}
    more = plan(tmp_path, **changes, time_limit="09:00", base="2n2g", repeats=9)
    with pytest.raises(LedgerError) as caught:
        open_sweep(root, more, "other")
    head, *lines = str(caught.value).splitlines()
    assert head.startswith(f"{root} holds this sweep as it was planned on ")
    assert "  measure.warmup: there 20, here 77" in lines
    assert lines[-2] == "  and 1 more" and len(lines) == 12
    assert "another --name (or --logs)" in lines[-1]
    assert {path: path.read_bytes() for path in root.iterdir() if path.is_file()} == before
