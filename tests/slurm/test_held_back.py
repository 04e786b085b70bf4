"""An environment without PyTorch on a real Slurm: one run fails, the others are held back."""

from __future__ import annotations

import json
from pathlib import Path

from fixtures_slurm import Onebox
from lacking import add_torch, without_torch
from places import ROOT
from sweeping import Workplace, wait_until


def test_one_run_fails_the_others_are_held_back_and_rerun_takes_them(
    place: Workplace, onebox: Onebox
) -> None:
    packages = without_torch(place.root / "env")
    profile = (ROOT / "slurm" / "onebox.toml").read_text(encoding="utf-8")
    site = place.write("site.toml", f'{profile}python = "{place.root}/env/bin/python"\n')
    spec = place.tiny("lacking", ["1n1g"], repeats=4)
    sweep = place.directory("lacking")
    done = place.verb("sweep", spec, "--site", site, "--wait")
    assert done.returncode == 1, done.stdout + done.stderr
    # The login node says so before: not for certain, where the file system may be its own.
    assert f"note: torch of environment default: {place.root}/env/bin/python has no" in done.stderr
    assert statuses(place, "lacking") == ["failed", *["held-back"] * 3]
    shown = place.verb("status", sweep)
    assert shown.returncode == 1 and shown.stderr == ""
    (row,) = [line for line in shown.stdout.splitlines() if "3 runs" in line]
    assert "held-back" in row and shown.stdout.count("torch'") == 2
    ended = "1n1g held back: nothing is there but records"
    assert len([*sweep.rglob("*.log")]) == 1, ended
    assert "slurmstepd" not in (output := outputs(sweep)) and output.count("held-back") == 3
    again = place.verb("sweep", spec, "--site", site)
    assert again.returncode == 1 and "note: runs are held back: " in again.stderr
    assert "4 of 4 runs ended as failed or held-back: `dlperf rerun " in again.stderr
    blamed = place.verb("rerun", sweep, "--dry-run", "--exclude-nodes", "auto")
    assert "leaving out" not in blamed.stderr and "4 runs" in blamed.stdout

    add_torch(packages)
    rerun = place.verb("rerun", sweep)
    assert rerun.returncode == 0 and "environment default is tried anew" in rerun.stderr
    assert "4 runs" in rerun.stdout
    wait_until(lambda: "ok" in statuses(place, "lacking"), 120, "a run in the mended environment")
    place.verb("cancel", sweep)
    assert "held-back" not in statuses(place, "lacking")


def test_a_partition_that_is_not_there_is_refused_before_anything_is_written(
    place: Workplace,
) -> None:
    spec = place.tiny("nowhere", ["1n1g"])
    site = place.write("site.toml", 'partition = "nosuch"\n[environment.default]\nmpi = "pmi9"\n')
    done = place.verb("sweep", spec, "--site", site)
    assert done.returncode == 2 and not place.directory("nowhere").exists()
    assert "partition: Slurm has no partition 'nosuch': set partition in" in done.stderr
    assert "note: mpi: srun has no MPI plug-in pmi9" in done.stderr and "pmi2" in done.stderr
    forced = place.verb("sweep", spec, "--site", site, "--no-check")
    assert forced.returncode == 1 and "refused: 1n1g.nowhere" in forced.stderr


def statuses(place: Workplace, name: str) -> list[str]:
    done = place.verb("status", place.directory(name), "--json")
    return [row["status"] for row in json.loads(done.stdout)["runs"]]


def outputs(sweep: Path) -> str:
    return "".join(path.read_text() for path in sorted((sweep / "jobs").glob("*.out")))
