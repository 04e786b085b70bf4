"""The login node loads nothing heavy, whatever verb is asked; and --help costs next to nothing."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from data_samples import write_corpus
from other_user import as_user
from places import ROOT
from record_samples import a_run, a_sweep

from dlperf_hpc.__main__ import verbs

REPOSITORY = ROOT
HEAVY = {"torch", "tensorflow", "deepspeed", "horovod", "mpi4py", "transformers"}
PLOTTING = {"pandas", "matplotlib", "numpy"}

PROGRAM = """
import runpy, sys
sys.argv = ["dlperf_hpc"] + sys.argv[1:]
try:
    runpy.run_module("dlperf_hpc", run_name="__main__", alter_sys=False)
except SystemExit:
    pass
print("\\nMODULES " + " ".join(sorted(sys.modules)))
"""


def _modules(*arguments: str) -> set[str]:
    argv = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(
        argv, cwd=REPOSITORY, text=True, capture_output=True, timeout=60, check=True
    )
    return set(done.stdout.rpartition("MODULES ")[2].split())


@pytest.mark.parametrize("verb", verbs())
def test_help_loads_the_standard_library_only(verb: str) -> None:
    found = _modules(verb, "--help")
    assert f"dlperf_hpc.cli.{verb}" in found
    assert not found & (HEAVY | PLOTTING | {"pydantic", "submitit", "rich"})


@pytest.mark.parametrize("argument", ["--help", "--version", "no-such-verb"])
def test_without_a_verb_no_verb_is_loaded(argument: str) -> None:
    found = _modules(argument)
    ours = {name for name in found if name.startswith("dlperf_hpc.")}
    there = {"dlperf_hpc.source", "dlperf_hpc.errors"}  # the version, and what is meant
    assert "dlperf_hpc.source" in ours and ours <= there and "argparse" not in found


def test_a_dry_run_loads_no_framework() -> None:
    found = _modules("sweep", "sweeps/bert_fp32.toml", "--dry-run", "--cluster", "slurm")
    assert "submitit" in found and "dlperf_hpc.train.backends.ddp" in found
    assert not found & (HEAVY | PLOTTING)


@pytest.mark.parametrize("engine", ["slurm", "local"])
def test_what_submits_nothing_loads_no_submitit(tmp_path: Path, engine: str) -> None:
    a_sweep(tmp_path, [a_run()], engine)
    found = _modules("status", str(tmp_path)) | _modules("cancel", str(tmp_path), "--dry-run")
    assert f"dlperf_hpc.engines.{engine}" in found and "submitit" not in found


def test_status_and_report_load_no_framework(tmp_path: Path) -> None:
    found = _modules("status", str(tmp_path)) | _modules("report", str(tmp_path))
    assert not found & HEAVY


def limited(processes: int, arguments: list[str], place: Path) -> subprocess.CompletedProcess[str]:
    """A verb, run by a user who may have so many processes and threads. Nobody's are limited who
    is root: then it is another user, with root's rights to files."""
    place.chmod(0o777)
    rights = "+dac_override,+dac_read_search"
    user = 60_000 + os.getpid() % 5_000  # whose processes no test beside this one adds to
    other = [*as_user(user), f"--inh-caps={rights}", f"--ambient-caps={rights}"]
    process = subprocess.Popen(
        [*([] if os.geteuid() else other), sys.executable, "-m", *arguments],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "XDG_CACHE_HOME": str(place)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes)),
    )
    try:
        output, errors = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


@pytest.mark.parametrize("processes", [1, 3, 5])
def test_logs_are_read_where_hardly_a_process_may_be_started(
    tmp_path: Path, processes: int
) -> None:
    logs, noise = tmp_path / "logs", "some noise, and no figure in it at all\n" * 120_000
    logs.mkdir()
    for number in range(3):
        lines = (f"0/{n}, SamplesPerSec=100.5\n" for n in range(1, 4))
        (logs / f"{number}.log").write_text(noise.join(lines))
    told = ["--out", "report", "--nodes", "1", "--gpus-per-node", "1", "--batch-size", "32"]
    done = limited(processes, ["dlperf_hpc", "report", "logs", *told], tmp_path)
    assert "Traceback" not in done.stderr and "error:" not in done.stderr  # pyarrow may remark
    assert "written: report/speedup.csv" in done.stdout
    rows = (tmp_path / "report" / "runs.csv").read_text().splitlines()[1:]
    assert ["deepspeed" in row and f"{n}.log" in row for n, row in enumerate(rows)] == [True] * 3


@pytest.mark.parametrize("processes", [1, 4])
def test_data_are_prepared_where_hardly_a_process_may_be_started(
    tmp_path: Path, processes: int
) -> None:
    write_corpus(tmp_path)
    told = ["--format", "hdf5", "--train-tokenizer", "--vocab-size", "400", "--seq-len", "64"]
    argv = ["dlperf_hpc", "prepare", "corpus", *told, "--shards", "2", "--workers", "2", "--out"]
    for place, most in (("free", 10_000), ("limited", processes)):
        done = limited(most, [*argv, place], tmp_path)
        assert done.returncode == 0, done.stderr
    files = [
        {path.name: path.read_bytes() for path in (tmp_path / place).iterdir()}
        for place in ("free", "limited")
    ]
    assert len(files[0]) >= 4 and files[0] == files[1]


@pytest.mark.parametrize(("most", "file"), [(0, ""), (4096, "/manifest.json")])
def test_a_sweep_that_cannot_be_written_says_so_and_leaves_nothing_half_written(
    tmp_path: Path, most: int, file: str
) -> None:
    """Files may have no more than so many bytes: as on a disk that is full, or a quota."""
    argv = [
        sys.executable,
        "-m",
        "dlperf_hpc",
        "sweep",
        "sweeps/quickstart.toml",
        "--cluster=local",
    ]
    done = subprocess.run(
        [*argv, f"--logs={tmp_path}"],
        cwd=REPOSITORY,
        text=True,
        capture_output=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)),
    )
    wanted = f"error: {tmp_path}/quickstart{file}: cannot be written: File too large\n"
    assert (done.returncode, done.stderr) == (2, wanted)
    assert not list(tmp_path.rglob("*.tmp"))


def test_only_verbs_that_start_no_job_tell_numpy_how_many_threads(tmp_path: Path) -> None:
    told = PROGRAM + "\nimport os; print('THREADS', os.environ.get('OPENBLAS_NUM_THREADS'))"
    env = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    said = {}
    for verb in (["report", str(tmp_path)], ["sweep", "sweeps/bert_fp32.toml", "--dry-run"]):
        argv = [sys.executable, "-c", told, *verb]
        done = subprocess.run(
            argv, cwd=REPOSITORY, env=env, text=True, capture_output=True, timeout=60, check=True
        )
        said[verb[0]] = done.stdout.split()[-1]
    assert said == {"report": "1", "sweep": "None"}
