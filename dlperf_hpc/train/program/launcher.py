"""Where a task stands among those of its launcher, by the variables that the launcher sets; and
where its ranks may meet."""

from __future__ import annotations

import hashlib
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dlperf_hpc.errors import WorldError
from dlperf_hpc.model.case import Case
from dlperf_hpc.train.probe.node import launched

_NODES = ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_STEP_NODELIST")
_LOWEST_PORT = 10_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_EPHEMERAL = 32_768  # where Linux begins with ports that it gives away itself
_PART = re.compile(r"([^\[\],]+)(?:\[([0-9,-]+)\]([^\[\],]*))?(?:,|$)")
_MOST_HOSTS = 100_000
_MOST_PORTS = 20  # that are looked at for a second try


@dataclass(frozen=True)
class RankInfo:
    """A task's place. ``hosts`` are the nodes' names, in the launcher's order."""

    rank: int
    size: int
    local_rank: int
    node_rank: int
    hosts: tuple[str, ...]

    @property
    def host(self) -> str:
        """This node's name."""
        return socket.gethostname()

    @property
    def address(self) -> str:
        """Where all ranks can reach rank 0."""
        return "127.0.0.1" if len(self.hosts) == 1 else self.hosts[0]


def discover(case: Case, env: Mapping[str, str] = os.environ) -> RankInfo:
    """This task's place; WorldError unless the launcher started what the case needs."""
    started = launched(env)
    rank, size, local = started.rank, started.size, started.local_rank
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
        last = int(high) if dash else int(low)
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
    highest = highest if highest > 2 * _LOWEST_PORT else 2 * _LOWEST_PORT
    number = int.from_bytes(hashlib.sha256(launch.encode()).digest()[:8], "big")
    return _LOWEST_PORT + number % (highest - _LOWEST_PORT)


def another_port(launch: str) -> int | None:
    """A port for a second try of the same launch, at which nobody on this node listens; None if
    none was found."""
    tried = (port_of(f"{launch} {number}") for number in range(2, 2 + _MOST_PORTS))
    return next((port for port in tried if is_free(port)), None)


def is_free(port: int) -> bool:
    """Whether nobody on this node listens at a port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("", port))
        except OSError:
            return False
    return True
