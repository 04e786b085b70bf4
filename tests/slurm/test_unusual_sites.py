"""Two unusual sites (``onebox --like``): what they refuse, bound, forget and interrupt.

``small-limits``: arrays of five, twelve jobs, GPUs by their type alone, no accounting.
``accounting``: slurmdbd, a QOS of three jobs, preemption, whole nodes, a plug-in that refuses.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fixtures_slurm import Onebox, call
from places import ROOT
from queueing import Queue, executions, live_runs
from sweeping import Workplace, wait_until

from dlperf_hpc.engines.base import CheckResult
from dlperf_hpc.model.result import Status
from dlperf_hpc.records import layout
from dlperf_hpc.records.layout import RunPaths
from dlperf_hpc.records.ledger import read_ledger

SERIAL = ("array_parallelism = 1", 'sbatch = { licenses = "machine:1" }')
# A Python in which nothing is; the epilogue writes the record that the run failed.
FAILS = "#!/bin/sh\nexit 3\n"
# The first task fails, the second never ends by itself.
FAILS_OR_STAYS = "#!/bin/sh\n[ $SLURM_ARRAY_TASK_ID = 0 ] && exit 3\nexec sleep 300\n"
FORBIDDEN = "#!/bin/sh\necho 'scontrol: not allowed here' >&2\nexit 1\n"
ENDS = ["failed", "cancelled", "cancelled", "cancelled"]


def profile(
    place: Workplace, name: str, *without: str, top: str = "", python: str = "", more: str = ""
) -> Path:
    """The site's own profile, less some of its lines, with further ones at the ``top`` and, at the
    end, of its environment; ``python`` is the text of that environment's interpreter."""
    text = (ROOT / "slurm" / f"{name}.toml").read_text(encoding="utf-8")
    for key in without:
        assert key in text
        text = text.replace(key, f"# {key}")
    if python:
        script = place.write("python", python)
        script.chmod(0o755)
        more += f'python = "{script}"\n'
    return place.write("site.toml", top + text + more)


def examined(place: Workplace, *arguments: object, code: int) -> dict[str, CheckResult]:
    done = place.verb("doctor", *arguments, "--json", timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    found = [CheckResult(**row) for row in json.loads(done.stdout)["findings"]]
    return {result.check: result for result in found}


def statuses(place: Workplace, name: str) -> list[str]:
    done = place.verb("status", place.directory(name), "--json")
    return [row["status"] for row in json.loads(done.stdout)["runs"]]


def test_options_win_and_two_sites_stand_side_by_side(small: Onebox, accounting: Onebox) -> None:
    config = small.run(["scontrol", "show", "config"]).stdout
    shown = {k.strip(): v.strip() for k, _, v in (row.partition("=") for row in config.split("\n"))}
    assert (shown["MinJobAge"], shown["MaxArraySize"]) == ("2 sec", "5")
    assert abs(small.facts["port"] - accounting.facts["port"]) >= 100
    unknown = call(["up", str(small.dir / "x"), "--like", "nonsuch"])
    assert unknown.returncode == 2 and "small-limits" in unknown.stderr


# --- small limits


def test_typed_gpus_and_a_whole_sweep(tmp_path: Path, small: Onebox) -> None:
    place = Workplace(tmp_path, small.env)
    spec, site = place.tiny("typed", ["1n2g"]), profile(place, "small-limits")
    found = examined(place, spec, "--site", site, code=0)
    assert "MaxArraySize 5, MaxJobCount 12" in found["limits"].seen
    assert found["accounting"].seen.startswith("none at this site")
    assert "1 node, 2 ranks" in found["job"].seen
    done = place.verb("sweep", spec, "--site", site, "--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    assert place.results("typed")["1n2g"].status is Status.OK


def test_gpus_without_their_type_are_refused_in_the_words_of_the_site(
    tmp_path: Path, small: Onebox
) -> None:
    place = Workplace(tmp_path, small.env)
    spec, site = place.tiny("bare", ["1n2g"]), profile(place, "small-limits", "gpu_type")
    found = examined(place, spec, "--site", site, code=1)
    for check in ("sbatch --test-only 1n2g.bare", "job"):
        seen = found[check].seen.replace("gres/gpu", "gres:gpu")  # as newer Slurms print it
        assert found[check].grade == "FAIL" and "gres:gpu:2 has none" in seen
        assert "gpu_type to tiny" in found[check].to_do
    done = place.verb("sweep", spec, "--site", site)
    assert done.returncode == 1 and "GPUs have a type here" in done.stderr
    assert statuses(place, "bare") == ["rejected"]


def test_doctor_ends_at_once_what_never_starts(tmp_path: Path, small: Onebox) -> None:
    place, queue = Workplace(tmp_path, small.env), Queue(small.env)
    queue.call("scontrol", "update", "partitionname=main", "MaxNodes=1")
    try:
        found = examined(place, "--site", profile(place, "small-limits"), code=1)
    finally:
        queue.call("scontrol", "update", "partitionname=main", "MaxNodes=UNLIMITED")
    job = found["job"]
    assert job.grade == "FAIL" and "never starts here: PartitionNodeLimit; cancelled" in job.seen
    # A rank of an earlier test may still be ending; what never starts would wait for ever.
    wait_until(lambda: not queue.call("squeue", "-h", "-t", "PD,R"), 20, "the queue is empty")


def test_more_runs_than_an_array_or_the_controller_takes(tmp_path: Path, small: Onebox) -> None:
    """13 runs where arrays have five tasks and the controller has room for twelve."""
    place = Workplace(tmp_path, small.env)
    spec, root = place.tiny("many", ["1n1g"], repeats=13), place.directory("many")
    site = profile(place, "small-limits", *SERIAL, python=FAILS)
    done = place.verb("sweep", spec, "--site", site, "--wait")
    assert done.returncode == 1, done.stderr
    assert "MaxJobCount limit" in (small.dir / "log" / "slurmctld.log").read_text()
    ledger = read_ledger(root)
    assert [array.size for array in ledger.arrays] == [5, 5, 3]
    assert all(ledger.outcome(array) for array in ledger.arrays)
    assert list(executions(root).values()) == [["failed"]] * 13
    assert live_runs(Queue(small.env), root) == []


# --- accounting


def test_the_submit_limit_is_named_and_what_may_not_be_asked_is_told(
    tmp_path: Path, accounting: Onebox
) -> None:
    place = Workplace(tmp_path, accounting.env)
    place.write("scontrol", FORBIDDEN).chmod(0o755)
    path = f"{place.root}:{accounting.env['PATH']}"
    spec = place.tiny("wide", ["1n1g"], repeats=4)
    site = profile(place, "accounting", "max_submit")
    found = examined(Workplace(tmp_path, {**accounting.env, "PATH": path}), spec, "--site", site,
                     code=1)  # fmt: skip
    assert found["slurmctld"].grade == "warn" and "not allowed here" in found["slurmctld"].seen
    assert found["limits"].grade == "warn" and "max_array_size" in found["limits"].to_do
    assert found["accounting"].grade == "ok"
    bound = found["submit limit"]
    assert bound.grade == "FAIL" and "set max_submit = 3 in the site profile" in bound.to_do
    assert "QOSMaxSubmitJobPerUserLimit = 3 (QOS normal)" in bound.seen
    tested = found["sbatch --test-only 1n1g.wide"]
    assert tested.grade == "FAIL" and "set max_submit = 3" in tested.to_do
    assert found["job"].seen.endswith("every rank reported")


def test_gpus_that_steps_may_not_ask_for(tmp_path: Path, accounting: Onebox) -> None:
    place = Workplace(tmp_path, accounting.env)
    site = profile(place, "accounting", 'gpus = "none"')
    found = examined(place, place.tiny("steps", ["1n1g"]), "--site", site, code=1)
    assert found["submit limit"].grade == "ok"
    job = found["job"]
    assert job.grade == "FAIL" and "Invalid generic resource (gres)" in job.seen
    assert 'gpus to "gres", or gpus to "none" if jobs get whole nodes' in job.to_do


def test_doctor_does_not_wait_for_a_limit(tmp_path: Path, accounting: Onebox) -> None:
    place, queue = Workplace(tmp_path, accounting.env), Queue(accounting.env)
    site = profile(place, "accounting")
    change = ("sacctmgr", "-i", "modify", "qos", "normal", "set")
    try:
        queue.call(*change, "MaxTRESPerUser=cpu=1")
        waits = examined(place, "--site", site, code=0)["job"]
        queue.call(*change, "MaxTRESPerUser=cpu=-1", "MaxSubmitJobsPerUser=0")
        full = examined(place, "--site", site, code=0)
    finally:
        queue.call(*change, "MaxTRESPerUser=cpu=-1", "MaxSubmitJobsPerUser=3")
    assert waits.grade == "warn" and "because of a limit: QOSMaxCpuPerUserLimit" in waits.seen
    assert full["submit limit"].grade == "warn" and "no job is taken" in full["submit limit"].to_do
    assert full["job"].grade == "warn" and "QOSMaxSubmitJobPerUserLimit" in full["job"].seen
    assert "still pending" not in waits.seen + full["job"].seen


def test_more_runs_than_a_user_may_submit(tmp_path: Path, accounting: Onebox) -> None:
    """The lines of the site's plug-in, "job 24" among them, are not taken for sbatch's answer."""
    place = Workplace(tmp_path, accounting.env)
    spec, root = place.tiny("waves", ["1n1g"], repeats=4), place.directory("waves")
    site = profile(place, "accounting", python=FAILS)
    done = place.verb("sweep", spec, "--site", site)
    assert done.returncode == 1 and "QOSMaxSubmitJobPerUserLimit" in done.stderr
    assert [array.size for array in read_ledger(root).arrays] == [3, 1]
    again = place.verb("sweep", spec, "--site", site, "--wait")
    assert again.returncode == 1 and "1n1g.waves-2  1 run" in again.stdout, again.stderr
    assert list(executions(root).values()) == [["failed"]] * 4
    noted = {row.job_id for row in read_ledger(root).submissions if row.job_id}
    outputs = (root / layout.JOBS).glob("*_*.out")
    assert noted == {path.name.partition("_")[0] for path in outputs}


def test_an_array_above_the_limit_is_split_when_the_profile_says_so(
    tmp_path: Path, accounting: Onebox
) -> None:
    """As it was planned it can never be submitted: its runs go into arrays of their own."""
    place, queue = Workplace(tmp_path, accounting.env), Queue(accounting.env)
    spec, root = place.tiny("split", ["1n1g"], repeats=5), place.directory("split")
    held = "sbatch = { hold = true }\n"
    site = profile(place, "accounting", "max_submit", SERIAL[1], top=held)
    for options in ((), ("--wait",)):
        done = place.verb("sweep", spec, "--site", site, *options)
        assert done.returncode == 1 and "(QOSMaxSubmitJobPerUserLimit is 3)" in done.stderr
        assert "write `max_submit = 3` in the site profile" in done.stderr, done.stderr
    site = profile(place, "accounting", SERIAL[1], top=held)
    again = ("sweep", spec, "--site", site, "--report")
    first = place.verb(*again)
    assert first.stdout.count("submitted: job") == 1, first.stdout + first.stderr
    assert "when some of your jobs have ended" in first.stderr
    assert "split.report: it is submitted after the last array" in first.stderr
    assert len(queue.alive(root)) == 3
    assert place.verb("cancel", root).returncode == 0 and queue.alive(root) == []
    rest = place.verb(*again)
    assert rest.returncode == 0 and "1n1g.split.p2  2 runs" in rest.stdout, rest.stderr
    assert len(queue.alive(root)) == 2 and "split.report  reports when" in rest.stdout
    assert place.verb("cancel", root).returncode == 0 and queue.alive(root) == []
    assert "split.report" not in queue.call("squeue", "-h", "-t", "PD,R", "-o", "%j")


def test_a_refusal_of_the_plug_in_is_told_in_its_words(tmp_path: Path, accounting: Onebox) -> None:
    place = Workplace(tmp_path, accounting.env)
    site = profile(place, "accounting", "account =")
    done = place.verb("sweep", place.tiny("poor", ["1n1g"]), "--site", site)
    assert done.returncode == 1 and "which project pays? Name an account" in done.stderr
    told = place.verb("status", place.directory("poor"), "--json")
    (run,) = json.loads(told.stdout)["runs"]
    assert run["status"] == "rejected" and "which project pays?" in run["reason"]


def test_a_preempted_run_starts_again_and_ends_well(tmp_path: Path, accounting: Onebox) -> None:
    place, queue = Workplace(tmp_path, accounting.env), Queue(accounting.env)
    # SIGTERM reaches rank and batch script in any order: before SIGKILL no epilogue shall begin.
    hangs = "export DLPERF_FAULT=hang@0; trap 'sleep 60' EXIT"
    once = f"[ ${{SLURM_RESTART_COUNT:-0}} -gt 0 ] || {{ {hangs}; }}"
    site = profile(place, "accounting", more=f'setup = ["{once}"]\n')
    spec, root = place.tiny("pushed", ["1n1g"]), place.directory("pushed")
    assert place.verb("sweep", spec, "--site", site).returncode == 0
    (run,) = read_ledger(root).manifest.runs
    log = RunPaths(root, run.id).log
    wait_until(lambda: log.exists() and "name=warmup" in log.read_text(), 60, "the warm-up")
    urgent = ["sbatch", "--account=lab", "--qos=urgent", "--nodes=2", "--output=/dev/null"]
    queue.call(*urgent, "--wait", "--wrap", "exit 0")
    wait_until(lambda: statuses(place, "pushed") == ["ok"], 120, "the second attempt")
    assert executions(root) == {run.id: ["unknown", "ok"]}


# --- accounting absent, present, and broken: the same runs stand the same in the end


def aftermath(cluster: Onebox, site: Path, name: str, looks: bool) -> list[str]:
    """A sweep of which one run failed, and the others were cancelled: running, waiting, with all
    others; what ``status`` says once squeue has forgotten them. ``looks``: it was asked before."""
    place, queue = Workplace(site.parent, cluster.env), Queue(cluster.env)
    root = place.directory(name)
    done = place.verb("sweep", place.tiny(name, ["1n1g"], repeats=4), "--site", site)
    assert done.returncode == 0, done.stderr
    job = read_ledger(root).submissions[-1].job_id
    wait_until(lambda: ("1", "RUNNING") in _states(queue, job), 60, "the second task")
    queue.call("scontrol", "hold", f"{job}_2")
    queue.call("scancel", f"{job}_1", f"{job}_3")
    on_nodes = {("1", "RUNNING"), ("1", "COMPLETING")}
    wait_until(lambda: not on_nodes.intersection(_states(queue, job)), 60, "its end")
    if looks:
        assert statuses(place, name) == ["failed", "cancelled", "pending", "cancelled"]
    assert place.verb("cancel", root).returncode == 0
    if looks:
        assert statuses(place, name) == ENDS
    wait_until(lambda: not _states(queue, job), 120, "squeue to forget")
    return statuses(place, name)


def _states(queue: Queue, job: str) -> list[tuple[str, str]]:
    text = queue.call("squeue", "-h", "-r", "-t", "all", "-o", "%F|%K|%T")
    rows = [line.split("|") for line in text.splitlines()]
    return [(row[1], row[2]) for row in rows if row[0] == job]


def test_the_same_table_with_accounting_absent_present_and_broken(
    tmp_path: Path, small: Onebox, accounting: Onebox
) -> None:
    """The QOS of these jobs takes any number."""
    one = Workplace(tmp_path / "one", small.env)
    two = Workplace(tmp_path / "two", accounting.env)
    one.root.mkdir()
    two.root.mkdir()
    without = profile(one, "small-limits", SERIAL[1], python=FAILS_OR_STAYS)
    keys = (SERIAL[1], "max_submit")
    there = profile(two, "accounting", *keys, python=FAILS_OR_STAYS, top='qos = "urgent"\n')
    with ThreadPoolExecutor() as pool:
        absent = pool.submit(aftermath, small, without, "absent", looks=True)
        present = pool.submit(aftermath, accounting, there, "present", looks=True)
        late = pool.submit(aftermath, accounting, there, "late", looks=False)
    assert absent.result() == ENDS
    assert present.result() == ENDS
    # Nobody looked in time: accounting knows what has begun, and the rest of the array.
    assert late.result()[:3] == ENDS[:3]
    kept = two.directory("late") / layout.FINAL_STATES
    accounting.node("kill", "slurmdbd")
    try:
        assert aftermath(accounting, there, "broken", looks=True) == ENDS
        assert statuses(two, "late")[:3] == ENDS[:3] and kept.exists()
    finally:
        accounting.node("start", "slurmdbd")
