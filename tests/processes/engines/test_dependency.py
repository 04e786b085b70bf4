"""What ``--after`` names, where no job runs: other engines' sweeps, and runs not submitted yet."""

from __future__ import annotations

from pathlib import Path

import pytest
from queueing import printed_by_squeue
from record_samples import a_sweep, begun, ended, ended_ok, many
from report_samples import case

from dlperf_hpc.engines import get_engine
from dlperf_hpc.engines.dependency import awaited
from dlperf_hpc.engines.site import Site
from dlperf_hpc.errors import SiteError, SpecError
from dlperf_hpc.model.result import Status

RUNS = many([case("1n1g")], 2)


def refusal(name: str, logs: Path) -> str:
    with pytest.raises(SpecError) as caught:
        awaited(get_engine("slurm"), name, logs)
    (issue,) = caught.value.issues
    return str(issue)


def test_a_sweep_of_this_machine_can_only_have_ended(tmp_path: Path) -> None:
    a_sweep(tmp_path / "here", RUNS)
    ended_ok(tmp_path / "here", RUNS[0])
    begun(tmp_path / "here", RUNS[1])
    told = refusal("here", tmp_path)
    assert told.startswith("--after here: 1 of its 2 runs have not ended, and no job of Slurm can")
    ended(tmp_path / "here", RUNS[1], Status.FAILED, "exit code 3")
    assert awaited(get_engine("slurm"), "here", tmp_path) == ([], "")


def test_what_is_nothing(tmp_path: Path) -> None:
    nothing = refusal("first", tmp_path / "logs")
    assert nothing.startswith("--after first: is no job's id, and there is no sweep's directory")
    assert "(" not in nothing  # there is no other to name
    a_sweep(tmp_path / "logs" / "second", RUNS)
    assert refusal("first", tmp_path / "logs").endswith("(there are second)")
    assert refusal("secnd", tmp_path / "logs").endswith("(did you mean 'second'?)")


def test_runs_that_are_not_submitted_and_a_controller_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    squeue = tmp_path / "bin" / "squeue"
    squeue.parent.mkdir()
    squeue.write_text(f"#!/bin/sh\necho '{printed_by_squeue()}'\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{squeue.parent}:/usr/bin:/bin")
    a_sweep(tmp_path / "early", RUNS, engine="slurm")
    jobs, note = awaited(get_engine("slurm"), "early", tmp_path)
    assert jobs == [] and note.startswith("2 runs of it are not submitted yet")
    squeue.write_text("#!/bin/sh\necho 'slurm_load_jobs error' >&2; exit 1\n")
    for name in ("early", "4711"):
        with pytest.raises(SiteError, match="slurm_load_jobs error"):
            awaited(get_engine("slurm"), name, tmp_path)


def test_a_dependency_beside_the_profiles_own() -> None:
    with_dependency = get_engine("slurm").starting_after
    assert with_dependency(Site(), []) == Site()
    later = with_dependency(Site(), ["7", "8_1"])
    assert later is not None and later.sbatch == {"dependency": "afterany:7:8_1"}
    own = Site(sbatch={"depend": "singleton", "comment-less": True})
    later = with_dependency(own, ["7"])
    assert later is not None and later.sbatch == {
        "comment-less": True, "dependency": "singleton,afterany:7",
    }  # fmt: skip
    with pytest.raises(SpecError, match=r"sbatch\.dependency: .*leave out --after"):
        with_dependency(Site(sbatch={"dependency": "after:1?after:2"}), ["7"])
