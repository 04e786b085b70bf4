"""How the nodes are kept apart on one machine, best way first.

pod     own hostname, hosts file, processes, shared memory: like a machine; one kill ends it
uts     own hostname and hosts file only (where the kernel or a container forbids the rest)
plain   nothing: every node has the machine's hostname, and n1, n2... do not resolve
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import processes
from errors import Usage

LEVELS = ("pod", "uts", "plain")
USER = ["--user", "--map-current-user", "--keep-caps"]
UTS = ["--uts", "--mount"]
POD = [*UTS, "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
SETUP = 'hostname "$1" && mount --bind "$2" /etc/hosts && shift 2'
SHM = "mount -t tmpfs -o mode=1777 tmpfs /dev/shm"


def unshare(flags: list[str]) -> list[str]:
    """An ordinary user may mount and name the host inside a user namespace only."""
    return ["unshare", *([] if os.geteuid() == 0 else USER), *flags]


def named(level: str, host: str, hosts: Path, argv: list[str]) -> list[str]:
    """A command under a hostname of its own; the pid stays the command's."""
    if level == "plain":
        return argv
    return [*unshare(UTS), "sh", "-c", f'{SETUP} && exec "$@"', "sh", host, str(hosts), *argv]


def node(level: str, host: str, hosts: Path, argv: list[str]) -> list[str]:
    """A node's command: one process that has all of the node's processes below it.

    In a pod the shell is process 1 and stays (no exec), because process 1 must collect orphans.
    """
    if level == "pod":
        script = f'{SETUP} && {SHM} && {{ "$@"; exit $?; }}'
        return [*unshare(POD), "sh", "-c", script, "sh", host, str(hosts), *argv]
    keeper = [sys.executable, str(Path(__file__).parent), "_keep"]
    return [*keeper, *named(level, host, hosts, argv)]


def choose(wanted: str, env: dict[str, str]) -> str:
    """The best way this kernel allows; an error when the wanted one is not allowed."""
    refusals = []
    for level in LEVELS if wanted == "auto" else (wanted,):
        code, output = processes.command(node(level, "n1", Path("/etc/hosts"), ["true"]), env)
        if code == 0:
            return level
        refusals.append(f"{level}: {output.strip()}")
    raise Usage("nodes cannot be kept apart as wanted: " + "; ".join(refusals))
