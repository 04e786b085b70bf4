"""Names that all who work on a sweep agree on: its files, its jobs' variables and marks.

docs/log-format.md draws the files below a sweep's directory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dlperf_hpc.errors import LedgerError

MANIFEST = "manifest.json"
MANIFEST_SCHEMA = "dlperf-manifest/1"
RECORD_SCHEMA = "dlperf-record/1"
SUBMISSIONS = "submissions.jsonl"
FINAL_STATES = "verdicts.jsonl"
ARRAYS = "arrays"  # one file for each array made after the manifest was: reruns
LOCK = ".submitting"  # held by who is submitting, and says who that is
LIFE = ".log.lock"  # ends the name of what rank 0 holds beside its log while it lives
STOP = ".stop-submitting"  # by whom jobs are cancelled, for who is submitting; a random word
SPEC_COPY = "sweep.toml"
EARLIER_SPEC = "sweep.{}.toml"  # before the sweep grew, numbered from 1
HELD_BACK = "held-back.{}.json"  # of an environment that cannot run: records/quarantine.py
JOBS = "jobs"  # submitit's folder: batch scripts and what srun or mpiexec printed
REPORT = "report"
ATTEMPTS = "attempts"  # beside the logs: earlier attempts, and what single ranks left


def life_of(log: Path) -> Path:
    """What rank 0 holds while it lives, readable by those alone who can write the log."""
    return log.with_name(f".{log.stem}{LIFE}")


@dataclass(frozen=True)
class RunPaths:
    """The files of one run: DLPerf's own name for the log, the record beside it."""

    root: Path
    run_id: str

    @cached_property
    def log(self) -> Path:
        """The job log: enough to rebuild every reported number of the run."""
        return self.root / f"{self.run_id}.log"

    @cached_property
    def record(self) -> Path:
        """The run record: what the log says, and per-step, per-rank detail."""
        return self.root / f"{self.run_id}.json"

    @property
    def attempts(self) -> Path:
        """Earlier attempts, and what single ranks left when they failed."""
        return self.log.parent / ATTEMPTS

    def earlier(self, path: Path, attempt: int) -> Path:
        """Where ``path`` of a finished attempt moves when the next one begins."""
        return self.attempts / f"{path.stem}.attempt{attempt}{path.suffix}"

    def failure(self, attempt: int, rank: int) -> Path:
        """What one rank of an attempt left when it failed."""
        return self.attempts / f"{self.log.stem}.attempt{attempt}.rank{rank}.json"

    def checkpoint(self, attempt: int) -> Path:
        """The directory of the checkpoint that an attempt saves, where one is measured."""
        return self.attempts / f"{self.log.stem}.attempt{attempt}.checkpoint"

    def supervised(self, attempt: int) -> Path:
        """The directory in which the supervisors of an attempt of a user's program leave what they
        tell one another and the epilogue, while it runs."""
        return self.attempts / f"{self.log.stem}.attempt{attempt}.program"

    def scratch(self, attempt: int) -> Path:
        """An attempt's own directory for what a user's program writes, gone when it ends."""
        return self.attempts / f"{self.log.stem}.attempt{attempt}.scratch"

    def output(self, attempt: int) -> Path:
        """An attempt's own directory for what a user's program writes, and which stays."""
        return self.attempts / f"{self.log.stem}.attempt{attempt}.out"

    def failures(self, attempt: int) -> list[Path]:
        """All failure files of an attempt."""
        return sorted(self.attempts.glob(f"{self.log.stem}.attempt{attempt}.rank*.json"))


def trial_of(root: Path, case_id: str, size: int) -> Path:
    """What came of a trial of a batch size, of a case whose largest one is to be found."""
    case = root / case_id
    return case.parent / ATTEMPTS / f"{case.name}.batch{size}.json"


# --- the job of a run: marks in its output, its variables, its task


ARRAY_MARK = "dlperf_hpc: array"  # with the array's token: whose output this is
LAUNCH_MARK = "dlperf_hpc: launch"  # with the launch id: where a launch begins in the output
SETUP_MARK = "dlperf_hpc: setup ended with exit code"  # with the code and the line that failed
PMI2_FAULT = (
    r"mpi/pmi2: .*value not properly terminated"  # of Slurm's own; ranks then wait for ever
)
# MPICH sends 4096 bytes from where UCX's address begins, in lines as long as their content makes
# them; by libfabric it sends the address alone. Ranks of our own: train.probe.node.initialised_mpi.
PMI2_CURE = (
    'set UCX_TLS = "tcp,self" in env of its environment in the site profile, or, if that is not'
    ' enough, MPIR_CVAR_CH4_NETMOD = "ofi"'
)
REQUEUE_BOUND = "# put back more often than requeue allows"  # ends the setup line that says so
REPEAT = "DLPERF_TURN"  # which of its runs a job measures now, from 0, where it has several
BOUND = "DLPERF_BOUND"  # whose directory and which plan a job was submitted for: records/ledger.py
EXCLUDED = "DLPERF_EXCLUDED"  # the nodes that an array may not have whatever its repeats had
JOB_SECONDS = "DLPERF_JOB_SECONDS"  # how old the job was as this repeat began
MPI_VARIABLE = "DLPERF_MPI"  # how ranks find each other: mpi, or none where there is one only
NO_MPI = "none"
LOCK_MARK = "DLPERF_LOCK"  # of which sweep's lock the ranks are that this machine runs
REQUEUE = 75  # the epilogue's exit code where the scheduler may put the task back in the queue
JOB_ENDS = 76  # the epilogue's exit code where no other run of this job can follow
INTERRUPTED = 256  # for the epilogue: in place of the ranks' exit code; no process has it


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
