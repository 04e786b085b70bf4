"""Limits on what may be in Slurm's queue: how sbatch names them, and who tells their values.

A value is told only where it can be no other's: what applies to a job is decided by its QOS, the
partition's, and an association that a site's plug-in may choose.
"""

from __future__ import annotations

import functools
import os
import pwd
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from dlperf_hpc.engines.base import Limit
from dlperf_hpc.engines.command import run
from dlperf_hpc.engines.slurm import query
from dlperf_hpc.errors import SiteError

if TYPE_CHECKING:
    from dlperf_hpc.engines.site import Site

_PATIENCE_S = 10.0


class _Source(NamedTuple):
    """Who tells a limit's value; ``own`` says that only one user's jobs count."""

    entity: str
    column: str
    own: bool = False


LIMITS = {
    "QOSMaxSubmitJobPerUserLimit": _Source("qos", "MaxSubmitPU", own=True),
    "QOSMaxSubmitJobPerAccountLimit": _Source("qos", "MaxSubmitPA"),
    "QOSGrpSubmitJobsLimit": _Source("qos", "GrpSubmit"),
    "AssocMaxSubmitJobLimit": _Source("assoc", "MaxSubmit", own=True),
    "AssocGrpSubmitJobsLimit": _Source("assoc", "GrpSubmit"),
    "MaxSubmitJobsPerUser": _Source("", "", own=True),
    "Slurm temporarily unable to accept job": _Source("config", "MaxJobCount"),
}
"""sbatch's words for what a user may have in the queue, and for a controller that is full."""


def limit_behind(words: str, site: Site) -> Limit:
    """What is known of the limit that sbatch names."""
    name = next((name for name in LIMITS if name in words), "")
    if not name:
        return Limit()
    source = LIMITS[name]
    alone = source.own and query.count_mine() == 0
    most = _value(source, site.qos, site.account, site.partition)
    return Limit(source.column if source.entity == "config" else name, most, alone)


@functools.cache
def _value(
    source: _Source, qos: str | None, account: str | None, partition: str | None
) -> int | None:
    """The one value that the limit can have; None if there are several, or none is told."""
    if source.entity == "config":
        found = re.search(
            rf"^{source.column}\s*=\s*(\d+)", _told("scontrol", "show", "config"), re.M
        )
        return int(found[1]) if found else None
    if source.entity == "qos":
        rows = _table("qos", ["Name", source.column])
        names = _qos_of_a_job(qos, partition)
    elif source.entity == "assoc":
        rows = _table("assoc", ["Account", source.column], f"user={_user()}")
        names = {account} if account else set()
    else:
        return None
    values = {value for name, value in rows if value.isdigit() and (not names or name in names)}
    return int(values.pop()) if len(values) == 1 else None


def _qos_of_a_job(qos: str | None, partition: str | None) -> set[str]:
    """The QOS that can count for a job; empty where it can be any."""
    shown = _told("scontrol", "show", "partition", partition) if qos and partition else ""
    of_partition = re.search(r"\bQoS=(\S+)", shown)
    return {qos, of_partition[1]} if qos and of_partition else set()


def _table(entity: str, columns: Sequence[str], *which: str) -> list[list[str]]:
    argv = ["sacctmgr", "--noheader", "--parsable2", "show", entity, *which]
    lines = _told(*argv, f"format={','.join(columns)}").splitlines()
    return [row for row in (line.split("|") for line in lines) if len(row) == len(columns)]


def _told(*argv: str) -> str:
    """What a command prints; nothing if it is forbidden, absent or silent."""
    try:
        done = run(argv, timeout_s=_PATIENCE_S)
    except SiteError:
        return ""
    return done.stdout if done.code == 0 else ""


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
