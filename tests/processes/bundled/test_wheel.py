"""What is built of this tree, and the an installed wheel's first commands in an empty directory."""

from __future__ import annotations

import email
import itertools
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

import built_wheel
import pytest
import tomllib
from places import ROOT

from dlperf_hpc import __version__


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture
def dlperf(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The command of an installed wheel."""
    return str(built_wheel.installed(tmp_path_factory) / "bin" / "dlperf")


def call(place: Path, *argv: str) -> str:
    """What a command prints in that directory; a user's own settings do not reach it."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("DLPERF")}
    env = {**kept, "XDG_CONFIG_HOME": str(place / "none"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(argv, cwd=place, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_brings_the_folders(tmp_path_factory: pytest.TempPathFactory) -> None:
    found = contents(built_wheel.wheel(tmp_path_factory))
    brought = {
        path.relative_to(ROOT).as_posix(): path.read_bytes()
        for folder in ("sweeps", "programs", "slurm", "requirements")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    top = "dlperf_hpc/bundled/"
    assert {n: found[top + n] for n in brought} == brought and len(brought) > 25
    modules = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("dlperf_hpc/**/*.py")}
    assert modules <= found.keys()
    rest = {name for name in found if not name.startswith(top)} - modules
    info = f"dlperf_hpc-{__version__}.dist-info/"
    ours = {"py.typed", "published/published.csv", "published/README.md", "logs/recognised.toml"}
    ours |= {"logs/formats.json", "logs/pattern_formats.json", "meant.toml"}
    page = ROOT / "dlperf_hpc" / "reporting" / "page"
    parts = [*page.glob("page.*"), *page.glob("vendor/*")]
    ours |= {path.relative_to(ROOT / "dlperf_hpc").as_posix() for path in parts}
    assert len(parts) == 7
    assert {n for n in rest if not n.startswith(info)} == {f"dlperf_hpc/{n}" for n in ours}


def test_a_source_distribution_is_complete_and_gives_the_same_wheel(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    source = built_wheel.source_distribution(tmp_path_factory)
    tree = built_wheel.copied_tree(tmp_path / "tree")
    files = {path.relative_to(tree) for path in tree.rglob("*") if path.is_file()}
    there = {path.relative_to(source) for path in source.rglob("*") if path.is_file()}
    assert files <= there
    made = {each.as_posix() for each in there - files}
    assert {name for name in made if ".egg-info/" not in name} <= {"PKG-INFO", "setup.cfg"}
    again = contents(built_wheel.build("wheel", source, tmp_path))
    assert again == contents(built_wheel.wheel(tmp_path_factory))


def names(requirements: Iterable[str]) -> set[str]:
    """The packages; a build for CPUs alone counts as the package itself."""
    words = (re.match(r"[\w.-]+", each) for each in requirements)
    return {word[0].lower().replace("_", "-").removesuffix("-cpu") for word in words if word}


@pytest.mark.parametrize("name", ["deepspeed", "tensorflow", "horovod"])
def test_an_extra_installs_what_the_recipe_does(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    found, waiting = set[str](), [name]
    while waiting:
        for each in extras[waiting.pop()]:
            inner = re.fullmatch(r"dlperf_hpc\[(.*)\]", each)
            waiting += inner[1].split(",") if inner else []
            found |= set() if inner else names([each])
    lines = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    needed = itertools.takewhile(lambda line: line != "# To build with:", lines)
    recipe = names(line for line in needed if not line.startswith("#"))
    assert found - {"horovod"} == recipe  # which is compiled on top


def test_what_is_told_of_the_package(dlperf: str) -> None:
    (info,) = Path(dlperf).parents[1].glob("lib/python*/site-packages/dlperf_hpc-*.dist-info")
    told = email.message_from_bytes((info / "METADATA").read_bytes())
    assert told["Version"] == __version__ and told["Requires-Python"] == ">=3.9"
    assert told["Author"] == "the dlperf_hpc developers"
    assert told["License-Expression"] == "Apache-2.0"
    licence = (info / "licenses" / "LICENSE").read_text(encoding="utf-8")
    assert licence == (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert f"## {__version__} " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_version_is_told_with_the_commit(dlperf: str, tmp_path: Path) -> None:
    wanted = f"dlperf_hpc {__version__} (commit {built_wheel.COMMIT})\n"
    assert call(tmp_path, dlperf, "--version") == wanted
    assert call(tmp_path, dlperf, "sweep", "--version") == wanted


def test_the_first_sweep(dlperf: str, tmp_path: Path) -> None:
    told = call(tmp_path, dlperf, "sweep", "quickstart", "--cluster", "local", "--dry-run")
    assert "sweep quickstart (local): 3 cases x 3 repeats = 9 runs" in told
    assert list(tmp_path.iterdir()) == []


def test_copies_to_edit(dlperf: str, tmp_path: Path) -> None:
    told = call(tmp_path, dlperf, "init", ".", "--site", "jupiter")
    assert "  dlperf sweep sweeps/bert_fp32.toml --site jupiter --dry-run\n" in told
    (tmp_path / "slurm" / "jupiter.toml").write_text('partition = "jupiter-gpu"')
    options = ["--site", "jupiter", "--dry-run", "--cluster", "slurm"]
    script = call(tmp_path, dlperf, "sweep", "sweeps/bert_fp32.toml", *options)
    assert "#SBATCH --partition=jupiter-gpu\n" in script
    onebox = call(tmp_path, dlperf, "sweep", "quickstart", "--site", "onebox", *options[2:])
    assert "#SBATCH --licenses=machine:1\n" in onebox


def test_onebox_is_there(dlperf: str, tmp_path: Path) -> None:
    assert call(tmp_path, dlperf, "onebox", "--help").startswith("usage: onebox ")


def test_an_environment_gets_the_wheel_that_is_installed(
    dlperf: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    name = f"dlperf_hpc-{__version__}-py3-none-any.whl"
    make = ["env", "make", "tensorflow", "--dry-run", "--python", sys.executable]
    assert f"--no-deps --force-reinstall {name}\n" in call(tmp_path, dlperf, *make)
    code = """
import pathlib, sys
from dlperf_hpc.cli.env import repack
print(repack(pathlib.Path(sys.argv[1])).name)
"""
    python = str(Path(dlperf).with_name("python"))
    assert call(tmp_path, python, "-c", code, str(tmp_path)) == f"{name}\n"
    packed, wanted = (contents(w) for w in (tmp_path / name, built_wheel.wheel(tmp_path_factory)))
    record = f"dlperf_hpc-{__version__}.dist-info/RECORD"
    lines = [set(found.pop(record).splitlines()) for found in (packed, wanted)]
    assert packed == wanted and lines[0] == lines[1]
