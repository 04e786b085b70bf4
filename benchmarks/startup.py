"""Does the login node answer at once? Whole processes, beside a bare ``python -c pass``.

``python benchmarks/startup.py [--rounds N] [--json]``. Targets: --help 5 x the bare interpreter,
a dry run of 1000 cases 0.5 s, the status of 1000 runs 1 s (plus Slurm's own answer).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from many_reports import made_sweep

TARGETS = {"help": "5 x bare", "dry run": "0.5 s", "status": "1 s", "report": "-"}

SPEC = """\
topologies = ["1n1g", "1n2g", "1n4g", "1n8g", "2n8g"]
repeats = 1
[case]
framework = "ddp"
model = "bert-base"
[matrix]
batch_size = {batches}
precision = ["fp32", "bf16"]
compile = [true, false]
accumulation = [1, 2]
"""


def seconds(argv: list[str], cwd: Path) -> float:
    """Wall time of one process, whose output goes nowhere."""
    # Where bytecode may not be kept, every start compiles this package anew: not a user's case.
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    done = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, check=False)
    elapsed = time.perf_counter() - start
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(argv)}: {done.stderr.decode()}")
    return elapsed


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        root = made_sweep(place, 1000)
        plan = place / "plan.toml"
        plan.write_text(SPEC.format(batches=list(range(1, 26))), encoding="utf-8")
        module = [sys.executable, "-m"]
        dry = [*module, "dlperf_hpc", "sweep", str(plan), "--dry-run", "--cluster", "slurm"]
        commands = {
            "bare": [sys.executable, "-c", "pass"],
            "help": [*module, "dlperf_hpc", "sweep", "--help"],
            "dry run": dry,
            "status": [*module, "dlperf_hpc", "status", str(root)],
            "report": [*module, "dlperf_hpc", "report", str(root)],
        }
        for argv in commands.values():  # once uncounted: page cache, bytecode
            seconds(argv, place)
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(arguments.rounds):  # in turn, so that the machine's drift meets all alike
            for label, argv in commands.items():
                times[label].append(seconds(argv, place))
    show(times, print_json=arguments.json, say=print)


def show(times: dict[str, list[float]], print_json: bool, say: Callable[[str], None]) -> None:
    """Medians in ms, the ratio to the bare interpreter, and the target."""
    medians = {name: statistics.median(values) for name, values in times.items()}
    if print_json:
        say(json.dumps({name: round(1e3 * value, 1) for name, value in medians.items()}))
        return
    rounds = len(times["bare"])
    say(f"median of {rounds} rounds; 1000 cases in the dry run, 1000 runs in status and report\n")
    say(f"{'':10} {'ms':>8} {'min':>8} {'max':>8} {'x bare':>8}  target")
    for name, values in times.items():
        ms = (medians[name], min(values), max(values))
        cells = " ".join(f"{1e3 * value:8.1f}" for value in ms)
        say(f"{name:10} {cells} {medians[name] / medians['bare']:8.1f}  {TARGETS.get(name, '')}")


if __name__ == "__main__":
    main()
