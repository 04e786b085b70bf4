"""What Slurm has of a sweep, and what the sweep's directory has of its runs: to compare the two."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from places import BUSY

from dlperf_hpc.engines.slurm.query import BEGIN, END, status_of, task_indices
from dlperf_hpc.model.result import Status
from dlperf_hpc.records.layout import RunPaths
from dlperf_hpc.records.ledger import read_ledger
from dlperf_hpc.records.logfile import read_end

NO_PYTHON = """\
2: slurmstepd-n4: error: execve(): /no/python: No such file or directory
0: slurmstepd-n3: error: execve(): /no/python: No such file or directory
srun: error: n4: tasks 2-3: Exited with exit code 2
srun: launch/slurm: _step_signal: Terminating StepId=6.0
srun: error: n3: tasks 0-1: Exited with exit code 2
"""
"""What a task prints whose Python is on no node."""


class Queue:
    """A Slurm's queue, asked with its own commands."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env = dict(env)

    def call(self, *argv: str) -> str:
        """A command that must succeed; what it prints."""
        done = subprocess.run(argv, env=self.env, capture_output=True, timeout=60 * BUSY)
        assert done.returncode == 0, (argv, done.stderr)
        return done.stdout.decode(errors="backslashreplace")  # comments may be anything

    def rows(self, root: Path) -> list[tuple[str, str, str, str]]:
        """Job, index, state and token of every task that bears a token of this sweep."""
        tokens = set(tokens_of(root))
        text = self.call("squeue", "-h", "-r", "-t", "all", "-o", "%F|%K|%T|%k")
        rows = [line.split("|", 3) for line in text.splitlines()]
        return [(row[0], row[1], row[2], row[3]) for row in rows if row[3] in tokens]

    def jobs(self, root: Path) -> dict[str, str]:
        """The token of each job of this sweep, alive or not."""
        return {job: token for job, _, _, token in self.rows(root)}

    def alive(self, root: Path) -> list[tuple[str, int]]:
        """Token and index of every task of this sweep that waits or runs."""
        return [
            (token, index)
            for _, indices, state, token in self.rows(root)
            if not status_of(state).finished and status_of(state) is not Status.UNKNOWN
            for index in task_indices(indices)
        ]


def row_of_task(row: str, times: str = "1:00|10:00|N/A") -> str:
    """A row ``7_1|RUNNING|None|n1|name|comment`` as squeue prints it of a task, with the time that
    it has run, its limit, and when it is expected to start."""
    fields = row.split("|", 4)
    return "|".join([*fields[:4], times, str(os.getuid()), *fields[4:]])


def printed_by_squeue(*rows: str, times: str = "1:00|10:00|N/A") -> str:
    """What squeue prints if these are its rows (:func:`row_of_task`)."""
    header = "JOBID|STATE|REASON|NODELIST|NAME|COMMENT"
    timed = (row_of_task(row, times) for row in (header, *rows))
    return "".join(f"{BEGIN}{row}{END}\n" for row in timed)


def tokens_of(root: Path) -> list[str]:
    """The tokens of a sweep's arrays."""
    return [array.token for array in read_ledger(root).arrays]


def live_runs(queue: Queue, root: Path) -> list[str]:
    """The run of every task that waits or runs: one that is there twice is in two jobs."""
    arrays = {array.token: array for array in read_ledger(root).arrays}
    return sorted(arrays[token].tasks[index].id for token, index in queue.alive(root))


def executions(root: Path) -> dict[str, list[str]]:
    """How every attempt at each run ended, in their order; unknown where its log has no end."""
    found = {}
    for run in read_ledger(root).manifest.runs:
        paths = RunPaths(root, run.id)
        earlier = paths.attempts.glob(f"{paths.log.stem}.attempt*.log")
        logs = sorted(earlier, key=lambda path: int(path.stem.rpartition("attempt")[2]))
        logs += [paths.log] if paths.log.exists() else []
        ends = [read_end(path) for path in logs]
        found[run.id] = [str(end.values["status"]) if end else "unknown" for end in ends]
    return found


def files_of_ok_runs(root: Path) -> dict[Path, bytes]:
    """Log and record of every run that ended ok, and what its earlier attempts left."""
    kept: dict[Path, bytes] = {}
    for run in read_ledger(root).manifest.runs:
        paths = RunPaths(root, run.id)
        end = read_end(paths.log)
        if end is not None and end.values.get("status") == Status.OK.value:
            there = [paths.log, paths.record, *paths.attempts.glob(f"{paths.log.stem}.attempt*")]
            kept.update({path: path.read_bytes() for path in there if path.is_file()})
    return kept


__all__ = [
    *("NO_PYTHON", "Queue", "executions", "files_of_ok_runs", "layout", "live_runs"),
    *("printed_by_squeue", "row_of_task", "tokens_of"),
]
