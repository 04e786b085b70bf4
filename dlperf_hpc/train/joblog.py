"""What a run writes into its log: what its number rests on (tool, machine, libraries and settings,
as observed on the node), the world it ran in, which way NCCL talked, and the window it timed."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dlperf_hpc import source
from dlperf_hpc.errors import SECRET_NAME, printable
from dlperf_hpc.files import append_line, open_regular, read_regular
from dlperf_hpc.model.case import Case, Measure
from dlperf_hpc.model.result import AllReduces, Checkpoint, Status, Window, interruption
from dlperf_hpc.records.layout import LAUNCH_MARK, launch_id
from dlperf_hpc.records.lines import PROBE, utc, write_line
from dlperf_hpc.records.nccl import Connections
from dlperf_hpc.records.store import AnyAttempt, Attempt, finish, log_event
from dlperf_hpc.sweepfile.declarations import BackendDeclaration
from dlperf_hpc.train import measurement
from dlperf_hpc.train.measurement import Communication, MeasuredWindow, RankTimes
from dlperf_hpc.train.probe.node import kernel_value, ports
from dlperf_hpc.train.ranks import World, mpi_library
from dlperf_hpc.train.telemetry import ranges

# Settings that change speed. Anything else in the environment stays private.
_FAMILIES = (
    *("NCCL", "GLOO", "OMP", "KMP", "MKL", "UCX", "FI", "MPICH", "MPIR", "I_MPI", "OMPI", "PMIX"),
    *("CUDA", "NVIDIA", "TORCH", "PYTORCH", "TORCHINDUCTOR", "PYTORCHINDUCTOR", "XLA"),
    *("TF_XLA", "TF_GPU", "TF_ENABLE", "TF_FORCE", "TF_NUM"),
    *("HOROVOD", "CUBLAS", "CUBLASLT", "CUDNN", "TRITON", "TORCHDYNAMO", "NVTE", "SHARP", "MLX5"),
    *("NVSHMEM", "RDMAV", "IBV", "PSM2", "OPAL"),
    *("MALLOC", "TCMALLOC", "MIMALLOC"),  # glibc's and jemalloc's, and others': a CPU's speed
)
_TELLING = re.compile(
    rf"(?:{'|'.join(_FAMILIES)})_\w+"
    r"|SLURM_(JOB_ID|ARRAY_JOB_ID|ARRAY_TASK_ID|JOB_PARTITION|JOB_NODELIST|CLUSTER_NAME"
    r"|RESTART_COUNT|CPUS_PER_TASK|JOB_GPUS|CPU_BIND|CPU_BIND_TYPE|CPU_BIND_LIST|GPU_BIND"
    r"|GPUS_ON_NODE|MEM_BIND|MEM_BIND_TYPE|DISTRIBUTION)|LD_PRELOAD|LOADEDMODULES"
    r"|CONDA_DEFAULT_ENV|DLPERF_MPI|GLIBC_TUNABLES",
    re.ASCII,  # as the keys of a log line are
)
# What a launcher gives each rank for itself: it differs on every rank that is as it should be.
_OF_EACH_RANK = re.compile(
    r"PMIX?_\w+|OMPI_COMM_WORLD_\w+|OMPI_(?:MCA_ess|MCA_orte|UNIVERSE|ARGV|COMMAND|FILE)\w*"
    r"|MPIR?_LOCAL\w+|CUDA_VISIBLE_DEVICES|NVIDIA_VISIBLE_DEVICES|SLURM_CPU_BIND\w*"
    r"|SLURM_MEM_BIND\w*|HOROVOD_(?:LOCAL_|CROSS_)?(?:RANK|SIZE)|HOROVOD_HOSTNAME",
    re.ASCII,
)
_MOST_CHARACTERS = 4096
_MOST_BYTES = 2**16
_TALKATIVE = {"INFO", "TRACE"}  # values of NCCL_DEBUG
_MOST_OUTPUT = 1 << 26  # bytes
_MOST_ITERATION_LINES = 200
_OF_ONE_RANK = (
    *("rank", "host", "local_rank", "pid", "cpus", "device", "device_uuid"),
    *("cpus_numa", "memory_numa", "gpu_pci", "gpu_cpus", "gpu_numa", "bound"),
)


def provenance(world: World | None = None) -> dict[str, Any]:
    """Facts of the node that rank 0 of ``world`` runs on, or of a process without a world."""
    # Not loaded for this: MPI is joined once, and whoever trains may do without.
    loaded = mpi_library() if "mpi4py.MPI" in sys.modules else None
    return {
        "tool": source.__version__,
        "tool_commit": source.commit(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "kernel": platform.release(),
        "libc": "-".join(platform.libc_ver()),
        "cpu": kernel_value("/proc/cpuinfo", "model name") or None,
        "cpus": os.cpu_count(),
        "mpi": (world and world.without_mpi) or loaded,
        "env": telling(os.environ),
        "nccl_conf": nccl_files(),
    }


def nccl_files(
    system: Path = Path("/etc/nccl.conf"), environment: Mapping[str, str] = os.environ
) -> dict[str, str] | None:
    """What NCCL reads beside its variables, chosen as these are: ``NAME=value`` lines of the
    system's file and of the user's (``NCCL_CONF_FILE``, else ``~/.nccl.conf``), which goes before
    it. None where neither says anything."""
    own = environment.get("NCCL_CONF_FILE") or os.path.join(
        environment.get("HOME") or os.path.expanduser("~"), ".nccl.conf"
    )
    found: dict[str, str] = {}
    for path in (system, Path(own)):
        with contextlib.suppress(OSError):  # mostly there is none
            text = read_regular(path, _MOST_BYTES).decode(errors="replace")
            pairs = (line.partition("=") for line in text.splitlines())
            found.update((name.strip(), value.strip()) for name, equals, value in pairs if equals)
    return telling(found) or None


def telling(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that change speed, each on one line of at most 4096 characters. A
    variable whose name may mean a secret (a key, a token, a password) is never among them."""
    return {
        name: printable(value)[:_MOST_CHARACTERS]
        for name, value in sorted(variables.items())
        if _TELLING.fullmatch(name) and not SECRET_NAME.search(name)
    }


@functools.cache
def packages() -> dict[str, str]:
    """Every installed distribution with its version; goes into the record."""
    metadata = (each.metadata for each in importlib.metadata.distributions())  # parsed each time
    found = ((each["Name"], each["Version"]) for each in metadata)
    # What an interrupted installation left behind has no name.
    return dict(sorted((name, version) for name, version in found if name and version))


def framework_facts(backend: BackendDeclaration) -> dict[str, Any]:
    """Name and ``__version__`` of the framework that trains, once the back end has imported it."""
    module = sys.modules.get((*backend.modules, backend.library)[0])
    return {
        "framework_name": backend.framework_name or backend.library,
        "framework_version": getattr(module, "__version__", None),
    }


def rank_facts(world: World) -> dict[str, Any]:
    """Where one rank runs and on which CPUs."""
    return {
        "rank": world.rank,
        "host": world.host,
        "local_rank": world.local_rank,
        "pid": os.getpid(),
        "cpus": ranges(os.sched_getaffinity(0)),
        "env_digest": environment_digest(),
    }


def environment_digest(variables: Mapping[str, str] = os.environ) -> str:
    """Letters that are the same on ranks whose settings, but for the launcher's own, are."""
    kept = {k: v for k, v in telling(variables).items() if not _OF_EACH_RANK.fullmatch(k)}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:12]


def flush_nccl() -> None:
    """Let out what C's library still holds back of NCCL's lines: into a pipe it writes by blocks.
    Call it before the window, which then has nothing to do with them."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).fflush(None)


def nccl_transports(
    world: World, output: Path, environment: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    """Which way NCCL talked by all ranks' lines (``NCCL_DEBUG=INFO``), on all ranks: the fields of
    :class:`.Connections`, and the ``ports`` of rank 0's node that are up. Empty without such lines.
    Each rank reads its own ``NCCL_DEBUG_FILE``; without one rank 0 reads the job's ``output``."""
    settings = {**(nccl_files(environment=environment) or {}), **environment}
    mine = Connections()
    if settings.get("NCCL_DEBUG", "").upper() in _TALKATIVE:
        own = settings.get("NCCL_DEBUG_FILE")
        if own:
            mine.read(_nccl_lines(Path(own_debug_file(own))))
        elif world.rank == 0:
            mine.read(_nccl_lines(output))
    whole = Connections()
    for each in world.gather(mine):
        whole.add(each)
    found = whole.facts()
    if not found:
        return {}
    return {**found, "ports": world.broadcast([str(port["name"]) for port in ports()])}


def own_debug_file(pattern: str) -> str:
    """The file that NCCL makes of ``NCCL_DEBUG_FILE``: ``%h`` is the host, ``%p`` the process."""
    host = re.sub("[%/]", "-", socket.gethostname().partition(".")[0])
    known = {"%%": "%", "%h": host, "%p": str(os.getpid())}
    return re.sub("%.", lambda match: known.get(match[0], match[0]), pattern)


def _nccl_lines(path: Path) -> str:
    """A file's whole lines, in the job's output those of this launch; none of one that is not to be
    read. Of a very long one the end: what an earlier launch printed is not this one's."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _MOST_OUTPUT))
            data = file.read(_MOST_OUTPUT)
    except OSError:
        return ""
    mark = f"{LAUNCH_MARK} {launch_id()}\n".encode()
    return data.rpartition(mark)[2].rpartition(b"\n")[0].decode(errors="replace")


@dataclass(frozen=True)
class Measured:
    """What a run's record is made of: the ranks' ``windows``, in order; ``facts`` as they are."""

    measure: Measure
    windows: Sequence[MeasuredWindow]
    communication: Communication
    facts: Mapping[str, Any] = field(default_factory=dict)
    allreduces: AllReduces | None = None

    def window(self, case: Case) -> Window:
        """The window over all ranks."""
        window = measurement.summarise(self.windows, case, self.measure)
        return replace(window, exposed_comm=self.communication.exposed)


def log_world(attempt: AnyAttempt, world: World, all_facts: list[dict[str, Any]]) -> None:
    """Provenance of rank 0's node, what all ranks share, and a line for each rank."""
    log_event(attempt, "provenance", provenance(world))
    shared = {key: value for key, value in all_facts[0].items() if key not in _OF_ONE_RANK}
    size = {"ranks": world.size, "nodes": len(world.nodes), "hosts": world.nodes}
    left_out = set(shared)
    if any(facts.get(key) != value for facts in all_facts for key, value in shared.items()):
        shared["ranks_differ"], left_out = True, set()
    log_event(attempt, "world", {**size, **shared})
    for facts in all_facts:
        own = {key: value for key, value in facts.items() if key not in left_out}
        log_event(attempt, "rank", own)


def log_iterations(
    attempt: AnyAttempt, windows: Sequence[RankTimes], losses: Sequence[float | None], warmup: int
) -> None:
    """The window's iterations, counted from 1 with the warm-up, stamped when they ended."""
    times, opened = measurement.iteration_times(windows), max(each.opened for each in windows)
    every = -(-len(times) // _MOST_ITERATION_LINES)
    lines = [write_line("window_open", {"iteration": warmup}, utc(opened))]
    elapsed = 0.0
    for i, (seconds, loss) in enumerate(zip(times, losses), 1):
        elapsed += seconds
        if i % every == 0 or i == len(times):
            values = {"n": warmup + i, "loss": loss, "ms": round(1e3 * seconds, 3)}
            lines.append(write_line("iteration", values, utc(opened + elapsed)))
    append_line(attempt.paths.log, "\n".join(lines))


def log_summary(attempt: AnyAttempt, window: Window, nulls: bool = False) -> None:
    """The window over all ranks; with ``nulls`` also what is not known of it."""
    rate = {"samples_per_s": round(window.samples_per_s, 3), "rank_spread": window.rank_spread}
    log_event(attempt, "summary", {**asdict(window), **rate}, nulls=nulls)


def log_window(attempt: Attempt, measured: Measured) -> None:
    """Iterations, communication and summary into the log. The run has not ended by that."""
    window, found = measured.window(attempt.run.case), measured.communication
    losses = measurement.mean_losses(measured.windows)
    log_iterations(attempt, measured.windows, losses, measured.measure.warmup)
    medians = {key: value for key, value in asdict(found).items() if value not in ("", ())}
    if found.rank_ms and window.optimizer_steps:
        waits = (each.data_wait_s or 0.0 for each in measured.windows)
        medians["rank_wait_ms"] = [round(1e3 * s / window.optimizer_steps, 3) for s in waits]
    log_event(attempt, "communication", medians if found.steps else {"reason": found.reason})
    log_summary(attempt, window)


def log_all_reduces(attempt: Attempt, found: AllReduces | None, reason: str) -> None:
    """What all-reduces took, rates rounded for people, and why something is missing."""
    fields: dict[str, Any] = {"reason": reason or None}
    if found is not None:
        fields.update(asdict(found))
        for name in ("algorithm_gb_s", "bus_gb_s"):
            fields[name] = [round(rate, 6) for rate in getattr(found, name)]
    log_event(attempt, PROBE, fields)


def log_checkpoint(attempt: Attempt, checkpoint: Checkpoint | None, reason: str) -> None:
    """What saving and loading took, rates rounded for people, and why something is missing."""
    fields: dict[str, Any] = {"reason": reason or None}
    if checkpoint is not None:
        fields.update(asdict(checkpoint))
        for name in ("mb_per_rank", "save_mb_s", "load_mb_s"):
            value = getattr(checkpoint, name)
            fields[name] = value and round(value, 3)
    log_event(attempt, "checkpoint", fields)


def end_ok(attempt: Attempt, measured: Measured, checkpoint: Checkpoint | None = None) -> None:
    """The record of a run whose window is in the log; it ends the run ok, or partial if a rank
    stood still in the window. Whoever is first does."""
    window = measured.window(attempt.run.case)
    detail = {
        **measured.facts,
        "window": asdict(window),
        "detail": {
            **measurement.detail(measured.windows, measurement.mean_losses(measured.windows)),
            "rank_compute_ms": list(measured.communication.rank_ms),
            **measurement.state_bytes(measured.windows),
        },
        "packages": packages(),
        "window_opened": utc(max(w.opened for w in measured.windows)),
    }
    if measured.allreduces:
        detail[PROBE] = asdict(measured.allreduces)
    if checkpoint:
        detail["checkpoint"] = asdict(checkpoint)
    why = interruption(window.interrupted_s)
    finish(attempt, Status.PARTIAL if why else Status.OK, why, detail=detail)


def log_gpus(attempt: Attempt, states: Sequence[dict[str, dict[str, Any]]]) -> None:
    """Each rank's GPU before, during and after the window; nothing where there is no NVML."""
    for rank, account in enumerate(states):
        for when, state in account.items():
            if state:
                log_event(attempt, "gpu", {"rank": rank, "when": when, **state})
