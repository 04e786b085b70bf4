"""Which way NCCL talked in this run, read in what it printed (``NCCL_DEBUG=INFO``)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dlperf_hpc.files import open_regular
from dlperf_hpc.records.layout import LAUNCH_MARK, launch_id
from dlperf_hpc.records.nccl import Connections
from dlperf_hpc.train.probe.node import ports
from dlperf_hpc.train.provenance import nccl_files
from dlperf_hpc.train.ranks import World

_TALKATIVE = {"INFO", "TRACE"}
_MOST_BYTES = 1 << 26


def settings(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What NCCL is told: its files' ``NAME=value`` lines, and the environment before them."""
    return {**(nccl_files(environment=environment) or {}), **environment}


def flush() -> None:
    """Let out what C's library still holds back of NCCL's lines: into a pipe it writes by blocks.
    Call it before the window, which then has nothing to do with them."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).fflush(None)


def told(world: World, output: Path, asked: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What all ranks' lines say, on all ranks: :meth:`.Connections.told`, and the InfiniBand and
    RoCE ``ports`` of rank 0's node that are up. Empty where no rank was to print such lines.

    Each rank reads its own ``NCCL_DEBUG_FILE``; without one rank 0 reads the job's ``output``.
    """
    asked = settings() if asked is None else asked
    mine = Connections()
    if asked.get("NCCL_DEBUG", "").upper() in _TALKATIVE:
        own = asked.get("NCCL_DEBUG_FILE")
        if own:
            mine.read(_text(Path(own_file(own))))
        elif world.rank == 0:
            mine.read(_text(output))
    whole = Connections()
    for each in world.gather(mine):
        whole.add(each)
    found = whole.told()
    up = [str(port["name"]) for port in ports()] if found else []
    return {**found, "ports": world.broadcast(up)} if found else {}


def own_file(pattern: str) -> str:
    """The file that NCCL makes of ``NCCL_DEBUG_FILE`` in this process: ``%h`` is the host up to its
    first dot, ``%p`` the process."""
    host = re.sub("[%/]", "-", socket.gethostname().partition(".")[0])
    known = {"%%": "%", "%h": host, "%p": str(os.getpid())}
    return re.sub("%.", lambda match: known.get(match[0], match[0]), pattern)


def _text(path: Path) -> str:
    """A file's whole lines, in the job's output those of this launch; none of one that is not to be
    read. Of a very long one the end: what an earlier launch printed is not this one's."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _MOST_BYTES))
            data = file.read(_MOST_BYTES)
    except OSError:
        return ""
    mark = f"{LAUNCH_MARK} {launch_id()}\n".encode()
    return data.rpartition(mark)[2].rpartition(b"\n")[0].decode(errors="replace")
