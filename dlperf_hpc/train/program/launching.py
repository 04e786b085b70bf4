"""From a program's table, a case and a task's place to the words and variables of a child: where a
task stands, where its ranks meet, what is started, and what that rests on."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dlperf_hpc.errors import SECRET_NAME, WorldError
from dlperf_hpc.files import make_directories, open_regular, read_regular, write_atomically
from dlperf_hpc.model.case import Case, Measure
from dlperf_hpc.records.lines import SUPERVISED
from dlperf_hpc.records.store import Attempt
from dlperf_hpc.sweepfile.programs import (
    LAUNCHERS,
    Command,
    UserProgram,
    child_argv,
    command,
    plan_values,
)
from dlperf_hpc.train.probe.node import GPUS, NO_GPU, captured, device_file, launched

_NODES = ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_STEP_NODELIST")
_LOWEST_PORT = 10_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_EPHEMERAL = 32_768  # where Linux begins with ports that it gives away itself
_PART = re.compile(r"([^\[\],]+)(?:\[([0-9,-]+)\]([^\[\],]*))?(?:,|$)")
_MOST_HOSTS = 100_000
_MOST_PORTS = 20  # that are looked at for a second try
_DEFAULTS = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", "NO_COLOR": "1"}
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_ACCELERATORS = (*GPUS, "davinci[0-9]*", "hl[0-9]*", "accel/*")  # in /dev
_NEVER = ("PYTHONSAFEPATH",)  # a script must find the files beside it
_MOST_BYTES = 1 << 26  # of a program's file, and of the changes of a repository
_GIT_S = 10.0
_PACKAGES_S = 10.0  # less than the other supervisors wait for rank 0
_MOST_WORDS = 200  # of a command
_MOST_PACKAGES = 5000
_DIGEST = re.compile(r"@(sha256:[0-9a-f]{64})\b")
# The global header of an image of Apptainer: https://github.com/apptainer/sif, pkg/sif/sif.go
_SIF_MAGIC, _SIF_ID = slice(32, 41), slice(48, 64)
# In the Python of the program, of any version that there is.
_LIST = """\
import sys
sys.path = [path for path in sys.path if path]
import importlib.metadata as m, json
print(json.dumps({d.metadata["Name"]: d.version for d in m.distributions() if d.metadata["Name"]}))
"""


@dataclass(frozen=True)
class RankInfo:
    """A task's place. ``hosts`` are the nodes' names, in the launcher's order."""

    rank: int
    size: int
    local_rank: int
    node_rank: int
    hosts: tuple[str, ...]

    @property
    def address(self) -> str:
        """Where all ranks can reach rank 0."""
        return "127.0.0.1" if len(self.hosts) == 1 else self.hosts[0]


def discover(case: Case, env: Mapping[str, str] = os.environ) -> RankInfo:
    """This task's place; WorldError unless the launcher started what the case needs."""
    rank, size, local, *_ = launched(env)
    if case.ranks == 1:
        rank, size = rank or 0, 1
    if rank is None or size != case.ranks or not rank < size:
        raise WorldError(
            f"the launcher says rank {rank} of {size}, and topology {case.topology} needs"
            f" {case.ranks} tasks: the scheduler gave another allocation than asked; see the batch"
            " script in jobs/"
        )
    hosts = _hosts(env)
    if len(hosts) < case.topology.nodes:
        raise WorldError(
            f"the launcher names {len(hosts)} nodes, and topology {case.topology} needs"
            f" {case.topology.nodes}"
        )
    node = env.get("SLURM_NODEID", "")
    return RankInfo(
        rank=rank,
        size=size,
        local_rank=rank % case.ranks_per_node if local is None else local,
        node_rank=int(node) if node.isdecimal() else rank // case.ranks_per_node,
        hosts=tuple(hosts),
    )


def with_visible_rank(place: RankInfo, env: Mapping[str, str]) -> RankInfo:
    """A place whose ``local_rank`` is the number of a GPU among those that this process sees: 0
    where it sees one. WorldError where that cannot be known."""
    name = next(filter(env.get, _VISIBLE), "")
    seen, rank = env.get(name, "").split(","), str(place.local_rank)
    if len(seen) == 1 and name:
        return replace(place, local_rank=0)
    if rank in seen:
        return replace(place, local_rank=seen.index(rank))
    if not name or place.local_rank < len(seen):  # all of the node's
        return place
    raise WorldError(
        f'local_rank = "visible": the process with local rank {rank} sees {len(seen)} GPUs ({name}='
        f"{env[name]}), and which of them is its own cannot be known: give each process its own"
        " GPU alone (--gpus-per-task), or all of its node's"
    )


def _hosts(env: Mapping[str, str]) -> list[str]:
    for name in _NODES:
        if env.get(name):
            return expanded(env[name])
    return [socket.gethostname()]


def expanded(text: str) -> list[str]:
    """The names of a list of nodes as Slurm writes it (``n[1-2,07],gpu3``), in its order.
    WorldError for what is none; at most 100 000."""
    found: list[str] = []
    end = 0
    for match in _PART.finditer(text):
        if match.start() != end or not match[0]:
            break
        end = match.end()
        numbers = _numbers(match[2], text) if match[2] else [""]
        found += [f"{match[1]}{number}{match[3] or ''}" for number in numbers]
        if len(found) > _MOST_HOSTS:
            break
    if end != len(text) or not found:
        raise WorldError(f"{text[:200]!r} is no list of nodes that can be read")
    return found


def _numbers(text: str, whole: str) -> list[str]:
    found: list[str] = []
    for part in text.split(","):
        low, dash, high = part.partition("-")
        if not low.isdigit() or (dash and not high.isdigit()):
            raise WorldError(f"{whole[:200]!r} is no list of nodes that can be read")
        last = int(high or low)
        if last - int(low) > _MOST_HOSTS:
            raise WorldError(f"{whole[:200]!r} has more than {_MOST_HOSTS} nodes")
        found += [str(n).zfill(len(low)) for n in range(int(low), last + 1)]
    return found


def port_of(launch: str) -> int:
    """A port for the ranks of a launch to meet at: the same on all of them, without a word between
    them, and below those that the kernel gives away itself."""
    try:
        highest = int(_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        highest = _EPHEMERAL
    highest = max(highest, 2 * _LOWEST_PORT)
    number = int.from_bytes(hashlib.sha256(launch.encode()).digest()[:8], "big")
    return _LOWEST_PORT + number % (highest - _LOWEST_PORT)


def another_port(launch: str) -> int | None:
    """A port for a second try of the same launch, at which nobody on this node listens, if any."""
    tried = (port_of(f"{launch} {number}") for number in range(2, 2 + _MOST_PORTS))
    return next(filter(is_free, tried), None)


def is_free(port: int) -> bool:
    """Whether nobody on this node listens at a port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("", port))
        except OSError:
            return False
    return True


def task_values(
    attempt: Attempt, measure: Measure, place: RankInfo, python: str, port: int
) -> dict[str, Any]:
    """All placeholders of a task whose ranks meet at a port."""
    paths = attempt.paths
    return {
        **plan_values(attempt.run.case, measure, attempt.sweep, attempt.run),
        "rank": place.rank,
        "local_rank": place.local_rank,
        "node_rank": place.node_rank,
        "attempt": attempt.number,
        "host": socket.gethostname(),
        "hosts": ",".join(place.hosts),
        "hostfile": str(paths.supervised(attempt.number) / "hosts"),
        "master_addr": place.address,
        "master_port": port,
        "scratch": str(paths.scratch(attempt.number)),
        "outdir": str(paths.output(attempt.number)),
        "python": python,
    }


def child_command(
    program: UserProgram,
    case: Case,
    place: RankInfo,
    values: Mapping[str, Any],
    words: Sequence[str],
    env: Mapping[str, str] = os.environ,
) -> Command:
    """What a supervisor starts, with all of the child's environment. ``values`` are those of
    :func:`task_values`; ``words`` begin with a container's command and end in the Python."""
    made = command(program, values)
    child = {
        **_DEFAULTS,
        "OMP_NUM_THREADS": str(case.threads),
        **{name: value for name, value in env.items() if name not in _NEVER},
        **_of_timer(values),
        **_variables(case, place, values),
        **made.env,
    }
    argv = child_argv(program, made.argv, values, words)
    return Command(argv, child, made.workdir, len(made.argv))


def _of_timer(values: Mapping[str, Any]) -> dict[str, str]:
    """For a Timer or the hook: the window, where its log goes, and that a supervisor reads it."""
    return {
        "DLPERF_MEASURE": f"warmup={values['warmup']} iterations={values['iterations']}",
        "DLPERF_LOGS": values["outdir"],
        SUPERVISED: "1",
    }


def _variables(case: Case, place: RankInfo, values: Mapping[str, Any]) -> dict[str, str]:
    """Where a child stands, as PyTorch's ``env://`` reads it. torchrun sets its workers' own."""
    meeting = {"MASTER_ADDR": values["master_addr"], "MASTER_PORT": str(values["master_port"])}
    if case.launch == "accelerate" and not _has_accelerator(case.device):
        # Else its processes would not meet on CPUs: each would train alone, as rank 0.
        return {**meeting, "ACCELERATE_USE_CPU": "true"}
    if case.launch not in ("rank", "node"):
        return meeting
    return {
        **meeting,
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.size),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(case.ranks_per_node),
        "NODE_RANK": str(place.node_rank),
    }


def _has_accelerator(device: str) -> bool:
    """Whether a program is to train on accelerators: with ``auto`` if this node has one that this
    job may open. Without one of its own a job may see those of others, but not open them."""
    if device != "auto":
        return device == "cuda"
    return bool(device_file(_ACCELERATORS))


def has_nvidia(env: Mapping[str, str]) -> bool:
    """Whether a program with these variables may see GPUs of NVIDIA's."""
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return any(Path("/dev").glob("nvidia[0-9]*"))
    return visible not in NO_GPU


def make_directories_of(attempt: Attempt, program: UserProgram, place: RankInfo) -> None:
    """Make the directories and the file that the program's table names."""
    paths = attempt.paths
    for path in (paths.supervised(attempt.number), paths.scratch(attempt.number)):
        make_directories(path)
    if names(program, "outdir"):
        make_directories(paths.output(attempt.number))
    if place.rank == 0:
        hosts = "".join(f"{host}\n" for host in place.hosts)
        write_atomically(paths.supervised(attempt.number) / "hosts", hosts)


def meets(program: UserProgram, place: RankInfo) -> bool:
    """Whether the ranks are to meet at a port of rank 0's node."""
    several = place.size > 1 or program.launch in LAUNCHERS
    return several and (program.launch != "once" or names(program, "master_port"))


def names(program: UserProgram, placeholder: str) -> bool:
    """Whether a placeholder stands anywhere in a program's command."""
    texts = [*program.run, *program.env.values(), program.workdir]
    return any(placeholder in text for text in texts)


def program_facts(program: UserProgram, command: Command, words: Sequence[str]) -> dict[str, Any]:
    """For the log's line ``program``: what is started, and what of it may have been changed since;
    of the environment what the table sets, but secrets. ``words``: see :func:`child_command`."""
    workdir = command.workdir or os.getcwd()
    variables = sorted((name, command.env[name]) for name in program.env)
    return {
        "name": program.name,
        "launch": program.launch,
        "argv": list(command.argv[:_MOST_WORDS]),
        "workdir": workdir,
        "set": [f"{name}={value}" for name, value in variables if not SECRET_NAME.search(name)],
        "format": program.read.format or None,
        "read": program.read.to_dict(),
        "stop": program.stop,
        **_file(workdir, command),
        **_commit(workdir),
        "image": _image(words),
    }


def packages_of(words: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """Every distribution with its version that the program's Python lists, in the program's own
    environment; none if it does not answer in time."""
    argv = [*words, "-c", _LIST]
    try:
        done = captured(argv, _PACKAGES_S, dict(env))
        done.check_returncode()
        found = json.loads(done.stdout.splitlines()[-1])
        listed = sorted((str(name), str(found[name])) for name in found)
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError):
        return {}
    return dict(listed[:_MOST_PACKAGES])


def _file(workdir: str, command: Command) -> dict[str, Any]:
    """The program's file (a module's is that which Python would find in ``workdir``), and its
    digest."""
    own = command.argv[len(command.argv) - (command.own or len(command.argv)) :]
    script = next((word for word in own if word.endswith((".py", ".sh"))), own[0])
    if "-m" in own[:-1]:
        module = Path(workdir, *own[own.index("-m") + 1].split("."))
        files = [module.with_suffix(".py"), module / "__main__.py"]
    else:
        files = [Path(workdir, script), *map(Path, filter(None, [shutil.which(script)]))]
    for path in files:
        try:
            content = read_regular(path, _MOST_BYTES)
        except OSError:
            continue
        return {"file": str(path), "sha256": hashlib.sha256(content).hexdigest()}
    return {}


def _commit(workdir: str) -> dict[str, Any]:
    """The repository's commit, whether known files were changed, and a digest of the changes."""
    commit = _git(workdir, "rev-parse", "HEAD")
    if not commit:
        return {}
    changes = _git(workdir, "diff", "--no-ext-diff", "--no-textconv", "--no-color", "HEAD")
    facts = {
        "commit": commit.decode("ascii", "replace"),
        "changed": None if changes is None else bool(changes),
    }
    if changes:
        facts["changes_sha256"] = hashlib.sha256(changes).hexdigest()
    return facts


def _git(workdir: str, *words: str) -> bytes | None:
    # No program that a repository's own configuration names is run.
    argv = ["git", "-C", workdir, "-c", "core.fsmonitor=false", *words]
    try:
        done = captured(argv, _GIT_S)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _image(words: Sequence[str]) -> str | None:
    """What identifies the image: the digest in its name, or the id in Apptainer's own form."""
    image = words[-2] if len(words) > 1 else ""
    if named := _DIGEST.search(image):
        return named[1]
    try:
        with open_regular(Path(image)) as file:
            head = file.read(_SIF_ID.stop)
    except OSError:
        return None
    whole = len(head) == _SIF_ID.stop and head[_SIF_MAGIC] == b"SIF_MAGIC"
    return f"sif:{uuid.UUID(bytes=head[_SIF_ID])}" if whole else None
