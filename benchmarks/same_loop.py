"""One training loop as the back end ``ddp`` and as a user's program under ``Timer``.

``python benchmarks/same_loop.py [--rounds N] [--iterations N] [--seconds S] [--json]``. Both sides
train the same model on two processes of this machine, each in sweeps of its own: a run of one side,
one of the other, and in the next round the other way round (ABBA). A round's ratio is that of two
runs which follow each other, so that a drift of the machine meets both alike.

glibc may give large blocks back to the kernel in each iteration and take them anew, or keep them:
which of the two hangs on what a process has freed before, so that two equal runs differ by up to a
third (``docs/benchmarks.md``). Both sides are told to keep them; ``--malloc as-is`` leaves it so.

No wait is without a bound: no round begins for which what is left of ``--seconds`` is too short,
and one that lasts longer is ended, with the last lines of each of its processes' logs.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dlperf_hpc.model.statistics import median_interval
from programs import ROOT, figures, own_clock

RANKS, BATCH, SEQ = 2, 4, 32
WARMUP = 10
HANGS_S = 180  # one run's program
GRACE_S = 30  # for a sweep to end its runs
ROUND_S = 400  # a round of two runs
LAST_LINES = 12
KEEPS_BLOCKS = {"MALLOC_TRIM_THRESHOLD_": str(1 << 32), "MALLOC_MMAP_THRESHOLD_": str(1 << 32)}
SWEEP = """
topologies = ["1n{ranks}g"]
base = "1n{ranks}g"
repeats = 1
time_limit = "00:10:00"
[measure]
warmup = {warmup}
iterations = {iterations}
[case]
model = "bert-tiny"
device = "cpu"
batch_size = {batch}
seq_len = {seq}
[matrix]
framework = {frameworks}
[program.same]
launch = "rank"
workdir = "{root}/benchmarks"
run = ["same_loop.py", "loop"]
stop = "never"
[program.same.env]
DLPERF_LOGS = "{{outdir}}"
DLPERF_MEASURE = "warmup={{warmup}} iterations={{iterations}}"
PYTHONPATH = "{root}"
"""


def loop() -> None:
    """The program: the back end's own session in a loop of one's own."""
    from dlperf_hpc import Timer
    from dlperf_hpc.model.case import Case, Topology
    from dlperf_hpc.train.ranks import discover
    from dlperf_hpc.train.registry import registry

    declared = registry()
    options = {each.name: each.default for each in declared.options("ddp", "bert-tiny")}
    case = Case(
        framework="ddp",
        model="bert-tiny",
        topology=Topology(1, RANKS),
        precision="fp32",
        batch_size=BATCH,
        seq_len=SEQ,
        device="cpu",
        options=tuple(sorted(options.items())),
    )
    workload = declared.workloads[case.model]
    # A program that hangs says where, also one that hangs as MPI or Gloo are shut down at its end.
    faulthandler.dump_traceback_later(HANGS_S, exit=True)
    world = discover()
    session = declared.backends["ddp"].open_session(case, world, workload)
    timer = Timer(batch_size=BATCH, model=case.model, seq_len=SEQ, precision=case.precision)
    for _ in timer(itertools.repeat(None)):
        session.iterate()
        timer.loss(session._loss)
    world.barrier()
    session.close()


def bounded(argv: list[str], place: Path, root: Path, seconds: float) -> None:
    """Run a sweep that may take so long; RuntimeError, with the last lines of each of its logs, if
    it fails or takes longer. All that it has started is ended then."""
    output = place / f"{root.name}.out"
    with open(output, "wb") as file:
        sweep = subprocess.Popen(
            argv, cwd=place, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        why = f"is not over after {seconds:.0f} s"
        try:
            code = sweep.wait(timeout=seconds)
            why = f"has ended with exit code {code}" if code else ""
        except subprocess.TimeoutExpired:
            for number in (signal.SIGINT, signal.SIGKILL):  # at the first it ends its runs
                with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    os.killpg(sweep.pid, number)
                    sweep.wait(timeout=GRACE_S)
    if why:
        logs = [output, *sorted(root.rglob("*.log")), *sorted(root.rglob("*.out"))]
        raise RuntimeError(
            f"{root.name} {why}\n" + "\n".join(map(last_lines, filter(Path.is_file, logs)))
        )


def last_lines(path: Path) -> str:
    """The last lines of a file, behind its name."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
    return "\n  ".join([f"{path}:", *lines])


def one_round(place: Path, number: int, iterations: int, seconds: float) -> float:
    """Samples/s under the Timer over those of the back end, of two runs one after the other."""
    frameworks = ["ddp", "same"] if number % 2 else ["same", "ddp"]
    text = SWEEP.format(
        ranks=RANKS, warmup=WARMUP, iterations=iterations, batch=BATCH, seq=SEQ, root=ROOT,
        frameworks=json.dumps(frameworks),
    )  # fmt: skip
    (place / f"round{number}.toml").write_text(text)
    argv = [sys.executable, "-m", "dlperf_hpc", "sweep", f"round{number}.toml"]
    bounded([*argv, "--cluster", "local"], place, place / "logs" / f"round{number}", seconds)
    root = place / "logs" / f"round{number}"
    timed = own_clock(root, "same", "1")
    if timed is None:
        raise RuntimeError(f"{root}: the Timer has left no number")
    return timed / figures(root, "default", root / "again")["ddp", "1"][0]


def main() -> int:
    """Print the ratio of each round, their median and its interval."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=900.0, help="budget for all rounds")
    parser.add_argument("--malloc", choices=("keeps", "as-is"), default="keeps")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.malloc == "keeps":
        os.environ.update(KEEPS_BLOCKS)  # sweeps on this machine hand their environment on
    ratios, failure = rounds(given.rounds, given.iterations, given.seconds)
    found = median_interval(ratios)
    if given.json:
        told = {"ratios": ratios, "interval": found and vars(found), "failure": failure}
        print(json.dumps(told))
        return 1 if failure else 0
    print(f"Timer / ddp by round: {', '.join(f'{each:.3f}' for each in ratios) or 'none'}")
    if found is not None:
        print(
            f"median {statistics.median(ratios):.3f}, {found.coverage:.1%} interval"
            f" [{found.low:.3f}, {found.high:.3f}]; {len(ratios)} of {given.rounds} rounds"
        )
    if failure:
        print(failure, file=sys.stderr)
    return 1 if failure else 0


def rounds(number: int, iterations: int, seconds: float) -> tuple[list[float], str]:
    """The ratios of the rounds for which there was time, and what went wrong, '' if nothing did."""
    begun = time.monotonic()
    ratios: list[float] = []
    longest = 0.0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        for n in range(1, number + 1):
            before = time.monotonic()
            left = seconds - (before - begun) - 2 * GRACE_S
            if left <= longest:
                break
            try:
                ratios.append(one_round(Path(place), n, iterations, min(ROUND_S, left)))
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                return ratios, str(error)
            longest = max(longest, time.monotonic() - before)
    return ratios, ""


if __name__ == "__main__":
    if sys.argv[1:] == ["loop"]:
        loop()
    else:
        sys.exit(main())
