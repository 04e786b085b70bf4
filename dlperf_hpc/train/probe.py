"""One rank of the short job that ``doctor`` runs: what this node, this Python and this MPI are like.

``python -u probe.py <directory> --name N --token T ...``, a copy that the login node has put there:
run as a file it has something to say even where nothing of ours is installed. Standard library
and mpi4py; torch only where there are GPUs to be joined.

It speaks in parts, each as soon as it is known, for what comes next may end the process:
``node`` (the machine and the Python), ``world`` (MPI), ``comm`` (what ranks do together).
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import importlib.metadata
import json
import os
import platform
import socket
import subprocess
import sys
import threading
import time
from array import array
from typing import Any, Callable, Optional

MARK = "dlperf-probe"
# Slurm cuts labelled lines at 1024 bytes, and writes of up to 4096 to a pipe do not mix.
_PIECE = 800
_PINGS = 3
_SLOW_S = 5.0  # a round trip that took longer is not repeated
_POLL_S = 0.01
_BYTES = 16 << 20  # of the all-reduce on host buffers
_GPU_BYTES = 256 << 20
_MOST_REPETITIONS = 20
_ABOUT_S = 0.5  # of repetitions
_IMPORT_LIMIT_S = 120.0
_RANKS = ("SLURM_PROCID", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")
_LOCAL = ("SLURM_LOCALID", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK")
_SIZES = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_SIZE")
_FRAMEWORKS = ("torch", "tensorflow", "deepspeed", "horovod")

# In a process of its own: an import may end it, or never return. The first entry of its path is
# the working directory, as for `python -m`. MPI is loaded, which is what fails, but not started.
_IMPORT = """
import importlib, importlib.metadata, json, sys, time
name, begin, found = sys.argv[1], time.monotonic(), {}
if name == "mpi4py":
    import mpi4py
    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    from mpi4py import MPI
    found["library"] = MPI.Get_library_version().strip(chr(0)).splitlines()[0].strip()
module = importlib.import_module(name)
found["seconds"] = round(time.monotonic() - begin, 2)
found["version"] = getattr(module, "__version__", None)
if name == "torch":
    found["cuda"] = module.version.cuda or module.version.hip
    found["devices"] = module.cuda.device_count()
if name == "tensorflow":
    found["devices"] = len(module.config.list_physical_devices("GPU"))
found["version"] = str(found["version"] or importlib.metadata.version(name))
print(json.dumps(found))
"""


def _number(names: tuple[str, ...]) -> Optional[int]:
    for name in names:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return None


class Reporter:
    """Says what is found, part by part; after ``limit_s`` it says in which it is stuck, and ends
    the process."""

    def __init__(self, rank: int, limit_s: float) -> None:
        self.rank = rank
        self.phase = "start"
        timer = threading.Timer(limit_s, self._give_up, [limit_s])
        timer.daemon = True
        timer.start()

    def say(self, part: str, facts: dict[str, Any]) -> None:
        """Print a part as lines that survive labels, cuts and other ranks' lines between them."""
        text = json.dumps(facts)
        pieces = [text[i : i + _PIECE] for i in range(0, len(text), _PIECE)]
        for i, piece in enumerate(pieces, 1):
            line = f"{MARK} {self.rank} {part} {i}/{len(pieces)} {piece}\n"
            os.write(1, line.encode("ascii"))

    def _give_up(self, limit_s: float) -> None:
        self.say("stuck", {"phase": self.phase, "seconds": limit_s})
        os._exit(1)


def cpus() -> list[int]:
    """CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def imported(name: str) -> dict[str, Any]:
    """``version`` and more of a module, or the ``error`` of importing it."""
    argv = [sys.executable, "-c", _IMPORT, name]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_IMPORT_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not imported within {_IMPORT_LIMIT_S:g} s"}
    if done.returncode == 0:
        with contextlib.suppress(ValueError, IndexError):
            found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
            return found
    words = done.stderr.decode(errors="replace").strip().splitlines()
    last = words[-1].strip() if words else "no word"
    return {"error": last[:500] if done.returncode > 0 else f"signal {-done.returncode}: {last}"}


def installed() -> dict[str, str]:
    """Frameworks that are installed, by the record of their installation."""
    found = {}
    for name in _FRAMEWORKS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def gpus() -> dict[str, Any]:
    """GPUs of this node as NVML, else nvidia-smi, else only the environment tells them.

    ``devices`` is None where nothing but the environment says there are any.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    facts: dict[str, Any] = {"visible": visible, "source": None, "devices": None}
    try:
        facts.update(source="NVML", devices=_shown(_by_nvml(), visible))
    except Exception as error:  # noqa: BLE001 - no module, no driver, a version that lacks a call
        facts["no_nvml"] = f"{type(error).__name__}: {error}"[:200]
        listed = _by_command()
        if listed is not None:
            facts.update(source="nvidia-smi", devices=_shown(listed, visible))
    return facts


def _by_nvml() -> list[dict[str, Any]]:
    import pynvml

    pynvml.nvmlInit()
    devices = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)

        def ask(name: str, *arguments: Any, handle: Any = handle) -> Any:
            # Cards and drivers differ in what they answer; what is not told is left out.
            try:
                return getattr(pynvml, name)(handle, *arguments)
            except (AttributeError, pynvml.NVMLError):
                return None

        memory = ask("nvmlDeviceGetMemoryInfo")
        rows = ask("nvmlDeviceGetRemappedRows")
        processes = ask("nvmlDeviceGetComputeRunningProcesses") or []
        devices.append(
            {
                "index": index,
                "uuid": _text(ask("nvmlDeviceGetUUID")),
                "name": _text(ask("nvmlDeviceGetName")),
                "used_mib": memory.used >> 20 if memory else None,
                "celsius": ask("nvmlDeviceGetTemperature", 0),
                "throttle": ask("nvmlDeviceGetCurrentClocksThrottleReasons"),
                # NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC: since the last restart.
                "ecc": ask("nvmlDeviceGetTotalEccErrors", 1, 0),
                "remap": {"pending": bool(rows[2]), "failed": bool(rows[3])} if rows else None,
                "others": [process.pid for process in processes][:20],
            }
        )
    return devices


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _by_command() -> Optional[list[dict[str, Any]]]:
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=index,uuid,name", "--format=csv,noheader"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [line.split(", ") for line in done.stdout.decode(errors="replace").splitlines()]
    return [{"index": i, "uuid": row[1], "name": row[2]} for i, row in enumerate(rows) if row[2:]]


def _shown(devices: list[dict[str, Any]], visible: Optional[str]) -> list[dict[str, Any]]:
    """Those that CUDA_VISIBLE_DEVICES lets through, by number or UUID; as CUDA, up to the first
    that is not there."""
    if visible is None:
        return devices
    shown = []
    for word in (part.strip() for part in visible.split(",")):
        match = [d for d in devices if word == str(d["index"]) or (word and word in d["uuid"])]
        if not match:
            break
        shown.append(match[0])
    return shown


def exchange(directory: str, name: str, token: str, patience_s: float) -> dict[str, Any]:
    """What the log directory is like from here, and what this clock is against the other side's.

    The login node's token is read; then files are written for it, each of which it answers with
    its own time. Of each round trip the middle is set against the answer, as NTP does: ``offset_s``
    (this clock ahead) is right within ``within_s``.
    """
    facts: dict[str, Any] = {}
    begin = time.monotonic()
    try:
        found = _awaited(os.path.join(directory, "token"), patience_s)
    except OSError as error:
        return {"unread": error.strerror}
    if found is None or found.strip() != token:
        return {"unread": f"the login node's file does not show within {patience_s:g} s"}
    facts["read_s"] = time.monotonic() - begin
    for number in range(_PINGS):
        sent, since = time.time(), time.monotonic()
        try:
            _write(os.path.join(directory, f"ping-{name}-{number}"), repr(sent))
            answer = _awaited(os.path.join(directory, f"pong-{name}-{number}"), patience_s)
        except OSError as error:
            return {**facts, "unwritten": error.strerror}
        took = time.monotonic() - since
        if answer is None:
            facts.setdefault("unanswered", f"no answer within {patience_s:g} s")
            break
        if took / 2 < facts.get("within_s", float("inf")):
            facts["within_s"] = took / 2
            facts["offset_s"] = sent + took / 2 - float(answer)
        facts.setdefault("round_trip_s", took)
        if took > _SLOW_S:
            break
    return facts


def _write(path: str, text: str) -> None:
    """Whole or not at all; the other side looks at names."""
    with open(path + ".tmp", "w") as file:
        file.write(text)
    os.replace(path + ".tmp", path)


def _awaited(path: str, patience_s: float) -> Optional[str]:
    """A file's text once it is there; None if it does not come."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            with open(path) as file:
                return file.read()
        except FileNotFoundError:
            if time.monotonic() > deadline:
                return None
        time.sleep(_POLL_S)


def node_facts(arguments: argparse.Namespace, report: Reporter) -> dict[str, Any]:
    """This process and its Python; of a node's first rank also the node."""
    local = _number(_LOCAL)
    facts: dict[str, Any] = {
        "host": socket.gethostname(),
        "local_rank": local,
        "told": _number(_SIZES),
        "python": platform.python_version(),
        "executable": sys.executable,
        "cpus": cpus(),
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "omp": os.environ.get("OMP_NUM_THREADS"),
    }
    if local:
        return facts
    report.phase = "log directory"
    name = f"{report.rank}"
    facts["exchange"] = exchange(
        arguments.directory, name, arguments.token, arguments.patience
    )
    report.phase = "GPUs"
    facts["gpus"] = gpus()
    report.phase = "imports"
    names = [name for name in arguments.modules.split(",") if name]
    facts["modules"] = {name: imported(name) for name in names}
    facts["installed"] = installed()
    return facts


def repeated(comm: Any, operation: Callable[[], None]) -> float:
    """Seconds that a collective takes, on its slowest rank: once to warm up, then some times."""
    from mpi4py import MPI

    def timed(times: int) -> float:
        comm.Barrier()
        begin = time.perf_counter()
        for _ in range(times):
            operation()
        took: float = comm.allreduce(time.perf_counter() - begin, op=MPI.MAX)
        return took / times

    operation()
    estimate = timed(1)
    return timed(max(1, min(_MOST_REPETITIONS, int(_ABOUT_S / max(estimate, 1e-6)))))


def bus_bandwidth(size: int, seconds: float, ranks: int) -> float:
    """GB/s as nccl-tests count it: bytes / time * 2 (n - 1) / n, comparable with a link's speed."""
    return size / seconds * 2 * (ranks - 1) / ranks / 1e9


def host_allreduce(comm: Any) -> dict[str, Any]:
    """MPI's all-reduce on host memory."""
    from mpi4py import MPI

    buffer = array("f", bytes(_BYTES))
    seconds = repeated(comm, lambda: comm.Allreduce(MPI.IN_PLACE, [buffer, MPI.FLOAT]))
    return _rate("MPI, host memory", _BYTES, seconds, comm.Get_size())


def _rate(what: str, size: int, seconds: float, ranks: int) -> dict[str, Any]:
    gb_per_s = bus_bandwidth(size, seconds, ranks)
    return {"what": what, "bytes": size, "seconds": seconds, "gb_per_s": gb_per_s}


def torch_allreduce(comm: Any, host: str, local_rank: int, kind: str) -> dict[str, Any]:
    """torch.distributed's all-reduce on GPUs (``cuda``: NCCL), or on CPUs (``cpu``: gloo)."""
    import torch
    import torch.distributed as dist

    rank, size = comm.Get_rank(), comm.Get_size()
    device = torch.device(kind, local_rank) if kind == "cuda" else torch.device(kind)
    store = dist.TCPStore(host, 0, size, True, wait_for_workers=False) if rank == 0 else None
    port = comm.bcast(store.port if store else None)
    if store is None:
        store = dist.TCPStore(host, port, size, False)
    if kind == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if kind == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    count = (_GPU_BYTES if kind == "cuda" else _BYTES) // 4
    buffer = torch.zeros(count, device=device)

    def operation() -> None:
        dist.all_reduce(buffer)
        if kind == "cuda":
            torch.cuda.synchronize(device)

    seconds = repeated(comm, operation)
    dist.destroy_process_group()
    return _rate(f"torch.distributed, {backend}", count * 4, seconds, size)


def reachable(comm: Any, hosts: list[str]) -> list[dict[str, Any]]:
    """Whether each node finds rank 0's by its name, and gets through: what a rendezvous needs."""
    rank = comm.Get_rank()
    server = None
    if rank == 0:
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        server = socket.create_server(("", 0), family=family, dualstack_ipv6=dual)
    port = comm.bcast(server.getsockname()[1] if server else None)
    mine = None
    if hosts.index(hosts[rank]) == rank != 0:
        mine = {"host": hosts[rank], **_connected(hosts[0], port)}
    rows = [row for row in comm.allgather(mine) if row]
    if server:
        server.close()
    return rows


def _connected(host: str, port: int) -> dict[str, Any]:
    try:
        rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        return {"error": f"cannot find the name {host}: {error.strerror or error}"}
    addresses = list(dict.fromkeys(str(row[4][0]) for row in rows))
    try:
        socket.create_connection((host, port), timeout=10).close()
    except OSError as error:
        why = error.strerror or str(error)
        return {"error": f"{host} ({', '.join(addresses)}): {why}", "addresses": addresses}
    return {"addresses": addresses}


def together(comm: Any, report: Reporter, use_torch: bool) -> dict[str, Any]:
    """What ranks of a world that is right do with each other."""
    report.phase = "all-gather"
    hosts = comm.allgather(socket.gethostname())
    facts: dict[str, Any] = {"hosts": hosts}
    report.phase = "connections between the nodes"
    facts["reach"] = reachable(comm, hosts)
    report.phase = "all-reduce on host memory"
    facts["rates"] = [host_allreduce(comm)]
    report.phase = "all-reduce on GPUs"
    rank = comm.Get_rank()
    local = hosts[:rank].count(hosts[rank])
    if all(comm.allgather(use_torch and _has_gpu(local))):
        host = hosts[0] if len(set(hosts)) > 1 else "127.0.0.1"
        try:
            facts["rates"].append(torch_allreduce(comm, host, local, "cuda"))
        except Exception as error:  # noqa: BLE001 - whatever it is, the user shall read it
            facts["gpu_error"] = f"{type(error).__name__}: {error}"[:500]
    return facts


def _has_gpu(local: int) -> bool:
    if not glob.glob("/dev/nvidia[0-9]*"):
        return False  # without importing torch, which takes its time
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.device_count() > local)


def world(report: Reporter, use_torch: bool) -> None:
    """Start MPI, say how large the world is, and try it if it is the launcher's."""
    report.phase = "starting MPI (MPI_Init)"
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        report.say("world", {"error": f"{type(error).__name__}: {error}"[:500]})
        return
    comm = MPI.COMM_WORLD
    size = comm.Get_size()
    library = MPI.Get_library_version().strip("\0").splitlines()[0].strip()
    report.say("world", {"rank": comm.Get_rank(), "size": size, "library": library})
    if size > 1:
        facts = together(comm, report, use_torch)
        if comm.Get_rank() == 0 or "gpu_error" in facts:
            report.say("comm", facts)
        if "gpu_error" in facts:
            os._exit(1)  # no collective with what is left of the group
    report.phase = "leaving MPI (MPI_Finalize)"


def main(argv: Optional[list[str]] = None) -> None:
    """Tell everything there is to tell of this rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("--token", required=True)
    parser.add_argument("--modules", default="")
    parser.add_argument("--patience", type=float, default=60.0)
    parser.add_argument("--limit", type=float, default=180.0)
    parser.add_argument("--torch", action="store_true")
    arguments = parser.parse_args(argv)
    # As `python -m` has it, which starts the real ranks: a checkout in the working directory counts.
    sys.path[:1] = [os.getcwd()]
    report = Reporter(_number(_RANKS) or 0, arguments.limit)
    report.say("node", node_facts(arguments, report))
    world(report, arguments.torch)


if __name__ == "__main__":
    main()
