"""The fault campaign: ``python tests/faults/campaign.py`` (or ``make faults``).

Brings up a real Slurm on this machine, strikes it and the sweeps on it in every way below, and
prints for each fault how many attempts it took, and what was lost, duplicated and altered: 0, 0, 0.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dlperf_hpc.train.joblog import provenance
from faults.drills import DRILLS, Drill
from faults.kills import FAULT, kills
from faults.stage import Stage, Trial, say

WORKERS = 3  # most of a drill is waiting
STREAMS = 2
COLUMNS = ("fault", "runs", "attempts", "lost", "duplicated", "altered", "seconds")


PAGE = """\
# What a sweep survives

`make faults` starts a real Slurm on one machine (`slurm/onebox`: slurmctld, four nodes, slurmdbd on
MariaDB), causes every fault of the table in that Slurm or in a sweep that runs on it, and writes
this page.

{head}

{table}

**How.** Each drill is a sweep of a few runs, one after another, with the tiny BERT; where a fault
concerns the queue alone, with a program of a few lines. The first run ends well. Then the fault
strikes a run, and afterwards the same `sweep` and `rerun` commands are typed until every run is ok.
Everything is the real Slurm, with one exception: for the faults of `sbatch`, an `sbatch` on the
PATH calls the real one, or does not, and then fails.

**What is counted** in the sweep's directory, in the queue and in accounting:

- *attempts*: starts of a run's batch script. For the kills: how often the submitting process was
  killed.
- *lost*: runs that are not ok in the end, or whose state `status` does not know. For the kills:
  runs that are not in the queue after the command was typed again.
- *duplicated*: runs that ended ok twice, or were started again although they were ok; runs in two
  live jobs; arrays in two jobs.
- *altered*: files of runs that were ok before the fault (log, record, earlier attempts) and whose
  content differs after it.
- *seconds*: the time of the drill. Several drills go on at the same time; *all* is the time of the
  whole campaign.

{notes}
"""


def run(stage: Stage, drills: Sequence[Drill], number: int, seed: int) -> list[Trial]:
    """All drills, and so many kills; a trial for each, in their order."""
    side_by_side = [drill for drill in drills if not drill.alone]
    with ThreadPoolExecutor(WORKERS) as pool, ThreadPoolExecutor(1) as apart:
        alone = apart.submit(_alone, stage.root, [drill for drill in drills if drill.alone])
        begun: list[tuple[str, Future[Trial]]] = [
            (drill.fault, pool.submit(_tried, stage, drill)) for drill in side_by_side
        ]
        if number:
            begun.append((FAULT, pool.submit(_killed, stage, number, seed)))
        return [*(future.result() for _, future in begun), *alone.result()]


def _alone(root: Path, drills: Sequence[Drill]) -> list[Trial]:
    """The drills that have a cluster to themselves, one after another, in a second one."""
    if not drills:
        return []
    stage = Stage(root / "alone", mounts=False)
    try:
        return [_tried(stage, drill) for drill in drills]
    finally:
        stage.close()


def _tried(stage: Stage, drill: Drill) -> Trial:
    begin = time.monotonic()
    say(f"begins: {drill.fault}")
    try:
        trial = drill.strike(stage, drill.fault)
    except Exception as error:  # noqa: BLE001 - one drill's failure is a row, the others go on
        trial = Trial(drill.fault, error=f"{type(error).__name__}: {error}")
        trial.seconds = time.monotonic() - begin
    say(
        f"{'ended' if trial.good else 'FAILED'}: {drill.fault}, {trial.seconds:.0f} s {trial.error}"
    )
    return trial


def _killed(stage: Stage, number: int, seed: int) -> Trial:
    """The kills in two streams, added up."""
    say(f"begins: {FAULT}, {number} times")
    shares = [number // STREAMS + (stream < number % STREAMS) for stream in range(STREAMS)]
    begin = time.monotonic()
    with ThreadPoolExecutor(STREAMS) as pool:
        parts = list(pool.map(lambda pair: kills(stage, pair[1], seed, pair[0]), enumerate(shares)))
    total = Trial(FAULT, seconds=time.monotonic() - begin)
    for part in parts:
        for name in ("runs", "attempts", "lost", "duplicated", "altered"):
            setattr(total, name, getattr(total, name) + getattr(part, name))
    total.note = " / ".join(part.note for part in parts)
    total.error = " / ".join(part.error for part in parts if part.error)
    return total


@contextmanager
def staged() -> Iterator[Stage]:
    """A cluster in a directory of its own; nothing of it remains."""
    with tempfile.TemporaryDirectory(prefix="dlf-", ignore_cleanup_errors=True) as folder:
        stage = Stage(Path(folder))
        try:
            yield stage
        finally:
            stage.close()


def _leave_on_signals(stage: Stage) -> None:
    """Drills wait for minutes in their threads: who is told to end does not wait for them."""

    def leave(number: int, _frame: object) -> None:
        stage.close()
        shutil.rmtree(stage.root, ignore_errors=True)
        os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)


def _cells(trial: Trial) -> list[str]:
    cells = [str(getattr(trial, name)) for name in COLUMNS[:-1]]
    return [*cells, f"{trial.seconds:.0f}"]


def _sum(trials: Sequence[Trial]) -> Trial:
    names = ("runs", "attempts", "lost", "duplicated", "altered")
    return Trial("all", **{name: sum(getattr(t, name) for t in trials) for name in names})


def table(trials: Sequence[Trial], took_s: float) -> str:
    total = _sum(trials)
    total.seconds = took_s
    rows = [list(COLUMNS), *map(_cells, [*trials, total])]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    shapes = [f"<{widths[0]}", *(f">{width}" for width in widths[1:])]
    lines = ["  ".join(map(format, row, shapes)).rstrip() for row in rows]
    notes = [f"{t.fault}: {t.error or t.note}" for t in trials if t.error or t.note]
    return "\n".join([*lines, "", *notes])


def page(head: str, trials: Sequence[Trial], took_s: float) -> str:
    """The table as a page of the docs."""
    total = _sum(trials)
    total.seconds = took_s
    rows = [list(COLUMNS), ["---", *["---:"] * (len(COLUMNS) - 1)]]
    rows += [_cells(trial) for trial in (*trials, total)]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    told = [f"- {t.fault}: {t.error or t.note}." for t in trials if t.error or t.note]
    notes = [textwrap.fill(line, 100, subsequent_indent="  ") for line in told]
    return PAGE.format(head=head, table="\n".join(lines), notes="\n".join(notes))


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, prog="campaign.py")
    made.add_argument("--kills", type=int, default=100, help="of the submitting process (100)")
    made.add_argument("--seed", type=int, default=1, help="for the instants of the kills")
    made.add_argument("--only", default="", help="faults whose name holds this, and no kills")
    made.add_argument("--list", action="store_true", help="name the faults")
    made.add_argument("--markdown", type=Path, metavar="FILE", help="write it as a page as well")
    made.add_argument("--json", action="store_true")
    return made


def main() -> int:
    arguments = _parser().parse_args()
    drills = [drill for drill in DRILLS if arguments.only.lower() in drill.fault.lower()]
    if arguments.list:
        print("\n".join([*(drill.fault for drill in DRILLS), FAULT]))
        return 0
    number = 0 if arguments.only and arguments.only not in FAULT else arguments.kills
    begin = time.monotonic()
    with staged() as stage:
        _leave_on_signals(stage)
        slurm = stage.queue.call("sinfo", "--version").split()[-1]
        trials = run(stage, drills, number, arguments.seed)
    took = time.monotonic() - begin
    facts = provenance()
    head = (
        f"dlperf_hpc at {facts['tool_commit']}, Slurm {slurm}, Python {facts['python']},"
        f" {facts['cpus']} CPUs, Linux {platform.release()}; {time.strftime('%Y-%m-%d')}"
    )
    if arguments.json:
        print(json.dumps({"head": head, "trials": [asdict(trial) for trial in trials]}, indent=1))
    else:
        print(f"{head}\n\n{table(trials, took)}")
    if arguments.markdown:
        arguments.markdown.write_text(page(head, trials, took), encoding="utf-8")
    return 0 if all(trial.good for trial in trials) else 1


if __name__ == "__main__":
    sys.exit(main())
