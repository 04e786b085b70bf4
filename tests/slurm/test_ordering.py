"""``--after`` and ``--report`` on a real Slurm: what starts after what, and is told of it."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures_slurm import Onebox
from queueing import Queue, live_runs
from sweeping import Done, Workplace, wait_until

from dlperf_hpc.records import layout

FAILS = "#!/bin/sh\nexit 3\n"  # a Python in which nothing is: runs of a second
HELD = "sbatch = { hold = true }\n"


class Ordered(Workplace):
    """A directory of sweeps, of which some are held, and the queue that they are in."""

    def __init__(self, root: Path, cluster: Onebox) -> None:
        super().__init__(root, cluster.env)
        self.queue = Queue(cluster.env)

    def verb(self, verb: str, *arguments: object, timeout: float = 240) -> Done:
        """In this process: what starts one for each verb takes most of the time."""
        argv, out, err = [str(argument) for argument in arguments], io.StringIO(), io.StringIO()
        with (
            pytest.MonkeyPatch.context() as patch,
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            patch.chdir(self.root)
            for name, value in self.env.items():
                patch.setenv(name, value)
            code = importlib.import_module(f"dlperf_hpc.cli.{verb}").main(argv)
        return Done(argv, code, out.getvalue(), err.getvalue())

    def site(self, top: str = "") -> Path:
        python = self.write("python", FAILS)
        python.chmod(0o755)
        return self.write(
            f"site{abs(hash(top))}.toml", f'{top}[environment.default]\npython = "{python}"\n'
        )

    def jobs(self) -> dict[str, tuple[str, str, str]]:
        """State, dependency and token of each job that waits or runs, by its name."""
        return {row[0]: (row[1], row[2], row[3]) for row in self._rows("%j|%T|%E|%k")}

    def ids(self) -> dict[str, str]:
        """The id of each job that waits or runs, by its name."""
        return {row[0]: row[1] for row in self._rows("%j|%F")}

    def _rows(self, format_: str) -> list[list[str]]:
        """Of what was submitted from this directory: the cluster is that of other tests too."""
        text = self.queue.call("squeue", "-h", "-t", "PD,R,CG", "-o", f"{format_}|%Z")
        rows = [line.split("|") for line in text.splitlines()]
        return [row[:-1] for row in rows if row[-1] == str(self.root)]


@pytest.fixture
def place(tmp_path: Path, onebox: Onebox) -> Iterator[Ordered]:
    made = Ordered(tmp_path, onebox)
    yield made
    for directory in (tmp_path / "logs").glob("*"):
        made.verb("cancel", directory)


def held(place: Ordered, name: str) -> str:
    """The job of a sweep of one run which waits until it is cancelled."""
    done = place.verb("sweep", place.tiny(name, ["1n1g"]), "--site", place.site(HELD))
    assert done.returncode == 0, done.stderr
    return place.ids()[f"1n1g.{name}"]


def test_a_sweep_after_another_and_its_report_at_the_end(place: Ordered) -> None:
    first, root = held(place, "first"), place.directory("second")
    options = ("--site", place.site(), "--after", "first", "--report")
    spec = place.tiny("second", ["1n1g", "2n1g"], repeats=2)

    dry = place.verb("sweep", spec, *options, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert dry.stdout.count(f"#SBATCH --dependency=afterany:{first}\n") == 2
    assert f"after first: what is submitted now starts when job {first} has ended" in dry.stderr
    assert "one job of one task without GPUs, which runs `dlperf report`" in dry.stdout
    assert not root.exists()

    done = place.verb("sweep", spec, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    ids, jobs = place.ids(), place.jobs()
    for array in ("1n1g.second", "2n1g.second"):
        assert jobs[array][:2] == ("PENDING", f"afterany:{first}_*(unfulfilled)")
    arrays = {ids["1n1g.second"], ids["2n1g.second"]}
    report = ids["second.report"]
    waits_for = jobs["second.report"][1]
    assert all(f"afterany:{job}_*(unfulfilled)" in waits_for for job in arrays)
    assert f"submitted: job {report}  second.report  reports when" in done.stdout
    script = place.queue.call("scontrol", "write", "batch_script", report, "-")
    assert "gpus" not in script and "--exclusive" not in script and "srun" not in script
    assert "--time=15\n" in script

    told = place.verb("status", root)
    assert f"report job {report}: PENDING" in told.stdout, told.stdout
    assert len(live_runs(place.queue, root)) == 4
    again = place.verb("sweep", spec, *options)
    assert again.returncode == 0 and place.ids() == ids, again.stderr
    assert f"there already: job {report}  second.report" in again.stdout
    assert "nothing is missing" in again.stdout

    assert place.verb("cancel", place.directory("first")).returncode == 0
    ended = f"report job {report} has ended with exit code 1: see report/"

    def reported() -> bool:
        told = json.loads(place.verb("status", root, "--json").stdout)
        return str(told["report_job"]).startswith(ended)

    wait_until(reported, 60, "the report")
    told = place.verb("status", root, "--json")
    assert [run["status"] for run in json.loads(told.stdout)["runs"]] == ["failed"] * 4
    printed = (root / layout.JOBS / f"{report}_0.out").read_text()
    assert "written: report/runs.csv\n" in printed and (root / "report" / "runs.csv").exists()
    assert f" of {root}" in json.loads((root / "report" / "report.json").read_text())["source"]
    assert [row["runs_ok"] for row in place.table("second")] == ["0", "0"]
    assert place.verb("archive", root).returncode == 0
    # Its output is nobody's run, also where the list of submissions is lost.
    assert "nothing is missing" in place.verb("sweep", spec, *options[:2]).stdout
    none = place.verb("sweep", spec, *options)
    assert none.returncode == 1 and place.jobs() == {}, none.stderr
    assert "4 of 4 runs ended as failed" in none.stderr
    assert "after first: nothing of it waits or runs" in none.stderr
    assert "no report job: no run of this sweep waits or runs: `dlperf report" in none.stdout


def test_a_report_job_is_cancelled_replaced_found_again_and_refused(place: Ordered) -> None:
    spec, root = place.tiny("one", ["1n1g", "2n1g"]), place.directory("one")
    site = place.site(HELD)
    options = ("--site", site, "--report")
    assert place.verb("sweep", spec, "--site", site).returncode == 0
    assert "one.report" not in place.jobs()
    # Killed between sbatch and what is noted of its answer.
    assert place.verb("sweep", spec, *options).returncode == 0
    report = place.ids()["one.report"]
    notes = root / layout.SUBMISSIONS
    *lines, last = notes.read_text().splitlines(keepends=True)
    assert "one.report" in last and report in last
    notes.write_text("".join(lines))
    again = place.verb("sweep", spec, *options)
    assert again.returncode == 0 and place.ids()["one.report"] == report, again.stderr
    assert f"there already: job {report}" in again.stdout

    # One run is submitted anew: a report that does not wait for it would come too early.
    place.queue.call("scancel", place.ids()["1n1g.one"])
    done = place.verb("rerun", root, "--status", "cancelled", "--site", site, "--report")
    assert done.returncode == 0, done.stderr
    ids, jobs = place.ids(), place.jobs()
    assert ids["one.report"] != report and len(ids) == 3
    assert f"afterany:{ids['1n1g.one.r1']}_*" in jobs["one.report"][1]
    assert f"afterany:{ids['2n1g.one']}_*" in jobs["one.report"][1]

    cancelled = place.verb("cancel", root)
    assert cancelled.returncode == 0 and ids["one.report"] in cancelled.stdout
    wait_until(lambda: place.jobs() == {}, 30, "the end of all jobs")
    assert [row["status"] for row in _status(place, root)["runs"]] == ["cancelled"] * 2

    # A site may refuse it: the sweep's own jobs stay.
    sbatch = place.queue.call("sh", "-c", "command -v sbatch").strip()
    words = "sbatch: error: Batch job submission failed: not today"
    refusing = f'grep -q one.report "$2" && {{ echo "{words}" >&2; exit 1; }}'
    place.write("sbatch", f'#!/bin/sh\n{refusing}\nexec {sbatch} "$@"\n').chmod(0o755)
    place.env = {**place.env, "PATH": f"{place.root}:{place.env['PATH']}"}
    more = ("--status", "cancelled", "--site", site)
    refused = place.verb("rerun", root, *more, "--report")
    assert refused.returncode == 1 and "not today" in refused.stderr
    assert "no report job: one.report" in refused.stderr
    assert set(place.jobs()) == {"1n1g.one.r2", "2n1g.one.r2"}
    # Or refuse a job without GPUs.
    words = "sbatch: error: please ask for GPUs"
    refusing = f'grep -q gpus-per-node "$2" || {{ echo "{words}" >&2; exit 1; }}'
    place.write("sbatch", f'#!/bin/sh\n{refusing}\nexec {sbatch} "$@"\n')
    taken = place.verb("sweep", spec, *options, "--json")
    assert taken.returncode == 0, taken.stderr
    assert json.loads(taken.stdout)["report_job"]["job"] == place.ids()["one.report"]


def _status(place: Ordered, root: Path) -> dict[str, list[dict[str, str]]]:
    told: dict[str, list[dict[str, str]]] = json.loads(place.verb("status", root, "--json").stdout)
    return told


def test_what_after_names(place: Ordered) -> None:
    job = held(place, "first")
    spec, site = place.tiny("then", ["1n1g"]), ("--site", place.site())

    def script(*names: object) -> tuple[str, str]:
        options = [word for name in names for word in ("--after", name)]
        done = place.verb("sweep", spec, *site, *options, "--dry-run", "--cluster", "slurm")
        return done.stdout, done.stderr

    one = f"#SBATCH --dependency=afterany:{job}\n"
    for name in (job, "first", place.directory("first"), "logs/first"):
        assert one in script(name)[0], name
    task = f"{job}_0"
    assert f"#SBATCH --dependency=afterany:{job}:{task}\n" in script("first", job, task)[0]
    out, err = script("frist")
    assert out == "" and "did you mean 'first'?" in err and "logs/frist" in err
    out, err = script("99999")
    assert out == "" and "Slurm knows no job 99999" in err

    # A dependency of the profile's own stays; one that cannot be met any more is told by status.
    fails = ("sbatch", "--parsable", "--chdir", str(place.root), "-o", "/dev/null")
    bad = place.queue.call(*fails, "--job-name", "bad", "--wrap", "exit 1").strip()
    wait_until(lambda: "bad" not in place.ids(), 30, "the end of a job that fails")
    site = ("--site", place.site(f'sbatch = {{ dependency = "afterok:{bad}" }}\n'))
    assert f"#SBATCH --dependency=afterok:{bad},afterany:{job}\n" in script("first")[0]
    assert "after " + bad + ": nothing of it waits or runs" in script(bad)[1]
    done = place.verb("sweep", spec, *site)
    assert done.returncode == 0, done.stderr
    root = place.directory("then")
    wait_until(lambda: _status(place, root)["runs"][0]["status"] == "rejected", 60, "Slurm's word")
    (run,) = _status(place, root)["runs"]
    assert (
        "DependencyNeverSatisfied" in run["reason"] and "did not end as it should" in run["to_do"]
    )

    either = ("--site", place.site('sbatch = { dependency = "afterok:1?afterok:2" }\n'))
    refused = place.verb("sweep", spec, *either, "--after", "first", "--dry-run")
    assert refused.returncode == 2 and "sbatch.dependency" in refused.stderr
    here = place.verb("sweep", spec, "--cluster", "local", "--after", "first")
    assert here.returncode == 2 and "wait for no job" in here.stderr
