"""What `sweep` sees before it submits: what is certain, and what is a note only."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from record_samples import a_run, manifest

from dlperf_hpc.doctor.preflight import examine, is_shared
from dlperf_hpc.engines import get_engine
from dlperf_hpc.engines.base import CheckResult, Engine
from dlperf_hpc.engines.local import LocalEngine
from dlperf_hpc.engines.plan import make_manifest
from dlperf_hpc.engines.site import Site
from dlperf_hpc.model.case import Measure
from dlperf_hpc.sweepfile.load import load_sweep
from dlperf_hpc.train.registry import registry

OLD = """#!/bin/sh
echo '{"version": [3, 6, 8], "path": ["/usr/lib/site-packages"], "missing": []}'
"""
MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
fs:/home /home nfs4 rw 0 0
/dev/sdb1 /data ext4 rw 0 0
mds:/scratch /scratch\\040fast lustre rw 0 0
"""


class Detached(LocalEngine):
    """An engine whose jobs run on other machines."""

    detached = True


def seen(
    tmp_path: Path, environment: Mapping[str, object], engine: Engine, framework: str = "tensorflow"
) -> Sequence[CheckResult]:
    site = Site.model_validate({"environment": {"default": environment}})
    made = manifest([a_run(framework=framework)])
    return list(examine(made, site, engine, tmp_path))


def told(found: Sequence[CheckResult]) -> list[tuple[str, str]]:
    return [(result.grade, result.check) for result in found]


def test_nothing_is_said_of_what_is_well(tmp_path: Path) -> None:
    assert seen(tmp_path, {}, get_engine("local"), "ddp") == []


@pytest.mark.parametrize(
    ("warmup", "device", "warned"),
    [(10, "cuda", True), (11, "cuda", False), (4, "cpu", False), (4, "auto", False)],
)
def test_a_warm_up_that_ddps_logger_looks_into(
    tmp_path: Path, warmup: int, device: str, warned: bool
) -> None:
    made = manifest([a_run(framework="ddp", device=device)])
    found = list(
        examine(replace(made, measure=Measure(warmup=warmup)), Site(), Detached(), tmp_path)
    )
    assert [each for each in told(found) if each[1] == "warmup"] == [("warn", "warmup")] * warned


@pytest.mark.parametrize(("engine", "grade"), [(LocalEngine(), "FAIL"), (Detached(), "warn")])
def test_a_python_that_lacks_what_the_back_end_declares(
    tmp_path: Path, engine: Engine, grade: str
) -> None:
    # By looking in this process, and by asking another Python.
    for environment in ({}, {"env": {"PYTHONPATH": "/"}}):
        (result,) = seen(tmp_path, environment, engine)
        assert (result.grade, result.check) == (grade, "tensorflow")
        assert sys.executable in result.seen and "pip" in result.to_do


def test_a_python_that_is_not_there_or_too_old_or_none(tmp_path: Path) -> None:
    old, mute = tmp_path / "old", tmp_path / "mute"
    old.write_text(OLD)
    mute.write_text("#!/bin/sh\nexit 3\n")
    for path, grades in ((old, ["FAIL", "warn"]), (mute, ["warn", "warn"]),
                         (tmp_path / "no", ["FAIL", "warn"])):  # fmt: skip
        if path.exists():
            path.chmod(0o755)
        for engine, grade in zip((LocalEngine(), Detached()), grades):
            assert told(seen(tmp_path, {"python": str(path)}, engine)) == [(grade, "python")]


@pytest.mark.parametrize("key", ["modules", "setup"])
def test_what_a_shell_adds_is_seen_in_a_job_only(tmp_path: Path, key: str) -> None:
    assert seen(tmp_path, {"python": "/no/python", key: ["x"]}, LocalEngine()) == []


def test_which_paths_other_machines_see(tmp_path: Path) -> None:
    table = tmp_path / "mounts"
    table.write_text(MOUNTS)
    for path, logs, shared in (
        ("/home/me/env/bin/python", "/data/logs", True),
        ("/scratch fast/env", "/data/logs", True),
        ("/data/env/bin/python", "/data/logs", True),
        ("/data/env/bin/python", "/home/me/logs", False),
        ("/opt/env/bin/python", "/home/me/logs", False),
        ("/opt/env/bin/python", "/opt/logs", False),
    ):
        assert is_shared(path, Path(logs), str(table)) == shared, path
    assert not is_shared("/home/me", tmp_path, str(tmp_path / "none"))


PROGRAMS = """
topologies = ["1n2g"]
repeats = 1
[case]
model = "toy"
batch_size = 4
[matrix]
framework = {names}
[program.gone]
launch = "torchrun"
workdir = "/nowhere/at/all"
run = ["train.py", "{{steps}}"]
[program.shell]
launch = "once"
run = ["bash", "there.sh", "output.py", "{{scratch}}/x.sh"]
[program.sharded]
launch = "accelerate"
run = ["--use_fsdp", "there.py"]
[program.binary]
launch = "rank"
run = ["./a.out", "config.sh"]
[program.command]
launch = "rank"
run = ["no-such-command-42"]
[program.late]
launch = "rank"
workdir = "{{scratch}}"
run = ["-m", "mine"]
"""


def of_programs(tmp_path: Path, names: list[str], engine: Engine) -> Sequence[CheckResult]:
    spec = tmp_path / "s.toml"
    spec.write_text(PROGRAMS.format(names=names))
    made = make_manifest(load_sweep(spec, registry()), Site(), "local")
    return list(examine(made, Site(), engine, tmp_path))


def test_programs_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("there.sh", "there.py"):
        (tmp_path / name).touch()
    assert of_programs(tmp_path, ["shell", "sharded", "late"], LocalEngine()) == []
    (gone,) = of_programs(tmp_path, ["gone"], LocalEngine())
    assert (gone.grade, gone.check) == ("FAIL", "program gone")
    assert gone.seen == "/nowhere/at/all is no directory"
    (gone,) = of_programs(tmp_path, ["gone"], Detached())
    assert gone.grade == "warn"
    (binary, command) = of_programs(tmp_path, ["binary", "command"], LocalEngine())
    assert binary.seen == f"there is no file {tmp_path}/a.out" and binary.grade == "FAIL"
    assert (command.grade, "no-such-command-42" in command.seen) == ("warn", True)
    (tmp_path / "a.out").touch(mode=0o644)
    (binary,) = of_programs(tmp_path, ["binary"], LocalEngine())
    assert binary.to_do == f"chmod +x {tmp_path}/a.out"


TIMED = "import os\nfrom dlperf_hpc import Timer\n"


@pytest.mark.parametrize(
    ("launch", "words", "script", "missing"),
    [
        ("accelerate", '"train.py"', "", ["accelerate"]),
        ("rank", '"train.py"', TIMED, ["dlperf_hpc"]),
        ("rank", '"-m", "dlperf_hpc.hook", "train.py"', "", ["dlperf_hpc"]),
        ("rank", '"train.py"', "# dlperf_hpc\ntry:\n  import dlperf_hpc\nexcept: pass", []),
    ],
)
def test_a_module_that_a_program_cannot_start_without(
    tmp_path: Path, launch: str, words: str, script: str, missing: list[str]
) -> None:
    """That of its launcher, and this package where its Timer or the hook needs it."""
    (tmp_path / "train.py").write_text(script)
    spec = tmp_path / "s.toml"
    text = PROGRAMS.format(names=["gone"]).replace("/nowhere/at/all", str(tmp_path))
    spec.write_text(text.replace('"torchrun"', f'"{launch}"').replace('"train.py"', words))
    made = make_manifest(load_sweep(spec, registry()), Site(), "local")
    bare = tmp_path / "bin" / "python"
    bare.parent.mkdir()
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    site = Site.model_validate({"environment": {"default": {"python": str(bare)}}})
    found = list(examine(made, site, LocalEngine(), tmp_path))
    assert [result.check for result in found] == missing
    assert all(f"has no module {result.check}" in result.seen for result in found)
