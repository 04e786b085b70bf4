"""What `sweep` sees before it submits: what is certain, and what is a note only."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from record_samples import a_run, manifest

from dlperf_hpc.doctor.beforehand import examine, is_shared
from dlperf_hpc.engines import get_engine
from dlperf_hpc.engines.base import CheckResult, Engine
from dlperf_hpc.engines.local import LocalEngine
from dlperf_hpc.engines.site import Site

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
