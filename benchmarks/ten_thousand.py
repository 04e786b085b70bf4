"""Does a sweep of 10 000 runs stay light on Slurm? Commands issued, and time beside Slurm's own.

``python benchmarks/ten_thousand.py [--runs N] [--max-array N] [--topologies A,B] [--json]``. On a
one-machine Slurm with MaxArraySize 1001 the runs are submitted held, looked at, cancelled and
rerun; nothing is executed. Every command of Slurm's is counted and timed on its way. ``bare`` is
what the least that Slurm must do takes when typed by hand: the same arrays by ``sbatch --wrap``,
the same ``squeue``, the same ``scancel``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

ONEBOX = Path(__file__).resolve().parent.parent / "slurm" / "onebox"
COMMANDS = ("sbatch", "squeue", "sacct", "scontrol", "scancel", "sinfo")
SPEC = """\
topologies = {topologies}
repeats = {repeats}
[case]
framework = "ddp"
model = "bert-tiny"
[matrix]
batch_size = [8, 16]
"""
SITE = 'partition = "main"\nexclusive = false\nsbatch = { hold = true }\n'
SHIM = """\
#!/bin/bash
begin=$EPOCHREALTIME
{real} "$@"
code=$?
echo "{name} $begin $EPOCHREALTIME" >>{log}
exit $code
"""


@dataclass
class Step:
    """One verb: how long it took, which commands of Slurm's it issued, and how long these took."""

    name: str
    seconds: float
    commands: dict[str, int]
    in_slurm_s: float
    bare_s: float | None = None


class Bench:
    """A directory, a cluster in it, and a PATH on which Slurm's commands are counted."""

    def __init__(self, place: Path, arguments: argparse.Namespace) -> None:
        self.place = place
        self.log = place / "commands"
        topologies = arguments.topologies.split(",")
        repeats = arguments.runs // (2 * len(topologies))
        self.runs = 2 * repeats * len(topologies)
        spec = SPEC.format(topologies=topologies, repeats=repeats)
        (place / "many.toml").write_text(spec, encoding="utf-8")
        (place / "site.toml").write_text(SITE, encoding="utf-8")
        self.root = place / "logs" / "many"
        self.planned: list[int] = []

    def shims(self, env: Mapping[str, str]) -> dict[str, str]:
        folder = self.place / "bin"
        folder.mkdir()
        for name in COMMANDS:
            real = shutil.which(name)
            if real is not None:
                (folder / name).write_text(SHIM.format(real=real, name=name, log=self.log))
                (folder / name).chmod(0o755)
        return {**env, "PATH": f"{folder}{os.pathsep}{env['PATH']}"}

    def step(self, name: str, env: Mapping[str, str], verb: str, *arguments: str) -> Step:
        self.log.write_text("")
        argv = [sys.executable, "-m", "dlperf_hpc", verb, *arguments]
        took = timed(argv, self.place, env)
        rows = [line.split() for line in self.log.read_text().splitlines()]
        return Step(
            name=name,
            seconds=took,
            commands=dict(Counter(row[0] for row in rows)),
            in_slurm_s=sum(float(end) - float(begin) for _, begin, end in rows),
        )

    def arrays(self) -> list[int]:
        """Tasks of each planned array."""
        manifest = json.loads((self.root / "manifest.json").read_bytes())
        return [len(array["tasks"]) for array in manifest["arrays"]]


def timed(argv: Sequence[str], cwd: Path, env: Mapping[str, str]) -> float:
    """Wall time (s) of one process whose output goes nowhere; it may say that runs are bad."""
    begin = time.perf_counter()
    done = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    took = time.perf_counter() - begin
    if done.returncode not in (0, 1) or "Traceback" in done.stderr:
        raise SystemExit(f"{' '.join(argv)}: {done.stderr}")
    return took


@contextmanager
def cluster(place: Path, max_array: int) -> Iterator[dict[str, str]]:
    """A cluster in ``place``; the environment in which Slurm's commands talk to it."""
    box = [sys.executable, str(ONEBOX)]
    options = ["--owner", str(os.getpid()), "--conf", f"MaxArraySize={max_array}"]
    subprocess.run([*box, "up", str(place), *options], check=True, capture_output=True)
    try:
        script = ["sh", "-c", '. "$1"; env -0', "sh", str(place / "env.sh")]
        text = subprocess.run(script, check=True, capture_output=True, text=True).stdout
        yield dict(line.split("=", 1) for line in text.split("\0") if line)
    finally:
        subprocess.run([*box, "down", str(place)], check=True, capture_output=True)


def steps_of(bench: Bench, env: Mapping[str, str]) -> list[Step]:
    """The life of a sweep, verb by verb."""
    sweep = ("many.toml", "--site", "./site.toml")
    root = str(bench.root)
    timed([sys.executable, "-m", "dlperf_hpc", "sweep", "--help"], bench.place, env)  # bytecode
    return [
        bench.step("sweep --dry-run", env, "sweep", *sweep, "--dry-run"),
        bench.step("sweep", env, "sweep", *sweep),
        bench.step("sweep again", env, "sweep", *sweep),
        bench.step("status", env, "status", root),
        bench.step("cancel", env, "cancel", root),
        bench.step("status, cancelled", env, "status", root),
        bench.step("rerun of all", env, "rerun", root, "--status", "cancelled"),
        bench.step("status, rerun", env, "status", root),
    ]


def bare(place: Path, env: Mapping[str, str], arrays: Sequence[int]) -> dict[str, float]:
    """What Slurm itself needs (s), for each step, with nobody between the keyboard and it."""

    def sbatches() -> float:
        options = ["--hold", "--output=/dev/null", "--gpus-per-node=1", "--wrap=true"]
        return sum(
            timed(["sbatch", f"--array=0-{tasks - 1}", *options], place, env) for tasks in arrays
        )

    def squeue() -> float:
        return timed(["squeue", "-h", "-r", "-t", "all", "-o", "%i|%T|%r|%N|%j|%k"], place, env)

    found = {"sweep": sbatches(), "status": squeue()}
    found["cancel"] = squeue() + timed(["scancel", "--me"], place, env)
    found["status, cancelled"] = squeue()
    found["rerun of all"] = squeue() + sbatches()
    found["status, rerun"] = squeue()
    return found


def measure(arguments: argparse.Namespace) -> tuple[Bench, list[Step]]:
    """All steps, with their bare counterparts where there are any."""
    with tempfile.TemporaryDirectory(prefix="dl10k-") as name:
        place = Path(name)
        bench = Bench(place, arguments)
        with cluster(place / "ours", arguments.max_array) as env:
            steps = steps_of(bench, bench.shims(env))
            bench.planned = bench.arrays()
        with cluster(place / "bare", arguments.max_array) as env:
            alone = bare(place, env, bench.planned)
    for step in steps:
        step.bare_s = alone.get(step.name)
    return bench, steps


def show(runs: int, arrays: Sequence[int], max_array: int, steps: Sequence[Step]) -> str:
    """The table: seconds, how much of them Slurm took, and both beside bare Slurm."""
    lines = [
        f"{runs} runs, MaxArraySize {max_array}: {len(arrays)} arrays of {min(arrays)} to"
        f" {max(arrays)} tasks, held\n",
        f"{'':18} {'s':>7} {'in Slurm':>9} {'bare s':>7} {'x bare':>7}  commands",
    ]
    for step in steps:
        told = ", ".join(f"{count} {name}" for name, count in sorted(step.commands.items()))
        beside = " " * 15
        if step.bare_s:
            beside = f"{step.bare_s:7.2f} {step.seconds / step.bare_s:7.1f}"
        lines.append(f"{step.name:18} {step.seconds:7.2f} {step.in_slurm_s:9.2f} {beside}  {told}")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--max-array", type=int, default=1001, help="MaxArraySize of the cluster")
    parser.add_argument("--topologies", default="1n1g,1n2g,2n1g,2n2g,4n8g")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    bench, steps = measure(arguments)
    if arguments.json:
        rows = [asdict(step) for step in steps]
        print(json.dumps({"runs": bench.runs, "arrays": bench.planned, "steps": rows}, indent=1))
    else:
        print(show(bench.runs, bench.planned, arguments.max_array, steps))


if __name__ == "__main__":
    main()
