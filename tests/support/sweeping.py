"""Running sweeps as a user would, for the tests of both engines."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from places import BUSY, SUPPORT

from dlperf_hpc.model.case import Case
from dlperf_hpc.model.result import RunResult
from dlperf_hpc.records.collect import full_results
from dlperf_hpc.records.lines import read_line

# Jobs of it wait until they are released, in a Python in which nothing is: each fails at once.
HELD_SITE = """
partition = "main"
exclusive = false
poll_s = 1.0
sbatch = {{ hold = true }}
[environment.default]
python = "{0}"
"""
TINY = """\
repeats = {repeats}
topologies = {topologies}
time_limit = "{time_limit}"
[case]
framework = "ddp"
model = "bert-tiny"
batch_size = 2
seq_len = 16
[measure]
warmup = 2
iterations = 6
"""


Done = subprocess.CompletedProcess[str]


@dataclass
class Workplace:
    """A directory with a sweep file and, below ``logs``, what came of it."""

    root: Path
    env: Mapping[str, str]

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    def tiny(
        self,
        name: str,
        topologies: list[str],
        repeats: int = 1,
        time_limit: str = "00:20:00",
        more: str = "",
    ) -> Path:
        text = TINY.format(topologies=topologies, repeats=repeats, time_limit=time_limit)
        return self.write(f"{name}.toml", text + more)

    def verb(
        self, verb: str, *arguments: object, timeout: float = 240
    ) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "dlperf_hpc", verb, *map(str, arguments)]
        return subprocess.run(
            argv,
            cwd=self.root,
            env={**self.env, "OMP_NUM_THREADS": "1"},
            text=True,
            capture_output=True,
            timeout=BUSY * timeout,
            check=False,
        )

    def directory(self, name: str) -> Path:
        return self.root / "logs" / name

    def results(self, name: str) -> dict[str, RunResult]:
        """Results by topology, or by environment where the sweep has several."""
        found = {}
        for result in full_results(self.directory(name)).results:
            # The log alone gives what the record says: cross-checked wherever there are both.
            assert not [text for text in result.warnings if "one of them was changed" in text]
            case = result.run.case
            assert isinstance(case, Case)
            key = str(case.topology) if case.environment == "default" else case.environment
            found[key] = result
        return found

    def table(self, name: str) -> list[dict[str, str]]:
        with open(self.directory(name) / "report" / "speedup.csv", encoding="utf-8") as file:
            return list(csv.DictReader(file))


def local_environment() -> dict[str, str]:
    """This process's environment without any Slurm on its PATH's mind."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "DLPERF_"))}


def moment(text: str) -> float:
    """A log's time as seconds since the epoch."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def phase_began(log: Path, phase: str) -> float:
    """When a run entered a phase; AssertionError if it never did."""
    for raw in log.read_text(encoding="utf-8").splitlines():
        line = read_line(raw)
        if line and line.event == "phase" and line.values["name"] == phase:
            return moment(line.time)
    raise AssertionError(f"{log} has no phase {phase}")


def wait_until(
    condition: Callable[[], bool], seconds: float, what: str, seen: Callable[[], object] = str
) -> None:
    """Poll a callable until it is true; AssertionError with ``what``, and with what is ``seen``
    then, after what takes ``seconds`` at most on a quiet machine."""
    deadline = time.monotonic() + BUSY * seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s {seen()}"
        time.sleep(0.5)


STEPS = SUPPORT / "programs" / "steps.py"
_PAIRS = """
topologies = ["1n1g"]
together = "ms"
repeats = {repeats}
time_limit = "00:15:00"
[measure]
warmup = 3
iterations = 10
[case]
framework = "mine"
model = "toy"
batch_size = 4
[[zip]]
ms = {ms}
environment = ["default", "other"]
[program.mine]
launch = "rank"
run = ["doomed.py", "{{steps*9}}", "{{ms}}", "{{global_batch}}", {words!r}]
[program.mine.keys]
ms = 1
[program.mine.read]
format = "megatron"
"""
_DOOMED = """
import os, runpy, sys
print("in", os.environ.get("PLACE"), flush=True)
if os.environ.get("DLPERF_TURN") == "{turn}":
    sys.exit("doomed")
runpy.run_path({path!r}, run_name="__main__")
"""


def pairs(
    place: Workplace, ms: tuple[int, int], repeats: int, doomed: int, words: str = ""
) -> Path:
    """A sweep of two cases in two environments that are run together, of a program that needs
    nothing: its steps take so many ms, and in the turn ``doomed`` it fails."""
    place.write("doomed.py", _DOOMED.format(turn=doomed, path=str(STEPS)))
    return place.write("pairs.toml", _PAIRS.format(repeats=repeats, ms=list(ms), words=words))
