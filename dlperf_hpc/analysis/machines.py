"""What accelerators can do at most, and what runs were made on and with.

Peaks are dense, in TFLOPS, by name and precision, from the makers' data sheets, without structured
sparsity (a sheet that states only the sparse figure is halved). One is known by the whole of its
name, as NVML, torch or a person writes it: a slice of one (MIG, vGPU), a custom one (the A100 of
64 GB) or a variant that no sheet lists (V100 SXM3) has other peaks, and a wrong peak is worse than
none. MI250X is left out: its sheet counts as one what a program sees as two devices.

A comparison of two sweeps says that a case differs, not why: other hardware, other hosts and other
versions are reasons to look at first.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dlperf_hpc.model.result import RunResult
from dlperf_hpc.records.lines import NCCL
from dlperf_hpc.records.nccl import in_words

CEILING = 0.87
"""Share of the dense peak that even large products of matrices alone hardly pass.

Best shares measured: A100 271 of 312 TFLOPS (0.869), H100 794.5 of 989 (0.80), B200 1745 of 2250
(0.78): Bekman, *Machine Learning Engineering*, maximum achievable matmul FLOPS, bf16.
"""


@dataclass(frozen=True)
class Accelerator:
    """``tflops`` by precision; one that is not there is not known, or the accelerator lacks it.

    Its name begins with ``chip``, one word or several. ``words`` may stand behind it, and a size in
    GB (of ``sizes``, if there are any); one of ``needs`` must, if there are any.
    """

    name: str
    chip: str
    tflops: Mapping[str, float] = field(hash=False)
    words: frozenset[str] = frozenset()
    needs: frozenset[str] = frozenset()
    sizes: frozenset[int] = frozenset()


def _peaks(fp32: float | None, half: float, tf32: float | None = None, fp8: float | None = None,
           bf16: bool = True) -> Mapping[str, float]:  # fmt: skip
    """``half`` is the peak of fp16, and of bf16 where the accelerator computes in it."""
    known = {"fp32": fp32, "tf32": tf32, "fp16": half, "bf16": half if bf16 else None, "fp8": fp8}
    return {precision: value for precision, value in known.items() if value is not None}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PCIE, _PCIE_HBM2E = _words("pcie"), _words("pcie hbm2e")
_SXM2 = _words("sxm sxm2")
_SXM = _words("sxm sxm2 sxm4 sxm5 sxm6 hbm3 hbm3e")
_V100, _P100 = frozenset((16, 32)), frozenset((12, 16))
_HOPPER = _peaks(67.0, 989.0, tf32=494.5, fp8=1979.0)
_HOPPER_PCIE = _peaks(51.0, 756.5, tf32=378.0, fp8=1513.0)
_HOPPER_NVL = _peaks(60.0, 835.5, tf32=417.5, fp8=1670.5)
_CDNA3 = _peaks(163.4, 1307.4, tf32=653.7, fp8=2614.9)

ACCELERATORS: tuple[Accelerator, ...] = (
    # "NVIDIA Tesla P100" data sheet
    Accelerator("P100 PCIe", "p100", _peaks(9.3, 18.7, bf16=False), _PCIE, _PCIE, _P100),
    Accelerator("P100 SXM", "p100", _peaks(10.6, 21.2, bf16=False), _SXM2, sizes=_P100),
    # "NVIDIA V100 Tensor Core GPU" data sheet
    Accelerator("V100 PCIe", "v100", _peaks(14.0, 112.0, bf16=False), _PCIE, _PCIE, _V100),
    Accelerator("V100 SXM", "v100", _peaks(15.7, 125.0, bf16=False), _SXM2, sizes=_V100),
    Accelerator("V100S PCIe", "v100s", _peaks(16.4, 130.0, bf16=False), _PCIE, sizes=_V100),
    # "NVIDIA T4 Tensor Core GPU" data sheet
    Accelerator("T4", "t4", _peaks(8.1, 65.0, bf16=False)),
    # "NVIDIA A100 Tensor Core GPU" data sheet: PCIe and SXM alike
    Accelerator("A100", "a100", _peaks(19.5, 312.0, tf32=156.0), _words("sxm sxm4 pcie"),
         sizes=frozenset((40, 80))),
    # "NVIDIA A800" data sheet: an A100 with slower NVLink. Its 40 GB card for desks is another.
    Accelerator("A800", "a800", _peaks(19.5, 312.0, tf32=156.0), _words("sxm sxm4 pcie"),
         sizes=frozenset((80,))),
    # "NVIDIA A30", "A10", "A40", "L4", "L40" and "L40S" data sheets. The A10G is another card:
    # "NVIDIA A10G" data sheet for AWS, February 2022
    Accelerator("A30", "a30", _peaks(10.3, 165.0, tf32=82.0), _PCIE),
    Accelerator("A10", "a10", _peaks(31.2, 125.0, tf32=62.5), _PCIE),
    Accelerator("A10G", "a10g", _peaks(35.0, 70.0)),
    Accelerator("A40", "a40", _peaks(37.4, 149.7, tf32=74.8), _PCIE),
    Accelerator("L4", "l4", _peaks(30.3, 121.0, tf32=60.0, fp8=242.5), _PCIE),
    Accelerator("L40", "l40", _peaks(90.5, 181.0, tf32=90.5, fp8=362.0), _PCIE),
    Accelerator("L40S", "l40s", _peaks(91.6, 362.0, tf32=183.0, fp8=733.0), _PCIE),
    # "NVIDIA L20" data sheet
    Accelerator("L20", "l20", _peaks(59.8, 119.5, tf32=59.8, fp8=239.0), _PCIE),
    # "NVIDIA RTX A6000" data sheet and the GA102 whitepaper (the sheet's 309.7 TFLOPS are sparse)
    Accelerator("RTX A6000", "rtx a6000", _peaks(38.7, 154.8, tf32=77.4), sizes=frozenset((48,))),
    # "NVIDIA RTX 6000 Ada Generation" data sheet and the Ada whitepaper (the sheet's 1457 TFLOPS
    # are sparse fp8)
    Accelerator("RTX 6000 Ada", "rtx 6000 ada", _peaks(91.1, 364.2, tf32=182.1, fp8=728.5),
         _words("generation"), sizes=frozenset((48,))),
    # "NVIDIA RTX Blackwell PRO GPU Architecture" whitepaper: the Workstation Edition (600 W) alone.
    # Of the Server and the Max-Q Edition no sheet tells dense figures for each precision.
    Accelerator("RTX PRO 6000 Blackwell Workstation", "rtx pro 6000 blackwell",
         _peaks(125.0, 503.8, tf32=251.9, fp8=1007.6), _words("workstation edition"),
         _words("workstation"), frozenset((96,))),
    # "NVIDIA H100 Tensor Core GPU" and "NVIDIA H200 Tensor Core GPU" data sheets
    Accelerator("H100 PCIe", "h100", _HOPPER_PCIE, _PCIE_HBM2E, _PCIE_HBM2E, frozenset((80,))),
    Accelerator("H100 NVL", "h100", _HOPPER_NVL, _words("nvl hbm3"), _words("nvl")),
    Accelerator("H100 SXM", "h100", _HOPPER, _SXM, sizes=frozenset((80,))),
    Accelerator("H200 NVL", "h200", _HOPPER_NVL, _words("nvl hbm3e"), _words("nvl")),
    Accelerator("H200 SXM", "h200", _HOPPER, _SXM),
    # "NVIDIA H800" data sheet: an H100 with slower NVLink and fp64
    Accelerator("H800 PCIe", "h800", _HOPPER_PCIE, _PCIE, _PCIE, frozenset((80,))),
    Accelerator("H800 SXM", "h800", _HOPPER, _SXM, sizes=frozenset((80,))),
    # "NVIDIA H20" data sheet; its form with 141 GB (H20-3e) has a sheet of its own
    Accelerator("H20", "h20", _peaks(44.0, 148.0, tf32=74.0, fp8=296.0), _SXM,
         sizes=frozenset((96,))),
    # "NVIDIA GH200 Grace Hopper Superchip" data sheet
    Accelerator("GH200", "gh200", _HOPPER, _SXM),
    # "NVIDIA Blackwell" data sheet; of the B200's fp32 and tf32, and the GB200's fp32, NVIDIA's own
    # documents disagree (the GB200's tf32: "NVIDIA Blackwell Architecture Technical Brief")
    Accelerator("B200", "b200", _peaks(None, 2250.0, fp8=4500.0), _SXM),
    Accelerator("GB200", "gb200", _peaks(None, 2500.0, tf32=1250.0, fp8=5000.0)),
    # "NVIDIA Blackwell Ultra" data sheet, HGX B300 and GB300 NVL72; fp32 and tf32 as above
    Accelerator("B300", "b300", _peaks(None, 2250.0, fp8=4500.0), _SXM | _words("ac")),
    Accelerator("GB300", "gb300", _peaks(None, 2500.0, fp8=5000.0)),
    # "AMD Instinct MI300A", "MI300X", "MI325X" and "MI355X" data sheets; CDNA 4 has no TF32
    Accelerator("MI300A", "mi300a", _peaks(122.6, 980.6, tf32=490.3, fp8=1961.2)),
    Accelerator("MI355X", "mi355x", _peaks(157.3, 2516.6, fp8=5033.2), _words("oam")),
    # A virtual function of an MI300X (VF) is all of it: AMD's driver makes one of each.
    Accelerator("MI300X", "mi300x", _CDNA3, _words("oam vf")),
    Accelerator("MI325X", "mi325x", _CDNA3, _words("oam")),
)  # fmt: skip

_MAKERS = _words("nvidia tesla amd instinct gpu")
_WORD = re.compile(r"[a-z0-9.]+")
_SIZE = re.compile(r"([0-9]{1,4})gb?")
_PRECISIONS = {
    **{name: name for name in ("fp32", "tf32", "fp16", "bf16", "fp8")},
    **{"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"},
    # mixed precision without saying which: both halves have one peak wherever there are both
    **dict.fromkeys(("amp", "half", "mixed", "mixed_float16"), "fp16"),
    "mixed_bfloat16": "bf16",
}


@functools.lru_cache(maxsize=256)
def accelerator(device_name: str) -> Accelerator | None:
    """``NVIDIA H100 80GB HBM3``, ``Tesla V100-SXM2-16GB``, or in a person's words ``V100``, which
    is the fastest of that chip (SXM) then; None for any other."""
    words = [word for word in _WORD.findall(device_name[:200].lower()) if word not in _MAKERS]
    return next((known for known in ACCELERATORS if _is_named(known, words)), None)


def _is_named(known: Accelerator, words: Sequence[str]) -> bool:
    chip = known.chip.split()
    if [*words[: len(chip)]] != chip:
        return False
    behind = frozenset(words[len(chip) :])
    sizes = {word for word in behind if _SIZE.fullmatch(word)}
    if known.sizes and not {int(size.rstrip("gb")) for size in sizes} <= known.sizes:
        return False
    return behind - sizes <= known.words and (not known.needs or bool(known.needs & behind))


def peak(device_name: str, precision: str) -> float | None:
    """Dense peak in TFLOPS of one device; None of CPUs, and where device or precision is not known.

    ``fp32`` is without TF32, which is a precision of its own; ``amp`` counts as fp16.
    """
    known = accelerator(device_name)
    return None if known is None else known.tflops.get(_PRECISIONS.get(precision.lower(), ""))


HARDWARE = "hardware"
VARIABLES = "environment"

_STATED = ("framework_name", "framework_version", "drivers")
_TABLES = ("provenance", "world", "measure", NCCL)

# What two sides may differ in, and the facts that tell it; several are joined by a blank.
_ENVIRONMENT_DIFF: Mapping[str, tuple[str, ...]] = {
    "device memory, MiB": ("device_memory_mb",),
    "CPU": ("cpu",),
    "hosts": ("hosts",),
    "framework": ("framework_name", "framework_version"),
    "torch": ("torch",),
    "tensorflow": ("tensorflow",),
    "CUDA": ("cuda",),
    "cuDNN": ("cudnn",),
    "NCCL": ("nccl",),
    "NCCL within nodes": (f"{NCCL}.within",),
    "NCCL between nodes": (f"{NCCL}.between",),
    "driver": ("drivers",),
    "kernel": ("kernel",),
    "MPI": ("mpi",),
    "Python": ("python",),
    "dlperf_hpc": ("tool", "tool_commit"),
}
HARDWARE_KINDS = (
    *(HARDWARE, "device memory, MiB", "CPU", "NCCL within nodes", "NCCL between nodes"),
)
"""Of what two sides may differ in, the machine: a ratio across it is not that of the software."""
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
NOT_SET = "not set"
"""What is said of a variable that only other runs have."""

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
            found.update(_flat(facts, f"{NCCL}." if table == NCCL else ""))
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
        return list(map(str, first))
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
    sides = [(what, a.get(what, ()), b.get(what, ())) for what in (HARDWARE, *_ENVIRONMENT_DIFF)]
    for name, values in variables_of({"a": a, "b": b}).items():
        sides.append((name, values["a"], values["b"]))
    found = []
    for what, mine, theirs in sides:
        alike = mine == theirs or (what == HARDWARE and same_hardware(a, b))
        if mine and theirs and not alike:
            found.append(Difference(what, mine, theirs))
    return tuple(found)


def variables_of(setups: Mapping[str, Setup]) -> dict[str, dict[str, tuple[str, ...]]]:
    """The values of each environment variable that some setup has, by its name and the setup's:
    :data:`NOT_SET` where only others have it, none where a setup tells no variables at all."""
    known = {name: _assigned(setup.get(VARIABLES, ())) for name, setup in setups.items()}
    found = {}
    for variable in sorted(set().union(*known.values()) - {""}):
        values = {name: of.get(variable, [NOT_SET] * bool(of)) for name, of in known.items()}
        found[variable] = {name: tuple(each) for name, each in values.items()}
    return found


def _assigned(variables: Iterable[str]) -> dict[str, list[str]]:
    """The values of each variable of a :data:`Setup`, by its name; '' stands for all of them."""
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
