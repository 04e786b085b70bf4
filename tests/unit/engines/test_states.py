"""Slurm's states as ours, and its ways of writing tasks down."""

from __future__ import annotations

import os

import pytest
from queueing import printed_by_squeue

from dlperf_hpc.engines.slurm.query import (
    BEGIN,
    END,
    NEVER_STARTS,
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
    assert NEVER_STARTS
    for reason in NEVER_STARTS:
        assert status_of("PENDING", reason) is Status.REJECTED
        assert status_of("RUNNING", reason) is Status.RUNNING
        assert status_of("CANCELLED by 0", reason) is Status.CANCELLED
    for reason in ("Resources", "Priority", "None", "", "JobArrayTaskLimit", "ReqNodeNotAvail"):
        assert status_of("PENDING", reason) is Status.PENDING


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
    assert all(to_do_of(reason) for reason in NEVER_STARTS)
    for reason, words in (
        ("ReqNodeNotAvail, UnavailableNodes:n[1-3]", "sinfo -R"),
        ("QOSMaxJobsPerUserLimit", "sacctmgr show qos"),
        ("AssocGrpCpuLimit", "sacctmgr show assoc"),
        ("ReservationDeleted", "is gone"),
        ("Reservation", "scontrol show reservation"),
        ("JobHeldAdmin", "administrators"),
    ):
        assert words in to_do_of(reason), reason
    assert to_do_of("Splendid") == to_do_of("None") == ""
    assert [name for name in TO_DO if to_do_of(name) != TO_DO[name]] == []
