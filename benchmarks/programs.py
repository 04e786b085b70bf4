"""Real programs under a sweep, and four clocks of one window: what the program prints, when its
lines came, ``Timer`` and the hook.

``python benchmarks/programs.py [--python PYTHON ...] [--only NAME ...] [--repeats N] [--json]``.
Each program that some Python has the modules for is swept on this machine's processors, as two
processes, by the ready table of ``programs/`` where there is one. A run has one of Timer and hook
beside the two clocks that every run has, so that each ratio is of the same iterations, and the
noise of a machine that does something else as well is in both. What cannot run is named, and why.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomllib

from dlperf_hpc.records.logfile import result_of_log

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "tests" / "support" / "programs"
WARMUP, ITERATIONS = 20, 100
WHOLE = f"[{WARMUP}:{WARMUP + ITERATIONS}]"
# Timer and hook write their logs as their window ends, the hook before the program prints the line
# of that iteration: lines that lie within the window have nothing of it in between.
WITHIN = f"[{WARMUP + 1}:{WARMUP + ITERATIONS - 1}]"
PYTHONS = (ROOT / ".venv/bin/python", ROOT / ".envs/frameworks/bin/python")
SWEEP = """
topologies = ["{topology}"]
base = "{topology}"
repeats = {repeats}
time_limit = "00:10:00"
[measure]
warmup = {warmup}
iterations = {iterations}
[case]
model = "toy"
device = "cpu"
environment = "programs"
{case}
[matrix]
framework = {frameworks}
"""
# Where Timer and hook write: beside the run's log, and kept.
TIMED = {
    "DLPERF_LOGS": "{outdir}",
    "DLPERF_MEASURE": "warmup={warmup} iterations={iterations}",
}


@dataclass(frozen=True)
class Program:
    """A program of :data:`SOURCES`. ``table`` is its own table, or the name of the ready one.

    ``timer`` are the words by which it takes a Timer, ``hook`` those of the hook; a text says why
    there are none. ``case`` is what the sweep's case has besides.
    """

    name: str
    modules: tuple[str, ...]
    table: str | Mapping[str, Any]
    timer: tuple[str, ...] | str
    hook: tuple[str, ...] | str
    case: Mapping[str, Any] = field(default_factory=dict)
    topology: str = "1n2g"
    file: str = ""
    called: str = ""
    differs: str = ""
    window: str = WITHIN

    def of(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Its tables, by clock: with a Timer, under the hook, or else as it is."""
        plain = self._table()
        found = []
        if not isinstance(self.timer, str):
            found.append(("timer", {**plain, "run": [*plain["run"], *self.timer]}))
        if not isinstance(self.hook, str):
            hooked = ["-m", "dlperf_hpc.hook", *self.hook, *plain["run"]]
            found.append(("hook", {**plain, "run": hooked}))
        yield from found or [("plain", plain)]

    def _table(self) -> dict[str, Any]:
        table = self.table
        if isinstance(table, str):
            table = tomllib.loads((ROOT / "programs" / f"{table}.toml").read_text())
        made = {**table, "stop": "never"}
        made["env"] = {**made.get("env", {}), **TIMED}
        return made


MPI_LINES = {"launch": "rank", "read": {"format": "megatron"}}
# GFLOP/s of one iteration are so many iterations/s: 2 n^3 operations on each of the two processes.
C_SIZE = 256
C_LINES = {
    "line": r"^step (?P<iteration>[0-9]+) of [0-9]+: (?P<printed>[0-9.]+) GFLOP/s",
    "printed": {
        "unit": "iterations/s",
        "averaging": "last-iteration",
        "scale": 1e9 / (2 * C_SIZE**3 * 2),
    },
}
NO_TORCH = "no optimizer of PyTorch's"
PROGRAMS = (
    Program(
        "HF Trainer, torchrun",
        ("transformers", "accelerate", "torch"),
        "hf_trainer",
        ("--timer",),
        ("--batch-size", "{batch_size * accumulation}"),
        {"batch_size": 8, "script": "hf_trainer.py"},
        differs="its total has the warm-up and the start of the training in it",
    ),
    Program(
        "HF Trainer, accelerate",
        ("transformers", "accelerate", "torch"),
        "hf_trainer_accelerate",
        ("--timer",),
        ("--batch-size", "{batch_size * accumulation}"),
        {"batch_size": 8, "script": "hf_trainer.py"},
        differs="its total has the warm-up and the start of the training in it",
    ),
    Program(
        "Lightning, torchrun",
        ("lightning", "jsonargparse", "torch"),
        "lightning",
        (
            *("--trainer.callbacks+", "dlperf_hpc.LightningTimer"),
            *("--trainer.callbacks.batch_size", "{batch_size}"),
            *("--trainer.callbacks.stop", "false"),
        ),
        ("--batch-size", "{batch_size * accumulation}"),
        {"batch_size": 64, "script": "lightning_fit.py"},
        differs="its rate is a mean since the epoch began, which is taken apart",
    ),
    Program(
        "nanoGPT's lines, torchrun",
        ("torch",),
        "nanogpt",
        ("--timer=1",),
        ("--batch-size", "{batch_size * accumulation}"),
        {"batch_size": 8, "accumulation": 2, "seq_len": 64},
        file="nanogpt_like.py",
        called="train.py",
        differs="its times leave out what it does behind their end: printing",
    ),
    Program(
        "JAX, two processes",
        ("jax",),
        {
            "launch": "rank",
            "run": [
                "jax_steps.py",
                "steps={steps}",
                "per_device_batch_size={batch_size}",
                "max_target_length={seq_len}",
            ],
            "read": {"format": "maxtext"},
        },
        ("timer=1",),
        NO_TORCH,
        {"batch_size": 8, "seq_len": 64},
        differs="its times leave out what it does behind their end: printing",
    ),
    Program(
        "Keras fit",
        ("keras", "numpy"),
        "keras",
        ("--timer",),
        NO_TORCH,
        {"batch_size": 1024, "script": "keras_fit.py"},
        topology="1n1g",
        window=WHOLE,  # a line for each epoch
        differs="it rounds the time of a step to whole ms, and leaves out an epoch's first",
    ),
    Program(
        "mpi4py",
        ("mpi4py",),
        {**MPI_LINES, "run": ["mpi_steps.py", "{steps}", "{batch_size}"]},
        ("timer",),
        NO_TORCH,
        {"batch_size": 8},
        differs="its times leave out what it does behind their end: printing",
    ),
    Program(
        "C with MPI",
        (),
        {**MPI_LINES, "run": ["./mpi_steps", "{steps}", str(C_SIZE)], "read": C_LINES},
        "no Python in it",
        "no Python in it",
        {"batch_size": 1},
        file="mpi_steps.c",
        differs="it prints GFLOP/s of each iteration; the ratio is of iterations/s made of them",
        window=WHOLE,
    ),
)


def toml_of(table: Mapping[str, Any], name: str) -> str:
    """A table as TOML. Texts, numbers and lists of them are the same in JSON."""
    rows = [f"{key} = {json.dumps(v)}" for key, v in table.items() if not isinstance(v, dict)]
    inner = [
        toml_of(v, f"{name}.{key}".lstrip(".")) for key, v in table.items() if isinstance(v, dict)
    ]
    head = [f"[{name}]"] if name else []
    return "\n".join([*head, *rows, *inner])


def python_with(modules: Sequence[str], pythons: Sequence[Path]) -> tuple[Path | None, str]:
    """The first Python that has the modules, with their versions; else what is missing."""
    code = (
        "import sys, importlib.util as u, importlib.metadata as m\n"
        "lacks = [n for n in sys.argv[1:] if u.find_spec(n) is None]\n"
        "print(' '.join(lacks)); lacks or print(', '.join(\n"
        "    n + ' ' + m.version(n) for n in sys.argv[1:] if n != 'numpy'))"
    )
    lacking = " ".join(modules)
    for python in pythons:
        if not python.exists():
            continue
        done = subprocess.run([python, "-c", code, *modules], capture_output=True, text=True)
        if done.returncode == 0 and done.stdout.startswith("\n"):
            return python, done.stdout.strip()
        lacking = done.stdout.strip() or lacking
    return None, f"no Python here has {lacking}"


def swept(place: Path, program: Program, python: Path, repeats: int) -> Path:
    """Run a program's sweep in a directory; the sweep's own."""
    for source in SOURCES.iterdir():
        if source.is_file():
            shutil.copy(source, place / source.name)
    if program.file.endswith(".c"):
        mpicc = [str(Path(sys.executable).with_name("mpicc")), "-O2", "-o"]
        made = place / program.file.removesuffix(".c")
        subprocess.run([*mpicc, str(made), str(SOURCES / program.file)], check=True)
    if program.called:
        shutil.copy(SOURCES / program.file, place / program.called)
    (place / "programs").mkdir()
    names = []
    for clock, table in program.of():
        names.append(f"p-{clock}")
        (place / "programs" / f"p-{clock}.toml").write_text(toml_of(table, ""))
    env = {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
    if "jax" in program.modules or "keras" in program.modules:
        env["KERAS_BACKEND"] = "tensorflow" if "frameworks" in str(python) else "jax"
    site = {"environment": {"programs": {"python": str(python), "env": env}}}
    (place / "here.toml").write_text(toml_of(site, "").lstrip())
    case = "\n".join(f"{key} = {json.dumps(value)}" for key, value in program.case.items())
    (place / "four.toml").write_text(
        SWEEP.format(
            topology=program.topology, repeats=repeats, warmup=WARMUP, iterations=ITERATIONS,
            case=case, frameworks=json.dumps(names),
        )
    )  # fmt: skip
    verb = [sys.executable, "-m", "dlperf_hpc", "sweep", "four.toml", "--cluster", "local"]
    env_of = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*verb, "--site", str(place / "here.toml")],
        cwd=place, env=env_of, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
    return place / "logs" / "four"


def figures(root: Path, rule: str, out: Path) -> dict[tuple[str, str], tuple[float, str]]:
    """Samples/s of each run by a rule, with the rule's name; by framework and repeat."""
    argv = [sys.executable, "-m", "dlperf_hpc", "report", str(root), "--rule", rule]
    argv += ["--write", "csv", "--out", str(out)]
    subprocess.run(argv, capture_output=True, check=False, env={**os.environ}, timeout=60)
    with open(out / "runs.csv", encoding="utf-8") as file:
        return {
            (row["framework"], row["repeat"]): (float(row["samples_per_s"]), row["rule"])
            for row in csv.DictReader(file)
            if row["samples_per_s"]
        }


def own_clock(root: Path, framework: str, repeat: str) -> float | None:
    """What the Timer of a run, or its hook, has measured."""
    found = [
        result.samples_per_s
        for path in root.glob(f"{framework}/**/attempts/*_{repeat}.attempt1.out/**/*.log")
        if (result := result_of_log(path)).samples_per_s is not None
    ]
    return found[0] if len(found) == 1 else None


def row_of(program: Program, root: Path) -> dict[str, Any]:
    """The four clocks of a program: medians, and ratios within each run to the arrival."""
    arrival = figures(root, f"arrival{program.window}", root / "of-arrival")
    printed: dict[tuple[str, str], tuple[float, str]] = {}
    for rule in (f"printed{program.window}", f"clock{WHOLE}", "total"):
        printed = printed or figures(root, rule, root / f"of-{rule.partition('[')[0]}")
    row: dict[str, Any] = {"name": program.name, "differs": program.differs}
    row["arrival"] = statistics.median(value for value, _ in arrival.values())
    row["runs"] = len(arrival)
    row["printed_rule"] = next((rule for _, rule in printed.values()), "")
    shares = [printed[run][0] / arrival[run][0] for run in arrival if run in printed]
    row["printed"] = spread(shares)
    for clock in ("timer", "hook"):
        why = getattr(program, clock)
        runs = [run for run in arrival if run[0] == f"p-{clock}"]
        timed = [(own_clock(root, *run), arrival[run][0]) for run in runs]
        row[clock] = spread([own / came for own, came in timed if own]) or (
            why if isinstance(why, str) else "no number"
        )
    return row


def spread(ratios: Sequence[float]) -> dict[str, float] | None:
    """Median and extremes."""
    if not ratios:
        return None
    return {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}


def shown(ratio: Any) -> str:
    """A ratio with its extremes, or why there is none."""
    if not isinstance(ratio, dict):
        return str(ratio or "-")
    return f"{ratio['median']:.3f} ({ratio['low']:.3f} - {ratio['high']:.3f})"


def row_shown(row: Mapping[str, Any]) -> str:
    """A row of the table."""
    printed = f"{shown(row['printed'])} `{row['printed_rule'] or 'none'}`"
    arrival = f"{row['arrival']:.1f}"
    cells = (row["name"], arrival, printed, shown(row["timer"]), shown(row["hook"]))
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """Print a row for each program that runs here, and what was left out."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--python", type=Path, action="append", help="one that has frameworks")
    parser.add_argument("--only", nargs="*", default=[], help="parts of programs' names")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    pythons = [*(given.python or []), Path(sys.executable), *PYTHONS]
    heads = (
        "program",
        "arrival, samples/s",
        "print / arrival",
        "Timer / arrival",
        "hook / arrival",
    )
    if not given.json:
        print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    rows, left = [], []
    for program in PROGRAMS:
        if given.only and not any(each in program.name for each in given.only):
            continue
        python, told = python_with(program.modules, [each.absolute() for each in pythons])
        if python is None:
            left.append(f"{program.name}: {told}")
            continue
        with tempfile.TemporaryDirectory() as place:
            try:
                root = swept(Path(place), program, python, given.repeats)
                rows.append({**row_of(program, root), "versions": told})
            except RuntimeError as error:
                left.append(f"{program.name}: failed: {error}")
                continue
        if not given.json:
            print(row_shown(rows[-1]), flush=True)
    if given.json:
        print(json.dumps({"rows": rows, "left_out": left}, indent=1))
        return 0
    for row in rows:
        print(f"{row['name']}: {row['versions']}; {row['runs']} runs; print: {row['differs']}")
    for each in left:
        print(f"left out: {each}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
