"""Limits on how many array tasks a user may have in Slurm's queue: which of them a job would meet,
told before sbatch refuses, and what is known of the one that sbatch names.

The two differ in what they may guess. What applies to a job is decided by its QOS, its partition's,
and an association that a site's plug-in may choose. Before anything is submitted, the likely limits
help; once sbatch has refused, a value is told only where it can be no other's, for what it says is
written into site profiles, and decides whether `sweep --wait` goes on.

Some sites forbid ``scontrol`` or ``sacctmgr``, and some have no accounting: that is no error, what
they would tell is not known then.
"""

from __future__ import annotations

import functools
import os
import pwd
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from dlperf_hpc.engines.base import CheckResult, Limit
from dlperf_hpc.engines.command import run
from dlperf_hpc.engines.slurm import query
from dlperf_hpc.errors import SiteError

if TYPE_CHECKING:
    from dlperf_hpc.engines.site import Site
    from dlperf_hpc.records.manifest import Array

_PATIENCE_S = 20.0


def settings() -> dict[str, str]:
    """``scontrol show config`` as keys and values; empty where it is not known."""
    rows = (line.partition("=") for line in _printed("scontrol", "show", "config").splitlines())
    return {key.strip(): value.strip() for key, equals, value in rows if equals}


def partition_qos(partition: str) -> str | None:
    """The quality of service that a partition brings with it, '' for none; None where it is not
    known."""
    found = re.search(r"\bQoS=(\S+)", _printed("scontrol", "show", "partition", partition))
    return found and found[1].replace("N/A", "")


def accounting_rows(what: Sequence[str], columns: Sequence[str]) -> list[list[str]]:
    """The rows of ``sacctmgr show <what>`` with these columns; none where they are not known."""
    argv = ["sacctmgr", "--noheader", "--parsable2", "show", *what, f"format={','.join(columns)}"]
    rows = [line.split("|") for line in _printed(*argv).splitlines()]
    return [row for row in rows if len(row) == len(columns)]


def _printed(*argv: str) -> str:
    """What a command prints; nothing if it is absent, forbidden or silent."""
    try:
        done = run(argv, timeout_s=_PATIENCE_S)
    except SiteError:
        return ""
    return done.stdout if done.code == 0 else ""


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

_OF_QOS = {name: source.column for name, source in LIMITS.items() if source.entity == "qos"}
_OF_USER = "AssocMaxSubmitJobLimit"
_ASSOCIATION = (
    *("DefaultAccount", "Cluster", "Account", "Partition", "QOS", "DefaultQOS"),
    LIMITS[_OF_USER].column,
)


def limit_behind(words: str, site: Site) -> Limit:
    """What is known for certain of the limit that sbatch names."""
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
        value = settings().get(source.column, "")
        return int(value) if value.isdigit() else None
    if source.entity == "qos":
        rows = accounting_rows(["qos"], ["Name", source.column])
        names = _only_qos(qos, partition)
    elif source.entity == "assoc":
        rows = accounting_rows(["assoc", f"user={_user()}"], ["Account", source.column])
        names = {account} if account else set()
    else:
        return None
    values = {value for name, value in rows if value.isdigit() and (not names or name in names)}
    return int(values.pop()) if len(values) == 1 else None


def _only_qos(qos: str | None, partition: str | None) -> set[str]:
    """The qualities of service that can count for a job; empty where any of them can."""
    of_partition = partition_qos(partition) if qos and partition else None
    return set() if qos is None or of_partition is None else {qos, of_partition} - {""}


class SubmitLimit(NamedTuple):
    """``most`` array tasks in the queue; ``holder`` is whose limit it is."""

    name: str
    holder: str
    most: int

    def __str__(self) -> str:
        return f"{self.name} = {self.most} ({self.holder})"


def submit_limits(site: Site, cluster: str = "") -> list[SubmitLimit]:
    """The limits that a job of this site profile is likely to meet, the tightest first; empty where
    there are none, or where nobody may ask. ``cluster`` is ours, for a database that several share.

    The limits that an account's users have together are not among them.
    """
    user = _user()
    rows = accounting_rows(["user", user, "withassoc"], _ASSOCIATION)
    rows = [row for row in rows if cluster in ("", row[1])]
    account = site.account or next((row[0] for row in rows), "")
    found, qualities = [], {site.qos} if site.qos else set()
    for _, _, name, partition, every, default, most in rows:
        if name != account or partition not in ("", site.partition):
            continue
        if most.isdigit():
            found.append(SubmitLimit(_OF_USER, f"account {account}, user {user}", int(most)))
        if not site.qos:
            qualities.add(default or (every if "," not in every else "") or "normal")
    if site.partition and (brought := partition_qos(site.partition)):
        qualities.add(brought)
    for name, *limits in accounting_rows(["qos"], ["Name", *_OF_QOS.values()]) if qualities else []:
        for limit, most in zip(_OF_QOS, limits):
            if name in qualities and most.isdigit():
                found.append(SubmitLimit(limit, f"QOS {name}", int(most)))
    return sorted(found, key=lambda limit: limit.most)


def _user() -> str:
    """The user's name in accounting; where the machine has no name for it, its number."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


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


def names_limit(words: str) -> bool:
    """Whether sbatch's words name a limit that accounting keeps."""
    kept = (name for name, source in LIMITS.items() if source.entity in ("qos", "assoc"))
    return any(name in words for name in kept)


def submit_remedy(bounds: Sequence[SubmitLimit]) -> str:
    """What to do where sbatch refuses an array by such a limit."""
    if not bounds:
        shows = "`sacctmgr show qos format=name,maxsubmitpu`"
        return f"set max_submit in the site profile to the limit that {shows} shows"
    if bounds[0].most == 0:
        return "no job is taken: set another qos or account in the site profile"
    return (
        f"set max_submit = {bounds[0].most} in the site profile: arrays are made no larger, and"
        " `sweep --wait` submits one after another"
    )
