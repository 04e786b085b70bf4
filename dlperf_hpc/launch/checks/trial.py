"""A short job, and what is known of it: its state, its output, what its ranks told."""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dlperf_hpc.launch.checks.finding import Finding, Grade
from dlperf_hpc.launch.checks.targets import Target
from dlperf_hpc.launch.query import JobState
from dlperf_hpc.launch.site import Environment, Site
from dlperf_hpc.records import layout
from dlperf_hpc.train.probe.speech import MARK

END = f"{MARK}: the ranks have ended, code "  # last words of the batch script
_PART = re.compile(MARK + r" (\d+) (\w+) (\d+)/(\d+) (.*)")


@dataclass
class Trial:
    """A job and what came of it.

    ``parts`` are what each rank told, by rank; ``code`` is what srun left with, as far as its
    output shows here; ``started`` and ``over`` are when the scheduler first said so
    (time.monotonic); ``cancelled`` says why we have ended it.
    """

    target: Target
    site: Site
    directory: Path
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    job_id: str = ""
    refused: str = ""
    state: JobState | None = None
    started: float | None = None
    over: float | None = None
    ended: bool = False
    cancelled: str = ""
    code: int | None = None
    output: str = ""
    parts: dict[int, dict[str, Any]] = field(default_factory=dict)
    _answered: set[str] = field(default_factory=set)

    @property
    def environment(self) -> Environment:
        """The environment it tries, as the site profile has it."""
        return self.site.environment_named(self.target.environment)

    @property
    def logs(self) -> Path:
        """The parent of sweeps' directories."""
        return self.directory.parent.parent

    @property
    def exchange(self) -> Path:
        """Where files go to and fro."""
        return self.directory / "exchange"

    @property
    def never_launched(self) -> bool:
        """Slurm could not start the script: mostly, its output file cannot be opened there."""
        return self.state is not None and self.state.reason == "JobLaunchFailure"

    def found(self, grade: Grade, check: str, seen: str, to_do: str = "") -> Finding:
        """A finding of this job's environment."""
        return Finding(grade, check, seen, to_do, self.target.environment)

    def answer(self) -> None:
        """Give this machine's time for each file that a node has written."""
        with contextlib.suppress(OSError):
            for path in self.exchange.glob("ping-*[0-9]"):
                if path.name not in self._answered and not self.ended:
                    self._answered.add(path.name)
                    answer = path.with_name(path.name.replace("ping", "pong", 1))
                    fresh = answer.with_suffix(".tmp")
                    fresh.write_text(repr(time.time()))
                    fresh.replace(answer)

    def read(self) -> None:
        """Take in what shows of the output; ends the trial where the output has its end."""
        try:
            data = (self.directory / layout.JOBS / f"{self.job_id}.out").read_bytes()
        except OSError:
            return
        output = data.decode(errors="replace")
        if output == self.output:
            return
        self.output = output
        self.parts = parts_of(output)
        _before, end, rest = output.rpartition(END)
        code, newline, _after = rest.partition("\n")
        if end and newline and code.isdigit():
            self.code, self.ended = int(code), True


def parts_of(output: str) -> dict[int, dict[str, Any]]:
    """What ranks said, by rank and part, out of a job's output with whatever else is in it."""
    pieces: dict[tuple[int, str], dict[int, str]] = {}
    totals: dict[tuple[int, str], int] = {}
    for match in _PART.finditer(output):
        rank, part, number, total, text = match.groups()
        pieces.setdefault((int(rank), part), {})[int(number)] = text.rstrip("\r")
        totals[int(rank), part] = int(total)
    parts: dict[int, dict[str, Any]] = {}
    for (rank, part), found in pieces.items():
        with contextlib.suppress(KeyError, ValueError):
            whole = "".join(found[number] for number in range(1, totals[rank, part] + 1))
            parts.setdefault(rank, {})[part] = json.loads(whole)
    return parts
