"""A sweep becomes one array per topology, in repeat-major order, or one local queue."""

from __future__ import annotations

from pathlib import Path

import pytest
from spec_samples import load, write

from dlperf_hpc.engines import get_engine
from dlperf_hpc.engines.base import DEFAULT_BOUND
from dlperf_hpc.engines.plan import (
    make_manifest,
    node_hours,
    plan_arrays,
    rerun_arrays,
)
from dlperf_hpc.engines.site import Environment, Site
from dlperf_hpc.model.case import Topology, repeat_major
from dlperf_hpc.records.ledger import add_array, read_ledger
from dlperf_hpc.records.manifest import Submission, add_submission, read_manifest, write_manifest
from dlperf_hpc.sweepfile.load import Sweep

TOP = 'topologies = ["1n1g", "2n2g"]\nrepeats = 3\ntime_limit = {default = "10:00", 2n2g = "30:00"}'
SITE = Site(environment={"tf": Environment()})


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return load(write(tmp_path, top=TOP, case="", tables="[matrix]\nbatch_size = [8, 16]"))


@pytest.fixture
def two_environments(tmp_path: Path) -> Sweep:
    tables = '[matrix]\nenvironment = ["default", "tf"]'
    return load(write(tmp_path, top=TOP, tables=tables))


def test_one_array_for_each_topology_with_its_time_limit(sweep: Sweep) -> None:
    arrays = plan_arrays(sweep, one_queue=False)
    assert [(a.name, a.topology, a.time_limit_s, len(a.tasks)) for a in arrays] == [
        ("1n1g.sample", Topology(1, 1), 600, 6),
        ("2n2g.sample", Topology(2, 2), 1800, 6),
    ]
    assert [node_hours(array) for array in arrays] == [1.0, 6.0]


def test_each_array_is_in_repeat_major_order(sweep: Sweep) -> None:
    for array in plan_arrays(sweep, one_queue=False):
        assert [(run.case.batch_size, run.repeat) for run in array.tasks] == [
            *((8, 1), (16, 1), (8, 2), (16, 2), (8, 3), (16, 3))
        ]
        assert {run.case.topology for run in array.tasks} == {array.topology}


def test_environments_have_arrays_of_their_own(two_environments: Sweep) -> None:
    arrays = plan_arrays(two_environments, one_queue=False)
    assert [(array.name, array.environment) for array in arrays] == [
        ("1n1g.sample", "default"),
        ("2n2g.sample", "default"),
        ("1n1g.sample-tf", "tf"),
        ("2n2g.sample-tf", "tf"),
    ]
    for array in arrays:
        assert {run.case.environment for run in array.tasks} == {array.environment}


def test_the_local_queue_keeps_repeat_major_order_over_the_whole_sweep(
    two_environments: Sweep,
) -> None:
    arrays = plan_arrays(two_environments, one_queue=True)
    queue = [run for array in arrays for run in array.tasks]
    assert queue == [run for (run,) in repeat_major(two_environments.groups, 3)]
    for array in arrays:
        shared = {(run.case.topology, run.case.environment) for run in array.tasks}
        assert shared == {(array.topology, array.environment)}


def test_neighbours_of_one_topology_share_a_stretch_of_the_local_queue(tmp_path: Path) -> None:
    tables = "[matrix]\nbatch_size = [8, 16]"
    path = write(tmp_path, top='topologies = ["1n2g"]\nrepeats = 3', case="", tables=tables)
    (array,) = plan_arrays(load(path), one_queue=True)
    assert (array.name, len(array.tasks)) == ("1n2g.sample-1", 6)


@pytest.mark.parametrize("engine", ["slurm", "local"])
def test_every_run_is_planned_once_under_unique_names(two_environments: Sweep, engine: str) -> None:
    manifest = make_manifest(two_environments, SITE, engine)
    expected = {(case.id, repeat) for case in two_environments.cases for repeat in (1, 2, 3)}
    planned = [(run.case.id, run.repeat) for run in manifest.runs]
    assert len(planned) == len(expected) and set(planned) == expected
    for unique in ("name", "token"):
        assert len({getattr(array, unique) for array in manifest.arrays}) == len(manifest.arrays)
    assert all(array.token.startswith("dlperf-") for array in manifest.arrays)


def test_an_array_is_cut_where_slurm_or_the_site_bounds_it(sweep: Sweep) -> None:
    arrays = plan_arrays(sweep, one_queue=False, bound=4)
    assert [(array.name, len(array.tasks)) for array in arrays] == [
        *(("1n1g.sample-1", 4), ("1n1g.sample-2", 2), ("2n2g.sample-1", 4), ("2n2g.sample-2", 2))
    ]
    slurm = get_engine("slurm")
    assert slurm.array_bound(Site(max_array_size=500)) == 500
    assert slurm.array_bound(Site(max_array_size=500, max_submit=40)) == 40
    assert get_engine("local").array_bound(Site(max_submit=40)) == DEFAULT_BOUND


def test_arrays_of_a_rerun(sweep: Sweep, tmp_path: Path) -> None:
    """Just these runs, under names that are new, with the time limit that each topology had."""
    root = tmp_path / "sweep"
    root.mkdir()
    manifest = make_manifest(sweep, SITE, "slurm")
    write_manifest(root, manifest)
    picked = [manifest.runs[index] for index in (1, 5, 8)]
    first = rerun_arrays(read_ledger(root), picked, stretch=lambda limit: 2 * limit, exclude="n3")
    assert [(a.name, a.time_limit_s, a.exclude) for a in first] == [
        ("1n1g.sample.r1", 1200, "n3"),
        ("2n2g.sample.r1", 3600, "n3"),
    ]
    assert [run for array in first for run in array.tasks] == picked
    for array in first:
        add_array(root, array)
        add_submission(root, Submission(array.name, array.token, job_id="7"))
    (second,) = rerun_arrays(read_ledger(root), picked[:1], stretch=lambda limit: limit + 1)
    assert (second.name, second.time_limit_s) == ("1n1g.sample.r2", 1201)
    assert rerun_arrays(read_ledger(root), []) == ()


def test_tokens_are_new_each_time(sweep: Sweep) -> None:
    first, second = (plan_arrays(sweep, one_queue=False) for _ in range(2))
    assert not {array.token for array in first} & {array.token for array in second}


def test_the_manifest_holds_what_the_sweep_says(sweep: Sweep, tmp_path: Path) -> None:
    manifest = make_manifest(sweep, SITE, "slurm")
    assert (manifest.sweep, manifest.engine, manifest.base) == ("sample", "slurm", "1n1g")
    assert (manifest.measure, manifest.limits) == (sweep.measure, sweep.limits)
    assert manifest.source == str(sweep.source)
    assert manifest.site["environment"]["tf"]["mpi"] == "pmi2"
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path) == manifest
