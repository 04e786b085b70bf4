"""The acceptance pack, rehearsed as a first run on a lent GPU starts: a Python that has PyTorch and
transformers but nothing of ours, no network, and what travelled: this tree and some wheels."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from places import ROOT

from dlperf_hpc.acceptance.pack import CHECKS, chosen

TRAVELS = 64 * 2**20  # bytes
FILES, FILE = 8, 16 * 2**20  # that come back
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
WHEELS = "build/gpu-wheels"


def needs(*names: str) -> set[str]:
    """These distributions and what they need, as far as it is installed here."""
    found, left = set[str](), list(names)
    while left:
        name = left.pop().lower().replace("_", "-")
        try:
            requires = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        if name not in found:
            found.add(name)
            wanted = map(Requirement, requires)
            left += [r.name for r in wanted if not r.marker or r.marker.evaluate({"extra": ""})]
    return found


def image(place: Path) -> Path:
    """The Python of a machine as it is lent: mpi4py is there, and no MPI library. Its path."""
    venv.create(place, symlinks=True)
    site = place / "lib" / f"python{VERSION}" / "site-packages"
    for name in needs("torch", "transformers", "pandas", "matplotlib", "rich", "pip", "mpi4py"):
        found = distribution(name)
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            (site / top).symlink_to(str(found.locate_file(top)))
    return place / "bin" / "python"


def tree(place: Path) -> Path:
    """What of this checkout travels."""
    listed = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name)
    return place


def environment(place: Path) -> dict[str, str]:
    """Of a shell that knows nothing of this checkout."""
    (place / "tmp").mkdir(exist_ok=True)
    threads = {"OMP_NUM_THREADS": "1", "TMPDIR": str(place / "tmp")}
    return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(place), **threads}


@pytest.fixture(scope="module")
def lent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a machine that was lent: ``tree`` and the Python ``image``."""
    place = tmp_path_factory.mktemp("lent")
    here, python = tree(place / "tree"), image(place / "image")
    lacks = subprocess.run([python, "-c", "import dlperf_hpc"], capture_output=True, cwd=place)
    assert b"ModuleNotFoundError" in lacks.stderr
    command = ["sh", "requirements/gpu.sh", "wheels", WHEELS, VERSION]
    subprocess.run(command, cwd=here, check=True, env={**os.environ, "PYTHON": sys.executable})
    files = [path for path in here.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < TRAVELS
    return place


def called(lent: Path, call: str, *options: str) -> tuple[int, list[dict[str, Any]], str]:
    """Exit code, rows and output of one call, without a network."""
    out = lent / f"out{call}"
    run = f'ip link set lo up && exec sh requirements/gpu.sh run {WHEELS} --only {call} "$@"'
    command = ["unshare", "-r", "-n", "sh", "-c", run, "sh", *options]
    env = {**environment(lent), "PYTHON": str(lent / "image/bin/python"), "GPU_OUT": str(out)}
    done = subprocess.run(command, cwd=lent / "tree", env=env, capture_output=True, text=True)
    back = [path for path in out.rglob("*") if path.is_file()]
    assert len(back) <= FILES and all(path.stat().st_size < FILE for path in back)
    assert all(len(path.relative_to(out).parts) <= 3 for path in back)
    rows = json.loads((out / "acceptance.json").read_text())["rows"]
    return done.returncode, rows, done.stdout + done.stderr


@pytest.mark.timeout(1500)  # of a machine that has much else to do
@pytest.mark.parametrize("call", CHECKS[0].calls)
def test_the_calls_of_a_first_run(lent: Path, call: str) -> None:
    code, rows, output = called(lent, call, "--device", "cpu")
    bad = [row for row in rows if row["verdict"] == "FAIL"]
    assert code == 0 and not bad, output
    assert {row["check"] for row in rows} == {check.name for check in chosen([call])}
    assert not [row for row in rows if row["what"].startswith("not ")], output


def test_without_a_card_nothing_but_the_first_check_runs(lent: Path) -> None:
    code, rows, output = called(lent, "1")
    assert code == 1, output
    assert [row["what"] for row in rows if row["verdict"] == "FAIL"] == ["card"]
    assert [row["what"] for row in rows if row["check"] != "environment"] == ["not begun"] * (
        len(chosen("1")) - 1
    )


def test_a_python_that_has_all_needs_no_wheels_and_no_mpi_library(lent: Path) -> None:
    command = ["sh", "requirements/gpu.sh", "run", "none", "--device", "cpu", "--only"]
    env = {**environment(lent), "PYTHON": sys.executable, "GPU_OUT": str(lent / "own")}
    for python, mpi in ((sys.executable, False), (lent / "image/bin/python", True)):
        env["PYTHON"] = str(python)
        done = subprocess.run(
            [*command, "environment"], cwd=lent / "tree", env=env, capture_output=True, text=True
        )
        rows = json.loads((lent / "own" / "acceptance.json").read_text())["rows"]
        assert done.returncode == 0, done.stdout + done.stderr
        assert [row["what"] for row in rows if row["what"] == "MPI"] == ["MPI"] * mpi
