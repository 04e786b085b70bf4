"""What ending a program behind its window saves: node-seconds of one program, with and without.

``python benchmarks/stop_after_window.py [--steps N] [--ms MS] [--repeats N]``: a program of that
many iterations under ``[program.NAME]``, once with ``stop = "after-window"`` (the default) and once
with ``stop = "never"``, by turns; the window is iterations 21 to 120. Node-seconds are from the
first line of a run's log to its last, times its nodes.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path

from dlperf_hpc.records.collect import full_results

PROGRAMS = Path(__file__).parents[1] / "tests" / "support" / "programs"
SPEC = """\
topologies = ["1n2g"]
base = "1n2g"
repeats = {repeats}
time_limit = "01:00:00"
[case]
model = "toy"
batch_size = 4
[matrix]
framework = ["whole", "ended"]
"""
TABLE = """\
[program.{name}]
launch = "rank"
workdir = "{programs}"
run = ["steps.py", "{steps}", "{ms}", "{{global_batch}}"]
stop = "{stop}"
[program.{name}.read]
format = "megatron"
"""


def measured(root: Path) -> dict[str, list[tuple[float, float]]]:
    """Node-seconds and samples/s of each run, by its program."""
    with open(root / "report" / "runs.csv", encoding="utf-8") as file:
        speeds = {row["run"]: float(row["samples_per_s"]) for row in csv.DictReader(file)}
    found: dict[str, list[tuple[float, float]]] = {}
    for result in full_results(root).results:
        begin, end = (datetime.fromisoformat(at[:-1]) for at in (result.started, result.ended))
        seconds = (end - begin).total_seconds() * result.run.case.topology.nodes
        found.setdefault(result.run.case.framework, []).append((seconds, speeds[result.run.id]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--ms", type=float, default=20.0)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    text = SPEC.format(repeats=given.repeats)
    for name, stop in (("whole", "never"), ("ended", "after-window")):
        text += TABLE.format(
            name=name, stop=stop, steps=given.steps, ms=given.ms, programs=PROGRAMS
        )
    with tempfile.TemporaryDirectory() as place:
        spec = Path(place, "stop.toml")
        spec.write_text(text, encoding="utf-8")
        argv = [sys.executable, "-m", "dlperf_hpc", "sweep", str(spec), "--cluster", "local"]
        subprocess.run(argv, cwd=place, check=True, stdout=subprocess.DEVNULL)
        for name, runs in measured(Path(place, "logs", "stop")).items():
            seconds, speeds = (statistics.median(each) for each in zip(*runs))
            print(f"{name}: {seconds:.1f} node-seconds, {speeds:.4g} samples/s ({len(runs)} runs)")


if __name__ == "__main__":
    main()
