"""The first commands of a newcomer: the README's from a clone, and those of an installed wheel."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import built_wheel
import pytest
from places import BUSY, ROOT

_SMALL = ["--only", "1n1g", "--set", "repeats=1", "--set", "measure.iterations=4"]


def call(place: Path, *argv: str, **more: str) -> str:
    """What a command prints in that directory; MPI is that of the tests' own environment."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("DLPERF")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
    library = {"LD_LIBRARY_PATH": f"{sys.prefix}/lib"}
    env = {**kept, "PATH": path, "OMP_NUM_THREADS": "1", **library, **more}
    done = subprocess.run(
        argv, cwd=place, env=env, capture_output=True, text=True, timeout=240 * BUSY
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_installed_wheel_in_an_empty_directory(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    dlperf = str(built_wheel.installed(tmp_path_factory) / "bin" / "dlperf")
    told = call(tmp_path, dlperf, "doctor", "quickstart", "--cluster", "local")
    assert "every rank reported" in told and "FAIL" not in told
    told = call(tmp_path, dlperf, "sweep", "quickstart", "--cluster", "local", *_SMALL)
    assert re.search(r"^1n1g .* 1/1", told, re.MULTILINE), told
    assert (tmp_path / "logs" / "quickstart" / "report" / "speedup.csv").is_file()


def test_the_commands_of_the_readme_in_a_clone(tmp_path: Path) -> None:
    """Word for word, but for fewer runs, and for packages that are the tests' own."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^    make quickstart .*then runs: (.*)$", readme, re.MULTILINE)
    assert shown == "python -m dlperf_hpc.sweep sweeps/quickstart.toml"
    clone = built_wheel.copied_tree(tmp_path / "clone")
    spec = clone / "sweeps" / "quickstart.toml"
    text = re.sub(r"(?m)^topologies = .*", 'topologies = ["1n1g"]', spec.read_text())
    spec.write_text(re.sub(r"(?m)^repeats = .*", "repeats = 1", text))
    venv.create(clone / ".venv", with_pip=False)
    (packages,) = clone.glob(".venv/lib/python*/site-packages")
    (packages / "tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    # What is to be installed is there: pip adds the clone, and asks no package index.
    told = call(clone, "make", "quickstart", PIP_NO_INDEX="1", PIP_NO_BUILD_ISOLATION="0")
    assert re.search(r"^1n1g .* 1/1", told, re.MULTILINE), told
    assert len(list(clone.glob("logs/quickstart-*/report/speedup.csv"))) == 1
    again = call(clone, ".venv/bin/python", *shown.split()[1:], "--dry-run")
    assert f"logs: {clone}/logs/quickstart\n" in again and "= 1 run " in again
