"""Does the login node answer at once? Whole processes, beside a bare ``python -c pass``.

``python benchmarks/startup.py [--rounds N] [--json]``. The targets are ratios to the bare one. The
modules are those of the package that the command's own process loads.
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

TARGETS = {"help": 2, "dry run": 9, "status": 6, "report": 70}

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


def modules(argv: list[str], cwd: Path) -> int:
    """How many of the package's modules one process of ours imports."""
    argv = [argv[0], "-X", "importtime", *argv[1:]]
    stderr = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False).stderr
    names = (line.rpartition("|")[2].strip() for line in stderr.splitlines())
    return len({name for name in names if name.partition(".")[0] == "dlperf_hpc"})


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
        # Once untimed: page cache, bytecode.
        loaded = {label: modules(argv, place) for label, argv in commands.items()}
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(arguments.rounds):  # in turn, so that the machine's drift meets all alike
            for label, argv in commands.items():
                times[label].append(seconds(argv, place))
    show(times, loaded, print_json=arguments.json, say=print)


def show(
    times: dict[str, list[float]],
    loaded: dict[str, int],
    print_json: bool,
    say: Callable[[str], None],
) -> None:
    """Medians in ms, the ratio to the bare interpreter, its target, and the modules."""
    medians = {name: statistics.median(values) for name, values in times.items()}
    if print_json:
        say(json.dumps({name: round(1e3 * value, 1) for name, value in medians.items()}))
        return
    rounds = len(times["bare"])
    say(f"median of {rounds} rounds; 1000 cases in the dry run, 1000 runs in status and report\n")
    say(f"{'':10} {'ms':>8} {'min':>8} {'max':>8} {'x bare':>8} {'target':>8} {'modules':>8}")
    for name, values in times.items():
        ms = (medians[name], min(values), max(values))
        cells = " ".join(f"{1e3 * value:8.1f}" for value in ms)
        ratio, target = medians[name] / medians["bare"], TARGETS.get(name, "")
        say(f"{name:10} {cells} {ratio:8.1f} {target:>8} {loaded[name]:8}")


if __name__ == "__main__":
    main()
