"""The wheel in the environment's Python: the oldest and the newest other one that is found here.

With ``-S``: the standard library and what the wheel brings, whatever is installed there. The last
lines of the test run say which Pythons there were.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import built_wheel
import pytest
from places import SUPPORT
from record_samples import a_run, a_sweep, ended_ok, opened, paths

from dlperf_hpc.__main__ import verbs
from dlperf_hpc.engines.base import run_program
from dlperf_hpc.model.result import Status
from dlperf_hpc.records.logfile import result_of_log
from dlperf_hpc.records.manifest import read_manifest
from dlperf_hpc.records.record import read_record
from dlperf_hpc.records.store import read_failures

FLOOR, VERBS, NEWEST = (3, 9), (3, 11), (3, 99)
TASK = {"SLURM_ARRAY_JOB_ID": "100", "SLURM_ARRAY_TASK_ID": "0", "SLURM_PROCID": "1"}


@functools.cache
def _pythons() -> dict[tuple[int, int], str]:
    """One Python of each minor version but this one: of the PATH, and what pyenv has."""
    named = [shutil.which(f"python3.{minor}") for minor in range(6, 30)]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found: dict[tuple[int, int], str] = {}
    for path in [*filter(None, named), *map(str, sorted(pyenv.glob("3.*/bin/python3")))]:
        try:
            told = _run(Path(), path, "-c", "import sys; print(*sys.version_info[:2])").stdout
        except (OSError, subprocess.TimeoutExpired):
            continue
        match = re.fullmatch(r"(\d+) (\d+)\n", told)  # a pyenv shim may say that it has none
        if match and (int(match[1]), int(match[2])) != sys.version_info[:2]:
            found.setdefault((int(match[1]), int(match[2])), path)
    return found


def _run(
    package: Path, python: str, *words: str, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    path = f"{package}{os.pathsep}{SUPPORT}"
    env = {**kept, **TASK, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [python, "-S", *words],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _from(first: tuple[int, int], last: tuple[int, int]) -> pytest.MarkDecorator:
    """The oldest and the newest Python found between two versions: those between are no other."""
    chosen = [(v, path) for v, path in sorted(_pythons().items()) if first <= v <= last]
    rows = [
        pytest.param(path, id=f"{major}.{minor}")
        for (major, minor), path in dict([*chosen[:1], *chosen[-1:]]).items()
    ]
    none = pytest.param("", marks=pytest.mark.skip("no such Python here"), id="none")
    return pytest.mark.parametrize("python", rows or [none])


@pytest.fixture
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for PYTHONPATH with what the wheel brings."""
    return built_wheel.unpacked(tmp_path_factory)


@_from(FLOOR, NEWEST)
def test_a_run_that_ended_well_reads_the_same(tmp_path: Path, package: Path, python: str) -> None:
    """The other Python writes log and record, of a manifest that this one wrote."""
    run = a_run()
    there, here = tmp_path / "there", tmp_path / "here"
    a_sweep(there, [run])
    code = f"""
import pathlib, record_samples
from dlperf_hpc.records.manifest import read_manifest
root = pathlib.Path({str(there)!r})
(run,) = read_manifest(root).runs
result = record_samples.ended_ok(root, run)
print(result.status.value, result.samples_per_s)
"""
    done = _run(package, python, "-c", code)
    assert done.returncode == 0, done.stderr
    result, wanted = result_of_log(paths(there, run).log), ended_ok(here, run)
    assert (result.status, result.window) == (Status.OK, wanted.window)
    assert done.stdout == f"ok {wanted.samples_per_s}\n"
    records = [json.loads(paths(root, run).record.read_bytes()) for root in (there, here)]
    for record in records:
        record.pop("ended")
    assert records[0].keys() == records[1].keys()


@_from(FLOOR, NEWEST)
def test_the_worker_says_why_it_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: Path, python: str
) -> None:
    """The whole way of a rank, as srun starts it, up to the MPI that it does not find. On this way
    nothing is imported from the current directory."""
    run = a_run()
    a_sweep(tmp_path, [run])
    for planted in ("runpy", "json", "dataclasses", "pathlib"):
        (tmp_path / f"{planted}.py").write_text("raise SystemExit('planted')\n")
    monkeypatch.chdir(tmp_path)
    array = read_manifest(tmp_path).arrays[0]
    done = _run(package, python, *run_program(tmp_path, array).arguments, cwd=tmp_path)
    assert done.returncode == 1
    record = read_record(paths(tmp_path, run).record)
    assert record is not None and record["launch"] == "100_0.0"
    result = result_of_log(paths(tmp_path, run).log)
    assert result.status is Status.FAILED and "rank 1 on" in result.reason
    assert "WorldError: mpi4py cannot start MPI" in result.reason
    (failure,) = read_failures(opened(tmp_path, run))
    assert (failure.rank, failure.consequence) == (1, False)
    assert "Traceback" in done.stderr and "ModuleNotFoundError" in failure.traceback
    # Who submits may have an old Python too, and its epilogue comes last.
    paths(tmp_path, run).record.unlink()
    epilogue = run_program(tmp_path, array).epilogue[1:]
    done = _run(package, python, *epilogue, "1", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    again = read_record(paths(tmp_path, run).record)
    assert again is not None and again["reason"] == record["reason"]


@_from(FLOOR, NEWEST)
def test_a_timed_loop_runs_there(tmp_path: Path, package: Path, python: str) -> None:
    """With the standard library alone, by Timer and by the hook."""
    program = tmp_path / "loop.py"
    program.write_text(
        "from dlperf_hpc import Timer\n"
        "for _ in Timer(batch_size=1, warmup=1, iterations=3)(range(9)): pass\n"
    )
    for words in ([], ["-m", "dlperf_hpc.hook"]):
        done = _run(package, python, *words, str(program), cwd=tmp_path)
        assert done.returncode == 0 and "samples/s (1 process, 1n1g)" in done.stderr, done.stderr
    hooked, *timed = sorted(tmp_path.rglob("*.log"))
    assert [result_of_log(log).status for log in timed] == [Status.OK] * 2
    assert "no optimizer steps seen" in result_of_log(hooked).reason


@_from(FLOOR, (3, 10))
def test_what_runs_there_can_be_read_there(package: Path, python: str) -> None:
    """All declarations load; what a rank or a verb's first line needs is Python of that version."""
    code = """
import pathlib, dlperf_hpc
from dlperf_hpc.logs.formats import formats
from dlperf_hpc.train.registry import registry
for line in (line for each in formats() for line in each.lines):
    line.find_all("")  # a user's program is read by its supervisor
assert registry().backends and registry().workloads
folder = pathlib.Path(dlperf_hpc.__file__).parent
rooms = ("cli", "launch", "model", "records", "sweepfile", "timer", "train")
files = [*folder.glob("*.py"), *(path for room in rooms for path in (folder / room).rglob("*.py"))]
for path in files:
    compile(path.read_text(encoding="utf-8"), str(path), "exec")
print(len(files) > 100)
"""
    done = _run(package, python, "-c", code)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


@_from(VERBS, NEWEST)
def test_the_command_answers_there(tmp_path: Path, package: Path, python: str) -> None:
    """What needs the standard library alone works; the rest names what is not installed."""
    code = f"""
import contextlib, io
from dlperf_hpc.__main__ import main
for verb in {list(verbs())}:
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as told:
        main([verb, "--help"])
    assert told.getvalue().startswith("usage: "), verb
assert main(["--version"]) == main(["init", "lab"]) == main(["env", "list"]) == 0
assert main(["sweep", "quickstart"]) == 2
"""
    done = _run(package, python, "-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"(commit {built_wheel.COMMIT})\n" in done.stdout
    assert (tmp_path / "lab" / "sweeps" / "quickstart.toml").is_file()
    assert re.fullmatch(r"error: .* has no pydantic, which this verb needs: .*\n", done.stderr)


@_from(FLOOR, (3, 10))
def test_verbs_say_that_they_need_a_newer_python(package: Path, python: str) -> None:
    """All but ``onebox``, which hands its words to a program of its own."""
    code = f"""
from dlperf_hpc.__main__ import main
assert main(["--version"]) == main(["--help"]) == 0
assert all(main([verb, "--help"]) == 2 for verb in {sorted(verbs().keys() - {"onebox"})})
"""
    done = _run(package, python, "-c", code)
    assert done.returncode == 0, done.stderr
    assert len(set(done.stderr.splitlines())) == 1 and "need Python 3.11 or newer" in done.stderr


@_from((3, 0), (3, 8))
def test_a_python_that_is_too_old_is_told_so(tmp_path: Path, package: Path, python: str) -> None:
    done = _run(package, python, "-u", "-m", "dlperf_hpc.train", str(tmp_path), "any")
    assert done.returncode == 1 and "SyntaxError" not in done.stderr
    assert "Python must be 3.9 or newer, and this one is 3." in done.stderr
