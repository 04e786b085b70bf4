"""What runs were made on and with, as their logs tell it, and in what two sides are not alike.

A comparison of two sweeps says that a case differs, not why: other hardware, other hosts and other
versions are reasons to look at first.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dlperf_hpc.analysis.accelerators import ACCELERATORS
from dlperf_hpc.records.results import RunResult
from dlperf_hpc.records.transport import EVENT

HARDWARE = "hardware"
VARIABLES = "environment"

# What, and where a log tells it: (table, keys), the values of several keys joined by a blank.
_TOLD: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "CPU": ("provenance", ("cpu",)),
    "hosts": ("world", ("hosts",)),
    "framework": ("", ("framework_name", "framework_version")),
    "torch": ("world", ("torch",)),
    "tensorflow": ("world", ("tensorflow",)),
    "CUDA": ("world", ("cuda",)),
    "cuDNN": ("world", ("cudnn",)),
    "NCCL": ("world", ("nccl",)),
    "NCCL within nodes": (EVENT, ("within",)),
    "NCCL between nodes": (EVENT, ("between",)),
    "driver": ("", ("drivers",)),
    "kernel": ("provenance", ("kernel",)),
    "MPI": ("provenance", ("mpi",)),
    "Python": ("provenance", ("python",)),
    "dlperf_hpc": ("provenance", ("tool", "tool_commit")),
}

# Of the variables that a log tells: launchers set these anew for each job, or another key tells it.
# Directories, of caches and pipes, are often a job's own.
_OF_A_JOB = re.compile(
    r"SLURM_|PMIX_|OMPI_|I_MPI_(HYDRA|MPIRUN)|DLPERF_|\w+VISIBLE_DEVICES|LOADEDMODULES|CONDA_"
    r"|\w+_(DIR|DIRECTORY)$|NCCL_DEBUG_FILE"
)
_NOT_SET = "not set"

Setup = Mapping[str, tuple[str, ...]]
"""By what it is, every value that some run had; what no log tells is not there. Of environment
variables (``OMP_NUM_THREADS=2``) there is '' besides, where a log tells its variables at all."""


@dataclass(frozen=True)
class Difference:
    """``what`` is :data:`HARDWARE`, ``hosts``, ``torch``, the name of an environment variable ...;
    the values of either side."""

    what: str
    a: tuple[str, ...]
    b: tuple[str, ...]


def setup_of(results: Iterable[RunResult]) -> Setup:
    """Of these runs together."""
    found: dict[str, set[str]] = {}
    for result in results:
        found.setdefault(HARDWARE, set()).update(device_names(result))
        for what, (table, keys) in _TOLD.items():
            facts = result.facts.get(table) if table else result.facts
            if isinstance(facts, Mapping):
                found.setdefault(what, set()).update(_values(facts, keys))
        found.setdefault(VARIABLES, set()).update(_variables(result.facts.get("provenance")))
    return {what: tuple(sorted(values)) for what, values in found.items() if values}


def _values(facts: Mapping[str, Any], keys: tuple[str, ...]) -> list[str]:
    first = facts.get(keys[0])
    if isinstance(first, (list, tuple)):
        return [str(each) for each in first]
    told = " ".join(str(facts[key]) for key in keys if facts.get(key) not in (None, ""))
    return [told] if told else []


def _variables(provenance: object) -> list[str]:
    told = provenance.get("env") if isinstance(provenance, Mapping) else None
    if not isinstance(told, Mapping):
        return []
    return ["", *(f"{key}={value}" for key, value in told.items() if not _OF_A_JOB.match(key))]


def together(setups: Iterable[Setup]) -> Setup:
    """Of several setups, every value that one of them has."""
    found: dict[str, set[str]] = {}
    for setup in setups:
        for what, values in setup.items():
            found.setdefault(what, set()).update(values)
    return {what: tuple(sorted(values)) for what, values in found.items()}


def differences(a: Setup, b: Setup) -> tuple[Difference, ...]:
    """In what two setups are known not to be alike: what one of them does not tell is no
    difference, and one accelerator by two names is none either."""
    found = []
    for what in (HARDWARE, *_TOLD):
        mine, theirs = a.get(what, ()), b.get(what, ())
        if not mine or not theirs or mine == theirs:
            continue
        if what == HARDWARE and chips(mine) == chips(theirs):
            continue
        found.append(Difference(what, mine, theirs))
    return (*found, *_other_variables(a.get(VARIABLES, ()), b.get(VARIABLES, ())))


def _other_variables(a: Iterable[str], b: Iterable[str]) -> Iterator[Difference]:
    """What variables are set to on either side; nothing if one side's logs tell none."""
    one, two = _assigned(a), _assigned(b)
    for name in sorted(one.keys() | two.keys()) if one and two else ():
        mine, theirs = (tuple(side.get(name, [_NOT_SET])) for side in (one, two))
        if mine != theirs:
            yield Difference(name, mine, theirs)


def _assigned(variables: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, _, value in (each.partition("=") for each in variables):
        found.setdefault(name, []).append(value)
    return found


def same_hardware(a: Setup, b: Setup) -> bool:
    """False if both tell their accelerators, or that they had none, and these are not the same."""
    mine, theirs = chips(a.get(HARDWARE, ())), chips(b.get(HARDWARE, ()))
    return not mine or not theirs or mine == theirs


def device_names(result: RunResult) -> list[str]:
    """The devices that a run's log names: ``cpu``, ``Tesla V100-SXM2-16GB``."""
    world, ranks = result.facts.get("world"), result.facts.get("ranks")
    tables = [world, *(ranks if isinstance(ranks, list) else [])]
    found = [table.get("device_name") for table in tables if isinstance(table, Mapping)]
    return [name for name in found if isinstance(name, str) and name]


def chips(names: Iterable[str]) -> frozenset[str]:
    """The chips of devices, so that names of one chip by two people are the same."""
    return frozenset(map(chip, names))


_WORD = re.compile(r"[a-z0-9.]+")
_CHIPS = frozenset(known.chip for known in ACCELERATORS)
_LONG = tuple(chip for chip in _CHIPS if " " in chip)


@functools.lru_cache(maxsize=256)
def chip(name: str) -> str:
    """``v100`` of ``8x V100-SXM2-16GB per node``, ``cpu``, or a name of an unknown device."""
    plain = name.lower()
    words = _WORD.findall(plain[:200])
    text = f" {' '.join(words)} "
    long = next((chip for chip in _LONG if f" {chip} " in text), None)
    return long or next((word for word in words if word in _CHIPS), plain)
