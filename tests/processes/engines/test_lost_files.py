"""A directory that has lost what told of its jobs: nothing that is there is measured or written
over, and what is left is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from record_samples import a_sweep, ended, ended_ok, many, token_of
from report_samples import case

from dlperf_hpc.cli import report, rerun, status
from dlperf_hpc.engines.plan import open_sweep, rerun_arrays
from dlperf_hpc.engines.submit import adopt, missing_arrays
from dlperf_hpc.errors import LedgerError
from dlperf_hpc.model.result import Status
from dlperf_hpc.records import layout
from dlperf_hpc.records.ledger import add_array, read_ledger
from dlperf_hpc.records.manifest import Manifest, Submission, add_submission

RUNS = many([case("1n1g"), case("1n2g")], 2)
TOKENS = {name: token_of(name) for name in ("1n1g", "1n2g")}


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Slurm that has forgotten all jobs and refuses new ones; the calls of sbatch are counted."""
    (tmp_path / "bin").mkdir()
    header = 'for a; do case $a in --format=*) echo "${a#--format=}";; esac; done'
    for name, line in (("squeue", header), ("sbatch", f"echo x >> {tmp_path}/calls; exit 1")):
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr("dlperf_hpc.engines.slurm.query._BETWEEN_S", 0.0)
    return tmp_path / "sweep"


@pytest.fixture
def planned(slurm: Path) -> Manifest:
    return a_sweep(slurm, RUNS, engine="slurm")


def missing(root: Path, planned: Manifest) -> list[list[str]]:
    """The runs of each array that the same command would submit now."""
    ledger, new = open_sweep(root, planned, "")
    ledger, _ = adopt(ledger)
    arrays = [
        a for a in missing_arrays(ledger, new) if not (o := ledger.outcome(a)) or not o.job_id
    ]
    return [[run.id for run in array.tasks] for array in arrays]


def test_without_submissions_nothing_that_is_ok_is_submitted(
    slurm: Path, planned: Manifest
) -> None:
    for run in RUNS:
        ended_ok(slurm, run)
    assert missing(slurm, planned) == []


def test_without_submissions_the_other_runs_of_an_array_are_submitted_alone(
    slurm: Path, planned: Manifest
) -> None:
    ended_ok(slurm, RUNS[0])
    ended(slurm, RUNS[2], Status.FAILED, "x")
    rest = [[RUNS[1].id, RUNS[3].id], [RUNS[2].id]]
    assert missing(slurm, planned) == rest
    assert missing(slurm, planned) == rest, "written down once, also if a kill came between"
    names = [path.name for path in (slurm / layout.ARRAYS).iterdir()]
    assert names == ["1n1g.sample.r1.json"]


def test_without_submissions_the_jobs_are_known_by_their_outputs(
    slurm: Path, planned: Manifest
) -> None:
    """Each begins with the token of its array: a run that failed is not submitted by `sweep`."""
    ended(slurm, RUNS[0], Status.FAILED, "x", launch="7_0.0")
    (slurm / layout.JOBS).mkdir()
    for job, token in (("7", TOKENS["1n1g"]), ("8", TOKENS["1n2g"])):
        (slurm / layout.JOBS / f"{job}_0.out").write_text(f"dlperf_hpc: array {token}\n")
    assert missing(slurm, planned) == []
    tasks = read_ledger(slurm).tasks()
    assert [tasks[run.id].name for run in RUNS] == ["7_0", "8_0", "7_1", "8_1"]


@pytest.mark.parametrize("left", ["logs", layout.SUBMISSIONS, layout.ARRAYS, "output"])
def test_without_a_manifest_nothing_is_written_over(
    slurm: Path, planned: Manifest, left: str
) -> None:
    if left == "logs":
        ended_ok(slurm, RUNS[0])
    elif left == layout.SUBMISSIONS:
        add_submission(slurm, Submission("1n1g.sample", TOKENS["1n1g"], job_id="7"))
    else:
        (slurm / (layout.JOBS if left == "output" else left)).mkdir()
        (slurm / layout.JOBS / "7_0.out").write_text("x") if left == "output" else None
    (slurm / layout.MANIFEST).unlink()
    before = sorted(slurm.rglob("*"))
    with pytest.raises(LedgerError) as caught:
        open_sweep(slurm, planned, "")
    words = {"logs": "1 logs", "output": "jobs/7_0.out"}.get(left, left)
    assert words in str(caught.value) and "has no manifest.json" in str(caught.value)
    assert "dlperf report" in str(caught.value) and "--name" in str(caught.value)
    assert sorted(slurm.rglob("*")) == before


def test_a_sweep_that_was_killed_before_its_manifest_is_begun_again(
    slurm: Path, planned: Manifest
) -> None:
    (slurm / layout.MANIFEST).unlink()
    (slurm / layout.JOBS).mkdir()
    (slurm / layout.LOCK).touch()
    (slurm / layout.SPEC_COPY).write_text("repeats = 1\n")
    assert open_sweep(slurm, planned, "")[1]


# --- a damaged array -----------------------------------------------------------------------------


def test_a_damaged_array_is_a_remark_for_who_looks_and_a_way_out_for_who_submits(
    slurm: Path, planned: Manifest, capsys: pytest.CaptureFixture[str]
) -> None:
    for run in RUNS[:3]:
        ended_ok(slurm, run)
    ended(slurm, RUNS[3], Status.FAILED, "x")
    (again,) = rerun_arrays(read_ledger(slurm), [RUNS[3]])
    add_array(slurm, again)
    path = slurm / layout.ARRAYS / f"{again.name}.json"
    path.write_text(path.read_text()[:100])
    for verb in (status, report):
        assert verb.main([str(slurm), *(["--offline"] if verb is status else [])]) == 1
        told = capsys.readouterr()
        assert f"not read: {path}: damaged" in told.err and "Traceback" not in told.err
        assert "failed" in told.out
    assert rerun.main([str(slurm), "--dry-run"]) == 2
    err = capsys.readouterr().err
    assert f"mv {path} {path}.damaged" in err and "cancel first" in err
    path.rename(f"{path}.damaged")
    assert rerun.main([str(slurm), "--dry-run"]) == 0
    assert "1n2g.sample.r1: 1 run" in capsys.readouterr().out
