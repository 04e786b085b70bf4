"""What to do where the site profile does not fit, in words: what Slurm has in its place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from dlperf_hpc.engines.base import CheckResult
from dlperf_hpc.engines.command import run
from dlperf_hpc.engines.site import Site
from dlperf_hpc.errors import SiteError

_PATIENCE_S = 20.0
_INSTANT_S = 3.0  # what does not answer so soon is not asked before a sweep is submitted
# Without a slurm.conf, Slurm's commands look for the controller in DNS.
NO_CONFIGURATION = re.compile(r"DNS SRV lookup failed|establish a configuration source")
_NO_CONTROLLER = re.compile(r"Unable to contact|Connection refused|Connection reset|standby mode")
_HERE = "to run a sweep on this machine without Slurm, give --cluster local and another --name"
_TYPED = re.compile(r"\bgpu:([\w.-]*[A-Za-z_][\w.-]*)")  # gpu:a100:4, not gpu:8


def out_of_reach(words: str) -> str:
    """What to do where Slurm's commands are there and its controller is not, by their words; ''
    where these say something else."""
    if NO_CONFIGURATION.search(words):
        return (
            "Slurm's controller cannot be reached from this machine: log in to a login node of the"
            f" cluster, or set $SLURM_CONF to its slurm.conf; {_HERE}"
        )
    if _NO_CONTROLLER.search(words):
        return (
            "Slurm's controller cannot be reached from this machine now: type the same command"
            f" again later, or ask the administrators; {_HERE}"
        )
    return ""


def other_mpi(mpi: str) -> str:
    """What to do where ``--mpi=<mpi>`` does not fit: the others that srun has."""
    there = _plugins(_PATIENCE_S)
    if not there:
        return "set mpi in the site profile to what this MPI speaks; `srun --mpi=list` shows which"
    names = ", ".join(name for name in there if name != mpi) or "nothing else"
    return f"set mpi in the site profile to what this MPI speaks; srun has, beside {mpi}: {names}"


def _plugins(patience_s: float) -> list[str]:
    try:
        done = run(["srun", "--mpi=list"], timeout_s=patience_s)
    except SiteError:
        return []
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
    for name in (named or "").split(","):
        try:
            argv = ["scontrol", "--all", "show", "partition", name]
            done = run(argv, timeout_s=_INSTANT_S) if name else None
        except SiteError:
            return
        if done is not None and f"artition {name} not found" in done.stdout + done.stderr:
            to_do = "set partition in the site profile to one that `sinfo` shows"
            yield CheckResult("FAIL", "partition", f"Slurm has no partition {name!r}", to_do)


def other_gpus(site: Site) -> str:
    """What to do where this profile's request for GPUs is refused, by the job or by its step."""
    argv = ["sinfo", "--noheader", "--format=%G"]
    argv += [f"--partition={site.partition}"] if site.partition else []
    try:
        shown = run(argv, timeout_s=_PATIENCE_S).stdout
    except SiteError:
        shown = ""
    types = sorted(set(_TYPED.findall(shown)))
    steps = []
    if types and site.gpu_type not in types:
        steps.append(f"gpu_type to {' or '.join(types)}")
    if site.gpus == "gpus-per-node":
        steps.append('gpus to "gres"')
    steps.append('gpus to "none" if jobs get whole nodes with all their GPUs')
    return f"set in the site profile {', or '.join(steps)}"
