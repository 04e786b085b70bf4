"""What a number rests on: tool, machine, libraries and settings, as observed on the node."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dlperf_hpc import source
from dlperf_hpc.errors import printable
from dlperf_hpc.files import read_regular
from dlperf_hpc.sweepfile.declarations import BackendDeclaration
from dlperf_hpc.train.affinity import ranges
from dlperf_hpc.train.ranks import World, mpi_library

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
# Logs, records and archives are sent to others. A name that may mean a secret is never written, at
# the price of a few settings that hold these letters: FI_OPX_CREDITS, MPIR_CVAR_..._BYPASS.
_SECRET = re.compile("KEY|TOKEN|SECRET|PASS|PWD|CRED|AUTH|JWT|COOKIE|PRECONDITION", re.IGNORECASE)
_MOST_CHARACTERS = 4096
_MOST_BYTES = 2**16


def _cpu() -> str | None:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else None


def provenance(world: World | None = None) -> dict[str, Any]:
    """Of the node that rank 0 of ``world`` runs on; goes into the log. Without a world, of a
    process that has joined none."""
    # Not loaded for this: MPI is joined once, and whoever trains may do without.
    loaded = mpi_library() if "mpi4py.MPI" in sys.modules else None
    return {
        "tool": source.__version__,
        "tool_commit": source.commit(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "kernel": platform.release(),
        "libc": "-".join(platform.libc_ver()),
        "cpu": _cpu(),
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
    """The environment variables that change speed, each on one line of at most 4096 characters.

    A variable whose name may mean a secret (a key, a token, a password) is never among them.
    """
    return {
        name: printable(value)[:_MOST_CHARACTERS]
        for name, value in sorted(variables.items())
        if _TELLING.fullmatch(name) and not _SECRET.search(name)
    }


@functools.cache
def packages() -> dict[str, str]:
    """Every installed distribution with its version; goes into the record."""
    told = (each.metadata for each in importlib.metadata.distributions())  # parsed at each asking
    found = ((metadata["Name"], metadata["Version"]) for metadata in told)
    # What an interrupted installation left behind has no name.
    return dict(sorted((name, version) for name, version in found if name and version))


def framework_facts(backend: BackendDeclaration) -> dict[str, Any]:
    """Name and version of the framework that trains, once the back end has imported it.

    ``framework_version`` is the ``__version__`` of the module, None if it has none.
    """
    module = sys.modules.get((*backend.modules, backend.library)[0])
    return {
        "framework_name": backend.framework_name or backend.library,
        "framework_version": getattr(module, "__version__", None),
    }


def rank_facts(world: World) -> dict[str, Any]:
    """Of one rank: where it runs and on which CPUs."""
    cpus = sorted(os.sched_getaffinity(0))
    return {
        "rank": world.rank,
        "host": world.host,
        "local_rank": world.local_rank,
        "pid": os.getpid(),
        "cpus": ranges(cpus),
        "env_digest": environment_digest(),
    }


# What a launcher gives each rank for itself: it differs on every rank that is as it should be.
_OF_EACH_RANK = re.compile(
    r"PMIX?_\w+|OMPI_COMM_WORLD_\w+|OMPI_(?:MCA_ess|MCA_orte|UNIVERSE|ARGV|COMMAND|FILE)\w*"
    r"|MPIR?_LOCAL\w+|CUDA_VISIBLE_DEVICES|NVIDIA_VISIBLE_DEVICES|SLURM_CPU_BIND\w*"
    r"|SLURM_MEM_BIND\w*|HOROVOD_(?:LOCAL_|CROSS_)?(?:RANK|SIZE)|HOROVOD_HOSTNAME",
    re.ASCII,
)


def environment_digest(variables: Mapping[str, str] = os.environ) -> str:
    """A few letters that are the same on ranks whose settings that change speed are: those of
    :func:`telling`, without what a launcher gives each rank for itself."""
    kept = {k: v for k, v in telling(variables).items() if not _OF_EACH_RANK.fullmatch(k)}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:12]
