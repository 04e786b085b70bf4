"""What to do where a site profile does not fit: what Slurm has in its place, in words, and limits
on how many array tasks a user may have in the queue.

What applies to a job is decided by its QOS, its partition's, and an association that a site's
plug-in may choose. Before anything is submitted, the likely limits help; once sbatch has refused, a
value is given only where it can be no other's: it is written into site profiles, and decides
whether `sweep --wait` goes on. Where a site forbids ``scontrol`` or ``sacctmgr``, nothing is known.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pwd
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import starmap
from typing import TYPE_CHECKING, NamedTuple

from dlperf_hpc.engines.base import CheckResult, Limit, ask, run
from dlperf_hpc.engines.slurm import query
from dlperf_hpc.errors import SiteError

if TYPE_CHECKING:
    from dlperf_hpc.engines.site import Site
    from dlperf_hpc.records.manifest import Array

_INSTANT_S = 3.0  # what does not answer so soon is not asked before a sweep is submitted
_TYPED = re.compile(r"\bgpu:([\w.-]*[A-Za-z_][\w.-]*)")  # gpu:a100:4, not gpu:8


def settings() -> dict[str, str]:
    """``scontrol show config`` as keys and values; empty where it is not known."""
    rows = (line.partition("=") for line in _printed("scontrol", "show", "config").splitlines())
    return {key.strip(): value.strip() for key, equals, value in rows if equals}


def number(setting: str) -> int | None:
    """A number of the controller's configuration; None where it is not known."""
    value = settings().get(setting, "")
    return int(value) if value.isdigit() else None


def partition_qos(partition: str) -> str | None:
    """The quality of service that a partition brings with it, '' for none; None: not known."""
    found = re.search(r"\bQoS=(\S+)", _printed("scontrol", "show", "partition", partition))
    return found and found[1].replace("N/A", "")


def accounting_rows(what: Sequence[str], columns: Sequence[str]) -> list[list[str]]:
    """The rows of ``sacctmgr show <what>`` with these columns; none where they are not known."""
    argv = ["sacctmgr", "--noheader", "--parsable2", "show", *what, f"format={','.join(columns)}"]
    rows = [line.split("|") for line in _printed(*argv).splitlines()]
    return [row for row in rows if len(row) == len(columns)]


def _printed(*argv: str) -> str:
    """What a command prints; nothing if it is absent, forbidden or silent."""
    done = ask(argv)
    return "" if done.returncode else done.stdout


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
        return number(source.column)
    rows: list[list[str]] = []
    names: set[str | None] = {account} - {None}
    if source.entity == "qos":
        rows = accounting_rows(["qos"], ["Name", source.column])
        names = {*_only_qos(qos, partition)}
    elif source.entity == "assoc":
        rows = accounting_rows(["assoc", f"user={_user()}"], ["Account", source.column])
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
    The limits that an account's users have together are not among them."""
    associations = _associations(site, cluster)
    found = [
        SubmitLimit(_OF_USER, f"account {each.account}, user {_user()}", int(each.most))
        for each in associations
        if each.most.isdigit()
    ]
    qualities = {site.qos} if site.qos else {each.usual_qos for each in associations}
    if site.partition:
        qualities.add(partition_qos(site.partition) or "")
    if qualities - {""}:
        for name, *limits in accounting_rows(["qos"], ["Name", *_OF_QOS.values()]):
            values = zip(_OF_QOS, limits) if name in qualities else ()
            found += [SubmitLimit(key, f"QOS {name}", int(n)) for key, n in values if n.isdigit()]
    return sorted(found, key=lambda limit: limit.most)


class _Association(NamedTuple):
    """A user's row in accounting, by sacctmgr's columns."""

    default_account: str
    cluster: str
    account: str
    partition: str
    qos: str
    default_qos: str
    most: str

    @property
    def usual_qos(self) -> str:
        """The quality of service of a job that names none."""
        only = "" if "," in self.qos else self.qos
        return self.default_qos or only or "normal"


def _associations(site: Site, cluster: str) -> list[_Association]:
    """Those of this user that count for a job of this site profile."""
    columns = ("DefaultAccount", "Cluster", "Account", "Partition", "QOS", "DefaultQOS")
    wanted = (*columns, LIMITS[_OF_USER].column)
    rows = accounting_rows(["user", _user(), "withassoc"], wanted)
    found = [row for row in starmap(_Association, rows) if cluster in ("", row.cluster)]
    account = site.account or next((row.default_account for row in found), "")
    partitions = ("", site.partition)
    return [row for row in found if row.account == account and row.partition in partitions]


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


def other_mpi(mpi: str) -> str:
    """What to do where ``--mpi=<mpi>`` does not fit: the others that srun has."""
    there = _plugins()
    names = ", ".join(name for name in there if name != mpi) or "nothing else"
    which = f"srun has, beside {mpi}: {names}" if there else "`srun --mpi=list` shows which"
    return f"set mpi in the site profile to what this MPI speaks; {which}"


def _plugins(patience_s: float = 20.0) -> list[str]:
    done = ask(["srun", "--mpi=list"], patience_s)
    words = (done.stdout + done.stderr).split()
    return list(dict.fromkeys(word for word in words if word.startswith(("pmi", "pmix", "cray"))))


def missing_plugins(wanted: Iterable[str]) -> Iterator[CheckResult]:
    """Which of these MPI plug-ins srun does not have on this machine."""
    there = _plugins(_INSTANT_S)
    for mpi in wanted:
        if there and mpi.startswith("pmi") and mpi not in there:
            seen = f"srun has no MPI plug-in {mpi} on this machine"
            yield CheckResult("warn", "mpi", seen, f"set mpi to one of {', '.join(there)}")


def missing_partitions(named: str | None) -> Iterator[CheckResult]:
    """Which of these partitions (``a,b``) Slurm does not have, hidden ones included."""
    with contextlib.suppress(SiteError):  # who does not answer is not asked for the next one
        for name in filter(None, (named or "").split(",")):
            done = run(["scontrol", "--all", "show", "partition", name], _INSTANT_S)
            if f"artition {name} not found" in done.stdout + done.stderr:
                to_do = "set partition in the site profile to one that `sinfo` shows"
                yield CheckResult("FAIL", "partition", f"Slurm has no partition {name!r}", to_do)


def other_gpus(site: Site) -> str:
    """What to do where this profile's request for GPUs is refused, by the job or by its step."""
    argv = ["sinfo", "--noheader", "--format=%G"]
    argv += [f"--partition={site.partition}"] if site.partition else []
    types = sorted(set(_TYPED.findall(_printed(*argv))))
    steps = []
    if types and site.gpu_type not in types:
        steps.append(f"gpu_type to {' or '.join(types)}")
    if site.gpus == "gpus-per-node":
        steps.append('gpus to "gres"')
    steps.append('gpus to "none" if jobs get whole nodes with all their GPUs')
    return f"set in the site profile {', or '.join(steps)}"
