"""The wheel of this tree, built once for all workers of a test run, and installed where asked."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from places import ROOT

COMMIT = "0123456789ab"
"""Written into the copy that is built, as a source distribution has it."""
_MADE = {"build", "dist", "__pycache__"}


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """The directory ``name`` that ``make`` has filled, in this worker or in another one."""
    base = factory.getbasetemp()
    place = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    done = place.with_suffix(".done")
    with open(f"{place}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            place.mkdir()
            make(place)
            done.touch()
    return place


def copied_tree(place: Path) -> Path:
    """A copy of this tree as a clone has it; its root."""
    shutil.copytree(ROOT, place, ignore=_not_in_a_clone)
    (place / "dlperf_hpc" / "bundled" / "commit").write_text(f"{COMMIT}\n")
    return place


def _not_in_a_clone(folder: str, names: Iterable[str]) -> set[str]:
    if Path(folder) == ROOT / "logs":
        return set(names) - {"README.md"}
    dotted = {name for name in names if name.startswith(".")} - {".ci", ".gitignore"}
    made = {name for name in names if name in _MADE or name.endswith((".egg-info", ".pyc"))}
    return dotted | made


def build(kind: str, source: Path, target: Path) -> Path:
    """Build ``sdist`` or ``wheel`` of a tree as pip does, without an environment of its own."""
    code = f"import sys, setuptools.build_meta as b; print(b.build_{kind}(sys.argv[1]))"
    argv = [sys.executable, "-c", code, str(target)]
    done = subprocess.run(argv, cwd=source, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return target / done.stdout.splitlines()[-1]


def wheel(factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of this tree."""

    def make(place: Path) -> None:
        build("wheel", copied_tree(place / "tree"), place)

    (file,) = made_once(factory, "wheel", make).glob("*.whl")
    return file


def unpacked(factory: pytest.TempPathFactory) -> Path:
    """A directory for PYTHONPATH that holds what the wheel brings."""

    def make(place: Path) -> None:
        with zipfile.ZipFile(wheel(factory)) as archive:
            archive.extractall(place)

    return made_once(factory, "unpacked", make)


def installed(factory: pytest.TempPathFactory) -> Path:
    """The root of a new virtual environment with the wheel in it; other packages are the tests'."""

    def make(place: Path) -> None:
        venv.create(place, with_pip=False)
        (packages,) = place.glob("lib/python*/site-packages")
        # One more entry of sys.path: the .pth files there, an editable one too, do not count.
        (packages / "tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
        (packages / "pyproject.toml").touch()  # as wheels of other packages leave theirs
        python = str(place / "bin" / "python")
        argv = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
        options = ["--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check"]
        subprocess.run([*argv, *options, "--ignore-installed", wheel(factory)], check=True)

    return made_once(factory, "installed", make)


def offer_packages(environment: Path) -> None:
    """Give a virtual environment the tests' packages, which stand for those that an index would
    give to pip; of this project it has nothing, nor an older setuptools of its own."""
    (packages,) = environment.glob("lib/python*/site-packages")
    for path in packages.glob("setuptools*"):
        shutil.rmtree(path)
    links = environment / "packages"
    links.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "dlperf_hpc" not in path.name and path.name.partition("-")[0] not in ("pip", "pip3"):
            (links / path.name).symlink_to(path)
    (packages / "tests.pth").write_text(f"{links}\n")


def source_distribution(factory: pytest.TempPathFactory) -> Path:
    """The unpacked source distribution of a copy of this tree; its root."""

    def make(place: Path) -> None:
        archive = build("sdist", copied_tree(place / "tree"), place)
        with tarfile.open(archive) as packed:
            packed.extractall(place / "unpacked", filter="data")

    (root,) = (made_once(factory, "source", make) / "unpacked").iterdir()
    return root
