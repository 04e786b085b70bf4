"""What can become of a run: one enumeration, one meaning each."""

from __future__ import annotations

from enum import Enum


class Status(str, Enum):
    """State of a run; the value is what CSVs, records and logs hold."""

    PENDING = "pending"  # not started, as far as disk and scheduler know
    RUNNING = "running"
    OK = "ok"
    PARTIAL = "partial"  # has iterations, but not the window asked for: outside every median
    FAILED = "failed"  # a rank raised, was killed, hung, or gave a number that may not be reported
    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"  # over the run's or the job's time limit
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    NODE_FAILED = "node_failed"
    HELD_BACK = "held-back"  # not begun: another run of its environment died of the environment
    REJECTED = "rejected"  # the scheduler would not take it: it can never run as asked
    UNKNOWN = "unknown"  # neither disk nor scheduler says more; not the same as failed

    @property
    def finished(self) -> bool:
        """Nothing more will come of this attempt."""
        return self not in (Status.PENDING, Status.RUNNING, Status.UNKNOWN)

    @property
    def bad(self) -> bool:
        """Finished without a number that counts."""
        return self.finished and self is not Status.OK
