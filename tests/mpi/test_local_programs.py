"""Users' programs on this machine: the page's example, and what programs do that go wrong."""

from __future__ import annotations

import csv
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from pasting import blocks
from places import BUSY, ROOT
from ready_programs import compiled, smallest
from sweeping import Workplace, local_environment, wait_until

from dlperf_hpc.model.result import Status
from dlperf_hpc.records.collect import full_results
from dlperf_hpc.records.logfile import read_log
from dlperf_hpc.records.record import read_record

PROGRAMS = ROOT / "tests" / "support" / "programs"
SWEEP = """
topologies = ["1n2g"]
base = "1n2g"
repeats = 1
time_limit = "00:20:00"
[limits]
startup_s = 90.0
iteration_s = 9.0
[measure]
warmup = 3
iterations = 10
[case]
framework = "mine"
model = "toy"
batch_size = 4
[matrix]
what = {what}
[program.mine]
launch = "rank"
workdir = "{programs}"
run = ["{script}", "{steps}", "20", "{{global_batch}}", "{{what}}", "{{scratch}}"]
[program.mine.keys]
what = "plain"
[program.mine.read]
format = "megatron"
"""


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path, local_environment())


def sweep_of(
    place: Workplace, what: list[str], script: str = "steps.py", steps: str = "{steps*9}"
) -> Path:
    text = SWEEP.format(what=what, programs=PROGRAMS, script=script, steps=steps)
    return place.write("odd.toml", text)


def processes_of(text: str) -> list[str]:
    """Processes of this user whose command line has a text."""
    done = subprocess.run(
        ["ps", "-ww", "-eo", "pid,args"], text=True, capture_output=True, check=True
    )
    return [line for line in done.stdout.splitlines() if text in line and "ps -ww" not in line]


def rows_of(place: Workplace, name: str) -> list[dict[str, str]]:
    path = place.directory(name) / "report" / "runs.csv"
    with open(path, encoding="utf-8") as file:
        return list(csv.DictReader(file))


def runs(place: Workplace, name: str) -> dict[str, dict[str, str]]:
    return {row["tags"] or "plain": row for row in rows_of(place, name)}


def test_the_pages_example(place: Workplace) -> None:
    place.write("train.py", blocks("programs.md", "python")[0])
    spec = place.write("mine.toml", blocks("programs.md", "toml")[0])
    dry = place.verb("sweep", spec, "--cluster", "local", "--dry-run")
    assert re.search(r"mine on 1n2g, each task: \S+python\S* train.py 4 1 35\n", dry.stdout)
    done = place.verb("sweep", spec, "--cluster", "local")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = place.table("mine")
    assert len(rows) == 4 and all(float(row["samples_per_s"]) > 0 for row in rows)
    (log,) = place.directory("mine").glob("mine/toy/bz4/1n2g/toy_b4_fp32_1.log")
    assert read_log(log).tables["program_end"]["iteration"] >= 25  # 10 ms each: it may end itself
    # The sweep that is there has another command.
    spec.write_text(spec.read_text().replace('"{layers}", "{steps}"', '"{layers}", "99"'))
    other = place.verb("sweep", spec, "--cluster", "local")
    assert other.returncode == 2 and "program.mine.run: there" in other.stderr


def test_programs_that_go_wrong(place: Workplace) -> None:
    what = ["plain", "fork", "hang", "nan", "lazy", "fail", "buffer", "resume"]
    what += ["port", "busy", "timer"]
    spec = sweep_of(place, what)
    done = place.verb("sweep", spec, "--cluster", "local")
    assert done.returncode == 1, done.stdout + done.stderr
    found = {
        dict(result.run.case.options)["what"]: result  # type: ignore[union-attr]
        for result in full_results(place.directory("odd")).results
    }
    statuses = {name: result.status for name, result in found.items()}
    assert statuses == {
        **dict.fromkeys(("plain", "fork", "buffer", "port", "lazy", "timer"), Status.OK),
        **dict.fromkeys(("hang", "nan", "fail", "busy"), Status.FAILED),
        "resume": Status.PARTIAL,
    }, {name: result.reason for name, result in found.items()}
    assert "no progress for 9 s after iteration 4; its last line:" in found["hang"].reason
    assert "the loss is not finite from iteration 5 on" in found["nan"].reason
    told = "no figure: no line of the program is in the format megatron, which its table names"
    assert f"{told}; of its lines: there is nothing to do" in done.stderr
    assert not found["lazy"].rates
    assert "rank 1 on" in found["fail"].reason and "ValueError: no such" in found["fail"].reason
    assert "the first iteration that the program told is 120, behind" in found["resume"].reason
    taken = "a port that it was to listen at is taken, and at a second try, with "
    assert taken in found["busy"].reason and "Address already in use" in found["busy"].reason
    (again,) = found["port"].warnings
    assert re.fullmatch(r"port \d+ was taken on \S+: begun again with \d+", again)
    hung = Path(found["hang"].log).read_text(encoding="utf-8")
    assert re.search(
        r"Z 1\|   File \".*steps.py\", line \d+ in main", hung
    )  # of the other rank too
    rows = runs(place, "odd")
    assert rows["plain"]["basis"] == "arrival" and rows["plain"]["check_samples_per_s"]
    assert float(rows["plain"]["factor"]) == 8  # samples of an iteration over both ranks
    assert rows["whatport"]["basis"] == "arrival"
    assert rows["whatbuffer"]["basis"] == "printed"  # its lines came many at a time
    timed = rows["whattimer"]
    assert (timed["basis"], timed["rule"]) == ("timer", "timer[3:13]")
    assert 0 < float(timed["samples_per_s"]) < 8 / 0.02 and float(timed["loss_last"]) == 8.87
    text = Path(found["timer"].log).read_text(encoding="utf-8")
    assert " timed=true" in text
    record = read_record(Path(found["fail"].log).with_suffix(".json")) or {}
    assert record["program"]["codes"][1] == 1 and "torch" in record["packages"]
    assert not processes_of(str(PROGRAMS / "steps.py")) and not processes_of("sleep 471")
    decided = {"hang": "ended by", "nan": "loss", "lazy": "reading", "fail": "exit codes"}
    for name, row in {**decided, "resume": "window", "busy": "signs"}.items():
        asked = place.verb("status", place.directory("odd"), "--why", f"what{name}_1")
        assert asked.returncode == (name != "lazy") and len(asked.stdout.splitlines()) < 24
        assert re.search(rf"^> {row} ", asked.stdout, re.MULTILINE), asked.stdout
    asked = place.verb("status", place.directory("odd"), "--why", "whattimer_1")
    assert "the line of its Timer; rule timer[3:13]" in " ".join(asked.stdout.split())
    left = [path.name for path in place.directory("odd").rglob("*.program")]
    assert not left and not list(place.directory("odd").rglob("*.scratch"))


def with_nvml(place: Workplace, devices: str, **env: str) -> Workplace:
    """A place where NVML knows these devices, and a rank may see as many of them."""
    seen = ",".join(map(str, range(len(devices.split(",")))))
    fake = {"PYTHONPATH": str(ROOT / "tests" / "support" / "nvml"), "FAKE_NVML": devices}
    return replace(place, env={**place.env, **fake, "CUDA_VISIBLE_DEVICES": seen, **env})


ON_GPUS = """
import glob, os, sys, time
from dlperf_hpc import Timer
what, folder, gpus = sys.argv[1], os.path.dirname(sys.argv[2]), int(sys.argv[3])
while len(glob.glob(f"{folder}/*.gpu")) < gpus:  # a real program starts more slowly
    time.sleep(0.02)
time.sleep(0.4)
timer = Timer(batch_size=4, stop=False, quiet=True)
for step in range(1, 200):
    time.sleep(0.05)
    if what == "timer":
        timer.step(1.0)
    else:
        print(f"step {step}", flush=True)
"""
GPU_SWEEP = """
topologies = ["1n2g"]
repeats = 1
[measure]
warmup = 3
iterations = 80
[case]
framework = "mine"
model = "toy"
batch_size = 4
[matrix]
what = {what}
[program.mine]
launch = "rank"
run = ["train.py", "{{what}}", "{{hostfile}}", "{gpus}"]
[program.mine.keys]
what = "lines"
[program.mine.read]
line = '^step (?P<iteration>[0-9]+)'
"""


def test_a_programs_gpus_are_in_record_and_report(place: Workplace) -> None:
    """Of two ranks that both see two GPUs each is sampled once, in the window of the lines, and in
    that of a Timer, which no line tells."""
    place = with_nvml(place, "GPU-a,GPU-b")
    place.write("train.py", ON_GPUS)
    spec = place.write("odd.toml", GPU_SWEEP.format(what=["lines", "timer"], gpus=2))
    done = place.verb("sweep", spec, "--cluster", "local")
    assert done.returncode == 0, done.stdout + done.stderr
    for name, row in runs(place, "odd").items():
        seen = ("util", "sm_mhz", "celsius", "throttle", "devices")
        figures = [row[f"gpu_{figure}"] for figure in seen]
        assert figures == ["90.5", "1000.5", "61.0", "4", "2"], name
        # 100 W and 200 W, over the window; a machine that is busy reads lines late.
        seconds = float(row["gpu_joules"]) / 300
        assert seconds == pytest.approx(float(row["elapsed_s"]), rel=0.5), name
    for row in place.table("odd"):
        joules = 300 / float(row["samples_per_s"])
        assert float(row["gpu_joules_per_sample"]) == pytest.approx(joules, rel=0.5)
    results = full_results(place.directory("odd")).results
    assert [(each.facts["drivers"], each.warnings) for each in results] == [(["580.1"], ())] * 2


def test_an_nvml_that_dies_costs_a_program_its_figures_alone(place: Workplace) -> None:
    """It is said once, whatever the number of ranks."""
    place = with_nvml(place, "GPU-a,GPU-b", FAKE_NVML_FAULT="crash")
    place.write("train.py", ON_GPUS)
    spec = place.write("odd.toml", GPU_SWEEP.format(what=["lines"], gpus=2))
    done = place.verb("sweep", spec, "--cluster", "local")
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = runs(place, "odd").values()
    assert float(row["samples_per_s"]) > 0 and not row["gpu_util"]
    (result,) = full_results(place.directory("odd")).results
    assert result.warnings == ("no figures of the GPUs: the process that asked NVML died",)
    assert not processes_of(str(place.directory("odd")))


def test_ranks_that_die_or_hang_in_the_window(place: Workplace) -> None:
    """Of ranks that do not wait for each other rank 0 comes to its window's end all the same."""
    spec = sweep_of(place, ["none", "worker", "paced-still", "skips"], "apart.py")
    # Ranks start apart: rank 1 must come to its 8th iteration within the window of rank 0.
    text = spec.read_text().replace("iterations = 10", "iterations = 250")
    spec.write_text(text.replace("iteration_s = 9.0", "iteration_s = 60.0"))
    assert place.verb("sweep", spec, "--cluster", "local").returncode == 1
    found = {
        dict(result.run.case.options)["what"]: result  # type: ignore[union-attr]
        for result in full_results(place.directory("odd")).results
    }
    assert {name: result.status for name, result in found.items()} == {
        "none": Status.PARTIAL,
        "worker": Status.FAILED,
        "paced-still": Status.OK,
        "skips": Status.OUT_OF_MEMORY,
    }, {name: result.reason for name, result in found.items()}
    assert re.match(r"rank 1 on \S+ ended with exit code 0 [0-9.e-]+ s bef", found["none"].reason)
    assert "is killed by signal: Killed" in found["worker"].reason
    (warning,) = found["paced-still"].warnings
    assert "rank 1 on" in warning and "may have hung: iteration 7 is the last" in warning
    records = {n: read_record(Path(r.log).with_suffix(".json")) or {} for n, r in found.items()}
    assert records["worker"]["program"]["codes"] == [-15, 1]
    assert (records["worker"]["cause"], records["worker"]["decided_by"]) == ("killed", "signs")
    assert (records["skips"]["cause"], records["none"]["decided_by"]) == ("device_memory", "window")
    assert records["paced-still"]["program"]["silent"] == [1]
    asked = place.verb("status", place.directory("odd"), "--why", "paced")
    assert "may have hung" in " ".join(asked.stdout.split())


READ = r"""
[program.mine.read]
line = 'iteration +(?P<iteration>[0-9]+)/.*\(ms\): (?P<printed>[0-9.]+).*lm loss: (?P<loss>\S+)'
printed = { unit = "ms/iteration", averaging = "last-iteration" }
fail = ['iteration +4/']
must = ['iteration +13/', 'never printed']
"""


def test_a_format_told_in_toml(place: Workplace) -> None:
    """With `stop = "never"` the program comes to its own end, and a line of `must` is missing."""
    spec = sweep_of(place, ["plain"])
    text = spec.read_text().partition("[program.mine.read]")[0] + READ
    ended = text.replace('launch = "rank"', 'launch = "rank"\nstop = "never"')
    reports = {}
    for name, made in {
        "ours": text.replace("+4/", "+99/"),
        "failing": text,
        "missing": ended.replace("+4/", "+99/").replace("{steps*9}", "{steps}"),
    }.items():
        spec = place.write(f"{name}.toml", made)
        place.verb("sweep", spec, "--cluster", "local", "--no-check")
        reports[name] = runs(place, name)["plain"]
    ours = reports["ours"]
    assert (ours["status"], ours["basis"], ours["format"]) == ("ok", "arrival", "read:mine")
    assert float(ours["factor"]) == 8 and float(ours["check_samples_per_s"]) > 0
    failing, missing = reports["failing"], reports["missing"]
    assert failing["status"] == "failed" and "a line of read.fail: rank 0" in failing["reason"]
    assert missing["reason"] == "no line is as read.must says: 'never printed'"


def test_ranks_that_find_each_other_by_mpi(place: Workplace) -> None:
    spec = sweep_of(place, ["plain"], "mpi_steps.py", "900")
    spec.write_text(spec.read_text().replace('"20", "{global_batch}"', '"{batch_size}"'))
    done = place.verb("sweep", spec, "--cluster", "local")
    assert done.returncode == 0, done.stdout + done.stderr
    (log,) = place.directory("odd").glob("mine/toy/bz4/1n2g/*.log")
    text = log.read_text(encoding="utf-8")
    assert "Z 0| rank 0 of 2\n" in text and "Z 1| rank 1 of 2\n" in text
    assert float(runs(place, "odd")["plain"]["samples_per_s"]) > 0


def test_processes_that_accelerate_starts_meet(place: Workplace) -> None:
    spec = sweep_of(place, ["plain"], "accelerated.py", "900")
    text = spec.read_text().replace('"20", "{global_batch}"', '"{batch_size}"')
    text = text.replace("startup_s = 90.0", "startup_s = 200.0")  # accelerate and torch are large
    spec.write_text(text.replace('"rank"', '"accelerate"'))
    done = place.verb("sweep", spec, "--cluster", "local")
    assert done.returncode == 0, done.stdout + done.stderr
    (log,) = place.directory("odd").glob("mine/toy/bz4/1n2g/*.log")
    text = log.read_text(encoding="utf-8")
    assert "| process 0 of 2\n" in text and "| process 1 of 2\n" in text
    assert float(runs(place, "odd")["plain"]["samples_per_s"]) > 0


def test_a_sweep_of_a_program_is_mended_grows_and_is_kept(place: Workplace) -> None:
    spec = sweep_of(place, ["plain"])
    root, broken = place.directory("odd"), place.root / "steps.py"
    spec.write_text(spec.read_text().replace(str(PROGRAMS), str(place.root)))
    broken.write_text("raise SystemExit(3)\n")
    assert place.verb("sweep", spec, "--cluster", "local").returncode == 1
    assert "exit code 3" in place.verb("status", root).stdout
    broken.write_text((PROGRAMS / "steps.py").read_text())
    assert place.verb("rerun", root).returncode == 0
    told = place.verb("status", root, "--why", "1")
    assert "attempt 2, the last one; 1: failed" in " ".join(told.stdout.split())
    spec.write_text(spec.read_text().replace("['plain']", "['plain', 'fork']"))
    grown = place.verb("sweep", spec, "--cluster", "local")
    assert grown.returncode == 0, grown.stdout + grown.stderr
    assert place.verb("archive", root, "--out", "kept.zip").returncode == 0
    done = place.verb("report", "kept.zip", "--out", "kept", "--write", "csv")
    assert done.returncode == 0, done.stdout + done.stderr
    with open(place.root / "kept" / "runs.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["attempt"], row["basis"]) for row in rows] == [("2", "arrival"), ("1", "arrival")]
    assert place.verb("status", "kept.zip", "--why", "whatfork").returncode == 0


def test_ctrl_c_ends_the_program(place: Workplace) -> None:
    spec = sweep_of(place, ["plain"], steps="100000")
    text = spec.read_text().replace("iterations = 10", "iterations = 90000")
    spec.write_text(text)
    argv = [sys.executable, "-m", "dlperf_hpc", "sweep", str(spec), "--cluster", "local"]
    with subprocess.Popen(
        argv, cwd=place.root, env=dict(place.env), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as sweep:
        log = place.directory("odd") / "mine/toy/bz4/1n2g/toy_b4_fp32_1.log"
        wait_until(lambda: log.exists() and b" 0| " in log.read_bytes(), 60, "a line")
        os.kill(sweep.pid, signal.SIGINT)
        told = sweep.communicate(timeout=60 * BUSY)[0]
    place.verb("status", place.directory("odd"))
    (result,) = full_results(place.directory("odd")).results
    assert result.status is Status.CANCELLED, told
    assert not processes_of(f"100000 20 8 plain {place.root}")


def test_a_program_that_was_stopped_in_its_window_does_not_count(place: Workplace) -> None:
    spec = sweep_of(place, ["plain"], steps="1234")
    # Eight seconds, so that it still lasts when a busy machine sees its first lines.
    text = spec.read_text().replace("iterations = 10", "iterations = 400")
    spec.write_text(text.replace("iteration_s = 9.0", "iteration_s = 60.0"))
    argv = [sys.executable, "-m", "dlperf_hpc", "sweep", str(spec), "--cluster", "local"]
    with subprocess.Popen([*argv, "--json"], cwd=place.root, env=dict(place.env)) as sweep:
        log = place.directory("odd") / "mine/toy/bz4/1n2g/toy_b4_fp32_1.log"
        wait_until(lambda: log.exists() and log.read_bytes().count(b" 0| ") > 5, 60, "the window")
        pids = [
            int(line.split()[0]) for line in processes_of(f"steps.py 1234 20 8 plain {place.root}")
        ]
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in pids:
                os.kill(pid, number)
            time.sleep(3.5 * (number == signal.SIGSTOP))
        assert sweep.wait(60 * BUSY) == 1
    (result,) = full_results(place.directory("odd")).results
    assert result.status is Status.PARTIAL and re.match(r"interrupted for \d+ s", result.reason)


def test_a_program_of_which_nothing_is_read(place: Workplace) -> None:
    """It is ok without a figure; its words are no shell's, and its directories are its own."""
    text = """
    topologies = ["1n2g"]
    base = "1n2g"
    repeats = 1
    [case]
    framework = "own"
    model = "none"
    batch_size = 1
    """
    table = """
    launch = "once"
    run = ["sh", "run.sh", "{scratch}", "{outdir}", "$HOME;{batch_size * devices}", "{hostfile}"]
    env = { WHO = "{rank}/{ranks} {{}}" }
    """
    place.write(
        "run.sh", 'touch "$1/a" "$2/b"; echo "$3 $WHO $MASTER_ADDR"; cat "$4"; ls -d "$1"\n'
    )
    (place.root / "programs").mkdir()
    place.write("programs/own.toml", table)
    done = place.verb("sweep", place.write("own.toml", text), "--cluster", "local")
    assert done.returncode == 0, done.stdout + done.stderr
    (log,) = place.directory("own").glob("own/none/bz1/1n2g/*.log")
    said = [line.split("| ", 1)[1] for line in log.read_text().splitlines() if " 0| " in line]
    assert said[0] == "$HOME;2 0/2 {} 127.0.0.1" and said[1] == os.uname().nodename
    attempts = log.parent / "attempts"
    assert [path.name for path in attempts.rglob("*")] == [f"{log.stem}.attempt1.out", "b"]
    assert said[2] == f"{attempts}/{log.stem}.attempt1.scratch"
    row = runs(place, "own")["plain"]
    assert (row["status"], row["samples_per_s"], row["seq_len"]) == ("ok", "", "")


def test_a_program_in_c_finds_its_ranks(place: Workplace) -> None:
    """By the ready table of plain MPI programs; its figure is that of its whole run."""
    compiled(place.root)
    spec = place.write("c.toml", smallest("mpi", "1n2g", 'script = "./mpi_steps"\nsize = 32'))
    done = place.verb("sweep", spec, "--cluster", "local")
    assert done.returncode == 0, done.stdout + done.stderr
    result, second = full_results(place.directory("c")).results
    assert second.status is Status.OK
    text = Path(result.log).read_text(encoding="utf-8")
    assert "Z 0| step 1 of 23: " in text and " GFLOP/s on 2 ranks\n" in text
    assert result.status is Status.OK and result.samples_per_s is None
    row = rows_of(place, "c")[0]
    printed = re.search(r"Performance: ([0-9.]+) GFLOP/s", text)
    assert printed is not None and float(row["figure"]) == float(printed[1])
    assert (row["figure_unit"], row["basis"], row["samples_per_s"]) == ("GFLOP/s", "total", "")
