"""One node as a rank finds it: the rank's place, its Python, the modules in it, its CPUs and its
GPUs, which of them are whose, and how fast a rank computes by itself.

The table of the variables by which launchers tell a process its place is the only one: the worker,
the supervisor of a user's program, doctor's probe and the Timer read it. The names are those of
torchrun's, Open MPI's, MVAPICH's, MPICH's (Intel MPI's, Cray PALS'), Flux', IBM's jsrun's and
Slurm's documents (srun(1), "output environment variables").

GPUs are asked of NVML, else of nvidia-smi; where neither answers, only the environment tells them.
What a process sees of them depends on the site: all of its node's (CUDA_VISIBLE_DEVICES alike), its
own only (``--gpus-per-task``), those near its cores (``--gpu-bind=closest``), or all of them with
its own first (a rotated CUDA_VISIBLE_DEVICES). A number among those it sees means nothing to
another process; a UUID means the same to all.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import importlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable, NamedTuple

_IMPORT_LIMIT_S = 90.0
_MOST_REFUSALS = 8  # by name; NVML's words are short
_WORDS = 120
_NVLINKS = 18  # NVML_NVLINK_MAX_LINKS
_INFINIBAND = "/sys/class/infiniband/*/ports/*"
GPUS = ("nvidia[0-9]*", "kfd")
"""Files of GPUs in /dev: NVIDIA's, AMD's."""
NO_GPU = ("", "-1", "NoDevFiles")
"""Values of CUDA_VISIBLE_DEVICES that hide all GPUs; the last is Slurm's."""
_DEV = "/dev"
_FRAMEWORKS = ("torch", "tensorflow", "deepspeed", "horovod")

# In a process of its own: an import may end it, or never return. The working directory, "" in its
# path, stays there only for a checkout. MPI is loaded, which is what fails, but not started.
_IMPORT = """
import sys
if sys.argv[2] != "checkout":
    sys.path = [path for path in sys.path if path]
import importlib, importlib.metadata, json, time
name, begin, found = sys.argv[1], time.monotonic(), {}
if name == "mpi4py":
    import mpi4py
    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    from mpi4py import MPI
    found["library"] = " ".join(MPI.Get_library_version().strip(chr(0)).splitlines()[0].split())
module = importlib.import_module(name)
found["seconds"] = round(time.monotonic() - begin, 2)
found["version"] = getattr(module, "__version__", None)
if name == "torch":
    version = module.version
    builds = {"CUDA": version.cuda, "ROCm": version.hip, "XPU": getattr(version, "xpu", None)}
    found["build"] = next((f"{name} {each}" for name, each in builds.items() if each), "CPUs")
    found["devices"] = module.cuda.device_count()
if name == "tensorflow":
    found["devices"] = len(module.config.list_physical_devices("GPU"))
found["version"] = str(found["version"] or importlib.metadata.version(name))
print(json.dumps(found))
"""


class LauncherVariables(NamedTuple):
    """Variables: rank, processes, rank on this node, processes on this node; '' for none."""

    rank: str
    size: str
    local_rank: str = ""
    local_size: str = ""


TORCHRUN = LauncherVariables("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
"""torchrun starts users' programs and none of our own tasks: these do not read its variables, which
a user's shell or environment may have left."""

# A launcher inside another's task comes before it: mpiexec starts its processes below srun's,
# whose variables these inherit.
LAUNCHERS = (
    LauncherVariables("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                      "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    LauncherVariables("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE",
                      "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    LauncherVariables("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    LauncherVariables("PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"),
    LauncherVariables("PMIX_RANK", "PMIX_SIZE"),
    LauncherVariables("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID"),
    LauncherVariables("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK"),
    LauncherVariables("SLURM_PROCID", "SLURM_STEP_NUM_TASKS",
                      "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
)  # fmt: skip
_STEP_SIZE = "SLURM_STEP_NUM_TASKS"
_JOB_SIZE = "SLURM_NTASKS"  # of the whole job, of which a step may be a part
_NUMBER = re.compile(r"([0-9]{1,7})(?:\(x[0-9]{1,7}\))?", re.ASCII)  # 4(x2): 4 on each of 2 nodes


class Launched(NamedTuple):
    """What the launcher tells of this process; None: nothing. ``whole``: one launcher tells rank
    and size, and the other figures agree with it; else they may not belong together."""

    rank: int | None
    size: int | None
    local_rank: int | None
    local_size: int | None
    whole: bool


def launched(
    env: Mapping[str, str] = os.environ, launchers: Sequence[LauncherVariables] = LAUNCHERS
) -> Launched:
    """This process's place, whether or not its MPI library listens to the launcher."""
    places = [_place(env, each) for each in launchers]
    whole = next((place for place in places if place and place[0] < place[1]), None)
    if whole:
        launchers = [each for each, place in zip(launchers, places) if place == whole]
    rank, size, local_rank, local_size = zip(*launchers)
    return Launched(
        rank=_first(env, rank),
        size=_first(env, (*size, _JOB_SIZE)),
        local_rank=_first(env, local_rank),
        local_size=_first(env, local_size),
        whole=whole is not None,
    )


def counts(env: Mapping[str, str] = os.environ) -> dict[str, int]:
    """Every count of processes that some launcher tells, by the variable's name."""
    names = [name for each in (TORCHRUN, *LAUNCHERS) for name in (each.size, each.local_size)]
    if _number(env, _STEP_SIZE) is None:
        names.append(_JOB_SIZE)
    numbers = {name: _number(env, name) for name in names}
    return {name: number for name, number in numbers.items() if number is not None}


def _place(env: Mapping[str, str], launcher: LauncherVariables) -> tuple[int, int] | None:
    """Rank and number of processes; None unless the launcher tells both."""
    rank, size = _number(env, launcher.rank), _number(env, launcher.size)
    return None if rank is None or size is None else (rank, size)


def _first(env: Mapping[str, str], names: Iterable[str]) -> int | None:
    numbers = (_number(env, name) for name in names)
    return next((number for number in numbers if number is not None), None)


def _number(env: Mapping[str, str], name: str) -> int | None:
    found = _NUMBER.fullmatch(env.get(name, ""))
    return int(found[1]) if found else None


def initialised_mpi() -> Any:
    """mpi4py's module ``MPI``, whose import initialises MPI; ImportError or RuntimeError where it
    cannot. Where PMI carries addresses (``PMI_FD``), a new thread imports it: over UCX, MPICH sends
    4096 bytes from where an address begins, and Slurm's mpi/pmi2 cuts what is too long. Behind an
    address in the heap of a new thread there are zeros, which are short."""
    if "PMI_FD" not in os.environ:
        return importlib.import_module("mpi4py.MPI")
    with ThreadPoolExecutor(1) as new_thread:
        return new_thread.submit(importlib.import_module, "mpi4py.MPI").result()


def kernel_value(path: str, name: str) -> str:
    """What stands behind a name in a table of the kernel's, as ``/proc/meminfo`` is one; '' where
    the file, or the name, is not there."""
    with contextlib.suppress(OSError), open(path, errors="replace") as file:
        for line in file:
            found = re.match(rf"{name}(?:\s*:\s*|\s+)(.*)", line)
            if found:
                return found[1].strip()
    return ""


def cpus() -> list[int]:
    """CPUs that this process may run on."""
    return sorted(os.sched_getaffinity(0))


def imported(name: str, checkout: bool = False) -> dict[str, Any]:
    """``version`` and more of a module, or the ``error`` of importing it. In a ``checkout`` it is
    looked for in the working directory too."""
    argv = [sys.executable, "-c", _IMPORT, name, "checkout" * checkout]
    try:
        done = captured(argv, _IMPORT_LIMIT_S)
    except subprocess.TimeoutExpired:
        return {"error": f"not imported within {_IMPORT_LIMIT_S:g} s"}
    if done.returncode == 0:
        with contextlib.suppress(ValueError, IndexError):
            found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
            return found
    words = done.stderr.decode(errors="replace").strip().splitlines() or ["no word"]
    last = words[-1].strip()
    return {"error": last[:500] if done.returncode > 0 else f"signal {-done.returncode}: {last}"}


def captured(
    argv: list[str], limit_s: float, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """A process that has ended, with what it printed; TimeoutExpired where it takes longer."""
    nothing = subprocess.DEVNULL
    return subprocess.run(argv, stdin=nothing, capture_output=True, timeout=limit_s, env=env)


def installed() -> dict[str, str]:
    """Frameworks that are installed, by the record of their installation."""
    found = {}
    for name in _FRAMEWORKS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def cannot_compile() -> list[str]:
    """What torch.compile needs for a GPU and is not here: Triton, which makes its kernels, compiles
    C that includes Python's header."""
    header = os.path.join(sysconfig.get_path("include"), "Python.h")
    compilers = os.environ.get("CC"), shutil.which("gcc"), shutil.which("clang")
    there = {"a C compiler (gcc, clang, or CC)": any(compilers), header: os.path.exists(header)}
    return [name for name, found in there.items() if not found]


def device_file(patterns: Sequence[str] = GPUS) -> str:
    """A file in /dev by which this job may use an accelerator of its node; '' for none. Without one
    of its own a job may see those of others, but not open them."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all") in NO_GPU:
        return ""
    for path in (each for pattern in patterns for each in glob.glob(os.path.join(_DEV, pattern))):
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
            return path
    return ""


def gpus() -> dict[str, Any]:
    """GPUs as NVML, else nvidia-smi tells them; ``devices`` is None where neither does."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    facts: dict[str, Any] = {"visible": visible, "source": "NVML"}
    facts["devices"], why_not = nvml_gpus(visible)
    if why_not:
        facts.update(source=None, no_nvml=why_not)
        listed = _by_command()
        if listed is not None:
            facts.update(source="nvidia-smi", devices=_visible(listed, visible))
    return facts


def nvml_gpus(visible: str | None) -> tuple[list[dict[str, Any]] | None, str]:
    """The GPUs that ``visible`` (CUDA_VISIBLE_DEVICES) lets through, as NVML tells them; or None,
    and why NVML does not answer."""
    try:
        return _visible(_by_nvml(), visible), ""
    except Exception as error:  # noqa: BLE001 - no module, no driver, a version that lacks a call
        return None, f"{type(error).__name__}: {error}"[:200]


def ports() -> list[dict[str, Any]]:
    """InfiniBand and RoCE ports of this node that are up: ``name``, and ``gb_per_s``, the rate that
    the kernel tells (``400 Gb/sec (4X NDR)``) in bytes."""
    found = []
    for folder in sorted(glob.glob(_INFINIBAND)):
        texts = {"state": "", "rate": ""}
        for name in texts:
            with contextlib.suppress(OSError), open(os.path.join(folder, name)) as file:
                texts[name] = file.read(100)
        rate = re.match(r"\s*([0-9.]+) Gb/sec", texts["rate"])
        if rate and "ACTIVE" in texts["state"]:
            parts = folder.split(os.sep)
            found.append({"name": f"{parts[-3]}/{parts[-1]}", "gb_per_s": float(rate[1]) / 8})
    return found


@dataclass(frozen=True)
class Device:
    """A GPU as NVML knows it, and what it refused, by the name of the call, in NVML's words."""

    nvml: Any
    handle: Any
    refused: dict[str, str] = field(default_factory=dict)

    def ask(self, call: str, *arguments: Any) -> Any:
        """What NVML answers; None where the device, a virtual machine or the driver refuses, or
        this pynvml has no such call or constant. Constants are given by their names."""
        try:
            values = [getattr(self.nvml, a) if isinstance(a, str) else a for a in arguments]
            return getattr(self.nvml, call)(self.handle, *values)
        except (AttributeError, self.nvml.NVMLError) as error:
            if len(self.refused) < _MOST_REFUSALS:
                self.refused.setdefault(call, f"{error}"[:_WORDS])
            return None


def _by_nvml() -> list[dict[str, Any]]:
    import pynvml

    pynvml.nvmlInit()
    devices = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        ask = Device(pynvml, pynvml.nvmlDeviceGetHandleByIndex(index)).ask
        memory = ask("nvmlDeviceGetMemoryInfo")
        rows = ask("nvmlDeviceGetRemappedRows")
        most = range(ask("nvmlDeviceGetMaxMigDeviceCount") or 0)
        slices = filter(None, map(partial(ask, "nvmlDeviceGetMigDeviceHandleByIndex"), most))
        processes = ask("nvmlDeviceGetComputeRunningProcesses") or []
        devices.append(
            {
                "index": index,
                "uuid": text_of(ask("nvmlDeviceGetUUID")),
                "slices": [
                    text_of(Device(pynvml, each).ask("nvmlDeviceGetUUID")) for each in slices
                ],
                "name": text_of(ask("nvmlDeviceGetName")),
                "used_mib": memory.used >> 20 if memory else None,
                "celsius": ask("nvmlDeviceGetTemperature", 0),
                "throttle": ask("nvmlDeviceGetCurrentClocksThrottleReasons"),
                # NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC: since the last restart.
                "ecc": ask("nvmlDeviceGetTotalEccErrors", 1, 0),
                "remap": {"pending": bool(rows[2]), "failed": bool(rows[3])} if rows else None,
                "others": [process.pid for process in processes][:20],
                "nvlinks": sum(ask("nvmlDeviceGetNvLinkState", i) == 1 for i in range(_NVLINKS)),
            }
        )
    return devices


def text_of(value: Any) -> str:
    """A name as NVML gives it: bytes in older versions of pynvml."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _by_command() -> list[dict[str, Any]] | None:
    argv = ["nvidia-smi", "--query-gpu=index,uuid,name", "--format=csv,noheader"]
    try:
        done = captured(argv, 30)
        done.check_returncode()
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [line.split(", ") for line in done.stdout.decode(errors="replace").splitlines()]
    return [{"index": i, "uuid": row[1], "name": row[2]} for i, row in enumerate(rows) if row[2:]]


def _visible(devices: list[dict[str, Any]], visible: str | None) -> list[dict[str, Any]]:
    """Those that CUDA_VISIBLE_DEVICES lets through; as CUDA, up to the first that is not there. A
    slice (MIG) is its GPU by another UUID."""
    if visible is None:
        return devices
    chosen = []
    for word in (part.strip() for part in visible.split(",")):
        match = [device for device in devices if _names(word, device)]
        if not match:
            break
        chosen.append({**match[0], "uuid": word} if word.startswith("MIG-") else match[0])
    return chosen


def _names(word: str, device: dict[str, Any]) -> bool:
    """Whether a word of CUDA_VISIBLE_DEVICES names this device or a slice of it, whose older name
    has the UUID of the device in it."""
    if word.startswith("MIG-"):
        return word in device.get("slices", ()) or device["uuid"] in word
    return word == str(device["index"]) or (word != "" and device["uuid"].startswith(word))


def share_out(
    hosts: Sequence[str], seen: Sequence[Sequence[str]], count: int = 1
) -> list[list[int] | None]:
    """For each process which ``count`` of the GPUs it sees are its own, as indices into its list.

    ``seen[r]`` are the UUIDs that process r sees on ``hosts[r]``. No GPU is given twice. A process
    takes the first of its list that nobody has; where that leaves a later one without, earlier ones
    give way (augmenting paths of a bipartite matching). All processes that call this with the same
    lists get the same answer. None for a process that cannot have so many, whoever gives way."""
    visible = [[(host, uuid) for uuid in uuids] for host, uuids in zip(hosts, seen)]
    takers: dict[tuple[str, str], int] = {}  # of each GPU the slot that has it
    placed = [_take(slot, count, visible, takers, set()) for slot in range(count * len(hosts))]
    own: list[list[int] | None] = []
    for rank, mine in enumerate(visible):
        if all(placed[count * rank : count * (rank + 1)]):
            held = [i for i, gpu in enumerate(mine) if takers.get(gpu, -1) // count == rank]
            own.append(held[:count])
        else:
            own.append(None)
    return own


def _take(
    slot: int,
    count: int,
    visible: Sequence[Sequence[tuple[str, str]]],
    takers: dict[tuple[str, str], int],
    tried: set[tuple[str, str]],
) -> bool:
    """Whether a slot, of which each process has ``count``, gets a GPU of those that are visible to
    its process; whoever has it may give way."""
    mine = visible[slot // count]
    for gpu in mine:
        if gpu not in takers:
            takers[gpu] = slot
            return True
    for gpu in mine:
        if gpu not in tried:
            tried.add(gpu)
            if _take(takers[gpu], count, visible, takers, tried):
                takers[gpu] = slot
                return True
    return False


_ABOUT_S = 0.5  # of steps
_MOST_STEPS = 1000
_HOST_BYTES = 16 << 20
_PRODUCTS, _WIDTH = 10, 4096


def own_steps(comm: Any, gpu: int | None) -> dict[str, Any]:
    """``ms``, the mean time of steps of fixed work, after a barrier of all ranks: products of
    matrices on the device ``gpu``, else SHA-256 of a buffer on the CPU. The mean, not the median: a
    device that is throttled now and then is as slow as its mean."""
    buffer = bytes(_HOST_BYTES)
    what = "SHA-256"
    step: Callable[[], object] = lambda: hashlib.sha256(buffer).digest()  # noqa: E731
    if gpu is not None:
        what, step = "matrix products", _products(gpu)
    step()
    begin = time.perf_counter()
    step()
    estimate = time.perf_counter() - begin
    count = max(2, min(_MOST_STEPS, int(_ABOUT_S / max(estimate, 1e-6))))
    comm.Barrier()
    begin = time.perf_counter()
    for _ in range(count):
        step()
    return {"what": what, "steps": count, "ms": 1e3 * (time.perf_counter() - begin) / count}


def _products(gpu: int) -> Callable[[], object]:
    import torch

    device = torch.device("cuda", gpu)
    torch.cuda.set_device(device)
    matrix = torch.ones(_WIDTH, _WIDTH, device=device) / _WIDTH

    def step() -> None:
        for _ in range(_PRODUCTS):
            torch.matmul(matrix, matrix)
        torch.cuda.synchronize(device)

    return step
