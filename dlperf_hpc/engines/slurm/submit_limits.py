"""How many array tasks a user may have in the queue, as accounting has it: told before sbatch
refuses, and by the name that sbatch gives the limit."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Sequence
from typing import NamedTuple

from dlperf_hpc.engines.base import CheckResult
from dlperf_hpc.engines.command import run
from dlperf_hpc.engines.site import Site
from dlperf_hpc.errors import SiteError
from dlperf_hpc.records.manifest import Array

_PATIENCE_S = 20.0
_OF_USER = "DefaultAccount,Cluster,Account,Partition,QOS,DefaultQOS,MaxSubmitJobs"
# sacctmgr's columns of a quality of service, and sbatch's names for their limits.
_OF_QOS = {
    "MaxSubmitJobsPU": "QOSMaxSubmitJobPerUserLimit",
    "MaxSubmitJobsPA": "QOSMaxSubmitJobPerAccountLimit",
    "GrpSubmitJobs": "QOSGrpSubmitJobsLimit",
}
NAMES = (*_OF_QOS.values(), "AssocMaxSubmitJobLimit")
"""sbatch's words for the limits that are looked for here."""


class SubmitLimit(NamedTuple):
    """``most`` array tasks in the queue; ``holder`` is whose limit it is."""

    name: str
    holder: str
    most: int

    def __str__(self) -> str:
        return f"{self.name} = {self.most} ({self.holder})"


def submit_limits(site: Site, cluster: str = "") -> list[SubmitLimit]:
    """The limits that a job of this site profile meets, the tightest first; empty where there are
    none, or where nobody may ask. ``cluster`` is ours, for a database that several share.

    The limits that an account's users have together are not among them.
    """
    user = pwd.getpwuid(os.getuid()).pw_name
    rows = [row for row in _rows(["user", user, "withassoc"], _OF_USER) if cluster in ("", row[1])]
    account = site.account or next((row[0] for row in rows), "")
    found, qualities = [], {site.qos} if site.qos else set()
    for _, _, name, partition, every, default, most in rows:
        if name != account or partition not in ("", site.partition):
            continue
        if most.isdigit():
            holder = f"account {account}, user {user}"
            found.append(SubmitLimit("AssocMaxSubmitJobLimit", holder, int(most)))
        if not site.qos:
            qualities.add(default or (every if "," not in every else "") or "normal")
    qualities |= _of_partition(site.partition)
    for name, *limits in _rows(["qos"], ",".join(["Name", *_OF_QOS])) if qualities else []:
        for limit, most in zip(_OF_QOS.values(), limits):
            if name in qualities and most.isdigit():
                found.append(SubmitLimit(limit, f"QOS {name}", int(most)))
    return sorted(found, key=lambda limit: limit.most)


def _of_partition(partition: str | None) -> set[str]:
    """The quality of service that a partition brings with it."""
    if not partition:
        return set()
    found = re.search(r"\bQoS=(\S+)", _said(["scontrol", "show", "partition", partition]))
    return {found[1]} - {"N/A"} if found else set()


def _rows(what: list[str], columns: str) -> list[list[str]]:
    argv = ["sacctmgr", "--noheader", "--parsable2", "show", *what, f"format={columns}"]
    rows = [line.split("|") for line in _said(argv).splitlines()]
    return [row for row in rows if len(row) == columns.count(",") + 1]


def _said(argv: list[str]) -> str:
    """What a command prints, nothing where it fails."""
    try:
        done = run(argv, timeout_s=_PATIENCE_S)
    except SiteError:
        return ""
    return done.stdout if done.code == 0 else ""


def submit_check(bounds: Sequence[SubmitLimit], arrays: Sequence[Array], site: Site) -> CheckResult:
    """What accounting lets one have in the queue against the sweep, and the profile's word."""
    most = bounds[0].most
    sizes = [array.size for array in arrays]
    seen = f"{bounds[0]}: array tasks in the queue"
    if sizes:
        seen += f"; the sweep: {sum(sizes)} in arrays of {max(sizes)} at most"
    if site.max_submit and site.max_submit <= most:
        return CheckResult("ok", "submit limit", f"{seen}; max_submit = {site.max_submit}")
    to_do = submit_remedy(bounds)
    if max(sizes, default=0) > most:
        return CheckResult("FAIL", "submit limit", seen, to_do)
    if not sizes or sum(sizes) > most:
        return CheckResult("warn", "submit limit", seen, to_do)
    return CheckResult("ok", "submit limit", seen)


def submit_remedy(bounds: Sequence[SubmitLimit]) -> str:
    """What to do where sbatch refuses an array by one of :data:`NAMES`."""
    if not bounds:
        shows = "`sacctmgr show qos format=name,maxsubmitpu`"
        return f"set max_submit in the site profile to the limit that {shows} shows"
    if bounds[0].most == 0:
        return "no job is taken: set another qos or account in the site profile"
    return (
        f"set max_submit = {bounds[0].most} in the site profile: arrays are made no larger, and"
        " `sweep --wait` submits one after another"
    )
