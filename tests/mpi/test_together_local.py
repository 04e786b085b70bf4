"""Cases that are run together on this machine: the order of real runs, one that fails, and what is
done when the sweep is typed again."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from places import BUSY
from sweeping import Workplace, local_environment, pairs, wait_until

from dlperf_hpc.model.case import Case
from dlperf_hpc.model.result import RunResult, Status
from dlperf_hpc.records.collect import full_results

SITE = """
[environment.default]
[environment.other]
env = { PLACE = "the other" }
"""


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    place = Workplace(tmp_path, local_environment())
    place.env = {**place.env, "DLPERF_SITE": str(place.write("site.toml", SITE))}
    return place


def sweep_of(place: Workplace, what: str) -> Path:
    return pairs(place, (4, 6), repeats=3, doomed=2, words=what)


def letter_of(result: RunResult) -> str:
    case = result.run.case
    assert isinstance(case, Case)
    return {4: "A", 6: "B"}[dict(case.options)["ms"]]


def test_runs_take_turns_and_one_that_fails_ends_no_other(place: Workplace) -> None:
    spec = sweep_of(place, "plain")
    dry = place.verb("sweep", spec, "--cluster", "local", "--dry-run")
    assert "each job measures 6 runs in turn, time limit 90 min; the first job:" in dry.stdout
    done = place.verb("sweep", spec, "--cluster", "local")
    assert done.returncode == 1, done.stdout + done.stderr
    results = sorted(full_results(place.directory("pairs")).results, key=lambda each: each.started)
    turns = [each.launch.rpartition(".")[2] for each in results]
    assert turns == list("012345"), [(each.launch, each.reason) for each in results]
    assert "".join(map(letter_of, results)) == "ABBAAB"
    assert len({each.launch.rpartition(".")[0] for each in results}) == 1
    failed = [each.run.repeat for each in results if each.status is Status.FAILED]
    assert failed == [2] and "doomed" in Path(results[2].log).read_text()
    assert sum(each.status is Status.OK for each in results) == 5
    logs = {letter_of(each): Path(each.log).read_text() for each in results}
    assert "in None" in logs["A"] and "in the other" in logs["B"]

    root = place.directory("pairs")
    told = place.verb("compare", root, root, "--across", "tags", "--json")
    row = json.loads(told.stdout)["cases"][0]
    with open(root / "report" / "runs.csv", encoding="utf-8") as file:
        rows = {
            (each["tags"], each["repeat"]): each["samples_per_s"] for each in csv.DictReader(file)
        }
    ratios = sorted(float(rows["envother-ms6", n]) / float(rows["ms4", n]) for n in "13")
    assert row["pairs"] == 2 and row["a"]["runs_ok"] == 3 and row["b"]["runs_ok"] == 2
    assert row["ratio"] == pytest.approx((ratios[0] * ratios[1]) ** 0.5)
    assert (row["ratio_low"], row["ratio_high"]) == pytest.approx(ratios)
    assert "no partner in their job: 1 of A, 0 of B" in row["note"]

    # The run that failed is measured again alone, and its pair stays out.
    again = place.verb("rerun", root)
    assert again.returncode == 0, again.stdout + again.stderr
    told = place.verb("compare", root, root, "--across", "tags", "--json")
    row = json.loads(told.stdout)["cases"][0]
    assert row["pairs"] == 2 and row["b"]["runs_ok"] == 3
    assert "no partner in their job: 1 of A, 1 of B" in row["note"]


def test_ctrl_c_ends_the_run_and_what_follows_it(place: Workplace) -> None:
    spec, root = sweep_of(place, "plain"), place.directory("pairs")
    spec.write_text(spec.read_text().replace("[4, 6]", "[400, 600]"))
    argv = [sys.executable, "-m", "dlperf_hpc", "sweep", str(spec), "--cluster", "local"]
    process = subprocess.Popen(argv, cwd=place.root, env={**place.env})
    first = root / "mine" / "toy" / "bz4" / "1n1g" / "toy_b4_fp32-ms400_1.log"
    wait_until(first.exists, 60, "the first run")
    process.send_signal(signal.SIGINT)
    process.wait(BUSY * 60)
    assert next(each.status for each in full_results(root).results) is Status.CANCELLED
    assert len(list(root.glob("mine/**/*_?.log"))) == 1  # nothing that follows has begun
