"""Faults of environments in records: what a rank said of its own, and what a launcher printed.

A word of :data:`dlperf_hpc.records.held.KINDS` each; '' for every other end: out of memory, a
number that is none, a crash, a node that went away, a rank that hung.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from dlperf_hpc.records.held import KINDS
from dlperf_hpc.records.task import REQUEUE_BOUND

# Of reasons as `output.explain` words them, where no rank could write a record.
_PRINTED = (
    (r"srun has no MPI plug-in", "mpi_plugin"),
    (r"a rank cannot start: exec.*(?:No such file|Permission denied|Exec format)", "interpreter"),
    (rf"setup failed with exit code \d+: (?!.*{re.escape(REQUEUE_BOUND)})", "setup"),
)
# Anywhere in the output: srun cuts a traceback into pieces, of which any may come last.
_SAID = (
    (r"environment's Python must be 3\.9 or newer", "python"),
    (r"No module named '?dlperf_hpc\b", "package"),
    (r"No module named '?mpi4py\b", "mpi"),
)
# Of ranks' own reasons, in records of versions that did not write a fault down.
_EARLIER = (
    (r"No module named |cannot be imported by ", "framework"),
    (r"mpi4py cannot start MPI", "mpi"),
    (r"each believes it is alone", "mpi_alone"),
)
_SAID_BY_SRUN = re.compile(r"srun: error: ([A-Za-z0-9_.-]+(?:\[[0-9,-]+\])?): tasks? ")


def printed_fault(reason: str, output: str = "") -> str:
    """The fault that the reason of a run tells of which no rank gave an account, or its output, if
    ranks left by themselves."""
    left = "exit code" in reason
    return _first(_PRINTED, reason) or (_first(_SAID, f"{reason}\n{output}") if left else "")


def _first(rules: tuple[tuple[str, str], ...], reason: str) -> str:
    return next((kind for pattern, kind in rules if re.search(pattern, reason)), "")


def recorded_fault(record: Mapping[str, Any]) -> str:
    """The fault that a record has."""
    kind = record.get("fault")
    return kind if isinstance(kind, str) and kind in KINDS else ""


def any_fault(record: Mapping[str, Any]) -> str:
    """The fault that a record has, or by whose words its reason is one; for who asks whether a node
    is to blame."""
    if record.get("status") != "failed":
        return ""
    reason = str(record.get("reason", ""))
    return recorded_fault(record) or _first((*_PRINTED, *_SAID, *_EARLIER), reason)


def fault_hosts(record: Mapping[str, Any]) -> set[str]:
    """The hosts on which a record's fault was seen."""
    hosts = record.get("fault_hosts")
    return {host for host in hosts if isinstance(host, str)} if isinstance(hosts, list) else set()


def printed_hosts(output: str) -> list[str]:
    """The hosts, or lists of hosts (``n[1-2]``), whose ranks srun says to have failed."""
    return list(dict.fromkeys(_SAID_BY_SRUN.findall(output)))


def several(hosts: Collection[str]) -> bool:
    """Whether hosts, or lists of hosts, are more than one."""
    return len(hosts) > 1 or any("[" in host for host in hosts)
