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
from dlperf_hpc.model.result import RunResult
from dlperf_hpc.records.nccl import EVENT, in_words

HARDWARE = "hardware"
VARIABLES = "environment"

_STATED = ("framework_name", "framework_version", "drivers")
_TABLES = ("provenance", "world", "measure", EVENT)

# What two sides may differ in, and the facts that tell it; several are joined by a blank.
_ENVIRONMENT_DIFF: Mapping[str, tuple[str, ...]] = {
    "CPU": ("cpu",),
    "hosts": ("hosts",),
    "framework": ("framework_name", "framework_version"),
    "torch": ("torch",),
    "tensorflow": ("tensorflow",),
    "CUDA": ("cuda",),
    "cuDNN": ("cudnn",),
    "NCCL": ("nccl",),
    "NCCL within nodes": (f"{EVENT}.within",),
    "NCCL between nodes": (f"{EVENT}.between",),
    "driver": ("drivers",),
    "kernel": ("kernel",),
    "MPI": ("mpi",),
    "Python": ("python",),
    "dlperf_hpc": ("tool", "tool_commit"),
}
# What a reader must know of the machine, and the fact that tells it.
_MACHINE: Mapping[str, str] = {
    "Device": "device_name",
    "CPU": "cpu",
    "Framework": "",
    "CUDA": "cuda",
    "NCCL": "nccl",
    "Transport": "",
    "MPI": "mpi",
    "Tool": "tool_commit",
}
# Where logs without a framework_name tell the version: each under the library's own key.
_LIBRARIES = {"torch": "PyTorch", "tensorflow": "TensorFlow"}

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


def facts_of(result: RunResult) -> dict[str, Any]:
    """Every fact of machine, software and settings that a run's log tells, by its name (``cpu``,
    ``env.OMP_NUM_THREADS``, ``nccl.within``)."""
    found = {name: result.facts[name] for name in _STATED if name in result.facts}
    for table in _TABLES:
        facts = result.facts.get(table)
        if isinstance(facts, Mapping):
            found.update(_flat(facts, f"{EVENT}." if table == EVENT else ""))
    return found


def _flat(facts: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    for name, value in facts.items():
        if isinstance(value, Mapping) and not above:
            yield from _flat(value, f"{name}.")
        else:
            yield f"{above}{name}", value


def machine_of(result: RunResult) -> dict[str, str]:
    """Hardware and software of one run by what they are (``CPU``); '' where its log tells none."""
    facts = facts_of(result)
    machine = {what: str(facts.get(name, "")) for what, name in _MACHINE.items()}
    return {**machine, "Framework": _framework(facts), "Transport": in_words(result.facts)}


def _framework(facts: Mapping[str, Any]) -> str:
    """``PyTorch 2.13.0``: the framework of a run with its version; '' where its log has neither."""
    name, version = facts.get("framework_name"), facts.get("framework_version")
    if name:
        return f"{name} {version}" if version else str(name)
    return " ".join(f"{called} {facts[key]}" for key, called in _LIBRARIES.items() if key in facts)


def setup_of(results: Iterable[RunResult]) -> Setup:
    """The setup of these runs together."""
    return together(map(_setup, results))


def _setup(result: RunResult) -> dict[str, list[str]]:
    facts = facts_of(result)
    found = {what: _values(facts, names) for what, names in _ENVIRONMENT_DIFF.items()}
    variables = _variables(result.facts.get("provenance"))
    return {HARDWARE: device_names(result), **found, VARIABLES: variables}


def _values(facts: Mapping[str, Any], keys: tuple[str, ...]) -> list[str]:
    first = facts.get(keys[0])
    if isinstance(first, (list, tuple)):
        return [str(each) for each in first]
    text = " ".join(str(facts[key]) for key in keys if facts.get(key) not in (None, ""))
    return [text] if text else []


def _variables(provenance: object) -> list[str]:
    variables = provenance.get("env") if isinstance(provenance, Mapping) else None
    if not isinstance(variables, Mapping):
        return []
    return ["", *(f"{key}={value}" for key, value in variables.items() if not _OF_A_JOB.match(key))]


def together(setups: Iterable[Mapping[str, Iterable[str]]]) -> Setup:
    """Several setups as one: every value that one of them has."""
    found: dict[str, set[str]] = {}
    for setup in setups:
        for what, values in setup.items():
            found.setdefault(what, set()).update(values)
    return {what: tuple(sorted(values)) for what, values in found.items() if values}


def differences(a: Setup, b: Setup) -> tuple[Difference, ...]:
    """In what two setups are known not to be alike: what one of them does not tell is no
    difference, and one accelerator by two names is none either."""
    found = []
    for what in (HARDWARE, *_ENVIRONMENT_DIFF):
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
