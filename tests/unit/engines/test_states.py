"""Slurm's states as ours, and its ways of writing tasks down."""

from __future__ import annotations

import os

import pytest
from queueing import printed_by_squeue

from dlperf_hpc.engines.slurm.query import (
    BEGIN,
    END,
    SLURM_STATES,
    TO_DO,
    JobState,
    _of,
    marked_rows,
    rows_of_sacct,
    status_of,
    task_indices,
    to_do_of,
)
from dlperf_hpc.errors import SiteError
from dlperf_hpc.model.result import Status

# slurm/slurm.h: enum job_states, and the flags that squeue and sacct show in their place.
BASE = """
PENDING RUNNING SUSPENDED COMPLETED CANCELLED FAILED TIMEOUT NODE_FAIL PREEMPTED BOOT_FAIL DEADLINE
OUT_OF_MEMORY
"""
FLAGS = """
LAUNCH_FAILED REQUEUED REQUEUE_HOLD SPECIAL_EXIT RESIZING CONFIGURING COMPLETING STOPPED
RECONFIG_FAIL POWER_UP_NODE REVOKED REQUEUE_FED RESV_DEL_HOLD SIGNALING STAGE_OUT EXPEDITING
"""
# src/common/job_state_reason.c of Slurm 26.05, but for the reasons of jobs that have ended; and the
# sentences that squeue prints in their place.
REASONS = """
None Prolog Priority Dependency Resources PartitionNodeLimit PartitionTimeLimit PartitionDown
PartitionInactive JobHeldAdmin JobHeldUser NvidiaImexChannels BeginTime Licenses AssociationJobLimit
AssociationResourceLimit AssociationTimeLimit Reservation ReqNodeNotAvail SchedDefer NodeDown
BadConstraints SystemFailure JobLaunchFailure InvalidAccount InvalidQOS QOSUsageThreshold
QOSJobLimit QOSResourceLimit QOSTimeLimit Cleaning QOSNotAllowed AccountNotAllowed
DependencyNeverSatisfied QOSGrpCpuLimit QOSGrpCPUMinutesLimit QOSGrpCPURunMinutesLimit
QOSGrpJobsLimit QOSGrpMemLimit QOSGrpNodeLimit QOSGrpSubmitJobsLimit QOSGrpWallLimit
QOSMaxCpuPerJobLimit QOSMaxCpuMinutesPerJobLimit QOSMaxNodePerJobLimit QOSMaxWallDurationPerJobLimit
QOSMaxCpuPerUserLimit QOSMaxJobsPerUserLimit QOSMaxNodePerUserLimit QOSMaxSubmitJobPerUserLimit
QOSMinCpuNotSatisfied AssocGrpCpuLimit AssocGrpCPUMinutesLimit AssocGrpCPURunMinutesLimit
AssocGrpJobsLimit AssocGrpMemLimit AssocGrpNodeLimit AssocGrpSubmitJobsLimit AssocGrpWallLimit
AssocMaxJobsLimit AssocMaxCpuPerJobLimit AssocMaxCpuMinutesPerJobLimit AssocMaxNodePerJobLimit
AssocMaxWallDurationPerJobLimit AssocMaxSubmitJobLimit JobHoldMaxRequeue JobArrayTaskLimit
BurstBufferResources BurstBufferStageIn BurstBufferOperation AssocGrpUnknown AssocGrpUnknownMinutes
AssocGrpUnknownRunMinutes AssocMaxUnknownPerJob AssocMaxUnknownPerNode AssocMaxUnknownMinutesPerJob
AssocMaxCpuPerNode AssocGrpMemMinutes AssocGrpMemRunMinutes AssocMaxMemPerJob AssocMaxMemPerNode
AssocMaxMemMinutesPerJob AssocGrpNodeMinutes AssocGrpNodeRunMinutes AssocMaxNodeMinutesPerJob
AssocGrpEnergy AssocGrpEnergyMinutes AssocGrpEnergyRunMinutes AssocMaxEnergyPerJob
AssocMaxEnergyPerNode AssocMaxEnergyMinutesPerJob AssocGrpGRES AssocGrpGRESMinutes
AssocGrpGRESRunMinutes AssocMaxGRESPerJob AssocMaxGRESPerNode AssocMaxGRESMinutesPerJob
AssocGrpLicense AssocGrpLicenseMinutes AssocGrpLicenseRunMinutes AssocMaxLicensePerJob
AssocMaxLicenseMinutesPerJob AssocGrpBB AssocGrpBBMinutes AssocGrpBBRunMinutes AssocMaxBBPerJob
AssocMaxBBPerNode AssocMaxBBMinutesPerJob QOSGrpUnknown QOSGrpUnknownMinutes QOSGrpUnknownRunMinutes
QOSMaxUnknownPerJob QOSMaxUnknownPerNode QOSMaxUnknownPerUser QOSMaxUnknownMinutesPerJob
QOSMinUnknown QOSMaxCpuPerNode QOSGrpMemoryMinutes QOSGrpMemoryRunMinutes QOSMaxMemoryPerJob
QOSMaxMemoryPerNode QOSMaxMemoryPerUser QOSMaxMemoryMinutesPerJob QOSMinMemory QOSGrpNodeMinutes
QOSGrpNodeRunMinutes QOSMaxNodeMinutesPerJob QOSMinNode QOSGrpEnergy QOSGrpEnergyMinutes
QOSGrpEnergyRunMinutes QOSMaxEnergyPerJob QOSMaxEnergyPerNode QOSMaxEnergyPerUser
QOSMaxEnergyMinutesPerJob QOSMinEnergy QOSGrpGRES QOSGrpGRESMinutes QOSGrpGRESRunMinutes
QOSMaxGRESPerJob QOSMaxGRESPerNode QOSMaxGRESPerUser QOSMaxGRESMinutesPerJob QOSMinGRES
QOSGrpLicense QOSGrpLicenseMinutes QOSGrpLicenseRunMinutes QOSMaxLicensePerJob QOSMaxLicensePerUser
QOSMaxLicenseMinutesPerJob QOSMinLicense QOSGrpBB QOSGrpBBMinutes QOSGrpBBRunMinutes QOSMaxBBPerJob
QOSMaxBBPerNode QOSMaxBBPerUser QOSMinBB MaxBBPerAccount MaxCpuPerAccount MaxEnergyPerAccount
MaxGRESPerAccount MaxNodePerAccount MaxLicensePerAccount MaxMemoryPerAccount MaxUnknownPerAccount
MaxJobsPerAccount MaxSubmitJobsPerAccount PartitionConfig AccountingPolicy FedJobLock MaxMemPerLimit
AssocGrpBilling AssocGrpBillingMinutes AssocGrpBillingRunMinutes AssocMaxBillingPerJob
AssocMaxBillingPerNode AssocMaxBillingMinutesPerJob QOSGrpBilling QOSGrpBillingMinutes
QOSGrpBillingRunMinutes QOSMaxBillingPerJob QOSMaxBillingPerNode QOSMaxBillingPerUser
QOSMaxBillingMinutesPerJob MaxBillingPerAccount QOSMinBilling ReservationDeleted ReservationInvalid
Constraints MaxBBRunMinsPerAccount MaxBillingRunMinsPerAccount MaxCpuRunMinsPerAccount
MaxEnergyRunMinsPerAccount MaxGRESRunMinsPerAccount MaxNodeRunMinsPerAccount
MaxLicenseRunMinsPerAccount MaxMemoryRunMinsPerAccount MaxUnknownRunMinsPerAccount
MaxBBRunMinsPerUser MaxBillingRunMinsPerUser MaxCpuRunMinsPerUser MaxEnergyRunMinsPerUser
MaxGRESRunMinsPerUser MaxNodeRunMinsPerUser MaxLicenseRunMinsPerUser MaxMemoryRunMinsPerUser
MaxUnknownRunMinsPerUser MaxPoweredUpNodes MpiPortsBusy
"""
SENTENCES = """
Job's QOS not permitted to use this partition (main allows a not b)
Job's account not permitted to use this partition (main allows a not b)
Job is at or exceeds QOS normal's group max TRES(cpu) minutes of 10 with 20
Job is at or exceeds association (acc=a/user=b/part=c) group wall limit 10 with 20
License request 'a' is no longer valid, holding job
Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions
ReqNodeNotAvail, May be reserved for other job
ReqNodeNotAvail, Reserved for maintenance
ReqNodeNotAvail, UnavailableNodes:n[1-3]
Reservation a was deleted
Reservation a is invalid
burst_buffer/lua: slurm_bb_pre_run: it failed
job requeued in held state
job requeued in special exit state
launch failed requeued held
launch failure limit exceeded requeued held
uid 1000 not in group permitted to use this partition (main). groups allowed: a
user env retrieval failed requeued held
"""
EXPECTED = {
    Status.PENDING: "PENDING REQUEUED REQUEUE_HOLD REQUEUE_FED SPECIAL_EXIT POWER_UP_NODE"
    " RESV_DEL_HOLD EXPEDITING",
    Status.RUNNING: "RUNNING SUSPENDED RESIZING CONFIGURING COMPLETING STOPPED SIGNALING STAGE_OUT",
    Status.UNKNOWN: "COMPLETED REVOKED",
    Status.CANCELLED: "CANCELLED",
    Status.FAILED: "FAILED LAUNCH_FAILED",
    Status.TIMEOUT: "TIMEOUT DEADLINE",
    Status.NODE_FAILED: "NODE_FAIL BOOT_FAIL RECONFIG_FAIL",
    Status.PREEMPTED: "PREEMPTED",
    Status.OUT_OF_MEMORY: "OUT_OF_MEMORY",
}


def test_the_table_is_complete() -> None:
    assert sorted(SLURM_STATES) == sorted((BASE + FLAGS).split())


@pytest.mark.parametrize(
    ("state", "status"),
    [(state, status) for status, states in EXPECTED.items() for state in states.split()],
)
def test_every_state(state: str, status: Status) -> None:
    assert status_of(state) is status


def test_every_state_is_expected_once() -> None:
    assert sorted(" ".join(EXPECTED.values()).split()) == sorted(SLURM_STATES)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("CANCELLED by 1000", Status.CANCELLED),
        ("CANCELLED+", Status.CANCELLED),
        ("FAILED+", Status.FAILED),
        (" TIMEOUT ", Status.TIMEOUT),
        ("OUT_OF_ME+", Status.UNKNOWN),
        ("running", Status.RUNNING),
        ("", Status.UNKNOWN),
        ("SPLENDID", Status.UNKNOWN),
        ("123", Status.UNKNOWN),
    ],
)
def test_as_squeue_and_sacct_print_them(text: str, status: Status) -> None:
    assert status_of(text) is status


def test_no_state_says_ok() -> None:
    """Only a log does."""
    assert Status.OK not in SLURM_STATES.values()


def test_what_can_never_start_is_rejected_only_while_it_waits() -> None:
    never = [each for each in REASONS.split() if status_of("PENDING", each) is Status.REJECTED]
    assert {"PartitionNodeLimit", "QOSMaxGRESPerJob", "AssocMaxCpuPerNode", "QOSMinGRES"} < {*never}
    for reason in never:
        assert status_of("RUNNING", reason) is Status.RUNNING
        assert status_of("CANCELLED by 0", reason) is Status.CANCELLED
    passing = {"Resources", "Priority", "None", "JobArrayTaskLimit", "ReqNodeNotAvail"}
    passing |= {"QOSMaxGRESPerUser", "QOSMaxJobsPerUserLimit", "MaxGRESPerAccount", "AssocGrpGRES"}
    assert passing < {*REASONS.split()} - {*never} and status_of("PENDING", "") is Status.PENDING


@pytest.mark.parametrize(
    ("text", "indices"),
    [
        ("3", [3]),
        ("0", [0]),
        ("[1-9%4]", list(range(1, 10))),
        ("[0,2-4,7]", [0, 2, 3, 4, 7]),
        ("[0,2-4,7%1]", [0, 2, 3, 4, 7]),
        ("[5]", [5]),
        ("[5%1]", [5]),
        ("", []),
        ("[]", []),
        ("N/A", []),
        ("[1-]", [1]),
        ("[x-3]", []),
        ("[1,3,...]", [1, 3]),
    ],
)
def test_task_indices(text: str, indices: list[int]) -> None:
    assert list(task_indices(text)) == indices


def test_rows_of_sacct() -> None:
    text = """\
12_[2-3%1]|PENDING|JobArrayTaskLimit|
12_0|RUNNING|None|n[1-2]
12_1|CANCELLED by 1000|None|n3
12_1.batch|CANCELLED||n3
13|FAILED|NonZeroExitCode|n1
14+0|RUNNING|None|n1
slurm_load_jobs error: Unable to contact slurm controller

12_4
"""
    tasks = rows_of_sacct(text)
    assert tasks == {
        ("12", 0): JobState("RUNNING", "None", "n[1-2]"),
        ("12", 1): JobState("CANCELLED by 1000", "None", "n3"),
        ("12", 2): JobState("PENDING", "JobArrayTaskLimit", ""),
        ("12", 3): JobState("PENDING", "JobArrayTaskLimit", ""),
        ("13", -1): JobState("FAILED", "NonZeroExitCode", "n1"),
    }
    wanted = {("12", 1), ("12", 9), ("13", 0), ("13", 5), ("15", 0)}
    assert {key: task.state for key, task in _of(wanted, tasks).items()} == {
        ("12", 1): "CANCELLED by 1000",
        ("13", 0): "FAILED",
        ("13", 5): "FAILED",
    }


TIMES = ("1:00", "10:00", "N/A", str(os.getuid()))
ROWS = printed_by_squeue("7_1|RUNNING|None|n1|a name|a|b\nc", "8_0|PENDING|Priority||x|(null)")


@pytest.mark.parametrize(
    "text",
    [
        ROWS,
        "Welcome to the cluster, job 24!\n" + ROWS + "Bye\n",
        ROWS.replace(f"{BEGIN}8", f"<hr>\n\n{BEGIN}8"),
    ],
)
def test_rows_of_squeue_among_other_words(text: str) -> None:
    assert marked_rows(text, 10) == [
        [*("7_1", "RUNNING", "None", "n1"), *TIMES, "a name", "a|b\nc"],
        [*("8_0", "PENDING", "Priority", ""), *TIMES, "x", "(null)"],
    ]


def test_a_squeue_without_jobs_shows_its_header() -> None:
    assert marked_rows(printed_by_squeue(), 9) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Welcome to the cluster\n",
        "<html><body>Please log in</body></html>\n",
        ROWS[: -len(END) - 1],
        ROWS[:-1].removesuffix(END) + "\n",
        ROWS.replace("|Priority|", "|"),
        ROWS.partition("\n")[2],  # no header
        ROWS.replace(f"b\nc{END}", "b", 1),  # the next row begins within one
    ],
)
def test_what_squeue_does_not_print_is_no_answer(text: str) -> None:
    """... from which nobody may conclude that a job is gone."""
    with pytest.raises(SiteError, match="squeue: its answer cannot be understood"):
        marked_rows(text, 10)


def test_what_to_do_about_a_reason() -> None:
    known = [*REASONS.split(), *SENTENCES.strip().split("\n")]
    assert [reason for reason in known if not to_do_of(reason)] == []
    released = [reason for reason in known if "scontrol release" in to_do_of(reason)]
    states = ("held", "special exit")
    held = ["JobHeldUser", *(f"job requeued in {state} state" for state in states)]
    assert released == [*held, "user env retrieval failed requeued held"]
    for reason, words in (
        ("ReqNodeNotAvail, UnavailableNodes:n[1-3]", "sinfo -R"),
        ("QOSMaxJobsPerUserLimit", "sacctmgr show qos"),
        ("AssocGrpCpuLimit", "sacctmgr show assoc"),
        ("ReservationDeleted", "is gone"),
        ("Reservation", "scontrol show reservation"),
        ("JobHeldAdmin", "administrators"),
    ):
        assert words in to_do_of(reason), reason
    assert to_do_of("Splendid") == to_do_of("TimeLimit") == ""
    assert {to_do_of(reason) for reason in known} == {*TO_DO.values()}
