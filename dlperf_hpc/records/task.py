"""Which task of which launch this process belongs to, from the environment it was started in."""

from __future__ import annotations

import os
from collections.abc import Mapping

from dlperf_hpc.errors import LedgerError

ARRAY_MARK = "dlperf_hpc: array"  # with the array's token: whose output this is
LAUNCH_MARK = "dlperf_hpc: launch"  # with the launch id: where a launch begins in the output
SETUP_MARK = "dlperf_hpc: setup ended with exit code"  # with the code and the line that failed
PMI2_FAULT = (
    r"mpi/pmi2: .*value not properly terminated"  # of Slurm's own; ranks then wait for ever
)
REQUEUE_BOUND = "# put back more often than requeue allows"  # ends the setup line that says so
REPEAT = "DLPERF_TURN"  # which of its runs a job measures now, from 0, where it has several
EXCLUDED = "DLPERF_EXCLUDED"  # the nodes that an array may not have whatever its repeats had
JOB_SECONDS = "DLPERF_JOB_SECONDS"  # how old the job was as this repeat began
MPI_VARIABLE = "DLPERF_MPI"  # how ranks find each other: mpi, or none where there is one only
NO_MPI = "none"
REQUEUE = 75  # the epilogue's exit code where the scheduler may put the task back in the queue
JOB_ENDS = 76  # the epilogue's exit code where no other run of this job can follow


def task_index(env: Mapping[str, str] = os.environ) -> int:
    """Index in the job array; LedgerError outside of one."""
    for name in ("SUBMITIT_MPIEXEC_TASK", "SLURM_ARRAY_TASK_ID"):
        if env.get(name, "").isdigit():
            return int(env[name])
    raise LedgerError("SLURM_ARRAY_TASK_ID is not set: nothing says which task this is")


def repeat_in_job(env: Mapping[str, str] = os.environ) -> int:
    """Which of its job's runs this is, from 0."""
    return int(env.get(REPEAT) or 0)


def job_seconds(env: Mapping[str, str] = os.environ) -> float:
    """How long the job had run before this run began; s."""
    return float(env.get(JOB_SECONDS) or 0)


def task_name(env: Mapping[str, str] = os.environ) -> str:
    """``<job>_<index>``: what Slurm calls the task, and the stem of its output file in jobs/."""
    if "SUBMITIT_MPIEXEC_JOB_ID" in env:
        return env["SUBMITIT_MPIEXEC_JOB_ID"]
    job = env.get("SLURM_ARRAY_JOB_ID") or env.get("SLURM_JOB_ID", "no-job")
    return f"{job}_{env.get('SLURM_ARRAY_TASK_ID', '0')}"


def shared_job(launch: str) -> str | None:
    """The job of a launch that was one of several runs of it, as ``<job>_<index>.<restarts>``."""
    job, _, repeat = launch.rpartition(".")
    return job if "." in job and repeat else None


def launch_id(env: Mapping[str, str] = os.environ) -> str:
    """Shared by all processes of one launch and by no other: the task, its restarts, its repeat."""
    suffix = f".{env[REPEAT]}" if env.get(REPEAT) else ""
    return f"{task_name(env)}.{env.get('SLURM_RESTART_COUNT', '0')}{suffix}"
