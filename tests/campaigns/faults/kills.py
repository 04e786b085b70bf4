"""The submitting process, SIGKILLed at a random instant: the same command again completes it."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from queueing import live_runs
from sweeping import Workplace

from dlperf_hpc.records import layout
from dlperf_hpc.records.ledger import read_ledger
from faults.stage import Stage, Trial

FAULT = "the submitting process is SIGKILLed at a random instant"
TOPOLOGIES = ("1n1g", "1n2g", "2n1g", "2n2g", "4n1g", "4n2g")
REPEATS = 2
_VERBS = ("sweep", "rerun")
# Jobs that are held cost nothing: only who submits is struck.
ROWS = 2 * len(TOPOLOGIES)  # of each array one as sbatch is about to be called, one as it answers
SBATCH_S = 0.05  # about what a call of sbatch takes
HELD = 'partition = "main"\nexclusive = false\npoll_s = 1.0\nsbatch = { hold = true }\n'


def kills(stage: Stage, number: int, seed: int = 1, stream: int = 0) -> Trial:
    """``number`` sweeps or reruns, each killed once; half of them with the sbatch below them."""
    begin = time.monotonic()
    dice = random.Random(f"{seed}.{stream}")
    trial = Trial(FAULT)
    seen: Counter[str] = Counter()
    used = _VERBS[: (number + 1) // 2]  # two kills of each in turn
    life_s = {verb: _undisturbed(stage, verb, stream) for verb in used}
    for count in range(number):
        scene = _Submission(stage, stage.root / f"kill-{stream}-{count}", _VERBS[count // 2 % 2])
        # Half of the instants from all of its life, half from where it matters most: after the
        # row-th of the rows that it writes as it submits.
        row, after_s = 0, dice.uniform(0, life_s[scene.arguments[0]])
        if count // 4 % 2 == 0:
            row, after_s = dice.randint(1, ROWS - 1), dice.uniform(0, SBATCH_S)
        seen[_one(scene, count % 2 == 1, row, after_s, trial)] += 1
        shutil.rmtree(scene.place.root)
    trial.seconds = time.monotonic() - begin
    told = ", ".join(f"{times} {where}" for where, times in sorted(seen.items()))
    trial.note = f"{number} kills, half of them with their sbatch: {told}"
    return trial


def _undisturbed(stage: Stage, verb: str, stream: int) -> float:
    """How long the command takes; s."""
    scene = _Submission(stage, stage.root / f"calm-{stream}-{verb}", verb)
    begin = time.monotonic()
    scene.process().wait()
    end = time.monotonic()
    assert scene.check(Trial(FAULT)) == 0
    scene.cancel()
    return end - begin


def _one(scene: _Submission, whole_group: bool, row: int, after_s: float, trial: Trial) -> str:
    """One kill; where it fell."""
    process = scene.process()
    scene.wait_for_row(process, row)
    time.sleep(after_s)
    if whole_group:
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()
    fell = scene.progress()
    again = scene.again()
    if again.returncode != 0:
        trial.error = trial.error or f"typed again: {again.stdout}{again.stderr}"
    if "found again" in again.stdout:
        fell = "between a job's acceptance and its note"
    scene.check(trial)
    trial.attempts += 1
    trial.runs += len(TOPOLOGIES) * REPEATS
    scene.cancel()
    return fell


class _Submission:
    """A sweep of held jobs, or the rerun of one that was cancelled."""

    def __init__(self, stage: Stage, home: Path, verb: str) -> None:
        home.mkdir()
        self.queue = stage.queue
        self.place = Workplace(home, stage.cluster.env)
        self.root = self.place.directory(home.name)
        spec = self.place.tiny(home.name, list(TOPOLOGIES), REPEATS)
        site = self.place.write("site.toml", HELD)
        self.arguments = ["sweep", str(spec), "--site", str(site)]
        self.planned = 0  # rows that were there before
        if verb == "rerun":
            done = self.again()
            assert done.returncode == 0, done.stderr
            self.cancel()
            # As one does who wants to know what became of it: from here on it is known.
            self.place.verb("status", self.root)
            self.arguments = ["rerun", str(self.root), "--status", "cancelled"]
            self.planned = len(self._rows())

    def process(self) -> subprocess.Popen[bytes]:
        verb, *rest = self.arguments
        return subprocess.Popen(
            [sys.executable, "-m", "dlperf_hpc", verb, *rest],
            cwd=self.place.root,
            env=dict(self.place.env),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def again(self) -> subprocess.CompletedProcess[str]:
        verb, *rest = self.arguments
        return self.place.verb(verb, *rest)

    def _rows(self) -> list[str]:
        path = self.root / layout.SUBMISSIONS
        return path.read_text().splitlines() if path.exists() else []

    def wait_for_row(self, process: subprocess.Popen[bytes], number: int) -> None:
        """Return when so many rows were written since it began."""
        while process.poll() is None and len(self._rows()) < self.planned + number:
            time.sleep(0.001)

    def progress(self) -> str:
        rows = len(self._rows()) - self.planned
        if rows >= ROWS:
            return "after the last"
        return "among the submissions" if rows > 0 else "before the first"

    def check(self, trial: Trial) -> int:
        """Add up what is lost and doubled in the queue: every run must wait there, once."""
        there = Counter(live_runs(self.queue, self.root))
        jobs = list(_jobs_per_token(self.queue.rows(self.root)))
        lost = sum(there[run.id] == 0 for run in read_ledger(self.root).manifest.runs)
        doubled = sum(count > 1 for count in there.values()) + sum(many > 1 for many in jobs)
        trial.lost += lost
        trial.duplicated += doubled
        return lost + doubled

    def cancel(self) -> None:
        done = self.place.verb("cancel", self.root)
        assert done.returncode == 0, done.stderr
        left = self.queue.alive(self.root)
        assert not left, f"cancel left {left}"


def _jobs_per_token(rows: list[tuple[str, str, str, str]]) -> Iterator[int]:
    pairs = {(token, job) for job, _, _, token in rows}
    yield from Counter(token for token, _ in pairs).values()
