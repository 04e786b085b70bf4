"""Slurm's job states as ours: one table, complete for the states in Slurm's own source.

Source: base states and the flags that squeue and sacct show in their place, slurm/slurm.h
(``enum job_states``, ``JOB_STATE_FLAGS``). A state that is not here is unknown, never failed.
"""

from __future__ import annotations

from dlperf_hpc.records.status import Status

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


def status_of(state: str, reason: str = "") -> Status:
    """Our status for a state as squeue or sacct prints it (``CANCELLED by 1000``, ``FAILED+``)."""
    word = state.strip().rstrip("+").split(" ")[0].upper()
    status = SLURM_STATES.get(word, Status.UNKNOWN)
    if status is Status.PENDING and reason in NEVER_STARTS:
        return Status.REJECTED
    return status
