"""Where everything of a sweep lies below its directory (docs/log-format.md draws it)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MANIFEST = "manifest.json"
SUBMISSIONS = "submissions.jsonl"
FINAL_STATES = "verdicts.jsonl"
ARRAYS = "arrays"  # one file for each array made after the manifest was: reruns
LOCK = ".submitting"  # held by who is submitting; empty
STOP = ".stop-submitting"  # by whom jobs are cancelled, for who is submitting; a random word
SPEC_COPY = "sweep.toml"
EARLIER_SPEC = "sweep.{}.toml"  # before the sweep grew, numbered from 1
HELD_BACK = "held-back.{}.json"  # of an environment that cannot run: records/held.py
JOBS = "jobs"  # submitit's folder: batch scripts and what srun or mpiexec printed
REPORT = "report"
ATTEMPTS = "attempts"  # beside the logs: earlier attempts, and what single ranks left


@dataclass(frozen=True)
class RunPaths:
    """The files of one run: DLPerf's own name for the log, the record beside it."""

    root: Path
    run_id: str

    @property
    def log(self) -> Path:
        """The job log: enough to rebuild every reported number of the run."""
        return self.root / f"{self.run_id}.log"

    @property
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
