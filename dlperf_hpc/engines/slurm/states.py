"""Slurm's job states as ours, and what to do about the reasons of jobs that wait.

The table of states is complete for those in Slurm's own source: base states and the flags that
squeue and sacct show in their place, slurm/slurm.h (``enum job_states``, ``JOB_STATE_FLAGS``). A
state that is not here is unknown, never failed.
"""

from __future__ import annotations

from dlperf_hpc.model.result import Status

SLURM_STATES = {
    "PENDING": Status.PENDING,
    "RUNNING": Status.RUNNING,
    "SUSPENDED": Status.RUNNING,
    "COMPLETED": Status.UNKNOWN,  # without a record: not visible yet, or it never wrote one
    "CANCELLED": Status.CANCELLED,
    "FAILED": Status.FAILED,
    "TIMEOUT": Status.TIMEOUT,
    "NODE_FAIL": Status.NODE_FAILED,
    "PREEMPTED": Status.PREEMPTED,
    "BOOT_FAIL": Status.NODE_FAILED,
    "DEADLINE": Status.TIMEOUT,
    "OUT_OF_MEMORY": Status.OUT_OF_MEMORY,
    "LAUNCH_FAILED": Status.FAILED,
    "REQUEUED": Status.PENDING,
    "REQUEUE_HOLD": Status.PENDING,
    "REQUEUE_FED": Status.PENDING,
    "SPECIAL_EXIT": Status.PENDING,
    "RESIZING": Status.RUNNING,
    "CONFIGURING": Status.RUNNING,
    "COMPLETING": Status.RUNNING,
    "STOPPED": Status.RUNNING,
    "SIGNALING": Status.RUNNING,
    "STAGE_OUT": Status.RUNNING,
    "EXPEDITING": Status.PENDING,
    "POWER_UP_NODE": Status.PENDING,
    "RECONFIG_FAIL": Status.NODE_FAILED,
    "RESV_DEL_HOLD": Status.PENDING,
    "REVOKED": Status.UNKNOWN,  # a federation's other cluster runs it: that one knows
}

# Reasons of a pending job that waiting does not mend: what was asked cannot be had here.
NEVER_STARTS = frozenset(
    {
        "PartitionNodeLimit",
        "PartitionTimeLimit",
        "BadConstraints",
        "InvalidAccount",
        "InvalidQOS",
        "AccountNotAllowed",
        "QOSNotAllowed",
        "QOSMaxNodePerJobLimit",
        "QOSMaxWallDurationPerJobLimit",
        "AssocMaxNodePerJobLimit",
        "AssocMaxWallDurationPerJobLimit",
        "DependencyNeverSatisfied",
    }
)

_NODES = "`sinfo -R` says why nodes are out; `dlperf rerun DIR --exclude-nodes` keeps off them"
_LIMIT = "waits until your running jobs are below a limit of the site's: `sacctmgr show {0}`"
_RERUN = "`dlperf rerun DIR --status rejected` cancels it and asks anew: "
# What to do about the reason of a waiting job, by the reason or its beginning; the first counts.
TO_DO = {
    "PartitionTimeLimit": _RERUN + "add --time with what `sinfo -o '%P %l'` allows",
    "PartitionNodeLimit": _RERUN + "add --site with a partition of more nodes (`sinfo -o '%P %s'`)",
    "QOSMaxWallDurationPerJobLimit": _RERUN + "add --time with what `sacctmgr show qos` allows",
    "AssocMaxWallDurationPerJobLimit": _RERUN + "add --time with what `sacctmgr show assoc` allows",
    "QOSMaxNodePerJobLimit": _RERUN + "add --site with another qos (`sacctmgr show qos`)",
    "AssocMaxNodePerJobLimit": _RERUN + "add --site with another account",
    "QOSNotAllowed": _RERUN + "add --site with another qos",
    "InvalidQOS": _RERUN + "add --site with another qos",
    "InvalidAccount": _RERUN + "add --site with another account",
    "AccountNotAllowed": _RERUN + "add --site with another account",
    "BadConstraints": _RERUN + "add --site with another constraint",
    "DependencyNeverSatisfied": _RERUN
    + "the job that it depends on did not end as it should; add --site if the profile names that"
    " job, or it will wait in vain again",
    "ReqNodeNotAvail": _NODES,
    "NodeDown": _NODES,
    "JobHeldUser": "you hold it: `scontrol release JOB` lets it start, `dlperf cancel DIR` ends it",
    "JobHeldAdmin": "the site holds it: ask its administrators, or `dlperf cancel DIR`",
    "JobHold": "it is held: `scontrol release JOB` lets it start, `dlperf cancel DIR` ends it",
    "launch failed requeued held": "it could not start and is held: `scontrol release JOB`",
    "BeginTime": "starts at its begin time: a job that was put back waits some two minutes",
    "Dependency": "starts after the job it depends on: `scontrol show job JOB` names that job",
    "ReservationDeleted": "its reservation is gone: add --site with another one to `dlperf rerun`",
    "Reservation": "waits for its reservation: `scontrol show reservation` says when that begins",
    "PartitionDown": "the partition takes jobs but starts none: ask the site, or wait",
    "PartitionInactive": "the partition takes jobs but starts none: ask the site, or wait",
    "JobArrayTaskLimit": "so many at once, as array_parallelism of the site profile says",
    "Licenses": "waits for a license: `scontrol show licenses`",
    "QOS": _LIMIT.format("qos"),
    "MaxQOS": _LIMIT.format("qos"),
    "Assoc": _LIMIT.format("assoc"),
    "MaxJobsPerAccount": _LIMIT.format("assoc"),
    "Resources": "starts when the nodes that it asks for are free",
    "Priority": "starts after jobs that were there before it, or have a higher priority",
}


def to_do_of(reason: str) -> str:
    """What to do about the reason of a waiting job; '' where nobody knows."""
    return next((words for name, words in TO_DO.items() if reason.startswith(name)), "")


def status_of(state: str, reason: str = "") -> Status:
    """Our status for a state as squeue or sacct prints it (``CANCELLED by 1000``, ``FAILED+``)."""
    word = state.strip().rstrip("+").split(" ")[0].upper()
    status = SLURM_STATES.get(word, Status.UNKNOWN)
    if status is Status.PENDING and reason in NEVER_STARTS:
        return Status.REJECTED
    return status
