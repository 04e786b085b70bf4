"""Users' programs of which a rank, or the supervisor of a rank, is SIGKILLed at a random moment:
``python tests/campaigns/faults/ranks.py``. The ranks do not wait for each other, so that nobody but
a supervisor can know that one of them has gone. With ``--same WHAT`` nothing is killed: in each run
rank 1 does the same at its 8th iteration (``apart.py`` says what), and all must end alike."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sweeping import Workplace, local_environment, moment

from dlperf_hpc.records.failures import KILLED
from dlperf_hpc.train.joblog import provenance
from faults.interrupts import PROGRAMS, TOKEN, _processes

LAST = 43  # the window's last iteration
SWEEP = f"""
topologies = ["1n2g"]
base = "1n2g"
repeats = {{repeats}}
time_limit = "00:15:00"
[measure]
warmup = 3
iterations = {LAST - 3}
[case]
framework = "mine"
model = "toy"
batch_size = 4
[program.mine]
launch = "rank"
workdir = "{PROGRAMS}"
run = ["apart.py", "4000", "20", "{{{{global_batch}}}}", "{{what}}"]
[program.mine.read]
format = "megatron"
"""
PARTS = {"a program": "apart.py", "a supervisor": "dlperf_hpc.train.program"}
PHASES = ("in the window", "until our signal", "after it")
NEAR_S = 0.2  # of our signal: what comes so near to it may have come before or after it
VICTIMS = [(what, rank) for what in PARTS for rank in range(2)]


@dataclass
class Kill:
    """One kill, and what became of its run; ``when`` it came is one of :data:`PHASES`."""

    what: str
    rank: int
    at: float
    when: str = ""
    status: str = ""
    cause: str = ""
    codes: tuple[int | None, ...] = ()

    @property
    def wrong(self) -> bool:
        """Whether a run counts of which a rank was dead in the window, another rank is named, or
        one does not count that had been ended by us."""
        end, dead, ok = (self.status, self.cause), ("failed", KILLED), ("ok", "")
        if self.when == PHASES[0]:
            known = self.codes[self.rank : self.rank + 1] == (-signal.SIGKILL,)
            return end != dead or (self.what == "a program" and not known)
        late = self.what == "a program" and self.when == PHASES[2]
        return end != ok and (late or end != dead)


def _found(task: str, what: str, rank: int, token: str) -> int | None:
    """The process of one rank of a task."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            env = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            named = f"SUBMITIT_MPIEXEC_JOB_ID={task}" in env and f"{TOKEN}={token}" in env
            if named and f"PMI_RANK={rank}" in env and any(w.endswith(PARTS[what]) for w in words):
                return int(folder.name)
    return None


def _strike(
    place: Workplace, over: threading.Event, victims: Iterator[tuple[str, int, float]]
) -> list[tuple[str, Kill]]:
    """Kill one process of each task as it comes: by task, which, and when."""
    jobs, done, kills = place.directory("struck") / "jobs", set[str](), []
    while not over.is_set():
        time.sleep(0.02)
        for path in set(jobs.glob("*.out")) - {jobs / f"{name}.out" for name in done}:
            task = path.stem
            done.add(task)
            what, rank, after_s = next(victims)
            until = time.monotonic() + 60
            while _found(task, what, rank, str(place.root)) is None and time.monotonic() < until:
                time.sleep(0.02)
            time.sleep(after_s)
            pid = _found(task, what, rank, str(place.root))
            if pid is not None:
                kills.append((task, Kill(what, rank, time.time())))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    return kills


def _phase(text: str, at: float) -> str:
    """When a kill came: two more lines are behind the window, and half a second."""
    rows = re.findall(r"^(\S+Z) 0\|  iteration +([0-9]+)/", text, re.MULTILINE)
    stamps = {int(number): moment(stamp) for stamp, number in rows}
    if at < stamps.get(LAST, at + 1):
        return PHASES[0]
    return PHASES[1 + (at > stamps.get(LAST + 2, at) + 0.5 + NEAR_S)]


def _judged(place: Workplace, task: str, kill: Kill) -> Kill:
    """With the end of its run, by its record; its log says when the window was over."""
    root = place.directory("struck")
    for path in root.glob("mine/toy/*/*/*.json"):
        record: dict[str, Any] = json.loads(path.read_text())
        if record["launch"].partition(".")[0] != task:
            continue
        text = path.with_suffix(".log").read_text()
        kill.when = _phase(text, kill.at)
        kill.status, kill.cause = record["status"], record.get("cause", "")
        kill.codes = tuple(record.get("program", {}).get("codes", ()))
        return kill
    raise AssertionError(f"{task} has no record")


def _swept(place: Workplace, repeats: int, what: str) -> None:
    spec = place.write("struck.toml", SWEEP.format(repeats=repeats, what=what))
    argv = [sys.executable, "-m", "dlperf_hpc", "sweep", str(spec), "--cluster", "local"]
    with open(place.root / "output", "wb") as output:
        subprocess.run(
            [*argv, "--no-check"], cwd=place.root, env=dict(place.env), stdout=output,
            stderr=output, check=False,
        )  # fmt: skip


def ends(home: Path, what: str, repeats: int) -> Counter[tuple[str, str, str, str]]:
    """Status, cause, exit codes and reason of so many runs in which rank 1 does the same."""
    place = Workplace(home, {**local_environment(), "OMP_NUM_THREADS": "1"})
    _swept(place, repeats, what)
    found = Counter[tuple[str, str, str, str]]()
    for path in place.directory("struck").glob("mine/toy/*/*/*.json"):
        record: dict[str, Any] = json.loads(path.read_text())
        codes = str(record.get("program", {}).get("codes", ""))
        found[record["status"], record.get("cause", ""), codes, record.get("reason", "")] += 1
    return found


def campaign(home: Path, victims: Sequence[tuple[str, int, float]]) -> tuple[list[Kill], list[str]]:
    """A sweep with a run for each of the victims, of what, which rank and after how many seconds:
    what came of each, and what is alive when the sweep has ended."""
    place = Workplace(home, {**local_environment(), TOKEN: str(home), "OMP_NUM_THREADS": "1"})
    over, struck = threading.Event(), list[tuple[str, Kill]]()
    watcher = threading.Thread(target=lambda: struck.extend(_strike(place, over, iter(victims))))
    watcher.start()
    _swept(place, len(victims), "plain")
    over.set()
    watcher.join()
    return [_judged(place, *each) for each in struck], _processes(f"{TOKEN}={home}")


def table(kills: Sequence[Kill], alive: int) -> str:
    """As a table of the docs."""
    rows = [f"| killed | kills | {' | '.join(PHASES)} | wrong |"]
    rows.append("| --- | ---: | --- | --- | --- | ---: |")
    for what, rank in VICTIMS:
        of = [each for each in kills if (each.what, each.rank) == (what, rank)]
        row = [f"{what} of rank {rank}", str(len(of))]
        for phase in PHASES:
            counts = Counter(f"{k.status} {k.cause}".strip() for k in of if k.when == phase)
            row.append(", ".join(f"{n} {name}" for name, n in counts.most_common()))
        rows.append(f"| {' | '.join([*row, str(sum(each.wrong for each in of))])} |")
    return "\n".join([*rows, "", f"processes alive afterwards: {alive}"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=200, help="of kills (200)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--same", metavar="WHAT", help="for example one: exit code 1")
    arguments = parser.parse_args()
    if arguments.same:
        with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
            found = ends(Path(folder), arguments.same, arguments.number)
        print(f"dlperf_hpc at {provenance()['tool_commit']}")
        for end, number in found.most_common():
            print(number, *end, sep=" | ")
        return 0 if list(found.values()) == [arguments.number] else 1
    dice = random.Random(arguments.seed)
    victims = [(*VICTIMS[n % 4], dice.uniform(0, 2.0)) for n in range(arguments.number)]
    with tempfile.TemporaryDirectory(prefix="ranks-", ignore_cleanup_errors=True) as folder:
        kills, alive = campaign(Path(folder), victims)
    for each in kills:
        if each.wrong:
            print(each, file=sys.stderr)
    print(f"dlperf_hpc at {provenance()['tool_commit']}\n\n{table(kills, len(alive))}")
    return 1 if alive or any(each.wrong for each in kills) else 0


if __name__ == "__main__":
    sys.exit(main())
