"""requirements/constraints.txt names one version of all that a continuous integration installs."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires

import tomllib
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from places import ROOT

LINES = (ROOT / "requirements" / "constraints.txt").read_text(encoding="utf-8").splitlines()
PINS = dict(line.split("==") for line in LINES if not line.startswith("#"))
# Compiled by requirements/horovod.sh, which names its version.
UNPINNED = {"dlperf-hpc", "horovod"}


def needed(requirements: list[str], extras: set[str], seen: set[tuple[str, str]]) -> set[str]:
    """The packages that pip installs for these requirements here, as far as they are installed."""
    found = set[str]()
    for each in map(Requirement, requirements):
        name = canonicalize_name(each.name)
        markers = [{"extra": extra} for extra in extras | {""}]
        if each.marker and not any(each.marker.evaluate(marker) for marker in markers):
            continue
        found.add(name)
        for extra in each.extras | {""}:
            if (name, extra) not in seen and name != "dlperf-hpc":
                seen.add((name, extra))
                found |= needed(_requires(name), set(each.extras), seen)
    return found


def _requires(name: str) -> list[str]:
    try:
        return requires(name) or []
    except PackageNotFoundError:  # a framework, which has an environment of its own
        return []


def test_all_that_the_package_its_tests_and_tools_need_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    told = [*project["dependencies"], *(each for name in extras.values() for each in name)]
    found = needed(told, set(), set()) - UNPINNED - {"tensorflow"}
    # Builds of torch for GPUs need more; the versions were tried with one for CPUs alone.
    found = {name for name in found if name in PINS or not re.match("nvidia-|cuda-|triton", name)}
    assert {"pytest", "ruff", "mypy", "torch", "pluggy", "numpy"} <= found
    assert found - PINS.keys() == set()


def test_what_the_recipes_name_is_pinned() -> None:
    files = [path for path in ROOT.glob("requirements/*.txt") if path.stem != "constraints"]
    lines = [line for path in files for line in path.read_text(encoding="utf-8").splitlines()]
    found = {canonicalize_name(line) for line in lines if re.match(r"[A-Za-z]", line)}
    assert "tensorflow-cpu" in found and found <= PINS.keys() | UNPINNED
