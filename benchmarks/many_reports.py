"""Does ``report`` stay quick with many runs? This version beside another, on the same directories.

``python benchmarks/many_reports.py [--old CHECKOUT] [--runs 1000,10000] [--rounds N] [--json]``.
Each run is a log and a record as the wrapper writes them: 2 ranks, 100 iterations. A round is one
``report`` of the other version (a checkout with its own ``.venv``), one of this version for the
first time, and one again, when nothing has changed. What the other version's CSV and JSON
files tell, this one's must tell, digit by digit.
"""

from __future__ import annotations

import argparse
import csv
import functools
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dlperf_hpc.engines.plan import make_manifest
from dlperf_hpc.engines.site import Site
from dlperf_hpc.files import dump_json
from dlperf_hpc.model.case import Limits, Measure, Run
from dlperf_hpc.records.layout import MANIFEST
from dlperf_hpc.records.manifest import Manifest, Submission, add_submission, write_manifest
from dlperf_hpc.records.store import begin_log, log_event, open_attempt
from dlperf_hpc.sweepfile.load import load_sweep
from dlperf_hpc.train import joblog
from dlperf_hpc.train.measurement import Communication, MeasuredWindow
from dlperf_hpc.train.ranks import World
from dlperf_hpc.train.registry import registry

HERE = Path(__file__).resolve().parent.parent
FILES = ("speedup.csv", "runs.csv", "report.json")
ITERATIONS = 100
SPEC = """\
topologies = ["1n1g", "1n2g", "1n4g", "1n8g", "2n8g"]
repeats = {repeats}
[case]
framework = "ddp"
model = "bert-base"
[matrix]
batch_size = [8, 16, 32, 48, 64]
precision = ["fp32", "bf16"]
compile = [true, false]
"""
CASES = 100


@dataclass
class Row:
    """What a version took for one report: wall time (s) of each round, largest memory (MB)."""

    version: str
    seconds: list[float]
    memory_mb: float

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def made_sweep(place: Path, runs: int) -> Path:
    """A sweep's directory in which all runs have ended well: 100 cases, ``runs`` / 100 repeats."""
    spec = place / "many.toml"
    spec.write_text(SPEC.format(repeats=max(1, runs // CASES)), encoding="utf-8")
    manifest = make_manifest(load_sweep(spec, registry()), Site(), "local")
    root = place / "logs" / f"many-{runs}"
    root.mkdir(parents=True)
    write_manifest(root, manifest)
    for_other_versions(root / MANIFEST)
    synced, os.fsync = os.fsync, lambda fd: None  # ten thousand waits for a disk are of no interest
    try:
        for job, array in enumerate(manifest.arrays, 100):
            add_submission(root, Submission(array.name, array.token, job_id=str(job)))
            for index, run in enumerate(array.tasks):
                end_well(root, manifest, run, f"{job}_{index}.0", number=job * 7 + index)
    finally:
        os.fsync = synced
    return root


def for_other_versions(manifest: Path) -> None:
    """Leave out settings that have their default: an earlier version may not know them."""
    told = json.loads(manifest.read_bytes())
    for name, default in (("measure", asdict(Measure())), ("limits", asdict(Limits()))):
        told[name] = {key: value for key, value in told[name].items() if value != default[key]}
    manifest.write_text(dump_json(told), encoding="utf-8")


def end_well(root: Path, manifest: Manifest, run: Run, launch: str, number: int) -> None:
    """Leave what a run leaves, with figures that depend on ``number``."""
    attempt = open_attempt(manifest.sweep, run, root, launch)
    assert attempt is not None
    begin_log(attempt)
    log_event(attempt, "measure", asdict(manifest.measure))
    log_event(attempt, "phase", {"name": "build"})
    log_event(attempt, "provenance", node())
    shared = {"ranks": 2, "nodes": 1, "hosts": ["n1"], "torch": "2.13.0", "device_name": "cpu"}
    log_event(attempt, "world", {**shared, "parameters": 109_483_778})
    for rank in range(2):
        log_event(attempt, "rank", joblog.rank_facts(World(rank, ("n1", "n1"))))
    for phase in ("warmup", "measure", "shutdown"):
        log_event(attempt, "phase", {"name": phase})
    gained = Communication(steps=6, with_ms=50.0, without_ms=45.0 + number % 7 / 10)
    windows = [timed(rank, number) for rank in range(2)]
    measured = joblog.Measured(manifest.measure, windows, gained)
    joblog.log_window(attempt, measured)
    joblog.end_ok(attempt, measured)


@functools.cache
def node() -> dict[str, Any]:
    """Provenance; it is the same for all, and git is asked for it."""
    return joblog.provenance()


def timed(rank: int, number: int) -> MeasuredWindow:
    """The window of one rank."""
    step = 0.01 * (1 + (number * 7919 % 997) / 1e4 + rank / 1e3)
    times = [step * (1 + (i * 31 % 17) / 1e3) for i in range(ITERATIONS)]
    return MeasuredWindow(
        iterations=ITERATIONS,
        opened=1_790_000_000.25 + number,
        elapsed_s=sum(times),
        step_times=times,
        losses=[10.0 - i / 100 + rank / 1e3 for i in range(ITERATIONS)],
        optimizer_steps=ITERATIONS,
        skipped_steps=0,
        moved=True,
        data_wait_s=1e-3 / 7,
        memory_mb=513.78515625,
    )


def report(checkout: Path, root: Path, out: Path, cache: Path) -> tuple[float, float]:
    """Wall time (s) and largest memory (MB) of one ``report``, all its processes."""
    python = checkout / ".venv" / "bin" / "python"
    argv = [str(python if python.exists() else sys.executable), "-m", "dlperf_hpc", "report"]
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    env.update(XDG_CACHE_HOME=str(cache), PYTHONPATH=str(checkout))
    env.update(MPLCONFIGDIR=str(out.parent / "matplotlib"))  # its list of fonts takes 0.2 s to make
    start = time.perf_counter()
    process = subprocess.Popen(
        [*argv, str(root), "--out", str(out)],
        cwd=out.parent, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    said = process.stderr.read().decode()
    _, status, used = os.wait4(process.pid, 0)
    took = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{checkout}: report ended with {process.returncode}: {said}")
    return took, used.ru_maxrss / 1024


def measure(place: Path, runs: int, old: Path | None, rounds: int) -> list[Row]:
    """All versions in turn, so that the machine's drift meets all alike."""
    root = made_sweep(place, runs)
    found: dict[str, list[tuple[float, float]]] = {}
    for number in range(rounds + 1):
        fresh = place / f"cache-{runs}-{number}"
        steps = [("first", HERE, fresh), ("again", HERE, fresh)]
        if old is not None:
            steps.insert(0, ("old", old, place / "cache-old"))
        for name, checkout, cache in steps:
            out = place / f"{name}-{runs}"
            took = report(checkout, root, out, cache)
            if number:  # the first round is for the page cache and the bytecode
                found.setdefault(name, []).append(took)
    check([place / f"{name}-{runs}" for name in found])
    return [
        Row(name, [seconds for seconds, _ in took], max(memory for _, memory in took))
        for name, took in found.items()
    ]


def check(folders: Sequence[Path]) -> None:
    """SystemExit unless all versions tell, value for value, what the first one does."""
    for name in FILES:
        first, *others = (content(folder / name) for folder in folders)
        if not all(holds(other, first) for other in others):
            raise SystemExit(f"{name} is not the same in {', '.join(map(str, folders))}")


def content(path: Path) -> Any:
    """The cells of a CSV as text, by column; the values of a JSON file."""
    text = path.read_text(encoding="utf-8")
    return list(csv.DictReader(io.StringIO(text))) if path.suffix == ".csv" else json.loads(text)


def holds(found: Any, wanted: Any) -> bool:
    """Whether all of ``wanted`` is in ``found``, which may have keys and columns of its own."""
    if isinstance(wanted, dict):
        return all(key in found and holds(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(holds, found, wanted))
    return bool(found == wanted)


def show(tables: dict[int, list[Row]]) -> str:
    """A table for each number of runs; the ratio is to the first row."""
    lines = []
    for runs, rows in tables.items():
        counted = len(rows[0].seconds)
        lines.append(f"{runs} runs of {ITERATIONS} iterations, median of {counted} rounds\n")
        lines.append(f"{'':16} {'s':>7} {'min':>7} {'max':>7} {'ratio':>6} {'MB':>6}")
        for row in rows:
            times = (row.median, min(row.seconds), max(row.seconds))
            cells = " ".join(f"{each:7.2f}" for each in times)
            ratio = row.median / rows[0].median
            lines.append(f"{row.version:16} {cells} {ratio:6.2f} {row.memory_mb:6.0f}")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--old", type=Path, help="checkout of another version, with its .venv")
    parser.add_argument("--runs", default="1000,10000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    tables: dict[int, list[Row]] = {}
    for runs in map(int, arguments.runs.split(",")):
        with tempfile.TemporaryDirectory(prefix="many-") as name:
            tables[runs] = measure(Path(name), runs, arguments.old, arguments.rounds)
    if arguments.json:
        rows = {runs: [vars(row) for row in found] for runs, found in tables.items()}
        print(json.dumps(rows, indent=1))
    else:
        print(show(tables), end="")


if __name__ == "__main__":
    main()
